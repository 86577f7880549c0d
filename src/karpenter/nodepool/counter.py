"""What each pool's machines add up to, as running sums: between two counts only machines that changed are added or taken off.

The state builds a new view of a machine whenever one of its parts changes, so two views are the same machine in the same state
exactly when they are the same object. A count therefore costs one look at each machine, and arithmetic for those that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.state_node import StateNode

#: Resources users always look for, shown also where a pool has none (API-645).
_ALWAYS_COUNTED = (res.CPU, res.MEMORY, res.PODS, res.EPHEMERAL_STORAGE, res.NODES)


class NodePoolResourceCounter:
    """Capacity and number of the machines of each pool that stay."""

    def __init__(self) -> None:
        self._counted_nodes: dict[int, StateNode] = {}
        self._sums: dict[str, dict[str, int]] = {}

    def update(self, views: Iterable[StateNode]) -> None:
        """Count these machines instead of those counted before."""
        current = {id(view): view for view in views if _is_counted(view)}
        for identity in self._counted_nodes.keys() - current.keys():
            self._add(self._counted_nodes[identity], -1)
        for identity in current.keys() - self._counted_nodes.keys():
            self._add(current[identity], 1)
        self._counted_nodes = current

    def resources_of(self, pool: str) -> Resources:
        """What the pool holds, ``nodes`` included (API-645)."""
        found: Mapping[str, int] = self._sums.get(pool, {})
        return {**dict.fromkeys(_ALWAYS_COUNTED, 0), **{name: amount for name, amount in found.items() if amount}}

    def _add(self, view: StateNode, times: int) -> None:
        total = self._sums.setdefault(view.pool, {})
        for name, amount in view.capacity.items():
            total[name] = total.get(name, 0) + times * amount
        total[res.NODES] = total.get(res.NODES, 0) + times * res.ONE_UNIT
        if not total[res.NODES]:
            del self._sums[view.pool]


def _is_counted(view: StateNode) -> bool:
    """Machines of ours that are not on their way out (OPS-113)."""
    return view.claim is not None and bool(view.pool) and not view.marked_for_deletion
