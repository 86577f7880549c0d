"""The controller ``nodeclaim.reboot``: carries out the reboots that node repair has committed (K15-282 to K15-296).

The condition ``Rebooting`` of the NodeClaim holds the phase, so that another process goes on where this one ended. First the Node
is fenced and drained, then the provider reboots the instance; that it happened shows in the boot ID of the Node. A reboot that
fails deletes the NodeClaim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
import structlog

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.api.meta import Condition
from karpenter.controller_context import ControllerContext
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, durations, labels, pod_disruption, pods, taints
from karpenter.providers.contract import InstanceNotFound, ProviderError, RebootFailed, RebootNotImplemented
from karpenter.providers.decorators import reboot_instance
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.termination_deadline import tighten_deadline
from karpenter.termination.pod_eviction import EvictionQueue, first_eviction_tier

#: How often a phase is reconciled, and the shortest drain (K15-284, K15-289).
_POLL = timedelta(seconds=15)
_MIN_DRAIN = timedelta(seconds=5)
#: How long the provider may refuse, and how long a node may take to come back (K15-286, K15-289).
_ISSUANCE_TIMEOUT, _OBSERVATION_WINDOW = timedelta(minutes=5), timedelta(minutes=20)
_RETRY_SECONDS = 5.0
_FIRST_LOOK_SECONDS = 0.5
_CONFLICT_REQUEUE_SECONDS = 0.5
_EVENT_DEDUPE_TIMEOUT = timedelta(minutes=30)
_REQUESTED, _ISSUED = "RebootRequested", "RebootIssued"
_log = structlog.get_logger()


class RebootResult(StrEnum):
    """How a reboot ended, as metrics name it (K15-457)."""

    SUCCEEDED = "succeeded"
    PROVIDER_ERROR = "provider_error"
    RECOVERY_TIMEOUT = "recovery_timeout"
    INVALID_REQUEST = "invalid_request"


class NodeClaimReboot:
    """Reconciles NodeClaims by name, whose condition Rebooting is True. It runs also while repair is switched off (K15-282)."""

    def __init__(self, context: ControllerContext, eviction_queue: EvictionQueue) -> None:
        self._context = context
        self._eviction_queue = eviction_queue
        #: When a reboot was first asked of the provider, by uid: a new process starts to count anew (K15-286).
        self._first_calls: dict[str, datetime] = {}
        #: The operation that the provider has accepted, by uid.
        self._accepted: dict[str, str] = {}
        #: UIDs of claims that were deleted here: the watch may not have delivered that yet.
        self._failed: set[str] = set()

    async def reconcile(self, name: str) -> float | None:
        """Take the next step of a reboot; seconds until the next reconcile, None at its end. Raises ``KubeError``."""
        claim = self._context.state.claim(name)
        rebooting = _rebooting(claim) if claim is not None else None
        if claim is None or rebooting is None or not self._context.is_managed(claim):
            return None
        if claim.metadata.uid in self._failed:
            return None
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": name}):
            try:
                return await self._advance(claim, rebooting)
            except Conflict:
                return _CONFLICT_REQUEUE_SECONDS
            except NotFound:
                return None

    async def _advance(self, claim: NodeClaim, rebooting: Condition) -> float | None:
        now = self._context.clock.now()
        requested = rebooting.last_transition_time or now
        bound, error = _drain_bound(claim)
        if error:
            await self._refuse(claim, f"invalid reboot request: {error}", requested)
            return None
        nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
        is_issued = rebooting.reason == _ISSUED
        deadline = _issued_at(claim, now) + _OBSERVATION_WINDOW if is_issued else requested + _ISSUANCE_TIMEOUT
        if len(nodes) != 1:
            if now < deadline:
                return _POLL.total_seconds()
            await self._fail(claim, RebootResult.RECOVERY_TIMEOUT, "node is gone", requested)
            return None
        if is_issued:
            return await self._observe(claim, nodes[0], requested, deadline)
        await self._set_fence(nodes[0], is_closed=True)
        waits = self._drain(nodes[0], bound, requested)
        return waits if waits is not None else await self._issue(claim, nodes[0], requested)

    # -- drain ------------------------------------------------------------------------------------------------------------

    def _drain(self, node: Node, bound: timedelta | None, requested: datetime) -> float | None:
        """Evict the next tier; seconds to wait, None once the node may be rebooted (K15-284). Nothing is deleted by force."""
        if bound == timedelta(0):
            return None
        now = self._context.clock.now()
        waiting = [
            pod for pod in self._context.state.pods_on(node.metadata.name) if pod_disruption.needs_draining(pod, now)
        ]
        end = None if bound is None else requested + max(bound, _MIN_DRAIN)
        if waiting and (end is None or now < end):
            self._eviction_queue.set_pods(node, self._evictable(waiting, now))
            remaining = _POLL if end is None else min(_POLL, end - now)
            return max(remaining.total_seconds(), 0.1)
        self._eviction_queue.remove_node(node.metadata.name)
        earliest = requested + _MIN_DRAIN
        return (earliest - now).total_seconds() if now < earliest else None

    @staticmethod
    def _evictable(waiting: list[Pod], now: datetime) -> list[Pod]:
        tier = first_eviction_tier(waiting)
        evictable = [pod for pod in tier if pods.is_active(pod) and not pod_disruption.is_protected(pod, now)]
        return sorted(evictable, key=lambda pod: (pod_disruption.eviction_cost(pod), pod.metadata.name))

    # -- the call ---------------------------------------------------------------------------------------------------------

    async def _issue(self, claim: NodeClaim, node: Node, requested: datetime) -> float | None:
        """Ask the provider, once per operation ID (K15-286). A boot ID that has changed already counts as done."""
        boot_id = node.status.node_info.boot_id
        before = claim.metadata.annotations.get(labels.REBOOT_PRE_BOOT_ID)
        if before is None:
            before = boot_id
            patch: JsonObject = {"metadata": {"annotations": {labels.REBOOT_PRE_BOOT_ID: before}}}
            claim = await self._context.kube.patch(
                NODE_CLAIM, claim.metadata.name, patch, resource_version=claim.metadata.resource_version
            )
        if before == boot_id:
            refusal = await self._ask_provider(claim, _operation_id(claim, requested, before))
            if refusal is not None and not refusal:
                return _RETRY_SECONDS
            if refusal is not None:
                await self._fail(claim, RebootResult.PROVIDER_ERROR, refusal, requested)
                return None
        await self._record_issued(claim)
        return _FIRST_LOOK_SECONDS

    async def _ask_provider(self, claim: NodeClaim, operation_id: str) -> str | None:
        """Why the provider does not reboot (K15-287); empty where it is asked again, None where it has accepted."""
        if self._accepted.get(claim.metadata.uid) == operation_id:
            return None  # the watch has not delivered yet that it was issued, and EC2 would reboot a second time
        now = self._context.clock.now()
        first = self._first_calls.setdefault(claim.metadata.uid, now)
        try:
            await reboot_instance(self._context.provider, claim, operation_id)
        except RebootNotImplemented:
            return "reboot not implemented by the cloud provider"
        except (RebootFailed, InstanceNotFound) as error:
            return f"reboot rejected by the cloud provider: {error}"
        except ProviderError as error:
            _log.error("rebooting node failed", error=str(error))
            is_over = now >= first + _ISSUANCE_TIMEOUT
            return "reboot was not issued within the issuance timeout" if is_over else ""
        self._accepted[claim.metadata.uid] = operation_id
        return None

    async def _record_issued(self, claim: NodeClaim) -> None:
        """The reboot is under way: the node has to initialize again (K15-288)."""

        def change(draft: NodeClaimDraft) -> None:
            draft.set_condition(conditions.REBOOTING, conditions.TRUE, _ISSUED, _message(claim))
            draft.set_condition(conditions.INITIALIZED, conditions.UNKNOWN, "Rebooting", "node is rebooting")

        await self._write(claim, change)

    # -- the outcome ------------------------------------------------------------------------------------------------------

    async def _observe(self, claim: NodeClaim, node: Node, requested: datetime, deadline: datetime) -> float | None:
        """Wait for a new boot ID and a ready node (K15-289 to K15-291)."""
        if labels.INITIALIZED in node.metadata.labels:
            patch: JsonObject = {"metadata": {"labels": {labels.INITIALIZED: None}}}
            await self._context.kube.patch(NODE, node.metadata.name, patch)
        before = claim.metadata.annotations.get(labels.REBOOT_PRE_BOOT_ID, "")
        if node.status.node_info.boot_id not in ("", before):
            await self._set_fence(node, is_closed=False)
            text = "New boot observed (bootID changed); awaiting node readiness"
            self._publish(claim, NORMAL, "RebootObserved", text, requested)
            if conditions.is_true(node.status.conditions, conditions.READY):
                await self._succeed(claim, requested)
                return None
        now = self._context.clock.now()
        if now < deadline:
            return min(_POLL, deadline - now).total_seconds()
        text = "node did not recover within the observation window"
        await self._fail(claim, RebootResult.RECOVERY_TIMEOUT, text, requested)
        return None

    async def _succeed(self, claim: NodeClaim, requested: datetime) -> None:
        now = self._context.clock.now()
        issued = _issued_at(claim, now)

        def change(draft: NodeClaimDraft) -> None:
            text = "node rebooted and rejoined the cluster"
            draft.set_condition(conditions.REBOOTING, conditions.FALSE, "RebootSucceeded", text)
            draft.remove_annotations((labels.REBOOT_PRE_BOOT_ID,))

        await self._write(claim, change)
        self._context.metrics.nodes_reboot_recovery_duration_seconds.observe((now - issued).total_seconds())
        self._count(claim, RebootResult.SUCCEEDED, "RebootSucceeded", requested)

    async def _refuse(self, claim: NodeClaim, text: str, requested: datetime) -> None:
        """A request that cannot be read: nothing is rebooted, and nothing is replaced (K15-285)."""

        def change(draft: NodeClaimDraft) -> None:
            draft.set_condition(conditions.REBOOTING, conditions.FALSE, "RebootFailed", text)

        await self._write(claim, change)
        self._publish(claim, WARNING, "RebootFailed", text, requested)
        self._count(claim, RebootResult.INVALID_REQUEST, "RebootFailed", requested)

    async def _fail(self, claim: NodeClaim, result: RebootResult, text: str, requested: datetime) -> None:
        """Replace the node: its NodeClaim is deleted, within the limit of the drain if there is one (K15-292)."""
        for node in self._context.state.nodes_by_provider_id(claim.status.provider_id):
            await self._set_fence(node, is_closed=False)
            self._eviction_queue.remove_node(node.metadata.name)
        bound, _ = _drain_bound(claim)
        if bound is not None:
            await tighten_deadline(self._context.kube, claim, self._context.clock.now() + bound)
        await delete_if_present(self._context.kube, NODE_CLAIM, claim.metadata)
        self._failed.add(claim.metadata.uid)
        self._publish(claim, WARNING, "RebootFailed", text, requested)
        _log.info("reboot failed, replacing node", result=result.value, error=text)
        self._count(claim, result, "RebootFailed", requested)

    def _count(self, claim: NodeClaim, result: RebootResult, reason: str, requested: datetime) -> None:
        self._first_calls.pop(claim.metadata.uid, None)
        self._accepted.pop(claim.metadata.uid, None)
        metrics, elapsed = self._context.metrics, self._context.clock.now() - requested
        metrics.nodes_reboots_total.labels(result=result.value).inc()
        metrics.nodes_reboot_duration_seconds.labels(result=result.value).observe(elapsed.total_seconds())
        _log.info("reboot reached terminal outcome", reason=reason)

    def _publish(self, claim: NodeClaim, kind: str, reason: str, text: str, requested: datetime) -> None:
        key = (str(requested.timestamp()),)
        about = involved_claim(claim.metadata)
        self._context.events.publish(ObjectEvent(about, kind, reason, text, key, _EVENT_DEDUPE_TIMEOUT))

    # -- writes -----------------------------------------------------------------------------------------------------------

    async def _set_fence(self, node: Node, *, is_closed: bool) -> None:
        """Put the taint on the Node, or take it off (K15-283)."""
        others = tuple(taint for taint in node.spec.taints if not taints.is_same_taint(taint, labels.REBOOTING_TAINT))
        wanted = (*others, labels.REBOOTING_TAINT) if is_closed else others
        changed = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=wanted))
        if len(wanted) != len(node.spec.taints):
            await self._context.kube.patch(
                NODE,
                node.metadata.name,
                merge_patch(node, changed),
                resource_version=node.metadata.resource_version,
            )
            # The next step reads the Node as it is now.
            await asyncio.sleep(0)

    async def _write(self, claim: NodeClaim, change: Callable[[NodeClaimDraft], None]) -> None:
        draft = NodeClaimDraft(claim, self._context.clock.now())
        change(draft)
        await draft.write(self._context.kube)


def is_rebooting(claim: NodeClaim) -> bool:
    """Whether the claim has work for this controller."""
    return _rebooting(claim) is not None


def _rebooting(claim: NodeClaim) -> Condition | None:
    """The condition of a reboot under way; deleting claims are left to termination (K15-282)."""
    condition = conditions.find_condition(claim.status.conditions, conditions.REBOOTING)
    is_under_way = condition is not None and condition.status == conditions.TRUE
    return condition if is_under_way and claim.metadata.deletion_timestamp is None else None


def _issued_at(claim: NodeClaim, now: datetime) -> datetime:
    """When the provider accepted: since then the claim is not initialized."""
    condition = conditions.find_condition(claim.status.conditions, conditions.INITIALIZED)
    return (condition.last_transition_time if condition is not None else None) or now


def _message(claim: NodeClaim) -> str:
    condition = conditions.find_condition(claim.status.conditions, conditions.REBOOTING)
    return condition.message if condition is not None else ""


def _drain_bound(claim: NodeClaim) -> tuple[timedelta | None, str]:
    """How long the drain may take, None without end, and what is wrong with the annotation (K15-011, K15-285)."""
    text = claim.metadata.annotations.get(labels.REBOOT_GRACE_PERIOD)
    if text is None:
        return None, ""
    try:
        bound = durations.parse_duration(text)
    except durations.DurationError as error:
        return None, str(error)
    return (bound, "") if bound >= timedelta(0) else (None, f"{text} is negative")


def _operation_id(claim: NodeClaim, requested: datetime, before: str) -> str:
    """Equal for all retries of one reboot (K15-286)."""
    nanoseconds = int(requested.timestamp()) * 10**9 + requested.microsecond * 1000
    return f"{claim.metadata.uid}-{nanoseconds}-{before}"
