"""The stabilization window: nodes that become consolidatable shortly after each other are decided together.

When a workload shrinks, the ``consolidateAfter`` periods of its nodes end within seconds of each other. A decision about the
first ones moves their pods to nodes which the next decision removes, so pods move twice: where a cluster is scaled down to less
than half, 65 % of the pods restart instead of 47 %, at the same price in the end.

So periods that end within the window of each other form a series. While the series goes on, its nodes wait, but no longer than
``_MAX_WINDOWS`` windows after it began: where pods come and go all the time, no node waits for ever. A node whose period ended
before the series never waits, nor does one without ``consolidateAfter``. The name is that of the time for which a
HorizontalPodAutoscaler waits before it scales down.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from karpenter.disruption.decide.candidates import consolidate_after_end, consolidation_enabled, is_consolidatable
from karpenter.disruption.decide.disruption_blockers import WithinStabilizationWindow
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

#: A series of periods delays its nodes for so many windows at most.
_MAX_WINDOWS = 4


class StabilizationWindow:
    """The series of ``consolidateAfter`` periods that goes on at a time, and the nodes that wait for its end."""

    def __init__(self, snapshot: ClusterSnapshot, now: datetime, length: timedelta) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._length = length
        self._begin, until = self._series(snapshot.nodes, now) if length else (now, now)
        #: When the nodes wait no longer, even if the series goes on; None if no node waits.
        self.until = until if until > now else None

    def blocker(self, state_node: StateNode) -> WithinStabilizationWindow | None:
        """That a consolidatable node waits for others; None if it does not."""
        end = self._end(state_node) if self.until is not None else None
        return None if end is None or end < self._begin else WithinStabilizationWindow(self._length, until=self.until)

    def _end(self, state_node: StateNode) -> datetime | None:
        return consolidate_after_end(state_node, self._pools.get(state_node.pool))

    def _series(self, nodes: Iterable[StateNode], now: datetime) -> tuple[datetime, datetime]:
        """When the series began that goes on now, and how long it delays its nodes; both ``now`` if none goes on."""
        ends: list[datetime] = []
        last: datetime | None = None
        for node in nodes:
            pool = self._pools.get(node.pool)
            end = self._end(node)
            if pool is None or end is None or node.marked_for_deletion or node.is_empty:
                continue
            ends.append(end)
            if not is_consolidatable(node) and consolidation_enabled(pool) and abs(end - now) <= self._length:
                last = max(last or end, end)
        if last is None:
            return now, now
        begin = last
        for end in sorted((end for end in ends if end < last), reverse=True):
            if begin - end > self._length:
                break
            begin = end
        return begin, begin + _MAX_WINDOWS * self._length
