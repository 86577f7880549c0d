"""The stabilization window: consolidatable nodes wait a little for those that become consolidatable soon.

When a workload shrinks, the ``consolidateAfter`` periods of its nodes end within seconds of each other. A decision about the
first ones moves their pods to nodes which the next decision removes, so pods move twice: where a cluster is scaled down to less
than half, 65 % of the pods restart instead of 47 %, at the same price in the end. So a node waits after its own period while the
period of another node with pods ends soon, but never longer than the window. Nodes without ``consolidateAfter`` never wait. The
name is that of the window in which a HorizontalPodAutoscaler waits before it scales down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.candidates import consolidate_after_end, consolidation_enabled, is_consolidatable
from karpenter.disruption.decide.costs import is_empty
from karpenter.disruption.decide.disruption_blockers import WithinStabilizationWindow
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode


class StabilizationWindow:
    """The nodes of a snapshot whose ``consolidateAfter`` ends within the window, and who waits for them."""

    def __init__(self, snapshot: ClusterSnapshot, now: datetime, length: timedelta) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._now = now
        self._length = length
        ends = _remaining_ends(snapshot.nodes, self._pools) if length else iter(())
        self._is_open = any(end - now <= length for end in ends)

    def blocker(self, state_node: StateNode) -> WithinStabilizationWindow | None:
        """That a consolidatable node waits for others; None if its own period ended long enough ago."""
        if not self._is_open:
            return None
        until = self.wait_end(state_node)
        return None if until is None or until <= self._now else WithinStabilizationWindow(self._length, until=until)

    def wait_end(self, state_node: StateNode) -> datetime | None:
        """The moment from which on a node waits for no others; None if it never waits."""
        end = consolidate_after_end(state_node, self._pools.get(state_node.pool))
        try:
            return None if end is None else end + self._length
        except OverflowError:
            return None


def _remaining_ends(nodes: Iterable[StateNode], pools: Mapping[str, NodePool]) -> Iterator[datetime]:
    """When nodes with pods become consolidatable that are not yet."""
    for node in nodes:
        pool = pools.get(node.pool)
        if pool is None or node.marked_for_deletion or is_consolidatable(node) or not consolidation_enabled(pool):
            continue
        end = consolidate_after_end(node, pool)
        if end is not None and not is_empty(node.pods):
            yield end
