"""Filters that exclude instance types for a pod, as data, with figures: parts of an `UnschedulableReason`.

Each filter is one check that failed: a taint, a requirement, a resource, an offering, a limit, a topology constraint.
`NearestFit` is a smallest set of them that would have to give way; `FilterBreakdown` counts the types that each excludes. Every
class has a pinned ``kind``, which machine-readable output shows. Amounts are thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement
from karpenter.state.host_ports import HostPort


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
    """A requirement instance types do not meet.

    ``offered`` are values that the types have which meet everything else, the first few by name; ``offered_count`` says how many.
    """

    kind: ClassVar[str] = "unmet-requirement"
    asked: Requirement
    owner: RequirementOwner
    offered: tuple[str, ...] = ()
    offered_count: int = 0


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
class DevicesNotAllocatable:
    """A type has enough devices of each kind, but its devices cannot meet the pod's claims together (K15-171)."""

    kind: ClassVar[str] = "devices-not-allocatable"
    device_classes: tuple[str, ...]


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
    | DevicesNotAllocatable
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


#: The resource whose limit counts nodes.
NODE_LIMIT = res.NODES
