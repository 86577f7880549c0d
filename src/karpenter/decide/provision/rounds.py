"""How often everybody is settled: until nobody is left out whom another round could serve (SCH §9.1, §15).

Where limits leave pods out of a packing, everything is settled anew with a cap on what may be asked of new machines there: those
pods take the next step of their ladder, and nobody counts on pods that will not come. Machines are made of the last packing only.

Caps may do more than they should, so where some were set others are tried, too. And who comes first is served first, so that a
round may end with somebody left out for whom another order has a place. If those left out could be served were they alone, they
come first then, and before them those whom they want to be near; who is still left out is added where that costs nobody a place.
The way that leaves out the fewest counts.

Where limits bind and priorities differ it is another matter: the more important pods are served, whoever it costs the place.

That not all of a workload should be on one machine (`exposing`) is no reason to leave a pod out: where limits do so, everything
is tried without that wish, of the workloads left out and then of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from karpenter.cluster.terms import Relation
from karpenter.decide.provision.arrivals import Room
from karpenter.decide.provision.demand import Bounds, Packing
from karpenter.decide.provision.existing import Field
from karpenter.decide.provision.hosting import Exposed
from karpenter.decide.provision.market import Market
from karpenter.decide.provision.packing import Packer
from karpenter.decide.provision.settling import Caps, Failed, Kin, Place, Settled, Settling, Standing, by_size, priority
from karpenter.decide.provision.topology import Domains
from karpenter.decide.worth import Worth

#: So often pods that limits leave out take a step down by themselves; after that, places that limits bind are closed altogether.
ROUNDS = 8
#: So often those left out are put before all others, and so many kin of theirs are tried to be added to the rest.
ORDERS = 3
ADDITIONS = 8
#: Machines for so many pods are left to the search alone.
SEARCHED_ALONE = 100
#: Another way is begun as long as no more than so many pods, each as often as it was settled, have been settled for the others.
SETTLED_AGAIN = 20_000


class PackingWay(StrEnum):
    """Which packings a plan is chosen from: all there are, the cheapest being taken; or only the reference's (SCH-865)."""

    CHEAPEST = "cheapest"
    CLASSIC = "classic"


@dataclass(frozen=True, eq=False)
class Ground:
    """What rounds are held on. ``planned``: on which view the last pass placed a pod; ``strict``: minValues are not lowered."""

    field: Field
    market: Market
    domains: Domains
    planned: Mapping[str, str]
    limits: Mapping[str, Mapping[str, int]]
    units: Mapping[str, int]
    strict: bool
    worth: Worth
    packing: PackingWay = PackingWay.CHEAPEST


@dataclass(frozen=True, eq=False)
class _Way:
    """An order of kin and the caps to begin with. ``in_total``: limits cap what a kin asks altogether, not place by place."""

    kins: tuple[Kin, ...]
    caps: Caps = field(default_factory=Caps)
    in_total: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where everybody went, and how that came about."""

    way: _Way
    settled: Settled
    packing: Packing
    caps: Caps

    @cached_property
    def missed(self) -> Counter[Kin]:
        """How many pods of each kin found no place."""
        found: Counter[Kin] = Counter()
        for failed in self.settled.failed:
            found[failed.kin] += len(failed.pods)
        return found

    @cached_property
    def missed_by_priority(self) -> Counter[int]:
        """How many pods of each priority found no place."""
        return Counter(priority(pod) for failed in self.settled.failed for pod in failed.pods)

    @cached_property
    def served(self) -> Counter[Place]:
        """How many pods new machines are bought for, by the place they asked at."""
        left = self.packing.left
        standing = enumerate(self.settled.standing)
        return Counter({item.place: len(item.demand.pods) - left.get(at, 0) for at, item in standing})


class Rounds:
    """The rounds of one decision."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._last: Outcome | None = None
        self._left_to_settle = SETTLED_AGAIN
        self._last_packer: tuple[Sequence[Standing] | None, Packer | None] = (None, None)
        #: Whether some round was packed otherwise than the classic way, so that the rounds after it may have gone otherwise, too.
        self._left_classic = False

    def outcome(self, kins: Sequence[Kin]) -> Outcome:
        """Where everybody goes, with a packing that leaves out nobody whom others count on. Machines know who is on them.

        Leaving out fewer in every round may come to leaving out more in the end; then it is the classic way from the beginning.
        """
        best, last = self._exposing_less(kins), self._last
        if best.missed and self._left_classic:
            classic = Rounds(replace(self._ground, packing=PackingWay.CLASSIC))
            found = classic._exposing_less(kins)
            best, last = min(best, found, key=_value), classic._last
        if best is not last:
            settled, stuck = self._settled(best.way.kins, best.caps), best.settled.failed
            best = replace(best, settled=replace(settled, failed=stuck))
        return best

    def _exposing_less(self, kins: Sequence[Kin]) -> Outcome:
        """The way that leaves out the fewest; where that needs it, without the wish that a workload is not on one machine."""
        best = self._best(kins)
        for exposed in _giving_way(best):
            found = self._best([replace(kin, exposed=None) if kin.exposed in exposed else kin for kin in kins])
            best = found if found.missed.total() < best.missed.total() else best
        return best

    def _best(self, kins: Sequence[Kin]) -> Outcome:
        """The way that leaves out the fewest."""
        found = self._tried(_Way(tuple(kins)))
        self._left_to_settle = SETTLED_AGAIN
        return self._improved(found) if found.missed else found

    def simplest(self, best: Outcome) -> Packing:
        """The best packing without a search."""
        if self._ground.packing is PackingWay.CLASSIC:
            return best.packing
        found = self._packer(best.settled).value()
        return min(best.packing, found, key=lambda packing: packing.badness)

    def cheapest(self, best: Outcome, room: Room | None) -> Packing:
        """The packing a search for cheap machines comes to, if it leaves the same pods out and is cheaper.

        Where ``room`` for pods to come is worth something, it counts. For few pods it is cheaper than the simplest, too.
        """
        if self._ground.packing is PackingWay.CLASSIC:
            return best.packing
        known = [best.packing]
        if best.settled.needing < SEARCHED_ALONE:
            known.append(self.simplest(best))
        known.append(self._packer(best.settled).priced())
        alike = [packing for packing in known if packing.left == best.packing.left]
        if room is None:
            return min(alike, key=lambda packing: packing.badness)
        return min(alike, key=lambda packing: packing.worth - room.value(packing))

    def _improved(self, first: Outcome) -> Outcome:
        """The best that other ways make of an outcome that leaves pods out."""
        best = first
        for way in _other_caps(first):
            best = self._fewer_left_by(way, best)
        if self._could_be_served(best):
            best = self._added(self._reordered(best))
        return self._by_priority(best)

    def _could_be_served(self, outcome: Outcome) -> bool:
        """Whether those left out, limits aside, would fare better were they alone."""
        kins = {failed.kin for failed in outcome.settled.failed if failed.kin.company or not failed.capped}
        alone = tuple(kin for kin in _first(outcome.missed, outcome.way.kins) if kin in kins)
        if not alone:
            return False
        missed = self._tried(_Way(alone)).missed
        return any(missed[kin] < outcome.missed[kin] for kin in alone)

    def _reordered(self, best: Outcome) -> Outcome:
        """Those left out come first, if that is of use; and again with those whom this leaves out."""
        for _ in range(ORDERS):
            found = self._fewer_left_by(_Way(_first(best.missed, best.way.kins)), best)
            if found is best:
                break
            best = found
        return best

    def _added(self, best: Outcome) -> Outcome:
        """With those left out for whom there is a place beside all others, who get no more than they have: kin by kin."""
        for kin in [*best.missed][:ADDITIONS]:
            found = self._fewer_left_by(_last(kin, best), best)
            best = found if found.missed_by_priority <= best.missed_by_priority else best
        return best

    def _fewer_left_by(self, way: _Way, best: Outcome) -> Outcome:
        """What comes of the way if that leaves out fewer, else the best so far; also where there was work enough."""
        found = self._tried(way) if self._left_to_settle > 0 and best.missed else best
        return found if found.missed.total() < best.missed.total() else best

    # -- the more important first ---------------------------------------------------------------------------------------

    def _by_priority(self, best: Outcome) -> Outcome:
        """As before, unless pods are left out that are more important than some that have a place, and could have had one."""
        top = _passed_over(best)
        if top is None:
            return best
        ranked = _ranked(best.way.kins)
        important = self._tried(_Way(tuple(kin for kin in ranked if priority(kin.pods[0]) >= top)))
        if important.missed:
            important = self._reordered(important)
        if not _is_better(important, best, top):
            return best
        others = tuple(replace(kin, stays=False) for kin in ranked if priority(kin.pods[0]) < top)
        kins = (*important.way.kins, *others)
        for caps in (Caps(), Caps(totals=_closed(others))):
            found = self._tried(_Way(kins, caps))
            if _is_better(found, best, top):
                best = self._added(found) if caps else found
        return best

    # -- one way --------------------------------------------------------------------------------------------------------

    def _tried(self, way: _Way) -> Outcome:
        """Round after round with caps where limits left pods out, until they leave out nobody on whom others may count."""
        caps = way.caps
        attempt = 0
        while True:
            settled = self._settled(way.kins, caps)
            self._left_to_settle -= sum(len(kin.pods) for kin in way.kins)
            packing = self._packed(settled)
            left = [(settled.standing[at], count) for at, count in packing.left.items()]
            if all(item.is_last and not item.kin.company for item, _ in left):
                stuck = [Failed(item.kin, item.kin.variants[-1], item.last(count), capped=True) for item, count in left]
                settled = replace(settled, failed=(*settled.failed, *stuck))
                self._last = Outcome(way, settled, packing, caps)
                return self._last
            attempt += 1
            closing = attempt >= ROUNDS
            caps = _capped_in_total(caps, settled, left, closing) if way.in_total else _capped(caps, left, closing)

    def _settled(self, kins: Sequence[Kin], caps: Caps) -> Settled:
        ground = self._ground
        return Settling(ground.field, ground.market, ground.domains, ground.planned, caps).settle(kins)

    def _packed(self, settled: Settled) -> Packing:
        packer = self._packer(settled)
        classic = packer.classic()
        if self._ground.packing is PackingWay.CLASSIC or not classic.left:
            return classic
        found = min((packer.value(), classic), key=lambda packing: (_left_out(packing, settled), packing.badness))
        self._left_classic |= found is not classic
        return found

    def _packer(self, settled: Settled) -> Packer:
        """The packer of these demands; asked for again it is the same, which remembers what it worked out."""
        known, packer = self._last_packer
        if known is not settled.standing or packer is None:
            ground = self._ground
            demands = [item.demand for item in settled.standing]
            bounds = Bounds(ground.limits, settled.satisfied, ground.units)
            packer = Packer(demands, bounds, relax_min_values=not ground.strict, worth=ground.worth)
            self._last_packer = (settled.standing, packer)
        return packer


def _value(outcome: Outcome) -> tuple[list[tuple[int, int]], tuple[int, float, int]]:
    """Pods without a place by priority, then what the packing is worth: smaller is better."""
    return sorted(outcome.missed_by_priority.items(), reverse=True), outcome.packing.badness


def _left_out(packing: Packing, settled: Settled) -> list[tuple[int, int]]:
    """Pods a packing leaves out, by priority: smaller is better."""
    if not packing.left:
        return []
    found = Counter(priority(pod) for at, count in packing.left.items() for pod in settled.standing[at].last(count))
    return sorted(found.items(), reverse=True)


def _capped(caps: Caps, left: Sequence[tuple[Standing, int]], closing: bool) -> Caps:
    """With a cap wherever pods were left out: on what was served there, or on everything."""
    places = {item.place: 0 if closing else len(item.demand.pods) - count for item, count in left}
    return replace(caps, places={**caps.places, **places})


def _capped_in_total(caps: Caps, settled: Settled, left: Sequence[tuple[Standing, int]], closing: bool) -> Caps:
    """With a cap on what kin that were left out may ask for altogether at that step."""
    asked: Counter[tuple[Kin, int]] = Counter()
    for item in settled.standing:
        asked[item.kin, item.step] += len(item.demand.pods)
    for item, count in left:
        asked[item.kin, item.step] -= count
    totals = {(item.kin, item.step): 0 if closing else asked[item.kin, item.step] for item, _ in left}
    return replace(caps, totals={**caps.totals, **totals})


def _other_caps(first: Outcome) -> Iterator[_Way]:
    """Other caps. One may have been set for the sake of pods that later gave way themselves: those are lifted once."""
    kins, caps = first.way.kins, first.caps
    lasting = {place: cap for place, cap in caps.places.items() if place[0] not in first.missed}
    if len(lasting) < len(caps.places):
        yield _Way(kins, Caps(lasting))
    if caps:
        yield _Way(kins, in_total=True)


def _giving_way(best: Outcome) -> list[set[Exposed]]:
    """Workloads that should be less exposed than their pods should wait: of the pods left out, then of all. Only limits leave
    out pods for that."""
    exposed = {kin.exposed for kin in best.way.kins if kin.exposed is not None}
    if not exposed or not best.missed or not (best.caps or any(failed.capped for failed in best.settled.failed)):
        return []
    own = {kin.exposed for kin in best.missed if kin.exposed is not None}
    return [found for found in (own, exposed) if found]


def _first(missed: Mapping[Kin, int], kins: Sequence[Kin]) -> tuple[Kin, ...]:
    """Those whom the missed want to be near before all others, then the missed; virtual pods still last."""
    wanted = {c for kin in missed for c in kin.company.stated.values() if c.term.relation is Relation.AFFINITY}

    def is_wanted(kin: Kin) -> bool:
        return any(c in wanted for c in kin.company.meant_by if c.term not in kin.company.stated)

    return tuple(sorted(kins, key=lambda kin: (kin.virtual, not is_wanted(kin), kin not in missed)))


def _last(chosen: Kin, outcome: Outcome) -> _Way:
    """One kin after all others, and those held to what they have."""
    others = tuple(kin for kin in outcome.way.kins if kin is not chosen)
    places = {place: count for place, count in outcome.served.items() if place[0] is not chosen}
    totals = dict.fromkeys(((kin, step) for kin in others for step in range(len(kin.variants))), 0)
    for place, count in places.items():
        totals[place[:2]] += count
    return _Way((*others, chosen), Caps(places, totals))


def _passed_over(outcome: Outcome) -> int | None:
    """The highest priority of which pods were left out while less important ones got a place; None where there are none such."""
    missed = outcome.missed_by_priority
    everybody = Counter(priority(pod) for kin in outcome.way.kins for pod in kin.pods)
    placed = [level for level, count in everybody.items() if count > missed[level]]
    return max((level for level in missed if any(lower < level for lower in placed)), default=None)


def _is_better(found: Outcome, best: Outcome, top: int) -> bool:
    """Whether fewer pods as important as that or more are left out, the most important counting first."""
    levels = sorted({*found.missed_by_priority, *best.missed_by_priority}, reverse=True)
    mine, theirs = ([one.missed_by_priority[level] for level in levels if level >= top] for one in (found, best))
    return mine < theirs


def _ranked(kins: Sequence[Kin]) -> tuple[Kin, ...]:
    """Kin of one priority each, the most important first."""
    found = [
        replace(kin, pods=tuple(pod for pod in kin.pods if priority(pod) == level))
        for kin in kins
        for level in {priority(pod) for pod in kin.pods}
    ]
    return tuple(sorted(found, key=lambda kin: (kin.virtual, -priority(kin.pods[0]), by_size(kin))))


def _closed(kins: Sequence[Kin]) -> dict[tuple[Kin, int], int]:
    """New machines for none of them; they may still come to machines that are there."""
    return {(kin, step): 0 for kin in kins for step in range(len(kin.variants))}
