"""How long nodes take from their order to initialization, learned from the NodeClaims that exist."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from karpenter.api.karpenter import NodeClaim
from karpenter.model.conditions import find_condition

#: Share of the launches that are as fast as the delay, or faster.
_PERCENTILE = 0.9


def launch_delay(claims: Iterable[NodeClaim]) -> timedelta | None:
    """The delay that nine of ten launches keep, None without any initialized NodeClaim."""
    delays = sorted(filter(None, map(_delay_of, claims)))
    return delays[min(len(delays) - 1, int(len(delays) * _PERCENTILE))] if delays else None


def _delay_of(claim: NodeClaim) -> timedelta | None:
    initialized = find_condition(claim.status.conditions, "Initialized")
    created = claim.metadata.creation_timestamp
    if (
        initialized is None
        or initialized.status != "True"
        or initialized.last_transition_time is None
        or created is None
    ):
        return None
    return max(timedelta(), initialized.last_transition_time - created)
