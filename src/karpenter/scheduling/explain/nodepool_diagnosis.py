"""Why pods get no new node of a NodePool: how many types fail which filter, and the least that would have to change.

How many filters each type fails is counted for all types at once, bit by bit; the types that fail the fewest are the nearest
fits (SCH §13 Beyond). The same filters and sets give the figures from which upstream's row is derived (SCH-334), so both
answers come from one examination.

Alternatives considered: a first failing check in upstream's order, beside the filters, needs the same sets a second time and
may contradict them. Work: some ten operations on sets per constraint and pool, whatever the number of types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.scheduling.explain.nodepool_filters import DiagnosisInput, NodePoolFilters, TypeFilter
from karpenter.scheduling.failed_filters import (
    NODE_LIMIT,
    ConflictingRequirement,
    DevicesNotAllocatable,
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
    ReservationsExhausted,
    StaticPoolFull,
    TopologyUnsatisfiable,
    UndefinedLabel,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)
from karpenter.scheduling.offerings import remaining_capacity
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.unschedulable_reasons import NoFittingType, TypeCounts, UnschedulableReason

#: Combinations of filters that are compared for the nearest fit.
_MAX_FILTER_COMBINATIONS = 64
#: How likely a filter is to be what its owner can and wants to change, likeliest first.
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
    DevicesNotAllocatable: 8,
    TopologyUnsatisfiable: 9,
    UnknownResource: 10,
}
#: Where more than this share of a resource is missing, the pod rather wants another type.
_LARGE_SHORTFALL = 0.5

_FiltersByTypes = tuple[TypeSet, tuple[TypeFilter, ...]]


def nearest_fit_order(fit: NearestFit) -> tuple[float, ...]:
    """Sort key: fewest changes first, then the likelier ones, then the smallest shortfall."""
    missing = [_missing_share(failed) for failed in fit.failed_filters]
    ranks = sum(
        _RANKS[type(failed)] + 2 * (share > _LARGE_SHORTFALL)
        for failed, share in zip(fit.failed_filters, missing, strict=True)
    )
    return (len(fit.failed_filters), ranks, sum(missing))


def _missing_share(failed: FailedFilter) -> float:
    """The share of what is needed that is missing, where a filter is about an amount."""
    match failed:
        case InsufficientResource():
            return failed.missing / failed.asked
        case NodePoolLimitReached():
            return (failed.needed - failed.remaining) / failed.needed if failed.needed > 0 else 1.0
        case _:
            return 0.0


class NodePoolDiagnosis:
    """Why pods get no new node of one NodePool. ``limits``: what is left of the pool's limits, None where it has none."""

    def __init__(self, subject: DiagnosisInput, template: NodePoolTemplate, limits: Mapping[str, int] | None) -> None:
        self._subject = subject
        self._template = template
        self._index = template.index
        self._limits = limits
        self._filters = NodePoolFilters(subject, template, limits)

    @cached_property
    def _types_by_filter_count(self) -> tuple[TypeSet, ...]:
        """At place n the types that fail n filters or more."""
        counts = [self._index.all_types]
        for type_filter in self._filters.filters:
            counts.append(0)
            for place in range(len(counts) - 1, 0, -1):
                counts[place] |= counts[place - 1] & type_filter.types
        return (*counts, 0)

    # -- the reason ---------------------------------------------------------------------------------------------------

    @cached_property
    def reason(self) -> UnschedulableReason:
        """All figures about the pool's types."""
        step, template = self._subject.relaxation_step, self._template
        requirements = template.requirements.intersect(step.requirements)
        considered = self._types_within_limits & self._types_with_free_ports
        matching = considered & self._index.matching(requirements) & self._index.matching(step.requirements)
        with_room = considered & template.types_fitting(self._subject.signature.requests)
        if self._subject.devices is not None:
            demand = self._subject.signature.device_demand
            with_room = self._subject.devices.types_holding(self._index, with_room, ((demand, 1),))
        offered = considered & remaining_capacity.types_with_units_left(
            self._index, requirements, self._subject.reservation_units
        )
        fitting = matching & with_room & offered
        overheads = [group.overhead for group in template.daemons if group.types & considered and group.overhead]
        cause = NoFittingType(
            self._type_counts(considered, matching, with_room, offered),
            requirements,
            self._subject.signature.requests,
            res.minimum(overheads),
            res.maximum(overheads),
            tuple(sorted(self._index.min_values_shortages(requirements, fitting))) if fitting else (),
            self._breakdown,
            self.nearest_fit,
        )
        return UnschedulableReason(cause, template.name)

    @cached_property
    def _types_within_limits(self) -> TypeSet:
        limits = {name: amount for name, amount in (self._limits or {}).items() if name != NODE_LIMIT}
        return self._template.types & self._index.within_limits(limits) if limits else self._template.types

    @property
    def _types_with_free_ports(self) -> TypeSet:
        """Types on which no DaemonSet takes a host port of the pods (SCH-336)."""
        return self._template.types_with_free_ports(self._subject.signature.host_ports)

    def _type_counts(self, considered: TypeSet, matching: TypeSet, with_room: TypeSet, offered: TypeSet) -> TypeCounts:
        return TypeCounts(
            self._types_within_limits.bit_count(),
            considered.bit_count(),
            matching.bit_count(),
            with_room.bit_count(),
            offered.bit_count(),
            (matching & with_room).bit_count(),
            (with_room & offered).bit_count(),
            (matching & offered).bit_count(),
            (matching & with_room & offered).bit_count(),
        )

    @property
    def _breakdown(self) -> FilterBreakdown:
        """Which filter rules out how many types."""
        counts, filters = self._types_by_filter_count, self._filters.filters
        once = counts[1] & ~counts[2] if filters else 0
        filtered = [
            FilteredTypes(
                type_filter.failed_by(type_filter.nearest_types(type_filter.types)),
                type_filter.types.bit_count(),
                (type_filter.types & once).bit_count(),
                type_filter.offerings,
            )
            for type_filter in filters
        ]
        available, unavailable = self._index.offering_counts(Requirements(), self._index.all_types)
        filtered.sort(key=lambda filtered_types: (-filtered_types.types, -filtered_types.only_by_this))
        return FilterBreakdown(len(self._index.types), available + unavailable, tuple(filtered))

    # -- the nearest fit ----------------------------------------------------------------------------------------------

    @property
    def has_fitting_type(self) -> bool:
        """Whether a type fails no filter."""
        return bool(self._types_by_filter_count[0] & ~self._types_by_filter_count[1])

    @cached_property
    def nearest_fit(self) -> NearestFit | None:
        """The least that would have to change here; None where single constraints do not explain it."""
        counts = self._types_by_filter_count
        fewest = next(place for place, types in enumerate(counts) if types & ~counts[place + 1])
        types = counts[fewest] & ~counts[fewest + 1]
        nearest = self._smallest_fit(types) if fewest else NearestFit(self._unmet_min_values(types))
        return replace(nearest, node_pool=self._template.name) if nearest.failed_filters else None

    def _unmet_min_values(self, types: TypeSet) -> tuple[FailedFilter, ...]:
        """Labels of which these types together offer too few values, once the filters they fail are gone."""
        if not self._subject.strict_min_values:
            return ()
        left = self._filters.requirements_eased_for(next(members(types)))
        short = self._index.min_values_shortages(left, types)
        return tuple(
            MinValuesNotMet(key, left[key].min_values or 0, available) for key, available in sorted(short.items())
        )

    def _smallest_fit(self, types: TypeSet) -> NearestFit:
        combinations: list[_FiltersByTypes] = [(types, ())]
        for type_filter in self._filters.filters:
            combinations = list(islice(_split_by_filter(combinations, type_filter), _MAX_FILTER_COMBINATIONS))
        return min((self._nearest_of_types(group, failed) for group, failed in combinations), key=nearest_fit_order)

    def _nearest_of_types(self, types: TypeSet, filters: Sequence[TypeFilter]) -> NearestFit:
        """The nearest of types that all fail the same filters."""
        choices = {type_filter.nearest_types(types) for type_filter in filters}
        return min((self._fit_of_types(choice, filters) for choice in sorted(choices)), key=nearest_fit_order)

    def _fit_of_types(self, types: TypeSet, filters: Sequence[TypeFilter]) -> NearestFit:
        failed = tuple(type_filter.failed_by(types) for type_filter in filters)
        depends_on_type = types.bit_count() == 1 or any(
            isinstance(failed_filter, InsufficientResource | NodePoolLimitReached) for failed_filter in failed
        )
        name = self._index.types[next(members(types))].name if depends_on_type else ""
        changes = (*failed, *self._unmet_min_values(types))
        return NearestFit(
            tuple(sorted(changes, key=lambda failed_filter: -_RANKS[type(failed_filter)])), instance_type=name
        )


def _split_by_filter(combinations: Iterable[_FiltersByTypes], type_filter: TypeFilter) -> Iterator[_FiltersByTypes]:
    for types, failed in combinations:
        if types & type_filter.types:
            yield types & type_filter.types, (*failed, type_filter)
        if types & ~type_filter.types:
            yield types & ~type_filter.types, failed
