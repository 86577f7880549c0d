"""Counting what happens to claims, with the labels every such series carries (OPS-411 to OPS-421)."""

from __future__ import annotations

import re
from datetime import timedelta

from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.model import durations, labels, pods

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(text: str) -> str:
    """``WhenEmptyOrUnderutilized`` as ``when_empty_or_underutilized`` (OPS-405)."""
    return _HUMP.sub("_", text).lower()


def termination_mode(claim: NodeClaim) -> str:
    """How its pods will be treated: ``graceful``, ``eventual`` or ``forceful`` (OPS-421, DIS-552)."""
    text = claim.spec.termination_grace_period
    period = durations.parse_or_never(text) if text else None
    if period is None:
        return "graceful"
    return "eventual" if period > timedelta(0) else "forceful"


def disrupted(world: World, claim: NodeClaim, reason: str, consolidation_policy: str = "") -> None:
    """This process began the end of a claim, for a reason in snake case; its pods that must move are counted as well.

    ``consolidation_policy`` is the pool's, given only where consolidation is the reason.
    """
    described = {
        "reason": reason,
        "nodepool": claim.metadata.labels.get(labels.NODE_POOL, ""),
        "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
        "consolidation_policy": snake_case(consolidation_policy),
        "termination_mode": termination_mode(claim),
    }
    world.metrics.nodeclaims_disrupted_total.labels(**described).inc()
    moving = sum(pods.needs_a_place(pod) for pod in world.state.pods_on(claim.status.node_name))
    if moving:
        world.metrics.pods_disruption_initiated_total.labels(**described).inc(moving)
