"""The disruption controller: decide, validate consolidation after 15 s, execute (DIS §3, §11).

Each pass takes one snapshot and decides everything on it: emptiness, drift and consolidation do not wait for each other. A
consolidation waits for its validation while later passes go on; their snapshot has it applied already. A pass whose inputs have
not changed since the last one is skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from karpenter.controller_context import ControllerContext
from karpenter.disruption import disruption_events
from karpenter.disruption.command_backoff import CommandBackoff
from karpenter.disruption.command_starter import CommandStarter
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command, ConsolidationType, DisruptionReason, MoveScore, pending_command
from karpenter.disruption.decide.command_validation import (
    ValidationFailure,
    empty_validation_failures,
    still_applicable,
    validate_command,
)
from karpenter.disruption.decide.consolidation_delays import time_driven_changes
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_blockers import NodeNominated
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.projected_snapshot import nodes_awaiting_planned_pods, with_started_commands
from karpenter.disruption.decide.repair import next_repair
from karpenter.disruption.disruption_queue import DisruptionQueue
from karpenter.disruption.disruption_recorder import DisruptionRecorder
from karpenter.disruption.repair_execution import RebootHistory
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model.clock import ClockJumpDetector
from karpenter.provisioning.provisioner import PoolTypeIndexes
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler
from karpenter.state.snapshot import ClusterSnapshot, PodKey
from karpenter.state.virtual_pods import VirtualPods

#: Decisions about so many nodes take long enough that other work must go on beside them, in a thread.
_THREADED_DECISION_NODES = 200
#: What is due this soon is due now: a wait may end a rounding error early.
_SLACK_SECONDS = 0.001
#: Passes that are further apart are worth a line (DIS-022).
_ABNORMAL_INTERVAL_SECONDS = 900.0
#: How many commands are processed at the same time.
_WORKERS = 100
_EMPTY_NODE_POD_CHURN = "abandoning empty node consolidation attempt due to pod churn, command is no longer valid"
_log = structlog.get_logger()


@dataclass(frozen=True)
class CommandExecution:
    """What carries decisions out, and what remembers how that went. ``recorder``: writes disruption problems to files."""

    disruptor: CommandStarter
    queue: DisruptionQueue
    backoff: CommandBackoff
    reboots: RebootHistory
    recorder: DisruptionRecorder | None = None


@dataclass(frozen=True)
class _PendingValidation:
    """A command that waits for its validation, at ``validate_at`` on the event loop's clock, in seconds."""

    command: Command
    validate_at: float


class _DecisionInputs:
    """What the last pass was made of: while nothing of that changes there is nothing to decide (DIS §8.4, its Beyond)."""

    def __init__(self) -> None:
        self._inputs: object = None
        self._valid_until = 0.0

    def are_unchanged(self, inputs: object) -> bool:
        """Whether the last pass saw just this, and time alone has changed nothing since."""
        return inputs == self._inputs and _now() < self._valid_until

    def remember(self, inputs: object, valid_until: float) -> None:
        """Record the inputs of a pass; from ``valid_until`` on the same inputs lead to another decision."""
        self._inputs, self._valid_until = inputs, valid_until


#: Under which kind a reason's searches are counted.
_CONSOLIDATION_TYPE_OF = {
    DisruptionReason.EMPTY: ConsolidationType.EMPTY,
    DisruptionReason.DRIFTED: ConsolidationType.NONE,
    DisruptionReason.UNDERUTILIZED: ConsolidationType.MULTI,
    DisruptionReason.UNHEALTHY: ConsolidationType.NONE,
}


class DisruptionController:
    """Decides and starts commands. ``has_watch_faults``: whether a watch is failing now; then nothing is decided.

    ``own_pod``: the pod of this process, None if it runs outside the cluster.
    """

    def __init__(
        self,
        context: ControllerContext,
        execution: CommandExecution,
        options: DisruptionOptions,
        has_watch_faults: Callable[[], bool],
        own_pod: PodKey | None = None,
        virtual_pods: VirtualPods | None = None,
    ) -> None:
        self._context = context
        self._virtual_pods = virtual_pods or VirtualPods()
        self._execution = execution
        self._options = options
        self._has_watch_faults = has_watch_faults
        self._own_pod = own_pod
        self._type_indexes = PoolTypeIndexes(context)
        self._queue = Reconciler("disruption.queue", execution.queue.reconcile, _WORKERS, None, context.metrics)
        self._pending_validations: tuple[_PendingValidation, ...] = ()
        self._decision_inputs = _DecisionInputs()
        self._memory = DisruptionMemory()
        self._clock_jumps = ClockJumpDetector()
        self._last_run_at: float | None = None
        self._started_at = context.clock.now()

    @property
    def awaiting_validation(self) -> tuple[Command, ...]:
        """Commands that wait for their validation."""
        return tuple(waiting.command for waiting in self._pending_validations)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        controller = SingletonReconciler("disruption", self._reconcile_and_requeue, self._context.metrics)
        return {reconciler.name: reconciler.run for reconciler in (controller, self._queue)}

    def claim_deleted(self, name: str) -> None:
        """The watch delivered that a NodeClaim is going or gone: reconcile the command that loses its replacement."""
        command_id = self._execution.queue.claim_deleted(name)
        if command_id:
            self._queue.add(command_id)

    async def _reconcile_and_requeue(self) -> float:
        """One pass; seconds until the next one, none if a command was started."""
        self._log_abnormal_interval()
        return 0.0 if await self.reconcile() else self._poll_delay_seconds()

    def _log_abnormal_interval(self) -> None:
        """Say it when passes are far apart (DIS-051)."""
        now, last = _now(), self._last_run_at
        self._last_run_at = now
        if last is not None and now - last > _ABNORMAL_INTERVAL_SECONDS:
            _log.debug("abnormal time between runs", time_since=f"{now - last:.0f}s")

    def _poll_delay_seconds(self) -> float:
        """Until the next pass: shorter where a command is due for its validation."""
        now = _now()
        poll = self._context.intervals.disruption_poll.total_seconds()
        return min([poll, *(max(0.0, waiting.validate_at - now) for waiting in self._pending_validations)])

    async def reconcile(self) -> bool:
        """One pass; whether it started a command. Nothing is decided while a watch fails: the cluster state may be stale."""
        if self._has_watch_faults() or not self._is_clock_trusted():
            self._pending_validations = ()
            return False
        state = self._context.state
        indexes = await self._type_indexes.by_pool(
            tuple(pool for pool in state.pools() if self._context.is_managed(pool))
        )
        due = [
            waiting.command for waiting in self._pending_validations if waiting.validate_at <= _now() + _SLACK_SECONDS
        ]
        inputs = (state.revision, state.freeze, self._virtual_pods.content, tuple(indexes.items()))
        if not due and self._decision_inputs.are_unchanged(inputs):
            return False
        self._pending_validations = tuple(
            waiting for waiting in self._pending_validations if waiting.command not in due
        )
        await self._execution.disruptor.unmark_stale(state.state_nodes())
        # From here to the decision nothing may wait: the snapshot would grow old.
        snapshot = with_started_commands(
            self._virtual_pods.added_to(state.snapshot()),
            [validation.command for validation in self._pending_validations],
        )
        self._decision_inputs.remember(inputs, self._valid_until(snapshot))
        disruption_events.publish_pod_protections(self._context, snapshot.nodes)
        problem = DisruptionProblem(snapshot, self._disruption_context(snapshot, due), self._options)
        solution = await self._decide(problem, indexes)
        has_started = False if self._has_watch_faults() else await self._start_or_defer(due, solution)
        if self._execution.recorder is not None:
            await self._execution.recorder.record(problem, indexes, solution)
        return has_started

    def _is_clock_trusted(self) -> bool:
        """Whether the time of day has not jumped lately: what seems quiet or old for that may be neither."""
        now = _now()
        jump = self._clock_jumps.jump_seconds(self._context.clock.now(), now)
        if jump:
            _log.error("the time of day has jumped, holding disruption for a while", **{"jump-seconds": round(jump, 1)})
        return self._clock_jumps.is_trusted(now)

    # -- deciding ---------------------------------------------------------------------------------------------------------

    async def _decide(self, problem: DisruptionProblem, indexes: Mapping[str, TypeIndex]) -> DisruptionSolution:
        """Decide, in a thread where that takes long, and publish the metrics and events of the decision."""
        started = time.perf_counter()
        if len(problem.snapshot.nodes) < _THREADED_DECISION_NODES:
            solution = decide_disruption(problem, indexes, self._memory)
        else:
            with self._context.decisions.computing():
                solution = await asyncio.to_thread(decide_disruption, problem, indexes, self._memory)
        self._record_decision_metrics(solution, time.perf_counter() - started)
        disruption_events.publish_blocked(self._context, solution.blocked_nodes)
        for reason, pools in solution.closed_pools.items():
            disruption_events.publish_closed_budgets(self._context, reason, pools)
        return solution

    def _record_decision_metrics(self, disruptions: DisruptionSolution, seconds: float) -> None:
        """DIS-411, DIS-414. All methods are one pass: its time is that of every reason that had candidates."""
        metrics = self._context.metrics
        for reason, kind in _CONSOLIDATION_TYPE_OF.items():
            eligible = disruptions.eligible_nodes.get(reason, 0)
            metrics.voluntary_disruption_eligible_nodes.labels(reason=reason.lower()).set(eligible)
            if eligible:
                metrics.voluntary_disruption_decision_evaluation_duration_seconds.labels(
                    reason=reason.lower(), consolidation_type=kind.value
                ).observe(seconds)

    def _disruption_context(self, snapshot: ClusterSnapshot, due: Iterable[Command]) -> DisruptionContext:
        """What the decision depends on beside the snapshot, taken in the same step as the snapshot."""
        now = self._context.clock.now()
        pending = (candidate.key for waiting in self._pending_validations for candidate in waiting.command.candidates)
        underutilized = (command for command in due if command.reason is DisruptionReason.UNDERUTILIZED)
        return DisruptionContext(
            now=now,
            nominated=self._context.state.nominated_nodes(now) | nodes_awaiting_planned_pods(snapshot),
            in_command=self._execution.queue.candidate_keys.union(pending),
            excluded_by_backoff=self._execution.backoff.excluded_nodes(snapshot.nodes, _now()),
            failed_moves=self._execution.backoff.failed_moves(_now(), self._execution.queue.launching_node_pools),
            pending_commands=tuple(pending_command(command) for command in underutilized),
            controller_node=self._own_node(),
            reboots_exhausted=self._execution.reboots.exhausted(self._context.state.claims(), now),
            started_at=self._started_at if self._options.repair is not None else None,
        )

    def _own_node(self) -> str:
        """The node this process runs on; empty if unknown."""
        own = self._context.state.pod(self._own_pod) if self._own_pod is not None else None
        return own.spec.node_name if own is not None else ""

    def _valid_until(self, snapshot: ClusterSnapshot) -> float:
        """When the same snapshot leads to another decision because time has passed, on the event loop's clock."""
        now, seconds = self._context.clock.now(), _now()
        recheck = self._context.intervals.disruption_recheck.total_seconds()
        nominated = self._context.state.next_nomination_end(now)
        repairs = self._options.repair
        repair = next_repair(snapshot, repairs, now, self._started_at) if repairs is not None else None
        moments = [
            *(() if repair is None else (repair,)),
            *time_driven_changes(snapshot, now, recheck, self._options.consolidation),
            *(() if nominated is None else (nominated,)),
        ]
        ends: list[float] = [seconds + recheck, *(seconds + (moment - now).total_seconds() for moment in moments)]
        backoff_end = self._execution.backoff.next_expiry()
        if backoff_end is not None:
            ends.append(backoff_end)
        return min(ends)

    async def start_commands(self, commands: Iterable[Command]) -> bool:
        """Start commands concurrently; whether any could be started. The queue reconciles them until they end."""
        command_ids = await asyncio.gather(*(self._execution.disruptor.start(command) for command in commands))
        for command_id in filter(None, command_ids):
            self._queue.add(command_id)
        return any(command_ids)

    # -- acting -----------------------------------------------------------------------------------------------------------

    async def _start_or_defer(self, due: Iterable[Command], disruptions: DisruptionSolution) -> bool:
        """Start commands that passed validation or need none, and defer the others; returns whether any was started."""
        chosen = list(self._validated(due, disruptions))
        taken = {candidate.key for command in chosen for candidate in command.candidates}
        at = _now() + self._context.intervals.disruption_validation.total_seconds()
        for command in disruptions.commands:
            if not taken.isdisjoint(candidate.key for candidate in command.candidates):
                continue
            if command.consolidation_type is ConsolidationType.NONE:
                chosen.append(command)
            else:
                self._pending_validations += (_PendingValidation(command, at),)
                self._record_chosen(command)
        return await self.start_commands(self._still_applicable(chosen))

    def _record_chosen(self, command: Command) -> None:
        """A consolidation was chosen, and waits (DIS-260 to DIS-264, DIS-395)."""
        disruption_events.publish_consolidation_candidate(self._context, command)
        disruption_events.publish_consolidation_approved(self._context, command)
        metrics = self._context.metrics
        for score in command.scores:
            pool = self._context.state.pool(score.node_pool)
            policy = pool.spec.disruption.consolidation_policy if pool is not None else ""
            described = {"decision": "approved", "nodepool": score.node_pool, "policy": policy}
            metrics.consolidation_moves_total.labels(**described).inc()
            if score.balanced:
                metrics.consolidation_score.labels(**described).observe(score.score)
            _log.debug("consolidation score", **_score_fields(command, score))

    def _validated(self, due: Iterable[Command], disruptions: DisruptionSolution) -> Iterable[Command]:
        """The due commands that passed validation; failures are counted and published (DIS-274, DIS-275)."""
        blocked = {blocked_node.state_node.key for blocked_node in disruptions.blocked_nodes}
        for command in due:
            is_empty = command.reason is DisruptionReason.EMPTY
            excluded = self._no_longer_empty(command, disruptions) if is_empty else blocked
            validated = validate_command(command, disruptions.commands, excluded)
            if is_empty:
                self._count_failed_validations(command, empty_validation_failures(command, validated, excluded))
            if isinstance(validated, Command):
                yield validated
            elif is_empty:
                _log.debug(_EMPTY_NODE_POD_CHURN)
            else:
                disruption_events.publish_consolidation_rejected(self._context, command, validated)
                if validated is not ValidationFailure.SCHEDULING:
                    self._count_failed_validations(command, len(command.candidates))

    def _no_longer_empty(self, command: Command, disruptions: DisruptionSolution) -> frozenset[str]:
        """Nodes of the command that are no candidates or not empty any more; nominated ones are both still."""
        blocked = {
            blocked_node.state_node.key
            for blocked_node in disruptions.blocked_nodes
            if not isinstance(blocked_node.blocker, NodeNominated)
        }
        nodes = (candidate.state_node for candidate in command.candidates)
        pods_on = self._context.state.pods_on
        used = (node.key for node in nodes if not replace(node, pods=pods_on(node.name)).is_empty)
        return frozenset(blocked.union(used))

    def _count_failed_validations(self, command: Command, number: int) -> None:
        """Count nodes whose command failed its validation (DIS-416)."""
        if number:
            kind = command.consolidation_type.value
            series = self._context.metrics.voluntary_disruption_failed_validations_total
            series.labels(consolidation_type=kind).inc(number)

    def _still_applicable(self, commands: Iterable[Command]) -> list[Command]:
        """The commands that still apply after the decision, which may have taken a while."""
        chosen = tuple(commands)
        if not chosen:
            return []
        state, now = self._context.state, self._context.clock.now()
        current = ClusterSnapshot(nodes=tuple(state.state_nodes()), pools=state.pools(), freeze=state.freeze)
        return still_applicable(chosen, current, state.nominated_nodes(now), now)


def _score_fields(command: Command, score: MoveScore) -> dict[str, object]:
    """What the log says of a move's worth to a pool (DIS-258)."""
    return {
        "nodepool": score.node_pool,
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
