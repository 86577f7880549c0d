"""Why one node is not disrupted, with all its blockers, or which command disrupts it (DIS §4, its Beyond).

A decision stops at the first blocker of a node. A user who wants the node removed needs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.budget_status import budget_status
from karpenter.disruption.decide.candidates import (
    CandidateChecks,
    consolidate_after_end,
    consolidation_enabled,
    is_consolidatable,
    is_drifted,
)
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.consolidation_delays import node_age_blocker
from karpenter.disruption.decide.disruption_blockers import (
    BudgetExhausted,
    ConsolidateAfterNotOver,
    DisruptionBlocker,
    NodePoolFrozen,
    NodeUnmanaged,
    WithinStabilizationWindow,
)
from karpenter.disruption.decide.disruption_preview import DisruptionPreview
from karpenter.disruption.decide.move_blockers import SavingBelowThreshold
from karpenter.disruption.decide.remaining_budgets import pool_node_counts
from karpenter.disruption.decide.stabilization_window import StabilizationWindow
from karpenter.disruption.decide.workload_rollouts import WorkloadRollouts
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import consolidation_thresholds
from karpenter.model.disruption_rules import disruption_rules
from karpenter.scheduling.daemonset_fit import DaemonSetShortfall, daemonset_shortfalls
from karpenter.state.state_node import StateNode

_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED
_ALL_REASONS = (_EMPTY, _DRIFTED, _UNDERUTILIZED)


@dataclass(frozen=True)
class ExplainedBlocker:
    """One blocker of a node, and the disruption reasons it rules out."""

    blocker: DisruptionBlocker
    blocked_reasons: tuple[DisruptionReason, ...]


@dataclass(frozen=True)
class NodeExplanation:
    """Everything there is to say about whether a node may be disrupted.

    ``price_per_hour``: USD, None if unknown. ``reasons``: those for which it would be disrupted. ``command``: what disrupts it
    now, within budgets. ``command_without_budgets``: what would without budgets, if nothing disrupts it now. ``expected_pods``:
    how many pods of disrupted nodes are planned on it. ``daemonset_shortfalls``: DaemonSets whose pods do not fit on it.
    """

    state_node: StateNode
    price_per_hour: float | None
    reasons: tuple[DisruptionReason, ...]
    blockers: tuple[ExplainedBlocker, ...] = ()
    command: Command | None = None
    command_without_budgets: Command | None = None
    expected_pods: int = 0
    daemonset_shortfalls: tuple[DaemonSetShortfall, ...] = ()
    is_assumed_consolidatable: bool = False


def explain_node(
    state_node: StateNode, preview: DisruptionPreview, indexes: Mapping[str, TypeIndex]
) -> NodeExplanation:
    """The blockers of this node, or the command that disrupts it. ``state_node`` is part of the preview's snapshot."""
    return _NodeExplainer(state_node, preview, indexes).explanation()


class _NodeExplainer:
    """Collects the facts about one node."""

    def __init__(self, state_node: StateNode, preview: DisruptionPreview, indexes: Mapping[str, TypeIndex]) -> None:
        self._state_node = state_node
        self._preview = preview
        self._indexes = indexes
        self._now = preview.now
        self._defaults = preview.options.consolidation
        self._checks = CandidateChecks(preview.snapshot, indexes, preview.context)
        self._pool = next((pool for pool in preview.snapshot.pools if pool.metadata.name == state_node.pool), None)
        self._candidate = self._checks.as_candidate(state_node)
        self._reasons = tuple(self._eligible_reasons())

    def _eligible_reasons(self) -> Iterator[DisruptionReason]:
        yield _EMPTY if self._state_node.is_empty else _UNDERUTILIZED
        if is_drifted(self._state_node):
            yield _DRIFTED

    def explanation(self) -> NodeExplanation:
        """The answer."""
        move, free = (
            self._command_with_node(self._preview.within_budgets.commands),
            self._command_with_node(self._preview.without_budgets.commands),
        )
        blockers = self._blockers()
        return NodeExplanation(
            self._state_node,
            self._candidate.price_per_hour,
            self._reasons,
            () if move is not None else tuple(blockers),
            move,
            free if move is None else None,
            self._expected_pods(),
            tuple(daemonset_shortfalls(self._preview.snapshot.daemonset_pods, self._state_node)),
            self._state_node.key in self._preview.assumed_consolidatable,
        )

    def _command_with_node(self, commands: tuple[Command, ...]) -> Command | None:
        key = self._state_node.key
        return next((command for command in commands if key in {c.key for c in command.candidates}), None)

    def _expected_pods(self) -> int:
        placed = (
            placed_pods
            for command in self._preview.without_budgets.commands
            for placed_pods in command.placed_on_existing
        )
        return sum(len(placed_pods.pods) for placed_pods in placed if placed_pods.node_key == self._state_node.key)

    def _blockers(self) -> Iterator[ExplainedBlocker]:
        """Each blocker once, in the order of DIS §4, unless it rules out only reasons this node has not; then rejected moves."""
        reported: set[tuple[str, ...]] = set()
        for explained_blocker in self._all_blockers():
            if explained_blocker.blocker.identity not in reported and set(explained_blocker.blocked_reasons) & set(
                self._reasons
            ):
                reported.add(explained_blocker.blocker.identity)
                yield explained_blocker
        for blocked in (*self._preview.without_budgets.blocked_nodes, *self._preview.within_budgets.blocked_nodes):
            if blocked.state_node.key == self._state_node.key and blocked.blocker.identity not in reported:
                reported.add(blocked.blocker.identity)
                yield ExplainedBlocker(blocked.blocker, self._reasons)

    def _all_blockers(self) -> Iterator[ExplainedBlocker]:
        if self._state_node.claim is None:
            yield ExplainedBlocker(NodeUnmanaged(), _ALL_REASONS)
            return
        for blocker in self._checks.node_blockers(self._state_node):
            yield ExplainedBlocker(blocker, _ALL_REASONS)
        yield from self._pod_blockers(self._state_node.claim)
        if self._pool is None:
            return
        yield from self._node_pool_blockers()
        yield from self._delay_blockers(self._pool)
        yield from self._budget_blockers(self._pool)

    def _pod_blockers(self, claim: NodeClaim) -> Iterator[ExplainedBlocker]:
        """Pods that must not be evicted; drift ignores them if the NodeClaim limits how long a drain takes (DIS-082)."""
        is_waived = claim.spec.termination_grace_period is not None
        blocked_reasons = (_EMPTY, _UNDERUTILIZED) if is_waived else _ALL_REASONS
        for blocker in self._checks.pod_blockers(self._state_node):
            yield ExplainedBlocker(blocker, blocked_reasons)

    def _node_pool_blockers(self) -> Iterator[ExplainedBlocker]:
        """What rules out consolidation or emptiness permanently."""
        if self._state_node.pool not in self._indexes:
            return  # reported by the node's own blockers
        for blocker in self._checks.consolidation_blockers(self._candidate):
            yield ExplainedBlocker(blocker, (_UNDERUTILIZED,))
        empty_blocker = self._checks.emptiness_blocker(self._candidate)
        if empty_blocker is not None:
            yield ExplainedBlocker(empty_blocker, (_EMPTY,))

    def _delay_blockers(self, pool: NodePool) -> Iterator[ExplainedBlocker]:
        if not consolidation_enabled(pool):
            return
        if not is_consolidatable(self._state_node) and self._state_node.initialized:
            until = consolidate_after_end(self._state_node, pool)
            period = str(pool.spec.disruption.consolidate_after)
            yield ExplainedBlocker(ConsolidateAfterNotOver(period, until=until), (_EMPTY, _UNDERUTILIZED))
        elif waiting := self._stabilization_blocker():
            yield ExplainedBlocker(waiting, (_UNDERUTILIZED,))
        thresholds = consolidation_thresholds.consolidation_thresholds(pool, self._defaults)
        too_young = node_age_blocker(self._candidate, thresholds, self._now)
        if too_young is not None:
            yield ExplainedBlocker(too_young, (_UNDERUTILIZED,))
        if self._defaults.wait_for_rollouts:
            for rollout in WorkloadRollouts(self._preview.snapshot, self._now).blockers(self._candidate):
                yield ExplainedBlocker(rollout, (_UNDERUTILIZED,))
        yield from self._saving_blocker(pool)

    def _stabilization_blocker(self) -> WithinStabilizationWindow | None:
        window = StabilizationWindow(self._preview.snapshot, self._now, self._defaults.stabilization_window)
        return window.blocker(self._state_node)

    def _saving_blocker(self, pool: NodePool) -> Iterator[ExplainedBlocker]:
        """DIS-257, in figures: the node's score if nothing had to be launched for its pods."""
        scoring = MoveScoring(self._preview.snapshot, self._checks.prices, self._defaults)
        if self._candidate.price_per_hour is not None and not scoring.could_be_approved(self._candidate):
            best = scoring.scores((self._candidate,), 0.0)[0].score
            minimum = consolidation_thresholds.consolidation_thresholds(pool, self._defaults).minimum_saving_ratio
            yield ExplainedBlocker(SavingBelowThreshold(best, minimum), (_UNDERUTILIZED,))

    def _budget_blockers(self, pool: NodePool) -> Iterator[ExplainedBlocker]:
        nodes = pool_node_counts(self._preview.snapshot.nodes)[pool.metadata.name]
        rules = disruption_rules(pool, self._preview.snapshot.freeze)
        for reason in self._reasons:
            status = budget_status(pool, rules, nodes, reason, self._now)
            if status.freeze:
                frozen = NodePoolFrozen(status.node_pool, status.freeze, until=status.opens_at)
                yield ExplainedBlocker(frozen, self._reasons)
            elif not status.remaining:
                yield ExplainedBlocker(BudgetExhausted(status, until=status.opens_at), (reason,))
