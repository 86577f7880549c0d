"""Marks that Karpenter's own actions leave on nodes: pending disruption, deletion, nominations, and planned pods."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

#: Nominations of deleted nodes are pruned once there are so many more nominations than claims.
_MAX_STALE_NOMINATIONS = 1000


class DisruptionMarks:
    """Marks by name of the NodeClaim. They are in memory only: a new process recomputes or does without them."""

    def __init__(self) -> None:
        self._marked_for_deletion: set[str] = set()
        self._disruption_pending: set[str] = set()
        self._nominated_until: dict[str, datetime] = {}

    def forget(self, claim_name: str) -> None:
        """The claim is gone: drop all its marks."""
        self.unmark(claim_name)
        self._nominated_until.pop(claim_name, None)

    def mark_disruption_pending(self, claim_name: str) -> None:
        """A disruption command will remove the claim (DIS-302)."""
        self._disruption_pending.add(claim_name)

    def mark_for_deletion(self, claim_name: str) -> None:
        """A disruption command removes the claim (OPS-113)."""
        self._marked_for_deletion.add(claim_name)

    def unmark(self, claim_name: str) -> None:
        """The disruption command was cancelled."""
        self._disruption_pending.discard(claim_name)
        self._marked_for_deletion.discard(claim_name)

    def is_marked_for_deletion(self, claim_name: str) -> bool:
        """Whether a disruption command removes the claim."""
        return claim_name in self._marked_for_deletion

    def is_disruption_pending(self, claim_name: str) -> bool:
        """Whether a disruption command removes the claim or will remove it."""
        return claim_name in self._disruption_pending or claim_name in self._marked_for_deletion

    def nominate(self, claim_name: str, until: datetime) -> None:
        """Pods are expected on the node until then."""
        self._nominated_until[claim_name] = max(until, self._nominated_until.get(claim_name, until))

    def has_stale_nominations(self, claim_count: int) -> bool:
        """Whether there are so many more nominations than claims that they should be pruned."""
        return len(self._nominated_until) > _MAX_STALE_NOMINATIONS + claim_count

    def prune_nominations(self, existing: Container[str]) -> None:
        """Drop nominations of nodes that no longer exist."""
        self._nominated_until = {key: until for key, until in self._nominated_until.items() if key in existing}

    def is_nominated(self, claim_name: str, now: datetime) -> bool:
        """Whether pods are still expected on the node."""
        return self._nominated_until.get(claim_name, now) > now

    def nominated_nodes(self, now: datetime) -> frozenset[str]:
        """Keys of all nodes that pods are still expected on."""
        return frozenset(key for key, until in self._nominated_until.items() if until > now)

    def next_nomination_end(self, now: datetime) -> datetime | None:
        """When the next nomination ends; None if there is none."""
        return min((until for until in self._nominated_until.values() if until > now), default=None)
