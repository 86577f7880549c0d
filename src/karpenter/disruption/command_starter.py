"""Starting disruption commands: taint the candidates, create their replacements, then mark the candidates for deletion (DIS §12).

The order protects pods. Replacements are created while the candidates still count as capacity, otherwise provisioning would
create capacity for the same pods a second time. As soon as they exist, the candidates stop counting, and their pods are planned
on the replacements. Names of replacements are derived from their pods, so a repeated creation creates nothing twice.
``disruption_queue`` waits for the replacements and deletes the candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from karpenter.api.core import Pod
from karpenter.controller_context import ControllerContext
from karpenter.disruption import node_marking
from karpenter.disruption.decide.command import Candidate, Command
from karpenter.disruption.decide.command_validation import has_new_pods
from karpenter.disruption.disruption_queue import DisruptionQueue, replacement_gone_message
from karpenter.disruption.node_marking import DisruptionMark
from karpenter.disruption.queued_command import QueuedCommand
from karpenter.disruption.repair_execution import RebootStarter, log_replacements
from karpenter.kube.errors import KubeError
from karpenter.provisioning.claim_creation import ClaimCreationPace, ClaimCreationReason, create_claim
from karpenter.runtime.events import NORMAL, ObjectEvent, involved_pod
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods
from karpenter.state.state_node import StateNode
from karpenter.static import replicas
from karpenter.termination.terminating_node import pods_on_node

_MAX_CONCURRENT_WRITES = 64
_log = structlog.get_logger()


class _CommandRefused(Exception):
    """The command cannot be started now."""


class CommandStarter:
    """Starts commands, and unmarks nodes that an earlier process left marked."""

    def __init__(
        self, context: ControllerContext, queue: DisruptionQueue, pace: ClaimCreationPace, reboots: RebootStarter
    ) -> None:
        self._context = context
        self._queue = queue
        self._reboots = reboots
        self._creation_limit = pace.creation_limit
        self._nomination_window = pace.nomination_window
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    async def start(self, command: Command) -> str:
        """Start a command; its ID, which the queue reconciles from now on, or an empty string if it could not be started.

        Nothing stays half-done: a command that cannot be started is rolled back.
        """
        queued = QueuedCommand(command.command_id, command, asyncio.get_running_loop().time())
        if command.repair is not None and command.repair.is_reboot:
            if await self._reboots.start(command, command.repair):
                self._count_decision(queued)
            return ""
        if not self._queue.add(queued):
            _log.error("disrupting node(s) failed", error="a node is part of another command", **queued.log_fields())
            return ""
        log_replacements(queued)
        _log.info("disrupting node(s)", **queued.log_fields())
        try:
            await self._start(queued)
        except (_CommandRefused, KubeError) as error:
            await self._queue.fail(queued, str(error))
            return ""
        except Exception as error:
            # A bug must not leave nodes tainted for ever.
            await self._queue.fail(queued, repr(error))
            raise
        self._count_decision(queued)
        return queued.command_id

    async def _start(self, queued: QueuedCommand) -> None:
        """Raises ``_CommandRefused`` and ``KubeError``."""
        if queued.command.replacements:
            self._check_limits(queued.command.replacements)
        else:
            self._queue.mark_for_deletion(queued)
        await self._taint_candidates(queued)
        if queued.command.replacements:
            await self._create_replacements(queued)
            if queued.lost_replacements:
                raise _CommandRefused(replacement_gone_message(queued.lost_replacements))
            self._queue.mark_for_deletion(queued)
        self._nominate_targets(queued)

    # -- candidates -------------------------------------------------------------------------------------------------------

    async def _taint_candidates(self, queued: QueuedCommand) -> None:
        """Taint the nodes and write the reason. A node that cannot be tainted or got pods stays; with replacements all stay."""
        candidates = tuple(queued.remaining_candidates.values())
        mark = DisruptionMark(queued.command.reason.value, queued.candidate_annotations())
        obstacles = await asyncio.gather(*(self._taint_candidate(candidate, mark) for candidate in candidates))
        staying = [candidate for candidate, obstacle in zip(candidates, obstacles, strict=True) if obstacle]
        if staying and (queued.command.replacements or len(staying) == len(candidates)):
            raise _CommandRefused("; ".join(obstacle for obstacle in obstacles if obstacle))
        await self._queue.release_candidates(queued, staying)

    async def _taint_candidate(self, candidate: Candidate, mark: DisruptionMark) -> str:
        """Taint one node; what prevents it, empty when nothing does."""
        view = candidate.state_node
        assert view.node is not None
        assert view.claim is not None
        async with self._slots:
            try:
                await node_marking.taint_node(self._context, view.node)
                if await self._has_new_pods(view):
                    return f"pods have come to node {view.name}"
                await node_marking.set_disruption_reason(self._context, view.claim, mark)
            except KubeError as error:
                return f"node {view.name}: {error}"
        return ""

    async def _has_new_pods(self, view: StateNode) -> bool:
        """Whether pods came after the decision, by the API server: the watch may lag behind, the taint does not."""
        assert view.node is not None
        return has_new_pods(view, await pods_on_node(self._context, view.node.metadata.name))

    # -- replacements -----------------------------------------------------------------------------------------------------

    def _check_limits(self, replacements: Sequence[NewNodeClaim]) -> None:
        """Limits of NodePools (DIS-304), and how many claims may be created a minute. Raises ``_CommandRefused``."""
        views = self._context.state.state_nodes()
        for name in sorted({planned.node_pool for planned in replacements}):
            pool = self._context.state.pool(name)
            if pool is None:
                raise _CommandRefused(f"NodePool {name} is gone")
            exceeded = replicas.exceeded_limits(pool, views)
            if exceeded:
                raise _CommandRefused(f"NodePool {name} is beyond its limits on {', '.join(exceeded)}")
        now = self._context.clock.now()
        if self._creation_limit.available(now) < len(replacements):
            raise _CommandRefused(
                f"no more than {self._creation_limit.per_minute} nodeclaims are created within a minute"
            )
        self._creation_limit.record(len(replacements), now)

    async def _create_replacements(self, queued: QueuedCommand) -> None:
        """Create all replacements; raises ``_CommandRefused`` if one of them could not be."""
        annotations = queued.replacement_annotations()
        reason = queued.command.reason.lower()
        created = (self._create_replacement(planned, annotations, reason) for planned in queued.command.replacements)
        faults = [fault for fault in await asyncio.gather(*created) if fault]
        if faults:
            raise _CommandRefused("; ".join(faults))

    async def _create_replacement(self, planned: NewNodeClaim, annotations: dict[str, str], reason: str) -> str:
        claim = planned.claim
        meta = msgspec.structs.replace(claim.metadata, annotations={**claim.metadata.annotations, **annotations})
        async with self._slots:
            try:
                await create_claim(
                    self._context,
                    msgspec.structs.replace(claim, metadata=meta),
                    ClaimCreationReason(reason, planned.instance_types),
                )
            except KubeError as error:
                return f"creating nodeclaim {planned.name}: {error}"
        return ""

    def _nominate_targets(self, queued: QueuedCommand) -> None:
        """Plan the candidates' pods where the decision wants them, so that no pass plans them elsewhere (DIS-306)."""
        until = self._context.clock.now() + self._nomination_window
        command = queued.command
        for planned in command.replacements:
            self._context.state.nominate(planned.name, until)
            self._record_planned_pods(planned.name, planned.pods)
        for placed in command.placed_on_existing:
            self._context.state.nominate(placed.node_key, until)
            self._record_planned_pods(placed.node_key, placed.pods)
            self._publish_nominated(placed)

    def _record_planned_pods(self, key: str, pods_planned: Sequence[Pod]) -> None:
        self._context.state.planned_nodes.update({pod.metadata.uid: key for pod in pods_planned})

    def _publish_nominated(self, placed: PlacedPods) -> None:
        text = f"Pod should schedule on: node/{placed.node_name}"
        self._context.events.publish(
            *(ObjectEvent(involved_pod(pod), NORMAL, "Nominated", text) for pod in placed.pods)
        )

    def _count_decision(self, queued: QueuedCommand) -> None:
        """Count a decision once in total and once per NodePool (DIS-412, DIS-413)."""
        metrics = self._context.metrics
        metrics.voluntary_disruption_decisions_total.labels(**queued.metric_labels).inc()
        for pool in queued.command.node_pools:
            metrics.voluntary_disruption_decisions_by_nodepool_total.labels(nodepool=pool, **queued.metric_labels).inc()
            if queued.command.terminate_first is not None:
                metrics.voluntary_disruption_terminate_first_decisions_total.labels(
                    nodepool=pool,
                    reason=queued.command.reason.lower(),
                    terminate_first_reason=queued.command.terminate_first.value,
                ).inc()

    # -- leftovers --------------------------------------------------------------------------------------------------------

    async def unmark_stale(self, views: Sequence[StateNode]) -> int:
        """Unmark nodes that an earlier process chose and never removed (DIS-054); returns how many."""
        stale = [view for view in views if node_marking.is_stale_mark(view) and not self._queue.has_candidate(view.key)]
        await asyncio.gather(*(self._queue.unmark_node(view) for view in stale))
        return len(stale)
