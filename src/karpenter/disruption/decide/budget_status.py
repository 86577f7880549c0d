"""What a NodePool's budgets and freezes allow now for a reason, and when they allow more: for previews and explanations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.remaining_budgets import PoolNodeCounts
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.disruption_rules import DisruptionRules

#: How far ahead the next opening of a budget is searched.
BUDGET_HORIZON = timedelta(days=31)


@dataclass(frozen=True)
class BudgetStatus:
    """What a NodePool's budgets and freezes allow for a reason.

    ``allowed`` nodes at a time, of which ``remaining`` are free now (DIS-147). ``limited_by``: the field that sets the limit,
    empty without a limit. ``freeze``: the active freeze as text. ``opens_at``: the first moment at which at least one more node
    may be disrupted, provided that no other node comes or goes meanwhile; None if that is not within ``BUDGET_HORIZON``.
    """

    node_pool: str
    reason: DisruptionReason
    allowed: int
    remaining: int
    limited_by: str
    freeze: str
    opens_at: datetime | None


def budget_status(
    pool: NodePool, pool_rules: DisruptionRules, node_counts: PoolNodeCounts, reason: DisruptionReason, now: datetime
) -> BudgetStatus:
    """What the rules of a NodePool allow for a reason, and when they allow one more node."""
    allowance = pool_rules.allowance(node_counts.initialized, reason.value, now)
    remaining = max(0, allowance.nodes - node_counts.consuming(reason))
    freeze = pool_rules.active_freeze(now)
    return BudgetStatus(
        pool.metadata.name,
        reason,
        allowance.nodes,
        remaining,
        allowance.limiting_path,
        freeze=str(freeze) if freeze is not None else "",
        opens_at=now if remaining else _next_opening(pool_rules, node_counts, reason, now),
    )


def _next_opening(
    rules: DisruptionRules, nodes: PoolNodeCounts, reason: DisruptionReason, now: datetime
) -> datetime | None:
    edges = sorted(rules.transitions(TimeSpan(now, now + BUDGET_HORIZON)))
    return next(
        (
            edge
            for edge in edges
            if rules.allowance(nodes.initialized, reason.value, edge).nodes > nodes.consuming(reason)
        ),
        None,
    )
