"""Builders of Kubernetes objects for tests: arguments for what matters, defaults for the rest.

``plan(*objects)`` feeds the objects to a fresh ``ClusterState`` and asks for the provisioning decision. Times are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from karpenter.api.apps import DaemonSet, DaemonSetSpec, SelectorWorkload
from karpenter.api.core import (
    Container,
    Namespace,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodSpec,
    PodStatus,
    PodTemplateSpec,
    ReplicationController,
    ResourceRequirements,
    Service,
)
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimResourceRequests,
    NodeClaimSpec,
    NodeClaimStatus,
    NodeClaimTemplate,
    NodeClaimTemplateMeta,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodePoolTaint,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference, Wire, WireResources
from karpenter.api.pod_groups import CoschedulingPodGroup, GroupedWorkload, SchedulingPodGroup
from karpenter.api.resource_claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.problem import Problem, build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.cluster_state import ClusterState
from karpenter.state.gangs import gang_key_of
from karpenter.state.snapshot import ClusterSnapshot
from support.instance_types import STD, index_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")
READY = Condition(type="Ready", status="True")
NODE_CLASS = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
TYPE = labels.INSTANCE_TYPE

#: An instance-type list for every pool, or one list per pool name.
Types = Sequence[InstanceType] | Mapping[str, Sequence[InstanceType]]


def seconds(after: float) -> datetime:
    return NOW + timedelta(seconds=after)


def owner(kind: str, name: str = "owner", api_version: str = "apps/v1") -> OwnerReference:
    return OwnerReference(api_version=api_version, kind=kind, name=name, uid=f"{kind}-{name}", controller=True)


def container(requests: WireResources | None = None, **fields: object) -> Container:
    limits = fields.pop("limits", {})
    return Container(resources=ResourceRequirements(requests=requests or {}, limits=limits), **fields)


def pod(
    name: str,
    requests: WireResources | None = None,
    *,
    meta: Mapping[str, object] = {},
    status: Mapping[str, object] = {},
    **spec: object,
) -> Pod:
    """A pending pod of one container; ``spec`` are fields of PodSpec. With a ``node_name`` it is running."""
    bound = bool(spec.get("node_name"))
    defaults: dict[str, object] = {"namespace": "default", "uid": f"uid-{name}", "creation_timestamp": NOW}
    state: dict[str, object] = {"phase": "Running"} if bound else {"phase": "Pending", "conditions": (UNSCHEDULABLE,)}
    return Pod(
        metadata=ObjectMeta(name=name, **{**defaults, **meta}),
        spec=PodSpec(**{"containers": (container(requests),), **spec}),
        status=PodStatus(**{**state, **status}),
    )


def pods(count: int, requests: WireResources | None = None, *, prefix: str = "pod", **spec: object) -> list[Pod]:
    return [pod(f"{prefix}-{number:03}", requests, **spec) for number in range(count)]


def expr(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def term(*expressions: NodeSelectorRequirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=expressions)


def affinity(
    *required: NodeSelectorTerm, preferred: Iterable[tuple[int, NodeSelectorTerm]] = (), **fields: object
) -> Affinity:
    """Node affinity: required terms (one must hold) and weighted preferences; ``fields`` are the other affinities."""
    own = NodeAffinity(
        required=NodeSelector(node_selector_terms=required) if required else None,
        preferred=tuple(
            PreferredSchedulingTerm(weight=weight, preference=selector_term) for weight, selector_term in preferred
        ),
    )
    return Affinity(node_affinity=own, **fields)


def where(key: str, operator: str, *values: str) -> Affinity:
    """Affinity of one required expression."""
    return affinity(term(expr(key, operator, *values)))


def wanted(key: str, operator: str, *values: str, least: int | None = None) -> NodeSelectorRequirementWithMinValues:
    return NodeSelectorRequirementWithMinValues(key=key, operator=operator, values=values, min_values=least)


ANY_CAPACITY = wanted(labels.CAPACITY_TYPE, "Exists")


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Taint:
    return Taint(key=key, effect=effect, value=value)


def pool_taint(key: str, effect: str = "NoSchedule") -> NodePoolTaint:
    return NodePoolTaint(key=key, effect=effect)


def tolerating(key: str, operator: str = "Exists", value: str = "", effect: str = "") -> Toleration:
    return Toleration(key=key, operator=operator, value=value, effect=effect)


def node_pool(
    name: str = "np",
    requirements: Iterable[NodeSelectorRequirementWithMinValues] = (ANY_CAPACITY,),
    *,
    ready: bool = True,
    deleted: bool = False,
    labels: Mapping[str, str] = {},
    template: Mapping[str, object] = {},
    **spec: object,
) -> NodePool:
    """A ready pool; ``template`` are fields of its template's spec, ``spec`` of its own."""
    return NodePool(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", deletion_timestamp=NOW if deleted else None),
        spec=NodePoolSpec(
            template=NodeClaimTemplate(
                metadata=NodeClaimTemplateMeta(labels=labels),
                spec=NodeClaimTemplateSpec(requirements=tuple(requirements), node_class_ref=NODE_CLASS, **template),
            ),
            **spec,
        ),
        status=NodePoolStatus(conditions=(Condition(type="Ready", status="True" if ready else "False"),)),
    )


def annotated(pool: NodePool, notes: Mapping[str, str]) -> NodePool:
    """The pool with these annotations."""
    return msgspec.structs.replace(pool, metadata=msgspec.structs.replace(pool.metadata, annotations=notes))


def node(
    name: str,
    amounts: WireResources,
    *,
    labels: Mapping[str, str] = {},
    taints: Iterable[Taint] = (),
    provider_id: str | None = None,
    deleted: bool = False,
    capacity: WireResources | None = None,
) -> Node:
    """A Ready node that offers the amounts (``pods: 110`` unless given)."""
    offered = {"pods": 110, **amounts}
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}",
            labels={"kubernetes.io/hostname": name, **labels},
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=NodeSpec(provider_id=f"p://{name}" if provider_id is None else provider_id, taints=tuple(taints)),
        status=NodeStatus(allocatable=offered, capacity=capacity or offered, conditions=(READY,)),
    )


def claim(
    name: str,
    amounts: WireResources | None = None,
    requirements: Iterable[NodeSelectorRequirementWithMinValues] = (),
    *,
    pool: str = "np",
    labels: Mapping[str, str] = {},
    provider_id: str = "",
    deleted: bool = False,
    conditions: tuple[Condition, ...] = (),
    requests: WireResources | None = None,
    **spec: object,
) -> NodeClaim:
    """A claim of a pool: launched when it has a provider ID, in flight otherwise."""
    offered = {"pods": 110, **amounts} if amounts is not None else {}
    return NodeClaim(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}",
            labels={"karpenter.sh/nodepool": pool, **labels},
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=NodeClaimSpec(
            requirements=tuple(requirements),
            node_class_ref=NODE_CLASS,
            resources=NodeClaimResourceRequests(requests=requests or {}),
            **spec,
        ),
        status=NodeClaimStatus(provider_id=provider_id, capacity=offered, allocatable=offered, conditions=conditions),
    )


def node_and_claim(
    name: str,
    amounts: WireResources,
    *,
    pool: str = "np",
    labels: Mapping[str, str] = {},
    taints: Iterable[Taint] = (),
    deleted: bool = False,
    initialized: bool = True,
    **spec: object,
) -> tuple[Node, NodeClaim]:
    """A registered node together with its claim ``claim-<name>``."""
    stages = {"karpenter.sh/registered": "true"} | ({"karpenter.sh/initialized": "true"} if initialized else {})
    own = {"karpenter.sh/nodepool": pool, "node.kubernetes.io/instance-type": "some", **labels}
    return (
        node(name, amounts, labels={**own, **stages}, taints=taints),
        claim(f"claim-{name}", amounts, pool=pool, labels=own, provider_id=f"p://{name}", deleted=deleted, **spec),
    )


def daemon_set(
    name: str, requests: WireResources | None = None, *, limits: WireResources | None = None, **spec: object
) -> DaemonSet:
    return DaemonSet(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=DaemonSetSpec(
            template=PodTemplateSpec(
                spec=PodSpec(**{"containers": (container(requests, limits=limits or {}),), **spec})
            )
        ),
    )


def budget(name: str, selector: Mapping[str, str], **spec: object) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels=selector), **spec),
    )


def feed(state: ClusterState, objects: Iterable[Wire]) -> ClusterState:
    """Add objects of any watched kind to a cluster state."""
    setters = {
        Pod: state.set_pod,
        Node: state.set_node,
        NodeClaim: state.set_claim,
        NodePool: state.set_pool,
        DaemonSet: state.set_daemon_set,
        PodDisruptionBudget: state.set_pdb,
        PersistentVolumeClaim: state.set_volume_claim,
        PersistentVolume: state.set_volume,
        StorageClass: state.set_storage_class,
        CSINode: state.set_csi_node,
        Namespace: state.set_namespace,
        Service: state.workload_selectors.set_service,
        ReplicationController: state.workload_selectors.set_owner,
        SelectorWorkload: state.workload_selectors.set_owner,
        ResourceClaim: state.devices.set_claim,
        ResourceClaimTemplate: state.devices.set_template,
        DeviceClass: state.devices.set_class,
        ResourceSlice: state.devices.set_slice,
        GroupedWorkload: state.gangs.set_object,
        SchedulingPodGroup: state.gangs.set_object,
        CoschedulingPodGroup: state.gangs.set_object,
    }
    for wire in objects:
        if isinstance(wire, DeviceClass):
            state.devices.enable()
        if isinstance(wire, Pod) and gang_key_of(wire) is not None:
            state.gangs.enable()
        setters[type(wire)](wire)
    return state


def flatten(objects: Iterable[object]) -> list[Wire]:
    wires: list[Wire] = []
    for member in objects:
        wires += flatten(member) if isinstance(member, list | tuple) else [member]
    return wires


def snapshot(*objects: object) -> ClusterSnapshot:
    return feed(ClusterState(), flatten(objects)).snapshot()


def indexes(objects: Iterable[Wire], types: Types) -> dict[str, TypeIndex]:
    names = [wire.metadata.name for wire in objects if isinstance(wire, NodePool)]
    if isinstance(types, Mapping):
        return {name: index_of(types[name]) for name in names if name in types}
    shared = index_of(types)
    return dict.fromkeys(names, shared)


def plan(*objects: object, types: Types = STD, options: SchedulingOptions | None = None) -> Solution:
    """The plan for a cluster of these objects (lists and tuples are flattened)."""
    wires = flatten(objects)
    prepared = indexes(wires, types)
    problem = build_problem(snapshot(wires), prepared, NOW, options or SchedulingOptions())
    solution = solve(problem, prepared)
    for hear in on_solved:
        hear(problem, solution)
    return solution


#: Called with every problem that ``plan`` solves; fixtures put something here.
on_solved: list[Callable[[Problem, Solution], None]] = []


def new_types(result: Solution) -> list[str]:
    """The cheapest type of every planned claim, sorted: what would be launched."""
    return sorted(new_nodeclaim.instance_types[0] for new_nodeclaim in result.new_claims)


def sizes(result: Solution) -> list[int]:
    """Pods per planned claim, sorted."""
    return sorted(len(new_nodeclaim.pods) for new_nodeclaim in result.new_claims)


def existing(result: Solution) -> dict[str, int]:
    """How many pods go to each node that exists."""
    return {placed_pods.node_name: len(placed_pods.pods) for placed_pods in result.placed_on_existing}


def left(result: Solution) -> list[str]:
    """Names of the pods that the plan leaves out, sorted."""
    return sorted(unschedulable_pod.pod.metadata.name for unschedulable_pod in result.unschedulable)


def categories(result: Solution) -> set[str]:
    """Categories of the reasons why pods are left out."""
    return {reason.category.value for unschedulable_pod in result.unschedulable for reason in unschedulable_pod.reasons}


def details(result: Solution) -> str:
    """The reasons why pods are left out, as text, sorted."""
    return "; ".join(
        sorted(
            {
                reason_message(reason)
                for unschedulable_pod in result.unschedulable
                for reason in unschedulable_pod.reasons
            }
        )
    )


def asked(result: Solution, key: str) -> list[tuple[str, tuple[str, ...]]]:
    """Operator and values of a label in the requirements of every planned claim, sorted."""
    return sorted(
        (requirement.operator, requirement.values)
        for planned in result.new_claims
        for requirement in planned.claim.spec.requirements
        if requirement.key == key
    )


def replaced(wire: Wire, **fields: object) -> Wire:
    return msgspec.structs.replace(wire, **fields)
