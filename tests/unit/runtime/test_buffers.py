"""Capacity buffers under a running controller (SCH §25): room is kept and reported, and its nodes do not count as empty."""

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
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

ON = Settings(feature_gates=parse_feature_gates("CapacityBuffer=true"))
LABELS = {"app": "web"}


def template(cpu: str = "1") -> PodTemplateSpec:
    container = Container(name="a", resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplateSpec(metadata=ObjectMeta(labels=LABELS), spec=PodSpec(containers=(container,)))


async def pod_template(cluster: VirtualCluster, name: str = "t", cpu: str = "1") -> None:
    pod_template = PodTemplate(metadata=ObjectMeta(name=name, namespace="default"), template=template(cpu))
    await cluster.kube.create(kinds.POD_TEMPLATE, pod_template)


async def buffer(cluster: VirtualCluster, name: str = "b", **spec: Any) -> None:
    if not spec.keys() & {"pod_template_ref", "scalable_ref", "bare"}:
        spec["pod_template_ref"] = PodTemplateReference(name="t")
    spec.pop("bare", None)
    capacity_buffer = CapacityBuffer(
        metadata=ObjectMeta(name=name, namespace="default"), spec=CapacityBufferSpec(**spec)
    )
    await cluster.kube.create(kinds.CAPACITY_BUFFER, capacity_buffer)


async def begin(cluster: VirtualCluster, settings: Settings = ON) -> None:
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="0s", budgets=(Budget(nodes="100%"),)))
    await cluster.start(settings)
    await asyncio.sleep(0.1)


async def condition(cluster: VirtualCluster, type_: str, name: str = "b") -> tuple[str, str, str]:
    condition = conditions.find_condition((await status(cluster, name)).conditions, type_)
    return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)


async def status(cluster: VirtualCluster, name: str = "b") -> Any:
    return (await cluster.kube.get(kinds.CAPACITY_BUFFER, name, "default")).status


async def claim_names(cluster: VirtualCluster) -> list[str]:
    return [claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)]


async def joined(cluster: VirtualCluster) -> list[str]:
    """Let the instance of every claim join; the names of the claims."""
    await until(lambda: _launched(cluster))
    names = await claim_names(cluster)
    for name in names:
        await cluster.join(name)
    return names


async def _launched(cluster: VirtualCluster) -> bool:
    result = await cluster.all(kinds.NODE_CLAIM)
    return bool(result) and all(claim.status.provider_id for claim in result)


async def _fits(cluster: VirtualCluster) -> bool:
    return (await condition(cluster, "Provisioning"))[1] == "FitsExistingCapacity"


@in_virtual_time
async def test_room_is_launched_and_then_reported_in_the_status(cluster: VirtualCluster) -> None:
    """S-230, SCH-723, SCH-740.

    API-187, 192: the status names template, generation and replicas, and the condition Provisioning follows.
    SCH-003: the buffer alone triggers the pass.
    """
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=2)
    await until(lambda: _launched(cluster))
    await asyncio.sleep(1)
    assert await condition(cluster, "ReadyForProvisioning") == ("True", "Resolved", "")
    actual = await status(cluster)
    assert (actual.replicas, actual.pod_template_ref.name, actual.pod_template_generation) == (2, "t", 1)
    assert actual.provisioning_strategy == "buffer.x-k8s.io/active-capacity"
    expected = ("False", "RequiresNewCapacity", "2/2 virtual pods required new capacity, 0 failed")
    assert await condition(cluster, "Provisioning") == expected
    await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    assert (await condition(cluster, "Provisioning"))[2] == "All 2 virtual pods fit on existing capacity"
    launched = await claim_names(cluster)
    await asyncio.sleep(600)
    assert await claim_names(cluster) == launched


@in_virtual_time
async def test_a_node_that_holds_nothing_but_room_stays_and_is_not_nominated(cluster: VirtualCluster) -> None:
    """S-231, SCH-741, DIS-S166, K15-105: until the buffer goes, and its virtual pods with it at once"""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    (name,) = await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await asyncio.sleep(300)
    assert await claim_names(cluster) == [name]
    assert cluster.manager is not None
    assert not cluster.manager.state.is_nominated(name, cluster.clock.now())
    assert cluster.manager.virtual_pods.pod_counts_by_node == {name: 1}
    assert any("capacity buffer" in event.message for event in await cluster.events("Unconsolidatable"))
    await cluster.kube.delete(kinds.CAPACITY_BUFFER, "b", "default")
    await until(lambda: _is_empty(cluster), 120)


@in_virtual_time
async def test_the_node_of_a_buffer_that_is_gone_goes_although_nothing_else_changes(cluster: VirtualCluster) -> None:
    """DIS-S166: the room that the last scheduling pass found for virtual pods is an input of the disruption decision."""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    assert cluster.manager is not None
    await asyncio.sleep(20)
    await cluster.kube.delete(kinds.CAPACITY_BUFFER, "b", "default")
    await cluster.manager.disruption.reconcile()
    await until(lambda: _is_empty(cluster), 60)


async def _is_empty(cluster: VirtualCluster) -> bool:
    return not [claim for claim in await cluster.all(kinds.NODE_CLAIM) if claim.metadata.deletion_timestamp is None]


@in_virtual_time
async def test_virtual_pods_get_no_events(cluster: VirtualCluster) -> None:
    """SCH §25 Beyond, SCH-640, SCH-687: no events, no nominations, no complaints, no pods waiting."""
    await begin(cluster)
    await pod_template(cluster, cpu="300")
    await pod_template(cluster, "small")
    await buffer(cluster, replicas=2)
    await buffer(cluster, "c", replicas=1, pod_template_ref=PodTemplateReference(name="small"))
    await until(lambda: _launched(cluster))
    await asyncio.sleep(40)
    expected = ("False", "RequiresNewCapacity", "0/2 virtual pods required new capacity, 2 failed")
    assert await condition(cluster, "Provisioning") == expected
    assert await cluster.events(about="Pod") == []
    assert cluster.lines("could not schedule pod") == []
    assert [write for write in cluster.writes("Pod") if write] == []
    assert cluster.counted("scheduler_unschedulable_pods_count", controller="provisioner") == 0


@in_virtual_time
async def test_with_the_gate_off_buffers_keep_no_room(cluster: VirtualCluster) -> None:
    """SCH-720"""
    await begin(cluster, Settings())
    await pod_template(cluster)
    await buffer(cluster, replicas=2)
    await asyncio.sleep(60)
    assert await claim_names(cluster) == []
    assert (await status(cluster)).conditions == ()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
@in_virtual_time
async def test_a_share_of_a_workload_follows_it(cluster: VirtualCluster, kind: str) -> None:
    """SCH-721, API-S124"""
    await begin(cluster)
    spec = ReplicatedSpec(replicas=10, selector=LabelSelector(match_labels=LABELS), template=template("100m"))
    made = {"Deployment": Deployment, "StatefulSet": StatefulSet, "ReplicaSet": ReplicaSet}[kind]
    of = kinds.KINDS[("apps/v1", kind)]
    await cluster.kube.create(of, made(metadata=ObjectMeta(name="w", namespace="default"), spec=spec))
    await buffer(cluster, percentage=25, scalable_ref=ScalableReference(kind=kind, name="w", api_group="apps"))
    await asyncio.sleep(1)
    assert (await status(cluster)).replicas == 3
    await cluster.kube.patch(of, "w", {"spec": {"replicas": 0}}, "default")
    await asyncio.sleep(31)
    assert (await status(cluster)).replicas == 0
    assert (await condition(cluster, "Provisioning"))[1] == "BufferEmpty"


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
@in_virtual_time
async def test_a_buffer_that_refers_to_nothing_says_so(
    cluster: VirtualCluster, spec: dict[str, Any], reason: str
) -> None:
    """SCH-723, API-S122, API-S123, API-191: each kind of reference has its reason.

    API-186: neither reference set is one of them.
    """
    await begin(cluster)
    await buffer(cluster, **spec)
    await asyncio.sleep(1)
    assert (await condition(cluster, "ReadyForProvisioning"))[:2] == ("False", reason)
    assert (await condition(cluster, "Provisioning"))[:2] == ("False", "NotReadyForProvisioning")


@in_virtual_time
async def test_a_template_that_comes_later_or_changes_is_followed_at_once(cluster: VirtualCluster) -> None:
    """SCH-721. API-193: a PodTemplate is watched."""
    await begin(cluster)
    await buffer(cluster, limits={"cpu": "6"})
    await asyncio.sleep(1)
    await pod_template(cluster, cpu="3")
    await asyncio.sleep(1)
    assert (await status(cluster)).replicas == 2
    patch = {"template": {"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}}}
    await cluster.kube.patch(kinds.POD_TEMPLATE, "t", patch, "default")
    await asyncio.sleep(1)
    actual = await status(cluster)
    assert (actual.replicas, actual.pod_template_generation) == (3, 2)
    await cluster.kube.delete(kinds.POD_TEMPLATE, "t", "default")
    await asyncio.sleep(1)
    assert (await condition(cluster, "ReadyForProvisioning"))[:2] == ("False", "PodTemplateNotFound")


@in_virtual_time
async def test_condition_changes_are_counted_and_reported(cluster: VirtualCluster) -> None:
    """OPS §5.7, OPS-530: by namespace and name"""
    await begin(cluster)
    await buffer(cluster, replicas=1)
    await asyncio.sleep(1)
    await pod_template(cluster)
    await asyncio.sleep(1)
    (event,) = await cluster.events("ReadyForProvisioning")
    assert (event.involved_object.kind, event.involved_object.namespace) == ("CapacityBuffer", "default")
    turned = {"type": "ReadyForProvisioning", "status": "True", "reason": "Resolved"}
    assert cluster.manager is not None
    registry = cluster.manager.metrics.registry
    assert registry.get_sample_value("operator_capacitybuffer_status_condition_transitions_total", turned) == 1


@in_virtual_time
async def test_only_the_node_that_holds_the_room_is_kept(cluster: VirtualCluster) -> None:
    """DIS-S167"""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await cluster.claim("idle", pool="np")
    await asyncio.sleep(1)
    await cluster.join("idle")
    await asyncio.sleep(120)
    held = cluster.manager.virtual_pods.pod_counts_by_node if cluster.manager is not None else {}
    left = [
        claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM) if not claim.metadata.deletion_timestamp
    ]
    assert left == list(held)
    assert len(left) == 1


@in_virtual_time
async def test_a_new_process_keeps_the_room_there_is(cluster: VirtualCluster) -> None:
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=2)
    await until(lambda: _launched(cluster))
    await cluster.crash()
    await cluster.start(ON)
    before = await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await cluster.crash()
    await cluster.start(ON)
    await asyncio.sleep(300)
    assert await claim_names(cluster) == before


@in_virtual_time
async def test_foreign_strategies_are_left_alone(cluster: VirtualCluster) -> None:
    """API-180 Beyond"""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1, provisioning_strategy="buffer.example/other")
    await asyncio.sleep(60)
    assert await claim_names(cluster) == []
    assert (await status(cluster)).conditions == ()


@in_virtual_time
async def test_room_that_real_pods_took_is_launched_again(cluster: VirtualCluster) -> None:
    """SCH-731"""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    (name,) = await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await cluster.running("p", f"node-{name}", requests={"cpu": "3500m"})
    await asyncio.sleep(60)
    assert len(await claim_names(cluster)) == 2


@in_virtual_time
async def test_a_buffer_at_rest_asks_for_no_plans(cluster: VirtualCluster) -> None:
    """SCH §25 Beyond"""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await asyncio.sleep(90)
    before = len(cluster.lines("computing scheduling decision for provisionable pod(s)"))
    await asyncio.sleep(300)
    assert len(cluster.lines("computing scheduling decision for provisionable pod(s)")) == before


@in_virtual_time
async def test_real_pods_get_events_as_without_buffers(cluster: VirtualCluster) -> None:
    """A pod in a cluster with a buffer gets a new node, an event about it, and is bound there."""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await until(lambda: _launched(cluster))
    await asyncio.sleep(2)
    (event,) = await cluster.events("Nominated")
    assert event.involved_object.name == "p"


@pytest.mark.parametrize("delay", [3.0, 100.0])
@in_virtual_time
async def test_a_buffer_whose_workload_comes_later_is_served_with_the_next_pass(
    cluster: VirtualCluster, delay: float
) -> None:
    """The first pod of the workload's namespace resolves it: no wait for the next of the 30-second passes over buffers."""
    await begin(cluster)
    await buffer(cluster, scalable_ref=ScalableReference(api_group="apps", kind="Deployment", name="web"), replicas=2)
    await asyncio.sleep(delay)
    assert (await condition(cluster, "ReadyForProvisioning"))[1] == "ScalableRefNotFound"
    spec = ReplicatedSpec(replicas=1, selector=LabelSelector(match_labels=LABELS), template=template())
    await cluster.kube.create(
        kinds.DEPLOYMENT, Deployment(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)
    )
    await cluster.waiting(pod("web-1", {"cpu": "1"}))
    await asyncio.sleep(4)
    assert (await condition(cluster, "ReadyForProvisioning"))[1] == "Resolved"
    assert (await condition(cluster, "Provisioning"))[2] == "2/2 virtual pods required new capacity, 0 failed"


@pytest.mark.parametrize("reference", ["template", "workload"])
@in_virtual_time
async def test_virtual_pods_that_repel_each_other_get_nodes_of_their_own(
    cluster: VirtualCluster, reference: str
) -> None:
    """K15-616: anti-affinity in a PodTemplate, and in a workload that ``scalableRef`` names."""
    await begin(cluster)
    apart = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels=LABELS))
    repelling = PodSpec(
        containers=template("100m").spec.containers,
        affinity=Affinity(pod_anti_affinity=PodAffinity(required=(apart,))),
    )
    own = PodTemplateSpec(metadata=ObjectMeta(labels=LABELS), spec=repelling)
    meta = ObjectMeta(name="t", namespace="default")
    if reference == "template":
        await cluster.kube.create(kinds.POD_TEMPLATE, PodTemplate(metadata=meta, template=own))
        await buffer(cluster, replicas=2)
    else:
        spec = ReplicatedSpec(replicas=1, selector=LabelSelector(match_labels=LABELS), template=own)
        await cluster.kube.create(kinds.DEPLOYMENT, Deployment(metadata=meta, spec=spec))
        await buffer(cluster, replicas=2, scalable_ref=ScalableReference(kind="Deployment", name="t", api_group="apps"))
    await until(lambda: _launched(cluster))
    await asyncio.sleep(2)
    assert len(await claim_names(cluster)) == 2


@in_virtual_time
async def test_a_buffer_that_can_not_be_resolved_any_more_frees_its_node(cluster: VirtualCluster) -> None:
    """K15-106, K15-105: a failed resolution asks for a scheduling pass, too, and its virtual pods drop out at once."""
    await begin(cluster)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await joined(cluster)
    await until(lambda: _fits(cluster), 120)
    await cluster.kube.delete(kinds.POD_TEMPLATE, "t", "default")
    await until(lambda: _is_empty(cluster), 120)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
@in_virtual_time
async def test_a_workload_that_changes_is_followed_at_once(cluster: VirtualCluster, kind: str) -> None:
    """K15-106: with its generation, not with the next pass over all buffers."""
    await begin(cluster)
    spec = ReplicatedSpec(replicas=4, selector=LabelSelector(match_labels=LABELS), template=template("100m"))
    made = {"Deployment": Deployment, "StatefulSet": StatefulSet, "ReplicaSet": ReplicaSet}[kind]
    of = kinds.KINDS[("apps/v1", kind)]
    await cluster.kube.create(of, made(metadata=ObjectMeta(name="w", namespace="default"), spec=spec))
    await buffer(cluster, percentage=50, scalable_ref=ScalableReference(kind=kind, name="w", api_group="apps"))
    await asyncio.sleep(1)
    assert (await status(cluster)).replicas == 2
    await cluster.kube.patch(of, "w", {"spec": {"replicas": 8}}, "default")
    await asyncio.sleep(1)
    assert (await status(cluster)).replicas == 4


@in_virtual_time
async def test_room_of_a_pod_that_does_not_end_is_launched_for_a_buffer(cluster: VirtualCluster) -> None:
    """SCH-089 Beyond: nothing changes but the time, so no other news has the buffer planned again."""
    await cluster.kube.create(kinds.NODE, node("n", {"cpu": "1", "memory": "4Gi"}))
    await cluster.set_taints("n", ())  # the server adds that it is not ready
    await cluster.kube.create(kinds.POD, pod("old", {"cpu": "1"}, node_name="n"))
    await begin(cluster)
    await cluster.kube.delete(kinds.POD, "old", "default", grace_period_seconds=28)
    await pod_template(cluster)
    await buffer(cluster, replicas=1)
    await asyncio.sleep(10)
    assert not await claim_names(cluster)
    await asyncio.sleep(110)
    assert len(await claim_names(cluster)) == 1
