"""Spot nodes of one NodePool are not all launched from one capacity pool of the cloud.

The cloud takes spot nodes away by type and zone, all of a kind at once. So of a NodePool's spot nodes, there and planned,
no more than a share should be in one (type, zone). A planned claim is in that of its cheapest offering: that is what is going to
be launched. Surplus claims lose the zone, or the cheapest types, so that the next cheapest offering is elsewhere. They keep at
least ``MIN_TYPES_KEPT`` types, or all but one, stay spot, keep minValues, and cost at most ``MAX_PRICE_RATIO`` times as much.

Where there is no such way exposure gives way, and the plan says so. Deterministic: claims in their order, alternatives by price.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.in_flight_claims import InFlightClaims
from karpenter.scheduling.solution import ExposureViolation, ViolationCause
from karpenter.state.state_node import StateNode

#: A claim that gives types away keeps so many.
MIN_TYPES_KEPT = 15
#: So many types at most are given away, the cheapest first.
MAX_TYPES_REMOVED = 6
#: No claim costs more than this many times its original price.
MAX_PRICE_RATIO = 1.25

#: A type and a zone.
SpotCapacityPool = tuple[str, str]


@dataclass(frozen=True)
class SpotSpreadResult:
    """Claims after that, in their order, and where exposure gave way."""

    claims: tuple[SchedulingNodeClaim, ...]
    violations: tuple[ExposureViolation, ...] = ()


def spread_spot_claims(
    claims: Sequence[SchedulingNodeClaim],
    there: Mapping[str, Counter[SpotCapacityPool]],
    most: Callable[[str, int], int],
) -> SpotSpreadResult:
    """The claims with surplus spot nodes sent elsewhere.

    ``there`` counts by NodePool its existing spot nodes; ``most`` says of a NodePool and the number of its spot nodes
    how many may be in one place.
    """
    by_pool: defaultdict[str, list[int]] = defaultdict(list)
    for at, claim in enumerate(claims):
        if claim.reservation is None and claim.cheapest_offering.capacity_type == labels.SPOT:
            by_pool[claim.template.name].append(at)
    nodeclaims = list(claims)
    conceded: list[ExposureViolation] = []
    ways = _Alternatives()
    for pool, positions in by_pool.items():
        counts = Counter(there.get(pool, {}))
        limit = most(pool, counts.total() + len(positions))
        conceded += _NodePoolSpot(pool, nodeclaims, positions, counts, limit).move_surplus(ways)
    return SpotSpreadResult(tuple(nodeclaims), tuple(conceded))


def existing_spot_counts(
    nodes: Iterable[StateNode], indexes: Mapping[str, TypeIndex], in_flight_claims: InFlightClaims
) -> dict[str, Counter[SpotCapacityPool]]:
    """The spot nodes there are, by NodePool, type and zone. One on its way is where its cheapest offering is."""
    counts: dict[str, Counter[SpotCapacityPool]] = {}
    for view in nodes:
        place = (
            None
            if view.marked_for_deletion or not view.managed
            else _spot_pool_of_node(view, indexes.get(view.pool), in_flight_claims)
        )
        if place is not None:
            counts.setdefault(view.pool, Counter())[place] += 1
    return counts


def _spot_pool_of_node(
    view: StateNode, index: TypeIndex | None, in_flight_claims: InFlightClaims
) -> SpotCapacityPool | None:
    if view.launched:
        if view.offering_labels is None:
            return None
        capacity_type, name, zone = view.offering_labels
        return (name, zone) if capacity_type == labels.SPOT else None
    if index is None:
        return None
    prices = index.prices(view.requirements.without((labels.HOSTNAME,)))
    at = prices.cheapest(in_flight_claims.possible_types(view, index))
    return _spot_pool(index, at, prices.cheapest_offering[at]) if at >= 0 else None


def _spot_pool(index: TypeIndex, at: int, offering: Offering) -> SpotCapacityPool | None:
    return (index.types[at].name, offering.zone) if offering.capacity_type == labels.SPOT else None


def _spot_pool_of_claim(claim: SchedulingNodeClaim) -> SpotCapacityPool | None:
    """Where a claim would be launched; None where not as spot."""
    at = claim.cheapest_type
    return _spot_pool(claim.template.index, at, claim.prices.cheapest_offering[at]) if at >= 0 else None


class _Alternatives:
    """Other forms of claims, each with the place it would be launched in, the cheapest first; those alike are asked once."""

    def __init__(self) -> None:
        self._cache: dict[tuple[int, Requirements, int], list[tuple[SpotCapacityPool, SchedulingNodeClaim]]] = {}

    def for_claim(self, claim: SchedulingNodeClaim) -> list[tuple[SpotCapacityPool, SchedulingNodeClaim]]:
        """The alternatives of a claim; their contents are those of whichever claim was asked about first."""
        key = (id(claim.template), claim.requirements, claim.types)
        cached = self._cache.get(key)
        if cached is None:
            limit = claim.price_per_hour * MAX_PRICE_RATIO
            cheapest: dict[SpotCapacityPool, SchedulingNodeClaim] = {}
            for other in _narrowed_claims(claim):
                place = _spot_pool_of_claim(other)
                if place is not None and other.price_per_hour <= limit:
                    cheapest.setdefault(place, other)
            cached = sorted(cheapest.items(), key=lambda entry: (entry[1].price_per_hour, entry[0]))
            self._cache[key] = cached
        return cached


def _narrowed_claims(claim: SchedulingNodeClaim) -> Iterator[SchedulingNodeClaim]:
    """The claim without one zone after another, and without one type after another."""
    current = claim
    while True:
        place = _spot_pool_of_claim(current)
        narrowed = _without_zone(current, place[1]) if place is not None and place[1] else None
        if narrowed is None:
            break
        yield narrowed
        current = narrowed
    types = claim.types
    index = claim.template.index
    for given, at in enumerate(claim.prices.cheapest_first(claim.types)[:MAX_TYPES_REMOVED], start=1):
        types &= ~(1 << at)
        if (
            not types
            or (given > 1 and types.bit_count() < MIN_TYPES_KEPT)
            or not index.satisfies_min_values(claim.requirements, types)
        ):
            break
        yield replace(claim, types=types)


def _without_zone(claim: SchedulingNodeClaim, zone: str) -> SchedulingNodeClaim | None:
    """The claim without a zone, if enough types are sold elsewhere."""
    index = claim.template.index
    elsewhere = claim.requirements.intersect(Requirements((Requirement(labels.ZONE, True, frozenset((zone,))),)))
    types = claim.types & index.matching(elsewhere) & index.with_available_offering(elsewhere)
    enough = types == claim.types or types.bit_count() >= MIN_TYPES_KEPT
    return (
        replace(claim, requirements=elsewhere, types=types)
        if enough and index.satisfies_min_values(elsewhere, types)
        else None
    )


class _NodePoolSpot:
    """The spot nodes of one NodePool. ``claims`` are changed in place at these ``positions``; ``counts`` are all there are."""

    def __init__(
        self,
        name: str,
        claims: list[SchedulingNodeClaim],
        positions: Sequence[int],
        counts: Counter[SpotCapacityPool],
        most: int,
    ) -> None:
        self._name = name
        self._claims = claims
        self._counts = counts
        self._max_per_spot_pool = most
        self._positions_by_spot_pool: defaultdict[SpotCapacityPool, list[int]] = defaultdict(list)
        for at in positions:
            place = _spot_pool_of_claim(claims[at])
            if place is not None:
                self._positions_by_spot_pool[place].append(at)
                counts[place] += 1

    def move_surplus(self, ways: _Alternatives) -> Iterator[ExposureViolation]:
        """Send surplus claims elsewhere; what cannot be."""
        for place, positions in sorted(self._positions_by_spot_pool.items()):
            if self._counts[place] <= self._max_per_spot_pool:
                continue
            ranked = sorted(positions, key=lambda at: self._price_ratio(at, ways))
            for at in ranked:
                if self._counts[place] <= self._max_per_spot_pool:
                    break
                self._move_claim(at, place, ways)
            if self._counts[place] > self._max_per_spot_pool:
                kind, zone = place
                where = f"{kind} in {zone}" if zone else kind
                yield ExposureViolation(
                    f"NodePool {self._name}",
                    where,
                    self._counts[place],
                    self._max_per_spot_pool,
                    ViolationCause.NOTHING_ELSE,
                )

    def _price_ratio(self, at: int, ways: _Alternatives) -> float:
        """The least price increase of the claim, as a ratio."""
        alternatives = ways.for_claim(self._claims[at])
        price = self._claims[at].price_per_hour
        if not alternatives:
            return MAX_PRICE_RATIO
        return alternatives[0][1].price_per_hour / price if price else 1.0

    def _move_claim(self, at: int, place: SpotCapacityPool, ways: _Alternatives) -> None:
        claim = self._claims[at]
        for other, form in ways.for_claim(claim):
            if self._counts[other] < self._max_per_spot_pool:
                self._claims[at] = replace(claim, requirements=form.requirements, types=form.types)
                self._counts[place] -= 1
                self._counts[other] += 1
                return
