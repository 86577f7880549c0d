"""The disruption loop: decide, wait a quarter of a minute, look again, act (DIS §3, §11).

A pass takes one snapshot, and everything it decides is decided on that: emptiness, drift and consolidation do not wait for each
other. What was chosen to save money waits for a second look while later passes go on; they see the cluster as it will be then.
A pass in which nothing has changed since the last one costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from karpenter.act import obstacles
from karpenter.act.disrupt import Disruptor
from karpenter.act.regrets import Regrets
from karpenter.act.undertakings import Undertakings, pool_names
from karpenter.act.undone import owner_names
from karpenter.act.world import World
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import PodKey, Snapshot
from karpenter.control.provisioner import Indexes
from karpenter.control.queue import Singleton, WorkQueue
from karpenter.control.steadiness import Steadiness
from karpenter.decide.disrupt import Circumstances
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, DisruptionReason, Score
from karpenter.decide.disrupt.confirming import Refusal, confirmed
from karpenter.decide.disrupt.decision import DisruptionOptions, Disruptions, decide_disruption
from karpenter.decide.disrupt.foreseen import foreseen
from karpenter.decide.disrupt.times import changes_by_time
from karpenter.model import pods

#: Pause between passes that found nothing (DIS-020), and between choosing and acting (DIS-023).
POLL_SECONDS = 10.0
VALIDATION_SECONDS = 15.0
#: How long nothing is decided anew while nothing changes (DIS-029).
MEMORY_SECONDS = 300.0
#: Decisions about so many machines take long enough that other work must go on beside them, in a thread.
_MANY = 200
#: What is due this soon is due now: a wait may end a rounding error early.
_SLACK_SECONDS = 0.001
#: Passes that are further apart are worth a line (DIS-022).
_ABNORMAL_SECONDS = 900.0
#: How many commands are looked at at the same time.
_WORKERS = 100
_EMPTY_GONE = "abandoning empty node consolidation attempt due to pod churn, command is no longer valid"
_log = structlog.get_logger()


@dataclass(frozen=True)
class Hands:
    """What carries decisions out, and what remembers how that went."""

    disruptor: Disruptor
    undertakings: Undertakings
    regrets: Regrets


@dataclass(frozen=True)
class _Waiting:
    """A command that waits for its second look, at ``due`` on the event loop's clock."""

    command: Command
    due: float


class _Memory:
    """What the last pass was made of: while nothing of that changes there is nothing to decide (DIS §8.4, its Beyond)."""

    def __init__(self) -> None:
        self._inputs: object = None
        self._until = 0.0

    def covers(self, inputs: object) -> bool:
        """Whether the last pass saw just this, and time alone has changed nothing since."""
        return inputs == self._inputs and _now() < self._until

    def keep(self, inputs: object, until: float) -> None:
        """A pass is made of these; at ``until`` they mean something else although they are the same."""
        self._inputs, self._until = inputs, until


#: Under which kind a reason's searches are counted.
_KIND_OF = {
    DisruptionReason.EMPTY: ConsolidationType.EMPTY,
    DisruptionReason.DRIFTED: ConsolidationType.NONE,
    DisruptionReason.UNDERUTILIZED: ConsolidationType.MULTI,
}


class DisruptionLoop:
    """Decides and begins commands. ``is_blind`` tells whether some watch is failing now: then nothing is judged.

    ``own_pod``: the pod this process is, None where it is none of this cluster.
    """

    def __init__(
        self,
        world: World,
        hands: Hands,
        options: DisruptionOptions,
        is_blind: Callable[[], bool],
        own_pod: PodKey | None = None,
    ) -> None:
        self._world = world
        self._hands = hands
        self._options = options
        self._is_blind = is_blind
        self._own_pod = own_pod
        self._indexes = Indexes(world)
        self._queue = WorkQueue("disruption.queue", hands.undertakings.look, _WORKERS, None, world.metrics)
        self._waiting: tuple[_Waiting, ...] = ()
        self._memory = _Memory()
        self._steadiness = Steadiness()
        self._ran_at: float | None = None

    @property
    def waiting(self) -> tuple[Command, ...]:
        """Commands that wait for their second look."""
        return tuple(waiting.command for waiting in self._waiting)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run."""
        return {"disruption": self.run, self._queue.name: self._queue.run}

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        passes = Singleton("disruption", self._world.metrics)
        while True:
            with passes.one_pass():
                self._check_pace()
                has_begun = await self.pass_once()
            if not has_begun:
                await asyncio.sleep(self._pause_seconds())

    def _check_pace(self) -> None:
        """Say it when passes are far apart (DIS-051)."""
        now, last = _now(), self._ran_at
        self._ran_at = now
        if last is not None and now - last > _ABNORMAL_SECONDS:
            _log.debug("abnormal time between runs", time_since=f"{now - last:.0f}s")

    def _pause_seconds(self) -> float:
        """Until the next pass: shorter where a command is due for its second look."""
        now = _now()
        return min([POLL_SECONDS, *(max(0.0, waiting.due - now) for waiting in self._waiting)])

    async def pass_once(self) -> bool:
        """One pass; whether it began a command. Nothing is judged while a watch brings no news: the picture may be old."""
        if self._is_blind() or not self._is_steady():
            self._waiting = ()
            return False
        state = self._world.state
        indexes = await self._indexes.of_pools(tuple(pool for pool in state.pools() if self._world.manages(pool)))
        due = [waiting.command for waiting in self._waiting if waiting.due <= _now() + _SLACK_SECONDS]
        inputs = (state.revision, state.freeze, tuple(indexes.items()))
        if not due and self._memory.covers(inputs):
            return False
        self._waiting = tuple(waiting for waiting in self._waiting if waiting.command not in due)
        await self._hands.disruptor.tidy(state.views())
        # From here to the decision nothing may wait: the snapshot would grow old.
        snapshot = foreseen(self._world.virtual.into(state.snapshot()), [item.command for item in self._waiting])
        self._memory.keep(inputs, self._until(snapshot))
        obstacles.say_protections(self._world, snapshot.nodes)
        found = await self._found(snapshot, indexes, self._circumstances(snapshot, due))
        return False if self._is_blind() else await self._act(due, found)

    def _is_steady(self) -> bool:
        """Whether the time of day has not jumped lately: what seems quiet or old for that may be neither."""
        now = _now()
        jump = self._steadiness.jump_seconds(self._world.clock.now(), now)
        if jump:
            _log.error("the time of day has jumped, holding disruption for a while", **{"jump-seconds": round(jump, 1)})
        return self._steadiness.is_steady(now)

    # -- deciding ---------------------------------------------------------------------------------------------------------

    async def _found(
        self, snapshot: Snapshot, indexes: Mapping[str, TypeIndex], circumstances: Circumstances
    ) -> Disruptions:
        started = time.perf_counter()
        if len(snapshot.nodes) < _MANY:
            found = decide_disruption(snapshot, indexes, circumstances, self._options)
        else:
            found = await asyncio.to_thread(decide_disruption, snapshot, indexes, circumstances, self._options)
        self._count_found(found, time.perf_counter() - started)
        obstacles.say_blocked(self._world, found.blocked)
        for reason, pools in found.closed_pools.items():
            obstacles.say_closed(self._world, reason, pools)
        return found

    def _count_found(self, found: Disruptions, seconds: float) -> None:
        """DIS-411, DIS-414. All methods are one pass: its time is that of every reason that had candidates."""
        metrics = self._world.metrics
        for reason, kind in _KIND_OF.items():
            eligible = found.eligible.get(reason, 0)
            metrics.voluntary_disruption_eligible_nodes.labels(reason=reason.lower()).set(eligible)
            if eligible:
                metrics.voluntary_disruption_decision_evaluation_duration_seconds.labels(
                    reason=reason.lower(), consolidation_type=kind.value
                ).observe(seconds)

    def _circumstances(self, snapshot: Snapshot, due: Iterable[Command]) -> Circumstances:
        """What matters beside the snapshot. It is asked in another thread, so times are taken here."""
        now, seconds = self._world.clock.now(), _now()
        state, regrets = self._world.state, self._hands.regrets
        expecting = _expecting(snapshot)
        views = {} if regrets.is_empty else {view.key: view for view in snapshot.nodes}
        settled = (candidate.key for waiting in self._waiting for candidate in waiting.command.candidates)

        def is_barred(reason: DisruptionReason, key: str) -> bool:
            view = views.get(key)
            names = () if view is None else (key, *pool_names((view.pool,)), *owner_names(view.pods))
            return regrets.barred(reason, names, seconds) is not None

        return Circumstances(
            now=now,
            is_nominated=lambda key: key in expecting or state.is_nominated(key, now),
            executing=self._hands.undertakings.held.union(settled),
            is_barred=is_barred,
            chosen=tuple(command for command in due if command.reason is DisruptionReason.UNDERUTILIZED),
            home=self._home(),
        )

    def _home(self) -> str:
        """The node this process runs on; empty where nobody knows."""
        own = self._world.state.pod(self._own_pod) if self._own_pod is not None else None
        return own.spec.node_name if own is not None else ""

    def _until(self, snapshot: Snapshot) -> float:
        """When the same snapshot would be judged differently because time has passed, on the event loop's clock."""
        now, seconds = self._world.clock.now(), _now()
        nominated = self._world.state.next_nomination_end(now)
        moments = [*changes_by_time(snapshot, now, MEMORY_SECONDS), *(() if nominated is None else (nominated,))]
        ends: list[float] = [
            seconds + MEMORY_SECONDS,
            *(seconds + (moment - now).total_seconds() for moment in moments),
        ]
        regret = self._hands.regrets.next_end()
        if regret is not None:
            ends.append(regret)
        return min(ends)

    async def carry_out(self, commands: Iterable[Command]) -> bool:
        """Begin commands, all at once; whether any could be begun. From then on they are looked after until they end."""
        begun = await asyncio.gather(*(self._hands.disruptor.begin(command) for command in commands))
        for identity in filter(None, begun):
            self._queue.add(identity)
        return any(begun)

    # -- acting -----------------------------------------------------------------------------------------------------------

    async def _act(self, due: Iterable[Command], found: Disruptions) -> bool:
        """Begin what stood its second look and what needs none; the rest waits. Whether anything was begun."""
        chosen = list(self._confirmed(due, found))
        taken = {candidate.key for command in chosen for candidate in command.candidates}
        at = _now() + VALIDATION_SECONDS
        for command in found.commands:
            if not taken.isdisjoint(candidate.key for candidate in command.candidates):
                continue
            if command.consolidation_type is ConsolidationType.NONE:
                chosen.append(command)
            else:
                self._waiting += (_Waiting(command, at),)
                self._tell_of(command)
        return await self.carry_out(self._still_fit(chosen))

    def _tell_of(self, command: Command) -> None:
        """A consolidation was chosen, and waits (DIS-260 to DIS-264, DIS-395)."""
        obstacles.say_considered(self._world, command)
        obstacles.say_approved(self._world, command)
        metrics = self._world.metrics
        for score in command.scores:
            pool = self._world.state.pool(score.pool)
            policy = pool.spec.disruption.consolidation_policy if pool is not None else ""
            described = {"decision": "approved", "nodepool": score.pool, "policy": policy}
            metrics.consolidation_moves_total.labels(**described).inc()
            if score.strict:
                metrics.consolidation_score.labels(**described).observe(score.score)
            _log.debug("consolidation score", **_scored(command, score))

    def _confirmed(self, due: Iterable[Command], found: Disruptions) -> Iterable[Command]:
        blocked = {item.view.key for item in found.blocked}
        for command in due:
            verdict = confirmed(command, found.commands, blocked)
            if isinstance(verdict, Refusal):
                self._refuse(command, verdict)
            else:
                lost = len(command.candidates) - len(verdict.candidates)
                self._count_refused(command, lost)
                yield verdict

    def _refuse(self, command: Command, refusal: Refusal) -> None:
        if command.reason is DisruptionReason.EMPTY:
            _log.debug(_EMPTY_GONE)
        else:
            obstacles.say_refused(self._world, command, refusal)
        if refusal is not Refusal.SCHEDULING:
            self._count_refused(command, len(command.candidates))

    def _count_refused(self, command: Command, number: int) -> None:
        """DIS-274, DIS-416"""
        if number:
            kind = command.consolidation_type.value
            series = self._world.metrics.voluntary_disruption_failed_validations_total
            series.labels(consolidation_type=kind).inc(number)

    def _still_fit(self, commands: Iterable[Command]) -> list[Command]:
        """The commands whose machines are what the decision saw, which may have taken a while; budgets are asked once more."""
        state = self._world.state
        views = {view.key: view for view in state.views()}
        seen = Snapshot(nodes=tuple(views.values()), pools=state.pools(), freeze=state.freeze)
        allowances = Allowances(seen, self._world.clock.now())
        return [fit for command in commands if (fit := self._fit(command, views, allowances)) is not None]

    def _fit(self, command: Command, views: Mapping[str, NodeView], allowances: Allowances) -> Command | None:
        fit: list[Candidate] = []
        for candidate in command.candidates:
            view = views.get(candidate.key)
            if (
                view is not None
                and self._is_as_seen(candidate, view)
                and allowances.left(candidate.pool, command.reason)
            ):
                fit.append(replace(candidate, view=view))
                allowances.take(candidate.pool)
        if len(fit) < len(command.candidates) and command.reason is not DisruptionReason.EMPTY:
            for candidate in fit:
                allowances.take(candidate.pool, -1)
            return None
        return replace(command, candidates=tuple(fit)) if fit else None

    def _is_as_seen(self, candidate: Candidate, view: NodeView) -> bool:
        if view.leaving or not view.initialized or self._world.state.is_nominated(view.key, self._world.clock.now()):
            return False
        seen = {pod.metadata.uid for pod in candidate.view.pods}
        return view is candidate.view or all(
            pod.metadata.uid in seen or not pods.needs_a_place(pod) for pod in view.pods
        )


def _expecting(snapshot: Snapshot) -> frozenset[str]:
    """Machines without pods that pods are planned on which have not come yet: they are not empty, however it looks."""
    waiting = (pod for group in snapshot.groups for pod in group.pods)
    leaving = (pod for view in snapshot.nodes if view.leaving for pod in view.pods)
    planned = snapshot.planned
    meant = {planned.get(pod.metadata.uid, "") for pods_to_come in (waiting, leaving) for pod in pods_to_come}
    return frozenset(view.key for view in snapshot.nodes if view.key in meant and not _has_pods(view))


def _has_pods(view: NodeView) -> bool:
    return any(pods.needs_a_place(pod) for pod in view.pods)


def _scored(command: Command, score: Score) -> dict[str, object]:
    """What the log says of a move's worth to a pool (DIS-258)."""
    return {
        "nodepool": score.pool,
        "score": score.score,
        "savings_fraction": score.saving_fraction,
        "disruption_fraction": score.disruption_fraction,
        "savings": score.saving_per_hour,
        "disruption_cost": score.disruption_cost,
        "nodepool_total_cost": score.pool_price_per_hour,
        "nodepool_total_disruption_cost": score.pool_disruption_cost,
        "threshold": score.threshold,
        "k": 1 / score.threshold if score.threshold else 0.0,
        "approved": score.approved,
        "decision": command.decision.value,
        "candidates": len(command.candidates),
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
