"""Handling what AWS reports: publish it, mark offerings unavailable, delete the instance's NodeClaim (AWS §14.2).

========================================  ===========================================================================
kind                                      action
========================================  ===========================================================================
spot interruption                         the offering is unavailable; Node tainted; the claim is deleted, its drain ends two
                                          minutes after the event at the latest
reservation interrupted                   its reservation is left alone for 3 min; the claim is deleted
stopped, terminated, maintenance          the claim is deleted
checks of instance or system failed       the claim is deleted, its drain does not wait
rebalance recommended                     an event
========================================  ===========================================================================

Deletion takes its usual path: pods that must move are planned again while the Node drains. Annotations of a NodePool may ask for
a replacement first (``replacement_reason``). A claim that is being deleted gets a deadline unless it has an earlier one. An old
message marks no offering unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Json, JsonObject, Writer
from karpenter.model import labels
from karpenter.model.clock import Clock, rfc3339
from karpenter.providers.aws.aws_context import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.interruption.interruption_messages import InterruptionKind, InterruptionMessage

_SPOT_NOTICE = timedelta(minutes=2)
#: Older messages say nothing about what EC2 has now.
_STALE_AFTER = timedelta(minutes=10)
_FORCEFUL_KINDS = frozenset({InterruptionKind.INSTANCE_STATUS, InterruptionKind.SYSTEM_STATUS})
_NORMAL_EVENT_KINDS = frozenset({InterruptionKind.REBALANCE})
#: Reason and text of the events (AWS-656).
_UNHEALTHY_EVENT = ("InstanceUnhealthy", "AWS reports trouble with the instance")
_EVENTS_BY_KIND = {
    InterruptionKind.SPOT_INTERRUPTED: ("SpotInterrupted", "EC2 takes the spot instance back in two minutes"),
    InterruptionKind.RESERVATION_INTERRUPTED: (
        "CapacityReservationInstanceInterrupted",
        "EC2 takes the instance back for the owner of its capacity reservation",
    ),
    InterruptionKind.REBALANCE: (
        "SpotRebalanceRecommendation",
        "The spot instance is at elevated risk of interruption",
    ),
    InterruptionKind.STOPPED: ("InstanceStopping", "The instance is stopping"),
    InterruptionKind.TERMINATED: ("InstanceTerminating", "The instance is terminating"),
    InterruptionKind.SCHEDULED_CHANGE: ("InstanceUnhealthy", "AWS has scheduled a change of the instance"),
    InterruptionKind.INSTANCE_STATUS: _UNHEALTHY_EVENT,
    InterruptionKind.SYSTEM_STATUS: ("InstanceUnhealthy", "AWS reports trouble with the host of the instance"),
    InterruptionKind.EVENT_STATUS: ("InstanceUnhealthy", "AWS has scheduled an event for the instance"),
}
_TERMINATING_EVENT = ("TerminatingOnInterruption", "Interruption leads to the end of the NodeClaim and its Node")
_log = structlog.get_logger()


@dataclass(frozen=True)
class ReservedOffering:
    """An instance type of a capacity reservation, by the labels of a NodeClaim."""

    instance_type: str
    zone: str
    reservation: str


@dataclass(frozen=True)
class InterruptionEffects:
    """Callbacks: a spot type is sold out in a zone, a reservation is interrupted, a claim is deleted by an interruption."""

    mark_spot_unavailable: Callable[[str, str], None]
    mark_reservation_unavailable: Callable[[ReservedOffering], None]
    count_disrupted: Callable[[NodeClaim, str], None]


class InterruptionHandler:
    """Acts on notices."""

    def __init__(
        self,
        cluster_view: AwsClusterView,
        kube: Writer,
        events: AwsEventRecorder,
        clock: Clock,
        effects: InterruptionEffects,
    ) -> None:
        self._cluster_view = cluster_view
        self._kube = kube
        self._events = events
        self._clock = clock
        self._effects = effects

    async def handle(self, interruption: InterruptionMessage) -> None:
        """Deal with a notice for all instances that are ours; others are none of our business. Raises ``KubeError``.

        May be called again with the same notice: what is done already is not done again.
        """
        for instance in interruption.instance_ids:
            claim = self._cluster_view.claim_of(instance)
            if claim is not None:
                with structlog.contextvars.bound_contextvars(NodeClaim={"name": claim.metadata.name}):
                    await self._handle_claim(interruption, claim, self._cluster_view.node_of(instance))

    async def _handle_claim(self, interruption: InterruptionMessage, claim: NodeClaim, node: Node | None) -> None:
        self._mark_unavailable(interruption, claim)
        if claim.metadata.deletion_timestamp is not None:
            await self._set_termination_deadline(interruption, claim)
            return
        self._record_events(interruption, claim, node)
        name = _pool_name(claim)
        pool = next((each for each in self._cluster_view.pools() if each.metadata.name == name), None)
        if is_replaced_within_budgets(interruption, pool, self._clock.now()):
            await mark_for_replacement(self._kube, claim, interruption.kind)
        elif interruption.kind is not InterruptionKind.REBALANCE:
            await self._set_termination_deadline(interruption, claim)
            await self._taint(interruption, node)
            await self._delete_claim(interruption, claim, node)

    def _record_events(self, interruption: InterruptionMessage, claim: NodeClaim, node: Node | None) -> None:
        reason, message = _EVENTS_BY_KIND[interruption.kind]
        tell = self._events.normal if interruption.kind in _NORMAL_EVENT_KINDS else self._events.warning
        tell(NODE_CLAIM, claim.metadata, reason, message)
        if node is not None:
            tell(NODE, node.metadata, reason, message)

    def _mark_unavailable(self, interruption: InterruptionMessage, claim: NodeClaim) -> None:
        """Mark the interrupted spot offering or reservation as unavailable, unless the notice is stale (AWS-657, AWS-658)."""
        if interruption.start_time is not None and self._clock.now() - interruption.start_time > _STALE_AFTER:
            return
        own = claim.metadata.labels
        if interruption.kind is InterruptionKind.SPOT_INTERRUPTED:
            self._effects.mark_spot_unavailable(own.get(labels.INSTANCE_TYPE, ""), own.get(labels.ZONE, ""))
        reservation = own.get(labels.RESERVATION_ID, "")
        if interruption.kind is InterruptionKind.RESERVATION_INTERRUPTED and reservation:
            offering = ReservedOffering(own.get(labels.INSTANCE_TYPE, ""), own.get(labels.ZONE, ""), reservation)
            if offering.instance_type and offering.zone:
                self._effects.mark_reservation_unavailable(offering)

    async def _set_termination_deadline(self, interruption: InterruptionMessage, claim: NodeClaim) -> None:
        """Give the drain its deadline where there is one, unless the claim has an earlier one (AWS-661)."""
        deadline = self._deadline(interruption)
        current = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
        if deadline is None or _is_due_before(current, deadline):
            return
        patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: rfc3339(deadline)}}}
        try:
            await self._kube.patch(NODE_CLAIM, claim.metadata.name, patch)
        except NotFound:
            return

    def _deadline(self, interruption: InterruptionMessage) -> datetime | None:
        now = self._clock.now()
        if interruption.kind in _FORCEFUL_KINDS:
            return now
        if interruption.kind is InterruptionKind.SPOT_INTERRUPTED:
            return max(now, (interruption.start_time or now) + _SPOT_NOTICE)
        return None

    async def _taint(self, interruption: InterruptionMessage, node: Node | None) -> None:
        """Keep new pods off a spot instance from now on; the claim's end would, a moment later. A Node that changed meanwhile
        is left to that."""
        is_spot = interruption.kind is InterruptionKind.SPOT_INTERRUPTED
        if not is_spot or node is None or labels.DISRUPTED_TAINT in node.spec.taints:
            return
        taints = cast(Json, msgspec.to_builtins([*node.spec.taints, labels.DISRUPTED_TAINT]))
        version = node.metadata.resource_version
        try:
            await self._kube.patch(NODE, node.metadata.name, {"spec": {"taints": taints}}, resource_version=version)
        except (Conflict, NotFound):
            return

    async def _delete_claim(self, interruption: InterruptionMessage, claim: NodeClaim, node: Node | None) -> None:
        """Delete the NodeClaim, publish the events and count the disruption (AWS-659)."""
        if not await delete_if_present(self._kube, NODE_CLAIM, claim.metadata):
            return
        _log.info(
            "initiating delete from interruption message", messageKind=str(interruption.kind), action="CordonAndDrain"
        )
        self._events.warning(NODE_CLAIM, claim.metadata, *_TERMINATING_EVENT)
        if node is not None:
            self._events.warning(NODE, node.metadata, *_TERMINATING_EVENT)
        self._effects.count_disrupted(claim, str(interruption.kind))


def _pool_name(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.NODE_POOL, "")


def _is_due_before(text: str, deadline: datetime) -> bool:
    """Whether a deadline written earlier is not after this one. What cannot be read is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment <= deadline


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of it, then raise what the first that failed raised."""
    for end in await asyncio.gather(*work, return_exceptions=True):
        if end is not None:
            raise end


#: On a NodePool: what to do about spot instances at risk; ``replace``, anything else means nothing.
REBALANCE_ANNOTATION = f"{labels.AWS_GROUP}/rebalance-recommendations"
#: On a NodePool: what to do about maintenance to come; ``within-budgets``, anything else means at once.
SCHEDULED_CHANGES_ANNOTATION = f"{labels.AWS_GROUP}/scheduled-changes"
#: On a NodeClaim: what its instance is to be replaced for.
REPLACE_FOR_ANNOTATION = f"{labels.AWS_GROUP}/replace-for"

_REPLACE_VALUE, _WITHIN_BUDGETS_VALUE = "replace", "within-budgets"
#: So long before maintenance begins budgets are not asked any more.
MAINTENANCE_LEAD = timedelta(hours=24)
#: What drift calls the marks.
_DRIFT_REASONS = {
    InterruptionKind.REBALANCE: "RebalanceRecommended",
    InterruptionKind.SCHEDULED_CHANGE: "ScheduledChange",
    InterruptionKind.EVENT_STATUS: "ScheduledChange",
}


def is_replaced_within_budgets(interruption: InterruptionMessage, pool: NodePool | None, now: datetime) -> bool:
    """Whether the pool wants an instance the notice is about to be replaced like one that drifted."""
    if pool is None:
        return False
    annotations = pool.metadata.annotations
    if interruption.kind is InterruptionKind.REBALANCE:
        return annotations.get(REBALANCE_ANNOTATION) == _REPLACE_VALUE
    if (
        interruption.kind not in _DRIFT_REASONS
        or annotations.get(SCHEDULED_CHANGES_ANNOTATION) != _WITHIN_BUDGETS_VALUE
    ):
        return False
    return interruption.begins_at is not None and interruption.begins_at - now > MAINTENANCE_LEAD


async def mark_for_replacement(kube: Writer, claim: NodeClaim, kind: InterruptionKind) -> None:
    """Mark a claim, unless it is. Raises ``KubeError``."""
    if REPLACE_FOR_ANNOTATION in claim.metadata.annotations:
        return
    patch: JsonObject = {"metadata": {"annotations": {REPLACE_FOR_ANNOTATION: _DRIFT_REASONS[kind]}}}
    try:
        await kube.patch(NODE_CLAIM, claim.metadata.name, patch)
    except NotFound:
        return


def replacement_reason(claim: NodeClaim) -> str:
    """Why a claim's instance counts as drifted though it is as its class wants it; empty where it does not."""
    return claim.metadata.annotations.get(REPLACE_FOR_ANNOTATION, "")
