"""The disruption queue: commands being executed, until their candidates are deleted or the command is rolled back (DIS §12).

Work is keyed by command, not by candidate: a node that is removed by something else meanwhile (expiration, interruption, a user)
does not affect the rest of its command, and every command ends. Nothing here survives the process. The next one finds tainted
nodes without a command and untaints them; replacements are ordinary nodes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.disruption import node_marking
from karpenter.disruption.command_backoff import CommandBackoff, ConsolidationReversals
from karpenter.disruption.command_timeout import (
    MAX_TIMEOUT_SECONDS,
    command_timeout_seconds,
    replacement_timeout_seconds,
)
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType
from karpenter.disruption.decide.command_validation import first_active_freeze
from karpenter.disruption.decision_journal import DecisionJournal, DecisionOutcome
from karpenter.disruption.queued_command import QueuedCommand
from karpenter.disruption.repair_execution import RebootHistory, count_repaired
from karpenter.disruption.successor_nominations import SuccessorNominations
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, pods
from karpenter.model.freezes import Freeze
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.events import NORMAL, ObjectEvent, involved_claim, involved_node
from karpenter.runtime.termination_deadline import tighten_deadline
from karpenter.state.state_node import StateNode

#: How often a command is reconciled (DIS-031).
QUEUE_POLL_SECONDS = 1.0
#: How long pods are expected on a replacement after it was last reconciled.
_NOMINATION_PERIOD = timedelta(seconds=20)
#: How long a replacement that outlasted its command is kept for the next decision, once it is initialized.
_LATE_NOMINATION_PERIOD = timedelta(seconds=60)
_MAX_CONCURRENT_WRITES = 64
_COMMAND_FAILED_MESSAGE = "failed terminating nodes while executing a disruption command"
_log = structlog.get_logger()


class CommandHistory:
    """What is remembered of commands beyond their end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.journal = DecisionJournal()
        self.backoff = CommandBackoff(now)
        self.reversals = ConsolidationReversals(self.backoff, now)
        self.reboots = RebootHistory()


class DisruptionQueue:
    """All commands under way, by ID, and the nodes they hold.

    ``registration_timeout``: what a NodeClaim may take to register; None where slow replacements are not waited for.
    """

    def __init__(
        self,
        context: ControllerContext,
        history: CommandHistory,
        successor_nominations: SuccessorNominations,
        registration_timeout: timedelta | None,
    ) -> None:
        self._context = context
        self._registration_timeout = registration_timeout
        self._successor_nominations = successor_nominations
        self._journal = history.journal
        self._backoff = history.backoff
        self._reversals = history.reversals
        self._commands: dict[str, QueuedCommand] = {}
        self._command_by_candidate: dict[str, str] = {}
        self._command_by_replacement: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    # -- held nodes -----------------------------------------------------------------------------------------------------

    def has_candidate(self, key: str) -> bool:
        """Whether a node is part of a command under way (DIS-070)."""
        return key in self._command_by_candidate

    @property
    def candidate_keys(self) -> frozenset[str]:
        """The nodes of all commands under way."""
        return frozenset(self._command_by_candidate)

    @property
    def launching_node_pools(self) -> frozenset[str]:
        """The NodePools in which commands under way have replacements that are not ready yet."""
        return frozenset().union(*(queued.launching_node_pools for queued in self._commands.values()))

    def add(self, queued: QueuedCommand) -> bool:
        """Take the command's nodes; False, and nothing is done, where another command has one of them (DIS-300)."""
        if any(key in self._command_by_candidate for key in queued.remaining_candidates):
            return False
        self._commands[queued.command_id] = queued
        self._command_by_candidate.update(dict.fromkeys(queued.remaining_candidates, queued.command_id))
        self._command_by_replacement.update(dict.fromkeys(queued.replacements, queued.command_id))
        for key in queued.remaining_candidates:
            self._context.state.mark_disruption_pending(key)
        self._journal.begin(queued.journal_entry(self._context.clock.now()))
        return True

    def mark_for_deletion(self, queued: QueuedCommand) -> None:
        """From now on the nodes give no capacity any more (DIS-305)."""
        for key in queued.remaining_candidates:
            self._context.state.mark_for_deletion(key)

    def claim_deleted(self, name: str) -> str:
        """A NodeClaim is going or gone. The ID of the command that fails because this is its replacement; empty if none does.

        The candidates stay, so they count as capacity again at once. Otherwise a provisioning pass before the next reconcile of
        the command would find no place for their pods and create a NodeClaim for them.
        """
        queued = self._commands.get(self._command_by_replacement.get(name, ""))
        staying = self._staying(queued) if queued is not None else []
        if queued is None or not staying:
            return ""
        queued.lost_replacements.add(name)
        for candidate in staying:
            self._context.state.unmark_for_deletion(candidate.key)
        return queued.command_id

    def _staying(self, queued: QueuedCommand) -> list[Candidate]:
        """The candidates that are not deleted yet."""
        return [candidate for candidate in queued.remaining_candidates.values() if not self._is_deleting(candidate.key)]

    def _remove(self, queued: QueuedCommand) -> None:
        self._commands.pop(queued.command_id, None)
        keys = (candidate.key for candidate in queued.command.candidates)
        for commands, names in (
            (self._command_by_candidate, keys),
            (self._command_by_replacement, queued.replacements),
        ):
            for name in names:
                if commands.get(name) == queued.command_id:
                    del commands[name]

    # -- the worker -----------------------------------------------------------------------------------------------------

    async def reconcile(self, command_id: str) -> float | None:
        """Advance a command; seconds until the next reconcile, None if it has ended."""
        queued = self._commands.get(command_id)
        if queued is None:
            return None
        if queued.late_replacements:
            return await self._await_late_replacements(queued)
        if self._staying(queued):
            freeze = self._find_freeze(queued)
            if freeze is not None:
                await self._stop_frozen(queued, freeze)
                return None
            lost = await self._await_replacements(queued)
            if lost:
                await self.fail(queued, lost)
                return None
            if any(queued.pending_replacements()):
                return await self._requeue_or_time_out(queued)
        self._nominate_targets(queued)
        if not queued.has_successor_nominations:
            queued.has_successor_nominations = True
            self._successor_nominations.add_command(queued.command)
        await self._delete_candidates(queued)
        if queued.remaining_candidates:
            return await self._requeue_or_time_out(queued)
        self._complete(queued)
        return None

    async def _requeue_or_time_out(self, queued: QueuedCommand) -> float | None:
        if not self._has_timed_out(queued):
            return QUEUE_POLL_SECONDS
        queued.late_replacements = set(queued.pending_replacements())
        await self.fail(queued, "command reached its timeout")
        return QUEUE_POLL_SECONDS if queued.late_replacements else None

    def _has_timed_out(self, queued: QueuedCommand) -> bool:
        elapsed = _elapsed_seconds(queued)
        if elapsed <= command_timeout_seconds(len(self._command_by_candidate)):
            return False
        if self._registration_timeout is None or not any(queued.pending_replacements()):
            return True
        if queued.replacement_timeout_seconds is None:
            node_pools = {planned.node_pool for planned in queued.command.replacements}
            queued.replacement_timeout_seconds = replacement_timeout_seconds(
                self._registration_timeout, node_pools, self._context.state.claims()
            )
        return elapsed > queued.replacement_timeout_seconds

    async def _await_replacements(self, queued: QueuedCommand) -> str:
        """Check the replacements (DIS-310); why the command has failed, or an empty string.

        One that was ready and goes meanwhile counts, too: the candidates' pods would have nowhere to go.
        """
        for name in queued.replacements:
            claim = self._context.state.claim(name) or await self._get_claim(name)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                queued.lost_replacements.add(name)
                return replacement_gone_message((name,))
            if name in queued.ready_replacements:
                continue
            if conditions.is_true(claim.status.conditions, conditions.LAUNCHED):
                queued.launched_replacements.add(name)
            reason = queued.command.reason.value
            about = involved_claim(claim.metadata)
            self._context.events.publish(
                ObjectEvent(about, NORMAL, "DisruptionLaunching", f"Launching NodeClaim: {reason}", (reason,))
            )
            self._context.state.nominate(name, self._context.clock.now() + _NOMINATION_PERIOD)
            if conditions.is_true(claim.status.conditions, "Initialized"):
                queued.ready_replacements.add(name)
            else:
                text = "Waiting on readiness to continue disruption"
                self._context.events.publish(ObjectEvent(about, NORMAL, "DisruptionWaitingReadiness", text))
        return ""

    async def _await_late_replacements(self, queued: QueuedCommand) -> float | None:
        """Replacements that outlast their command are kept: the next decision moves pods there once they are initialized.

        Those that are still not initialized when the longest command would end are deleted.
        """
        now = self._context.clock.now()
        is_over = _elapsed_seconds(queued) > MAX_TIMEOUT_SECONDS
        for name in sorted(queued.late_replacements):
            claim = self._context.state.claim(name)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                queued.late_replacements.discard(name)
            elif conditions.is_true(claim.status.conditions, conditions.INITIALIZED):
                queued.late_replacements.discard(name)
                self._context.state.nominate(name, now + _LATE_NOMINATION_PERIOD)
                queued.ready_replacements.add(name)
                self._reset_backoff(queued)
            elif is_over:
                queued.late_replacements.discard(name)
                await self._delete_unused_replacement(queued, name)
            else:
                self._context.state.nominate(name, now + _NOMINATION_PERIOD)
        if queued.late_replacements:
            return QUEUE_POLL_SECONDS
        self._remove(queued)
        return None

    async def _get_claim(self, name: str) -> NodeClaim | None:
        try:
            return await self._context.kube.get(NODE_CLAIM, name)
        except NotFound:
            return None

    def _is_deleting(self, key: str) -> bool:
        """Whether a claim is on its way out for good, or gone."""
        claim = self._context.state.claim(key)
        return claim is None or claim.metadata.deletion_timestamp is not None

    def _nominate_targets(self, queued: QueuedCommand) -> None:
        """The pods come only now: nodes meant for them are not taken for empty."""
        until = self._context.clock.now() + _NOMINATION_PERIOD
        for name in (*queued.replacements, *(placed.node_key for placed in queued.command.placed_on_existing)):
            self._context.state.nominate(name, until)

    # -- the end of a command ---------------------------------------------------------------------------------------------

    async def _delete_candidates(self, queued: QueuedCommand) -> None:
        """Delete the claims of all candidates; those that cannot be deleted now are retried by the next reconcile (DIS-311)."""
        await asyncio.gather(
            *(self._delete_candidate(queued, candidate) for candidate in tuple(queued.remaining_candidates.values()))
        )

    async def _delete_candidate(self, queued: QueuedCommand, candidate: Candidate) -> None:
        claim = candidate.state_node.claim
        assert claim is not None
        if self._is_deleting(candidate.key):
            queued.remaining_candidates.pop(candidate.key, None)
            return
        async with self._slots:
            try:
                await self._limit_drain(queued.command, candidate.key)
                await self._context.kube.delete(NODE_CLAIM, candidate.key, uid=claim.metadata.uid)
            except NotFound:
                self._context.state.unmark_for_deletion(candidate.key)
                queued.remaining_candidates.pop(candidate.key, None)
                return
            except KubeError as error:
                _log.debug("deleting nodeclaim failed", NodeClaim={"name": candidate.key}, error=str(error))
                return
        queued.remaining_candidates.pop(candidate.key, None)
        self._record_disrupted(queued, candidate, claim)

    async def _limit_drain(self, command: Command, key: str) -> None:
        """Write the end of the drain where repair limits it: counted from now, not from the decision (K15-211)."""
        claim = self._context.state.claim(key)
        if command.repair is not None and command.repair.drain_bound is not None and claim is not None:
            deadline = self._context.clock.now() + command.repair.drain_bound
            await tighten_deadline(self._context.kube, claim, deadline)

    def _record_disrupted(self, queued: QueuedCommand, candidate: Candidate, claim: NodeClaim) -> None:
        """Count and publish that a node is disrupted (DIS-401, DIS-402, DIS-394)."""
        command = queued.command
        pool = self._context.state.pool(candidate.node_pool)
        is_consolidation = command.consolidation_type is not ConsolidationType.NONE
        policy = pool.spec.disruption.consolidation_policy if pool is not None and is_consolidation else ""
        nodeclaim_deletion.count_disrupted(self._context, claim, nodeclaim_deletion.snake_case(command.reason), policy)
        if command.repair is not None:
            count_repaired(self._context, claim, command.repair)
        text = f"Disrupting Node: {command.reason}"
        subjects = [involved_claim(claim.metadata)]
        if candidate.state_node.node is not None:
            subjects.append(involved_node(candidate.state_node.node.metadata))
        self._context.events.publish(
            *(ObjectEvent(about, NORMAL, "DisruptionTerminating", text, (command.reason.value,)) for about in subjects)
        )

    def _complete(self, queued: QueuedCommand) -> None:
        command = queued.command
        self._remove(queued)
        self._reset_backoff(queued)
        self._journal.end(queued.command_id, DecisionOutcome.SUCCEEDED, self._context.clock.now())
        self._reversals.record_command(command)
        _log.debug("command succeeded", **queued.log_fields())

    def _reset_backoff(self, queued: QueuedCommand) -> None:
        command = queued.command
        self._backoff.reset_nodes(command.reason, (candidate.key for candidate in command.candidates))
        self._backoff.reset_pools(queued.ready_node_pools)

    async def fail(self, queued: QueuedCommand, cause: str) -> None:
        """Fail a command: untaint its nodes, delete unused replacements, record the backoff (DIS-314)."""
        command = queued.command
        failed = sum(1 for _ in queued.pending_replacements()) or 1
        self._context.metrics.voluntary_disruption_queue_failures_total.labels(**queued.metric_labels).inc(failed)
        _log.error(_COMMAND_FAILED_MESSAGE, error=cause, **queued.log_fields())
        has_deleted_nodes = any(self._is_deleting(candidate.key) for candidate in command.candidates)
        self._backoff.record_failed_command(
            command, cause, queued.failed_replacements, has_deleted_nodes=has_deleted_nodes
        )
        self._backoff.record_unready_pools(sorted(queued.unready_node_pools), cause)
        await self._roll_back(queued, cause)

    async def _roll_back(self, queued: QueuedCommand, cause: str) -> None:
        self._journal.end(queued.command_id, DecisionOutcome.FAILED, self._context.clock.now(), cause)
        await self.release_candidates(queued, queued.remaining_candidates.values())
        unused = (name for name in queued.replacements if name not in queued.late_replacements)
        await asyncio.gather(*(self._delete_unused_replacement(queued, name) for name in unused))
        if not queued.late_replacements:
            self._remove(queued)

    def _find_freeze(self, queued: QueuedCommand) -> Freeze | None:
        """The freeze that is active on a NodePool of which a candidate is not deleted yet."""
        state = self._context.state
        pools = (state.pool(name) for name in sorted({candidate.node_pool for candidate in self._staying(queued)}))
        return first_active_freeze(
            (pool for pool in pools if pool is not None), state.freeze, self._context.clock.now()
        )

    async def _stop_frozen(self, queued: QueuedCommand, freeze: Freeze) -> None:
        """Stop a command because of a freeze. Nothing failed, so its nodes get no backoff."""
        _log.info("disruption command stopped", freeze=str(freeze), **queued.log_fields())
        await self._roll_back(queued, str(freeze))

    async def release_candidates(self, queued: QueuedCommand, candidates: Iterable[Candidate]) -> None:
        """These stay: unmark and untaint them. What cannot be written now is done by the next pass (DIS-054)."""
        staying = [candidate for candidate in candidates if not self._is_deleting(candidate.key)]
        for candidate in staying:
            self._context.state.unmark_for_deletion(candidate.key)
        await asyncio.gather(*(self.unmark_node(candidate.state_node) for candidate in staying))
        queued.remove_candidates([candidate.key for candidate in staying])
        for candidate in staying:
            self._command_by_candidate.pop(candidate.key, None)

    async def unmark_node(self, view: StateNode) -> None:
        """Remove taint and reason; a failure is only logged."""
        async with self._slots:
            try:
                await node_marking.unmark(self._context, view)
            except KubeError as error:
                _log.debug("freeing node failed", Node={"name": view.name}, error=str(error))

    async def _delete_unused_replacement(self, queued: QueuedCommand, name: str) -> None:
        """Delete a replacement unless other pods run on it or are planned for it by now (DIS §12 Beyond)."""
        claim = self._context.state.claim(name)
        if claim is None or claim.metadata.deletion_timestamp is not None or self._is_replacement_used(queued, claim):
            return
        async with self._slots:
            try:
                await self._context.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
            except KubeError as error:
                _log.debug("deleting nodeclaim failed", NodeClaim={"name": name}, error=str(error))
                return
        nodeclaim_deletion.count_disrupted(self._context, claim, "unused_replacement")

    def _is_replacement_used(self, queued: QueuedCommand, claim: NodeClaim) -> bool:
        """Whether pods run on a replacement, or pods are planned there that do not stay on the candidates."""
        state = self._context.state
        if any(pods.is_reschedulable(pod) for pod in state.pods_on(claim.status.node_name)):
            return True
        staying = (candidate for candidate in queued.command.candidates if not self._is_deleting(candidate.key))
        own = {pod.metadata.uid for candidate in staying for pod in candidate.reschedulable_pods}
        return any(key == claim.metadata.name and uid not in own for uid, key in state.planned_nodes.items())


def replacement_gone_message(names: Iterable[str]) -> str:
    """Why a command fails whose replacements are going or gone."""
    return f"replacement nodeclaim {', '.join(sorted(names))} is gone"


def _elapsed_seconds(queued: QueuedCommand) -> float:
    return asyncio.get_running_loop().time() - queued.started_at
