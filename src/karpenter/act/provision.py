"""Carrying out a provisioning plan: create its claims, say what is expected, remember who is meant for which machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from karpenter.act.ceiling import Pace
from karpenter.act.creation import Purpose, create
from karpenter.act.events import NORMAL, WARNING, Happening, about_pod, about_pool, shortened
from karpenter.act.nominate import Nominating
from karpenter.act.world import World
from karpenter.api.core import Pod
from karpenter.cluster.snapshot import pod_key
from karpenter.decide.explain import FAILED, event_text, skip_message, subjects
from karpenter.decide.plan import PlacedPods, Plan, PlannedClaim, SkippedPool, UnplacedPod
from karpenter.decide.provision.eligible import is_opt_out
from karpenter.decide.reasons import Category, Skip
from karpenter.kube.errors import KubeError

_FAILED_SILENCE = timedelta(minutes=5)
#: How long a pod may wait for what others make, such as its volume, before that is worth an event.
_PATIENCE = timedelta(seconds=30)
#: Reasons that are about the pod itself: no plan was made for it (SCH-050).
_IGNORED = frozenset({Category.POD, Category.VOLUME})
_AT_ONCE = 64
_FILTERED = (Skip.FILTERED, Skip.FILTERED_MIN_VALUES)
_log = structlog.get_logger()


@dataclass(frozen=True)
class Outcome:
    """What became of a plan's claims: how many were created (or existed already), what failed, how many have to wait.

    ``room_in_seconds`` is when the ceiling lets the next of those that wait be created.
    """

    created: int
    failures: tuple[KubeError, ...]
    deferred: int = 0
    room_in_seconds: float = 0.0


class Executor:
    """Carries plans out."""

    def __init__(self, world: World, nominator: Nominating, pace: Pace) -> None:
        self._world = world
        self._nominator = nominator
        self._window = pace.nomination_window
        self._ceiling = pace.ceiling
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._said: dict[str, str] = {}
        self._skipped: frozenset[SkippedPool] = frozenset()
        self._without_pools = False

    async def carry_out(self, plan: Plan, decision_seconds: float) -> Outcome:
        """Create the plan's claims and publish what it says. A failed claim costs its pods this pass, nothing else.

        Claims beyond the ceiling are left for a later pass, which plans their pods anew.
        """
        whole, plan = plan, self._below_ceiling(plan)
        self._log_plan(plan, decision_seconds)
        self._assign(plan)
        self._say(plan)
        results = await asyncio.gather(*(self._create(planned) for planned in plan.claims))
        failures = tuple(result for result in results if result is not None)
        await self._nominator.withdraw_stale()
        deferred = len(whole.claims) - len(plan.claims)
        wait = self._ceiling.opens_in_seconds(self._world.clock.now()) if deferred else 0.0
        return Outcome(len(results) - len(failures), failures, deferred, wait)

    def _below_ceiling(self, plan: Plan) -> Plan:
        """The plan with as many of its claims as may be created now; says so when that is not all of them."""
        now = self._world.clock.now()
        room = min(len(plan.claims), self._ceiling.room(now))
        self._ceiling.take(room, now)
        if room == len(plan.claims):
            return plan
        late = plan.claims[room:]
        per_minute = self._ceiling.per_minute
        text = f"{len(late)} nodeclaim(s) have to wait: no more than {per_minute} are created within a minute"
        _log.info("nodeclaim creation ceiling reached", **{"claims-per-minute": per_minute, "deferred": len(late)})
        for name in sorted({claim.node_pool for claim in late}):
            pool = self._world.state.pool(name)
            if pool is not None:
                about = about_pool(pool.metadata)
                self._world.events.publish(Happening(about, WARNING, "NodeClaimCeilingReached", text))
        return replace(plan, claims=plan.claims[:room])

    def _log_plan(self, plan: Plan, seconds: float) -> None:
        if not plan.claims:
            return
        pods = [_name(pod) for claim in plan.claims for pod in claim.pods]
        _log.info("found provisionable pod(s)", Pods=shortened(pods), duration=f"{seconds * 1000:.3f}ms")
        _log.info("computed new nodeclaim(s) to fit pod(s)", nodeclaims=len(plan.claims), pods=len(pods))
        if plan.existing:
            reused = sum(len(placed.pods) for placed in plan.existing)
            _log.info("computed unready node(s) will fit pod(s)", nodes=len(plan.existing), pods=reused)

    def _assign(self, plan: Plan) -> None:
        assigned: dict[str, Sequence[Pod]] = {placed.key: placed.pods for placed in plan.existing}
        assigned.update({claim.name: claim.pods for claim in plan.claims})
        self._world.state.planned = {pod.metadata.uid: key for key, pods in assigned.items() for pod in pods}
        self._nominator.assign(assigned)

    def _say(self, plan: Plan) -> None:
        until = self._world.clock.now() + self._window
        for placed in plan.existing:
            self._world.state.nominate(placed.key, until)
            self._world.events.publish(*(self._nominated(pod, placed) for pod in _waiting(placed.pods)))
        left = [unplaced for unplaced in plan.unplaced if not unplaced.pod.spec.node_name]
        said: dict[str, str] = {}
        told: dict[tuple[int, int, int], _Told] = {}
        for unplaced in left:
            uid = unplaced.pod.metadata.uid
            alike = (id(unplaced.reasons), id(unplaced.nearest), id(unplaced.beside))
            text = told.get(alike) or told.setdefault(alike, _told(unplaced))
            self._say_unplaced(unplaced, text, is_news=self._said.get(uid) != text.subjects)
            said[uid] = text.subjects
        self._said = said
        for skipped in plan.skipped_pools:
            self._say_skipped(skipped)
        if _without_pools(plan) and not self._without_pools:
            _log.info("no dynamic nodepools found")
        self._skipped = frozenset(plan.skipped_pools)
        self._without_pools = _without_pools(plan)

    def _say_skipped(self, skipped: SkippedPool) -> None:
        """A pool that takes no part, logged when that changes; an event where its requirements leave no type (SCH-653)."""
        if skipped not in self._skipped:
            _log_skipped(skipped)
        pool = self._world.state.pool(skipped.node_pool)
        if pool is not None and skipped.reason in _FILTERED:
            reason, silence = "NoCompatibleInstanceTypes", timedelta(minutes=1)
            about = about_pool(pool.metadata)
            self._world.events.publish(Happening(about, WARNING, reason, skip_message(skipped), (), silence))

    def _nominated(self, pod: Pod, placed: PlacedPods) -> Happening:
        claim = self._world.state.claim(placed.key)
        parts = [f"nodeclaim/{placed.key}"] if claim is not None else []
        node = claim.status.node_name if claim is not None else placed.node
        if node:
            parts.append(f"node/{node}")
        return Happening(about_pod(pod), NORMAL, "Nominated", f"Pod should schedule on: {', '.join(parts)}")

    def _say_unplaced(self, unplaced: UnplacedPod, told: _Told, *, is_news: bool) -> None:
        """A pod's reasons, logged when they change and published as an event now and then (SCH-654 Beyond)."""
        if is_news:
            self._log_unplaced(unplaced, told.text.removeprefix(FAILED))
        if not (any(is_opt_out(reason) for reason in unplaced.reasons) or self._may_pass(unplaced)):
            about, values = about_pod(unplaced.pod), (told.subjects,)
            self._world.events.publish(
                Happening(about, WARNING, "FailedScheduling", told.text, values, _FAILED_SILENCE)
            )

    def _may_pass(self, unplaced: UnplacedPod) -> bool:
        """Whether nothing is wrong yet: others are about to remove the obstacles of a young pod (SCH-450 Beyond)."""
        created = unplaced.pod.metadata.creation_timestamp
        is_young = created is not None and self._world.clock.now() - created < _PATIENCE
        return is_young and bool(unplaced.reasons) and all(reason.transient for reason in unplaced.reasons)

    @staticmethod
    def _log_unplaced(unplaced: UnplacedPod, text: str) -> None:
        meta = unplaced.pod.metadata
        reference = {"namespace": meta.namespace, "name": meta.name}
        if any(reason.category is Category.DEVICE for reason in unplaced.reasons):
            _log.info(
                "skipping pod with Dynamic Resource Allocation requirements, not yet supported by Karpenter",
                Pod=reference,
            )
        elif any(reason.category in _IGNORED and not reason.node_pool for reason in unplaced.reasons):
            _log.debug("ignoring pod", Pod=reference, error=text)
        else:
            _log.error("could not schedule pod", Pod=reference, error=text)

    async def _create(self, planned: PlannedClaim) -> KubeError | None:
        """Create one claim under its derived name; one that exists already is the same claim."""
        async with self._slots:
            try:
                if not await create(self._world, planned.claim, Purpose(instance_types=planned.instance_types)):
                    return None
            except KubeError as error:
                _log.error("creating nodeclaim failed", NodePool={"name": planned.node_pool}, error=str(error))
                return error
        self._world.state.nominate(planned.name, self._world.clock.now() + self._window)
        text = f"Pod should schedule on: nodeclaim/{planned.name}"
        self._world.events.publish(
            *(Happening(about_pod(pod), NORMAL, "Nominated", text) for pod in _waiting(planned.pods))
        )
        return None


def _waiting(pods: Iterable[Pod]) -> Iterator[Pod]:
    """Pods that wait for a node. Those planned ahead of leaving a node run still: to them nothing has happened yet."""
    return (pod for pod in pods if not pod.spec.node_name)


@dataclass(frozen=True)
class _Told:
    """What is said of a pod, and what of it counts as news when it changes."""

    text: str
    subjects: str


def _told(unplaced: UnplacedPod) -> _Told:
    """Pods that fail alike share what is known of it, so this serves them all."""
    return _Told(event_text(unplaced), subjects(unplaced))


def _without_pools(plan: Plan) -> bool:
    """Whether pods wait because no NodePool takes part at all."""
    return any(reason.category is Category.NO_POOL for unplaced in plan.unplaced for reason in unplaced.reasons)


def _log_skipped(skipped: SkippedPool) -> None:
    pool = {"name": skipped.node_pool}
    match skipped.reason:
        case Skip.NOT_READY:
            _log.error("ignoring nodepool, not ready", NodePool=pool, error=skip_message(skipped))
        case Skip.UNRESOLVED:
            _log.error("skipping, unable to resolve instance types", NodePool=pool)
        case Skip.NO_TYPES:
            _log.info("skipping, no resolved instance types found", NodePool=pool)
        case Skip.FILTERED | Skip.FILTERED_MIN_VALUES:
            text = "skipping, nodepool requirements filtered out all instance types"
            _log.info(text, NodePool=pool, reason=skipped.reason.value)
        case Skip.STATIC | Skip.DELETING:
            pass


def _name(pod: Pod) -> str:
    return "/".join(pod_key(pod))
