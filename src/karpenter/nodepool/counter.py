"""Resources of each NodePool as running sums: between two counts only nodes that changed are added or subtracted.

``ClusterState`` builds a new ``StateNode`` whenever a node changes, so an unchanged node is the identical object, and unchanged
nodes are the identical tuple. A count costs one identity check per node, and arithmetic only for changed nodes; nothing where no
node changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.state_node import StateNode

#: Resources that are always shown, also with the value 0 (API-645).
_ALWAYS_COUNTED = (res.CPU, res.MEMORY, res.PODS, res.EPHEMERAL_STORAGE, res.NODES)


class NodePoolResourceCounter:
    """Capacity and number of nodes of each pool, without deleting nodes."""

    def __init__(self) -> None:
        self._counted_nodes: dict[int, StateNode] = {}
        self._counted_tuple: tuple[StateNode, ...] = ()
        self._sums: dict[str, dict[str, int]] = {}

    def update(self, state_nodes: tuple[StateNode, ...]) -> None:
        """Replace the counted nodes."""
        if state_nodes is self._counted_tuple:
            return
        self._counted_tuple = state_nodes
        current = {id(state_node): state_node for state_node in state_nodes if _is_counted(state_node)}
        for identity in self._counted_nodes.keys() - current.keys():
            self._add(self._counted_nodes[identity], -1)
        for identity in current.keys() - self._counted_nodes.keys():
            self._add(current[identity], 1)
        self._counted_nodes = current

    def resources_of(self, pool: str) -> Resources:
        """Resources of the pool including ``nodes`` (API-645)."""
        sums: Mapping[str, int] = self._sums.get(pool, {})
        return {**dict.fromkeys(_ALWAYS_COUNTED, 0), **{name: amount for name, amount in sums.items() if amount}}

    def _add(self, state_node: StateNode, sign: int) -> None:
        total = self._sums.setdefault(state_node.pool, {})
        for name, amount in state_node.capacity.items():
            total[name] = total.get(name, 0) + sign * amount
        total[res.NODES] = total.get(res.NODES, 0) + sign * res.ONE_UNIT
        if not total[res.NODES]:
            del self._sums[state_node.pool]


def _is_counted(state_node: StateNode) -> bool:
    """Whether the node is managed and not being deleted (OPS-113)."""
    return state_node.claim is not None and bool(state_node.pool) and not state_node.marked_for_deletion
