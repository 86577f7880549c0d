"""The nodes of a cluster as people look at them: state, fill by requests, price, and what holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Event
from karpenter.api.meta import Condition
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.candidates import CandidateChecks, DisruptionContext, is_consolidatable, is_drifted
from karpenter.disruption.decide.costs import NodePrices
from karpenter.disruption.decide.disruption_blockers import (
    DisruptionBlocker,
    NodeDeleting,
    NodeMissing,
    NodeNotInitialized,
    NodePoolLabelMissing,
    NodePoolWithoutTypes,
)
from karpenter.model import conditions, labels
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.state_node import StateNode

#: A label of eks-node-viewer with the price of a node in USD per hour; it counts before the price of the offering (OPS-803).
PRICE_LABEL = "eks-node-viewer/instance-price"
_NO_SCHEDULE = "NoSchedule"
_HOLDING_EVENTS = frozenset({"DisruptionBlocked", "Unconsolidatable"})
#: What the state of a node says already, or what comes from missing prices.
_SAID_BY_STATE = (NodeMissing, NodeNotInitialized, NodeDeleting, NodePoolLabelMissing, NodePoolWithoutTypes)


class NodeState(StrEnum):
    """How far a node is in its life."""

    LAUNCHING = "launching"
    LAUNCHED = "launched"
    REGISTERED = "registered"
    INITIALIZED = "initialized"
    CONSOLIDATABLE = "consolidatable"
    DISRUPTING = "disrupting"
    TERMINATING = "terminating"
    UNMANAGED = "unmanaged"


@dataclass(frozen=True)
class NodeRow:
    """A node, or a NodeClaim without a Node yet.

    ``key`` as of a state node. ``price_per_hour``: USD, None if unknown. ``requested``: by bound pods, or by the NodeClaim until
    the node is registered; ``planned`` is True then. ``capacity_type`` is empty where no label says it. ``state_reason``: why it
    is being disrupted. ``drift``: the drift reason, empty without drift. ``held_by``: what keeps it from voluntary disruption,
    as sentences. ``since``: when the NodeClaim, or without one the Node, was created.
    ``kept``: whether the annotation ``karpenter.sh/do-not-disrupt`` on the Node keeps it. ``claim``: the name of the NodeClaim,
    empty without one.
    """

    key: str
    name: str
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    state: NodeState
    state_reason: str
    drift: str
    held_by: tuple[str, ...]
    price_per_hour: float | None
    requested: Resources
    allocatable: Resources
    planned: bool
    pod_count: int
    ready: bool
    cordoned: bool
    deleting: bool
    since: datetime | None
    not_ready_since: datetime | None
    labels: Mapping[str, str]
    kept: bool
    claim: str

    def fill(self, resource: str) -> float:
        """Requested share of the allocatable amount; 0 where nothing is allocatable."""
        offered = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / offered if offered else 0.0


def fill_of_nodes(nodes: Iterable[NodeRow], resource: str) -> float:
    """Requested share of what the nodes that exist have of a resource; 0 without any."""
    existing = [row for row in nodes if not row.planned]
    allocatable = sum(row.allocatable.get(resource, 0) for row in existing)
    return sum(row.requested.get(resource, 0) for row in existing) / allocatable if allocatable else 0.0


def node_rows(given: ConsoleInput) -> tuple[NodeRow, ...]:
    """All nodes and NodeClaims of a cluster, by key."""
    maker = _RowMaker(given)
    return tuple(sorted(map(maker.row, given.state_nodes), key=lambda row: row.key))


class _RowMaker:
    """Makes rows from one snapshot; prices, budgets and events are looked up once for all."""

    def __init__(self, given: ConsoleInput) -> None:
        context = DisruptionContext(given.now)
        self._checks = CandidateChecks(given.snapshot, given.indexes, context)
        self._prices = NodePrices(given.indexes)
        self._holding = _latest_holding_messages(given.events)

    def row(self, view: StateNode) -> NodeRow:
        """One node."""
        own = view.own_labels
        state, why = _state(view)
        return NodeRow(
            key=view.key,
            name=view.name,
            pool=view.pool,
            instance_type=own.get(labels.INSTANCE_TYPE, ""),
            zone=own.get(labels.ZONE, ""),
            capacity_type=own.get(labels.CAPACITY_TYPE, ""),
            state=state,
            state_reason=why,
            drift=_drift_reason(view),
            held_by=self._held_by(view),
            price_per_hour=self._price(view, own),
            requested=_requested(view),
            allocatable=view.allocatable,
            planned=not view.registered and view.managed,
            pod_count=len(view.pods),
            ready=view.ready,
            cordoned=_is_cordoned(view),
            deleting=_is_deleting(view),
            since=_created(view),
            not_ready_since=_not_ready_since(view),
            labels=own,
            kept=_is_kept(view),
            claim=view.claim.metadata.name if view.claim is not None else "",
        )

    def _price(self, view: StateNode, own: Mapping[str, str]) -> float | None:
        override = own.get(PRICE_LABEL)
        if override is not None:
            price = _parse_price(override)
            if price is not None:
                return price
        return self._prices.price_per_hour(view)

    def _held_by(self, view: StateNode) -> tuple[str, ...]:
        """Blockers found in the objects; without any, what the controller said last in an event."""
        if view.claim is None or view.marked_for_deletion:
            return ()
        blockers: list[DisruptionBlocker] = [*self._checks.node_blockers(view), *self._checks.pod_blockers(view)]
        # Several pods of one budget have one message.
        messages = dict.fromkeys(
            blocker_message(blocker) for blocker in blockers if not isinstance(blocker, _SAID_BY_STATE)
        )
        said = self._holding.get(view.name) or self._holding.get(view.key)
        return tuple(messages) or ((said,) if said and view.initialized else ())


def _latest_holding_messages(events: Iterable[Event]) -> Mapping[str, str]:
    """By name of a Node or NodeClaim, the last event about what keeps it."""
    about_nodes = (event for event in events if event.involved_object.kind in ("Node", "NodeClaim"))
    holding = [event for event in about_nodes if event.reason in _HOLDING_EVENTS and event.last_timestamp is not None]
    holding.sort(key=lambda event: event.last_timestamp.timestamp() if event.last_timestamp is not None else 0.0)
    return {event.involved_object.name: event.message for event in holding}


def _state(view: StateNode) -> tuple[NodeState, str]:
    """The state, and for a node that goes the reason."""
    if view.claim is None and not _is_deleting(view):
        return NodeState.UNMANAGED, ""
    if view.marked_for_deletion:
        return NodeState.TERMINATING, _disruption_reason(view)
    if _has_taint(view, labels.DISRUPTED_TAINT.key, labels.OLDER_DISRUPTION_TAINT.key):
        return NodeState.DISRUPTING, _disruption_reason(view)
    return _stage(view), ""


def _stage(view: StateNode) -> NodeState:
    if not view.launched:
        return NodeState.LAUNCHING
    if not view.registered:
        return NodeState.LAUNCHED
    if not view.initialized:
        return NodeState.REGISTERED
    return NodeState.CONSOLIDATABLE if is_consolidatable(view) else NodeState.INITIALIZED


def _disruption_reason(view: StateNode) -> str:
    condition = _claim_condition(view, conditions.DISRUPTION_REASON)
    return condition.reason if condition is not None else ""


def _drift_reason(view: StateNode) -> str:
    condition = _claim_condition(view, conditions.DRIFTED)
    return condition.reason or "Drifted" if condition is not None and is_drifted(view) else ""


def _claim_condition(view: StateNode, name: str) -> Condition | None:
    return conditions.find_condition(view.claim.status.conditions, name) if view.claim is not None else None


def _requested(view: StateNode) -> Resources:
    if view.registered or view.claim is None:
        return view.pod_requests
    return res.parse_resources(view.claim.spec.resources.requests)


def _is_cordoned(view: StateNode) -> bool:
    if view.node is None:
        return False
    return view.node.spec.unschedulable or _has_taint(
        view, labels.DISRUPTED_TAINT.key, labels.OLDER_DISRUPTION_TAINT.key
    )


def _has_taint(view: StateNode, *keys: str) -> bool:
    own = view.node.spec.taints if view.node is not None else ()
    return any(taint.key in keys and taint.effect == _NO_SCHEDULE for taint in own)


def _is_kept(view: StateNode) -> bool:
    return view.node is not None and view.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"


def _is_deleting(view: StateNode) -> bool:
    metas = (obj.metadata for obj in (view.claim, view.node) if obj is not None)
    return any(meta.deletion_timestamp is not None for meta in metas)


def _created(view: StateNode) -> datetime | None:
    return next(_creation_times(view), None)


def _creation_times(view: StateNode) -> Iterator[datetime]:
    for obj in (view.claim, view.node):
        if obj is not None and obj.metadata.creation_timestamp is not None:
            yield obj.metadata.creation_timestamp


def _not_ready_since(view: StateNode) -> datetime | None:
    """When the Node last changed to NotReady; the creation time where it never was Ready."""
    if view.ready:
        return None
    condition = conditions.find_condition(view.node.status.conditions, "Ready") if view.node is not None else None
    return (
        condition.last_transition_time if condition is not None and condition.last_transition_time else _created(view)
    )


def _parse_price(text: str) -> float | None:
    try:
        price = float(text)
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None
