"""Eviction: deleting a pod only while its disruption budget allows.

The server knows no arithmetic of budgets. It reads what a controller has written into the budget's status
(``sim.disruption`` plays that controller), takes one from ``disruptionsAllowed`` and notes the pod under ``disruptedPods``, so
that the controller does not count it as healthy until it is seen to leave. Without anybody who writes that status a budget
allows nothing, as on a real cluster.

Worth knowing, since a real server does it too: the budget is charged before the pod is deleted, so an eviction that then
fails on a precondition has cost one disruption until the controller counts again.
"""

from __future__ import annotations

from typing import cast

from karpenter.api.core import PodDisruptionBudget
from karpenter.api.kinds import POD_DISRUPTION_BUDGET, Kind
from karpenter.api.meta import Wire
from karpenter.kube.memory import refusals
from karpenter.kube.memory.deletion import DeleteOptions, stamp
from karpenter.kube.memory.query import Query
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.server import MemoryServer
from karpenter.kube.memory.store import Entry, JsonDict
from karpenter.model import selectors

_BUDGET = cast(Kind[Wire], POD_DISRUPTION_BUDGET)
_BEYOND_BUDGETS = ("Succeeded", "Failed", "Pending")
_MOST_UNCONFIRMED = 2000
_UNCONFIRMED_RETRY_SECONDS = 10


def evict(server: MemoryServer, namespace: str, name: str, options: DeleteOptions) -> None:
    """Delete a pod if its budget allows.

    Raises ``NotFound``, ``Conflict``, ``TooManyRequests`` or, when several budgets select the pod, ``Unavailable`` with status
    500 as a real server does.
    """
    pods = server.resource("", "v1", "pods")
    pod = server.get(pods, namespace, name)
    if not _is_beyond_budgets(pod.decoded()):
        _charge(server, pod)
    server.check_preconditions(pod, options)
    condition = _condition("DisruptionTarget", "EvictionByEvictionAPI", stamp(server.clock.now()))
    condition |= {"status": "True", "message": "Eviction API: evicting"}
    server.rewrite(pods, namespace, name, lambda body: _with_condition(body, condition))
    server.delete(pods, namespace, name, DeleteOptions(grace_period_seconds=options.grace_period_seconds))


def _is_beyond_budgets(pod: JsonDict) -> bool:
    """Whether the pod serves nobody: finished, not started, or leaving already."""
    return (pod.get("status") or {}).get("phase") in _BEYOND_BUDGETS or "deletionTimestamp" in pod["metadata"]


def _charge(server: MemoryServer, pod: Entry) -> None:
    resource = server.resource("policy", "v1", "poddisruptionbudgets")
    found = [entry for entry in server.list(resource, Query(pod.namespace)).entries if _covers(entry, pod)]
    if len(found) > 1:
        raise refusals.server_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for budget in found:
        body = budget.decoded()
        if not _spares(body, pod.decoded()):
            _check(resource, body)
            server.rewrite(resource, budget.namespace, budget.name, lambda body: _charged(server, body, pod.name))


def _covers(entry: Entry, pod: Entry) -> bool:
    budget = entry.typed(_BUDGET)
    return isinstance(budget, PodDisruptionBudget) and selectors.matches(budget.spec.selector, pod.labels)


def _spares(budget: JsonDict, pod: JsonDict) -> bool:
    """Whether the pod may go without being counted: it is not ready, and its budget's policy does not guard such pods now."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return int(status.get("currentHealthy", 0)) >= int(status.get("desiredHealthy", 0)) > 0


def _check(resource: Resource, budget: JsonDict) -> None:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        text = f"The disruption budget {name} is still being processed by the server."
        raise refusals.over_budget(text, _UNCONFIRMED_RETRY_SECONDS)
    if len(status.get("disruptedPods") or ()) > _MOST_UNCONFIRMED:
        cause = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise refusals.forbidden(resource, name, cause)
    if status.get("disruptionsAllowed", 0) <= 0:
        raise refusals.over_budget(f"The disruption budget {name} {_obstacle(status)}")


def _obstacle(status: JsonDict) -> str:
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    conditions = status.get("conditions") or ()
    none: JsonDict = {}
    reported = next((item for item in conditions if item["type"] == "DisruptionAllowed"), none)
    message = reported.get("message") if reported.get("status") == "False" else ""
    if message and reported.get("reason") == "SyncFailed":
        return f"does not allow evicting pods currently because it failed sync: {message}"
    if healthy <= desired:
        return f"needs {desired} healthy pods and has {healthy} currently"
    if message:
        return f"does not allow evicting pods currently ({reported.get('reason')}): {message}"
    return "does not allow evicting pods currently"


def _charged(server: MemoryServer, budget: JsonDict, pod: str) -> JsonDict:
    now = stamp(server.clock.now())
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
    place = next((index for index, item in enumerate(conditions) if item["type"] == condition["type"]), None)
    if place is None:
        conditions.append(condition)
    else:
        same = conditions[place]["status"] == condition["status"]
        kept = {"lastTransitionTime": conditions[place].get("lastTransitionTime")} if same else {}
        conditions[place] = {**condition, **kept}
    status["conditions"] = conditions
    return body
