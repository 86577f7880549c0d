"""How many nodes the budgets of NodePools allow to be disrupted over the coming days, with today's number of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.remaining_budgets import pool_node_counts
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.disruption_rules import DisruptionRules, disruption_rules


@dataclass(frozen=True)
class BudgetSpan:
    """From ``begins`` to ``ends`` the budgets and freezes of a NodePool allow ``allowed`` nodes to be disrupted for a reason."""

    pool: str
    reason: DisruptionReason
    begins: datetime
    ends: datetime
    allowed: int


def budget_calendar(given: ConsoleInput, days: int) -> tuple[BudgetSpan, ...]:
    """The spans of the coming days, by NodePool, reason and time."""
    counts = pool_node_counts(given.snapshot.nodes)
    span = TimeSpan(given.now, given.now + timedelta(days=days))
    return tuple(
        pool_span
        for pool in sorted(given.snapshot.pools, key=lambda pool: pool.metadata.name)
        for rules in (disruption_rules(pool, given.snapshot.freeze),)
        for pool_span in _pool_spans(pool.metadata.name, rules, counts[pool.metadata.name].initialized, span)
    )


def _pool_spans(pool: str, rules: DisruptionRules, nodes: int, span: TimeSpan) -> Iterator[BudgetSpan]:
    edges = sorted({span.begin, *(edge for edge in rules.transitions(span) if span.begin < edge < span.end)})
    for reason in DisruptionReason:
        yield from _reason_spans(
            pool, reason, [(at, rules.allowance(nodes, reason.value, at).nodes) for at in edges], span
        )


def _reason_spans(
    pool: str, reason: DisruptionReason, steps: Sequence[tuple[datetime, int]], span: TimeSpan
) -> Iterator[BudgetSpan]:
    """Neighbouring steps that allow the same are one span."""
    begins, allowed = steps[0]
    for at, now_allowed in steps[1:]:
        if now_allowed != allowed:
            yield BudgetSpan(pool, reason, begins, at, allowed)
            begins, allowed = at, now_allowed
    yield BudgetSpan(pool, reason, begins, span.end, allowed)
