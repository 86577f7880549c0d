"""The eviction queue: evicts pods from draining nodes through the Eviction API, at one rate for the whole cluster (DIS §17.4).

A drain sets the pods of its node to evict now; the queue retries each until the drain no longer lists it. So the drain alone
decides about a pod (gone, protected, disruption cancelled), and the queue only paces calls: one token bucket for all of them, and
a backoff per pod after a refusal. Pods past their node's deadline are deleted directly (``PodForceDeletion``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from karpenter.api.core import Node, Pod
from karpenter.api.kinds import POD
from karpenter.controller_context import ControllerContext
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import Conflict, KubeError, NotFound, TooManyRequests
from karpenter.model import conditions, labels, pod_disruption, pods
from karpenter.model.backoff import Backoff
from karpenter.model.clock import rfc3339
from karpenter.model.token_bucket import TokenBucket
from karpenter.runtime import worker_scaling
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_node, involved_pod

_BACKOFF = Backoff(0.1, 10.0)
#: The API server rejects a pod with several budgets with status 500, not 429.
_MULTIPLE_BUDGETS_MESSAGE = "more than one PodDisruptionBudget"
_FORCEFUL_TERMINATION = "Forceful Termination"
_log = structlog.get_logger()


@dataclass(frozen=True)
class EvictionLimits:
    """Rate and burst of eviction calls, and how many may run concurrently (OPS-702, OPS-713)."""

    per_second: float = 100.0
    burst: int = 1000
    workers: int = 100

    @staticmethod
    def for_cpu_requests(cpu_requests: int) -> EvictionLimits:
        """Evictions grow with the processor time, in thousandths of a core, that the process asked for (OPS-702)."""
        cores = worker_scaling.whole_cores(cpu_requests)
        bucket = worker_scaling.scaled_bucket(worker_scaling.EVICTION, cores)
        return EvictionLimits(bucket.per_second, bucket.burst, worker_scaling.EVICTION.workers.for_cores(cores))


@dataclass
class _EvictionRequest:
    """A pod to evict, and the result of the last call."""

    pod: Pod
    node: Node
    backoff_seconds: float = 0.0
    last_error: KubeError | None = None


def first_eviction_tier(waiting: Sequence[Pod]) -> list[Pod]:
    """The pods to evict next: ordinary before DaemonSet, uncritical before critical; one tier at a time (DIS-522)."""
    tiers: dict[tuple[bool, bool], list[Pod]] = {}
    for pod in waiting:
        tiers.setdefault((pod_disruption.is_critical(pod), pods.is_daemonset_pod(pod)), []).append(pod)
    return tiers[min(tiers)] if tiers else []


def is_budget_refusal(error: KubeError) -> bool:
    """Whether a PodDisruptionBudget caused the refusal: intended by its owner, so not an error to log."""
    return isinstance(error, TooManyRequests) or _MULTIPLE_BUDGETS_MESSAGE in str(error)


class EvictionQueue:
    """Evicts the pods set by drains. ``wake`` adds a key to the work queue that calls ``reconcile``."""

    def __init__(self, context: ControllerContext, limits: EvictionLimits, wake: Callable[[str], None]) -> None:
        self._context = context
        self._wake = wake
        self._token_bucket = TokenBucket(limits.per_second, limits.burst)
        self._requests: dict[str, _EvictionRequest] = {}
        self._keys_by_node: dict[str, set[str]] = {}

    def set_pods(self, node: Node, evictable: Sequence[Pod]) -> None:
        """Replace the pods of the node to evict now, in this order."""
        keys = {_pod_key(pod): pod for pod in evictable}
        for key in self._keys_by_node.get(node.metadata.name, set()) - keys.keys():
            del self._requests[key]
        for key, pod in keys.items():
            request = self._requests.get(key)
            if request is None:
                self._requests[key] = _EvictionRequest(pod, node)
                self._wake(key)
            else:
                request.pod, request.node = pod, node
        self._keys_by_node[node.metadata.name] = set(keys)

    def remove_node(self, node_name: str) -> None:
        """Stop evicting pods of the node."""
        for key in self._keys_by_node.pop(node_name, ()):
            del self._requests[key]

    def eviction_errors(self, node_name: str) -> Mapping[str, KubeError]:
        """Errors of the last eviction calls for pods of the node, by pod uid."""
        requests = (self._requests[key] for key in self._keys_by_node.get(node_name, ()))
        return {request.pod.metadata.uid: request.last_error for request in requests if request.last_error is not None}

    async def reconcile(self, key: str) -> float | None:
        """Evict one pod as soon as the rate limit allows; returns seconds until the next try, None if it is no longer listed."""
        if key not in self._requests:
            return None
        await self._token_bucket.take()
        request = self._requests.get(key)
        return None if request is None else await self._evict(request)

    async def _evict(self, request: _EvictionRequest) -> float:
        """Make one call. After success, and after NotFound or Conflict (a new pod of that name), the next call waits longest."""
        meta = request.pod.metadata
        try:
            await self._context.kube.evict(meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict) as error:
            self._count_response(error.status)
            request.last_error = None
            return _BACKOFF.max_seconds
        except KubeError as error:
            self._count_response(error.status)
            return self._back_off(request, error)
        self._count_response(200)
        request.backoff_seconds, request.last_error = 0.0, None
        reason = _disruption_reason(self._context, request.node)
        self._context.metrics.pods_drained_total.labels(reason=reason).inc()
        self._context.events.publish(
            ObjectEvent(involved_pod(request.pod), NORMAL, "Evicted", f"Evicted pod: {reason}")
        )
        return _BACKOFF.max_seconds

    def _count_response(self, status: int) -> None:
        """Count a response by its HTTP status (OPS-444); a call without response has none."""
        if status:
            self._context.metrics.pods_eviction_requests_total.labels(code=str(status)).inc()

    def _back_off(self, request: _EvictionRequest, error: KubeError) -> float:
        self._publish_failed_eviction(request, error)
        request.last_error = error
        request.backoff_seconds = _BACKOFF.after(request.backoff_seconds)
        retry_after = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        return max(request.backoff_seconds, min(_BACKOFF.max_seconds, retry_after))

    def _publish_failed_eviction(self, request: _EvictionRequest, error: KubeError) -> None:
        """Publish why a pod was not evicted; log it once, and only if no budget caused it."""
        namespace, name = request.pod.metadata.namespace, request.pod.metadata.name
        if not is_budget_refusal(error) and str(error) != str(request.last_error or ""):
            reference = {"namespace": namespace, "name": name}
            node = {"name": request.node.metadata.name}
            _log.error("evicting pod failed", Pod=reference, Node=node, error=str(error))
        text = f"Failed to drain node, evicting pod {namespace}/{name}: {error}"
        involved = involved_node(request.node.metadata)
        self._context.events.publish(ObjectEvent(involved, WARNING, "FailedDraining", text, (namespace, name)))


def _disruption_reason(context: ControllerContext, node: Node) -> str:
    """The disruption reason of the node's claim; empty if there is no claim (DIS-534)."""
    claim = context.state.claim_by_provider_id(node.spec.provider_id)
    if claim is None:
        return ""
    condition = conditions.find_condition(claim.status.conditions, conditions.DISRUPTION_REASON)
    return condition.reason if condition and condition.status == conditions.TRUE else _FORCEFUL_TERMINATION


def _pod_key(pod: Pod) -> str:
    """Key with the uid: a pod of the same name with another uid is another pod (DIS-531)."""
    meta = pod.metadata
    return f"{meta.namespace}/{meta.name}/{meta.uid}"


#: Minimum interval between two deletions of a pod: if the API server's clock is ahead of ours, the deletion timestamp it sets is
#: always after the deadline, and every pass would delete the pod again.
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
    """Deletes pods with the remaining time as grace period, at least one second: with 0, two pods of that name could run."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._deleted_at: dict[str, float] = {}
        self._prune_at = 0.0

    async def delete(self, pods: list[Pod], node: Node, deadline: datetime) -> None:
        """Delete these pods of the node; failures are published and do not affect other pods."""
        due = [pod for pod in pods if self._is_due(pod.metadata.uid)]
        await asyncio.gather(*(self._delete(pod, node, deadline) for pod in due))

    def _is_due(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._prune_at:
            self._deleted_at = {
                uid: deleted_at
                for uid, deleted_at in self._deleted_at.items()
                if now - deleted_at < _REDELETE_AFTER_SECONDS
            }
            self._prune_at = now + _REDELETE_AFTER_SECONDS
        return now - self._deleted_at.get(uid, -_REDELETE_AFTER_SECONDS) >= _REDELETE_AFTER_SECONDS

    async def _delete(self, pod: Pod, node: Node, deadline: datetime) -> None:
        meta = pod.metadata
        grace = max(1, int((deadline - self._context.clock.now()).total_seconds()))
        try:
            if not await delete_if_present(self._context.kube, POD, meta, grace):
                return
        except KubeError as error:
            self._publish_failed_deletion(pod, node, error)
            return
        if meta.uid not in self._deleted_at:
            reason = _disruption_reason(self._context, node)
            self._context.metrics.pods_drained_total.labels(reason=reason).inc()
        self._deleted_at[meta.uid] = asyncio.get_running_loop().time()
        self._publish_deletion(pod, grace, deadline)

    def _publish_failed_deletion(self, pod: Pod, node: Node, error: KubeError) -> None:
        namespace, name = pod.metadata.namespace, pod.metadata.name
        _log.error("deleting pod failed", Pod={"namespace": namespace, "name": name}, error=str(error))
        text = f"Failed to drain node, deleting pod {namespace}/{name}: {error}"
        involved = involved_node(node.metadata)
        self._context.events.publish(ObjectEvent(involved, WARNING, "FailedDraining", text, (namespace, name)))

    def _publish_deletion(self, pod: Pod, grace: int, deadline: datetime) -> None:
        full_grace = pod.spec.termination_grace_period_seconds
        end = rfc3339(deadline)
        _log.debug(
            "deleting pod",
            **{
                "namespace": pod.metadata.namespace,
                "name": pod.metadata.name,
                "pod.terminationGracePeriodSeconds": full_grace,
                "delete.gracePeriodSeconds": grace,
                "nodeclaim.terminationTime": end,
            },
        )
        text = (
            f"Deleted the pod to accommodate the terminationTime {end} of the node. The pod was granted {grace} seconds of "
            f"grace-period of its {full_grace} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the "
            "do-not-disrupt annotation."
        )
        self._context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "Disrupted", text))


def publish_pod_protection(context: ControllerContext, pod: Pod) -> None:
    """Publish on the pod what its do-not-disrupt annotation means now, unless it is plain ``true`` (OPS-528, OPS-529)."""
    protection = pod_disruption.disruption_protection(pod, context.clock.now())
    if protection is None or not pods.is_active(pod):
        return
    if protection.error:
        text = f"Ignoring the annotation {labels.DO_NOT_DISRUPT}: {protection.error}"
        context.events.publish(
            ObjectEvent(involved_pod(pod), WARNING, "InvalidDoNotDisruptAnnotation", text, (protection.error,))
        )
    elif protection.until is not None:
        _publish_protection_time(context, pod, rfc3339(protection.until), active=protection.active)


def _publish_protection_time(context: ControllerContext, pod: Pod, until: str, *, active: bool) -> None:
    if active:
        text = f"Pod is protected from disruption by the annotation {labels.DO_NOT_DISRUPT} until {until}"
        context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "DoNotDisruptUntil", text, (until,)))
    else:
        text = f"Protection of the pod by the annotation {labels.DO_NOT_DISRUPT} ended at {until}"
        context.events.publish(ObjectEvent(involved_pod(pod), NORMAL, "DoNotDisruptGracePeriodElapsed", text))
