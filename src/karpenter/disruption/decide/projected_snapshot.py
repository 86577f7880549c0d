"""The snapshot as it will be after commands: candidates gone, replacements running, pods where they were planned.

A replacement is assumed to be its cheapest type in its cheapest offering, with ``consolidateAfter`` over. So a decision can look
ahead: what it would do next becomes part of the same command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from karpenter.api.core import Node, NodeSpec, NodeStatus, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.disruption.decide.command import Command
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import conditions, labels, pods
from karpenter.model import resources as res
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.pod_counts import CountsByNode, NamespacedLabels, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import NO_NODE_USAGE, StateNode, build_state_node
from karpenter.state.topology_terms import TopologyTerm
from karpenter.state.virtual_pods import is_virtual_pod

_DONE = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")


def after_commands(
    snapshot: ClusterSnapshot, commands: Iterable[Command], indexes: Mapping[str, TypeIndex]
) -> ClusterSnapshot:
    """The snapshot after these commands."""
    done = tuple(commands)
    gone = {candidate.key for command in done for candidate in command.candidates}
    staying = {state_node.key: state_node for state_node in snapshot.nodes if state_node.key not in gone}
    counting = _PodCounts(snapshot)
    for command in done:
        for planned in command.replacements:
            staying[planned.name] = _as_running_node(planned, indexes[planned.node_pool])
        arriving = [(planned.name, planned.pods) for planned in command.replacements]
        arriving += [(placed.node_key, placed.pods) for placed in command.placed_on_existing]
        for key, coming in arriving:
            moving = [pod for pod in coming if not is_virtual_pod(pod)]
            staying[key] = _with_pods(staying[key], moving)
            counting.rebind(moving, staying[key].name)
    return replace(
        snapshot,
        nodes=tuple(sorted(staying.values(), key=lambda state_node: (state_node.name, state_node.provider_id))),
        pod_counts=counting.census,
        anti_affinity_counts=counting.repelling,
    )


def _with_pods(host: StateNode, arriving: Iterable[Pod]) -> StateNode:
    """The node with more pods."""
    bound = tuple(changed(pod, spec=changed(pod.spec, node_name=host.name)) for pod in arriving)
    requested = res.add(host.pod_requests, *(pods.pod_requests(pod) for pod in bound))
    return replace(host, pods=(*host.pods, *bound), pod_requests=requested)


def _as_running_node(planned: NewNodeClaim, index: TypeIndex) -> StateNode:
    """A replacement as a running node."""
    kind = index.selling(planned.instance_types[0], planned.cheapest_offering)
    own = _labels(planned, kind)
    provider_id = f"planned:///{planned.name}"
    ready = tuple(Condition(type=name, status=conditions.TRUE) for name in _DONE)
    offered = res.resources_to_wire(kind.allocatable)
    claim: NodeClaim = changed(
        planned.claim,
        metadata=changed(planned.claim.metadata, labels=own),
        status=changed(planned.claim.status, provider_id=provider_id, conditions=ready),
    )
    node = Node(
        metadata=ObjectMeta(
            name=planned.name,
            uid=planned.name,
            labels={**own, labels.HOSTNAME: planned.name, labels.REGISTERED: "true", labels.INITIALIZED: "true"},
        ),
        spec=NodeSpec(provider_id=provider_id, taints=tuple(taint.as_taint() for taint in claim.spec.taints)),
        status=NodeStatus(
            allocatable=offered,
            capacity=res.resources_to_wire(kind.capacity),
            conditions=(Condition(type="Ready", status=conditions.TRUE),),
        ),
    )
    return build_state_node(node, claim, NO_NODE_USAGE, marked=False)


def _labels(planned: NewNodeClaim, kind: InstanceType) -> dict[str, str]:
    """By its type, its offering, and what its claim leaves no choice about."""
    own = {key: min(form.values) for key, form in kind.requirements.items() if form.values and not form.complement}
    sold = {key: min(form.values) for key, form in planned.cheapest_offering.requirements.items() if form.values}
    asked = {
        requirement.key: requirement.values[0]
        for requirement in planned.claim.spec.requirements
        if len(requirement.values) == 1
    }
    return {**own, **asked, **sold, **planned.claim.metadata.labels}


class _PodCounts:
    """Pod counts by labels and by anti-affinity terms while pods move. Counts of the snapshot are copied before a change."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.census: dict[NamespacedLabels, CountsByNode] = dict(snapshot.pod_counts)
        self.repelling: dict[tuple[TopologyTerm, ...], CountsByNode] = dict(snapshot.anti_affinity_counts)
        self._classes = PodSignatureCache()

    def rebind(self, moving: Iterable[Pod], to: str) -> None:
        """These go to a node."""
        for pod in moving:
            terms = (
                self._classes.signature_of(pod).topology_terms.required_anti_affinity
                if pod.spec.affinity is not None
                else ()
            )
            if counts_for_topology(pod):
                pod_labels = namespaced_labels(pod)
                self.census[pod_labels] = _moved_counts(self.census.get(pod_labels, {}), pod.spec.node_name, to)
            if terms:
                self.repelling[terms] = _moved_counts(self.repelling.get(terms, {}), pod.spec.node_name, to)


def _moved_counts(counts: CountsByNode, here: str, there: str) -> CountsByNode:
    moved_counts = {**counts, there: counts.get(there, 0) + 1}
    left = moved_counts.get(here, 0) - 1
    if left > 0:
        moved_counts[here] = left
    else:
        moved_counts.pop(here, None)
    return moved_counts


def with_started_commands(snapshot: ClusterSnapshot, commands: Iterable[Command]) -> ClusterSnapshot:
    """The snapshot with these commands begun; the same where there are none."""
    settled = tuple(commands)
    if not settled:
        return snapshot
    going = {candidate.key for command in settled for candidate in command.candidates}
    replacements = [planned for command in settled for planned in command.replacements]
    existing = {state_node.key for state_node in snapshot.nodes}
    nodes = [
        replace(state_node, marked_for_deletion=True) if state_node.key in going else state_node
        for state_node in snapshot.nodes
    ]
    nodes += [
        build_state_node(None, new_nodeclaim.claim, NO_NODE_USAGE, marked=False)
        for new_nodeclaim in replacements
        if new_nodeclaim.name not in existing
    ]
    planned = dict(snapshot.planned_nodes)
    planned.update(
        (pod.metadata.uid, new_nodeclaim.name) for new_nodeclaim in replacements for pod in new_nodeclaim.pods
    )
    planned.update(
        (pod.metadata.uid, placed.node_key)
        for command in settled
        for placed in command.placed_on_existing
        for pod in placed.pods
    )
    nodes.sort(key=lambda state_node: (state_node.name, state_node.provider_id))
    return replace(snapshot, nodes=tuple(nodes), planned_nodes=planned)


def nodes_awaiting_planned_pods(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Keys of empty nodes on which pods are planned that have not arrived yet: they are not empty."""
    pending = (pod for group in snapshot.pod_groups for pod in group.pods)
    leaving = (pod for node in snapshot.nodes if node.marked_for_deletion for pod in node.pods)
    planned = snapshot.planned_nodes
    targets = {planned.get(pod.metadata.uid, "") for arriving in (pending, leaving) for pod in arriving}
    return frozenset(node.key for node in snapshot.nodes if node.key in targets and node.is_empty)
