"""The wired provider with the double: startup, launch, termination, drift and prices (AWS chapters 1 to 11)."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from karpenter.api.core import Node, NodeSpec
from karpenter.api.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_OVERLAY, NODE_POOL
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import (
    Instance,
    InstanceNotFound,
    InsufficientCapacity,
    ProviderError,
)
from karpenter.providers.decorators import TimeoutProvider
from karpenter.simulation.apiserver import MemoryKube
from support.aws.clients import client
from support.aws.double import Double
from support.aws.provider_process import NAME, ProviderProcess, claim, launched, pool, provider_process, unhydrated
from support.aws.records import RecordedCall
from support.aws.seeds import Seeds
from support.ec2_instance_types import START

REFUSED = AwsError("UnauthorizedOperation", "not you")
VALID = "ValidationSucceeded"
NO_AGE = timedelta(seconds=-1)
PROFILES = "instanceprofile.garbagecollection"


async def m5_larges(process: ProviderProcess) -> list[InstanceType]:
    """The instance type m5.large with its current offerings."""
    return [
        instance_type
        for instance_type in await process.cloud.provider.instance_types(pool())
        if instance_type.name == "m5.large"
    ]


def instance_id(instance: Instance) -> str:
    return instance.provider_id.rpartition("/")[2]


# -- startup ---------------------------------------------------------------------------------------------------------------


async def test_in_an_isolated_vpc_public_services_are_not_called(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-004, AWS-T011: no price list, no garbage collection of instance profiles."""
    async with provider_process(aws, account, isolated_vpc=True) as process:
        await process.ready_class()
        assert PROFILES not in process.controllers
        assert process.fake_region.asked == []
        (m5_large,) = await m5_larges(process)
        assert {offering.price_per_hour for offering in m5_large.offerings} == {0.03, 0.096}


async def test_every_controller_has_its_name(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-007, AWS-T012: without a queue there is no interruption controller; instance status is always checked."""
    async with provider_process(aws, account) as process:
        controllers = process.controllers.keys()
    assert PROFILES in controllers
    assert "interruption" not in controllers
    assert "interruption.instancestatus" in controllers
    async with provider_process(aws, account, interruption_queue="jobs") as process:
        assert "interruption" in process.controllers


async def test_without_instance_types_the_process_does_not_start(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-024, AWS-283"""
    process = await unhydrated(aws, account)
    process.fake_region.failing["offerings"] = REFUSED
    with pytest.raises(ProviderError, match="discovering instance types, UnauthorizedOperation: not you"):
        await process.cloud.hydrate()


async def test_without_prices_the_process_starts_with_the_packaged_ones_and_retries(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-366, AWS-367"""
    process = await unhydrated(aws, account)
    process.fake_region.failing["products"] = REFUSED
    with capture_logs() as logs:
        await process.cloud.hydrate()
    errors = [log["event"] for log in logs if log["log_level"] == "error"]
    assert errors == ["prices are the packaged ones for now"]
    process.fake_region.failing.clear()
    before = len(process.fake_region.asked)
    rounds = asyncio.ensure_future(process.controllers["providers.pricing"].run())
    await process.until(lambda: len(process.fake_region.asked) == before + 2, "the price list being asked for")
    rounds.cancel()


# -- instances -------------------------------------------------------------------------------------------------------------


async def test_an_instance_from_launch_to_termination(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-465 to AWS-468, AWS-520 to AWS-527"""
    async with provider_process(aws, account) as process:
        ready_class = await process.ready_class()
        asked, instance = await launched(process)
        provider = process.cloud.provider
        zone = instance.labels[labels.ZONE]
        assert instance.provider_id == f"aws:///{zone}/{instance_id(instance)}"
        assert instance.labels[labels.CAPACITY_TYPE] == labels.ON_DEMAND
        assert instance.labels[labels.INSTANCE_TYPE] == "m5.large"
        assert instance.labels["karpenter.k8s.aws/instance-cpu"] == "2"
        assert instance.annotations == {
            aws_labels.NODE_CLASS_HASH: ready_class.metadata.annotations[aws_labels.NODE_CLASS_HASH],
            aws_labels.NODE_CLASS_HASH_VERSION: ready_class.metadata.annotations[aws_labels.NODE_CLASS_HASH_VERSION],
            aws_labels.INSTANCE_PROFILE_NAME: ready_class.status.instance_profile,
        }
        (m5_large,) = await m5_larges(process)
        assert instance.allocatable[res.CPU] == m5_large.allocatable[res.CPU]
        assert 0 not in instance.capacity.values()
        assert await provider.create(asked) == instance
        assert process.carried_out("CreateFleet") == 1
        seen = await provider.get(instance.provider_id)
        assert (seen.provider_id, seen.image_id, seen.terminating) == (instance.provider_id, instance.image_id, False)
        assert [instance.provider_id for instance in await provider.list()] == [instance.provider_id]
        await provider.delete(instance.provider_id)
        await process.until(lambda: _ends(aws), "the instance terminating")
        with pytest.raises(InstanceNotFound):
            await _gone(process, instance)


def _ends(aws: Double) -> bool:
    return all(instance["state"] != "running" for instance in aws.control.instances())


async def _gone(process: ProviderProcess, instance: Instance) -> None:
    for _ in range(200):
        await process.cloud.provider.delete(instance.provider_id)


async def test_a_new_instance_is_known_before_its_claim_has_its_provider_id(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-655: an early interruption is not treated as that of another cluster."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        asked = await process.kube.create(NODE_CLAIM, claim("one", "m5.large"))
        instance = await process.cloud.provider.create(asked)
        await process.until(lambda: process.state.claim("one") is not None, "the claim being seen")
        nodeclaim = process.cloud._cluster_view.claim_of(instance_id(instance))
        assert nodeclaim is not None
        assert (nodeclaim.metadata.name, nodeclaim.status.provider_id) == ("one", "")
        assert process.cloud._cluster_view.claim_of("i-other") is None


async def test_an_instance_of_a_deleted_pool_and_class_is_still_listed(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-525, AWS-T527: without capacity."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        _, instance = await launched(process)
    async with provider_process(aws, account) as another:
        (listed,) = await another.cloud.provider.list()
        assert (listed.provider_id, listed.capacity) == (instance.provider_id, {})
        assert listed.labels[labels.NODE_POOL] == "default"


async def test_a_claim_of_a_missing_class_fails_with_an_event(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-410"""
    async with provider_process(aws, account) as process:
        with pytest.raises(InsufficientCapacity, match="EC2NodeClass default does not exist"):
            await process.cloud.provider.create(await process.kube.create(NODE_CLAIM, claim("one", "m5.large")))
        assert ("Warning", "one", "NodeClassNotResolved") in process.events.events


async def test_an_unavailable_offering_is_not_requested_again_at_once(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-375, AWS-453, AWS-T417: the error of the fleet changes the offerings of NodePools."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        for zone in seeds.subnets:
            aws.control.set_pool("m5.large", zone, "on-demand", 0)
        with pytest.raises(InsufficientCapacity):
            await launched(process)
        (m5_large,) = await m5_larges(process)
        kinds = {offering.capacity_type for offering in m5_large.offerings if offering.available}
        assert kinds == {labels.SPOT}


async def test_instances_are_tagged_once_their_node_exists(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-530 to AWS-532, AWS-T528"""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        await launched(process)
        process.start("nodeclaim.tagging")
        await process.until(
            lambda: _annotations(process, "one").get(aws_labels.TAGGED) == "true", "the claim being tagged"
        )
        (tagged,) = aws.calls.carried_out("CreateTags")
    own = {parameter["Key"]: parameter["Value"] for parameter in tagged.parameters["Tags"]}
    assert own == {"Name": "node-one", aws_labels.NODE_CLAIM_TAG: "one"}


def _annotations(process: ProviderProcess, name: str) -> dict[str, str]:
    nodeclaim = process.state.claim(name)
    return dict(nodeclaim.metadata.annotations) if nodeclaim is not None else {}


async def test_an_instance_without_a_claim_is_terminated_with_its_node(
    aws: Double, account: AwsSession, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS-536, AWS-T524: the Node is found although no NodeClaim has the instance."""
    monkeypatch.setattr("karpenter.providers.aws.instance.instance_controllers.MIN_GARBAGE_AGE", NO_AGE)
    async with provider_process(aws, account) as process:
        await process.ready_class()
        _, instance = await launched(process)
        node = Node(metadata=ObjectMeta(name="node-one"), spec=NodeSpec(provider_id=instance.provider_id))
        await process.kube.create(NODE, node)
        await process.until(lambda: process.state.node("node-one") is not None, "the Node being seen")
        await process.kube.delete(NODE_CLAIM, "one")
        await process.until(lambda: process.state.claim("one") is None, "the claim being gone")
        process.start("instance.garbagecollection")
        await process.until(lambda: process.state.node("node-one") is None, "the Node being gone")
        assert _ends(aws)


async def test_a_launch_continues_after_the_timeout_of_its_caller(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """OPS-733, AWS-750: a second call returns the same instance."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        impatient = TimeoutProvider(process.cloud.provider, 0.3)
        asked = await process.kube.create(NODE_CLAIM, claim("one", "m5.large"))
        aws.control.set_latency("CreateFleet", 1.0)
        with pytest.raises(ProviderError, match="launching an instance took longer"):
            await impatient.create(asked)
        instance = await TimeoutProvider(process.cloud.provider).create(asked)
        assert [instance["instance_id"] for instance in aws.control.instances()] == [instance_id(instance)]
    assert process.carried_out("CreateFleet") == 1


async def test_the_cheapest_offerings_by_overlays_are_requested_first_and_then_all(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-417, AWS-443, SCH-760: there is one instance, from the first or the second launch."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        for zone in seeds.subnets:
            aws.control.set_pool("c5.large", zone, "on-demand", 0)
        types = await process.cloud.provider.instance_types(pool())
        cheap = replace(
            next(instance_type for instance_type in types if instance_type.name == "c5.large"), is_price_overlaid=True
        )
        overlaid = OverlaidProvider(process.cloud.provider)
        overlaid.set_overlays(
            (),
            (
                NodePoolInstanceTypes(
                    pool(), (cheap, *(instance_type for instance_type in types if instance_type.name == "m5.large"))
                ),
            ),
        )
        asked = claim("one", "c5.large", "m5.large")
        notes = msgspec.structs.replace(asked.metadata, annotations={labels.PRICE_OVERLAY: "true"})
        made = await process.kube.create(NODE_CLAIM, msgspec.structs.replace(asked, metadata=notes))
        instance = await overlaid.create(made)
        assert instance.labels[labels.INSTANCE_TYPE] == "m5.large"
        assert len(aws.control.instances()) == 1
    first, second = (call.parameters["LaunchTemplateConfigs"] for call in aws.calls.of("CreateFleet") if is_real(call))
    assert _types(first) == {"c5.large"}
    assert _types(second) == {"c5.large", "m5.large"}


def is_real(call: RecordedCall) -> bool:
    return not call.is_dry_run


def _types(configs: list[Any]) -> set[str]:
    return {way["InstanceType"] for config in configs for way in config["Overrides"]}


async def test_a_burst_of_launches_reads_the_watched_class(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-411, AWS-750: not once per NodeClaim; a class that is not ready is read again before the launch is refused."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        asked = [await process.kube.create(NODE_CLAIM, claim(f"c{number}", "m5.large")) for number in range(20)]
        reads = Reads(process.kube)
        process.kube.get = reads.get
        await asyncio.gather(*map(process.cloud.provider.create, asked))
        assert reads.of_classes == 0
        assert len(aws.control.instances()) == 20
        assert process.carried_out("CreateFleet") == 1


class Reads:
    """Counts how often a class is read."""

    def __init__(self, kube: MemoryKube) -> None:
        self._get = kube.get
        self.of_classes = 0

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        self.of_classes += kind is EC2_NODE_CLASS
        return await self._get(kind, name, namespace)


# -- drift -----------------------------------------------------------------------------------------------------------------


async def test_an_instance_does_not_drift_until_its_class_changes(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-560, AWS-570: the drift message names the change."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        await process.kube.create(NODE_POOL, pool())
        await process.until(lambda: process.state.pool("default") is not None, "the pool being seen")
        shown, _ = await launched(process)
        assert await process.cloud.provider.drift(shown) is None
        before = _class_hash(process)
        await process.kube.patch(EC2_NODE_CLASS, "default", {"spec": {"userData": "#!/bin/bash\necho changed"}})
        await process.until(lambda: _class_hash(process) != before, "the class being stamped")
        drift = await process.cloud.provider.drift(shown)
    assert drift is not None
    assert (drift.reason, drift.message) == ("NodeClassDrift", "EC2NodeClass default was changed: userData")


def _class_hash(process: ProviderProcess) -> str:
    default = process.classes.get("default")
    return default.metadata.annotations.get(aws_labels.NODE_CLASS_HASH, "") if default is not None else ""


# -- prices ----------------------------------------------------------------------------------------------------------------


async def test_an_overlay_prices_a_type_without_an_ec2_price(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-356, AWS-T363"""
    async with provider_process(aws, account, node_overlay=True) as process:
        await process.ready_class()
        overlay = NodeOverlay(
            metadata=ObjectMeta(name="own"),
            spec=NodeOverlaySpec(
                requirements=(OverlayRequirement(key=labels.INSTANCE_TYPE, operator="In", values=("r5.large",)),),
                price="2.5",
            ),
        )
        made = await process.kube.create(NODE_OVERLAY, overlay)
        valid = Condition(type=VALID, status="True", reason=VALID, last_transition_time=START)
        status = {"conditions": [msgspec.to_builtins(valid)]}
        await process.kube.patch(NODE_OVERLAY, made.metadata.name, {"status": status}, subresource="status")
        process.start("providers.pricing.overlay")
        await process.until(lambda: _is_priced(process, "r5.large", 2.5), "the overlay's price")


async def _is_priced(process: ProviderProcess, name: str, price: float) -> bool:
    types = await process.cloud.provider.instance_types(pool())
    (instance_type,) = (given_type for given_type in types if given_type.name == name)
    return any(offering.price_per_hour == price and offering.available for offering in instance_type.offerings)


async def test_instances_have_the_tags_with_the_cluster_name(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-065, AWS-446"""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        await launched(process)
        (instance,) = client(aws, "ec2").describe_instances()["Reservations"][0]["Instances"]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    ours = {
        f"kubernetes.io/cluster/{NAME}": "owned",
        aws_labels.CLUSTER_TAG: NAME,
        labels.NODE_POOL: "default",
        aws_labels.NODE_CLASS: "default",
    }
    assert ours.items() <= tags.items()


async def test_the_kubelet_settings_of_a_v1beta1_pool_override_those_of_its_class(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """API-735, API-A03: in the capacity of types, and in user data."""
    own = {"compatibility.karpenter.sh/v1beta1-kubelet-conversion": '{"maxPods":17}'}
    async with provider_process(aws, account) as process:
        await process.ready_class()
        plain = pool()
        older = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=own))
        counts = {}
        for name, asked in (("plain", plain), ("older", older)):
            (m5_large,) = [one for one in await process.cloud.provider.instance_types(asked) if one.name == "m5.large"]
            counts[name] = m5_large.capacity[res.PODS]
        assert counts["older"] == 17 * 1000
        assert counts["plain"] != counts["older"]
        asked_claim = claim("one", "m5.large")
        metadata = msgspec.structs.replace(asked_claim.metadata, annotations=own)
        made = await process.kube.create(NODE_CLAIM, msgspec.structs.replace(asked_claim, metadata=metadata))
        await process.cloud.provider.create(made)
        sent = [call.parameters["LaunchTemplateData"]["UserData"] for call in aws.calls.of("CreateLaunchTemplate")]
        assert re.search(r"max-?pods\D{1,4}17\b", base64.b64decode(sent[-1]).decode(), re.IGNORECASE)
