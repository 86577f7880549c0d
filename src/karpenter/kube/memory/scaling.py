"""The ``scale`` subresource: how many replicas an object wants, in the same words for every kind that has replicas."""

from __future__ import annotations

from karpenter.kube.memory import refusals
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import Entry, JsonDict

_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(entry: Entry) -> JsonDict:
    """The ``Scale`` view of an object. Raises ``NotFound`` for a kind without it, ``Unavailable`` where replicas are unset."""
    _check_scalable(entry.resource)
    body = entry.decoded()
    if "replicas" not in (body.get("spec") or {}):
        raise refusals.server_error(
            'Internal error occurred: the spec replicas field ".spec.replicas" does not exist', "InternalError"
        )
    return _view(entry.resource, body)


def scaled(entry: Entry, body: JsonDict, scale: JsonDict) -> JsonDict:
    """``body`` with the replicas a ``Scale`` asks for. Raises ``Invalid`` when that is no number of replicas."""
    resource = entry.resource
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        cause = f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"
        raise refusals.invalid(resource, entry.name, cause)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    meta = {**body["metadata"], **({"resourceVersion": version} if version else {})}
    return {**body, "metadata": meta, "spec": {**(body.get("spec") or {}), "replicas": replicas}}


def present(entry: Entry) -> JsonDict:
    """The view a patch of the scale applies to, for an object without replicas too. Raises ``NotFound``."""
    _check_scalable(entry.resource)
    return _view(entry.resource, entry.decoded())


def _view(resource: Resource, body: JsonDict) -> JsonDict:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    counted = "nodes" if resource.kind.name == "NodePool" else "replicas"
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    replicas = spec.get("replicas")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: body["metadata"][key] for key in _METADATA if key in body["metadata"]},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": status.get(counted, 0), **({"selector": selector} if selector else {})},
    }


def _check_scalable(resource: Resource) -> None:
    if not resource.scalable:
        raise refusals.no_such_subresource()
