"""Pods that arrive a few at a time: what the nodes cost once all are there, against the reference's packing all the way.

360 mixed pods (0.1-1.5 cores, 100 MiB-4 GiB) come in batches to an empty cluster with one NodePool of c, m and r types on demand.
Every batch is planned on what the batches before have left and carried out at once: each claim becomes a Node of its cheapest
type, the pods are bound. No node is ever given back, so that the figure is what arrivals alone lead to.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from bench.figures import Figure
from karpenter.api.core import Container, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from karpenter.api.karpenter import (
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import NewNodeClaim, Solution
from karpenter.scheduling.solver import solve
from karpenter.state import ClusterState

PODS = 360
SEEDS = range(5)
#: The price search, and what it is compared with.
_MODES = (PackingMode.CHEAPEST, PackingMode.CLASSIC)
#: Pods in a batch, and the most their nodes may cost of what classic ones cost.
TARGETS = {3: 1.0, 12: 0.95}
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BETWEEN = timedelta(seconds=20)
_POOL = "default"


@dataclass(frozen=True)
class Run:
    """How a run ended: USD per hour of all nodes, how many there are, and the longest decision."""

    price_per_hour: float
    nodes: int
    longest_seconds: float


def figures() -> Iterator[Figure]:
    """Price of the nodes as a share of what they cost when every plan is classic, by batch and seed."""
    load_solver()
    index = TypeIndex(
        ec2_packaged_types.packaged_instance_types(),
        labels.WELL_KNOWN | well_known_labels_of(ec2_packaged_types.packaged_instance_types()),
    )
    for size, target in TARGETS.items():
        ratios, paid = [], dict.fromkeys(_MODES, 0.0)
        for seed in SEEDS:
            arriving = pods(seed)
            ours, classic = (run(arriving, size, index, SchedulingOptions(packing_mode=way)) for way in _MODES)
            paid[PackingMode.CHEAPEST] += ours.price_per_hour
            paid[PackingMode.CLASSIC] += classic.price_per_hour
            ratios.append(ours.price_per_hour / classic.price_per_hour)
            note = (
                f"{ours.price_per_hour:.3f} $/h on {ours.nodes} nodes, classic {classic.price_per_hour:.3f} on "
                f"{classic.nodes}; longest decision {ours.longest_seconds:.3f} s"
            )
            yield Figure(f"drips of {size}, seed {seed}: price / classic", ratios[-1], "", target, note)
        together = paid[PackingMode.CHEAPEST] / paid[PackingMode.CLASSIC]
        note = f"seed by seed {min(ratios):.3f} to {max(ratios):.3f}"
        yield Figure(f"drips of {size}, all seeds together: price / classic", together, "", target, note)


def pods(seed: int) -> list[Pod]:
    """Plain pods of mixed size, in the order in which they come."""
    draw = random.Random(seed)
    return [_pod(number, f"{draw.randint(1, 15) * 100}m", f"{draw.randint(100, 4096)}Mi") for number in range(PODS)]


def run(arriving: Sequence[Pod], size: int, index: TypeIndex, options: SchedulingOptions) -> Run:
    """All pods arrive in batches of that size, and every plan is carried out."""
    state = ClusterState()
    state.set_pool(_pool())
    price, nodes, longest = 0.0, 0, 0.0
    for begin in range(0, len(arriving), size):
        now = _BEGIN + begin // size * _BETWEEN
        for pod in arriving[begin : begin + size]:
            meta = msgspec.structs.replace(pod.metadata, creation_timestamp=now)
            state.set_pod(msgspec.structs.replace(pod, metadata=meta))
        started = time.perf_counter()
        plan = solve(build_problem(state.snapshot(), {_POOL: index}, now, options))
        longest = max(longest, time.perf_counter() - started)
        _carry_out(plan, state, index)
        price, nodes = price + plan.price_per_hour, nodes + len(plan.new_claims)
    return Run(price, nodes, longest)


def _carry_out(plan: Solution, state: ClusterState, index: TypeIndex) -> None:
    if plan.unschedulable:
        raise RuntimeError(f"{len(plan.unschedulable)} pods have no place: the figures would mean nothing")
    bound = {claim.name: claim.pods for claim in plan.new_claims} | {
        item.node_name: item.pods for item in plan.placed_on_existing
    }
    for claim in plan.new_claims:
        state.set_node(_node(claim, index))
    for node, members in bound.items():
        for pod in members:
            spec = msgspec.structs.replace(pod.spec, node_name=node)
            state.set_pod(msgspec.structs.replace(pod, spec=spec, status=PodStatus(phase="Running")))


def _node(claim: NewNodeClaim, index: TypeIndex) -> Node:
    """The node as it would join: its cheapest type, with that type's labels and allocatable."""
    item = next(each for each in index.types if each.name == claim.instance_types[0])
    own = {key: min(found.values) for key, found in item.requirements.items() if found.values and not found.complement}
    where = {labels.ZONE: claim.cheapest_offering.zone, labels.CAPACITY_TYPE: claim.cheapest_offering.capacity_type}
    state = {
        labels.NODE_POOL: _POOL,
        labels.HOSTNAME: claim.name,
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }
    return Node(
        metadata=ObjectMeta(name=claim.name, uid=claim.name, labels={**own, **where, **state}),
        spec=NodeSpec(provider_id=f"bench:///{claim.name}"),
        status=NodeStatus(
            capacity=res.resources_to_wire(item.capacity),
            allocatable=res.resources_to_wire(item.allocatable),
            conditions=(Condition(type="Ready", status="True"),),
        ),
    )


def _pod(number: int, cpu: str, memory: str) -> Pod:
    requests = ResourceRequirements(requests={"cpu": cpu, "memory": memory})
    waiting = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    return Pod(
        metadata=ObjectMeta(name=f"web-{number:03}", namespace="default", uid=f"web-{number:03}"),
        spec=PodSpec(containers=(Container(resources=requests),)),
        status=PodStatus(phase="Pending", conditions=(waiting,)),
    )


def _pool() -> NodePool:
    wanted = NodeSelectorRequirementWithMinValues
    requirements = (
        wanted(key=f"{labels.AWS_GROUP}/instance-category", operator="In", values=("c", "m", "r")),
        wanted(key=f"{labels.AWS_GROUP}/instance-generation", operator="Gt", values=("4",)),
        wanted(key=labels.CAPACITY_TYPE, operator="In", values=(labels.ON_DEMAND,)),
        wanted(key=labels.ARCH, operator="In", values=("amd64",)),
    )
    reference = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
    spec = NodeClaimTemplateSpec(requirements=requirements, node_class_ref=reference)
    return NodePool(
        metadata=ObjectMeta(name=_POOL, uid=_POOL),
        spec=NodePoolSpec(template=NodeClaimTemplate(spec=spec)),
        status=NodePoolStatus(conditions=(Condition(type="Ready", status="True"),)),
    )
