"""What stands between a pod and a machine, as data: how many types fall to what, and the least that would have to change.

An `Obstacle` is one fact with its numbers. A `Fallen` counts the instance types of a NodePool that an obstacle rules out; a
`Miss` is a smallest set of obstacles between the pod and one machine: take them away and it fits. ``explain`` makes sentences
of them. Amounts are thousandths, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpenter.api.core import Taint
from karpenter.model.requirements import Requirement


class Side(StrEnum):
    """Whose requirement it is."""

    POD = "pod"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Tainted:
    """A taint the pod does not tolerate."""

    taint: Taint


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A requirement instance types do not meet. ``offered`` are values they have instead, the first few by name."""

    asked: Requirement
    side: Side
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Clashing:
    """The pod and the NodePool want values of a label that exclude each other."""

    asked: Requirement
    offered: Requirement


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """The pod asks for a label the NodePool does not define. ``meant`` is one it may be a slip of, if any."""

    asked: Requirement
    meant: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A resource no instance type of the NodePool has any of."""

    resource: str


@dataclass(frozen=True, slots=True)
class Short:
    """Too little of a resource. ``asked`` includes ``daemons``, what DaemonSets take; ``there`` is allocatable on ``where``."""

    resource: str
    asked: int
    there: int
    where: str
    daemons: int = 0

    @property
    def short(self) -> int:
        """What is missing."""
        return self.asked - self.there


@dataclass(frozen=True, slots=True)
class SoldOut:
    """Where and how a type would be bought if it were not sold out there now."""

    zones: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedUp:
    """A type that could only be bought from reservations without any unit left; reserved capacity may also bear no name."""

    reservations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unoffered:
    """A type is sold in no way that meets all requirements on offerings together. ``keys`` are those requirements' labels."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PortTaken:
    """A host port that a DaemonSet takes on every machine."""

    port: int
    protocol: str
    daemon_set: str


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A limit of the NodePool that leaves less than a machine needs."""

    resource: str
    left: int
    needed: int


@dataclass(frozen=True, slots=True)
class TooFewValues:
    """A requirement's ``minValues`` is out of reach: so many values of the label are left."""

    key: str
    wanted: int
    there: int


@dataclass(frozen=True, slots=True)
class StaticFull:
    """The NodePool has a fixed number of machines, and none of them has room."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """A constraint between pods that leaves no domain (SCH-523). ``own``: the pod states it, else others that are there do.

    ``counts``: pods it means (of others: pods that state it) by domain; ``asked``: the domains the pod itself accepts;
    ``unserved``: domains it would allow, in which no NodePool may have a machine.
    """

    relation: str
    key: str
    own: bool
    asked: Requirement
    counts: Mapping[str, int] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confined:
    """A constraint between pods that leaves one domain for the next of them, where nothing can be bought."""

    relation: str
    key: str
    domain: str


Obstacle = (
    Tainted
    | Unmatched
    | Clashing
    | Unlabelled
    | Unknown
    | Short
    | SoldOut
    | UsedUp
    | Unoffered
    | PortTaken
    | LimitReached
    | TooFewValues
    | StaticFull
    | Blocked
)


@dataclass(frozen=True, slots=True)
class Fallen:
    """How many types of a NodePool an obstacle rules out, ``alone`` of which nothing else does.

    ``offerings`` counts the ways to buy those types that it takes away, where it is about offerings.
    """

    obstacle: Obstacle
    types: int
    alone: int
    offerings: int = 0


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What a NodePool's instance types fall to, the most first. ``types`` and ``offerings`` are all there are."""

    types: int
    offerings: int
    fallen: tuple[Fallen, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """The least that would have to change for the pod to fit one machine. All of ``obstacles`` would have to go.

    A new machine of ``node_pool`` and ``instance_type``, or the existing ``node``; neither where it is a matter between pods.
    ``confined`` are the constraints between pods that leave no other domain.
    """

    obstacles: tuple[Obstacle, ...]
    node_pool: str = ""
    instance_type: str = ""
    node: str = ""
    confined: tuple[Confined, ...] = ()
