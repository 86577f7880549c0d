"""The nodes that a study begins with: those of a cluster, or of manifests with Nodes and NodeClaims.

A Node of a NodePool becomes an instance of the simulated cloud, of the type, zone and capacity type that its labels say, as old
as it is, at the price of the study. All other Nodes are *unmanaged*: they take pods, stay for the whole study and cost nothing in
it. They are nodes of other owners (managed node groups, control planes), and those that the simulated cloud does not sell;
``UnmanagedReason`` says which. Nodes that are being deleted, and NodeClaims whose Node is not there yet, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from karpenter.api.core import Node, NodeStatus, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import conditions, labels, pods
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.model.resources import Resources
from karpenter.providers.simulated.simulated_instances import SimulatedInstance
from karpenter.providers.simulated.simulated_offerings import SimulatedOffering, resolved_labels
from karpenter.simulator.starting_objects import (
    NodeParts,
    simulated_claim,
    simulated_instance,
    simulated_node,
    unmanaged_node,
)
from karpenter.simulator.workload import RunningPod, WorkloadError

PodKey = tuple[str, str]


class UnmanagedReason(StrEnum):
    """Why a node is no instance of the simulated cloud. ``MENDS`` says what to do about it."""

    OTHER_OWNER = "of no NodePool"
    NO_NODE_POOL = "its NodePool is not among those of the study"
    NO_NODE_CLAIM = "it has no NodeClaim"
    UNKNOWN_TYPE = "the study does not know its instance type"
    NOT_SOLD = "the study does not sell its instance type in its zone and capacity type"


#: What is wrong, and how to mend it, by reason; nothing is wrong with nodes of other owners.
MENDS: Mapping[UnmanagedReason, str] = {
    UnmanagedReason.NO_NODE_POOL: "their NodePool is not in the input; add it (kubectl get nodepools -o yaml)",
    UnmanagedReason.NO_NODE_CLAIM: "they have no NodeClaim in the input; add it (kubectl get nodeclaims -o yaml)",
    UnmanagedReason.UNKNOWN_TYPE: "the study does not know their instance types; give --region or --instance-types",
    UnmanagedReason.NOT_SOLD: "the study does not sell their instance types in their zones and capacity types; give --region or "
    "--instance-types",
}


class AbsenceReason(StrEnum):
    """Why a study begins without a node."""

    BEING_DELETED = "it is being deleted"
    NO_NODE_YET = "its NodeClaim has no Node yet"


@dataclass(frozen=True, slots=True)
class StartingNode:
    """A node of a NodePool, and the NodeClaim and instance that belong to it."""

    node: Node
    claim: NodeClaim
    instance: SimulatedInstance

    @property
    def name(self) -> str:
        """Of the node."""
        return self.node.metadata.name


@dataclass(frozen=True, slots=True)
class UnmanagedNode:
    """A node that takes pods, is never removed, and is not in the bill. ``allocatable``: what pods of the study may request."""

    node: Node
    reason: UnmanagedReason
    allocatable: Resources

    @property
    def name(self) -> str:
        """Of the node."""
        return self.node.metadata.name

    @property
    def text(self) -> str:
        """The name of the node, and what of its labels is in the way."""
        stated = self.node.metadata.labels
        kind = stated.get(labels.INSTANCE_TYPE, "no instance type")
        match self.reason:
            case UnmanagedReason.UNKNOWN_TYPE:
                return f"{self.name} ({kind})"
            case UnmanagedReason.NOT_SOLD:
                return f"{self.name} ({kind} {stated.get(labels.CAPACITY_TYPE, '')} {stated.get(labels.ZONE, '')})"
            case _:
                return self.name


@dataclass(frozen=True, slots=True)
class AbsentNode:
    """A node, or a NodeClaim without one, that the study begins without."""

    name: str
    reason: AbsenceReason


@dataclass(frozen=True)
class StartingCluster:
    """What a study begins with, in the order of names. The default is a study that begins without nodes.

    ``not_ready``: names of nodes that count as ready and are not. ``lost_daemon_sets``: namespace and name of those with pods
    on the nodes that are not there themselves; what their pods request is not allocatable. ``running``: where pods run.
    ``of_unknown_nodes``: namespace and name of pods that have nodes which are not among those that were read.
    """

    nodes: tuple[StartingNode, ...] = ()
    unmanaged: tuple[UnmanagedNode, ...] = ()
    absent: tuple[AbsentNode, ...] = ()
    not_ready: tuple[str, ...] = ()
    lost_daemon_sets: tuple[PodKey, ...] = ()
    running: Mapping[PodKey, RunningPod] = field(default_factory=dict)
    of_unknown_nodes: tuple[PodKey, ...] = ()

    @property
    def has_nodes(self) -> bool:
        """Whether any node is there when the study begins."""
        return bool(self.nodes or self.unmanaged)

    @property
    def usd_per_hour(self) -> float:
        """What the instances cost when the study begins."""
        return sum(node.instance.price_per_hour for node in self.nodes)

    @property
    def instance_names(self) -> frozenset[str]:
        """The names of the nodes of NodePools."""
        return frozenset(node.name for node in self.nodes)

    @property
    def unmanaged_names(self) -> frozenset[str]:
        """The names of the unmanaged nodes."""
        return frozenset(node.name for node in self.unmanaged)


@dataclass(frozen=True)
class FoundCluster:
    """What was read. ``taken_at``: when. ``daemon_sets``: namespace and name of those of the study."""

    nodes: Sequence[Node]
    claims: Sequence[NodeClaim]
    pods: Sequence[Pod]
    daemon_sets: frozenset[PodKey]
    taken_at: datetime


@dataclass(frozen=True)
class StudyCloud:
    """What the study has for nodes. ``pools``: each NodePool as it was read, and as it is in the study, by name."""

    types: Sequence[InstanceType]
    pools: Mapping[str, tuple[NodePool, NodePool]]


def times_in(nodes: Sequence[Node], claims: Sequence[NodeClaim], found_pods: Sequence[Pod]) -> Iterator[datetime]:
    """The times that stand in objects, in no order. Heartbeats are not among them: ``ClusterObjects`` has those of a file."""
    moments = [each.metadata.creation_timestamp for part in (nodes, claims, found_pods) for each in part]
    stated = (entry for part in (nodes, claims, found_pods) for each in part for entry in each.status.conditions)
    moments += [entry.last_transition_time for entry in stated]
    moments += [claim.status.last_pod_event_time for claim in claims]
    return (moment for moment in moments if moment is not None)


def latest_time(moments: Iterable[datetime], now: datetime) -> datetime | None:
    """The latest time that stands in objects, which is close to when they were read; None where there is none.

    Times after ``now`` are wrong, and one of them would make all objects too old: they do not count.
    """
    return max((moment for moment in moments if moment <= now), default=None)


def starting_cluster(found: FoundCluster, cloud: StudyCloud, begins: datetime) -> StartingCluster:
    """The nodes of a study that begins at this moment with what was found.

    Raises ``WorkloadError`` where NodePools have Nodes and none of them can be an instance of the study, and for quantities
    that do not parse.
    """
    return _Reading(found, cloud, begins).cluster()


class _Reading:
    """Makes one starting cluster."""

    def __init__(self, found: FoundCluster, cloud: StudyCloud, begins: datetime) -> None:
        self._found = found
        self._cloud = cloud
        self._shift = begins - found.taken_at
        self._begins = begins
        self._types = {instance_type.name: instance_type for instance_type in cloud.types}
        self._claims = {claim.status.provider_id: claim for claim in found.claims if claim.status.provider_id}
        self._claims_by_node = {claim.status.node_name: claim for claim in found.claims if claim.status.node_name}
        self._resident, self._lost = _resident_requests(found)
        self._absent: list[AbsentNode] = []
        self._nodes: list[StartingNode] = []
        self._unmanaged: list[UnmanagedNode] = []

    def cluster(self) -> StartingCluster:
        """Read everything."""
        for node in sorted(self._found.nodes, key=lambda node: node.metadata.name):
            self._read(node)
        self._absent += self._claims_without_node()
        self._check()
        there = {node.name for node in self._nodes} | {node.name for node in self._unmanaged}
        not_ready = self._not_ready_names()
        return StartingCluster(
            nodes=tuple(self._nodes),
            unmanaged=tuple(self._unmanaged),
            absent=tuple(sorted(self._absent, key=lambda absent: (absent.reason, absent.name))),
            not_ready=tuple(name for name in sorted(there) if name in not_ready),
            lost_daemon_sets=tuple(sorted(key for key, nodes in self._lost.items() if nodes & there)),
            running={key: self._running(pod) for key, pod in self._running_pods(there)},
            of_unknown_nodes=tuple(self._pods_of_unknown_nodes()),
        )

    def _read(self, node: Node) -> None:
        claim = self._claims.get(node.spec.provider_id) or self._claims_by_node.get(node.metadata.name)
        leaving = node.metadata.deletion_timestamp or (claim is not None and claim.metadata.deletion_timestamp)
        if leaving:
            self._absent.append(AbsentNode(node.metadata.name, AbsenceReason.BEING_DELETED))
            return
        offering = self._offering_of(node, claim)
        if isinstance(offering, UnmanagedReason):
            self._unmanaged.append(self._unmanaged_node(node, offering))
        elif claim is not None:
            self._nodes.append(self._starting_node(node, claim, offering))

    def _offering_of(self, node: Node, claim: NodeClaim | None) -> Offering | UnmanagedReason:
        """What the study sells the node as, or why it is unmanaged."""
        name = _pool_of(node, claim)
        if not name:
            return UnmanagedReason.OTHER_OWNER
        if name not in self._cloud.pools:
            return UnmanagedReason.NO_NODE_POOL
        if claim is None:
            return UnmanagedReason.NO_NODE_CLAIM
        own = node_labels_of(node, claim)
        instance_type = self._types.get(own.get(labels.INSTANCE_TYPE, ""))
        if instance_type is None:
            return UnmanagedReason.UNKNOWN_TYPE
        place = own.get(labels.ZONE, ""), own.get(labels.CAPACITY_TYPE, "")
        offerings = (each for each in instance_type.offerings if (each.zone, each.capacity_type) == place)
        return next(offerings, UnmanagedReason.NOT_SOLD)

    def _starting_node(self, node: Node, claim: NodeClaim, offering: Offering) -> StartingNode:
        own = node_labels_of(node, claim)
        sized = self._types[own[labels.INSTANCE_TYPE]].sized_by(offering)
        capacity = _parsed(node, node.status.capacity) or sized.capacity
        allocatable = self._left(node, _parsed(node, node.status.allocatable) or sized.allocatable)
        pools = self._cloud.pools[_pool_of(node, claim)]
        status = NodeStatus(capacity=res.resources_to_wire(capacity), allocatable=res.resources_to_wire(allocatable))
        settled = resolved_labels(claim, SimulatedOffering(sized, offering))
        parts = NodeParts(node, claim, {**settled, **own}, frozenset(settled), status, self._shift, self._begins)
        new_claim = simulated_claim(parts, *pools)
        return StartingNode(
            simulated_node(parts, new_claim), new_claim, simulated_instance(parts, new_claim, offering.price_per_hour)
        )

    def _unmanaged_node(self, node: Node, reason: UnmanagedReason) -> UnmanagedNode:
        allocatable = self._left(node, _parsed(node, node.status.allocatable) or _parsed(node, node.status.capacity))
        status = NodeStatus(
            capacity=node.status.capacity or res.resources_to_wire(allocatable),
            allocatable=res.resources_to_wire(allocatable),
        )
        return UnmanagedNode(unmanaged_node(node, status, self._shift), reason, allocatable)

    def _left(self, node: Node, allocatable: Resources) -> Resources:
        """What is allocatable without what pods request that no controller of the study has."""
        taken = self._resident.get(node.metadata.name)
        if taken is None:
            return allocatable
        return {name: max(0, amount - taken.get(name, 0)) for name, amount in allocatable.items()}

    def _claims_without_node(self) -> Iterator[AbsentNode]:
        registered = {node.spec.provider_id for node in self._found.nodes}
        names = {node.metadata.name for node in self._found.nodes}
        for claim in self._found.claims:
            if claim.status.provider_id not in registered and claim.status.node_name not in names:
                yield AbsentNode(claim.metadata.name, AbsenceReason.NO_NODE_YET)

    def _check(self) -> None:
        unusable = [node for node in self._unmanaged if node.reason is not UnmanagedReason.OTHER_OWNER]
        if self._nodes or not unusable:
            return
        first = unusable[0]
        raise WorkloadError(
            f"none of the nodes of NodePools can be simulated, such as {first.text}: {MENDS[first.reason]}"
        )

    def _not_ready_names(self) -> frozenset[str]:
        return frozenset(
            node.metadata.name
            for node in self._found.nodes
            if not conditions.is_true(node.status.conditions, conditions.READY) and node.status.conditions
        )

    def _running_pods(self, there: set[str]) -> Iterator[tuple[PodKey, Pod]]:
        for pod in self._found.pods:
            if pod.spec.node_name in there and _is_of_workload(pod):
                yield (pod.metadata.namespace, pod.metadata.name), pod

    def _pods_of_unknown_nodes(self) -> Sequence[PodKey]:
        """In the order of names; none where no Nodes were read, as then no pod begins on a node."""
        known = {node.metadata.name for node in self._found.nodes}
        if not known:
            return ()
        return sorted(
            (pod.metadata.namespace, pod.metadata.name)
            for pod in self._found.pods
            if pod.spec.node_name and pod.spec.node_name not in known and _is_of_workload(pod)
        )

    def _running(self, pod: Pod) -> RunningPod:
        created = pod.metadata.creation_timestamp or self._found.taken_at
        return RunningPod(pod.spec.node_name, max(0, (self._found.taken_at - created) // timedelta(seconds=1)))


def _is_of_workload(pod: Pod) -> bool:
    """Whether a pod runs or waits, and does not come with its node."""
    return pods.is_active(pod) and not (pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod))


def _pool_of(node: Node, claim: NodeClaim | None) -> str:
    own = node.metadata.labels.get(labels.NODE_POOL, "")
    return own or (claim.metadata.labels.get(labels.NODE_POOL, "") if claim is not None else "")


def node_labels_of(node: Node, claim: NodeClaim) -> Mapping[str, str]:
    """The labels of a node with those of its NodeClaim; the node's win."""
    return {**claim.metadata.labels, **node.metadata.labels}


def _parsed(node: Node, amounts: Mapping[str, str | int | float]) -> Resources:
    try:
        return res.parse_resources(amounts)
    except QuantityError as error:
        raise WorkloadError(f"node {node.metadata.name}: {error}") from None


def _resident_requests(found: FoundCluster) -> tuple[Mapping[str, Resources], Mapping[PodKey, set[str]]]:
    """What pods request that come with a node and of which the study has no controller, by node; and their DaemonSets' nodes.

    These are static pods, and pods of DaemonSets that are not among the objects.
    """
    requests: dict[str, Resources] = {}
    lost: defaultdict[PodKey, set[str]] = defaultdict(set)
    for pod in found.pods:
        name = pod.spec.node_name
        if not name or not pods.is_active(pod):
            continue
        owner = pods.controller_of(pod.metadata)
        if pods.is_daemonset_pod(pod) and owner is not None:
            key = (pod.metadata.namespace, owner.name)
            if key in found.daemon_sets:
                continue
            lost[key].add(name)
        elif not pods.is_mirror_pod(pod):
            continue
        try:
            requests[name] = res.add(requests.get(name, {}), pods.pod_requests(pod))
        except QuantityError as error:
            raise WorkloadError(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}") from None
    return requests, lost
