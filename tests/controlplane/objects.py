"""Manifests for the API server, and reads of its objects."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.harness import ApiError, ControlPlane, Json


def made(kind: str, version: str, name: str, spec: Json, **metadata: object) -> Json:
    """An object with a spec."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


#: What refers to the class of ``simulated_class``.
CLASS_REFERENCE = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}


def simulated_class(name: str = "default", **spec: object) -> Json:
    """A node class of simulated instances."""
    return made("KWOKNodeClass", "karpenter.kwok.sh/v1alpha1", name, spec)


def simulated_pool(name: str = "default", requirements: Sequence[Json] = (), **spec: object) -> Json:
    """A NodePool of simulated instances."""
    template = {"spec": {"nodeClassRef": CLASS_REFERENCE, "requirements": list(requirements)}}
    return made("NodePool", "karpenter.sh/v1", name, {"template": template, **spec})


def one_of(key: str, *values: str) -> Json:
    """A requirement that a label has one of these values."""
    return {"key": key, "operator": "In", "values": list(values)}


def items(plane: ControlPlane, path: str) -> list[Json]:
    """The objects of a collection."""
    return plane.request("GET", path)["items"]


def exists(plane: ControlPlane, path: str) -> bool:
    """Whether the API server has the object. Raises ``ApiError`` where it does not say."""
    try:
        plane.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True
