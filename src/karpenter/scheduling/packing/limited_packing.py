"""The best packing of a few pods under limits of NodePools, by an integer program in which each limit is a row.

So is each reservation and each stock: they limit the number of nodes that are launched from them.

Packings that fill one node after another meet a limit when it is used up. Here every set of pods that may share a node is a
column, once for each type worth reserving: a claim reserves the largest type it keeps, so a cheaper type that takes more of the
limits and a more expensive one that takes less are different columns. The program serves as many pods as limits allow, of such
packings takes the one with the fewest pods below the weight they could have, and of those the cheapest.

It is tried where limits leave pods out, or make the cheapest packing impossible. The work grows with the sets of pods, so it is
done for up to `MAX_SETS` of them (eight different pods, two groups of fifteen) and `MAX_WORK` columns times pods. That takes
up to about 0.3 s, mostly for the first node of the solver's tree; five times the columns took 1.5 s. The bounds count work, not
time, so equal input has equal plans. More pods are left to the packings that `limit_reservations` describes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpenter.model import resources as res
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.offerings.remaining_capacity import RemainingLimits, max_capacity
from karpenter.scheduling.packing.exact_packing import (
    AllowedOptions,
    PackingRules,
    contents_matrix,
    has_few_sets,
    possible_claims,
)
from karpenter.scheduling.search.linear_program import FloatArray, IntegerProgram, SparseColumns, solve_integer_program

#: Up to so many sets of pods, and so many columns times pods.
MAX_SETS = 260
MAX_WORK = 2_500
#: The search tree of the integer program: small programs are solved at its root.
MAX_SEARCH_NODES = 20
#: Counts of pods are whole numbers, so a row that holds an earlier objective may be this much above it.
_HALF = 0.5


@dataclass(frozen=True)
class LimitedDemands:
    """Demands, the options of each, whatever their weight, what is left of limits, of reservations and stocks."""

    demands: Sequence[Demand]
    options: AllowedOptions
    limits: RemainingLimits
    reservation_units: Mapping[str, int]

    def allow(self, claims: Sequence[SchedulingNodeClaim]) -> bool:
        """Whether limits, reservations and stocks have enough for all of these claims, in exact amounts."""
        drawn = Counter(claim.reservation for claim in claims if claim.reservation is not None)
        return keeps_limits(claims, self.limits) and all(drawn[name] <= self.reservation_units[name] for name in drawn)


def claims_within_limits(limited: LimitedDemands, rules: PackingRules) -> list[SchedulingNodeClaim] | None:
    """Claims for as many pods as limits allow; None where the pods are too many or nothing is proven."""
    if not has_few_sets(limited.demands, MAX_SETS):
        return None
    possible = possible_claims(limited.demands, limited.options, rules)
    claims = [reserved for claim in possible for reserved in _reservations(claim, limited.limits, rules)]
    if not 0 < len(claims) * sum(len(demand.pods) for demand in limited.demands) <= MAX_WORK:
        return None
    times = _solve(claims, limited, rules)
    chosen = (
        None if times is None else [claim for claim, count in zip(claims, times, strict=True) for _ in range(count)]
    )
    return chosen if chosen is not None and limited.allow(chosen) else None


def keeps_limits(claims: Sequence[SchedulingNodeClaim], limits: RemainingLimits) -> bool:
    """Whether all claims together reserve no more than limits allow, in exact amounts."""
    left = {pool: dict(amounts) for pool, amounts in limits.items()}
    for claim in claims:
        for name, amount in _reserved(claim, limits.get(claim.template.name, {})).items():
            left[claim.template.name][name] -= amount
    return all(amount >= 0 for amounts in left.values() for amount in amounts.values())


def _reserved(claim: SchedulingNodeClaim, limits: Mapping[str, int]) -> dict[str, int]:
    """What a claim takes of the limits of its NodePool: one node, and the largest of its types."""
    most = max_capacity(claim.template, claim.types)
    return {name: res.taken_of_limit(name, most) for name in limits}


def _reservations(
    claim: SchedulingNodeClaim, limits: RemainingLimits, rules: PackingRules
) -> Iterator[SchedulingNodeClaim]:
    """The claim with the types no larger than one of them, for each that no cheaper type undercuts in all limited resources."""
    limited = res.limited_resources(limits.get(claim.template.name, ()))
    if not limited:
        yield claim
        return
    index = claim.template.index
    taken: list[dict[str, int]] = []
    for position in sorted(claim.prices.cheapest_first(claim.types), key=lambda at: _cost_as(claim, at, rules)):
        capacity = {name: index.types[position].capacity.get(name, 0) for name in limited}
        if any(all(less[name] <= capacity[name] for name in limited) for less in taken):
            continue
        types = claim.types & index.within_limits(capacity)
        if index.satisfies_min_values(claim.requirements, types):
            taken.append(capacity)
            yield replace(claim, types=types)


def _cost_as(claim: SchedulingNodeClaim, position: int, rules: PackingRules) -> float:
    """USD per hour that the claim is counted with as one of its types."""
    surplus = claim.template.cpu_surpluses.price_per_hour(position, claim.requests)
    return rules.objective.offering_cost(claim.prices.cheapest_offering[position]) + surplus


def _solve(claims: Sequence[SchedulingNodeClaim], limited: LimitedDemands, rules: PackingRules) -> list[int] | None:
    """How often each claim is taken: most pods first, then fewest below their weight, then the least cost."""
    contents = contents_matrix(claims, len(limited.demands)).astype(np.float64)
    heaviest = np.array([demand.options[0].template.weight for demand in limited.demands])
    weights = np.array([claim.template.weight for claim in claims])
    below = (contents * (weights[:, None] < heaviest[None, :])).sum(axis=1)
    costs = np.array([rules.objective.claim_cost(claim) for claim in claims])
    counts = np.array([len(demand.pods) for demand in limited.demands], dtype=np.float64)
    limit_rows = _limit_rows(claims, limited)
    program = _Program(np.hstack([contents, limit_rows]), np.concatenate([counts, np.ones(limit_rows.shape[1])]))
    times = None
    for objective in (-contents.sum(axis=1), below, costs):
        if times is None or objective.any():
            times = program.minimize(objective)
        if times is None:
            return None
        program = program.with_row(objective, float(objective @ times) + _HALF)
    return [int(count) for count in times] if times is not None else None


def _limit_rows(claims: Sequence[SchedulingNodeClaim], limited: LimitedDemands) -> FloatArray:
    """What each claim takes of each limit, reservation and stock, as a part of what is left of it."""
    limits = limited.limits
    rows = [
        [
            _reserved(claim, limits[pool]).get(name, 0) / max(left, 1) if claim.template.name == pool else 0.0
            for claim in claims
        ]
        for pool in limits
        for name, left in limits[pool].items()
    ]
    for name, left in limited.reservation_units.items():
        rows.append([1.0 / max(left, 1) if claim.reservation == name else 0.0 for claim in claims])
    return np.array(rows).reshape(len(rows), len(claims)).T


@dataclass(frozen=True, eq=False)
class _Program:
    """Columns, one for each claim, and what their sum may come to at most."""

    matrix: FloatArray
    upper: FloatArray

    def minimize(self, costs: FloatArray) -> FloatArray | None:
        """How often each column is taken at the least cost."""
        columns, lower = SparseColumns.from_dense(self.matrix), np.full(len(self.upper), -np.inf)
        solution = solve_integer_program(IntegerProgram(costs, columns, lower, self.upper), MAX_SEARCH_NODES)
        return solution.values if solution is not None and solution.is_optimal else None

    def with_row(self, values: FloatArray, most: float) -> _Program:
        """With one more row."""
        return _Program(np.hstack([self.matrix, values[:, None]]), np.append(self.upper, most))
