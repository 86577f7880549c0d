"""Binding a pod to a node, as the subresource of that name does."""

from __future__ import annotations

from karpenter.kube.errors import Details, NotFound
from karpenter.kube.memory import refusals
from karpenter.kube.memory.deletion import stamp
from karpenter.kube.memory.server import MemoryServer
from karpenter.kube.memory.store import Entry, JsonDict
from karpenter.model.labels import REGION, ZONE


def bind(server: MemoryServer, namespace: str, name: str, node: str) -> Entry:
    """Bind a pod to a node; the pod takes over the node's zone and region. Raises ``NotFound`` or ``Conflict``."""
    labels = _topology(server, node)
    now = stamp(server.clock.now())

    def change(pod: JsonDict) -> JsonDict:
        _check_bindable(pod)
        pod.setdefault("spec", {})["nodeName"] = node
        if labels:
            pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **labels}
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        others = [item for item in status.get("conditions") or () if item["type"] != "PodScheduled"]
        status["conditions"] = [*others, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
        return pod

    return server.rewrite(server.resource("", "v1", "pods"), namespace, name, change)


def _topology(server: MemoryServer, node: str) -> JsonDict:
    try:
        labels = server.get(server.resource("", "v1", "nodes"), "", node).labels
    except NotFound:
        return {}
    return {key: labels[key] for key in (ZONE, REGION) if key in labels}


def _check_bindable(pod: JsonDict) -> None:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    cause = ""
    if meta.get("deletionTimestamp"):
        cause = "is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        cause = f'is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        cause = "has non-empty .spec.schedulingGates"
    if cause:
        details = Details(name=meta["name"], kind="pods/binding")
        raise refusals.conflict("pods/binding", meta["name"], f"pod {meta['name']} {cause}", details)
