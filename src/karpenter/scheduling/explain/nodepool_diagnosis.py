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

from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import (
    Incompatibility,
    Requirement,
    Requirements,
    compatible,
    incompatibilities,
)
from karpenter.model.requirements import (
    UndefinedLabel as UndefinedRequirementLabel,
)
from karpenter.model.resources import Resources
from karpenter.scheduling.offerings import remaining_capacity
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate, types_running_daemon
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.unschedulable_reasons import (
    ConflictingRequirement,
    FailedFilter,
    FilterBreakdown,
    FilteredTypes,
    HostPortTaken,
    InsufficientResource,
    MinValuesNotMet,
    NearestFit,
    NodePoolLimitReached,
    NoMatchingOffering,
    OfferingsUnavailable,
    RequirementOwner,
    ReservationsExhausted,
    StaticPoolFull,
    TopologyUnsatisfiable,
    UndefinedLabel,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)
from karpenter.state.host_ports import HostPort, host_ports_of
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import DaemonSetPod

#: Values shown of a label whose value does not suit, and types asked where they would be sold.
_MAX_VALUES_SHOWN = 5
_MAX_TYPES_ASKED = 64
#: Ways to fail that are compared for the nearest miss.
_MAX_FILTER_COMBINATIONS = 64
#: How likely an obstacle is to be what its owner can and wants to change, likeliest first.
_RANKS: Mapping[type[FailedFilter], int] = {
    StaticPoolFull: 0,
    OfferingsUnavailable: 1,
    ReservationsExhausted: 1,
    NodePoolLimitReached: 2,
    UntoleratedTaint: 3,
    MinValuesNotMet: 4,
    InsufficientResource: 5,
    ConflictingRequirement: 6,
    UndefinedLabel: 6,
    UnmetRequirement: 6,
    NoMatchingOffering: 7,
    HostPortTaken: 8,
    TopologyUnsatisfiable: 9,
    UnknownResource: 10,
}
#: Where more than this part of a resource is missing, it is rather another type that is wanted.
_LARGE_SHORTFALL = 0.5


def nearest_fit_order(miss: NearestFit) -> tuple[float, ...]:
    """Sort key: fewest changes first, then the likelier ones, then the least that is missing."""
    lacking = [_missing_share(obstacle) for obstacle in miss.failed_filters]
    ranks = sum(
        _RANKS[type(item)] + 2 * (part > _LARGE_SHORTFALL)
        for item, part in zip(miss.failed_filters, lacking, strict=True)
    )
    return (len(miss.failed_filters), ranks, sum(lacking))


def _missing_share(obstacle: FailedFilter) -> float:
    """The part of what is needed that is missing, where an obstacle is about an amount."""
    match obstacle:
        case InsufficientResource():
            return obstacle.missing / obstacle.asked
        case NodePoolLimitReached():
            return (obstacle.needed - obstacle.remaining) / obstacle.needed if obstacle.needed > 0 else 1.0
        case _:
            return 0.0


@dataclass(frozen=True, eq=False)
class _TypeFilter:
    """A constraint with the types that fall to it.

    ``nearest`` picks those of some types that come closest, ``at`` says what one of them, the first, falls to.
    """

    types: TypeSet
    obstacle_for: Callable[[TypeSet], FailedFilter]
    nearest_types: Callable[[TypeSet], TypeSet] = lambda types: types
    offerings: int = 0


@dataclass(frozen=True, eq=False)
class DiagnosisInput:
    """Pods of a class that look for a machine, at one step of their ladder.

    ``daemons``: those whose ports may be in the way; ``strict``: minValues out of reach are in the way as well (SCH-364);
    ``units``: what is left of reservations.
    """

    signature: PodSignature
    relaxation_step: RelaxationStep
    daemons: Sequence[DaemonSetPod]
    strict_min_values: bool
    reservation_units: Mapping[str, int] = field(default_factory=dict)


class NodePoolDiagnosis:
    """One NodePool asked why such pods get no machine of it. ``left``: what is left of its limits, None where it has none."""

    def __init__(self, subject: DiagnosisInput, template: NodePoolTemplate, left: Mapping[str, int] | None) -> None:
        self._requests = subject.signature.requests
        self._ports = subject.signature.host_ports
        self._relaxation_step = variant = subject.relaxation_step
        self._daemons = subject.daemons
        self._strict_min_values = subject.strict_min_values
        self._reservation_units = subject.reservation_units
        self._template = template
        self._index = template.index
        self._remaining_limits = left or {}
        clashes = incompatibilities(template.requirements, variant.requirements, self._index.well_known)
        self._clashes = {clash.required.key: clash for clash in clashes}
        #: By whose requirement and its label, the types that would have to be spared it.
        self._types_by_eased_requirement: dict[tuple[RequirementOwner, str], TypeSet] = {}

    @cached_property
    def _filters(self) -> tuple[_TypeFilter, ...]:
        found = [
            *self._taint_filters(),
            *self._requirement_filters(),
            *self._resource_filters(),
            *self._port_filters(),
            *self._limit_filters(),
        ]
        return tuple(hurdle for hurdle in (*found, *self._offering_filters()) if hurdle.types)

    @cached_property
    def _types_by_filter_count(self) -> tuple[TypeSet, ...]:
        """At place n the types that fall to n hurdles or more."""
        found = [self._index.all_types]
        for hurdle in self._filters:
            found.append(0)
            for place in range(len(found) - 1, 0, -1):
                found[place] |= found[place - 1] & hurdle.types
        return (*found, 0)

    # -- answers ------------------------------------------------------------------------------------------------------

    @cached_property
    def breakdown(self) -> FilterBreakdown:
        """What the types fall to, and how many."""
        once = self._types_by_filter_count[1] & ~self._types_by_filter_count[2] if self._filters else 0
        fallen = [
            FilteredTypes(
                hurdle.obstacle_for(hurdle.nearest_types(hurdle.types)),
                hurdle.types.bit_count(),
                (hurdle.types & once).bit_count(),
                hurdle.offerings,
            )
            for hurdle in self._filters
        ]
        now, gone = self._index.offering_counts(Requirements(), self._index.all_types)
        fallen.sort(key=lambda item: (-item.types, -item.only_by_this))
        return FilterBreakdown(len(self._index.types), now + gone, tuple(fallen))

    @property
    def has_fitting_type(self) -> bool:
        """Whether a type falls to nothing at all."""
        return bool(self._types_by_filter_count[0] & ~self._types_by_filter_count[1])

    @cached_property
    def nearest_fit(self) -> NearestFit | None:
        """The least that would have to change here; None where single constraints do not explain it."""
        least = next(
            place
            for place, types in enumerate(self._types_by_filter_count)
            if types & ~self._types_by_filter_count[place + 1]
        )
        types = self._types_by_filter_count[least] & ~self._types_by_filter_count[least + 1]
        found = self._smallest_fit(types) if least else NearestFit(self._min_values_obstacles(types))
        return replace(found, node_pool=self._template.name) if found.failed_filters else None

    def _min_values_obstacles(self, types: TypeSet) -> tuple[FailedFilter, ...]:
        """Where each of these types would do once what they fall to is gone: the values of which they together offer too few."""
        if not self._strict_min_values:
            return ()
        left = self._requirements_eased_for(next(members(types)))
        short = self._index.min_values_shortages(left, types)
        return tuple(MinValuesNotMet(key, left[key].min_values or 0, there) for key, there in sorted(short.items()))

    def _smallest_fit(self, types: TypeSet) -> NearestFit:
        ways: list[tuple[TypeSet, tuple[_TypeFilter, ...]]] = [(types, ())]
        for hurdle in self._filters:
            ways = list(islice(_split_by_filter(ways, hurdle), _MAX_FILTER_COMBINATIONS))
        return min((self._nearest_of_types(group, hurdles) for group, hurdles in ways), key=nearest_fit_order)

    def _nearest_of_types(self, types: TypeSet, filters: Sequence[_TypeFilter]) -> NearestFit:
        """The nearest of types that all fall to the same hurdles."""
        choices = {hurdle.nearest_types(types) for hurdle in filters}
        return min((self._fit_of_types(choice, filters) for choice in sorted(choices)), key=nearest_fit_order)

    def _fit_of_types(self, types: TypeSet, filters: Sequence[_TypeFilter]) -> NearestFit:
        obstacles = tuple(hurdle.obstacle_for(types) for hurdle in filters)
        depends = types.bit_count() == 1 or any(
            isinstance(item, InsufficientResource | NodePoolLimitReached) for item in obstacles
        )
        name = self._index.types[next(members(types))].name if depends else ""
        all_of_them = (*obstacles, *self._min_values_obstacles(types))
        return NearestFit(tuple(sorted(all_of_them, key=lambda item: -_RANKS[type(item)])), instance_type=name)

    # -- hurdles ------------------------------------------------------------------------------------------------------

    def _taint_filters(self) -> Iterator[_TypeFilter]:
        for taint in taints.untolerated(self._template.taints, self._relaxation_step.tolerations):
            yield _constant_filter(self._index.all_types, UntoleratedTaint(taint))

    @cached_property
    def _joint_requirements(self) -> Requirements:
        """The requirements of pool and pods; where they exclude each other, those of the pods."""
        own = self._template.requirements.without(self._clashes)
        return own.intersect(self._relaxation_step.requirements)

    def _requirement_filters(self) -> Iterator[_TypeFilter]:
        pool, pods = self._template.requirements, self._relaxation_step.requirements
        for clash in self._clashes.values():
            yield _constant_filter(self._index.all_types, _requirement_obstacle(clash))
        for key in sorted({*pool, *pods}):
            of_pool = self._types_not_meeting(pool[key]) if key in pool else 0
            of_pods = self._types_not_meeting(pods[key]) if key in pods else 0
            if key in self._clashes:
                # Whoever of the two gives way, a type that suits neither needs the other to do so as well.
                self._types_by_eased_requirement[RequirementOwner.POD, key] = of_pods
                self._types_by_eased_requirement[RequirementOwner.NODE_POOL, key] = (
                    self._index.all_types & ~of_pods | of_pool
                )
                of_pool, of_pods = of_pool & of_pods, 0
            else:
                if key in pods:
                    of_pods |= self._types_not_meeting(self._joint_requirements[key]) & ~of_pool
                self._types_by_eased_requirement[RequirementOwner.POD, key] = of_pods
                self._types_by_eased_requirement[RequirementOwner.NODE_POOL, key] = of_pool
            if of_pool:
                yield self._unmatched_filter(of_pool, pool[key], RequirementOwner.NODE_POOL)
            if of_pods:
                yield self._unmatched_filter(of_pods, pods[key], RequirementOwner.POD)

    def _requirements_eased_for(self, position: int) -> Requirements:
        """The requirements without those that a type would have to be spared."""
        return self._requirements_without(
            [place for place, types in self._types_by_eased_requirement.items() if types >> position & 1]
        )

    def _requirements_without(self, places: Iterable[tuple[RequirementOwner, str]]) -> Requirements:
        dropped: dict[RequirementOwner, list[str]] = {RequirementOwner.POD: [], RequirementOwner.NODE_POOL: []}
        for side, key in places:
            dropped[side].append(key)
        pool = self._template.requirements.without(dropped[RequirementOwner.NODE_POOL])
        return pool.intersect(self._relaxation_step.requirements.without(dropped[RequirementOwner.POD]))

    def _types_not_meeting(self, item: Requirement) -> TypeSet:
        """Types whose label does not meet the requirement, or that are never sold so."""
        alone = Requirements((item,))
        found = self._index.all_types & ~self._index.matching(alone)
        if item.key in self._index.all_offering_keys:
            found |= self._index.with_any_offering(Requirements()) & ~self._index.with_any_offering(alone)
        return found

    def _unmatched_filter(self, types: TypeSet, item: Requirement, side: RequirementOwner) -> _TypeFilter:
        index = self._index
        refused = 0
        if item.key in index.all_offering_keys:
            everywhere, accepted = index.offering_counts(Requirements(), index.all_types), Requirements((item,))
            refused = sum(everywhere) - sum(index.offering_counts(accepted, index.all_types))
        known = sorted(index.values(item.key, index.all_types))
        return _constant_filter(types, UnmetRequirement(item, side, tuple(known[:_MAX_VALUES_SHOWN])), refused)

    @cached_property
    def _overheads(self) -> tuple[tuple[TypeSet, Resources], ...]:
        """What DaemonSets take; of types the pool leaves out, the most they take on any."""
        groups = self._template.daemons
        others = self._index.all_types & ~self._template.types
        return (*((g.types, g.overhead) for g in groups), (others, res.maximum(g.overhead for g in groups)))

    def _resource_filters(self) -> Iterator[_TypeFilter]:
        most = self._index.max_allocatable(self._index.all_types)
        for name, amount in sorted(self._requests.items()):
            if amount <= 0:
                continue
            if most.get(name, 0) <= 0:
                yield _constant_filter(self._index.all_types, UnknownResource(name))
                continue
            fallen = 0
            for types, overhead in self._overheads:
                fallen |= types & ~self._index.fitting({name: amount + overhead.get(name, 0)})
            yield self._resource_filter(fallen, name, amount)

    def _resource_filter(self, fallen: TypeSet, name: str, amount: int) -> _TypeFilter:
        def at(types: TypeSet) -> FailedFilter:
            position = next(members(types))
            taken = next((overhead for group, overhead in self._overheads if group >> position & 1), {}).get(name, 0)
            item = self._index.types[position]
            return InsufficientResource(name, amount + taken, item.allocatable.get(name, 0), item.name, taken)

        return _TypeFilter(fallen, at, lambda types: self._index.largest_allocatable(name, types))

    def _port_filters(self) -> Iterator[_TypeFilter]:
        for port in self._ports:
            for daemon in self._daemons:
                if _takes_port(daemon, port):
                    template = self._template
                    on = types_running_daemon(daemon.spec, template.requirements, template.taints, template.index)
                    yield _constant_filter(on, HostPortTaken(port.port, port.protocol, daemon.name))

    def _limit_filters(self) -> Iterator[_TypeFilter]:
        for name, left in sorted(self._remaining_limits.items()):
            if name == res.NODES:
                if left < res.ONE_UNIT:
                    yield _constant_filter(self._index.all_types, NodePoolLimitReached(name, left, res.ONE_UNIT))
            else:
                yield self._limit_filter(name, left)

    def _limit_filter(self, name: str, left: int) -> _TypeFilter:
        def at(types: TypeSet) -> FailedFilter:
            return NodePoolLimitReached(name, left, self._index.types[next(members(types))].capacity.get(name, 0))

        beyond = self._index.all_types & ~self._index.within_limits({name: left})
        return _TypeFilter(beyond, at, lambda types: self._index.smallest_capacity(name, types))

    def _offering_filters(self) -> Iterator[_TypeFilter]:
        """Types that could not be bought even if the requirements they fall to alone were gone."""
        gone = never = taken = 0
        for places, types in self._types_by_easing():
            accepted = self._requirements_without(places)
            sold = self._index.with_available_offering(accepted)
            taken |= (
                types & sold & ~remaining_capacity.types_with_units_left(self._index, accepted, self._reservation_units)
            )
            missing = types & ~sold
            if missing:
                listed = self._index.with_any_offering(accepted)
                gone |= missing & listed
                never |= missing & ~listed
        yield _TypeFilter(
            gone, self._sold_out, offerings=self._index.offering_counts(self._joint_requirements, gone)[1]
        )
        yield _TypeFilter(taken, self._reservations_exhausted)
        keys = tuple(sorted(key for key in self._joint_requirements if key in self._index.all_offering_keys))
        yield _constant_filter(never, NoMatchingOffering(keys))

    def _types_by_easing(self) -> list[tuple[tuple[tuple[RequirementOwner, str], ...], TypeSet]]:
        """The types by the requirements on offerings they would have to be spared."""
        groups: list[tuple[tuple[tuple[RequirementOwner, str], ...], TypeSet]] = [((), self._index.all_types)]
        for place, spared in self._types_by_eased_requirement.items():
            if place[1] in self._index.all_offering_keys and spared:
                split = [((*places, place), types & spared) for places, types in groups]
                rest = [(places, types & ~spared) for places, types in groups]
                groups = [(places, types) for places, types in (*split, *rest) if types]
        return groups

    def _reservations_exhausted(self, types: TypeSet) -> FailedFilter:
        accepted = self._requirements_eased_for(next(members(types)))
        return ReservationsExhausted(
            remaining_capacity.exhausted_reservations(self._index, accepted, self._reservation_units, types)
        )

    def _sold_out(self, types: TypeSet) -> FailedFilter:
        zones: set[str] = set()
        kinds: set[str] = set()
        for position in islice(members(types), _MAX_TYPES_ASKED):
            accepted = self._requirements_eased_for(position)
            for offering in self._index.types[position].offerings:
                if not offering.available and compatible(accepted, offering.requirements, self._index.well_known):
                    zones.add(offering.zone)
                    kinds.add(offering.capacity_type)
        return OfferingsUnavailable(tuple(sorted(filter(None, zones))), tuple(sorted(filter(None, kinds))))


def _constant_filter(types: TypeSet, obstacle: FailedFilter, offerings: int = 0) -> _TypeFilter:
    """A hurdle that is the same for every type."""
    return _TypeFilter(types, lambda _: obstacle, offerings=offerings)


def _split_by_filter(
    ways: Iterable[tuple[TypeSet, tuple[_TypeFilter, ...]]], filter_: _TypeFilter
) -> Iterator[tuple[TypeSet, tuple[_TypeFilter, ...]]]:
    for types, hurdles in ways:
        if types & filter_.types:
            yield types & filter_.types, (*hurdles, filter_)
        if types & ~filter_.types:
            yield types & ~filter_.types, hurdles


def _requirement_obstacle(item: Incompatibility) -> FailedFilter:
    return (
        UndefinedLabel(item.required, item.suggested_key)
        if isinstance(item, UndefinedRequirementLabel)
        else ConflictingRequirement(item.required, item.offered)
    )


def _takes_port(daemon: DaemonSetPod, port: HostPort) -> bool:
    return any(held.conflicts_with(port) for held in host_ports_of(daemon.spec))
