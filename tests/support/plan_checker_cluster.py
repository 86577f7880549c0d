"""Input of the plan checker: the cluster as wire objects, its nodes and NodeClaims, and the nodes they may become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import product

from karpenter.api.apps import DaemonSet, DaemonSetSpec
from karpenter.api.core import Namespace, Node, Pod, PodSpec, PodTemplateSpec
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.api.scheduling_constraints import NodeSelectorRequirement, NodeSelectorTerm, Taint
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, TopologySelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot
from support.kube_filters import (
    HOST,
    Amounts,
    Disk,
    Expression,
    Namespaces,
    NodeInfo,
    accepts,
    amounts,
    expressions,
    minus,
    needs,
    plus,
    ports,
    repelled,
    wants_node,
)

POOL = "karpenter.sh/nodepool"
TYPE = "node.kubernetes.io/instance-type"
_PASSING = {
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
}
_READY = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}


@dataclass(frozen=True)
class ClusterObjects:
    """The cluster a plan was made for. ``types`` are those of every pool, or each pool's own by name."""

    pods: tuple[Pod, ...]
    pools: tuple[NodePool, ...]
    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    daemons: tuple[DaemonSet, ...]
    types: Sequence[InstanceType] | Mapping[str, Sequence[InstanceType]]
    well_known: frozenset[str]
    namespaces: Namespaces = field(default_factory=dict)
    #: PersistentVolumeClaims, PersistentVolumes, StorageClasses, CSINodes.
    storage: tuple[Wire, ...] = ()

    def objects(self) -> list[object]:
        spaces = [
            Namespace(metadata=ObjectMeta(name=name, labels=own)) for name, own in sorted(self.namespaces.items())
        ]
        return [*self.pods, *self.pools, *self.nodes, *self.claims, *self.daemons, *self.storage, *spaces]

    @cached_property
    def disks(self) -> Mapping[tuple[str, str], Disk]:
        """What volume claims require of nodes, by namespace and name."""
        return dict(_disks(self.storage))

    @cached_property
    def attach_limits(self) -> Mapping[str, Mapping[str, int]]:
        """How many volumes of a driver a node takes, by node."""
        return {
            wire.metadata.name: {
                driver.name: driver.allocatable.count
                for driver in wire.spec.drivers
                if driver.allocatable is not None and driver.allocatable.count is not None
            }
            for wire in self.storage
            if isinstance(wire, CSINode)
        }

    def types_of(self, pool: str) -> Sequence[InstanceType]:
        return self.types.get(pool, ()) if isinstance(self.types, Mapping) else self.types

    def daemon_specs(self) -> list[PodSpec]:
        return [daemon_set.spec.template.spec for daemon_set in self.daemons]


def cluster_of_snapshot(
    snapshot: ClusterSnapshot, types: Mapping[str, Sequence[InstanceType]], **more: object
) -> ClusterObjects:
    """The cluster of a snapshot; ``more`` are fields of ``ClusterObjects`` that a snapshot does not have."""
    well_known = {key for own in types.values() for instance_type in own for key in instance_type.requirements}
    daemons = (
        DaemonSet(
            metadata=ObjectMeta(name=daemon_set_pod.name),
            spec=DaemonSetSpec(template=PodTemplateSpec(spec=daemon_set_pod.spec)),
        )
        for daemon_set_pod in snapshot.daemonset_pods
    )
    return ClusterObjects(
        pods=(
            *(pod for group in snapshot.pod_groups for pod in group.pods),
            *(pod for view in snapshot.nodes for pod in view.pods),
        ),
        pools=snapshot.pools,
        nodes=tuple(view.node for view in snapshot.nodes if view.node is not None),
        claims=tuple(view.claim for view in snapshot.nodes if view.claim is not None),
        daemons=tuple(daemons),
        types=types,
        well_known=frozenset(well_known | {POOL}),
        **more,
    )


def _disks(storage: Iterable[Wire]) -> Iterator[tuple[tuple[str, str], Disk]]:
    """Bound claims follow the node affinity of their volume, others the allowed topologies of their class."""
    wires = {(type(wire), wire.metadata.name): wire for wire in storage}  # type: ignore[attr-defined]
    for wire in storage:
        if isinstance(wire, PersistentVolumeClaim):
            key = (wire.metadata.namespace, wire.metadata.name)
            volume = wires.get((PersistentVolume, wire.spec.volume_name))
            made = wires.get((StorageClass, wire.spec.storage_class_name))
            if volume is not None:
                reach = volume.spec.node_affinity  # type: ignore[attr-defined]
                terms = reach.required.node_selector_terms if reach is not None and reach.required is not None else ()
                source = volume.spec.csi  # type: ignore[attr-defined]
                yield key, Disk(terms, source.driver if source is not None else "")
            elif made is not None:
                yield key, Disk(tuple(map(_allowed, made.allowed_topologies)), made.provisioner)  # type: ignore[attr-defined]


def _allowed(topology: TopologySelectorTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        match_expressions=tuple(
            NodeSelectorRequirement(key=entry.key, operator="In", values=entry.values)
            for entry in topology.match_label_expressions
        )
    )


@dataclass(frozen=True)
class PlacementTarget:
    """A node, an in-flight NodeClaim or a new one: the nodes it may become, the pods bound there and those planned there."""

    key: str
    variants: tuple[NodeInfo, ...]
    bound: tuple[Pod, ...] = ()
    planned: tuple[Pod, ...] = ()
    leaving: bool = False


def variants_of_claim(cluster: ClusterObjects, claim: NodeClaim, kept: Iterable[str] | None = None) -> list[NodeInfo]:
    """Every node a claim may become.

    ``kept`` are the types a plan names: only available offerings count. An existing claim may become a type sold out since.
    """
    wanted = expressions(claim.spec.requirements)
    own = {**claim.metadata.labels, HOST: claim.metadata.name}
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in claim.spec.taints)
    names = None if kept is None else set(kept)
    return [
        variant
        for instance_type in cluster.types_of(claim.metadata.labels.get(POOL, ""))
        if names is None or instance_type.name in names
        for variant in variants(cluster, instance_type, wanted, own, taints, sold=kept is not None)
    ]


def variants(
    cluster: ClusterObjects,
    instance_type: InstanceType,
    wanted: Sequence[Expression],
    own: Mapping[str, str],
    taints: tuple[Taint, ...],
    *,
    sold: bool,
) -> Iterator[NodeInfo]:
    """Nodes of a type that meet all requirements; none where the type or (``sold``) its available offerings do not."""
    free = {name: Fraction(amount, 1000) for name, amount in instance_type.capacity.items()}
    capacity = dict(free)
    free = minus(free, {name: Fraction(amount, 1000) for name, amount in instance_type.overhead.items()})
    huge = sum((amount for name, amount in capacity.items() if name.startswith("hugepages-")), Fraction(0))
    free["memory"] = max(Fraction(0), free.get("memory", Fraction(0)) - huge)
    for labels in _labels(instance_type, wanted, sold=sold):
        node_info = NodeInfo(
            name=own.get(HOST, "new"),
            labels={**labels, **own, **_READY},
            taints=taints,
            free=free,
            type=instance_type.name,
            capacity=capacity,
        )
        yield _beside_daemons(cluster, node_info, {})


def _labels(instance_type: InstanceType, wanted: Sequence[Expression], *, sold: bool) -> Iterator[dict[str, str]]:
    possible: dict[str, list[str | None]] = {}
    for key, variant in instance_type.requirements.items():
        own = [(operator, values) for other, operator, values in wanted if other == key]
        possible[key] = [v for v in sorted(variant.values) or [None] if all(accepts(op, vs, v) for op, vs in own)]
    ways: list[dict[str, str]] = [{}]
    if sold:
        each = (
            {key: next(iter(variant.values)) for key, variant in offering.requirements.items()}
            for offering in instance_type.offerings
            if offering.available
        )
        ways = [way for way in each if all(value in possible.get(key, [value]) for key, value in way.items())]
    for way in ways:
        open_keys = [key for key in possible if key not in way]
        for values in product(*(possible[key] for key in open_keys)):
            result = {**dict(zip(open_keys, values, strict=True)), **way}
            yield {key: value for key, value in result.items() if value is not None}


def _beside_daemons(cluster: ClusterObjects, node_info: NodeInfo, running: Mapping[str, Fraction]) -> NodeInfo:
    """The node less the requests of its DaemonSets that do not run yet. Their ports count as taken."""
    coming = [spec for spec in cluster.daemon_specs() if runs_daemon(spec, node_info)]
    missing = {
        name: max(Fraction(0), a - running.get(name, Fraction(0))) for name, a in plus(*map(needs, coming)).items()
    }
    taken = tuple(port for spec in coming for port in ports(spec))
    return replace(node_info, free=minus(node_info.free, missing), ports=(*node_info.ports, *taken))


def runs_daemon(spec: PodSpec, node_info: NodeInfo) -> bool:
    return not repelled(spec, node_info.taints) and wants_node(spec, node_info)


def node_info_of_node(cluster: ClusterObjects, node: Node, claim: NodeClaim | None, bound: Sequence[Pod]) -> NodeInfo:
    """A node as it is. Of an uninitialized one only lasting taints count, and missing amounts come from the claim."""
    labels, taints, free = node.metadata.labels, node.spec.taints, amounts(node.status.allocatable)
    if claim is not None and labels.get("karpenter.sh/initialized") != "true":
        startup = {(nodepool_taint.key, nodepool_taint.effect) for nodepool_taint in claim.spec.startup_taints}
        if labels.get("karpenter.sh/registered") != "true":
            labels, taints = {**claim.metadata.labels, HOST: node.metadata.name}, _taints(claim)
        taints = tuple(t for t in taints if t.key not in _PASSING and (t.key, t.effect) not in startup)
        free = {**free, **{n: a for n, a in amounts(claim.status.allocatable).items() if not free.get(n)}}
    daemons = [pod for pod in bound if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)]
    node_info = NodeInfo(
        name=node.metadata.name,
        labels=labels,
        taints=taints,
        free=free,
        ports=tuple(port for pod in bound for port in ports(pod.spec)),
        cordoned=node.spec.unschedulable,
        attached=frozenset(
            (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)
            for pod in bound
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None
        ),
        attach_limits=cluster.attach_limits.get(node.metadata.name, {}),
    )
    node_info = _beside_daemons(cluster, node_info, plus(*(needs(pod.spec) for pod in daemons)))
    return replace(node_info, free=amounts_without(node_info.free, plus(*(needs(pod.spec) for pod in bound))))


def amounts_without(free: Amounts, used: Amounts) -> Amounts:
    return {name: free.get(name, Fraction(0)) - used.get(name, Fraction(0)) for name in {*free, *used}}


def _taints(claim: NodeClaim) -> tuple[Taint, ...]:
    return tuple(nodepool_taint.as_taint() for nodepool_taint in claim.spec.taints)


def placed_pods(plan: Solution) -> Iterator[Pod]:
    """The pods of a plan that have a place."""
    for claim in plan.new_claims:
        yield from claim.pods
    for placement in plan.placed_on_existing:
        yield from placement.pods


def placement_targets(cluster: ClusterObjects, plan: Solution) -> list[PlacementTarget]:
    """Nodes, in-flight claims, then new claims. Pods that have to move count where they go, else nowhere (SCH-064)."""
    placed = {placement.node_key: placement.pods for placement in plan.placed_on_existing}
    moving = {pod.metadata.uid for pod in placed_pods(plan)}
    moving |= {unschedulable_pod.pod.metadata.uid for unschedulable_pod in plan.unschedulable}
    claim_of = {claim.status.provider_id: claim for claim in cluster.claims if claim.status.provider_id}
    result: list[PlacementTarget] = []
    for node in cluster.nodes:
        claim = claim_of.pop(node.spec.provider_id, None)
        bound = tuple(
            pod
            for pod in cluster.pods
            if pod.spec.node_name == node.metadata.name
            and pod.metadata.uid not in moving
            and pod.status.phase not in ("Succeeded", "Failed")
        )
        key = node.metadata.name if claim is None else claim.metadata.name
        leaving = (claim if claim is not None else node).metadata.deletion_timestamp is not None
        node_info = node_info_of_node(cluster, node, claim, bound)
        result.append(PlacementTarget(key, (node_info,), bound, placed.get(key, ()), leaving))
    for claim in cluster.claims:
        if not claim.status.provider_id or claim.status.provider_id in claim_of:
            leaving = claim.metadata.deletion_timestamp is not None
            own = () if leaving else _on_its_way(cluster, claim)
            result.append(PlacementTarget(claim.metadata.name, own, (), placed.get(claim.metadata.name, ()), leaving))
    return [
        *result,
        *(
            PlacementTarget(
                new_nodeclaim.name,
                tuple(variants_of_claim(cluster, new_nodeclaim.claim, new_nodeclaim.instance_types)),
                (),
                new_nodeclaim.pods,
            )
            for new_nodeclaim in plan.new_claims
        ),
    ]


def _on_its_way(cluster: ClusterObjects, claim: NodeClaim) -> tuple[NodeInfo, ...]:
    return (_launched(cluster, claim),) if claim.status.provider_id else tuple(variants_of_claim(cluster, claim))


def _launched(cluster: ClusterObjects, claim: NodeClaim) -> NodeInfo:
    labels = {**claim.metadata.labels, HOST: claim.metadata.name}
    node_info = NodeInfo(claim.metadata.name, labels, _taints(claim), amounts(claim.status.allocatable))
    return _beside_daemons(cluster, node_info, {})
