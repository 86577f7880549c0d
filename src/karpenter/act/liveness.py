"""Liveness: a claim that does not launch or register in time is given up (OPS §1.6).

Each claim has one reason at most: while it has not launched, that it did not; afterwards, that it did not register. The time to
register begins with the launch, so that a slow launch takes nothing from a slow machine; a condition that changes starts its
clock anew (OPS-053).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.ending import give_up
from karpenter.act.world import World
from karpenter.model import conditions, durations, labels

_log = structlog.get_logger()


@dataclass(frozen=True)
class Timeouts:
    """How long a claim may take to launch, and then its Node to register."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)


#: The reference's (OPS-050, OPS-051).
TIMEOUTS = Timeouts()


class Liveness:
    """Gives claims up that take too long."""

    def __init__(self, world: World, timeouts: Timeouts) -> None:
        self._world = world
        self._timeouts = timeouts

    async def step(self, draft: Draft) -> None:
        """Give the claim up, or look again when it would be time to. Raises ``KubeError``."""
        if draft.is_true("Registered"):
            return
        if draft.is_true("Launched"):
            since = max(_since(draft, "Registered"), _launched(draft))
            await self._judge(draft, since, self._timeouts.registration, "registration_timeout")
        else:
            await self._judge(draft, _since(draft, "Launched"), self._timeouts.launch, "launch_timeout")

    async def _judge(self, draft: Draft, since: datetime, timeout: timedelta, reason: str) -> None:
        # Not the time the look began: the cloud may have taken a minute to answer since.
        left = since + timeout - self._world.clock.now()
        if left > timedelta():
            draft.look_again(left.total_seconds())
            return
        _log.debug("terminating due to timeout", timeout=durations.text(timeout), reason=reason)
        if await give_up(draft, self._world, reason):
            pool = draft.claim.metadata.labels.get(labels.NODE_POOL, "")
            self._world.registrations.failed(draft.claim, self._world.state.pool(pool))


def _since(draft: Draft, kind: str) -> datetime:
    found = draft.condition(kind)
    known = found.last_transition_time if found is not None else None
    return known or draft.claim.metadata.creation_timestamp or draft.now


def _launched(draft: Draft) -> datetime:
    """When the launch was written down; one that cannot be written must not start the clock with every look."""
    stored = conditions.find(draft.stored.status.conditions, "Launched")
    known = stored.last_transition_time if stored is not None and stored.status == conditions.TRUE else None
    return known or draft.claim.metadata.creation_timestamp or draft.now
