"""A cluster as somebody may see it: only objects that `kubectl get` would list for them.

The view is made of the objects that are left, so nothing about the others can show: no sum, no name in a reason, no neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.api.core import Namespace, Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.console.console_input import ConsoleInput
from karpenter.model.freezes import Freeze
from karpenter.state import ClusterState


@dataclass(frozen=True)
class Visibility:
    """What somebody may list. ``pod_namespaces``: where they may list pods; None means in all namespaces.

    ``others``: everything else that views are made of (DaemonSets, PodDisruptionBudgets, namespaces, volumes and their claims,
    storage classes), and the freeze of the cluster. The history, which tells of all of it, needs everything.
    """

    nodes: bool = False
    claims: bool = False
    pools: bool = False
    pod_namespaces: frozenset[str] | None = frozenset()
    others: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is hidden."""
        return self.nodes and self.claims and self.pools and self.others and self.pod_namespaces is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be seen."""
        return self == Visibility()

    def shows_pod(self, pod: Pod) -> bool:
        """Whether this pod may be seen."""
        return self.pod_namespaces is None or pod.metadata.namespace in self.pod_namespaces


COMPLETE = Visibility(True, True, True, None, True)


@dataclass(frozen=True)
class ClusterWires:
    """The objects that a restricted view is made of."""

    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    claims: tuple[NodeClaim, ...] = ()
    pools: tuple[NodePool, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    freeze: Freeze | None = field(default=None)


def visible_input(given: ConsoleInput, wires: ClusterWires, visibility: Visibility) -> ConsoleInput:
    """The cluster with what may be seen. ``given`` and ``wires`` are of the same moment; ``given`` where nothing is hidden."""
    if visibility.is_complete:
        return given
    state = ClusterState()
    pods = tuple(pod for pod in wires.pods if visibility.shows_pod(pod))
    nodes = wires.nodes if visibility.nodes else ()
    for pool in wires.pools if visibility.pools else ():
        state.set_pool(pool)
    for claim in wires.claims if visibility.claims else ():
        state.set_claim(claim)
    for node in nodes:
        state.set_node(node)
    for pod in pods:
        state.set_pod(pod)
    if visibility.others:
        for pdb in wires.pdbs:
            state.set_pdb(pdb)
        for namespace in wires.namespaces:
            state.set_namespace(namespace)
        state.freeze = wires.freeze
    indexes = given.indexes if visibility.pools else {}
    return ConsoleInput(state.snapshot(), given.now, pods, nodes, indexes=indexes)
