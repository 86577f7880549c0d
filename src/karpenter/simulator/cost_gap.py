"""Where the cost above the lower bound went. The parts do not overlap and add up to the gap exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from karpenter.simulator.gap_probe import WithheldCost
from karpenter.simulator.idle_cost import IdleCost

_CENTS = 2


@dataclass(frozen=True, slots=True)
class CostGap:
    """USD above the lower bound.

    ``starting``: nodes before their first pod; ``empty``: nodes without pods after it; ``budgets`` and ``thresholds``: savings
    that consolidation would have made but for budgets and freezes, and but for what makes it wait or ask for a least saving;
    ``spot_risk``: cheaper spot offerings that were passed over; ``fragmentation``: all else, which is room on nodes that no move
    frees, and nodes dearer than the fractional ones of the bound.
    """

    starting: Fraction
    empty: Fraction
    budgets: Fraction
    thresholds: Fraction
    spot_risk: Fraction
    fragmentation: Fraction

    @property
    def total(self) -> Fraction:
        """All of the gap."""
        return sum((part.of(self) for part in GAP_PARTS), Fraction(0))


@dataclass(frozen=True, slots=True)
class GapPart:
    """A part of the gap: its member in JSON, and how a page names it."""

    member: str
    text: str
    of: Callable[[CostGap], Fraction]


GAP_PARTS = (
    GapPart("starting", "nodes that start", lambda gap: gap.starting),
    GapPart("empty", "empty nodes", lambda gap: gap.empty),
    GapPart("budgets", "held by budgets", lambda gap: gap.budgets),
    GapPart("thresholds", "held by consolidation thresholds", lambda gap: gap.thresholds),
    GapPart("spotRisk", "cheaper spot passed over", lambda gap: gap.spot_risk),
    GapPart("fragmentation", "fragmentation", lambda gap: gap.fragmentation),
)


def cost_gap(gap_usd: Fraction, idle: IdleCost, withheld: WithheldCost) -> CostGap:
    """Divide a gap."""
    known = (idle.starting_usd, idle.empty_usd, withheld.budgets_usd, withheld.thresholds_usd, withheld.spot_risk_usd)
    return CostGap(*known, gap_usd - sum(known, Fraction(0)))


def gap_document(gap: CostGap, cost_usd: float, bound_usd: float) -> dict[str, float]:
    """The parts in cents, for JSON. Rounding goes to the last part, so that they add up to the difference of both figures."""
    parts = {part.member: round(float(part.of(gap)), _CENTS) for part in GAP_PARTS[:-1]}
    rest = round(cost_usd, _CENTS) - round(bound_usd, _CENTS) - sum(parts.values())
    return parts | {GAP_PARTS[-1].member: round(rest, _CENTS)}
