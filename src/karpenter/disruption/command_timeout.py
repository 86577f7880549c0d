"""How long a disruption command may take (DIS-030), and how long its replacements are worth waiting for.

Karpenter gives every command ten minutes. Instances that take eleven to join (bare metal, Windows, GPU drivers) are then deleted
a minute before they are ready, launched again, and deleted again. So a command waits for its replacements as long as a NodeClaim
may take to register, or half as long again as the slowest node of the pool took to become ready, whichever is longer. Measuring
needs no memory of its own: the conditions of the pool's NodeClaims show when they were initialized.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, labels

#: How long a command may take for each node in all commands, at least and at most (DIS-030).
_TIMEOUT_SECONDS_PER_NODE, _MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 0.08, 600.0, 3600.0
#: A replacement may take so much longer than the slowest node of its pool.
_STARTUP_MARGIN = 1.5


def command_timeout_seconds(nodes: int) -> float:
    """How long a command may take while there are so many nodes in all commands (DIS-030)."""
    return min(MAX_TIMEOUT_SECONDS, max(_MIN_TIMEOUT_SECONDS, _TIMEOUT_SECONDS_PER_NODE * nodes))


def replacement_timeout_seconds(
    registration_timeout: timedelta, node_pools: Collection[str], claims: Iterable[NodeClaim]
) -> float:
    """How long replacements may take to become initialized in these NodePools; at most as long as any command."""
    startups = (_startup(claim) for claim in claims if claim.metadata.labels.get(labels.NODE_POOL) in node_pools)
    slowest = max((startup for startup in startups if startup is not None), default=timedelta())
    return min(
        MAX_TIMEOUT_SECONDS, max(registration_timeout.total_seconds(), _STARTUP_MARGIN * slowest.total_seconds())
    )


def _startup(claim: NodeClaim) -> timedelta | None:
    """From the creation of a NodeClaim to its initialization; None before that."""
    initialized = conditions.find_condition(claim.status.conditions, conditions.INITIALIZED)
    created = claim.metadata.creation_timestamp
    if initialized is None or initialized.status != conditions.TRUE:
        return None
    since = initialized.last_transition_time
    return since - created if since is not None and created is not None else None
