"""Executes a provisioning plan: creates its NodeClaims, publishes its events, records which pods are planned on which node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from karpenter.api.core import Pod
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import KubeError
from karpenter.provisioning.claim_creation import ClaimCreationPace, ClaimCreationReason, create_claim
from karpenter.provisioning.gang_releases import GangReleases
from karpenter.provisioning.lost_pods import LostPods
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_pod, involved_pool, shortened
from karpenter.scheduling.explain.reason_messages import (
    EVENT_PREFIX,
    exposure_messages,
    packing_fallback_message,
    placed_when_message,
    skipped_pool_message,
    unschedulable_event_message,
    unschedulable_fingerprint,
)
from karpenter.scheduling.pod_eligibility import is_opt_out
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, SkippedNodePool, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason, ReasonCategory
from karpenter.state.snapshot import pod_key

_FAILED_DEDUPE_TIMEOUT = timedelta(minutes=5)
#: How long a pod may wait for what others make, such as its volume, before that is worth an event.
_TRANSIENT_PERIOD = timedelta(seconds=30)
#: Reasons that are about the pod itself: no plan was made for it (SCH-050).
_IGNORED_CATEGORIES = frozenset({ReasonCategory.POD, ReasonCategory.VOLUME})
_MAX_CONCURRENT_CREATES = 64
_FILTERED_SKIPS = (PoolSkipReason.FILTERED, PoolSkipReason.FILTERED_MIN_VALUES)
_log = structlog.get_logger()


@dataclass(frozen=True)
class PlanOutcome:
    """What became of a plan's claims: how many were created (or existed already), what failed, how many have to wait.

    ``retry_after_seconds`` is when the ceiling lets the next of those that wait be created.
    """

    created: int
    failures: tuple[KubeError, ...]
    deferred: int = 0
    retry_after_seconds: float = 0.0


class PlanExecutor:
    """Executes plans."""

    def __init__(
        self,
        context: ControllerContext,
        nominator: PodNominator,
        pace: ClaimCreationPace,
        lost_pods: LostPods | None = None,
    ) -> None:
        self._context = context
        self._lost_pods = lost_pods or LostPods(context)
        self._gang_releases = GangReleases(context)
        self._nominator = nominator
        self._nomination_window = pace.nomination_window
        self._creation_limit = pace.creation_limit
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_CREATES)
        self._reported_reasons: dict[str, str] = {}
        self._reported_skipped_pools: frozenset[SkippedNodePool] = frozenset()
        self._reported_no_pools = False
        self._reported_exposure: frozenset[str] = frozenset()
        self._reported_fallback: str | None = None

    async def execute(self, plan: Solution, decision_seconds: float) -> PlanOutcome:
        """Create the plan's claims and publish what it says. A failed claim costs its pods this pass, nothing else.

        Claims beyond the ceiling are left for a later pass, which plans their pods anew.
        """
        whole = self._without_delayed(plan)
        plan = self._within_creation_limit(whole)
        self._log_plan(plan, decision_seconds)
        self._record_planned_pods(plan)
        self._report(plan)
        results = await asyncio.gather(*(self._create(planned) for planned in plan.new_claims))
        failures = tuple(result for result in results if result is not None)
        await self._nominator.withdraw_stale()
        await self._gang_releases.after_pass(whole)
        deferred = len(whole.new_claims) - len(plan.new_claims)
        wait = self._creation_limit.retry_after_seconds(self._context.clock.now()) if deferred else 0.0
        return PlanOutcome(len(results) - len(failures), failures, deferred, wait)

    def _without_delayed(self, plan: Solution) -> Solution:
        """The plan without the NodeClaims that must wait because nodes launched for their pods lost them."""
        delayed = self._lost_pods.delayed(plan.new_claims)
        now = self._context.clock.now()
        for wait in delayed:
            text = (
                f"{wait.losses} node(s) launched for this pod lost it, the last one of nodeclaim/{wait.last_claim}; "
                f"the next nodeclaim is created in {(wait.until - now).total_seconds():.0f}s. "
                "Look for what taints new nodes or evicts the pod"
            )
            for pod in wait.claim.pods:
                self._context.events.publish(
                    ObjectEvent(
                        involved_pod(pod), WARNING, "NodeClaimDelayed", text, (str(wait.losses),), wait.until - now
                    )
                )
        waiting = {wait.claim.name for wait in delayed}
        return replace(plan, new_claims=tuple(claim for claim in plan.new_claims if claim.name not in waiting))

    def _within_creation_limit(self, plan: Solution) -> Solution:
        """The plan with as many of its claims as may be created now; says so when that is not all of them."""
        now = self._context.clock.now()
        room = min(len(plan.new_claims), self._creation_limit.available(now))
        self._creation_limit.record(room, now)
        if room == len(plan.new_claims):
            return plan
        late = plan.new_claims[room:]
        per_minute = self._creation_limit.per_minute
        text = f"{len(late)} nodeclaim(s) have to wait: no more than {per_minute} are created within a minute"
        _log.info("nodeclaim creation ceiling reached", **{"claims-per-minute": per_minute, "deferred": len(late)})
        for name in sorted({claim.node_pool for claim in late}):
            pool = self._context.state.pool(name)
            if pool is not None:
                about = involved_pool(pool.metadata)
                self._context.events.publish(ObjectEvent(about, WARNING, "NodeClaimCeilingReached", text))
        return replace(plan, new_claims=plan.new_claims[:room])

    def _log_plan(self, plan: Solution, seconds: float) -> None:
        if not plan.new_claims:
            return
        pods = [_pod_name(pod) for claim in plan.new_claims for pod in claim.pods]
        _log.info("found provisionable pod(s)", Pods=shortened(pods), duration=f"{seconds * 1000:.3f}ms")
        _log.info("computed new nodeclaim(s) to fit pod(s)", nodeclaims=len(plan.new_claims), pods=len(pods))
        if plan.placed_on_existing:
            reused = sum(len(placed.pods) for placed in plan.placed_on_existing)
            _log.info("computed unready node(s) will fit pod(s)", nodes=len(plan.placed_on_existing), pods=reused)

    def _record_planned_pods(self, plan: Solution) -> None:
        assigned: dict[str, Sequence[Pod]] = {placed.node_key: placed.pods for placed in plan.placed_on_existing}
        assigned.update({claim.name: claim.pods for claim in plan.new_claims})
        self._context.state.planned_nodes = {pod.metadata.uid: key for key, pods in assigned.items() for pod in pods}
        self._nominator.set_planned_pods(assigned)

    def _report(self, plan: Solution) -> None:
        until = self._context.clock.now() + self._nomination_window
        for placed in plan.placed_on_existing:
            self._context.state.nominate(placed.node_key, until)
            self._context.events.publish(*(self._nominated_event(pod, placed) for pod in _unbound_pods(placed.pods)))
        self._report_unschedulable([unplaced for unplaced in plan.unschedulable if not unplaced.pod.spec.node_name])
        for skipped in plan.skipped_pools:
            self._report_skipped_pool(skipped)
        self._log_exposure(plan)
        self._log_packing_fallback(plan)
        if _has_no_pools(plan) and not self._reported_no_pools:
            _log.info("no dynamic nodepools found")
        self._reported_skipped_pools = frozenset(plan.skipped_pools)
        self._reported_no_pools = _has_no_pools(plan)

    def _report_unschedulable(self, left: Sequence[UnschedulablePod]) -> None:
        """Log the pods whose reasons changed, and publish events. Pods that wait for any NodePool at all share one line."""
        reported: dict[str, str] = {}
        reports: dict[tuple[int, int, int], _UnplacedReport] = {}
        without_pools: dict[str, list[Pod]] = {}
        for unplaced in left:
            uid = unplaced.pod.metadata.uid
            alike = (id(unplaced.reasons), id(unplaced.nearest_fit), id(unplaced.nearest_node))
            report = reports.get(alike) or reports.setdefault(alike, _unplaced_report(unplaced))
            if self._reported_reasons.get(uid) != report.subjects:
                text = report.text.removeprefix(EVENT_PREFIX)
                if all(reason.category is ReasonCategory.NO_POOL for reason in unplaced.reasons):
                    without_pools.setdefault(text, []).append(unplaced.pod)
                else:
                    self._log_unplaced(unplaced, text)
            self._publish_unplaced(unplaced, report)
            reported[uid] = report.subjects
        self._reported_reasons = reported
        for text, pods in without_pools.items():
            _log.error("could not schedule pod", Pods=shortened([_pod_name(pod) for pod in pods]), error=text)

    def _log_exposure(self, plan: Solution) -> None:
        """Where exposure gave way, and annotations about it that do not parse: logged while that is news."""
        lines = exposure_messages(plan)
        for line in lines:
            if line not in self._reported_exposure:
                _log.info("exposure is not as wished", detail=line)
        self._reported_exposure = frozenset(lines)

    def _log_packing_fallback(self, plan: Solution) -> None:
        """Where pods were not dealt as ``--packing fewest-pods`` deals them: logged while that is news."""
        message = packing_fallback_message(plan)
        if message is not None and message != self._reported_fallback:
            _log.info(message)
        self._reported_fallback = message

    def _report_skipped_pool(self, skipped: SkippedNodePool) -> None:
        """A pool that takes no part, logged when that changes; an event where its requirements leave no type (SCH-653)."""
        if skipped not in self._reported_skipped_pools:
            _log_skipped(skipped)
        pool = self._context.state.pool(skipped.node_pool)
        if pool is not None and skipped.reason in _FILTERED_SKIPS:
            reason, silence = "NoCompatibleInstanceTypes", timedelta(minutes=1)
            about = involved_pool(pool.metadata)
            self._context.events.publish(
                ObjectEvent(about, WARNING, reason, skipped_pool_message(skipped), (), silence)
            )

    def _nominated_event(self, pod: Pod, placed: PlacedPods) -> ObjectEvent:
        claim = self._context.state.claim(placed.node_key)
        parts = [f"nodeclaim/{placed.node_key}"] if claim is not None else []
        node = claim.status.node_name if claim is not None else placed.node_name
        if node:
            parts.append(f"node/{node}")
        text = f"Pod should schedule on: {', '.join(parts)}{placed_when_message(placed)}"
        return ObjectEvent(involved_pod(pod), NORMAL, "Nominated", text)

    def _publish_unplaced(self, unplaced: UnschedulablePod, report: _UnplacedReport) -> None:
        """Publish a pod's reasons as an event now and then (SCH-654 Beyond)."""
        if not (any(is_opt_out(reason) for reason in unplaced.reasons) or self._is_transient(unplaced)):
            about, values = involved_pod(unplaced.pod), (report.subjects,)
            self._context.events.publish(
                ObjectEvent(about, WARNING, "FailedScheduling", report.text, values, _FAILED_DEDUPE_TIMEOUT)
            )

    def _is_transient(self, unplaced: UnschedulablePod) -> bool:
        """Whether nothing is wrong yet: others are about to remove the obstacles of a young pod (SCH-450 Beyond)."""
        created = unplaced.pod.metadata.creation_timestamp
        is_young = created is not None and self._context.clock.now() - created < _TRANSIENT_PERIOD
        return is_young and bool(unplaced.reasons) and all(reason.is_transient for reason in unplaced.reasons)

    @staticmethod
    def _log_unplaced(unplaced: UnschedulablePod, text: str) -> None:
        meta = unplaced.pod.metadata
        reference = {"namespace": meta.namespace, "name": meta.name}
        if any(reason.category is ReasonCategory.DEVICE for reason in unplaced.reasons):
            _log.info(
                "skipping pod with Dynamic Resource Allocation requirements, not yet supported by Karpenter",
                Pod=reference,
            )
        elif any(reason.category in _IGNORED_CATEGORIES and not reason.node_pool for reason in unplaced.reasons):
            _log.debug("ignoring pod", Pod=reference, error=text)
        else:
            _log.error("could not schedule pod", Pod=reference, error=text)

    async def _create(self, planned: NewNodeClaim) -> KubeError | None:
        """Create one claim under its derived name; one that exists already is the same claim."""
        async with self._slots:
            try:
                if not await create_claim(
                    self._context, planned.claim, ClaimCreationReason(instance_types=planned.instance_types)
                ):
                    return None
            except KubeError as error:
                _log.error("creating nodeclaim failed", NodePool={"name": planned.node_pool}, error=str(error))
                return error
        self._lost_pods.claim_created(planned)
        self._context.state.nominate(planned.name, self._context.clock.now() + self._nomination_window)
        text = f"Pod should schedule on: nodeclaim/{planned.name}"
        self._context.events.publish(
            *(ObjectEvent(involved_pod(pod), NORMAL, "Nominated", text) for pod in _unbound_pods(planned.pods))
        )
        return None


def _unbound_pods(pods: Iterable[Pod]) -> Iterator[Pod]:
    """Pods that wait for a node. Those planned ahead of leaving a node run still: to them nothing has happened yet."""
    return (pod for pod in pods if not pod.spec.node_name)


@dataclass(frozen=True)
class _UnplacedReport:
    """The message about a pod, and the part of it whose change is reported."""

    text: str
    subjects: str


def _unplaced_report(unplaced: UnschedulablePod) -> _UnplacedReport:
    """Pods with the same reasons share one report."""
    return _UnplacedReport(unschedulable_event_message(unplaced), unschedulable_fingerprint(unplaced))


def _has_no_pools(plan: Solution) -> bool:
    """Whether pods wait because no NodePool takes part at all."""
    return any(
        reason.category is ReasonCategory.NO_POOL for unplaced in plan.unschedulable for reason in unplaced.reasons
    )


def _log_skipped(skipped: SkippedNodePool) -> None:
    pool = {"name": skipped.node_pool}
    match skipped.reason:
        case PoolSkipReason.NOT_READY:
            _log.error("ignoring nodepool, not ready", NodePool=pool, error=skipped_pool_message(skipped))
        case PoolSkipReason.FILTERED | PoolSkipReason.FILTERED_MIN_VALUES:
            text = "skipping, nodepool requirements filtered out all instance types"
            _log.info(text, NodePool=pool, reason=skipped.reason.value)
        case PoolSkipReason.UNRESOLVED | PoolSkipReason.NO_TYPES:
            pass  # logged with its cause where the types were asked for
        case PoolSkipReason.STATIC | PoolSkipReason.DELETING:
            pass


def _pod_name(pod: Pod) -> str:
    return "/".join(pod_key(pod))
