"""Capacity buffers under a running controller (SCH §25): room is kept, told, and not taken for emptiness."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicaSet, ReplicatedSpec, StatefulSet
from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec, PodTemplateReference, ScalableReference
from karpenter.api.core import Container, PodSpec, PodTemplate, PodTemplateSpec, ResourceRequirements
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.model import conditions, labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.settings import Settings
from support.builders import node, pod
from support.world import World, story, until

ON = Settings(feature_gates=parse_feature_gates("CapacityBuffer=true"))
LABELS = {"app": "web"}


def template(cpu: str = "1") -> PodTemplateSpec:
    container = Container(name="a", resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplateSpec(metadata=ObjectMeta(labels=LABELS), spec=PodSpec(containers=(container,)))


async def pod_template(world: World, name: str = "t", cpu: str = "1") -> None:
    pod_template = PodTemplate(metadata=ObjectMeta(name=name, namespace="default"), template=template(cpu))
    await world.kube.create(kinds.POD_TEMPLATE, pod_template)


async def buffer(world: World, name: str = "b", **spec: Any) -> None:
    if not spec.keys() & {"pod_template_ref", "scalable_ref", "bare"}:
        spec["pod_template_ref"] = PodTemplateReference(name="t")
    spec.pop("bare", None)
    capacity_buffer = CapacityBuffer(
        metadata=ObjectMeta(name=name, namespace="default"), spec=CapacityBufferSpec(**spec)
    )
    await world.kube.create(kinds.CAPACITY_BUFFER, capacity_buffer)


async def begin(world: World, settings: Settings = ON) -> None:
    await world.node_class()
    await world.pool(disruption=Disruption(consolidate_after="0s", budgets=(Budget(nodes="100%"),)))
    await world.start(settings)
    await asyncio.sleep(0.1)


async def condition(world: World, type_: str, name: str = "b") -> tuple[str, str, str]:
    condition = conditions.find_condition((await status(world, name)).conditions, type_)
    return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)


async def status(world: World, name: str = "b") -> Any:
    return (await world.kube.get(kinds.CAPACITY_BUFFER, name, "default")).status


async def machines(world: World) -> list[str]:
    return [claim.metadata.name for claim in await world.all(kinds.NODE_CLAIM)]


async def joined(world: World) -> list[str]:
    """Every claim's machine joins; their names."""
    await until(lambda: _bought(world))
    names = await machines(world)
    for name in names:
        await world.join(name)
    return names


async def _bought(world: World) -> bool:
    result = await world.all(kinds.NODE_CLAIM)
    return bool(result) and all(claim.status.provider_id for claim in result)


async def _fits(world: World) -> bool:
    return (await condition(world, "Provisioning"))[1] == "FitsExistingCapacity"


@story
async def test_room_is_bought_and_then_said_to_be_there(world: World) -> None:
    """S-230, SCH-723, SCH-740.

    API-187, 192: the status names template, generation and replicas, and the condition Provisioning follows.
    SCH-003: the buffer alone triggers the pass.
    """
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=2)
    await until(lambda: _bought(world))
    await asyncio.sleep(1)
    assert await condition(world, "ReadyForProvisioning") == ("True", "Resolved", "")
    actual = await status(world)
    assert (actual.replicas, actual.pod_template_ref.name, actual.pod_template_generation) == (2, "t", 1)
    assert actual.provisioning_strategy == "buffer.x-k8s.io/active-capacity"
    expected = ("False", "RequiresNewCapacity", "2/2 virtual pods required new capacity, 0 failed")
    assert await condition(world, "Provisioning") == expected
    await joined(world)
    await until(lambda: _fits(world), 120)
    assert (await condition(world, "Provisioning"))[2] == "All 2 virtual pods fit on existing capacity"
    bought = await machines(world)
    await asyncio.sleep(600)
    assert await machines(world) == bought


@story
async def test_a_node_that_holds_nothing_but_room_stays_and_is_not_nominated(world: World) -> None:
    """S-231, SCH-741, DIS-S166, K15-105: until the buffer goes, and its virtual pods with it at once"""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    (name,) = await joined(world)
    await until(lambda: _fits(world), 120)
    await asyncio.sleep(300)
    assert await machines(world) == [name]
    assert world.manager is not None
    assert not world.manager.state.is_nominated(name, world.clock.now())
    assert world.manager.virtual_pods.pod_counts_by_node == {name: 1}
    assert any("capacity buffer" in event.message for event in await world.events("Unconsolidatable"))
    await world.kube.delete(kinds.CAPACITY_BUFFER, "b", "default")
    await until(lambda: _is_empty(world), 120)


@story
async def test_the_node_of_a_buffer_that_is_gone_goes_although_nothing_else_changes(world: World) -> None:
    """DIS-S166: the room that the last scheduling pass found for virtual pods is an input of the disruption decision."""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    await joined(world)
    await until(lambda: _fits(world), 120)
    assert world.manager is not None
    await asyncio.sleep(20)
    await world.kube.delete(kinds.CAPACITY_BUFFER, "b", "default")
    await world.manager.disruption.reconcile()
    await until(lambda: _is_empty(world), 60)


async def _is_empty(world: World) -> bool:
    return not [claim for claim in await world.all(kinds.NODE_CLAIM) if claim.metadata.deletion_timestamp is None]


@story
async def test_nothing_is_said_about_pods_that_do_not_exist(world: World) -> None:
    """SCH §25 Beyond, SCH-640, SCH-687: no events, no nominations, no complaints, no pods waiting."""
    await begin(world)
    await pod_template(world, cpu="300")
    await pod_template(world, "small")
    await buffer(world, replicas=2)
    await buffer(world, "c", replicas=1, pod_template_ref=PodTemplateReference(name="small"))
    await until(lambda: _bought(world))
    await asyncio.sleep(40)
    expected = ("False", "RequiresNewCapacity", "0/2 virtual pods required new capacity, 2 failed")
    assert await condition(world, "Provisioning") == expected
    assert await world.events(about="Pod") == []
    assert world.lines("could not schedule pod") == []
    assert [write for write in world.writes("Pod") if write] == []
    assert world.counted("scheduler_unschedulable_pods_count", controller="provisioner") == 0


@story
async def test_with_the_gate_off_buffers_keep_no_room(world: World) -> None:
    """SCH-720"""
    await begin(world, Settings())
    await pod_template(world)
    await buffer(world, replicas=2)
    await asyncio.sleep(60)
    assert await machines(world) == []
    assert (await status(world)).conditions == ()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
@story
async def test_a_share_of_a_workload_follows_it(world: World, kind: str) -> None:
    """SCH-721, API-S124"""
    await begin(world)
    spec = ReplicatedSpec(replicas=10, selector=LabelSelector(match_labels=LABELS), template=template("100m"))
    made = {"Deployment": Deployment, "StatefulSet": StatefulSet, "ReplicaSet": ReplicaSet}[kind]
    of = kinds.KINDS[("apps/v1", kind)]
    await world.kube.create(of, made(metadata=ObjectMeta(name="w", namespace="default"), spec=spec))
    await buffer(world, percentage=25, scalable_ref=ScalableReference(kind=kind, name="w", api_group="apps"))
    await asyncio.sleep(1)
    assert (await status(world)).replicas == 3
    await world.kube.patch(of, "w", {"spec": {"replicas": 0}}, "default")
    await asyncio.sleep(31)
    assert (await status(world)).replicas == 0
    assert (await condition(world, "Provisioning"))[1] == "BufferEmpty"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"replicas": 1}, "PodTemplateNotFound"),
        ({"scalable_ref": ScalableReference(kind="Deployment", name="w")}, "ScalableRefNotFound"),
        ({"scalable_ref": ScalableReference(kind="Job", name="w", api_group="batch")}, "ResolutionFailed"),
        ({"bare": True, "replicas": 3}, "ResolutionFailed"),
    ],
    ids=["template", "workload", "kind", "neither"],
)
@story
async def test_a_buffer_that_refers_to_nothing_says_so(world: World, spec: dict[str, Any], reason: str) -> None:
    """SCH-723, API-S122, API-S123, API-191: each kind of reference has its reason.

    API-186: neither reference set is one of them.
    """
    await begin(world)
    await buffer(world, **spec)
    await asyncio.sleep(1)
    assert (await condition(world, "ReadyForProvisioning"))[:2] == ("False", reason)
    assert (await condition(world, "Provisioning"))[:2] == ("False", "NotReadyForProvisioning")


@story
async def test_a_template_that_comes_later_or_changes_is_followed_at_once(world: World) -> None:
    """SCH-721. API-193: a PodTemplate is watched."""
    await begin(world)
    await buffer(world, limits={"cpu": "6"})
    await asyncio.sleep(1)
    await pod_template(world, cpu="3")
    await asyncio.sleep(1)
    assert (await status(world)).replicas == 2
    patch = {"template": {"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}}}
    await world.kube.patch(kinds.POD_TEMPLATE, "t", patch, "default")
    await asyncio.sleep(1)
    actual = await status(world)
    assert (actual.replicas, actual.pod_template_generation) == (3, 2)
    await world.kube.delete(kinds.POD_TEMPLATE, "t", "default")
    await asyncio.sleep(1)
    assert (await condition(world, "ReadyForProvisioning"))[:2] == ("False", "PodTemplateNotFound")


@story
async def test_conditions_that_turn_are_counted_and_told(world: World) -> None:
    """OPS §5.7, OPS-530: by namespace and name"""
    await begin(world)
    await buffer(world, replicas=1)
    await asyncio.sleep(1)
    await pod_template(world)
    await asyncio.sleep(1)
    (event,) = await world.events("ReadyForProvisioning")
    assert (event.involved_object.kind, event.involved_object.namespace) == ("CapacityBuffer", "default")
    turned = {"type": "ReadyForProvisioning", "status": "True", "reason": "Resolved"}
    assert world.manager is not None
    registry = world.manager.metrics.registry
    assert registry.get_sample_value("operator_capacitybuffer_status_condition_transitions_total", turned) == 1


@story
async def test_only_the_node_that_holds_the_room_is_kept(world: World) -> None:
    """DIS-S167"""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    await joined(world)
    await until(lambda: _fits(world), 120)
    await world.claim("idle", pool="np")
    await asyncio.sleep(1)
    await world.join("idle")
    await asyncio.sleep(120)
    held = world.manager.virtual_pods.pod_counts_by_node if world.manager is not None else {}
    left = [claim.metadata.name for claim in await world.all(kinds.NODE_CLAIM) if not claim.metadata.deletion_timestamp]
    assert left == list(held)
    assert len(left) == 1


@story
async def test_a_new_process_keeps_the_room_there_is(world: World) -> None:
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=2)
    await until(lambda: _bought(world))
    await world.crash()
    await world.start(ON)
    before = await joined(world)
    await until(lambda: _fits(world), 120)
    await world.crash()
    await world.start(ON)
    await asyncio.sleep(300)
    assert await machines(world) == before


@story
async def test_foreign_strategies_are_left_alone(world: World) -> None:
    """API-180 Beyond"""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1, provisioning_strategy="buffer.example/other")
    await asyncio.sleep(60)
    assert await machines(world) == []
    assert (await status(world)).conditions == ()


@story
async def test_room_that_real_pods_took_is_bought_again(world: World) -> None:
    """SCH-731"""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    (name,) = await joined(world)
    await until(lambda: _fits(world), 120)
    await world.running("p", f"node-{name}", requests={"cpu": "3500m"})
    await asyncio.sleep(60)
    assert len(await machines(world)) == 2


@story
async def test_a_buffer_at_rest_asks_for_no_plans(world: World) -> None:
    """SCH §25 Beyond"""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    await joined(world)
    await until(lambda: _fits(world), 120)
    await asyncio.sleep(90)
    before = len(world.lines("computing scheduling decision for provisionable pod(s)"))
    await asyncio.sleep(300)
    assert len(world.lines("computing scheduling decision for provisionable pod(s)")) == before


@story
async def test_real_pods_are_told_about_as_ever(world: World) -> None:
    """Beside a buffer, a pod still gets its machine, its event and its place."""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    await world.waiting(pod("p", {"cpu": "1"}))
    await until(lambda: _bought(world))
    await asyncio.sleep(2)
    (event,) = await world.events("Nominated")
    assert event.involved_object.name == "p"


@pytest.mark.parametrize("delay", [3.0, 100.0])
@story
async def test_a_buffer_whose_workload_comes_later_is_served_with_the_next_pass(world: World, delay: float) -> None:
    """The first pod of the workload's namespace resolves it: no wait for the next of the 30-second passes over buffers."""
    await begin(world)
    await buffer(world, scalable_ref=ScalableReference(api_group="apps", kind="Deployment", name="web"), replicas=2)
    await asyncio.sleep(delay)
    assert (await condition(world, "ReadyForProvisioning"))[1] == "ScalableRefNotFound"
    spec = ReplicatedSpec(replicas=1, selector=LabelSelector(match_labels=LABELS), template=template())
    await world.kube.create(
        kinds.DEPLOYMENT, Deployment(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)
    )
    await world.waiting(pod("web-1", {"cpu": "1"}))
    await asyncio.sleep(4)
    assert (await condition(world, "ReadyForProvisioning"))[1] == "Resolved"
    assert (await condition(world, "Provisioning"))[2] == "2/2 virtual pods required new capacity, 0 failed"


@pytest.mark.parametrize("reference", ["template", "workload"])
@story
async def test_virtual_pods_that_repel_each_other_get_nodes_of_their_own(world: World, reference: str) -> None:
    """K15-616: anti-affinity in a PodTemplate, and in a workload that ``scalableRef`` names."""
    await begin(world)
    apart = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels=LABELS))
    repelling = PodSpec(
        containers=template("100m").spec.containers,
        affinity=Affinity(pod_anti_affinity=PodAffinity(required=(apart,))),
    )
    own = PodTemplateSpec(metadata=ObjectMeta(labels=LABELS), spec=repelling)
    meta = ObjectMeta(name="t", namespace="default")
    if reference == "template":
        await world.kube.create(kinds.POD_TEMPLATE, PodTemplate(metadata=meta, template=own))
        await buffer(world, replicas=2)
    else:
        spec = ReplicatedSpec(replicas=1, selector=LabelSelector(match_labels=LABELS), template=own)
        await world.kube.create(kinds.DEPLOYMENT, Deployment(metadata=meta, spec=spec))
        await buffer(world, replicas=2, scalable_ref=ScalableReference(kind="Deployment", name="t", api_group="apps"))
    await until(lambda: _bought(world))
    await asyncio.sleep(2)
    assert len(await machines(world)) == 2


@story
async def test_a_buffer_that_can_not_be_resolved_any_more_frees_its_node(world: World) -> None:
    """K15-106, K15-105: a failed resolution asks for a scheduling pass, too, and its virtual pods drop out at once."""
    await begin(world)
    await pod_template(world)
    await buffer(world, replicas=1)
    await joined(world)
    await until(lambda: _fits(world), 120)
    await world.kube.delete(kinds.POD_TEMPLATE, "t", "default")
    await until(lambda: _is_empty(world), 120)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
@story
async def test_a_workload_that_changes_is_followed_at_once(world: World, kind: str) -> None:
    """K15-106: with its generation, not with the next pass over all buffers."""
    await begin(world)
    spec = ReplicatedSpec(replicas=4, selector=LabelSelector(match_labels=LABELS), template=template("100m"))
    made = {"Deployment": Deployment, "StatefulSet": StatefulSet, "ReplicaSet": ReplicaSet}[kind]
    of = kinds.KINDS[("apps/v1", kind)]
    await world.kube.create(of, made(metadata=ObjectMeta(name="w", namespace="default"), spec=spec))
    await buffer(world, percentage=50, scalable_ref=ScalableReference(kind=kind, name="w", api_group="apps"))
    await asyncio.sleep(1)
    assert (await status(world)).replicas == 2
    await world.kube.patch(of, "w", {"spec": {"replicas": 8}}, "default")
    await asyncio.sleep(1)
    assert (await status(world)).replicas == 4


@story
async def test_room_of_a_pod_that_does_not_end_is_bought_for_a_buffer(world: World) -> None:
    """SCH-089 Beyond: nothing changes but the time, so no other news has the buffer planned again."""
    await world.kube.create(kinds.NODE, node("n", {"cpu": "1", "memory": "4Gi"}))
    await world.set_taints("n", ())  # the server adds that it is not ready
    await world.kube.create(kinds.POD, pod("old", {"cpu": "1"}, node_name="n"))
    await begin(world)
    await world.kube.delete(kinds.POD, "old", "default", grace_period_seconds=28)
    await pod_template(world)
    await buffer(world, replicas=1)
    await asyncio.sleep(10)
    assert not await machines(world)
    await asyncio.sleep(110)
    assert len(await machines(world)) == 1
