"""Which of a NodePool's instance types each constraint of pods, pool and cluster rules out.

Every constraint becomes a `TypeFilter`: the set of types that fail it. All instance types of the pool are filtered, also
those the pool's own requirements leave out, so that such a requirement can be found to be the obstacle. Fit is judged
without offerings, so that "too large" and "unavailable" are told apart (SCH-331 Beyond).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Incompatibility, Requirement, Requirements, compatible, incompatibilities
from karpenter.model.requirements import UndefinedKey as UndefinedRequirementLabel
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.failed_filters import (
    NODE_LIMIT,
    ConflictingRequirement,
    DevicesNotAllocatable,
    FailedFilter,
    HostPortTaken,
    InsufficientResource,
    NodePoolLimitReached,
    NoMatchingOffering,
    OfferingsUnavailable,
    RequirementOwner,
    ReservationsExhausted,
    UndefinedLabel,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)
from karpenter.scheduling.offerings import remaining_capacity
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate, types_running_daemon
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.state.host_ports import host_ports_of
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import DaemonSetPod

#: Values shown of a label, and types whose unavailable offerings are collected.
_MAX_VALUES_SHOWN = 5
_MAX_TYPES_INSPECTED = 64

#: The requirement on a label of the pod or of the NodePool.
OwnedKey = tuple[RequirementOwner, str]


@dataclass(frozen=True, eq=False)
class TypeFilter:
    """A constraint with the types that fail it.

    ``failed_by`` describes the failure of the first of some types, ``nearest_types`` picks those that come closest to passing.
    """

    types: TypeSet
    failed_by: Callable[[TypeSet], FailedFilter]
    nearest_types: Callable[[TypeSet], TypeSet] = lambda types: types
    offerings: int = 0


@dataclass(frozen=True, eq=False)
class DiagnosisInput:
    """Pods of one signature at one relaxation step.

    ``daemons``: DaemonSets whose ports may conflict; ``strict_min_values``: unmet minValues are a failure too (SCH-364);
    ``reservation_units``: what is left of reservations; ``devices``: those of types, where pods ask for devices.
    """

    signature: PodSignature
    relaxation_step: RelaxationStep
    daemons: Sequence[DaemonSetPod]
    strict_min_values: bool
    reservation_units: Mapping[str, int] = field(default_factory=dict)
    devices: TypeDevices | None = None


class NodePoolFilters:
    """The filters of one NodePool. ``limits``: what is left of the pool's limits, None where it has none."""

    def __init__(self, subject: DiagnosisInput, template: NodePoolTemplate, limits: Mapping[str, int] | None) -> None:
        self._subject = subject
        self._relaxation_step = step = subject.relaxation_step
        self._template = template
        self._index = template.index
        self._remaining_limits = limits or {}
        conflicts = incompatibilities(template.requirements, step.requirements, self._index.well_known)
        self._conflicts = {conflict.required.key: conflict for conflict in conflicts}
        #: By whose requirement on which label, the types that would have to be exempt from it.
        self._types_by_eased_requirement: dict[OwnedKey, TypeSet] = {}

    @cached_property
    def filters(self) -> tuple[TypeFilter, ...]:
        """Those that some type fails. Offerings come last, as they depend on the requirements that are eased."""
        filters = [
            *self._taint_filters(),
            *self._requirement_filters(),
            *self._resource_filters(),
            *self._port_filters(),
            *self._device_filters(),
            *self._limit_filters(),
        ]
        return tuple(type_filter for type_filter in (*filters, *self._offering_filters()) if type_filter.types)

    def requirements_eased_for(self, position: int) -> Requirements:
        """The requirements of pool and pods without those that a type would have to be exempt from."""
        return self._requirements_without(
            [owned_key for owned_key, types in self._types_by_eased_requirement.items() if types >> position & 1]
        )

    # -- taints and requirements --------------------------------------------------------------------------------------

    def _taint_filters(self) -> Iterator[TypeFilter]:
        for taint in taints.untolerated(self._template.taints, self._relaxation_step.tolerations):
            yield _constant_filter(self._index.all_types, UntoleratedTaint(taint))

    @cached_property
    def _joint_requirements(self) -> Requirements:
        """The requirements of pool and pods; where they exclude each other, those of the pods."""
        own = self._template.requirements.without(self._conflicts)
        return own.intersect(self._relaxation_step.requirements)

    def _requirement_filters(self) -> Iterator[TypeFilter]:
        pool, pods = self._template.requirements, self._relaxation_step.requirements
        for conflict in self._conflicts.values():
            yield _constant_filter(self._index.all_types, _requirement_filter(conflict))
        for key in sorted({*pool, *pods}):
            of_pool, of_pods = self._types_failing_key(key)
            if of_pool:
                yield self._unmet_filter(of_pool, pool[key], RequirementOwner.NODE_POOL)
            if of_pods:
                yield self._unmet_filter(of_pods, pods[key], RequirementOwner.POD)

    def _types_failing_key(self, key: str) -> tuple[TypeSet, TypeSet]:
        """Types that fail the pool's requirement on a label, and those that fail the pods' (each type counted once)."""
        pool, pods = self._template.requirements, self._relaxation_step.requirements
        of_pool = self._types_not_meeting(pool[key]) if key in pool else 0
        of_pods = self._types_not_meeting(pods[key]) if key in pods else 0
        if key in self._conflicts:
            # Whichever of the two is eased, a type that meets neither needs the other eased as well.
            self._types_by_eased_requirement[RequirementOwner.POD, key] = of_pods
            others = self._index.all_types & ~of_pods
            self._types_by_eased_requirement[RequirementOwner.NODE_POOL, key] = others | of_pool
            return of_pool & of_pods, 0
        if key in pods:
            of_pods |= self._types_not_meeting(self._joint_requirements[key]) & ~of_pool
        self._types_by_eased_requirement[RequirementOwner.POD, key] = of_pods
        self._types_by_eased_requirement[RequirementOwner.NODE_POOL, key] = of_pool
        return of_pool, of_pods

    def _requirements_without(self, eased: Iterable[OwnedKey]) -> Requirements:
        dropped: dict[RequirementOwner, list[str]] = {RequirementOwner.POD: [], RequirementOwner.NODE_POOL: []}
        for owner, key in eased:
            dropped[owner].append(key)
        pool = self._template.requirements.without(dropped[RequirementOwner.NODE_POOL])
        return pool.intersect(self._relaxation_step.requirements.without(dropped[RequirementOwner.POD]))

    def _types_not_meeting(self, required: Requirement) -> TypeSet:
        """Types whose label does not meet the requirement, or that have no such offering."""
        alone = Requirements((required,))
        failing = self._index.all_types & ~self._index.matching(alone)
        if required.key in self._index.all_offering_keys:
            failing |= self._index.with_any_offering(Requirements()) & ~self._index.with_any_offering(alone)
        return failing

    def _unmet_filter(self, types: TypeSet, required: Requirement, owner: RequirementOwner) -> TypeFilter:
        index = self._index
        excluded = 0
        if required.key in index.all_offering_keys:
            total, accepted = index.offering_counts(Requirements(), index.all_types), Requirements((required,))
            excluded = sum(total) - sum(index.offering_counts(accepted, index.all_types))

        def failed_by(nearest: TypeSet) -> FailedFilter:
            values = sorted(index.values(required.key, nearest))
            return UnmetRequirement(required, owner, tuple(values[:_MAX_VALUES_SHOWN]), len(values))

        return TypeFilter(types, failed_by, offerings=excluded)

    # -- resources, ports, limits -------------------------------------------------------------------------------------

    @cached_property
    def _overheads(self) -> tuple[tuple[TypeSet, Resources], ...]:
        """What DaemonSets take; of types the pool leaves out, the most they take on any."""
        groups = self._template.daemons
        others = self._index.all_types & ~self._template.types
        return (*((g.types, g.overhead) for g in groups), (others, res.maximum(g.overhead for g in groups)))

    def _resource_filters(self) -> Iterator[TypeFilter]:
        most = self._index.max_allocatable(self._index.all_types)
        for name, amount in sorted(self._subject.signature.requests.items()):
            if amount <= 0:
                continue
            if most.get(name, 0) <= 0:
                yield _constant_filter(self._index.all_types, UnknownResource(name))
                continue
            too_small = 0
            for types, overhead in self._overheads:
                too_small |= types & ~self._index.fitting({name: amount + overhead.get(name, 0)})
            yield self._resource_filter(too_small, name, amount)

    def _resource_filter(self, too_small: TypeSet, name: str, amount: int) -> TypeFilter:
        def failed_by(types: TypeSet) -> FailedFilter:
            position = next(members(types))
            taken = next((overhead for group, overhead in self._overheads if group >> position & 1), {}).get(name, 0)
            largest = self._index.types[position]
            return InsufficientResource(name, amount + taken, largest.allocatable.get(name, 0), largest.name, taken)

        return TypeFilter(too_small, failed_by, lambda types: self._index.largest_allocatable(name, types))

    def _port_filters(self) -> Iterator[TypeFilter]:
        template = self._template
        for port in self._subject.signature.host_ports:
            for daemon in self._subject.daemons:
                taken = next((held for held in host_ports_of(daemon.spec) if held.conflicts_with(port)), None)
                if taken is not None:
                    types = types_running_daemon(daemon.spec, template.requirements, template.taints, template.index)
                    yield _constant_filter(types, HostPortTaken(port, taken, daemon.name))

    def _device_filters(self) -> Iterator[TypeFilter]:
        """Types with enough devices that nevertheless cannot satisfy the claims."""
        demand, devices = self._subject.signature.device_demand, self._subject.devices
        if demand is None or devices is None:
            return
        enough = self._index.fitting(devices.requests_of(demand))
        failing = enough & ~devices.types_holding(self._index, enough, ((demand, 1),))
        classes = {
            alternative.filter.device_class
            for claim in demand.all_devices
            for request in claim.requests
            for alternative in request.alternatives
        }
        yield _constant_filter(failing, DevicesNotAllocatable(tuple(sorted(classes))))

    def _limit_filters(self) -> Iterator[TypeFilter]:
        for name, left in sorted(self._remaining_limits.items()):
            if name == NODE_LIMIT:
                if left < res.ONE_UNIT:
                    yield _constant_filter(self._index.all_types, NodePoolLimitReached(name, left, res.ONE_UNIT))
            else:
                yield self._limit_filter(name, left)

    def _limit_filter(self, name: str, left: int) -> TypeFilter:
        def failed_by(types: TypeSet) -> FailedFilter:
            return NodePoolLimitReached(name, left, self._index.types[next(members(types))].capacity.get(name, 0))

        beyond = self._index.all_types & ~self._index.within_limits({name: left})
        return TypeFilter(beyond, failed_by, lambda types: self._index.smallest_capacity(name, types))

    # -- offerings ----------------------------------------------------------------------------------------------------

    def _offering_filters(self) -> Iterator[TypeFilter]:
        """Types that could not be launched even if the requirements they fail were eased for them."""
        unavailable = unmatched = exhausted = 0
        for eased, types in self._types_by_easing():
            accepted = self._requirements_without(eased)
            available = self._index.with_available_offering(accepted)
            exhausted |= types & available & ~self._types_with_units_left(accepted)
            missing = types & ~available
            if missing:
                listed = self._index.with_any_offering(accepted)
                unavailable |= missing & listed
                unmatched |= missing & ~listed
        offerings = self._index.offering_counts(self._joint_requirements, unavailable)[1]
        yield TypeFilter(unavailable, self._unavailable_offerings, offerings=offerings)
        yield TypeFilter(exhausted, self._exhausted_reservations)
        keys = tuple(sorted(key for key in self._joint_requirements if key in self._index.all_offering_keys))
        yield _constant_filter(unmatched, NoMatchingOffering(keys))

    def _types_with_units_left(self, accepted: Requirements) -> TypeSet:
        return remaining_capacity.types_with_units_left(self._index, accepted, self._subject.reservation_units)

    def _types_by_easing(self) -> list[tuple[tuple[OwnedKey, ...], TypeSet]]:
        """The types by the requirements on offerings they would have to be exempt from."""
        groups: list[tuple[tuple[OwnedKey, ...], TypeSet]] = [((), self._index.all_types)]
        for owned_key, exempt in self._types_by_eased_requirement.items():
            if owned_key[1] in self._index.all_offering_keys and exempt:
                split = [((*eased, owned_key), types & exempt) for eased, types in groups]
                rest = [(eased, types & ~exempt) for eased, types in groups]
                groups = [(eased, types) for eased, types in (*split, *rest) if types]
        return groups

    def _exhausted_reservations(self, types: TypeSet) -> FailedFilter:
        accepted = self.requirements_eased_for(next(members(types)))
        names = remaining_capacity.exhausted_reservations(self._index, accepted, self._subject.reservation_units, types)
        stocks = [self._index.counted.stocks[name] for name in names if name in self._index.counted.stocks]
        if not stocks:
            return ReservationsExhausted(names)
        zones, capacity_types = (
            tuple(sorted({value for stock in stocks for value in stock[key].values}))
            for key in (labels.ZONE, labels.CAPACITY_TYPE)
        )
        return OfferingsUnavailable(zones, capacity_types)

    def _unavailable_offerings(self, types: TypeSet) -> FailedFilter:
        zones: set[str] = set()
        capacity_types: set[str] = set()
        full: set[str] = set()
        for position in islice(members(types), _MAX_TYPES_INSPECTED):
            accepted = self.requirements_eased_for(position)
            for offering in self._index.types[position].offerings:
                if offering.launchable or not compatible(accepted, offering.requirements, self._index.well_known):
                    continue
                if offering.available and not offering.stock:
                    full.add(offering.reservation_id)
                else:
                    zones.add(offering.zone)
                    capacity_types.add(offering.capacity_type)
        if full and not capacity_types:
            return ReservationsExhausted(tuple(sorted(full)))
        return OfferingsUnavailable(tuple(sorted(filter(None, zones))), tuple(sorted(filter(None, capacity_types))))


def _constant_filter(types: TypeSet, failed_filter: FailedFilter, offerings: int = 0) -> TypeFilter:
    """A filter that fails in the same way for every type."""
    return TypeFilter(types, lambda _: failed_filter, offerings=offerings)


def _requirement_filter(incompatibility: Incompatibility) -> FailedFilter:
    return (
        UndefinedLabel(incompatibility.required, incompatibility.suggested_key)
        if isinstance(incompatibility, UndefinedRequirementLabel)
        else ConflictingRequirement(incompatibility.required, incompatibility.offered)
    )
