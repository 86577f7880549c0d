"""Which pods existing nodes receive in a decision, and what CPU beyond the baselines of these nodes costs because of them.

The commands of a decision fill the same nodes one after the other. So each command counts what it adds to those before it: all of
them together cost what the nodes cost at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.costs import NodePrices
from karpenter.model import resources as res
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods
from karpenter.state.state_node import StateNode


@dataclass(frozen=True, eq=False)
class PodArrivals:
    """The pods that arrive on existing nodes, by node key, beside the pods that are there in the snapshot."""

    _prices: NodePrices
    _nodes_by_key: Mapping[str, StateNode]
    _pods_by_key: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)

    def after(self, placements: Iterable[PlacedPods]) -> PodArrivals:
        """The arrivals with those of one more command."""
        pods_by_key = dict(self._pods_by_key)
        for placed in placements:
            pods_by_key[placed.node_key] = (*pods_by_key.get(placed.node_key, ()), *placed.pods)
        return replace(self, _pods_by_key=pods_by_key)

    def added_cpu_surplus(self, candidates: Iterable[Candidate], placements: Iterable[PlacedPods]) -> float:
        """USD per hour that CPU beyond the baseline of existing nodes costs more after a command; never below 0."""
        added = -sum(self._cpu_surplus_per_hour(candidate.state_node) for candidate in candidates)
        for placed in placements:
            node = self._nodes_by_key.get(placed.node_key)
            if node is not None:
                added += self._cpu_surplus_per_hour(node, placed.pods) - self._cpu_surplus_per_hour(node)
        return max(0.0, added)

    def cpu_surplus_of(self, claim: NewNodeClaim) -> float:
        """USD per hour for the CPU that the claim requests beyond the baseline of its cheapest type."""
        requests = res.parse_resources(claim.claim.spec.resources.requests)
        return self._prices.cpu_surplus_of_type(claim.node_pool, claim.instance_types[0], requests)

    def _cpu_surplus_per_hour(self, node: StateNode, arriving: Iterable[Pod] = ()) -> float:
        return self._prices.cpu_surplus_per_hour(node, (*self._pods_by_key.get(node.key, ()), *arriving))
