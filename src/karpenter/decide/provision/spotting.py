"""Spot machines of one NodePool are not all bought in one pool of the cloud (issue of price, point 3).

The cloud takes spot machines away by type and zone, all of a kind at once. So of a NodePool's spot machines, there and planned,
no more than a share should be in one (type, zone). A planned claim is in that of its cheapest offering: that is what is going to
be launched. Surplus claims lose the zone, or the cheapest types, so that the next cheapest offering is elsewhere. They keep at
least `KEPT` types, or all but one, stay spot, keep minValues, and become no more than `DEARER` times as dear.

Where there is no such way the wish gives way, and the plan says so. Deterministic: claims in their order, alternatives by price.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from karpenter.catalog.index import TypeIndex
from karpenter.catalog.types import Offering
from karpenter.cluster.nodes import NodeView
from karpenter.decide.plan import Concession, Why
from karpenter.decide.provision.demand import Claim
from karpenter.decide.provision.prospects import Prospects
from karpenter.model import labels
from karpenter.model.requirements import Op, Requirement, Requirements

#: A claim that gives types away keeps so many.
KEPT = 15
#: So many types at most are given away, the cheapest first.
GIVEN = 6
#: No claim becomes dearer than so many times its price.
DEARER = 1.25

#: A type and a zone.
SpotPool = tuple[str, str]


@dataclass(frozen=True)
class Spread:
    """Claims after that, in their order, and where the wish gave way."""

    claims: tuple[Claim, ...]
    conceded: tuple[Concession, ...] = ()


def spread(claims: Sequence[Claim], there: Mapping[str, Counter[SpotPool]], most: Callable[[str, int], int]) -> Spread:
    """The claims with surplus spot machines sent elsewhere.

    ``there`` counts by NodePool the spot machines that exist; ``most`` says of a NodePool and the number of its spot machines
    how many may be in one place.
    """
    by_pool: defaultdict[str, list[int]] = defaultdict(list)
    for at, claim in enumerate(claims):
        if claim.reservation is None and claim.cheapest.capacity_type == labels.SPOT:
            by_pool[claim.template.name].append(at)
    found = list(claims)
    conceded: list[Concession] = []
    ways = _Ways()
    for pool, positions in by_pool.items():
        counts = Counter(there.get(pool, {}))
        limit = most(pool, counts.total() + len(positions))
        conceded += _Pool(pool, found, positions, counts, limit).relieve(ways)
    return Spread(tuple(found), tuple(conceded))


def spot_there(
    nodes: Iterable[NodeView], indexes: Mapping[str, TypeIndex], prospects: Prospects
) -> dict[str, Counter[SpotPool]]:
    """The spot machines there are, by NodePool, type and zone. One on its way is where its cheapest offering is."""
    found: dict[str, Counter[SpotPool]] = {}
    for view in nodes:
        place = None if view.leaving or not view.managed else _place_of(view, indexes.get(view.pool), prospects)
        if place is not None:
            found.setdefault(view.pool, Counter())[place] += 1
    return found


def _place_of(view: NodeView, index: TypeIndex | None, prospects: Prospects) -> SpotPool | None:
    if view.launched:
        held = {key: view.offers.of(key) for key in (labels.CAPACITY_TYPE, labels.INSTANCE_TYPE, labels.ZONE)}
        if any(item.operator is not Op.IN or len(item.values) != 1 for item in held.values()):
            return None
        capacity_type, name, zone = (next(iter(item.values)) for item in held.values())
        return (name, zone) if capacity_type == labels.SPOT else None
    if index is None:
        return None
    prices = index.prices(view.offers.without((labels.HOSTNAME,)))
    at = prices.cheapest(prospects.types(view, index))
    return _spot_pool(index, at, prices.offering[at]) if at >= 0 else None


def _spot_pool(index: TypeIndex, at: int, offering: Offering) -> SpotPool | None:
    return (index.types[at].name, offering.zone) if offering.capacity_type == labels.SPOT else None


def _place(claim: Claim) -> SpotPool | None:
    """Where a claim would be launched; None where not as spot."""
    at = claim.prices.cheapest(claim.types)
    return _spot_pool(claim.template.index, at, claim.prices.offering[at]) if at >= 0 else None


class _Ways:
    """Other forms of claims, each with the place it would be launched in, the cheapest first; those alike are asked once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Requirements, int], list[tuple[SpotPool, Claim]]] = {}

    def of(self, claim: Claim) -> list[tuple[SpotPool, Claim]]:
        """The alternatives of a claim; their contents are those of whichever claim was asked about first."""
        key = (id(claim.template), claim.requirements, claim.types)
        known = self._known.get(key)
        if known is None:
            limit = claim.cheapest.price_per_hour * DEARER
            cheapest: dict[SpotPool, Claim] = {}
            for other in _others(claim):
                place = _place(other)
                if place is not None and other.cheapest.price_per_hour <= limit:
                    cheapest.setdefault(place, other)
            known = sorted(cheapest.items(), key=lambda item: (item[1].cheapest.price_per_hour, item[0]))
            self._known[key] = known
        return known


def _others(claim: Claim) -> Iterator[Claim]:
    """The claim without one zone after another, and without one type after another."""
    current = claim
    while True:
        place = _place(current)
        narrowed = _without_zone(current, place[1]) if place is not None and place[1] else None
        if narrowed is None:
            break
        yield narrowed
        current = narrowed
    types = claim.types
    index = claim.template.index
    for given, at in enumerate(claim.prices.cheapest_first(claim.types)[:GIVEN], start=1):
        types &= ~(1 << at)
        if not types or (given > 1 and types.bit_count() < KEPT) or not index.diverse(claim.requirements, types):
            break
        yield replace(claim, types=types)


def _without_zone(claim: Claim, zone: str) -> Claim | None:
    """The claim without a zone, if enough types are sold elsewhere."""
    index = claim.template.index
    elsewhere = claim.requirements.intersect(Requirements((Requirement(labels.ZONE, True, frozenset((zone,))),)))
    types = claim.types & index.matching(elsewhere) & index.buyable(elsewhere)
    enough = types == claim.types or types.bit_count() >= KEPT
    return replace(claim, requirements=elsewhere, types=types) if enough and index.diverse(elsewhere, types) else None


class _Pool:
    """The spot machines of one NodePool. ``claims`` are changed in place at these ``positions``; ``counts`` are all there are."""

    def __init__(
        self, name: str, claims: list[Claim], positions: Sequence[int], counts: Counter[SpotPool], most: int
    ) -> None:
        self._name = name
        self._claims = claims
        self._counts = counts
        self._most = most
        self._at: defaultdict[SpotPool, list[int]] = defaultdict(list)
        for at in positions:
            place = _place(claims[at])
            if place is not None:
                self._at[place].append(at)
                counts[place] += 1

    def relieve(self, ways: _Ways) -> Iterator[Concession]:
        """Send surplus claims elsewhere; what cannot be."""
        for place, positions in sorted(self._at.items()):
            if self._counts[place] <= self._most:
                continue
            ranked = sorted(positions, key=lambda at: self._loss(at, ways))
            for at in ranked:
                if self._counts[place] <= self._most:
                    break
                self._move(at, place, ways)
            if self._counts[place] > self._most:
                kind, zone = place
                where = f"{kind} in {zone}" if zone else kind
                yield Concession(f"NodePool {self._name}", where, self._counts[place], self._most, Why.NOTHING_ELSE)

    def _loss(self, at: int, ways: _Ways) -> float:
        """By how much the claim becomes dearer at least, as a ratio."""
        found = ways.of(self._claims[at])
        price = self._claims[at].cheapest.price_per_hour
        return found[0][1].cheapest.price_per_hour / price if found and price else 1.0 if found else DEARER

    def _move(self, at: int, place: SpotPool, ways: _Ways) -> None:
        claim = self._claims[at]
        for other, form in ways.of(claim):
            if self._counts[other] < self._most:
                self._claims[at] = replace(claim, requirements=form.requirements, types=form.types)
                self._counts[place] -= 1
                self._counts[other] += 1
                return
