"""A cluster that applies each disruption command at once: pods move where the command planned them.

This module decides nothing. A new node runs as its cheapest type in its cheapest offering, as in ``PlannedCluster``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command
from karpenter.disruption.decide.costs import NodePrices
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.snapshot import ClusterSnapshot
from support.applied_plans import PlannedCluster
from support.builders import NOW, Types, indexes, replaced, snapshot
from support.instance_types import STD

QUIET = DisruptionContext(NOW)
USUAL = DisruptionOptions()
CONSOLIDATABLE = Condition(type="Consolidatable", status="True")


class DisruptedCluster(PlannedCluster):
    """Objects of a cluster, and how disruption commands change them."""

    def __init__(self, *objects: object, types: Types = STD, index: TypeIndex | None = None) -> None:
        super().__init__(*objects, types=types, index=index)
        own = (wire.metadata.name for wire in self._others if isinstance(wire, NodePool))
        self._indexes: Mapping[str, TypeIndex] = (
            indexes(self._others, types) if index is None else dict.fromkeys(own, index)
        )
        self.given_types = types
        self.restarts = 0

    def decide(
        self, circumstances: DisruptionContext = QUIET, options: DisruptionOptions = USUAL
    ) -> DisruptionSolution:
        """What to give back now."""
        return decide_disruption(DisruptionProblem(self.snapshot(), circumstances, options), self._indexes)

    def snapshot(self) -> ClusterSnapshot:
        """The cluster as it is."""
        return snapshot(self.objects())

    @property
    def types(self) -> Mapping[str, TypeIndex]:
        """The prepared types of every pool."""
        return self._indexes

    @property
    def price(self) -> float:
        """USD per hour of all nodes."""
        prices = NodePrices(self._indexes)
        return sum(prices.price_per_hour(view) or 0.0 for view in self.snapshot().nodes)

    def delete_pods(self, uids: Iterable[str]) -> None:
        """These pods are gone for good."""
        gone = set(uids)
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid not in gone}

    def bound(self) -> list[Pod]:
        """Pods that run, by name."""
        return sorted((pod for pod in self._pods.values() if pod.spec.node_name), key=lambda pod: pod.metadata.name)

    def carry_out(self, commands: Iterable[Command]) -> None:
        """All of them, at once."""
        for command in commands:
            gone = {candidate.state_node.name for candidate in command.candidates}
            self._others = [wire for wire in self._others if not _is_of(wire, gone, command)]
            self.restarts += command.pod_restarts
            for planned in command.replacements:
                self._others += self._built(planned)
                self._bind(planned.pods, planned.name)
            for placed in command.placed_on_existing:
                self._bind(placed.pods, placed.node_name)

    def _built(self, planned: NewNodeClaim) -> list[Wire]:
        return [consolidatable(wire) if isinstance(wire, NodeClaim) else wire for wire in super()._built(planned)]


def consolidatable(claim: NodeClaim) -> NodeClaim:
    """The claim once its quiet time is over."""
    conditions = (*claim.status.conditions, CONSOLIDATABLE)
    return replaced(claim, status=replaced(claim.status, conditions=conditions))


def with_budget(pool: NodePool, *budgets: object, **disruption: object) -> NodePool:
    """The pool with these budgets, by default none that limits anything."""
    changed = replaced(pool.spec.disruption, budgets=tuple(budgets), **disruption)
    return replaced(pool, spec=replaced(pool.spec, disruption=changed))


def _is_of(wire: Wire, gone: set[str], command: Command) -> bool:
    claims = {candidate.key for candidate in command.candidates}
    return (isinstance(wire, Node) and wire.metadata.name in gone) or (
        isinstance(wire, NodeClaim) and wire.metadata.name in claims
    )
