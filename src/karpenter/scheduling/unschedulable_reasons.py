"""Why a pod is unschedulable, as data: the one vocabulary from which Karpenter's texts and ours are both rendered.

An `UnschedulableReason` concerns one NodePool, or the pod itself. Its cause is one of `UnschedulableCause`; where the types
of a NodePool were examined, that is a `NoFittingType` with the figures: how many types pass which checks, which
`FailedFilter` rules out how many types, and the `NearestFit`, a smallest set of filters that would have to give way.

No text is built here. ``explain`` makes sentences of these values, and the row of upstream's table (SCH-334) is derived from
the figures (`UnschedulableReason.category`). Every class has a pinned ``kind``, which machine-readable output shows, so
renaming a class changes nothing for users. Amounts are thousandths, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements
from karpenter.model.resources import Resources
from karpenter.state.host_ports import HostPort

# -- filters ------------------------------------------------------------------------------------------------------------


class RequirementOwner(StrEnum):
    """Whose requirement it is."""

    POD = "pod"
    NODE_POOL = "pool"


@dataclass(frozen=True, slots=True)
class UntoleratedTaint:
    """A taint the pod does not tolerate."""

    kind: ClassVar[str] = "untolerated-taint"
    taint: Taint


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement instance types do not meet. ``offered`` are values they have instead, the first few by name."""

    kind: ClassVar[str] = "unmet-requirement"
    asked: Requirement
    owner: RequirementOwner
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConflictingRequirement:
    """The pod and the NodePool require values of a label that exclude each other."""

    kind: ClassVar[str] = "conflicting-requirement"
    asked: Requirement
    offered: Requirement


@dataclass(frozen=True, slots=True)
class UndefinedLabel:
    """The pod requires a label the NodePool does not define. ``suggestion`` is a label it may be a typo of, if any."""

    kind: ClassVar[str] = "undefined-label"
    asked: Requirement
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class UnknownResource:
    """A resource that no instance type of the NodePool has."""

    kind: ClassVar[str] = "unknown-resource"
    resource: str


@dataclass(frozen=True, slots=True)
class InsufficientResource:
    """Too little of a resource. ``asked`` includes ``daemonset_requests``; ``available`` is allocatable on the type or node."""

    kind: ClassVar[str] = "insufficient-resource"
    resource: str
    asked: int
    available: int
    instance_type: str
    daemonset_requests: int = 0

    @property
    def missing(self) -> int:
        """The shortfall."""
        return self.asked - self.available


@dataclass(frozen=True, slots=True)
class OfferingsUnavailable:
    """All matching offerings are unavailable now; ``zones`` and ``capacity_types`` are theirs."""

    kind: ClassVar[str] = "offerings-unavailable"
    zones: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationsExhausted:
    """All matching offerings are reservations without a unit left. A reserved offering may have no reservation id."""

    kind: ClassVar[str] = "reservations-exhausted"
    reservations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoMatchingOffering:
    """No offering of a type meets all requirements on offerings together. ``keys`` are those requirements' labels."""

    kind: ClassVar[str] = "no-matching-offering"
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostPortTaken:
    """``port``, a host port of the pod, conflicts with ``taken``, which a DaemonSet takes on every node."""

    kind: ClassVar[str] = "host-port-taken"
    port: HostPort
    taken: HostPort
    daemon_set: str


@dataclass(frozen=True, slots=True)
class NodePoolLimitReached:
    """A limit of the NodePool that leaves less than a node needs."""

    kind: ClassVar[str] = "node-pool-limit-reached"
    resource: str
    remaining: int
    needed: int


@dataclass(frozen=True, slots=True)
class MinValuesNotMet:
    """Fewer values of a label are left than a requirement's ``minValues``."""

    kind: ClassVar[str] = "min-values-not-met"
    key: str
    wanted: int
    available: int


@dataclass(frozen=True, slots=True)
class StaticPoolFull:
    """The NodePool has a fixed number of nodes, and none of them has room."""

    kind: ClassVar[str] = "static-pool-full"
    replicas: int


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """What SCH-523 shows of a topology group: pods by domain, the first few, and in which domains nodes may be launched."""

    pods: tuple[tuple[str, int], ...]
    more_domains: int
    node_domains: Requirement


@dataclass(frozen=True, slots=True)
class TopologyUnsatisfiable:
    """A topology constraint that leaves no domain (SCH-523). The pod states it (``is_own_constraint``), or other pods do.

    ``asked``: the domains the pod itself accepts; ``domain_counts``: pods that match (of others' constraints: pods that state
    it) by domain; ``unserved_domains``: domains it allows in which no NodePool may launch nodes; ``known_domains``: the counts
    that upstream's text shows.
    """

    kind: ClassVar[str] = "topology-unsatisfiable"
    relation: str
    key: str
    is_own_constraint: bool
    asked: Requirement
    known_domains: DomainCounts
    domain_counts: Mapping[str, int] = field(default_factory=dict)
    unserved_domains: tuple[str, ...] = ()


FailedFilter = (
    UntoleratedTaint
    | UnmetRequirement
    | ConflictingRequirement
    | UndefinedLabel
    | UnknownResource
    | InsufficientResource
    | OfferingsUnavailable
    | ReservationsExhausted
    | NoMatchingOffering
    | HostPortTaken
    | NodePoolLimitReached
    | MinValuesNotMet
    | StaticPoolFull
    | TopologyUnsatisfiable
)


@dataclass(frozen=True, slots=True)
class TopologyConfinement:
    """A topology constraint that leaves one domain for the next pod, where no node can be launched."""

    relation: str
    key: str
    domain: str


@dataclass(frozen=True, slots=True)
class NearestFit:
    """The least that would have to change for the pod to fit one node. All of ``failed_filters`` would have to give way.

    A new node of ``node_pool`` and ``instance_type``, or the existing ``node``; neither where only topology is in the way.
    ``confinements`` are the topology constraints that leave no other domain.
    """

    failed_filters: tuple[FailedFilter, ...]
    node_pool: str = ""
    instance_type: str = ""
    node: str = ""
    confinements: tuple[TopologyConfinement, ...] = ()


@dataclass(frozen=True, slots=True)
class FilteredTypes:
    """How many types of a NodePool a filter rules out, ``only_by_this`` of which no other filter does.

    ``offerings`` counts the offerings of those types it rules out, where the filter is about offerings.
    """

    failed_filter: FailedFilter
    types: int
    only_by_this: int
    offerings: int = 0


@dataclass(frozen=True, slots=True)
class FilterBreakdown:
    """The filters that rule out a NodePool's types, the most types first. ``types`` and ``offerings`` are the totals."""

    types: int
    offerings: int
    filtered: tuple[FilteredTypes, ...]

    @property
    def failed_filters(self) -> tuple[FailedFilter, ...]:
        """The filters alone."""
        return tuple(filtered_types.failed_filter for filtered_types in self.filtered)


# -- causes -------------------------------------------------------------------------------------------------------------


class PoolSkipReason(StrEnum):
    """Why a NodePool takes no part in a pass (SCH-110, SCH-115, SCH-122)."""

    STATIC = "static"
    DELETING = "deleting"
    NOT_READY = "not-ready"
    UNRESOLVED = "unresolved"
    NO_TYPES = "no-types"
    FILTERED = "filtered"
    FILTERED_MIN_VALUES = "filtered-min-values"


@dataclass(frozen=True, slots=True)
class InvalidPod:
    """The pod's own constraints are invalid or unsupported; ``errors`` are the validation's messages."""

    kind: ClassVar[str] = "invalid-pod"
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptedOut:
    """The pod requires a node that no NodePool made: not an error, and not reported as one (SCH-051)."""

    kind: ClassVar[str] = "opted-out"


@dataclass(frozen=True, slots=True)
class UnsupportedResourceClaims:
    """The pod uses Dynamic Resource Allocation; ``claims`` are its claims' names."""

    kind: ClassVar[str] = "unsupported-resource-claims"
    claims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VolumeUnusable:
    """A volume of the pod cannot be used. ``is_transient``: it normally can within seconds, such as one being provisioned."""

    kind: ClassVar[str] = "volume-unusable"
    error: str
    is_transient: bool = False


@dataclass(frozen=True, slots=True)
class NoNodePool:
    """There is no NodePool at all."""

    kind: ClassVar[str] = "no-node-pool"


@dataclass(frozen=True, slots=True)
class NodePoolSkipped:
    """The NodePool took no part in the pass. ``none_tried``: nor did any other."""

    kind: ClassVar[str] = "node-pool-skipped"
    skip_reason: PoolSkipReason
    detail: str = ""
    none_tried: bool = False


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No node takes the pod; a what-if question asks no further."""

    kind: ClassVar[str] = "no-room"


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """How many types of a NodePool pass which checks.

    Of those within limits and with free host ports (``considered``) so many meet the requirements, have room for the pod, have
    an available offering, and pass two of these checks or all.
    """

    within_limits: int = 0
    considered: int = 0
    matching: int = 0
    with_room: int = 0
    offered: int = 0
    matching_with_room: int = 0
    with_room_offered: int = 0
    matching_offered: int = 0
    fitting: int = 0


@dataclass(frozen=True, slots=True)
class NoFittingType:
    """No instance type of a NodePool that was tried can be launched for the pod.

    ``requirements`` are those of pool and pod together, ``requests`` the pod's; DaemonSets add between the two amounts.
    ``short_labels``: labels of which the types that fit have fewer values than ``minValues``.
    """

    kind: ClassVar[str] = "no-fitting-type"
    counts: TypeCounts
    requirements: Requirements
    requests: Resources
    least_daemon_requests: Resources
    most_daemon_requests: Resources
    short_labels: tuple[str, ...]
    breakdown: FilterBreakdown
    nearest_fit: NearestFit | None = None


UnschedulableCause = (
    InvalidPod
    | OptedOut
    | UnsupportedResourceClaims
    | VolumeUnusable
    | TopologyUnsatisfiable
    | NoNodePool
    | NodePoolSkipped
    | NoRoom
    | NoFittingType
)


class ReasonCategory(StrEnum):
    """The row of upstream's table that a reason belongs to (SCH-860; the ``types-`` ones are the rows of SCH-334)."""

    POD = "pod"
    TOPOLOGY = "topology"
    VOLUME = "volume"
    HOST_PORT = "host-port"
    DEVICE = "device"
    NO_POOL = "no-pool"
    SKIPPED_POOL = "skipped-pool"
    NO_TYPES = "no-types"
    LIMITS = "limits"
    TAINT = "taint"
    REQUIREMENTS = "requirements"
    MIN_VALUES = "min-values"
    TYPES_NOTHING = "types-nothing"
    TYPES_REQUIREMENTS_RESOURCES = "types-requirements-or-resources"
    TYPES_REQUIREMENTS_OFFERING = "types-requirements-or-offering"
    TYPES_RESOURCES_OFFERING = "types-resources-or-offering"
    TYPES_REQUIREMENTS = "types-requirements"
    TYPES_RESOURCES = "types-resources"
    TYPES_OFFERING = "types-offering"
    TYPES_NOT_ALL_OFFERING = "types-offering-of-fitting"
    TYPES_NOT_ALL_REQUIREMENTS = "types-requirements-of-fitting"
    TYPES_NOT_ALL_RESOURCES = "types-resources-of-matching"
    TYPES_NEVER_TOGETHER = "types-never-together"


@dataclass(frozen=True, slots=True)
class UnschedulableReason:
    """One reason: its cause, and the NodePool it concerns, if any."""

    cause: UnschedulableCause
    node_pool: str = ""

    @property
    def category(self) -> ReasonCategory:
        """The row of upstream's table."""
        match self.cause:
            case NoFittingType():
                return _category_of_types(self.cause)
            case NodePoolSkipped():
                return _category_of_skipped(self.cause)
            case _:
                return _CATEGORIES[type(self.cause)]

    @property
    def is_transient(self) -> bool:
        """Whether the cause normally goes away within seconds."""
        return isinstance(self.cause, VolumeUnusable) and self.cause.is_transient

    @property
    def filter_breakdown(self) -> FilterBreakdown | None:
        """Which filter rules out how many types, where a NodePool's types were examined."""
        return self.cause.breakdown if isinstance(self.cause, NoFittingType) else None

    @property
    def nearest_fit(self) -> NearestFit | None:
        """The least that would have to change, where that is known."""
        match self.cause:
            case NoFittingType():
                return self.cause.nearest_fit
            case TopologyUnsatisfiable():
                return NearestFit((self.cause,))
            case _:
                return None


_CATEGORIES: Mapping[type[UnschedulableCause], ReasonCategory] = {
    InvalidPod: ReasonCategory.POD,
    OptedOut: ReasonCategory.POD,
    UnsupportedResourceClaims: ReasonCategory.DEVICE,
    VolumeUnusable: ReasonCategory.VOLUME,
    TopologyUnsatisfiable: ReasonCategory.TOPOLOGY,
    NoNodePool: ReasonCategory.NO_POOL,
    NoRoom: ReasonCategory.NO_TYPES,
}
#: By whether any types match, have room, are offered.
_ROWS_OF_NONE = {
    (False, False, False): ReasonCategory.TYPES_NOTHING,
    (False, False, True): ReasonCategory.TYPES_REQUIREMENTS_RESOURCES,
    (False, True, False): ReasonCategory.TYPES_REQUIREMENTS_OFFERING,
    (True, False, False): ReasonCategory.TYPES_RESOURCES_OFFERING,
    (False, True, True): ReasonCategory.TYPES_REQUIREMENTS,
    (True, False, True): ReasonCategory.TYPES_RESOURCES,
    (True, True, False): ReasonCategory.TYPES_OFFERING,
}


def _category_of_skipped(skipped: NodePoolSkipped) -> ReasonCategory:
    if skipped.skip_reason in (PoolSkipReason.FILTERED, PoolSkipReason.FILTERED_MIN_VALUES):
        return ReasonCategory.NO_TYPES
    return ReasonCategory.NO_POOL if skipped.none_tried else ReasonCategory.SKIPPED_POOL


def _category_of_types(cause: NoFittingType) -> ReasonCategory:
    """The first check that no type passes, in upstream's order."""
    filters = cause.breakdown.failed_filters
    if not cause.counts.within_limits or NODE_LIMIT in map(_limited_resource, filters):
        return ReasonCategory.LIMITS
    if any(isinstance(item, UntoleratedTaint) for item in filters):
        return ReasonCategory.TAINT
    if any(isinstance(item, ConflictingRequirement | UndefinedLabel) for item in filters):
        return ReasonCategory.REQUIREMENTS
    if not cause.counts.considered:
        return ReasonCategory.HOST_PORT
    return ReasonCategory.MIN_VALUES if cause.short_labels else _category_of_counts(cause.counts)


#: The resource whose limit counts nodes.
NODE_LIMIT = res.NODES


def _limited_resource(failed_filter: FailedFilter) -> str:
    return failed_filter.resource if isinstance(failed_filter, NodePoolLimitReached) else ""


def _category_of_counts(counts: TypeCounts) -> ReasonCategory:
    """The row of SCH-334 that says which of the three checks no type passes, alone and together."""
    passed = (counts.matching > 0, counts.with_room > 0, counts.offered > 0)
    if passed in _ROWS_OF_NONE:
        return _ROWS_OF_NONE[passed]
    if counts.fitting:
        return ReasonCategory.TYPES_NEVER_TOGETHER
    if counts.matching_with_room:
        return ReasonCategory.TYPES_NOT_ALL_OFFERING
    if counts.with_room_offered:
        return ReasonCategory.TYPES_NOT_ALL_REQUIREMENTS
    if counts.matching_offered:
        return ReasonCategory.TYPES_NOT_ALL_RESOURCES
    return ReasonCategory.TYPES_NEVER_TOGETHER
