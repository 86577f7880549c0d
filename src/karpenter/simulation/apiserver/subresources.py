"""Eviction: deleting a pod only while its disruption budget allows.

The server does not evaluate budgets. It reads what a controller has written into the budget's status
(``pdb_controller`` plays that controller), takes one from ``disruptionsAllowed`` and notes the pod under ``disruptedPods``, so
that the controller does not count it as healthy until it is seen to leave. If no controller writes that status, a budget allows
nothing, as on a real cluster.

As on a real server, the budget is charged before the pod is deleted, so an eviction that then
fails on a precondition has cost one disruption until the controller counts again.
"""

from __future__ import annotations

from typing import cast

from karpenter.api.core import PodDisruptionBudget
from karpenter.api.kinds import POD_DISRUPTION_BUDGET, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import NotFound, StatusDetails
from karpenter.model import selectors
from karpenter.model.labels import REGION, ZONE
from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.list_query import ObjectQuery
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_deletion import DeleteOptions, format_time
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.served_resources import ServedResource

_PDB_KIND = cast(Kind[Wire], POD_DISRUPTION_BUDGET)
_PHASES_WITHOUT_BUDGET = ("Succeeded", "Failed", "Pending")
_MAX_DISRUPTED_PODS = 2000
_UNOBSERVED_RETRY_SECONDS = 10


def evict_pod(server: MemoryServer, namespace: str, name: str, options: DeleteOptions) -> None:
    """Delete a pod if its budget allows.

    Raises ``NotFound``, ``Conflict``, ``TooManyRequests`` or, when several budgets select the pod, ``ServerUnavailable`` with
    status 500 as a real server does.
    """
    pods = server.resource("", "v1", "pods")
    pod = server.get(pods, namespace, name)
    if not _needs_no_budget(pod.decoded()):
        _consume_disruption(server, pod)
    server.check_preconditions(pod, options)
    condition = _condition("DisruptionTarget", "EvictionByEvictionAPI", format_time(server.clock.now()))
    condition |= {"status": "True", "message": "Eviction API: evicting"}
    server.update_any(pods, namespace, name, lambda body: _with_condition(body, condition))
    server.delete(pods, namespace, name, DeleteOptions(grace_period_seconds=options.grace_period_seconds))


def _needs_no_budget(pod: JsonDict) -> bool:
    """Whether the pod does not serve: finished, not started, or terminating."""
    return (pod.get("status") or {}).get("phase") in _PHASES_WITHOUT_BUDGET or "deletionTimestamp" in pod["metadata"]


def _consume_disruption(server: MemoryServer, pod: StoredEntry) -> None:
    resource = server.resource("policy", "v1", "poddisruptionbudgets")
    listed = server.list(resource, ObjectQuery(pod.namespace)).entries
    stored_entries = [entry for entry in listed if _budget_selects(entry, pod)]
    if len(stored_entries) > 1:
        raise status_errors.server_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for budget in stored_entries:
        body = budget.decoded()
        if not _allows_unhealthy_pod(body, pod.decoded()):
            _check_budget(resource, body)
            server.update_any(
                resource, budget.namespace, budget.name, lambda body: _with_disruption_consumed(server, body, pod.name)
            )


def _budget_selects(entry: StoredEntry, pod: StoredEntry) -> bool:
    budget = entry.typed(_PDB_KIND)
    return isinstance(budget, PodDisruptionBudget) and selectors.selector_matches(budget.spec.selector, pod.labels)


def _allows_unhealthy_pod(budget: JsonDict, pod: JsonDict) -> bool:
    """Whether the pod may go without being counted: it is not ready, and its budget's policy does not guard such pods now."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return int(status.get("currentHealthy", 0)) >= int(status.get("desiredHealthy", 0)) > 0


def _check_budget(resource: ServedResource, budget: JsonDict) -> None:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        text = f"The disruption budget {name} is still being processed by the server."
        raise status_errors.budget_exceeded(text, _UNOBSERVED_RETRY_SECONDS)
    if len(status.get("disruptedPods") or ()) > _MAX_DISRUPTED_PODS:
        cause = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise status_errors.forbidden(resource, name, cause)
    if status.get("disruptionsAllowed", 0) <= 0:
        raise status_errors.budget_exceeded(f"The disruption budget {name} {_budget_message(status)}")


def _budget_message(status: JsonDict) -> str:
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    conditions = status.get("conditions") or ()
    none: JsonDict = {}
    reported = next((condition for condition in conditions if condition["type"] == "DisruptionAllowed"), none)
    message = reported.get("message") if reported.get("status") == "False" else ""
    if message and reported.get("reason") == "SyncFailed":
        return f"does not allow evicting pods currently because it failed sync: {message}"
    if healthy <= desired:
        return f"needs {desired} healthy pods and has {healthy} currently"
    if message:
        return f"does not allow evicting pods currently ({reported.get('reason')}): {message}"
    return "does not allow evicting pods currently"


def _with_disruption_consumed(server: MemoryServer, budget: JsonDict, pod: str) -> JsonDict:
    now = format_time(server.clock.now())
    status = budget["status"]
    status["disruptionsAllowed"] -= 1
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: now}
    if not status["disruptionsAllowed"]:
        condition = _condition("DisruptionAllowed", "InsufficientPods", now)
        condition |= {"status": "False", "message": "", "observedGeneration": status["observedGeneration"]}
        return _with_condition(budget, condition)
    return budget


def _condition(type_: str, reason: str, now: str) -> JsonDict:
    return {"type": type_, "reason": reason, "lastTransitionTime": now}


def _with_condition(body: JsonDict, condition: JsonDict) -> JsonDict:
    """The object with the condition set; its time stays when its status does."""
    status = body.setdefault("status", {})
    conditions = list(status.get("conditions") or ())
    place = next((index for index, existing in enumerate(conditions) if existing["type"] == condition["type"]), None)
    if place is None:
        conditions.append(condition)
    else:
        same = conditions[place]["status"] == condition["status"]
        kept = {"lastTransitionTime": conditions[place].get("lastTransitionTime")} if same else {}
        conditions[place] = {**condition, **kept}
    status["conditions"] = conditions
    return body


def bind_pod(server: MemoryServer, namespace: str, name: str, node: str) -> StoredEntry:
    """Bind a pod to a node; the pod takes over the node's zone and region. Raises ``NotFound`` or ``Conflict``."""
    labels = _node_topology_labels(server, node)
    now = format_time(server.clock.now())

    def change(pod: JsonDict) -> JsonDict:
        _check_bindable(pod)
        pod.setdefault("spec", {})["nodeName"] = node
        if labels:
            pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **labels}
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        others = [existing for existing in status.get("conditions") or () if existing["type"] != "PodScheduled"]
        status["conditions"] = [*others, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
        return pod

    return server.update_any(server.resource("", "v1", "pods"), namespace, name, change)


def _node_topology_labels(server: MemoryServer, node: str) -> JsonDict:
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
        details = StatusDetails(name=meta["name"], kind="pods/binding")
        raise status_errors.conflict("pods/binding", meta["name"], f"pod {meta['name']} {cause}", details)


_SCALE_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def read_scale(entry: StoredEntry) -> JsonDict:
    """The ``Scale`` view of an object. Raises ``NotFound`` for a kind without it, ``ServerUnavailable`` without replicas."""
    _check_scalable(entry.resource)
    body = entry.decoded()
    if "replicas" not in (body.get("spec") or {}):
        raise status_errors.server_error(
            'Internal error occurred: the spec replicas field ".spec.replicas" does not exist', "InternalError"
        )
    return _scale_view(entry.resource, body)


def with_replicas(entry: StoredEntry, body: JsonDict, scale: JsonDict) -> JsonDict:
    """``body`` with the replicas a ``Scale`` asks for. Raises ``Invalid`` when that is no number of replicas."""
    resource = entry.resource
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        cause = f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"
        raise status_errors.invalid(resource, entry.name, cause)
    version = (scale.get("metadata") or {}).get("resourceVersion")
    meta = {**body["metadata"], **({"resourceVersion": version} if version else {})}
    return {**body, "metadata": meta, "spec": {**(body.get("spec") or {}), "replicas": replicas}}


def scale_to_patch(entry: StoredEntry) -> JsonDict:
    """The view a patch of the scale applies to, for an object without replicas too. Raises ``NotFound``."""
    _check_scalable(entry.resource)
    return _scale_view(entry.resource, entry.decoded())


def _scale_view(resource: ServedResource, body: JsonDict) -> JsonDict:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    counted = "nodes" if resource.kind.name == "NodePool" else "replicas"
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    replicas = spec.get("replicas")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {key: body["metadata"][key] for key in _SCALE_METADATA if key in body["metadata"]},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": status.get(counted, 0), **({"selector": selector} if selector else {})},
    }


def _check_scalable(resource: ServedResource) -> None:
    if not resource.is_scalable:
        raise status_errors.no_such_subresource()
