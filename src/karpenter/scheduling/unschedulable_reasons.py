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
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources
from karpenter.scheduling.failed_filters import (
    NODE_LIMIT,
    ConflictingRequirement,
    FailedFilter,
    FilterBreakdown,
    NearestFit,
    NodePoolLimitReached,
    TopologyUnsatisfiable,
    UndefinedLabel,
    UntoleratedTaint,
)


class PoolSkipReason(StrEnum):
    """Why a NodePool takes no part in a pass (SCH-110, SCH-115, SCH-122)."""

    STATIC = "static"
    DELETING = "deleting"
    NOT_READY = "not-ready"
    ASLEEP = "asleep"
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
class ResourceClaimUnusable:
    """A resource claim of the pod cannot be planned with. ``is_transient``: what it lacks may come, such as the claim itself."""

    kind: ClassVar[str] = "resource-claim-unusable"
    error: str
    is_transient: bool = False


@dataclass(frozen=True, slots=True)
class VolumeUnusable:
    """A volume of the pod cannot be used. ``is_transient``: it normally can within seconds, such as one being provisioned."""

    kind: ClassVar[str] = "volume-unusable"
    error: str
    is_transient: bool = False


class GangShortfall(StrEnum):
    """Why a gang gets no places."""

    UNUSABLE = "unusable"
    TOO_FEW_PODS = "too-few-pods"
    PAUSED = "paused"
    NO_PLACE = "no-place"
    NOT_TRIED = "not-tried"


@dataclass(frozen=True, slots=True)
class GangIncomplete:
    """The pod's gang gets no places, because not enough of its pods would have one at once.

    ``available`` of the ``minimum`` pods exist or would have a place. ``missing_pod`` (``namespace/name``) is the first without
    one and ``detail`` says why, or what else is wrong; ``domain`` is where most of them would have had a place.
    """

    kind: ClassVar[str] = "gang-incomplete"
    gang: str
    shortfall: GangShortfall
    minimum: int
    available: int = 0
    missing_pod: str = ""
    detail: str = ""
    domain: str = ""


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
    """No node takes the pod; a what-if question needs no further reason."""

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
    | ResourceClaimUnusable
    | VolumeUnusable
    | TopologyUnsatisfiable
    | GangIncomplete
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
    GANG = "gang"
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
        return isinstance(self.cause, VolumeUnusable | ResourceClaimUnusable) and self.cause.is_transient

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
    ResourceClaimUnusable: ReasonCategory.DEVICE,
    VolumeUnusable: ReasonCategory.VOLUME,
    TopologyUnsatisfiable: ReasonCategory.TOPOLOGY,
    GangIncomplete: ReasonCategory.GANG,
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
    if any(isinstance(failed_filter, UntoleratedTaint) for failed_filter in filters):
        return ReasonCategory.TAINT
    if any(isinstance(failed_filter, ConflictingRequirement | UndefinedLabel) for failed_filter in filters):
        return ReasonCategory.REQUIREMENTS
    if not cause.counts.considered:
        return ReasonCategory.HOST_PORT
    return ReasonCategory.MIN_VALUES if cause.short_labels else _category_of_counts(cause.counts)


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
