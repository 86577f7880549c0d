"""What stands between a pod and a machine, as data: how many types fall to what, and the least that would have to change.

An `Obstacle` is one fact with its numbers. A `Fallen` counts the instance types of a NodePool that an obstacle rules out; a
`Miss` is a smallest set of obstacles between the pod and one machine: take them away and it fits. ``explain`` makes sentences
of them. Amounts are thousandths, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpenter.api.scheduling_constraints import Taint
from karpenter.model.requirements import Incompatibility, Requirement, Requirements
from karpenter.model.resources import Resources


class RequirementOwner(StrEnum):
    """Whose requirement it is."""

    POD = "pod"
    NODE_POOL = "pool"


@dataclass(frozen=True, slots=True)
class UntoleratedTaint:
    """A taint the pod does not tolerate."""

    taint: Taint


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement instance types do not meet. ``offered`` are values they have instead, the first few by name."""

    asked: Requirement
    owner: RequirementOwner
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConflictingRequirement:
    """The pod and the NodePool want values of a label that exclude each other."""

    asked: Requirement
    offered: Requirement


@dataclass(frozen=True, slots=True)
class UndefinedLabel:
    """The pod asks for a label the NodePool does not define. ``meant`` is one it may be a slip of, if any."""

    asked: Requirement
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class UnknownResource:
    """A resource no instance type of the NodePool has any of."""

    resource: str


@dataclass(frozen=True, slots=True)
class InsufficientResource:
    """Too little of a resource. ``asked`` includes ``daemons``, what DaemonSets take; ``there`` is allocatable on ``where``."""

    resource: str
    asked: int
    available: int
    instance_type: str
    daemonset_requests: int = 0

    @property
    def missing(self) -> int:
        """What is missing."""
        return self.asked - self.available


@dataclass(frozen=True, slots=True)
class OfferingsUnavailable:
    """Where and how a type would be bought if it were not sold out there now."""

    zones: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationsExhausted:
    """A type that could only be bought from reservations without any unit left; reserved capacity may also bear no name."""

    reservations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoMatchingOffering:
    """A type is sold in no way that meets all requirements on offerings together. ``keys`` are those requirements' labels."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostPortTaken:
    """A host port that a DaemonSet takes on every machine."""

    port: int
    protocol: str
    daemon_set: str


@dataclass(frozen=True, slots=True)
class NodePoolLimitReached:
    """A limit of the NodePool that leaves less than a machine needs."""

    resource: str
    remaining: int
    needed: int


@dataclass(frozen=True, slots=True)
class MinValuesNotMet:
    """A requirement's ``minValues`` is out of reach: so many values of the label are left."""

    key: str
    wanted: int
    available: int


@dataclass(frozen=True, slots=True)
class StaticPoolFull:
    """The NodePool has a fixed number of machines, and none of them has room."""

    replicas: int


@dataclass(frozen=True, slots=True)
class TopologyUnsatisfiable:
    """A constraint between pods that leaves no domain (SCH-523). ``own``: the pod states it, else others that are there do.

    ``counts``: pods it means (of others: pods that state it) by domain; ``asked``: the domains the pod itself accepts;
    ``unserved``: domains it would allow, in which no NodePool may have a machine.
    """

    relation: str
    key: str
    is_own_constraint: bool
    asked: Requirement
    domain_counts: Mapping[str, int] = field(default_factory=dict)
    unserved_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyConfinement:
    """A constraint between pods that leaves one domain for the next of them, where nothing can be bought."""

    relation: str
    key: str
    domain: str


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
class FilteredTypes:
    """How many types of a NodePool an obstacle rules out, ``alone`` of which nothing else does.

    ``offerings`` counts the ways to buy those types that it takes away, where it is about offerings.
    """

    failed_filter: FailedFilter
    types: int
    only_by_this: int
    offerings: int = 0


@dataclass(frozen=True, slots=True)
class FilterBreakdown:
    """What a NodePool's instance types fall to, the most first. ``types`` and ``offerings`` are all there are."""

    types: int
    offerings: int
    filtered: tuple[FilteredTypes, ...]


@dataclass(frozen=True, slots=True)
class NearestFit:
    """The least that would have to change for the pod to fit one machine. All of ``obstacles`` would have to go.

    A new machine of ``node_pool`` and ``instance_type``, or the existing ``node``; neither where it is a matter between pods.
    ``confined`` are the constraints between pods that leave no other domain.
    """

    failed_filters: tuple[FailedFilter, ...]
    node_pool: str = ""
    instance_type: str = ""
    node: str = ""
    confinements: tuple[TopologyConfinement, ...] = ()


class PoolSkipReason(StrEnum):
    """Why a NodePool takes no part in a pass (SCH-110, SCH-115, SCH-122)."""

    STATIC = "static"
    DELETING = "deleting"
    NOT_READY = "not-ready"
    UNRESOLVED = "unresolved"
    NO_TYPES = "no-types"
    FILTERED = "filtered"
    FILTERED_MIN_VALUES = "filtered-min-values"


class ReasonCategory(StrEnum):
    """What stood in the way (SCH-860; the ``types-`` ones are the rows of SCH-334)."""

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


@dataclass(frozen=True)
class UnschedulableReason:
    """One obstacle. Fields that do not belong to the category are empty.

    ``detail`` names what the category alone does not (an unsupported constraint, a limit, the condition of a skipped pool).
    ``min_values`` are the labels of which too few values are left. ``considered`` and the three counts are instance types: how
    many were looked at, and how many met the requirements, had enough resources, had an offering. ``transient``: others normally
    remove the obstacle within seconds, such as a volume that is being made. ``breakdown`` says what each of the pool's types
    falls to, ``miss`` what would have to change there; both only where a pool was tried.
    """

    category: ReasonCategory
    node_pool: str = ""
    detail: str = ""
    skip_reason: PoolSkipReason | None = None
    min_values: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()
    incompatibilities: tuple[Incompatibility, ...] = ()
    requirements: Requirements = field(default_factory=Requirements)
    requests: Resources = field(default_factory=dict)
    least_daemon_requests: Resources = field(default_factory=dict)
    most_daemon_requests: Resources = field(default_factory=dict)
    considered_types: int = 0
    matching_types: int = 0
    types_with_room: int = 0
    offered_types: int = 0
    transient: bool = False
    filter_breakdown: FilterBreakdown | None = None
    nearest_fit: NearestFit | None = None
