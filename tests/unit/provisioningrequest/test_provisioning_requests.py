"""ProvisioningRequests under a running controller: planned all or nothing, their conditions written."""

from __future__ import annotations

import asyncio

import msgspec

from karpenter.api import kinds
from karpenter.api.capacity_buffer import PodTemplateReference
from karpenter.api.core import Container, Pod, PodSpec, PodTemplate, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta
from karpenter.api.provisioning_request import (
    ATOMIC_SCALE_UP,
    CHECK_CAPACITY,
    CONSUME_ANNOTATION,
    ProvisioningRequest,
    ProvisioningRequestSpec,
    RequestedPodSet,
)
from karpenter.model import conditions, labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.settings import Settings
from support.builders import node, pod
from support.provisioning_cases import claims, start_with_pool
from support.virtual_cluster import VirtualCluster, in_virtual_time

GANGS = Settings(feature_gates=parse_feature_gates("GangScheduling=true"))
CPU = "3"


async def ask(cluster: VirtualCluster, class_name: str, count: int = 3, **parameters: str) -> None:
    """A request of this class for pods of three cores."""
    container = Container(name="main", resources=ResourceRequirements(requests={"cpu": CPU}))
    body = PodTemplateSpec(spec=PodSpec(containers=(container,)))
    meta = ObjectMeta(name="train", namespace="default")
    await cluster.kube.create(kinds.POD_TEMPLATE, PodTemplate(metadata=meta, template=body))
    pod_set = RequestedPodSet(pod_template_ref=PodTemplateReference(name="train"), count=count)
    spec = ProvisioningRequestSpec(provisioning_class_name=class_name, pod_sets=(pod_set,), parameters=parameters)
    await cluster.kube.create(kinds.PROVISIONING_REQUEST, ProvisioningRequest(metadata=meta, spec=spec))


async def said(cluster: VirtualCluster, type_: str) -> tuple[str, str]:
    """Status and reason of a condition of the request."""
    request = await cluster.kube.get(kinds.PROVISIONING_REQUEST, "train", "default")
    found = conditions.find_condition(request.status.conditions, type_)
    return (found.status, found.reason) if found is not None else ("", "")


def consumer(name: str) -> Pod:
    waiting = pod(name, {"cpu": CPU})
    meta = msgspec.structs.replace(waiting.metadata, annotations={CONSUME_ANNOTATION: "train"})
    return msgspec.structs.replace(waiting, metadata=meta)


@in_virtual_time
async def test_all_nodes_of_an_atomic_request_are_launched_and_it_is_provisioned_when_they_are_ready(
    cluster: VirtualCluster,
) -> None:
    cluster.simulated()
    await start_with_pool(cluster, GANGS)
    await ask(cluster, ATOMIC_SCALE_UP)
    await asyncio.sleep(5)
    launched = await claims(cluster)
    assert {claim.metadata.annotations[labels.GANG] for claim in launched} == {"ProvisioningRequest default/train"}
    assert await said(cluster, "Accepted") == ("True", "Accepted")
    await asyncio.sleep(120)
    assert await said(cluster, "Provisioned") == ("True", "CapacityIsProvisioned")
    assert len(await claims(cluster)) == len(launched)


@in_virtual_time
async def test_nothing_is_launched_for_an_atomic_request_that_limits_cannot_hold_and_it_fails_when_it_is_no_longer_valid(
    cluster: VirtualCluster,
) -> None:
    cluster.simulated()
    await start_with_pool(cluster, GANGS, limits={"cpu": "8"})
    await ask(cluster, ATOMIC_SCALE_UP, 4, ValidUntilSeconds="120")
    await asyncio.sleep(60)
    assert await claims(cluster) == []
    assert await said(cluster, "Provisioned") == ("False", "CapacityIsNotFound")
    assert await said(cluster, "Failed") == ("", "")
    await asyncio.sleep(90)
    assert await said(cluster, "Failed") == ("True", "Expired")


@in_virtual_time
async def test_nothing_is_launched_to_check_capacity_and_room_that_there_is_makes_it_provisioned(
    cluster: VirtualCluster,
) -> None:
    cluster.simulated()
    await start_with_pool(cluster, GANGS)
    await ask(cluster, CHECK_CAPACITY)
    await asyncio.sleep(60)
    assert await claims(cluster) == []
    assert await said(cluster, "Provisioned") == ("False", "CapacityIsNotFound")
    await cluster.kube.create(kinds.NODE, node("big", {"cpu": "12", "memory": "16Gi"}))
    await cluster.set_taints("big", ())
    await asyncio.sleep(60)
    assert await said(cluster, "Provisioned") == ("True", "CapacityIsFound")


@in_virtual_time
async def test_a_check_without_retry_fails_at_once(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, GANGS)
    await ask(cluster, CHECK_CAPACITY, noRetry="true")
    await asyncio.sleep(30)
    assert await said(cluster, "Failed") == ("True", "CapacityIsNotFound")


@in_virtual_time
async def test_pods_that_consume_a_request_take_its_room_and_end_the_booking(cluster: VirtualCluster) -> None:
    cluster.simulated()
    cluster.scheduled()
    await start_with_pool(cluster, GANGS)
    await ask(cluster, ATOMIC_SCALE_UP)
    await asyncio.sleep(120)
    launched = {claim.metadata.name for claim in await claims(cluster)}
    assert await said(cluster, "Provisioned") == ("True", "CapacityIsProvisioned")
    for number in range(3):
        made = consumer(f"train-{number}")
        bare = msgspec.structs.replace(made.metadata, uid="", creation_timestamp=None)
        await cluster.kube.create(kinds.POD, msgspec.structs.replace(made, metadata=bare, status=type(made.status)()))
    await asyncio.sleep(60)
    assert {claim.metadata.name for claim in await claims(cluster)} == launched
    assert await said(cluster, "BookingExpired") == ("True", "CapacityBookingConsumed")
    assert all(each.spec.node_name for each in await cluster.all(kinds.POD))


@in_virtual_time
async def test_an_unused_booking_expires_and_its_nodes_are_removed(cluster: VirtualCluster) -> None:
    cluster.simulated()
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(GANGS)
    await ask(cluster, ATOMIC_SCALE_UP)
    await asyncio.sleep(300)
    assert await claims(cluster), "room that is booked is no empty node"
    await asyncio.sleep(600)
    assert await said(cluster, "BookingExpired") == ("True", "CapacityReservationTimeExpired")
    await asyncio.sleep(300)
    assert await claims(cluster) == []


@in_virtual_time
async def test_a_request_without_its_template_fails_and_one_of_another_class_is_left_alone(
    cluster: VirtualCluster,
) -> None:
    await start_with_pool(cluster, GANGS)
    await ask(cluster, "queued-provisioning.gke.io")
    await asyncio.sleep(30)
    request = await cluster.kube.get(kinds.PROVISIONING_REQUEST, "train", "default")
    assert request.status.conditions == ()
    missing = RequestedPodSet(pod_template_ref=PodTemplateReference(name="nothing"), count=1)
    spec = ProvisioningRequestSpec(provisioning_class_name=ATOMIC_SCALE_UP, pod_sets=(missing,))
    lone = ProvisioningRequest(metadata=ObjectMeta(name="lone", namespace="default"), spec=spec)
    await cluster.kube.create(kinds.PROVISIONING_REQUEST, lone)
    await asyncio.sleep(30)
    request = await cluster.kube.get(kinds.PROVISIONING_REQUEST, "lone", "default")
    (failed,) = request.status.conditions
    assert (failed.type, failed.reason) == ("Failed", "FailedToCreatePods")
    assert "nothing" in failed.message


@in_virtual_time
async def test_requests_are_not_read_without_the_gate(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster)
    await ask(cluster, ATOMIC_SCALE_UP)
    await asyncio.sleep(60)
    assert await claims(cluster) == []
    assert await said(cluster, "Accepted") == ("", "")


@in_virtual_time
async def test_a_request_for_more_pods_than_any_cluster_holds_fails_at_once_and_builds_none(
    cluster: VirtualCluster,
) -> None:
    await start_with_pool(cluster, GANGS)
    await ask(cluster, ATOMIC_SCALE_UP, count=2_000_000_000)
    await asyncio.sleep(5)
    assert await said(cluster, "Failed") == ("True", "FailedToCreatePods")
    assert await claims(cluster) == []
