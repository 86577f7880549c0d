"""Acting on a notice: tell it, remember what cannot be bought for a while, and let the machine's NodeClaim end (AWS §14.2).

========================================  ===========================================================================
kind                                      what is done
========================================  ===========================================================================
spot interruption                         what was bought counts as sold out; Node tainted; the claim ends, its drain two
                                          minutes after the event at the latest
reservation interrupted                   its reservation counts as used up; the claim ends
stopped, terminated, maintenance          the claim ends
checks of instance or system failed       the claim ends, its drain waits for nobody
rebalance recommended                     told
========================================  ===========================================================================

The claim's end is the ordinary one: pods that must move are planned anew while the Node drains. Pools may want machines to be
replaced more gently (``wishes``). A claim already ending is left alone, but for a deadline it has not yet. Old news of what
is sold out is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Json, JsonObject, Writer
from karpenter.model import labels
from karpenter.model.clock import Clock, rfc3339
from karpenter.providers.aws.events import subjects
from karpenter.providers.aws.events.messages import Notice, NoticeKind
from karpenter.providers.aws.events.wishes import is_replaced_within_budgets, mark_for_replacement
from karpenter.providers.aws.surroundings import Herald, Observed

_NOTICE = timedelta(minutes=2)
#: Older news tells nothing of what can be bought now.
_STALE = timedelta(minutes=10)
_FORCEFUL = frozenset({NoticeKind.INSTANCE_STATUS, NoticeKind.SYSTEM_STATUS})
_NORMAL = frozenset({NoticeKind.REBALANCE})
#: Reason and text of the events (AWS-656).
_UNHEALTHY = ("InstanceUnhealthy", "AWS reports trouble with the instance")
_EVENTS = {
    NoticeKind.SPOT_INTERRUPTED: ("SpotInterrupted", "EC2 takes the spot instance back in two minutes"),
    NoticeKind.RESERVATION_INTERRUPTED: (
        "CapacityReservationInstanceInterrupted",
        "EC2 takes the instance back for the owner of its capacity reservation",
    ),
    NoticeKind.REBALANCE: ("SpotRebalanceRecommendation", "The spot instance is at elevated risk of interruption"),
    NoticeKind.STOPPED: ("InstanceStopping", "The instance is stopping"),
    NoticeKind.TERMINATED: ("InstanceTerminating", "The instance is terminating"),
    NoticeKind.SCHEDULED_CHANGE: ("InstanceUnhealthy", "AWS has scheduled a change of the instance"),
    NoticeKind.INSTANCE_STATUS: _UNHEALTHY,
    NoticeKind.SYSTEM_STATUS: ("InstanceUnhealthy", "AWS reports trouble with the machine below the instance"),
    NoticeKind.EVENT_STATUS: ("InstanceUnhealthy", "AWS has scheduled an event for the instance"),
}
_ENDING = ("TerminatingOnInterruption", "Interruption leads to the end of the NodeClaim and its Node")
_log = structlog.get_logger()


@dataclass(frozen=True)
class Effects:
    """Who else wants to know: that a spot type is sold out in a zone, that a reservation is used up, that we end a claim."""

    sold_out: Callable[[str, str], None]
    used_up: Callable[[str], None]
    disrupted: Callable[[NodeClaim, str], None]


class Responder:
    """Acts on notices."""

    def __init__(self, observed: Observed, kube: Writer, herald: Herald, clock: Clock, effects: Effects) -> None:
        self._observed = observed
        self._kube = kube
        self._herald = herald
        self._clock = clock
        self._effects = effects

    async def act(self, notice: Notice) -> None:
        """Deal with a notice for all instances that are ours; others are none of our business. Raises ``KubeError``.

        May be called again with the same notice: what is done already is not done again.
        """
        for instance in notice.instances:
            claim = self._observed.claim_of(instance)
            if claim is not None:
                with structlog.contextvars.bound_contextvars(NodeClaim={"name": claim.metadata.name}):
                    await self._respond(notice, claim, self._observed.node_of(instance))

    async def _respond(self, notice: Notice, claim: NodeClaim, node: Node | None) -> None:
        self._remember(notice, claim)
        if claim.metadata.deletion_timestamp is not None:
            await self._hurry(notice, claim)
            return
        self._tell(notice, claim, node)
        pool = next((item for item in self._observed.pools() if item.metadata.name == _pool(claim)), None)
        if is_replaced_within_budgets(notice, pool, self._clock.now()):
            await mark_for_replacement(self._kube, claim, notice.kind)
        elif notice.kind is not NoticeKind.REBALANCE:
            await self._hurry(notice, claim)
            await self._taint(notice, node)
            await self._end(notice, claim, node)

    def _tell(self, notice: Notice, claim: NodeClaim, node: Node | None) -> None:
        reason, message = _EVENTS[notice.kind]
        tell = self._herald.normal if notice.kind in _NORMAL else self._herald.warning
        tell(subjects.CLAIM, claim.metadata, reason, message)
        if node is not None:
            tell(subjects.NODE, node.metadata, reason, message)

    def _remember(self, notice: Notice, claim: NodeClaim) -> None:
        """AWS-657, AWS-658."""
        if notice.at is not None and self._clock.now() - notice.at > _STALE:
            return
        own = claim.metadata.labels
        if notice.kind is NoticeKind.SPOT_INTERRUPTED:
            self._effects.sold_out(own.get(labels.INSTANCE_TYPE, ""), own.get(labels.ZONE, ""))
        reservation = own.get(labels.RESERVATION_ID, "")
        if notice.kind is NoticeKind.RESERVATION_INTERRUPTED and reservation:
            self._effects.used_up(reservation)

    async def _hurry(self, notice: Notice, claim: NodeClaim) -> None:
        """Give the drain its deadline where there is one, unless the claim has an earlier one (AWS-661)."""
        deadline = self._deadline(notice)
        known = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
        if deadline is None or _is_due_before(known, deadline):
            return
        patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: rfc3339(deadline)}}}
        try:
            await self._kube.patch(NODE_CLAIM, claim.metadata.name, patch)
        except NotFound:
            return

    def _deadline(self, notice: Notice) -> datetime | None:
        now = self._clock.now()
        if notice.kind in _FORCEFUL:
            return now
        if notice.kind is NoticeKind.SPOT_INTERRUPTED:
            return max(now, (notice.at or now) + _NOTICE)
        return None

    async def _taint(self, notice: Notice, node: Node | None) -> None:
        """Keep new pods off a spot machine from now on; the claim's end would, a moment later. A Node that changed meanwhile
        is left to that."""
        if notice.kind is not NoticeKind.SPOT_INTERRUPTED or node is None or labels.DISRUPTED_TAINT in node.spec.taints:
            return
        taints = cast(Json, msgspec.to_builtins([*node.spec.taints, labels.DISRUPTED_TAINT]))
        version = node.metadata.resource_version
        try:
            await self._kube.patch(NODE, node.metadata.name, {"spec": {"taints": taints}}, resource_version=version)
        except (Conflict, NotFound):
            return

    async def _end(self, notice: Notice, claim: NodeClaim, node: Node | None) -> None:
        """AWS-659."""
        try:
            await self._kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict):
            return
        _log.info("initiating delete from interruption message", messageKind=str(notice.kind), action="CordonAndDrain")
        self._herald.warning(subjects.CLAIM, claim.metadata, *_ENDING)
        if node is not None:
            self._herald.warning(subjects.NODE, node.metadata, *_ENDING)
        self._effects.disrupted(claim, str(notice.kind))


def _pool(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.NODE_POOL, "")


def _is_due_before(text: str, deadline: datetime) -> bool:
    """Whether a deadline written earlier is not after this one. What cannot be read is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment <= deadline
