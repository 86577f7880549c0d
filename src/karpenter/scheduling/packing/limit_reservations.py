"""What claims reserve of NodePool limits: few types while a plan is packed, as many as limits still allow once it is.

A limit has to hold whichever of its types a claim becomes, so a claim reserves its largest type (SCH-384). A claim that keeps
large types therefore takes room from pods that would fit. So a claim keeps the types that are no larger than the one it reserves
for, and `widened_claims` gives types back, cheapest first, when no other claim needs the room. Claims of pools without limits
keep all types.

Which type a claim reserves for is a policy: the cheapest is the best price, the smallest leaves the most room, the largest is
what Karpenter does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from karpenter.instancetypes.type_sets import TypeSet, members, type_set
from karpenter.model import resources as res
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.offerings.remaining_capacity import max_capacity

#: So many of its cheapest types a claim of a limited pool is given back; the second step begins when the first served all claims.
WIDENING_STEPS = (15, 60)


class ReservationPolicy(StrEnum):
    """Which of its types a claim reserves limits for."""

    CHEAPEST = "cheapest"
    SMALLEST = "smallest"
    LARGEST = "largest"


def reserved_types(claim: SchedulingNodeClaim, limits: Mapping[str, int], policy: ReservationPolicy) -> TypeSet:
    """The types a claim keeps under these limits: none larger than the one it reserves for, and those minValues need."""
    index = claim.template.index
    limited = res.limited_resources(limits)
    if not limited or policy is ReservationPolicy.LARGEST:
        return claim.types
    chosen = claim.cheapest_type
    if policy is ReservationPolicy.SMALLEST:
        chosen = min(
            claim.prices.cheapest_first(claim.types), key=lambda at: limit_share(index.types[at].capacity, limits)
        )
    capacity = index.types[chosen].capacity
    kept = claim.types & index.within_limits({name: capacity.get(name, 0) for name in limited})
    if index.satisfies_min_values(claim.requirements, kept):
        return kept
    by_share = sorted(members(claim.types & ~kept), key=lambda at: limit_share(index.types[at].capacity, limits))
    for position in by_share:
        kept |= 1 << position
        if index.satisfies_min_values(claim.requirements, kept):
            break
    return kept


def limit_share(capacity: res.Resources, limits: Mapping[str, int]) -> float:
    """The largest share of what is left of any limit that one node of such a capacity takes."""
    return max(capacity.get(name, 0) / max(limits[name], 1) for name in res.limited_resources(limits))


def widened_claims(
    claims: Sequence[SchedulingNodeClaim],
    limits: Mapping[str, Mapping[str, int]],
    possible_types: Callable[[SchedulingNodeClaim], TypeSet],
    tight: Collection[str],
) -> tuple[tuple[SchedulingNodeClaim, ...], dict[str, dict[str, int]]]:
    """The claims with as many of their possible types as limits allow, and what is left of limits then.

    Pools in ``tight`` are left as they are: their pods left out are reported with the exact amount that is missing.
    """
    left = {pool: dict(amounts) for pool, amounts in limits.items()}
    widened: dict[int, SchedulingNodeClaim] = {}
    numbers: dict[int, int] = {}
    for claim in claims:
        if claim.template.name in left and claim.template.name not in tight:
            widened.setdefault(id(claim), claim)
            numbers[id(claim)] = numbers.get(id(claim), 0) + 1
    for most in WIDENING_STEPS:
        for key, claim in widened.items():
            types = _widened_types(claim, possible_types(claim), left[claim.template.name], numbers[key], most)
            widened[key] = replace(claim, types=types)
    return tuple(widened.get(id(claim), claim) for claim in claims), left


def _widened_types(
    claim: SchedulingNodeClaim, possible: TypeSet, left: dict[str, int], number: int, most: int
) -> TypeSet:
    """The types that so many equal claims may have, cheapest first; what they reserve more is taken from ``left``."""
    limited = res.limited_resources(left)
    index = claim.template.index
    if not limited:
        return possible
    reserved = {**dict.fromkeys(limited, 0), **max_capacity(claim.template, claim.types)}
    types = claim.types
    candidates = type_set(index.cheapest(claim.requirements, possible, most)) & ~types
    for position in claim.prices.cheapest_first(candidates):
        capacity = index.types[position].capacity
        more = {name: max(0, capacity.get(name, 0) - reserved[name]) * number for name in limited}
        if all(amount <= max(0, left[name]) for name, amount in more.items()):
            types |= 1 << position
            for name, amount in more.items():
                left[name] -= amount
                reserved[name] = max(reserved[name], capacity.get(name, 0))
    return types
