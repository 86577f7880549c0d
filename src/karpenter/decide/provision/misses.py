"""What keeps pods from a NodePool's machines, type by type, and the least that would have to change (SCH §13 Beyond).

Every constraint becomes a `_Hurdle`: the set of types that fall to it. How many hurdles each type falls to is then counted for
all types at once, bit by bit, and those that fall to the fewest are the nearest misses. All types of the pool's catalogue
are looked at, also those the pool's own requirements leave out, so that one of those may turn out to be what is in the way.

Work: some ten operations on sets per constraint and pool, whatever the number of types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from karpenter.catalog.index import TypeSet, members
from karpenter.cluster.classes import HostPort, PodClass, ports_of
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.obstacles import (
    Blocked,
    Breakdown,
    Clashing,
    Fallen,
    LimitReached,
    Miss,
    Obstacle,
    PortTaken,
    Short,
    Side,
    SoldOut,
    StaticFull,
    Tainted,
    TooFewValues,
    Unknown,
    Unlabelled,
    Unmatched,
    Unoffered,
    UsedUp,
)
from karpenter.decide.provision import reservations
from karpenter.decide.provision.templates import Template, types_running
from karpenter.decide.provision.variants import Variant
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import (
    Incompatibility,
    Requirement,
    Requirements,
    Undefined,
    compatible,
    incompatibilities,
)
from karpenter.model.resources import Resources

#: Values shown of a label whose value does not suit, and types asked where they would be sold.
_SHOWN = 5
_ASKED = 64
#: Ways to fail that are compared for the nearest miss.
_WAYS = 64
#: How likely an obstacle is to be what its owner can and wants to change, likeliest first.
_RANKS: Mapping[type[Obstacle], int] = {
    StaticFull: 0,
    SoldOut: 1,
    UsedUp: 1,
    LimitReached: 2,
    Tainted: 3,
    TooFewValues: 4,
    Short: 5,
    Clashing: 6,
    Unlabelled: 6,
    Unmatched: 6,
    Unoffered: 7,
    PortTaken: 8,
    Blocked: 9,
    Unknown: 10,
}
#: Where more than this part of a resource is missing, it is rather another type that is wanted.
_FAR = 0.5


def nearness(miss: Miss) -> tuple[float, ...]:
    """Sort key: fewest changes first, then the likelier ones, then the least that is missing."""
    lacking = [_lacking(obstacle) for obstacle in miss.obstacles]
    ranks = sum(_RANKS[type(item)] + 2 * (part > _FAR) for item, part in zip(miss.obstacles, lacking, strict=True))
    return (len(miss.obstacles), ranks, sum(lacking))


def _lacking(obstacle: Obstacle) -> float:
    """The part of what is needed that is missing, where an obstacle is about an amount."""
    match obstacle:
        case Short():
            return obstacle.short / obstacle.asked
        case LimitReached():
            return (obstacle.needed - obstacle.left) / obstacle.needed if obstacle.needed > 0 else 1.0
        case _:
            return 0.0


@dataclass(frozen=True, eq=False)
class _Hurdle:
    """A constraint with the types that fall to it.

    ``nearest`` picks those of some types that come closest, ``at`` says what one of them, the first, falls to.
    """

    types: TypeSet
    at: Callable[[TypeSet], Obstacle]
    nearest: Callable[[TypeSet], TypeSet] = lambda types: types
    offerings: int = 0


@dataclass(frozen=True, eq=False)
class Seeking:
    """Pods of a class that look for a machine, at one step of their ladder.

    ``daemons``: those whose ports may be in the way; ``strict``: minValues out of reach are in the way as well (SCH-364);
    ``units``: what is left of reservations.
    """

    pod_class: PodClass
    variant: Variant
    daemons: Sequence[Daemon]
    strict: bool
    units: Mapping[str, int] = field(default_factory=dict)


class Study:
    """One NodePool asked why such pods get no machine of it. ``left``: what is left of its limits, None where it has none."""

    def __init__(self, seeking: Seeking, template: Template, left: Mapping[str, int] | None) -> None:
        self._requests = seeking.pod_class.requests
        self._ports = seeking.pod_class.ports
        self._variant = variant = seeking.variant
        self._daemons = seeking.daemons
        self._strict = seeking.strict
        self._units = seeking.units
        self._template = template
        self._index = template.index
        self._left = left or {}
        clashes = incompatibilities(template.requirements, variant.requirements, self._index.well_known)
        self._clashes = {clash.asked.key: clash for clash in clashes}
        #: By whose requirement and its label, the types that would have to be spared it.
        self._eases: dict[tuple[Side, str], TypeSet] = {}

    @cached_property
    def _hurdles(self) -> tuple[_Hurdle, ...]:
        found = [
            *self._of_taints(),
            *self._of_requirements(),
            *self._of_resources(),
            *self._of_ports(),
            *self._of_limits(),
        ]
        return tuple(hurdle for hurdle in (*found, *self._of_offerings()) if hurdle.types)

    @cached_property
    def _failing(self) -> tuple[TypeSet, ...]:
        """At place n the types that fall to n hurdles or more."""
        found = [self._index.everything]
        for hurdle in self._hurdles:
            found.append(0)
            for place in range(len(found) - 1, 0, -1):
                found[place] |= found[place - 1] & hurdle.types
        return (*found, 0)

    # -- answers ------------------------------------------------------------------------------------------------------

    @cached_property
    def breakdown(self) -> Breakdown:
        """What the types fall to, and how many."""
        once = self._failing[1] & ~self._failing[2] if self._hurdles else 0
        fallen = [
            Fallen(
                hurdle.at(hurdle.nearest(hurdle.types)),
                hurdle.types.bit_count(),
                (hurdle.types & once).bit_count(),
                hurdle.offerings,
            )
            for hurdle in self._hurdles
        ]
        now, gone = self._index.ways(Requirements(), self._index.everything)
        fallen.sort(key=lambda item: (-item.types, -item.alone))
        return Breakdown(len(self._index.types), now + gone, tuple(fallen))

    @property
    def fits(self) -> bool:
        """Whether a type falls to nothing at all."""
        return bool(self._failing[0] & ~self._failing[1])

    @cached_property
    def miss(self) -> Miss | None:
        """The least that would have to change here; None where single constraints do not explain it."""
        least = next(place for place, types in enumerate(self._failing) if types & ~self._failing[place + 1])
        types = self._failing[least] & ~self._failing[least + 1]
        found = self._least(types) if least else Miss(self._too_few(types))
        return replace(found, node_pool=self._template.name) if found.obstacles else None

    def _too_few(self, types: TypeSet) -> tuple[Obstacle, ...]:
        """Where each of these types would do once what they fall to is gone: the values of which they together offer too few."""
        if not self._strict:
            return ()
        left = self._eased(next(members(types)))
        short = self._index.shortages(left, types)
        return tuple(TooFewValues(key, left[key].min_values or 0, there) for key, there in sorted(short.items()))

    def _least(self, types: TypeSet) -> Miss:
        ways: list[tuple[TypeSet, tuple[_Hurdle, ...]]] = [(types, ())]
        for hurdle in self._hurdles:
            ways = list(islice(_split(ways, hurdle), _WAYS))
        return min((self._miss_of(group, hurdles) for group, hurdles in ways), key=nearness)

    def _miss_of(self, types: TypeSet, hurdles: Sequence[_Hurdle]) -> Miss:
        """The nearest of types that all fall to the same hurdles."""
        choices = {hurdle.nearest(types) for hurdle in hurdles}
        return min((self._told(choice, hurdles) for choice in sorted(choices)), key=nearness)

    def _told(self, types: TypeSet, hurdles: Sequence[_Hurdle]) -> Miss:
        obstacles = tuple(hurdle.at(types) for hurdle in hurdles)
        depends = types.bit_count() == 1 or any(isinstance(item, Short | LimitReached) for item in obstacles)
        name = self._index.types[next(members(types))].name if depends else ""
        all_of_them = (*obstacles, *self._too_few(types))
        return Miss(tuple(sorted(all_of_them, key=lambda item: -_RANKS[type(item)])), instance_type=name)

    # -- hurdles ------------------------------------------------------------------------------------------------------

    def _of_taints(self) -> Iterator[_Hurdle]:
        for taint in taints.untolerated(self._template.taints, self._variant.tolerations):
            yield _constant(self._index.everything, Tainted(taint))

    @cached_property
    def _together(self) -> Requirements:
        """The requirements of pool and pods; where they exclude each other, those of the pods."""
        own = self._template.requirements.without(self._clashes)
        return own.intersect(self._variant.requirements)

    def _of_requirements(self) -> Iterator[_Hurdle]:
        pool, pods = self._template.requirements, self._variant.requirements
        for clash in self._clashes.values():
            yield _constant(self._index.everything, _clash(clash))
        for key in sorted({*pool, *pods}):
            of_pool = self._outside(pool[key]) if key in pool else 0
            of_pods = self._outside(pods[key]) if key in pods else 0
            if key in self._clashes:
                # Whoever of the two gives way, a type that suits neither needs the other to do so as well.
                self._eases[Side.POD, key] = of_pods
                self._eases[Side.POOL, key] = self._index.everything & ~of_pods | of_pool
                of_pool, of_pods = of_pool & of_pods, 0
            else:
                if key in pods:
                    of_pods |= self._outside(self._together[key]) & ~of_pool
                self._eases[Side.POD, key] = of_pods
                self._eases[Side.POOL, key] = of_pool
            if of_pool:
                yield self._unmatched(of_pool, pool[key], Side.POOL)
            if of_pods:
                yield self._unmatched(of_pods, pods[key], Side.POD)

    def _eased(self, position: int) -> Requirements:
        """The requirements without those that a type would have to be spared."""
        return self._spared([place for place, types in self._eases.items() if types >> position & 1])

    def _spared(self, places: Iterable[tuple[Side, str]]) -> Requirements:
        dropped: dict[Side, list[str]] = {Side.POD: [], Side.POOL: []}
        for side, key in places:
            dropped[side].append(key)
        pool = self._template.requirements.without(dropped[Side.POOL])
        return pool.intersect(self._variant.requirements.without(dropped[Side.POD]))

    def _outside(self, item: Requirement) -> TypeSet:
        """Types whose label does not meet the requirement, or that are never sold so."""
        alone = Requirements((item,))
        found = self._index.everything & ~self._index.matching(alone)
        if item.key in self._index.listed_keys:
            found |= self._index.listed(Requirements()) & ~self._index.listed(alone)
        return found

    def _unmatched(self, types: TypeSet, item: Requirement, side: Side) -> _Hurdle:
        index = self._index
        refused = 0
        if item.key in index.listed_keys:
            everywhere, accepted = index.ways(Requirements(), index.everything), Requirements((item,))
            refused = sum(everywhere) - sum(index.ways(accepted, index.everything))
        known = sorted(index.values(item.key, index.everything))
        return _constant(types, Unmatched(item, side, tuple(known[:_SHOWN])), refused)

    @cached_property
    def _overheads(self) -> tuple[tuple[TypeSet, Resources], ...]:
        """What DaemonSets take; of types the pool leaves out, the most they take on any."""
        groups = self._template.daemons
        others = self._index.everything & ~self._template.types
        return (*((g.types, g.overhead) for g in groups), (others, res.maximum(g.overhead for g in groups)))

    def _of_resources(self) -> Iterator[_Hurdle]:
        most = self._index.most(self._index.everything)
        for name, amount in sorted(self._requests.items()):
            if amount <= 0:
                continue
            if most.get(name, 0) <= 0:
                yield _constant(self._index.everything, Unknown(name))
                continue
            fallen = 0
            for types, overhead in self._overheads:
                fallen |= types & ~self._index.holding({name: amount + overhead.get(name, 0)})
            yield self._short(fallen, name, amount)

    def _short(self, fallen: TypeSet, name: str, amount: int) -> _Hurdle:
        def at(types: TypeSet) -> Obstacle:
            position = next(members(types))
            taken = next((overhead for group, overhead in self._overheads if group >> position & 1), {}).get(name, 0)
            item = self._index.types[position]
            return Short(name, amount + taken, item.allocatable.get(name, 0), item.name, taken)

        return _Hurdle(fallen, at, lambda types: self._index.roomiest(name, types))

    def _of_ports(self) -> Iterator[_Hurdle]:
        for port in self._ports:
            for daemon in self._daemons:
                if _takes(daemon, port):
                    template = self._template
                    on = types_running(daemon.spec, template.requirements, template.taints, template.index)
                    yield _constant(on, PortTaken(port.port, port.protocol, daemon.name))

    def _of_limits(self) -> Iterator[_Hurdle]:
        for name, left in sorted(self._left.items()):
            if name == res.NODES:
                if left < res.ONE:
                    yield _constant(self._index.everything, LimitReached(name, left, res.ONE))
            else:
                yield self._limited(name, left)

    def _limited(self, name: str, left: int) -> _Hurdle:
        def at(types: TypeSet) -> Obstacle:
            return LimitReached(name, left, self._index.types[next(members(types))].capacity.get(name, 0))

        beyond = self._index.everything & ~self._index.within({name: left})
        return _Hurdle(beyond, at, lambda types: self._index.smallest(name, types))

    def _of_offerings(self) -> Iterator[_Hurdle]:
        """Types that could not be bought even if the requirements they fall to alone were gone."""
        gone = never = taken = 0
        for places, types in self._by_eases():
            accepted = self._spared(places)
            sold = self._index.buyable(accepted)
            taken |= types & sold & ~reservations.buyable(self._index, accepted, self._units)
            missing = types & ~sold
            if missing:
                listed = self._index.listed(accepted)
                gone |= missing & listed
                never |= missing & ~listed
        yield _Hurdle(gone, self._sold_out, offerings=self._index.ways(self._together, gone)[1])
        yield _Hurdle(taken, self._used_up)
        keys = tuple(sorted(key for key in self._together if key in self._index.listed_keys))
        yield _constant(never, Unoffered(keys))

    def _by_eases(self) -> list[tuple[tuple[tuple[Side, str], ...], TypeSet]]:
        """The types by the requirements on offerings they would have to be spared."""
        groups: list[tuple[tuple[tuple[Side, str], ...], TypeSet]] = [((), self._index.everything)]
        for place, spared in self._eases.items():
            if place[1] in self._index.listed_keys and spared:
                split = [((*places, place), types & spared) for places, types in groups]
                rest = [(places, types & ~spared) for places, types in groups]
                groups = [(places, types) for places, types in (*split, *rest) if types]
        return groups

    def _used_up(self, types: TypeSet) -> Obstacle:
        accepted = self._eased(next(members(types)))
        return UsedUp(reservations.used_up(self._index, accepted, self._units, types))

    def _sold_out(self, types: TypeSet) -> Obstacle:
        zones: set[str] = set()
        kinds: set[str] = set()
        for position in islice(members(types), _ASKED):
            accepted = self._eased(position)
            for offering in self._index.types[position].offerings:
                if not offering.available and compatible(accepted, offering.requirements, self._index.well_known):
                    zones.add(offering.zone)
                    kinds.add(offering.capacity_type)
        return SoldOut(tuple(sorted(filter(None, zones))), tuple(sorted(filter(None, kinds))))


def _constant(types: TypeSet, obstacle: Obstacle, offerings: int = 0) -> _Hurdle:
    """A hurdle that is the same for every type."""
    return _Hurdle(types, lambda _: obstacle, offerings=offerings)


def _split(
    ways: Iterable[tuple[TypeSet, tuple[_Hurdle, ...]]], hurdle: _Hurdle
) -> Iterator[tuple[TypeSet, tuple[_Hurdle, ...]]]:
    for types, hurdles in ways:
        if types & hurdle.types:
            yield types & hurdle.types, (*hurdles, hurdle)
        if types & ~hurdle.types:
            yield types & ~hurdle.types, hurdles


def _clash(item: Incompatibility) -> Obstacle:
    return Unlabelled(item.asked, item.meant) if isinstance(item, Undefined) else Clashing(item.asked, item.offered)


def _takes(daemon: Daemon, port: HostPort) -> bool:
    return any(held.collides(port) for held in ports_of(daemon.spec))
