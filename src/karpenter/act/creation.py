"""Creating a NodeClaim under its derived name: one that exists already is the same claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from karpenter.act.events import shortened
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import AlreadyExists
from karpenter.model import labels

_log = structlog.get_logger()


@dataclass(frozen=True)
class Purpose:
    """What a claim is created for, as figures and the log say it: ``instance_types`` are the types it may become."""

    reason: str = "provisioned"
    instance_types: Sequence[str] = ()


async def create(world: World, claim: NodeClaim, purpose: Purpose = Purpose()) -> bool:
    """Create, count and log the claim, and let the next pass see it (SCH-073); False when it was there. Raises ``KubeError``."""
    try:
        created = await world.kube.create(NODE_CLAIM, claim)
    except AlreadyExists:
        return False
    name, pool = claim.metadata.name, claim.metadata.labels[labels.NODE_POOL]
    if world.state.claim(name) is None:
        world.state.set_claim(created)
    relaxed = created.metadata.annotations.get(labels.MIN_VALUES_RELAXED, "false")
    world.metrics.nodeclaims_created_total.labels(
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
