"""Why a machine stays, all of it at once, or what is to become of it: the answer for one machine (DIS §4, its Beyond).

A pass stops at the first thing that forbids a machine, since one is enough. Whoever wants the machine gone has to know them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.candidates import (
    CandidateChecks,
    consolidate_after_end,
    consolidation_enabled,
    is_consolidatable,
    is_drifted,
)
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.consolidation_delays import WorkloadRollouts, node_age_blocker
from karpenter.disruption.decide.costs import disruption_cost
from karpenter.disruption.decide.disruption_preview import (
    DisruptionPreview,
    budget_message,
    budget_status,
)
from karpenter.disruption.decide.remaining_budgets import pool_node_counts
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import consolidation_thresholds, pod_disruption, pods
from karpenter.model.disruption_rules import disruption_rules
from karpenter.scheduling.daemonset_fit import DaemonSetShortfall, daemonset_shortfalls
from karpenter.state.state_node import StateNode

_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


class BlockerKind(StrEnum):
    """What kind of thing keeps a machine."""

    NODE = "machine"
    POD = "pod"
    NODE_POOL = "pool"
    CONSOLIDATE_AFTER = "quiet-time"
    NODE_AGE = "node-age"
    ROLLOUT = "roll-out"
    SAVING = "saving"
    MOVE = "move"
    BUDGET = "budget"
    FREEZE = "freeze"


@dataclass(frozen=True)
class DisruptionBlocker:
    """One thing that keeps a machine, and the reasons for going it forbids. ``until``: when it ends by itself, where known."""

    kind: BlockerKind
    message: str
    blocked_reasons: tuple[DisruptionReason, ...]
    until: datetime | None = None


@dataclass(frozen=True)
class NodeExplanation:
    """All there is to say about whether a machine may go.

    ``price_per_hour``: USD, None where not known. ``reasons``: those for which it would go. ``move``: what takes it now, within
    budgets; ``waiting``: what would if there were no budgets, where nothing takes it now. ``expects``: pods of machines that go
    are meant for it. ``misfits``: DaemonSets whose pods have no room on it.
    """

    state_node: StateNode
    price_per_hour: float | None
    reasons: tuple[DisruptionReason, ...]
    blockers: tuple[DisruptionBlocker, ...] = ()
    command: Command | None = None
    command_without_budgets: Command | None = None
    expected_pods: int = 0
    daemonset_shortfalls: tuple[DaemonSetShortfall, ...] = ()
    is_assumed_consolidatable: bool = False


def explain_node(
    state_node: StateNode, preview: DisruptionPreview, indexes: Mapping[str, TypeIndex]
) -> NodeExplanation:
    """What keeps this machine, or what is to become of it. ``view`` is one of the outlook's snapshot."""
    return _NodeExplainer(state_node, preview, indexes).explanation()


class _NodeExplainer:
    """Everything that is asked about one machine."""

    def __init__(self, state_node: StateNode, preview: DisruptionPreview, indexes: Mapping[str, TypeIndex]) -> None:
        self._state_node = state_node
        self._preview = preview
        self._indexes = indexes
        self._now = preview.now
        self._checks = CandidateChecks(preview.snapshot, indexes, preview.context)
        self._pool = next((pool for pool in preview.snapshot.pools if pool.metadata.name == state_node.pool), None)
        moving = tuple(pod for pod in state_node.pods if pods.needs_rescheduling(pod))
        self._candidate = Candidate(
            state_node, state_node.pool, moving, self._checks.prices.price_per_hour(state_node), disruption_cost(moving)
        )
        self._reasons = tuple(self._eligible_reasons())

    def _eligible_reasons(self) -> Iterator[DisruptionReason]:
        yield _UNDERUTILIZED if self._candidate.reschedulable_pods else _EMPTY
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
        placed = (item for command in self._preview.without_budgets.commands for item in command.placed_on_existing)
        return sum(len(item.pods) for item in placed if item.node_key == self._state_node.key)

    def _blockers(self) -> Iterator[DisruptionBlocker]:
        """Each text once, in the order of DIS §4; those that concern no reason of this machine are left out."""
        told: set[str] = set()
        for item in self._all_blockers():
            if item.message not in told and set(item.blocked_reasons) & set(self._reasons):
                told.add(item.message)
                yield item
        for blocked in (*self._preview.without_budgets.blocked_nodes, *self._preview.within_budgets.blocked_nodes):
            if blocked.state_node.key == self._state_node.key and blocked.message not in told:
                told.add(blocked.message)
                yield DisruptionBlocker(BlockerKind.MOVE, blocked.message, self._reasons)

    def _all_blockers(self) -> Iterator[DisruptionBlocker]:
        if self._state_node.claim is None:
            yield DisruptionBlocker(
                BlockerKind.NODE, "Node has no NodeClaim: it is not managed", tuple(DisruptionReason)
            )
            return
        for text in self._checks.node_blockers(self._state_node):
            yield DisruptionBlocker(BlockerKind.NODE, text, tuple(DisruptionReason))
        yield from self._pod_blockers()
        if self._pool is None:
            return
        yield from self._node_pool_blockers()
        yield from self._delay_blockers(self._pool)
        yield from self._budget_blockers(self._pool)

    def _pod_blockers(self) -> Iterator[DisruptionBlocker]:
        """Pods that object; drift waits for none of them where the claim says how long a drain may take (DIS-082)."""
        claim = self._state_node.claim
        is_waived = claim is not None and claim.spec.termination_grace_period is not None
        forbids = (_EMPTY, _UNDERUTILIZED) if is_waived else tuple(DisruptionReason)
        for pod, text in self._checks.pod_blockers(self._state_node):
            protection = pod_disruption.disruption_protection(pod, self._now)
            until = protection.until if protection is not None and protection.active else None
            yield DisruptionBlocker(BlockerKind.POD, text, forbids, until)

    def _node_pool_blockers(self) -> Iterator[DisruptionBlocker]:
        """What the pool rules out for good."""
        if self._state_node.pool not in self._indexes:
            return  # the machine's own obstacles say so
        for text in self._checks.consolidation_blockers(self._candidate):
            yield DisruptionBlocker(BlockerKind.NODE_POOL, text, (_UNDERUTILIZED,))
        blocked = self._checks.emptiness_blocker(self._candidate)
        if blocked is not None:
            yield DisruptionBlocker(BlockerKind.NODE_POOL, blocked.message, (_EMPTY,))

    def _delay_blockers(self, pool: NodePool) -> Iterator[DisruptionBlocker]:
        if not consolidation_enabled(pool):
            return
        if not is_consolidatable(self._state_node) and self._state_node.initialized:
            until = consolidate_after_end(self._state_node, pool)
            text = (
                f"consolidateAfter {pool.spec.disruption.consolidate_after} since the last pod came or went is not over"
            )
            yield DisruptionBlocker(BlockerKind.CONSOLIDATE_AFTER, text, (_EMPTY, _UNDERUTILIZED), until)
        if young := node_age_blocker(self._candidate, pool, self._now):
            yield DisruptionBlocker(BlockerKind.NODE_AGE, young, (_UNDERUTILIZED,), self._minimum_age_reached_at(pool))
        for text in WorkloadRollouts(self._preview.snapshot).blockers(self._candidate):
            yield DisruptionBlocker(BlockerKind.ROLLOUT, text, (_UNDERUTILIZED,))
        yield from self._saving_blocker(pool)

    def _minimum_age_reached_at(self, pool: NodePool) -> datetime | None:
        created = self._state_node.claim.metadata.creation_timestamp if self._state_node.claim is not None else None
        try:
            return (
                created + consolidation_thresholds.consolidation_thresholds(pool).minimum_node_age
                if created is not None
                else None
            )
        except OverflowError:
            return None  # a setting nobody can read holds for ever

    def _saving_blocker(self, pool: NodePool) -> Iterator[DisruptionBlocker]:
        """DIS-257, in figures: what the machine would score if it went for nothing."""
        scales = MoveScoring(self._preview.snapshot, self._checks.prices)
        if self._candidate.price_per_hour is not None and not scales.could_be_approved(self._candidate):
            best = scales.scores((self._candidate,), 0.0)[0].score
            least = consolidation_thresholds.consolidation_thresholds(pool).minimum_saving_ratio
            text = f"Saving is worth at most {best:.2f} of what it disrupts, the NodePool asks for {least:g}"
            yield DisruptionBlocker(BlockerKind.SAVING, text, (_UNDERUTILIZED,))

    def _budget_blockers(self, pool: NodePool) -> Iterator[DisruptionBlocker]:
        nodes = pool_node_counts(self._preview.snapshot.nodes)[pool.metadata.name]
        rules = disruption_rules(pool, self._preview.snapshot.freeze)
        for reason in self._reasons:
            found = budget_status(pool, rules, nodes, reason, self._now)
            if found.freeze:
                yield DisruptionBlocker(
                    BlockerKind.FREEZE, f'NodePool "{found.node_pool}" is {found.freeze}', self._reasons, found.opens_at
                )
            elif not found.remaining:
                yield DisruptionBlocker(BlockerKind.BUDGET, budget_message(found), (reason,), found.opens_at)
