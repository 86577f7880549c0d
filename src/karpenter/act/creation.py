"""Creating a NodeClaim under its derived name: one that exists already is the same claim."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from karpenter.act.events import shortened
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import AlreadyExists
from karpenter.model import labels

_log = structlog.get_logger()


async def create(world: World, claim: NodeClaim, instance_types: Sequence[str] = ()) -> bool:
    """Create, count and log the claim, and let the next pass see it (SCH-073); False when it was there. Raises ``KubeError``.

    ``instance_types`` are the types it may become, for the log.
    """
    try:
        created = await world.kube.create(NODE_CLAIM, claim)
    except AlreadyExists:
        return False
    name, pool = claim.metadata.name, claim.metadata.labels[labels.NODE_POOL]
    if world.state.claim(name) is None:
        world.state.set_claim(created)
    relaxed = created.metadata.annotations.get(labels.MIN_VALUES_RELAXED, "false")
    world.metrics.nodeclaims_created_total.labels(reason="provisioned", nodepool=pool, min_values_relaxed=relaxed).inc()
    _log.info(
        "created nodeclaim",
        NodePool={"name": pool},
        NodeClaim={"name": name},
        requests=dict(claim.spec.resources.requests),
        **({"instance-types": shortened(instance_types)} if instance_types else {}),
    )
    return True
