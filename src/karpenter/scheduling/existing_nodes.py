"""Stage 1: pods go to existing and in-flight nodes (SCH §10), by signature and in counts.

A group fills one node after another with as many pods as free resources and host limits allow; that is arithmetic, not a loop
over pods. Nodes still to be launched count as what every one of their instance types has.

An `ExistingNodeIndex` holds all nodes of a decision with bit sets over them: which have so much free, which carry a label. A few
ANDs rule out most of thousands of nodes; the rest are asked one by one. The sets are made once, from what was free at the
start: nodes only fill up, so a set never misses one. Nodes and index are facts; what a pass places is in its `NodeAllocation`s.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import Taint, Toleration
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import AmountIndex, TypeSet, amount_indexes, members, type_set, with_at_least
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, compatible, requirements_from_labels
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.device_planning import DevicePlanning, NodeDevices
from karpenter.scheduling.in_flight_claims import InFlightClaims
from karpenter.scheduling.offerings.nodepool_templates import daemon_node_terms, daemon_tolerates
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.topology.host_limits import HostLimits, HostUsage
from karpenter.scheduling.topology.topology_groups import CountingCertainty, TopologyGroup, counting_certainty
from karpenter.scheduling.volume_usage import VolumeAttachments, VolumeUsage
from karpenter.state.host_ports import HostPort, host_ports_of
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import VolumesByDriver
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod, PodKey, pod_key
from karpenter.state.state_node import StateNode
from karpenter.state.topology_terms import TopologyNodeFilter

#: Stands for the value of a label that a node yet to be launched has not settled; no label reads so.
UNDECIDED = "\0"
#: A set of nodes: bit i stands for the i-th of the field.
NodeSet = int

_STRICT: frozenset[str] = frozenset()
_NO_MOUNTS: VolumesByDriver = {}


def count_fitting(requests: Resources, left: Mapping[str, int], wanted: int) -> int:
    """How many pods with these requests fit into what is left, at most ``wanted``."""
    for name, amount in requests.items():
        if amount > 0:
            fitting = left.get(name, 0) // amount
            if fitting < wanted:
                if fitting <= 0:
                    return 0
                wanted = fitting
    return wanted


@dataclass(frozen=True, eq=False)
class NodeFitRequest:
    """What a group asks of a node at one relaxation step. ``mounts``: what pods with volumes attach."""

    signature: PodSignature
    relaxation_step: RelaxationStep
    host_limits: HostLimits | None = None
    mounts: Mapping[PodKey, VolumesByDriver] = field(default_factory=dict)

    def mounts_of(self, pods: Sequence[Pod]) -> list[VolumesByDriver]:
        """What each of the pods attaches to its node."""
        return [self.mounts.get(pod_key(pod), _NO_MOUNTS) for pod in pods]


class ExistingNode:
    """An existing or in-flight node as a scheduling pass finds it. What a pass places there is a `NodeAllocation`.

    ``index``: the types of its pool, even if the pool sells no more of them: an in-flight node may become one of them.
    """

    def __init__(
        self,
        view: StateNode,
        index: TypeIndex | None,
        daemons: Sequence[DaemonSetPod],
        in_flight_claims: InFlightClaims,
        volume_attachments: VolumeAttachments,
        devices: DevicePlanning | None = None,
    ) -> None:
        self.view = view
        self.index = index
        self._possible_types = in_flight_claims.possible_types(view, self.index) if self.index is not None else 0
        self._known_labels = _settled_labels(view, self.index)
        offered = (
            in_flight_claims.min_allocatable(view, self.index)
            if self.index is not None and self._possible_types
            else self._allocatable(daemons)
        )
        self._daemons = daemons
        self._free = {**res.subtract(offered, view.pod_requests), **volume_attachments.unlimited_attachments}
        self._volume_attachments = volume_attachments
        self._device_planning = devices
        #: What is left of its devices; None in decisions without devices.
        self.devices: NodeDevices | None = None
        if devices is not None:
            self.devices = devices.devices_of(view, self.index, self._possible_types)
            self._free = {**self._free, **devices.resources_of(self.devices)}

    @property
    def node_name(self) -> str:
        """The Node's name, empty before there is one."""
        return self.view.node.metadata.name if self.view.node is not None else ""

    @property
    def free(self) -> Resources:
        """What pods can take."""
        return self._free

    @property
    def known_labels(self) -> Requirements:
        """Labels that are settled."""
        return self._known_labels

    @property
    def possible_types(self) -> TypeSet:
        """The types it may become; none once it has launched."""
        return self._possible_types

    def with_bound_pods(self, pods: Sequence[Pod], requests: Iterable[Resources]) -> ExistingNode:
        """The node after these pods have been bound to it."""
        other = copy(self)
        for cached in ("host_ports", "volume_usage"):
            other.__dict__.pop(cached, None)
        other._free = res.subtract(self._free, res.add(*requests))
        if self._device_planning is not None and self.devices is not None:
            for pod in pods:
                demand = self._device_planning.resolve(pod).demand
                other.devices = (
                    other.devices if demand is None or other.devices is None else other.devices.after(demand, 1)[1]
                )
        other.view = replace(self.view, pods=(*self.view.pods, *pods))
        return other

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        """Host ports of bound pods and of DaemonSets that run here."""
        bound = [port for pod in self.view.pods for port in host_ports_of(pod.spec)]
        coming = [port for daemon in self._daemons for port in host_ports_of(daemon.spec) if self._runs_daemon(daemon)]
        return (*bound, *coming)

    @cached_property
    def volume_usage(self) -> VolumeUsage:
        """Volumes attached here, and how many may be (SCH-470)."""
        return self._volume_attachments.usage_of_node(self.view)

    def _allocatable(self, daemons: Sequence[DaemonSetPod]) -> Resources:
        """What the node has, less what DaemonSets will still take: all that run here less those already bound (SCH-220)."""
        view = self.view
        asked = res.parse_resources(view.claim.spec.resources.requests) if view.claim is not None else {}
        allocatable = view.allocatable if view.launched else asked
        expected = (daemon.requests for daemon in daemons if self._runs_daemon(daemon))
        missing = res.subtract(res.add(*expected), view.daemonset_requests)
        return res.subtract(allocatable, {name: max(0, amount) for name, amount in missing.items()})

    def _runs_daemon(self, daemon: DaemonSetPod) -> bool:
        """Whether the DaemonSet runs here; a node that still starts is going to be registered and initialized."""
        held = self._known_labels
        if self.view.managed and not self.view.initialized:
            held = held.without(labels.SIMULATION_ONLY).intersect(
                requirements_from_labels(dict.fromkeys(labels.SIMULATION_ONLY, "true"))
            )
        return daemon_tolerates(daemon.spec, self.view.taints) and any(
            compatible(held, term, _STRICT) for term in daemon_node_terms(daemon.spec)
        )

    def satisfies(self, asked: Requirements) -> bool:
        """Whether the node's labels satisfy what is asked (strict, SCH-167); before launch, whichever it will get."""
        return all(self._certainly_satisfies(requirement) for requirement in asked.values())

    def _certainly_satisfies(self, asked: Requirement) -> bool:
        if self.view.launched or self.index is None or asked.key not in self.index.well_known:
            return compatible(self._known_labels, Requirements((asked,)), _STRICT)
        held = self.view.requirements.requirement_for(asked.key)
        if asked.key in self.view.requirements and held.is_subset_of(asked):
            return True
        return bool(self._possible_types) and not self._possible_types & ~self.index.implying(held, asked)

    def counting_certainty(self, counted: TopologyNodeFilter | None) -> CountingCertainty:
        """Whether a constraint will count the pods of this node, which is yet to be launched."""
        return counting_certainty(counted, self.view.taints, self.label_value, self._satisfaction_certainty)

    def _satisfaction_certainty(self, asked: Requirements) -> CountingCertainty:
        if not compatible(self.view.requirements, asked, labels.WELL_KNOWN):
            return CountingCertainty.NEVER
        return CountingCertainty.CERTAIN if self.satisfies(asked) else CountingCertainty.POSSIBLE

    def label_value(self, key: str) -> str | None:
        """The value a label has, or is sure to get, here: None where it lacks it, `UNDECIDED` while that is not settled."""
        held = self._known_labels.get(key)
        if held is None and not self.view.launched:
            return self._future_label_value(key)
        if held is not None and held.operator is Op.IN and len(held.values) == 1:
            return next(iter(held.values))
        return None

    def _future_label_value(self, key: str) -> str | None:
        """The only value a node yet to be launched may get, None where it will lack the label, `UNDECIDED` where either may be.

        Labels its pool gives are on the claim already; only those that nodes bring with them come later (SCH-622).
        """
        if self.index is not None and self._certainly_satisfies(Requirement(key, False)):
            return None
        held = self.view.requirements.requirement_for(key)
        if held.operator is Op.IN and len(held.values) == 1:
            return next(iter(held.values))
        sold = (
            self.index.values(key, self._possible_types)
            if self.index is not None and self._possible_types
            else frozenset()
        )
        possible = [value for value in sold if held.allows(value)]
        if len(possible) == 1 and self._certainly_satisfies(Requirement(key, False, frozenset(possible))):
            return possible[0]
        return UNDECIDED


class NodeAllocation:
    """What one pass places on an existing node, and what remains free there."""

    def __init__(self, node: ExistingNode) -> None:
        self.node = node
        self.remaining: Mapping[str, int] = node.free
        self.pods: list[Pod] = []
        self._host_usage: HostUsage | None = None
        self._ports_known = False
        self._volume_usage: VolumeUsage | None = None
        self._devices = node.devices

    def count_fitting(
        self, request: NodeFitRequest, pods: Sequence[Pod], unmet_affinity: Container[TopologyGroup]
    ) -> int:
        """How many of the leading pods fit here (SCH-272). ``unmet_affinity``: affinity that no placed pod satisfies yet."""
        fitting = count_fitting(request.signature.requests, self.remaining, len(pods))
        if not fitting:
            return 0
        node_taints = self.node.view.taints
        if node_taints and taints.untolerated(node_taints, request.relaxation_step.tolerations):
            return 0
        if request.relaxation_step.requirements and not self.node.satisfies(request.relaxation_step.requirements):
            return 0
        if request.mounts:
            fitting = self._current_volume_usage().count_fitting(request.mounts_of(pods[:fitting]))
        demand = request.signature.device_demand
        if demand is not None and self._devices is not None:
            fitting = self._devices.after(demand, fitting)[0]
        return (
            request.host_limits.count_allowed(self._host_usage_for(request.host_limits), fitting, unmet_affinity)
            if request.host_limits is not None
            else fitting
        )

    def add_pods(self, request: NodeFitRequest, pods: Sequence[Pod]) -> None:
        """Commit pods (SCH-274)."""
        requests = request.signature.requests
        taken = {name: self.remaining.get(name, 0) - amount * len(pods) for name, amount in requests.items()}
        self.remaining = {**self.remaining, **taken}
        if request.mounts:
            self._volume_usage = self._current_volume_usage().with_pods(request.mounts_of(pods))
        demand = request.signature.device_demand
        if demand is not None and self._devices is not None:
            self._devices = self._devices.after(demand, len(pods))[1]
        if request.host_limits is not None:
            request.host_limits.record(self._host_usage_for(request.host_limits), len(pods))
        self.pods.extend(pods)

    def _host_usage_for(self, host_limits: HostLimits) -> HostUsage:
        """Pods and ports here, as far as these limits ask."""
        usage = self._host_usage
        if usage is None:
            usage = self._host_usage = HostUsage(self.node.node_name)
        if host_limits.ports and not self._ports_known:
            self._ports_known = True
            usage.ports = (*usage.ports, *self.node.host_ports)
        return usage

    def _current_volume_usage(self) -> VolumeUsage:
        return self._volume_usage if self._volume_usage is not None else self.node.volume_usage


def _settled_labels(view: StateNode, index: TypeIndex | None) -> Requirements:
    """Labels that are settled. A claim's own labels are; a custom key it only requires will not become a label (SCH-622)."""
    if view.launched or view.claim is None:
        return view.requirements
    if index is None:
        return Requirements(
            requirement
            for requirement in view.requirements.values()
            if requirement.operator is Op.IN and len(requirement.values) == 1
        )
    return requirements_from_labels({**view.claim.metadata.labels, labels.HOSTNAME: view.hostname})


def staying_nodes(snapshot: ClusterSnapshot, awaited: Container[str] = ()) -> list[StateNode]:
    """Nodes pods may join, in the order they are tried: initialized first, then by name (SCH-270, SCH-095).

    ``awaited``: keys of nodes whose room pods that are being deleted still have. These come last within each of the two.
    """
    staying = (view for view in snapshot.nodes if not view.marked_for_deletion)
    return sorted(staying, key=lambda view: (not view.initialized, view.key in awaited, view.name))


class ExistingNodeIndex:
    """All nodes of a decision, in the order they are tried, with sets over them."""

    def __init__(self, nodes: Sequence[ExistingNode]) -> None:
        self.nodes = tuple(nodes)
        self.all_nodes: NodeSet = (1 << len(self.nodes)) - 1
        self._by_taints: dict[tuple[Taint, ...], NodeSet] = {}
        for place, node in enumerate(self.nodes):
            by_taint = self._by_taints.get(node.view.taints, 0)
            self._by_taints[node.view.taints] = by_taint | 1 << place
        self._tolerated: dict[tuple[Toleration, ...], NodeSet] = {}
        self._by_label: dict[str, dict[str | None, NodeSet]] = {}
        #: Positions by keys, which stay the same in all copies.
        self._known_sets: dict[frozenset[str], NodeSet] = {}
        #: Nodes that have less free than the sets say.
        self._fuller: NodeSet = 0
        #: By identity of the requests, which are kept with it: pods alike share them, and many questions are about these.
        self._by_requests: dict[int, tuple[Resources, NodeSet]] = {}

    @cached_property
    def _free_by_resource(self) -> Mapping[str, AmountIndex]:
        return amount_indexes([node.free for node in self.nodes])

    def subset(self, nodes: NodeSet) -> ExistingNodeIndex:
        """The index of some of the nodes only. Positions stay, and what is known is shared."""
        _ = self._free_by_resource
        other = copy(self)
        other.all_nodes = nodes
        return other

    def with_nodes(self, changed: Mapping[int, ExistingNode]) -> ExistingNodeIndex:
        """The index with other nodes at some positions, which have the same labels and taints and no more free than before.

        Sets by what is free stay as they are, so they hold nodes that are full by now, until ``with_free_updated``.
        """
        _ = self._free_by_resource  # both share the answers, so these must be about what was free before
        other = copy(self)
        nodes = list(self.nodes)
        for position, node in changed.items():
            nodes[position] = node
        other.nodes = tuple(nodes)
        other._fuller |= type_set(changed)
        return other

    def with_free_updated(self) -> ExistingNodeIndex:
        """The index with sets that say what is free now. No node has a resource that none had before."""
        free = {position: self.nodes[position].free for position in members(self._fuller)}
        other = copy(self)
        other._fuller = 0
        other._by_requests = {}
        other._free_by_resource = {
            name: index.with_changed({position: amounts.get(name, 0) for position, amounts in free.items()})
            for name, index in self._free_by_resource.items()
        }
        return other

    def position_set(self, keys: Iterable[str]) -> NodeSet:
        """The nodes with these keys, as far as there are such."""
        positions = 0
        for key in keys:
            positions |= self._bit_by_key.get(key, 0)
        return positions

    def known_set(self, keys: frozenset[str]) -> NodeSet:
        """The same, remembered: many questions are about these nodes."""
        positions = self._known_sets.get(keys)
        if positions is None:
            positions = self._known_sets[keys] = self.position_set(keys)
        return positions

    @cached_property
    def _bit_by_key(self) -> Mapping[str, NodeSet]:
        return {node.view.key: 1 << position for position, node in enumerate(self.nodes)}

    def with_free(self, requests: Resources) -> NodeSet:
        """Nodes that had so much free at the start."""
        known = self._by_requests.get(id(requests))
        if known is None:
            every = (1 << len(self.nodes)) - 1
            known = self._by_requests[id(requests)] = (requests, with_at_least(requests, self._free_by_resource, every))
        return known[1] & self.all_nodes

    def tolerated_by(self, tolerations: tuple[Toleration, ...]) -> NodeSet:
        """Nodes none of whose taints keeps such pods away."""
        tolerated = self._tolerated.get(tolerations)
        if tolerated is None:
            tolerated = 0
            for node_taints, having in self._by_taints.items():
                if not taints.untolerated(node_taints, tolerations):
                    tolerated |= having
            self._tolerated[tolerations] = tolerated
        return tolerated

    def by_label_value(self, key: str) -> Mapping[str | None, NodeSet]:
        """Nodes by the value of a label, see `ExistingNode.label_value`."""
        cached = self._by_label.get(key)
        if cached is None:
            cached = self._by_label[key] = {}
            for place, node in enumerate(self.nodes):
                value = node.label_value(key)
                cached[value] = cached.get(value, 0) | 1 << place
        return cached

    def candidates(self, request: NodeFitRequest) -> NodeSet:
        """Nodes worth asking: none that is left out could take a single one of the pods."""
        return self.candidates_for(request.signature.requests, request.relaxation_step)

    def candidates_for(self, requests: Resources, step: RelaxationStep) -> NodeSet:
        """The same, for pods with these requests at a relaxation step."""
        if not self.nodes:
            return 0
        nodes = self.with_free(requests) & self.tolerated_by(step.tolerations)
        for key, asked in step.requirements.items():
            if nodes and asked.operator is Op.IN:
                by_value = self.by_label_value(key)
                matching = by_value.get(UNDECIDED, 0)
                for value in asked.values:
                    matching |= by_value.get(value, 0)
                nodes &= matching
        return nodes

    def nodes_in(self, candidates: NodeSet) -> Iterator[ExistingNode]:
        """The members of a set, in the order they are tried."""
        return (self.nodes[place] for place in members(candidates))
