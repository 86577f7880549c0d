"""Evicting pods from draining nodes by the Eviction API, at one pace for the whole cluster (DIS §17.4).

A drain says which pods of its node are wanted away now; the evictor asks for each until the drain wants it no more. So whatever
happens to a pod meanwhile (gone, protected, the node given back) is judged in one place, the drain, and here is only pace: one
token bucket for all calls, and per pod growing pauses after a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from karpenter.api.core import Node, Pod
from karpenter.api.kinds import POD
from karpenter.kube.errors import Conflict, KubeError, NotFound, TooManyRequests
from karpenter.kube.token_bucket import TokenBucket
from karpenter.model import labels, pod_disruption, pods
from karpenter.model.clock import rfc3339
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_node, involved_pod

_FIRST_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 10.0
#: How the API server refuses a pod with several budgets: as an error of its own (500), not as a refusal.
_MULTIPLE_BUDGETS_MESSAGE = "more than one PodDisruptionBudget"
_FORCEFUL_TERMINATION = "Forceful Termination"
_log = structlog.get_logger()


@dataclass(frozen=True)
class EvictionLimits:
    """How fast evictions may be asked for: on average, at once, and how many calls may be under way (OPS-702, OPS-713)."""

    per_second: float = 100.0
    burst: int = 1000
    workers: int = 100


@dataclass
class _EvictionRequest:
    """A pod that is to go, and how the last try went."""

    pod: Pod
    node: Node
    backoff_seconds: float = 0.0
    last_error: KubeError | None = None


def first_eviction_tier(waiting: Sequence[Pod]) -> list[Pod]:
    """The pods that go next: ordinary before DaemonSet, uncritical before critical; one tier at a time (DIS-522)."""
    tiers: dict[tuple[bool, bool], list[Pod]] = {}
    for pod in waiting:
        tiers.setdefault((pod_disruption.is_critical(pod), pods.is_daemonset_pod(pod)), []).append(pod)
    return tiers[min(tiers)] if tiers else []


def is_budget_refusal(error: KubeError) -> bool:
    """Whether an eviction was refused for the sake of a budget: its owner's wish, not a fault somebody has to mend."""
    return isinstance(error, TooManyRequests) or _MULTIPLE_BUDGETS_MESSAGE in str(error)


class EvictionQueue:
    """Evicts the pods that drains want away. ``wake`` has ``look`` called with a key, soon."""

    def __init__(self, context: ControllerContext, limits: EvictionLimits, wake: Callable[[str], None]) -> None:
        self._context = context
        self._wake = wake
        self._token_bucket = TokenBucket(limits.per_second, limits.burst)
        self._requests: dict[str, _EvictionRequest] = {}
        self._keys_by_node: dict[str, set[str]] = {}

    def set_pods(self, node: Node, evictable: Sequence[Pod]) -> None:
        """These pods of the node are to go now, in this order, and no others."""
        keys = {_pod_key(pod): pod for pod in evictable}
        for key in self._keys_by_node.get(node.metadata.name, set()) - keys.keys():
            del self._requests[key]
        for key, pod in keys.items():
            wish = self._requests.get(key)
            if wish is None:
                self._requests[key] = _EvictionRequest(pod, node)
                self._wake(key)
            else:
                wish.pod, wish.node = pod, node
        self._keys_by_node[node.metadata.name] = set(keys)

    def remove_node(self, node_name: str) -> None:
        """No pod of the node is to go any more."""
        for key in self._keys_by_node.pop(node_name, ()):
            del self._requests[key]

    def eviction_errors(self, node_name: str) -> Mapping[str, KubeError]:
        """Why pods of the node could not be evicted at the last try, by pod uid."""
        wishes = (self._requests[key] for key in self._keys_by_node.get(node_name, ()))
        return {wish.pod.metadata.uid: wish.last_error for wish in wishes if wish.last_error is not None}

    async def reconcile(self, key: str) -> float | None:
        """Ask once for one pod, as soon as the pace allows; seconds until the next try, None when it is wanted no more."""
        if key not in self._requests:
            return None
        await self._token_bucket.take()
        wish = self._requests.get(key)
        return None if wish is None else await self._evict(wish)

    async def _evict(self, request: _EvictionRequest) -> float:
        """One call. A pod that was evicted or met another of its name is asked for again only if it stays for long."""
        meta = request.pod.metadata
        try:
            await self._context.kube.evict(meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict) as error:
            self._count_response(error.status)
            request.last_error = None
            return _MAX_BACKOFF_SECONDS
        except KubeError as error:
            self._count_response(error.status)
            return self._back_off(request, error)
        self._count_response(200)
        request.backoff_seconds, request.last_error = 0.0, None
        reason = self._disruption_reason(request.node)
        self._context.metrics.pods_drained_total.labels(reason=reason).inc()
        self._context.events.publish(
            ObjectEvent(involved_pod(request.pod), NORMAL, "Evicted", f"Evicted pod: {reason}")
        )
        return _MAX_BACKOFF_SECONDS

    def _count_response(self, status: int) -> None:
        """Every answer by its HTTP status (OPS-444); a call without an answer has none."""
        if status:
            self._context.metrics.pods_eviction_requests_total.labels(code=str(status)).inc()

    def _back_off(self, request: _EvictionRequest, error: KubeError) -> float:
        self._publish_failed_eviction(request, error)
        request.last_error = error
        request.backoff_seconds = min(_MAX_BACKOFF_SECONDS, request.backoff_seconds * 2 or _FIRST_BACKOFF_SECONDS)
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        return max(request.backoff_seconds, min(_MAX_BACKOFF_SECONDS, asked))

    def _publish_failed_eviction(self, request: _EvictionRequest, error: KubeError) -> None:
        """Tell why a pod stays; in the log only what is a fault, and once."""
        namespace, name = request.pod.metadata.namespace, request.pod.metadata.name
        if not is_budget_refusal(error) and str(error) != str(request.last_error or ""):
            reference = {"namespace": namespace, "name": name}
            node = {"name": request.node.metadata.name}
            _log.error("evicting pod failed", Pod=reference, Node=node, error=str(error))
        text = f"Failed to drain node, evicting pod {namespace}/{name}: {error}"
        about = involved_node(request.node.metadata)
        self._context.events.publish(ObjectEvent(about, WARNING, "FailedDraining", text, (namespace, name)))

    def _disruption_reason(self, node: Node) -> str:
        """Why the node goes, as its claim says; empty where node or claim is gone (DIS-534)."""
        claim = self._context.state.claim_by_provider_id(node.spec.provider_id)
        if claim is None:
            return ""
        found = (c for c in claim.status.conditions if c.type == "DisruptionReason" and c.status == "True")
        return next((condition.reason for condition in found), _FORCEFUL_TERMINATION)


def _pod_key(pod: Pod) -> str:
    """A pod of the same name with another uid is another pod (DIS-531)."""
    meta = pod.metadata
    return f"{meta.namespace}/{meta.name}/{meta.uid}"


#: A pod deleted already is deleted once more only after so long: where the API server's clock is ahead of ours the time it
#: grants always ends too late, and each look would delete anew.
_REDELETE_AFTER_SECONDS = 10.0


def must_delete_pod(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Whether the pod must be deleted now for its node to meet the deadline (DIS-530)."""
    if deadline is None:
        return False
    deleted = pod.metadata.deletion_timestamp
    if deleted is not None:
        return deleted > deadline
    grace = pod.spec.termination_grace_period_seconds
    return grace is not None and (deadline - now).total_seconds() < grace


class PodForceDeletion:
    """Deletes pods with what time is left, at least a second: never at once, or two of them could run."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._deleted_at: dict[str, float] = {}
        self._prune_at = 0.0

    async def delete(self, pods: list[Pod], node: Node, deadline: datetime) -> None:
        """Delete these pods of the node. One that cannot be deleted now is said, and does not keep the others."""
        due = [pod for pod in pods if self._is_due(pod.metadata.uid)]
        await asyncio.gather(*(self._delete(pod, node, deadline) for pod in due))

    def _is_due(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._prune_at:
            self._deleted_at = {uid: at for uid, at in self._deleted_at.items() if now - at < _REDELETE_AFTER_SECONDS}
            self._prune_at = now + _REDELETE_AFTER_SECONDS
        return now - self._deleted_at.get(uid, -_REDELETE_AFTER_SECONDS) >= _REDELETE_AFTER_SECONDS

    async def _delete(self, pod: Pod, node: Node, deadline: datetime) -> None:
        meta = pod.metadata
        grace = max(1, int((deadline - self._context.clock.now()).total_seconds()))
        try:
            await self._context.kube.delete(POD, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=grace)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            self._publish_failed_deletion(pod, node, error)
            return
        self._deleted_at[meta.uid] = asyncio.get_running_loop().time()
        self._publish_deletion(pod, grace, deadline)

    def _publish_failed_deletion(self, pod: Pod, node: Node, error: KubeError) -> None:
        namespace, name = pod.metadata.namespace, pod.metadata.name
        _log.error("deleting pod failed", Pod={"namespace": namespace, "name": name}, error=str(error))
        text = f"Failed to drain node, deleting pod {namespace}/{name}: {error}"
        about = involved_node(node.metadata)
        self._context.events.publish(ObjectEvent(about, WARNING, "FailedDraining", text, (namespace, name)))

    def _publish_deletion(self, pod: Pod, grace: int, deadline: datetime) -> None:
        wanted = pod.spec.termination_grace_period_seconds
        end = rfc3339(deadline)
        _log.debug(
            "deleting pod",
            **{
                "namespace": pod.metadata.namespace,
                "name": pod.metadata.name,
                "pod.terminationGracePeriodSeconds": wanted,
                "delete.gracePeriodSeconds": grace,
                "nodeclaim.terminationTime": end,
            },
        )
        text = (
            f"Deleted the pod to accommodate the terminationTime {end} of the node. The pod was granted {grace} seconds of "
            f"grace-period of its {wanted} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the "
            "do-not-disrupt annotation."
        )
        self._context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "Disrupted", text))


def publish_pod_protection(context: ControllerContext, pod: Pod) -> None:
    """Say on the pod what its annotation means now, where it is not the plain ``true`` (OPS-528, OPS-529)."""
    found = pod_disruption.disruption_protection(pod, context.clock.now())
    if found is None or not pods.is_active(pod):
        return
    if found.error:
        text = f"Ignoring the annotation {labels.DO_NOT_DISRUPT}: {found.error}"
        context.events.publish(
            ObjectEvent(involved_pod(pod), WARNING, "InvalidDoNotDisruptAnnotation", text, (found.error,))
        )
    elif found.until is not None:
        _publish_protection_time(context, pod, rfc3339(found.until), active=found.active)


def _publish_protection_time(context: ControllerContext, pod: Pod, until: str, *, active: bool) -> None:
    if active:
        text = f"Pod is protected from disruption by the annotation {labels.DO_NOT_DISRUPT} until {until}"
        context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "DoNotDisruptUntil", text, (until,)))
    else:
        text = f"Protection of the pod by the annotation {labels.DO_NOT_DISRUPT} ended at {until}"
        context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "DoNotDisruptGracePeriodElapsed", text))
