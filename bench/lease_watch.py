"""A lease renewed beside a controller's work, as the controller's own process does it, and how long its renewals lay apart."""

from __future__ import annotations

import math
import time

from karpenter.kube.config import Connection
from karpenter.kube.write_fence import Fence
from karpenter.manager_process import start_election
from karpenter.metrics import Metrics
from karpenter.runtime.leader_election import ElectionCandidate


class LeaseWatch:
    """An election on a thread of its own, started at once."""

    def __init__(self, connection: Connection) -> None:
        self._fence = _WatchedFence()
        candidate = ElectionCandidate("kube-system", "bench")
        self._leadership, _ = start_election(connection, candidate, self._fence, Metrics())

    async def elected(self) -> None:
        """Wait until the lease is held."""
        await self._leadership.elected()

    def longest_seconds(self) -> float:
        """The longest time between two renewals since the last question, that since the last renewal included."""
        return self._fence.longest_seconds()


class _WatchedFence(Fence):
    """Notes when it is extended. The election's thread writes, another reads; a question may miss a renewal at its moment."""

    def __init__(self) -> None:
        super().__init__()
        self._renewed_at = math.inf
        self._longest = 0.0

    def extend_until(self, valid_until: float) -> None:
        """See ``Fence``. A moment in the past is a loss: counted as a time without end."""
        super().extend_until(valid_until)
        now = time.monotonic()
        self._longest = math.inf if valid_until < now else max(self._longest, now - self._renewed_at)
        self._renewed_at = now

    def longest_seconds(self) -> float:
        longest = max(self._longest, time.monotonic() - self._renewed_at)
        self._longest = 0.0
        return longest
