"""Manifests for the API server, and reads of its objects."""

from __future__ import annotations

from controlplane.harness import ApiError, ControlPlane, Json


def made(kind: str, version: str, name: str, spec: Json, **metadata: object) -> Json:
    """An object with a spec."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def simulated_pool() -> tuple[Json, Json]:
    """A node class of simulated instances and a NodePool on it, both ``default``."""
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    return (
        made("KWOKNodeClass", "karpenter.kwok.sh/v1alpha1", "default", {}),
        made("NodePool", "karpenter.sh/v1", "default", {"template": template}),
    )


def items(plane: ControlPlane, path: str) -> list[Json]:
    """The objects of a collection."""
    return plane.request("GET", path)["items"]  # type: ignore[return-value]


def exists(plane: ControlPlane, path: str) -> bool:
    """Whether the API server has the object. Raises ``ApiError`` where it does not say."""
    try:
        plane.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True
