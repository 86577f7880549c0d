"""What a plan with virtual pods means for their buffers, and for everybody else (SCH-740, SCH-741)."""

from __future__ import annotations

import msgspec

from karpenter.api.buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta
from karpenter.cluster.snapshot import Snapshot
from karpenter.cluster.state import ClusterState
from karpenter.cluster.virtual import VirtualPods
from karpenter.decide.buffers import Placement, held, placements, without_virtual
from karpenter.decide.plan import Plan
from karpenter.decide.provision import provision
from karpenter.model.buffers import is_virtual, virtual_pods
from support.builders import NOW, node, node_pool, pod
from support.shapes import STD, index_of


def room(name: str, count: int, cpu: str = "1") -> tuple[Pod, ...]:
    buffer = CapacityBuffer(metadata=ObjectMeta(name=name, namespace="ns", uid=name), spec=CapacityBufferSpec())
    container = Container(resources=ResourceRequirements(requests={"cpu": cpu}))
    return virtual_pods(buffer, PodTemplateSpec(spec=PodSpec(containers=(container,))), count, NOW)


def snapshot(*real: Pod, **virtual: tuple[Pod, ...]) -> Snapshot:
    """A pool, a node for one pod of one core, the pods."""
    state = ClusterState()
    state.set_pool(node_pool())
    state.set_node(node("old", {"cpu": "1", "memory": "4Gi", "pods": 10}))
    for item in real:
        state.set_pod(item)
    pods = VirtualPods()
    for name, found in virtual.items():
        pods.put(f"ns/{name}", found)
    return pods.into(state.snapshot())


def planned(*real: Pod, **virtual: tuple[Pod, ...]) -> Plan:
    return provision(snapshot(*real, **virtual), {"np": index_of(STD)}, NOW)


def test_virtual_pods_are_planned_beside_real_ones_and_failures_are_counted() -> None:
    """SCH-731, SCH-740"""
    plan = planned(pod("p", {"cpu": "1"}), a=room("a", 2), b=room("b", 1, cpu="500"))
    ready = placements(plan, lambda key: True)
    assert ready["ns/b"] == Placement(failed=1)
    assert ready["ns/a"].new + ready["ns/a"].fitting == 2
    assert [unplaced.pod.metadata.namespace for unplaced in plan.unplaced] == ["ns"]


def test_machines_that_are_not_ready_are_new_capacity() -> None:
    """S-230"""
    plan = planned(a=room("a", 1))
    assert placements(plan, lambda key: True) == {"ns/a": Placement(fitting=1)}
    assert placements(plan, lambda key: False) == {"ns/a": Placement(new=1)}


def test_every_machine_that_holds_room_is_known_with_how_much() -> None:
    """SCH-741, its Beyond: also those about to be bought"""
    plan = planned(a=room("a", 3))
    (claim,) = plan.claims
    assert held(plan) == {"old": 1, claim.name: 2}


def test_what_is_left_of_a_plan_is_about_real_pods_only() -> None:
    """S-231, SCH §25 Beyond"""
    plan = planned(pod("p", {"cpu": "2"}), a=room("a", 3), b=room("b", 1, cpu="500"))
    real = without_virtual(plan)
    shown = [*(item for claim in real.claims for item in claim.pods), *(u.pod for u in real.unplaced)]
    assert [item.metadata.name for item in shown] == ["p"]
    assert real.existing == ()
    assert [claim.name for claim in real.claims] == [claim.name for claim in plan.claims]


def test_a_plan_without_virtual_pods_is_left_as_it_is() -> None:
    plan = planned(pod("p", {"cpu": "2"}))
    assert without_virtual(plan) is plan


def test_a_snapshot_has_no_virtual_pods_once_their_buffer_is_gone() -> None:
    pods, plain = VirtualPods(), ClusterState().snapshot()
    pods.put("ns/a", room("a", 2))
    (group,) = pods.into(plain).groups
    assert all(map(is_virtual, group.pods))
    pods.put("ns/a", ())
    assert pods.into(plain) is plain


def test_real_and_virtual_pods_that_are_alike_stay_apart() -> None:
    """So that the order between them can be kept."""
    virtual = room("a", 1)
    real = pod("p", {"cpu": "1"})
    alike = msgspec.structs.replace(real, spec=msgspec.structs.replace(virtual[0].spec, priority=0))
    groups = snapshot(alike, a=virtual).groups
    assert [[is_virtual(item) for item in group.pods] for group in groups] == [[False], [True]]
