"""Nodes of a gang that cannot start are given back together, and the gang pauses (docs/design/gangs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import labels, pods
from karpenter.model.backoff import Backoff
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_deletion import count_disrupted
from karpenter.scheduling.solution import Solution
from karpenter.state.gangs import gang_key_of

#: How long passes may go on without places for the whole gang before the nodes launched for it are removed.
COMPLETION_DEADLINE = timedelta(minutes=1)
#: How long a gang may take to start once places for all of it are planned: longer than an instance may take to register.
START_DEADLINE = timedelta(minutes=20)
#: Pauses of a gang whose nodes were given back, in seconds.
_PAUSES = Backoff(10.0, 600.0)
_log = structlog.get_logger()


class GangReleases:
    """Follows the gangs of passes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._incomplete_since: dict[str, datetime] = {}
        self._starting_since: dict[str, datetime] = {}
        self._failures: dict[str, int] = {}
        self._paused_until: dict[str, datetime] = {}

    async def after_pass(self, plan: Solution) -> None:
        """Delete NodeClaims of gangs that no pass completed in time, or that do not start, unless other pods use them."""
        now = self._context.clock.now()
        incomplete = {outcome.gang for outcome in plan.gangs if not outcome.is_complete}
        since = {gang: self._incomplete_since.get(gang, now) for gang in incomplete}
        self._incomplete_since = since
        waiting = {outcome.gang for outcome in plan.gangs}
        self._failures = {gang: count for gang, count in self._failures.items() if gang in waiting}
        self._paused_until = {gang: until for gang, until in self._paused_until.items() if until > now}
        late = {gang for gang in incomplete if now - since[gang] >= COMPLETION_DEADLINE} | self._slow_starters(
            plan, now
        )
        used = {
            placed.node_key
            for placed in plan.placed_on_existing
            if any(str(gang_key_of(pod)) not in late for pod in placed.pods)
        }
        given_back: set[str] = set()
        for claim, gangs in self._claims_of_gangs():
            if gangs <= late and claim.metadata.name not in used and not self._has_pods(claim):
                given_back |= gangs if await self._give_back(claim, gangs) else set()
        for gang in given_back:
            self._failures[gang] = self._failures.get(gang, 0) + 1
            self._starting_since.pop(gang, None)
            self._paused_until[gang] = now + timedelta(seconds=_PAUSES.delay(self._failures[gang]))
        self._context.state.gangs.paused_until = dict(self._paused_until)

    def _slow_starters(self, plan: Solution, now: datetime) -> set[str]:
        """Gangs for which every pass plans places and whose pods wait still: some of their nodes fail again and again."""
        starting = {outcome.gang for outcome in plan.gangs if outcome.is_complete and not outcome.running}
        self._starting_since = {gang: self._starting_since.get(gang, now) for gang in starting}
        return {gang for gang in starting if now - self._starting_since[gang] >= START_DEADLINE}

    def _claims_of_gangs(self) -> Iterator[tuple[NodeClaim, frozenset[str]]]:
        for claim in self._context.state.claims():
            names = claim.metadata.annotations.get(labels.GANG, "")
            if names and claim.metadata.deletion_timestamp is None:
                yield claim, frozenset(names.split(","))

    def _has_pods(self, claim: NodeClaim) -> bool:
        """Whether pods run on the node that would have to move."""
        return any(map(pods.is_reschedulable, self._context.state.pods_on(claim.status.node_name)))

    async def _give_back(self, claim: NodeClaim, gangs: frozenset[str]) -> bool:
        """Whether the NodeClaim is deleted now."""
        name = claim.metadata.name
        try:
            await self._context.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
        except NotFound:
            return False
        except KubeError as error:
            _log.error("deleting nodeclaim of an incomplete gang failed", NodeClaim={"name": name}, error=str(error))
            return False
        text = f"Deleted: {', '.join(sorted(gangs))} cannot start and needs the node with all others only"
        _log.info("deleting nodeclaim of an incomplete gang", NodeClaim={"name": name}, gangs=sorted(gangs))
        self._context.events.publish(ObjectEvent(involved_claim(claim.metadata), WARNING, "GangIncomplete", text))
        count_disrupted(self._context, claim, "gang_incomplete")
        return True
