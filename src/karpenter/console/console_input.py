"""What a console view is built from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from karpenter.api.core import Event, Namespace, Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.console.decision_rows import RecordedDecisions
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels, pods, taints
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import NodeUsage, StateNode, build_state_node


@dataclass(frozen=True)
class ClusterWires:
    """The objects beside Pods and Nodes that a restricted view is made of (``visible_objects``)."""

    claims: tuple[NodeClaim, ...] = ()
    pools: tuple[NodePool, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] = ()
    namespaces: tuple[Namespace, ...] = ()


@dataclass(frozen=True)
class ConsoleInput:
    """A cluster at a moment. Nothing in it changes, so views can be built from it in any thread.

    ``pods`` and ``nodes``: all of them; the snapshot has only those that scheduling looks at. ``indexes``: instance types by
    NodePool. ``placements``: by namespace and name, what the next scheduling pass says about a pod
    (``pending_pods.pod_placements``); empty where no pass was computed. ``wires``: empty where everybody sees everything.
    ``recorded``: decisions of a history; None without one. ``history_fault``: why a history cannot be had; empty while it can.
    """

    snapshot: ClusterSnapshot
    now: datetime
    pods: Sequence[Pod] = ()
    nodes: Sequence[Node] = ()
    events: Sequence[Event] = ()
    indexes: Mapping[str, TypeIndex] = field(default_factory=dict)
    placements: Mapping[tuple[str, str], str] = field(default_factory=dict)
    wires: ClusterWires = ClusterWires()
    recorded: RecordedDecisions | None = None
    history_fault: str = ""

    @cached_property
    def state_nodes(self) -> tuple[StateNode, ...]:
        """The snapshot's nodes, and registered Nodes that scheduling leaves out until their NodeClaim is seen.

        Where NodeClaims may not be read, that is every Node of a NodePool.
        """
        in_snapshot = {view.node.metadata.name for view in self.snapshot.nodes if view.node is not None}
        left_out = [node for node in self.nodes if node.metadata.name not in in_snapshot and not _is_unregistered(node)]
        return (*self.snapshot.nodes, *self._built(left_out)) if left_out else self.snapshot.nodes

    def _built(self, nodes: Sequence[Node]) -> Iterator[StateNode]:
        bound: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods:
            if pod.spec.node_name and not pods.is_finished(pod):
                bound[pod.spec.node_name].append(pod)
        for node in nodes:
            try:
                own = tuple(bound[node.metadata.name])
                usage = NodeUsage(res.add(*map(pods.pod_requests, own)), {}, own)
                yield build_state_node(node, None, usage, marked=False)
            except QuantityError:
                continue  # nothing can be said about its size


def _is_unregistered(node: Node) -> bool:
    """Whether its NodeClaim stands for it until it registers."""
    return any(taints.is_same_taint(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints)
