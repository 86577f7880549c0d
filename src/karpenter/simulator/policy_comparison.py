"""Policies side by side over several seeds: what one saves and what it costs in restarts, with confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from karpenter.simulator.simulation_report import SimulationReport

#: Two-sided 95 % quantiles of Student's t distribution for 1 to 30 degrees of freedom (any statistics table); 1.96 beyond.
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with the half width of its 95 % confidence interval; None for a single seed."""

    mean: float
    half_width: float | None

    @property
    def is_different_from_zero(self) -> bool | None:
        """Whether the interval leaves out 0; None for a single seed."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


@dataclass(frozen=True, slots=True)
class PolicyDifference:
    """A policy less the first one, over the same seeds."""

    policy: str
    usd_per_month: Estimate
    restarts_per_day: Estimate


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values, with its confidence interval."""
    if len(values) < 2:
        return Estimate(fmean(values), None)
    freedom = len(values) - 1
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))


def differences(reports: Sequence[Sequence[SimulationReport]]) -> list[PolicyDifference]:
    """Each policy against the first. Each inner sequence has one policy's reports, in the order of the same seeds."""
    first = reports[0]
    return [
        PolicyDifference(
            other[0].policy,
            estimate([b.cost_per_month - a.cost_per_month for a, b in zip(first, other, strict=True)]),
            estimate([b.restarts_per_day - a.restarts_per_day for a, b in zip(first, other, strict=True)]),
        )
        for other in reports[1:]
    ]


def recommendation(first: str, policy_differences: Sequence[PolicyDifference]) -> str:
    """The cheapest policy that the seeds tell apart from the first, in a sentence."""
    if not policy_differences:
        return ""
    best = min(policy_differences, key=lambda difference: difference.usd_per_month.mean)
    cost = best.usd_per_month
    if cost.is_different_from_zero is False:
        return f"No policy differs from {first} in cost by more than chance; {first} can stay."
    confidence = " One seed only: repeat with --seeds 5." if cost.half_width is None else ""
    if cost.mean >= 0:
        return f"{first} is the cheapest.{confidence}"
    restarts = best.restarts_per_day.mean
    price = f"{restarts:+.1f} restarts per day" if round(restarts, 1) else "as many restarts"
    return f"{best.policy} saves ${-cost.mean:,.0f} per month against {first}, with {price}.{confidence}"
