"""What the owner of a NodePool lets be disrupted, and when: its budgets, and the freezes over it, seen together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from karpenter.api.karpenter import NodePool
from karpenter.model import consolidation_thresholds, freezes, nodepool_budgets
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.freezes import Freeze
from karpenter.model.nodepool_budgets import DisruptionAllowance, NodePoolBudgets
from karpenter.model.structural_schema import Finding


@dataclass(frozen=True, slots=True)
class DisruptionRules:
    """A pool's budgets, and its own and the cluster's freeze, whether they are on or over."""

    budgets: NodePoolBudgets
    freezes: tuple[Freeze, ...] = ()

    def allowance(self, nodes: int, reason: str, now: datetime) -> DisruptionAllowance:
        """What may go for ``reason`` at ``now`` in a pool of ``nodes``: nothing while a freeze is on, else what budgets allow."""
        freeze = self.active_freeze(now)
        return self.budgets.allowance(nodes, reason, now) if freeze is None else DisruptionAllowance(0, freeze.source)

    def active_freeze(self, now: datetime) -> Freeze | None:
        """What freezes the pool at ``now``, None where nothing does."""
        return freezes.longest_active(self.freezes, now)

    def transitions(self, period: TimeSpan) -> frozenset[datetime]:
        """The moments within a period, its ends left out, at which any of this changes."""
        ends = (freeze.until for freeze in self.freezes if freeze.until is not None)
        return self.budgets.transitions(period) | {end for end in ends if period.begin < end < period.end}


def disruption_rules(pool: NodePool, cluster_freeze: Freeze | None) -> DisruptionRules:
    """The rules for a pool, under the freeze over the whole cluster if there is one."""
    return DisruptionRules(nodepool_budgets.nodepool_budgets(pool), freezes.freezes_over(pool, cluster_freeze))


def unparseable_settings(pool: NodePool) -> tuple[Finding, ...]:
    """Disruption settings of a pool that do not parse; each of them blocks some disruption until it is corrected."""
    freeze = freezes.nodepool_freeze(pool)
    return (
        *nodepool_budgets.nodepool_budgets(pool).findings,
        *(freeze.findings if freeze is not None else ()),
        *consolidation_thresholds.consolidation_thresholds(pool).findings,
    )


@dataclass(frozen=True, slots=True)
class TimelineSegment:
    """A stretch of time, what may go in it by reason, and the freeze that is on."""

    span: TimeSpan
    allowance_by_reason: Mapping[str, DisruptionAllowance]
    freeze: Freeze | None


def disruption_timeline(
    rules: DisruptionRules, nodes: int, period: TimeSpan, reasons: Sequence[str]
) -> tuple[TimelineSegment, ...]:
    """The stretches of a period (UTC), in order and without gaps, for a pool of ``nodes`` all along."""
    return tuple(_merged_segments(_segments(rules, nodes, period, reasons)))


def _segments(
    rules: DisruptionRules, nodes: int, period: TimeSpan, reasons: Sequence[str]
) -> Iterator[TimelineSegment]:
    moments = sorted({period.begin, period.end, *rules.transitions(period)})
    for begin, end in pairwise(moments):
        allowances = {reason: rules.allowance(nodes, reason, begin) for reason in reasons}
        yield TimelineSegment(TimeSpan(begin, end), allowances, rules.active_freeze(begin))


def _merged_segments(stretches: Iterator[TimelineSegment]) -> Iterator[TimelineSegment]:
    """A budget that comes or goes under a stricter one changes nothing."""
    last: TimelineSegment | None = None
    for stretch in stretches:
        rules = (stretch.allowance_by_reason, stretch.freeze)
        if last is not None and (last.allowance_by_reason, last.freeze) == rules:
            last = replace(last, span=TimeSpan(last.span.begin, stretch.span.end))
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last
