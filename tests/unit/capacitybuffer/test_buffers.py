"""The effect of a plan with virtual pods on their buffers and on all other objects (SCH-740, SCH-741)."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta
from karpenter.capacitybuffer.buffer_placements import (
    BufferPlacement,
    buffer_placements,
    buffer_pods_by_node,
    nodes_with_room_now,
    without_buffer_pods,
)
from karpenter.capacitybuffer.buffer_pods import build_virtual_pods
from karpenter.capacitybuffer.buffer_resolution import BufferUnresolved, ResolvedTemplate, buffer_target
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.cluster_state import ClusterState
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.virtual_pods import VirtualPods, is_virtual_pod
from support.builders import NOW, node, node_pool, pod
from support.instance_types import STD, index_of

READY = frozenset({"old"})


def room(name: str, count: int, cpu: str = "1") -> tuple[Pod, ...]:
    buffer = CapacityBuffer(metadata=ObjectMeta(name=name, namespace="ns", uid=name), spec=CapacityBufferSpec())
    container = Container(resources=ResourceRequirements(requests={"cpu": cpu}))
    return build_virtual_pods(buffer, PodTemplateSpec(spec=PodSpec(containers=(container,))), count, NOW)


def snapshot(*real: Pod, **virtual: tuple[Pod, ...]) -> ClusterSnapshot:
    """A pool, a node for one pod of one core, the pods."""
    state = ClusterState()
    state.set_pool(node_pool())
    state.set_node(node("old", {"cpu": "1", "memory": "4Gi", "pods": 10}))
    for listed_pod in real:
        state.set_pod(listed_pod)
    pods = VirtualPods()
    for name, virtual_pods in virtual.items():
        pods.set_pods(f"ns/{name}", virtual_pods)
    return pods.added_to(state.snapshot())


def planned(*real: Pod, **virtual: tuple[Pod, ...]) -> Solution:
    return solve(build_problem(snapshot(*real, **virtual), {"np": index_of(STD)}, NOW))


def test_virtual_pods_are_planned_beside_real_ones_and_failures_are_counted() -> None:
    """SCH-731, SCH-740"""
    plan = planned(pod("p", {"cpu": "1"}), a=room("a", 2), b=room("b", 1, cpu="500"))
    ready = buffer_placements(plan, READY)
    assert ready["ns/b"] == BufferPlacement(unschedulable=1)
    assert ready["ns/a"].on_new_nodes + ready["ns/a"].on_ready_nodes == 2
    assert [unplaced.pod.metadata.namespace for unplaced in plan.unschedulable] == ["ns"]


def test_nodes_that_are_not_ready_are_new_capacity() -> None:
    """S-230"""
    plan = planned(a=room("a", 1))
    assert buffer_placements(plan, READY) == {"ns/a": BufferPlacement(on_ready_nodes=1)}
    assert buffer_placements(plan, frozenset()) == {"ns/a": BufferPlacement(on_new_nodes=1)}


def test_room_that_pods_being_deleted_still_have_is_not_ready() -> None:
    """SCH-089 Beyond: who is told that there is room sends pods at once."""
    old = msgspec.structs.replace(
        pod("old", {"cpu": "1"}, node_name="old"), metadata=ObjectMeta(name="old", deletion_timestamp=NOW)
    )
    problem_snapshot = snapshot(old, a=room("a", 1))
    options = SchedulingOptions(terminating_pods_window=timedelta(seconds=30))
    plan = solve(build_problem(problem_snapshot, {"np": index_of(STD)}, NOW, options))
    assert not plan.new_claims
    ready = nodes_with_room_now(problem_snapshot.nodes, plan)
    assert buffer_placements(plan, ready) == {"ns/a": BufferPlacement(on_new_nodes=1)}
    assert nodes_with_room_now(problem_snapshot.nodes, Solution()) == READY


def test_every_node_that_holds_room_is_known_with_how_much() -> None:
    """SCH-741, its Beyond: also those about to be launched"""
    plan = planned(a=room("a", 3))
    (claim,) = plan.new_claims
    assert buffer_pods_by_node(plan) == {"old": 1, claim.name: 2}


def test_what_is_left_of_a_plan_is_about_real_pods_only() -> None:
    """S-231, SCH §25 Beyond"""
    plan = planned(pod("p", {"cpu": "2"}), a=room("a", 3), b=room("b", 1, cpu="500"))
    real = without_buffer_pods(plan)
    shown = [
        *(listed_pod for claim in real.new_claims for listed_pod in claim.pods),
        *(u.pod for u in real.unschedulable),
    ]
    assert [listed_pod.metadata.name for listed_pod in shown] == ["p"]
    assert real.placed_on_existing == ()
    assert [claim.name for claim in real.new_claims] == [claim.name for claim in plan.new_claims]


def test_a_plan_without_virtual_pods_is_left_as_it_is() -> None:
    plan = planned(pod("p", {"cpu": "2"}))
    assert without_buffer_pods(plan) is plan


def test_a_snapshot_has_no_virtual_pods_once_their_buffer_is_gone() -> None:
    pods, plain = VirtualPods(), ClusterState().snapshot()
    pods.set_pods("ns/a", room("a", 2))
    (group,) = pods.added_to(plain).pod_groups
    assert all(map(is_virtual_pod, group.pods))
    pods.set_pods("ns/a", ())
    assert pods.added_to(plain) is plain


def test_real_and_virtual_pods_that_are_alike_stay_apart() -> None:
    """So that the order between them can be kept."""
    virtual = room("a", 1)
    real = pod("p", {"cpu": "1"})
    alike = msgspec.structs.replace(real, spec=msgspec.structs.replace(virtual[0].spec, priority=0))
    groups = snapshot(alike, a=virtual).pod_groups
    assert [[is_virtual_pod(listed_pod) for listed_pod in group.pods] for group in groups] == [[False], [True]]


def test_a_buffer_for_more_pods_than_any_cluster_holds_is_refused_and_one_with_limits_is_not() -> None:
    """A misspelt count does not fill the memory of the controller."""
    container = Container(resources=ResourceRequirements(requests={"cpu": "1"}))
    template = ResolvedTemplate(PodTemplateSpec(spec=PodSpec(containers=(container,))))
    with pytest.raises(BufferUnresolved, match="at most 20000 pods, this one is for 2000000000"):
        buffer_target(CapacityBuffer(spec=CapacityBufferSpec(replicas=2_000_000_000)), template)
    limited = CapacityBuffer(spec=CapacityBufferSpec(replicas=2_000_000_000, limits={"cpu": "20"}))
    assert buffer_target(limited, template) == 20
