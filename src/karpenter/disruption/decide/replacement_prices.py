"""Whether replacements are cheaper than their candidates, and which instance types keep that true whatever is launched (DIS §8).

A replacement may be launched as any of its types, in any zone it accepts. So a type counts with its worst launch price: what a
command saves is a lower bound, not an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.move_blockers import (
    MinValuesUnmet,
    MoveBlocker,
    NotCheaper,
    SpotMinValuesUnmet,
    SpotToSpotDisabled,
    TooFewSpotTypes,
)
from karpenter.instancetypes.type_sets import TypeSet, members, type_set
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements
from karpenter.scheduling.demand import SchedulingNodeClaim, sum_of_prices
from karpenter.scheduling.planned_nodeclaims import MAX_INSTANCE_TYPES

#: Cheaper spot types a single spot node needs before another spot node replaces it, and how many of them are kept
#: (DIS-027).
MIN_SPOT_TYPES = 15
_TINY = 1e-9

SPOT = Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.SPOT,))),))
_ON_DEMAND = Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.ON_DEMAND,))),))


@dataclass(frozen=True)
class SameTypes:
    """Candidates (by key) whose replacement would be of their own type.

    ``price_per_hour``: USD of all new nodes, where those count as what the candidates cost. So a move that keeps the candidates
    and saves as much is preferred. ``same_type_keys``: all candidates whose type some new node could have.
    """

    candidate_keys: frozenset[str]
    same_type_keys: frozenset[str]
    price_per_hour: float


@dataclass(frozen=True)
class MoveRejection:
    """Why a move is not made."""

    blocker: MoveBlocker


@dataclass(frozen=True)
class CheaperReplacement:
    """New nodes that are cheaper than what they replace, with the types that are, and what they cost at their cheapest.

    ``max_price_per_hour`` is USD per hour they cost together if each is launched as its dearest type where it is dearest.
    """

    claims: tuple[SchedulingNodeClaim, ...]
    max_price_per_hour: float

    @property
    def price_per_hour(self) -> float:
        """USD of all of them, each as its cheapest type."""
        return sum_of_prices(self.claims)


def are_spot(candidates: Iterable[Candidate]) -> bool:
    """Whether all nodes are spot nodes."""
    return all(each.state_node.own_labels.get(labels.CAPACITY_TYPE) == labels.SPOT for each in candidates)


def cheaper_replacement(
    candidates: Sequence[Candidate], new_claims: Sequence[SchedulingNodeClaim], *, spot_to_spot: bool
) -> CheaperReplacement | MoveRejection:
    """The nodes with only those types that keep the move cheaper whatever is launched (DIS-179 to DIS-205).

    With several new nodes what they may cost beyond their cheapest types is shared out between them. ``spot_to_spot``: the
    gate of DIS-200.
    """
    price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
    from_spot = are_spot(candidates)
    claims: list[SchedulingNodeClaim] = []
    for claim in new_claims:
        to_spot = from_spot and bool(_types_available_as(claim, SPOT))
        if to_spot and not spot_to_spot:
            return MoveRejection(SpotToSpotDisabled())
        claims.append(_narrowed(claim, SPOT) if to_spot else claim)
    capped = _cheaper_at_worst(claims, price)
    if isinstance(capped, MoveRejection):
        return capped
    kinds = [_single_capacity_type(claim) for claim in capped.claims]
    narrowed = tuple(claim for claim in kinds if claim is not None)
    if len(narrowed) < len(kinds):
        return MoveRejection(SpotMinValuesUnmet())
    if from_spot and len(candidates) == 1 and any(_is_spot(claim) for claim in narrowed):
        return _spot_to_spot(replace(capped, claims=narrowed))
    return replace(capped, claims=narrowed)


def _cheaper_at_worst(claims: Sequence[SchedulingNodeClaim], price: float) -> CheaperReplacement | MoveRejection:
    """Only types whose worst launch price keeps the total below the price (DIS-181)."""
    worst = [claim.worst_launch_prices for claim in claims]
    least = [min(prices.values(), default=float("inf")) for prices in worst]
    if not sum(least) < price - _TINY:
        return MoveRejection(NotCheaper(price, sum(least)))
    spare = price - sum(least)
    kept: list[SchedulingNodeClaim] = []
    total = 0.0
    for claim, prices, own in zip(claims, worst, least, strict=True):
        share = spare * (own / sum(least)) if sum(least) > 0 else spare / len(claims)
        types = type_set(at for at, amount in prices.items() if amount < own + share - _TINY or amount == own)
        index = claim.template.index
        shortages = index.min_values_shortages(claim.requirements, types)
        if shortages:
            return MoveRejection(MinValuesUnmet(tuple(sorted(shortages))))
        cheapest = type_set(index.cheapest(claim.requirements, types, MAX_INSTANCE_TYPES))
        kept.append(replace(claim, types=cheapest))
        total += max(prices[at] for at in members(cheapest))
    return CheaperReplacement(tuple(kept), total)


def _spot_to_spot(replacement: CheaperReplacement) -> CheaperReplacement | MoveRejection:
    """One spot node for another: enough types are cheaper, and only the cheapest are kept (DIS-203, DIS-204)."""
    kept: list[SchedulingNodeClaim] = []
    for claim in replacement.claims:
        number = claim.types.bit_count()
        if number < MIN_SPOT_TYPES:
            return MoveRejection(TooFewSpotTypes(MIN_SPOT_TYPES, number))
        cheapest = claim.template.index.cheapest(claim.requirements, claim.types, MIN_SPOT_TYPES)
        kept.append(replace(claim, types=type_set(cheapest)))
    return replace(replacement, claims=tuple(kept))


def _single_capacity_type(claim: SchedulingNodeClaim) -> SchedulingNodeClaim | None:
    """Spot only where it may be spot, so that without spot capacity the launch fails, and no more expensive node comes (DIS-182).

    None where that leaves too few types for minValues.
    """
    if not (_types_available_as(claim, SPOT) and _types_available_as(claim, _ON_DEMAND)):
        return claim
    narrowed = _narrowed(claim, SPOT)
    return narrowed if narrowed.template.index.satisfies_min_values(narrowed.requirements, narrowed.types) else None


def _is_spot(claim: SchedulingNodeClaim) -> bool:
    return claim.requirements.requirement_for(labels.CAPACITY_TYPE).values == frozenset((labels.SPOT,))


def _narrowed(claim: SchedulingNodeClaim, to: Requirements) -> SchedulingNodeClaim:
    requirements = claim.requirements.intersect(to)
    return replace(
        claim, requirements=requirements, types=claim.types & claim.template.index.with_available_offering(requirements)
    )


def _types_available_as(claim: SchedulingNodeClaim, kind: Requirements) -> TypeSet:
    """The claim's types that are available under these requirements."""
    if not claim.requirements.requirement_for(labels.CAPACITY_TYPE).has_intersection(
        kind.requirement_for(labels.CAPACITY_TYPE)
    ):
        return 0
    return claim.types & claim.template.index.with_available_offering(claim.requirements.intersect(kind))


# -- the same type once more ---------------------------------------------------------------------------------------------


def without_same_types(
    candidates: Sequence[Candidate], replacement: CheaperReplacement
) -> CheaperReplacement | SameTypes:
    """The replacement without types that candidates have already, unless they are cheaper now (DIS-210 to DIS-213).

    A new node may only be one that is cheaper than the cheapest of the candidates it could be like. Where that leaves
    nothing, one such candidate per new node is named (by key), the dearest to disrupt first: to keep those costs the same
    and moves less.
    """
    kept: list[SchedulingNodeClaim] = []
    again: set[str] = set()
    same_type_keys: set[str] = set()
    price = 0.0
    for claim in replacement.claims:
        cheapest_price = claim.price_per_hour
        types = _types_cheaper_than_candidates(candidates, claim)
        if types and claim.template.index.satisfies_min_values(claim.requirements, types):
            kept.append(replace(claim, types=types))
            price += cheapest_price
            continue
        same_type = [c for c in candidates if _own_types(claim, c)]
        same_type_keys |= {candidate.key for candidate in same_type}
        nearest = min(
            (candidate for candidate in same_type if candidate.key not in again),
            key=lambda c: (c.price_per_hour or 0.0, -c.disruption_cost, c.state_node.name),
            default=None,
        )
        if nearest is not None:
            again.add(nearest.key)
        price += max(cheapest_price, (nearest.price_per_hour if nearest is not None else None) or 0.0)
    if again:
        return SameTypes(frozenset(again), frozenset(same_type_keys), price)
    return replace(replacement, claims=tuple(kept))


def _types_cheaper_than_candidates(candidates: Sequence[Candidate], claim: SchedulingNodeClaim) -> TypeSet:
    """Those of the claim's types that are cheaper than the cheapest of the candidates' own types.

    A type of unknown price is left out by itself (Beyond of DIS-213).
    """
    worst = claim.worst_launch_prices
    own = {at: candidate.price_per_hour for candidate in candidates for at in members(_own_types(claim, candidate))}
    limit = min((price for price in own.values() if price is not None), default=float("inf"))
    unknown = {at for at, price in own.items() if price is None}
    return type_set(at for at, price in worst.items() if price < limit - _TINY and at not in unknown)


def _own_types(claim: SchedulingNodeClaim, candidate: Candidate) -> TypeSet:
    """The candidate's type, as far as the claim could be of it: a set, because a type has one entry per allocatable group."""
    name = candidate.state_node.own_labels.get(labels.INSTANCE_TYPE, "")
    return claim.types & claim.template.index.named(name)
