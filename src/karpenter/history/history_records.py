"""The entries of the history as frozen data. Money is USD per hour, times are in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: A sample holds until the next one. If the next one is further away than this, no process recorded, and the time counts as
#: unknown.
MAX_GAP = timedelta(minutes=15)
#: The outcome of a decision that has not ended.
UNDER_WAY = "under way"


@dataclass(frozen=True)
class NodeFacts:
    """A node at the time of a decision.

    ``name`` is that of the NodeClaim. ``price_per_hour``: None where it is not known. ``pods``: how many ran on it, or of a node
    that comes how many it was launched for, those of DaemonSets included. ``cpu_fill``: the share of the allocatable CPU that
    these request, 0 to 1.
    """

    name: str
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""
    price_per_hour: float | None = None
    pods: int = 0
    cpu_fill: float = 0.0


@dataclass(frozen=True)
class DecisionRecord:
    """A decision: nodes launched together, or nodes disrupted together and what replaces them.

    ``decision_id``: the ID of the disruption command, or one derived from the NodeClaims launched. ``kind``: ``launch`` or
    ``disruption``. ``reason``: of a disruption its reason, of a launch the NodePool. ``outcome``: ``under way``, ``succeeded`` or
    ``failed``, with ``cause`` of a failure; ``unknown`` with the ``cause`` where nothing followed it to its end.
    ``saving_per_hour``: as estimated when it was decided, from the prices of that
    moment; None where a price was not known. ``pods``: how many had to move. ``before``: the nodes that go. ``after``: those
    that come; only the name is known until they are launched.
    """

    decision_id: str
    at: datetime
    kind: str
    reason: str
    text: str
    outcome: str
    cause: str = ""
    ended_at: datetime | None = None
    pods: int = 0
    saving_per_hour: float | None = None
    before: tuple[NodeFacts, ...] = ()
    after: tuple[NodeFacts, ...] = ()


@dataclass(frozen=True)
class SpendingPart:
    """A part of the price at a moment. ``dimension``: by what it is split, such as ``NodePool`` or ``namespace``.

    ``count``: how many nodes (of a namespace: pods) it is for.
    """

    dimension: str
    name: str
    price_per_hour: float
    count: int


@dataclass(frozen=True)
class PartSpending:
    """USD of one part of the price in a period."""

    dimension: str
    name: str
    total: float


@dataclass(frozen=True)
class PendingReason:
    """How many pods waited for one reason."""

    reason: str
    pods: int


@dataclass(frozen=True)
class ClusterSample:
    """A cluster at a moment.

    ``classic_per_hour``: what classic packing would pay for these pods on an empty cluster, None where it is not known.
    ``managed_price_per_hour``: of the nodes that NodePools launched. ``bound_per_hour``: what the pods on them cost at
    least, None where it is not known. ``cpu_fill``, ``memory_fill``: requested shares of what is allocatable, 0 to 1.
    """

    at: datetime
    price_per_hour: float
    managed_price_per_hour: float
    bound_per_hour: float | None
    nodes: int
    pending_pods: int
    cpu_fill: float
    memory_fill: float
    parts: tuple[SpendingPart, ...] = ()
    pending: tuple[PendingReason, ...] = ()
    classic_per_hour: float | None = None


@dataclass(frozen=True)
class InterruptionRecord:
    """An instance that the cloud took away, or announced to take away. ``node`` is the name of the object in the event."""

    at: datetime
    reason: str
    node: str
    message: str = ""
