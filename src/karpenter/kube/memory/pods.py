"""Subresources: binding and eviction of pods, and scaling."""

from __future__ import annotations

from typing import cast

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.kinds import POD, POD_DISRUPTION_BUDGET, Kind
from karpenter.api.meta import OwnerReference, Wire
from karpenter.kube.errors import Conflict, Invalid, NotFound, TooManyRequests, Unavailable
from karpenter.kube.memory import eviction
from karpenter.kube.memory.deletion import DeleteOptions, stamp
from karpenter.kube.memory.eviction import Headroom
from karpenter.kube.memory.query import Query
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.server import MemoryServer
from karpenter.kube.memory.store import Entry, JsonDict
from karpenter.model.labels import REGION, ZONE

_RETRY_SECONDS = 10.0
_POD = cast(Kind[Wire], POD)
_BUDGET = cast(Kind[Wire], POD_DISRUPTION_BUDGET)


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
        raise Conflict(
            f'Operation cannot be fulfilled on pods/binding "{meta["name"]}": pod {meta["name"]} {cause}',
            status=409,
            reason="Conflict",
        )


def evict(server: MemoryServer, namespace: str, name: str, options: DeleteOptions) -> None:
    """Delete a pod if the budgets allow. Raises ``NotFound``, ``Conflict``, ``TooManyRequests`` or, when several budgets
    select the pod, ``Unavailable`` with status 500 as a real server does.
    """
    resource = server.resource("", "v1", "pods")
    pod = server.get(resource, namespace, name).typed(_POD)
    if isinstance(pod, Pod) and not eviction.ignores_budgets(pod):
        _check_budgets(server, pod)
    server.delete(resource, namespace, name, options)


def _check_budgets(server: MemoryServer, pod: Pod) -> None:
    budgets = [budget for budget in _budgets(server, pod.metadata.namespace) if eviction.covers(budget, pod)]
    if len(budgets) > 1:
        raise Unavailable(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            status=500,
            reason="InternalError",
        )
    for budget in budgets:
        if not eviction.permits(budget, pod, headroom(server, budget)):
            raise TooManyRequests(
                f"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget "
                f"{budget.metadata.name} allows no disruption now.",
                retry_after_seconds=_RETRY_SECONDS,
            )


def headroom(server: MemoryServer, budget: PodDisruptionBudget) -> Headroom:
    """What a budget allows now: the arithmetic its status would show."""

    def scale(namespace: str, owner: OwnerReference) -> int | None:
        return _replicas(server, owner.uid)

    return eviction.headroom(budget, _pods(server, budget.metadata.namespace), scale)


def _replicas(server: MemoryServer, uid: str) -> int | None:
    """Replicas the top-most controller above this uid wants, None when it has no such number."""
    entry = server.owner(uid)
    if entry is None:
        return None
    body = entry.decoded()
    above = next(
        (owner["uid"] for owner in body["metadata"].get("ownerReferences") or () if owner.get("controller")), None
    )
    higher = _replicas(server, above) if above else None
    replicas = (body.get("spec") or {}).get("replicas")
    return higher if higher is not None else replicas


def _budgets(server: MemoryServer, namespace: str) -> list[PodDisruptionBudget]:
    resource = server.resource("policy", "v1", "poddisruptionbudgets")
    found = (entry.typed(_BUDGET) for entry in server.list(resource, Query(namespace)).entries)
    return [budget for budget in found if isinstance(budget, PodDisruptionBudget)]


def _pods(server: MemoryServer, namespace: str) -> list[Pod]:
    resource = server.resource("", "v1", "pods")
    found = (entry.typed(_POD) for entry in server.list(resource, Query(namespace)).entries)
    return [pod for pod in found if isinstance(pod, Pod)]


def scale_of(entry: Entry) -> JsonDict:
    """The ``Scale`` view of a scalable object. Raises ``NotFound`` for another kind."""
    _check_scalable(entry.resource)
    body = entry.decoded()
    meta = {
        key: body["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    }
    spec, status = body.get("spec") or {}, body.get("status") or {}
    counted = "nodes" if entry.resource.kind.name == "NodePool" else "replicas"
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: value for key, value in meta.items() if value is not None},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {"replicas": status.get(counted, 0), "selector": selector},
    }


def with_scale(entry: Entry, body: JsonDict, scale: JsonDict) -> JsonDict:
    """``body`` with the replicas a ``Scale`` asks for. Raises ``Invalid`` when it does not say a number."""
    _check_scalable(entry.resource)
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise Invalid(f"spec.replicas: {replicas!r} is not a number of replicas", status=422, reason="Invalid")
    version = (scale.get("metadata") or {}).get("resourceVersion")
    meta = {**body["metadata"], **({"resourceVersion": version} if version else {})}
    return {**body, "metadata": meta, "spec": {**(body.get("spec") or {}), "replicas": replicas}}


def _check_scalable(resource: Resource) -> None:
    if not resource.scalable:
        raise NotFound(f"{resource.name} has no scale subresource", status=404, reason="NotFound")
