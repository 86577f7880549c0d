"""Whether replacements are cheaper than what they replace, and which of their types keep it so whatever is launched (DIS §8).

A replacement may be launched as any of its types, in any zone it accepts. So a type counts with what it may cost at worst, and what
a move saves is promised, not hoped for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpenter.catalog.index import TypeIndex, TypeSet, members, set_of
from karpenter.decide.disrupt.command import Candidate
from karpenter.decide.disrupt.costs import labels_of
from karpenter.decide.provision.packing import Claim
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements

#: Cheaper spot types a single spot machine needs before another spot machine replaces it, and how many of them are kept (DIS-027).
SPOT_TYPES = 15
#: Types kept of any replacement (DIS-028).
KEPT_TYPES = 600
_TINY = 1e-9

_SPOT = Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.SPOT,))),))
_ON_DEMAND = Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.ON_DEMAND,))),))


@dataclass(frozen=True)
class Refusal:
    """Why new machines may not take the place of others."""

    why: str


@dataclass(frozen=True)
class Bargain:
    """New machines that are cheaper than what they replace, with the types that are, and what they cost at their cheapest.

    ``at_most`` is USD per hour they cost together if each is launched as its dearest type where it is dearest.
    """

    claims: tuple[Claim, ...]
    at_most: float

    @property
    def price_per_hour(self) -> float:
        """USD of all of them, each at its cheapest offering."""
        return sum(claim.price for claim in self.claims)


def bargain(
    candidates: Sequence[Candidate], bought: Sequence[Claim], *, saving: float, spot_to_spot: bool
) -> Bargain | Refusal:
    """The machines with only those types that keep the move cheaper by ``saving`` USD per hour at least (DIS-179 to DIS-205).

    With several new machines what they may cost beyond their cheapest types is shared out between them. ``spot_to_spot``: the
    gate of DIS-200.
    """
    price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
    from_spot = all(labels_of(c.view).get(labels.CAPACITY_TYPE) == labels.SPOT for c in candidates)
    claims: list[Claim] = []
    for claim in bought:
        to_spot = from_spot and bool(_sold(claim, _SPOT))
        if to_spot and not spot_to_spot:
            return Refusal("SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node")
        claims.append(_narrowed(claim, _SPOT) if to_spot else claim)
    capped = _capped(claims, price - saving)
    if isinstance(capped, Refusal):
        return capped
    narrowed = tuple(_one_kind(claim) for claim in capped.claims)
    if from_spot and len(candidates) == 1 and any(_is_spot(claim) for claim in narrowed):
        return _flexible(replace(capped, claims=narrowed))
    return replace(capped, claims=narrowed)


def _capped(claims: Sequence[Claim], price: float) -> Bargain | Refusal:
    """Only types whose worst launch price keeps the whole below the price (DIS-181)."""
    worst = [_dearest(claim) for claim in claims]
    least = [min(found.values(), default=float("inf")) for found in worst]
    if not sum(least) < price - _TINY:
        return Refusal("Can't replace with a cheaper node")
    spare = price - sum(least)
    kept: list[Claim] = []
    total = 0.0
    for claim, found, own in zip(claims, worst, least, strict=True):
        share = spare * (own / sum(least)) if sum(least) > 0 else spare / len(claims)
        types = set_of(at for at, amount in found.items() if amount < own + share - _TINY or amount == own)
        index = claim.template.index
        shortages = index.shortages(claim.requirements, types)
        if shortages:
            keys = ", ".join(sorted(shortages))
            return Refusal(f"Can't replace with a cheaper node, minValues requirement is not met (label(s) {keys})")
        cheapest = set_of(index.cheapest(claim.requirements, types, KEPT_TYPES))
        kept.append(replace(claim, types=cheapest))
        total += max(found[at] for at in members(cheapest))
    return Bargain(tuple(kept), total)


def _flexible(found: Bargain) -> Bargain | Refusal:
    """One spot machine for another: enough types are cheaper, and only the cheapest are kept (DIS-203, DIS-204)."""
    kept: list[Claim] = []
    for claim in found.claims:
        number = claim.types.bit_count()
        if number < SPOT_TYPES:
            return Refusal(
                f"SpotToSpotConsolidation requires {SPOT_TYPES} cheaper instance type options than the current candidate "
                f"to consolidate, got {number}"
            )
        cheapest = claim.template.index.cheapest(claim.requirements, claim.types, SPOT_TYPES)
        kept.append(replace(claim, types=set_of(cheapest)))
    return replace(found, claims=tuple(kept))


def _one_kind(claim: Claim) -> Claim:
    """Spot only where it may be spot, so that missing spot capacity fails instead of buying what is dearer (DIS-182)."""
    both = _sold(claim, _SPOT) and _sold(claim, _ON_DEMAND)
    narrowed = _narrowed(claim, _SPOT) if both else claim
    # What types of the one kind leave of minValues may be too little; then the claim stays open to both.
    return narrowed if narrowed.template.index.diverse(narrowed.requirements, narrowed.types) else claim


def _is_spot(claim: Claim) -> bool:
    return claim.requirements.of(labels.CAPACITY_TYPE).values == frozenset((labels.SPOT,))


def _narrowed(claim: Claim, to: Requirements) -> Claim:
    requirements = claim.requirements.intersect(to)
    return replace(
        claim, requirements=requirements, types=claim.types & claim.template.index.buyable(requirements)
    )


def _sold(claim: Claim, kind: Requirements) -> TypeSet:
    """Those of the claim's types that can be had so."""
    if not claim.requirements.of(labels.CAPACITY_TYPE).has_intersection(kind.of(labels.CAPACITY_TYPE)):
        return 0
    return claim.types & claim.template.index.buyable(claim.requirements.intersect(kind))


def _dearest(claim: Claim) -> dict[int, float]:
    found = claim.template.index.dearest(claim.requirements)
    return {position: found[position] for position in members(claim.types) if position in found}


# -- the same type once more ---------------------------------------------------------------------------------------------


def reused(candidates: Sequence[Candidate], claims: Sequence[Claim]) -> Candidate | None:
    """A candidate that one of the new machines may turn out to be once more (DIS-210): to keep it costs the same and moves less.

    Of several the one that is dearest to disrupt; None where every new machine is another one.
    """
    for claim in claims:
        worst = _dearest(claim)
        index = claim.template.index
        again = [
            candidate
            for candidate in candidates
            if candidate.pool == claim.template.name
            and (at := index.position.get(labels_of(candidate.view).get(labels.INSTANCE_TYPE, ""))) is not None
            and at in worst
            and (candidate.price_per_hour or 0.0) <= min(worst.values()) + _TINY
        ]
        if again:
            return max(again, key=lambda candidate: (candidate.disruption_cost, candidate.view.name))
    return None


def without_types_of(candidates: Sequence[Candidate], claim: Claim) -> Claim | None:
    """The claim with what is cheaper than the cheapest of the candidates' own types among its options (DIS-210 to DIS-213).

    None where nothing is left. A type whose own price is not known is left out by itself (Beyond of DIS-213).
    """
    index = claim.template.index
    worst = _dearest(claim)
    own = {at: c.price_per_hour for c in candidates if (at := _position(index, c)) is not None and at in worst}
    known = [price for price in own.values() if price is not None]
    limit = min(known, default=float("inf"))
    unknown = {at for at, price in own.items() if price is None}
    types = set_of(at for at, price in worst.items() if price < limit - _TINY and at not in unknown)
    if not types or not index.diverse(claim.requirements, types):
        return None
    return replace(claim, types=types)


def _position(index: TypeIndex, candidate: Candidate) -> int | None:
    return index.position.get(labels_of(candidate.view).get(labels.INSTANCE_TYPE, ""))
