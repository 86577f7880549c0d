"""Creating a NodeClaim under its derived name: one that exists already is the same claim."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import AlreadyExists
from karpenter.model import labels
from karpenter.runtime.events import shortened

_log = structlog.get_logger()


@dataclass(frozen=True)
class ClaimCreationReason:
    """What a claim is created for, as figures and the log say it: ``instance_types`` are the types it may become."""

    reason: str = "provisioned"
    instance_types: Sequence[str] = ()


async def create_claim(
    context: ControllerContext, claim: NodeClaim, purpose: ClaimCreationReason = ClaimCreationReason()
) -> bool:
    """Create, count and log the claim, and let the next pass see it (SCH-073); False when it was there. Raises ``KubeError``."""
    try:
        created = await context.kube.create(NODE_CLAIM, claim)
    except AlreadyExists:
        return False
    context.server_clock.observe(created.metadata.creation_timestamp, asyncio.get_running_loop().time())
    name, pool = claim.metadata.name, claim.metadata.labels[labels.NODE_POOL]
    if context.state.claim(name) is None:
        context.state.set_claim(created)
    relaxed = created.metadata.annotations.get(labels.MIN_VALUES_RELAXED, "false")
    context.metrics.nodeclaims_created_total.labels(
        reason=purpose.reason, nodepool=pool, min_values_relaxed=relaxed
    ).inc()
    _log.info(
        "created nodeclaim",
        NodePool={"name": pool},
        NodeClaim={"name": name},
        requests=dict(claim.spec.resources.requests),
        **({"instance-types": shortened(purpose.instance_types)} if purpose.instance_types else {}),
    )
    return True


_MINUTE = timedelta(minutes=1)


class ClaimCreationLimit:
    """At most ``per_minute`` claims created within any sixty seconds."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._created_at: deque[datetime] = deque()

    def available(self, now: datetime) -> int:
        """How many claims may be created now."""
        while self._created_at and now - self._created_at[0] >= _MINUTE:
            self._created_at.popleft()
        return self.per_minute - len(self._created_at)

    def record(self, count: int, now: datetime) -> None:
        """So many are being created, whatever becomes of them."""
        self._created_at.extend([now] * count)

    def retry_after_seconds(self, now: datetime) -> float:
        """How long until there is room for one more; zero when there is."""
        if self.available(now) > 0:
            return 0.0
        return (self._created_at[0] + _MINUTE - now).total_seconds()


@dataclass(frozen=True)
class ClaimCreationPace:
    """How long planned pods are expected on a node (SCH-640), and how many NodeClaims may be created in a minute."""

    nomination_window: timedelta
    creation_limit: ClaimCreationLimit
