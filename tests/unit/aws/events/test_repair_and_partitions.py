"""Partitions and repair policies of the AWS provider, and offering metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, NodeStatus
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.api.meta import Condition
from karpenter.metrics import Metrics
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.repair_policies import RepairAction, repair_policies
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_labels import PLACEMENT_GROUP_PARTITION
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.aws_provider import PlacementGroupPartitionHook
from karpenter.providers.aws.aws_settings import AwsClusterInfo, aws_settings_of
from karpenter.providers.aws.cluster_discovery import DiscoveredCluster
from karpenter.providers.aws.ec2_descriptions import InstanceInfo, InstancePlacement
from karpenter.providers.aws.ec2_repair import LEGACY_REPAIR_POLICIES, ec2_repair_policies
from karpenter.providers.aws.instancetype.offering_metrics import InstanceTypes, OfferedTypes, OfferingMetricsController
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import HookPending, HookSatisfied, NodeClassNotReady, ProviderError, RegistrationHook
from karpenter.settings import Settings, resolve_settings
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.aws.provider_process import context
from support.builders import node_pool, wanted
from support.instance_types import STD
from support.interruption_cluster import SPOT, FakeAwsCluster
from support.virtual_cluster import VirtualCluster, in_virtual_time

# -- partitions -----------------------------------------------------------------------------------------------------------------


@dataclass
class Ec2:
    """Answers with the partition of an instance; None: EC2 does not describe the instance yet."""

    partition: int | None = 0
    error: AwsError | None = None
    asked: int = 0

    async def describe_instances(self, ids: tuple[str, ...]) -> tuple[InstanceInfo, ...]:
        self.asked += 1
        assert ids == ("i-1",)
        if self.error is not None:
            raise self.error
        if self.partition is None:
            raise AwsError("InvalidInstanceID.NotFound", "unknown")
        return (InstanceInfo(instance_id="i-1", placement=InstancePlacement(partition_number=self.partition)),)


async def test_an_instance_waits_for_its_partition_and_gets_it_as_a_label() -> None:
    """AWS-T606, AWS-612."""
    cluster, ec2 = FakeAwsCluster(), Ec2(None)
    hook: RegistrationHook = PlacementGroupPartitionHook(ec2)
    await cluster.add_instance("a", "i-1", {**SPOT, PLACEMENT_GROUP_PARTITION: ""})
    claim = await cluster.claim("a")
    assert await hook.check(claim) == HookPending()
    ec2.partition = 0
    assert await hook.check(claim) == HookPending()
    ec2.partition = 2
    assert await hook.check(claim) == HookSatisfied(labels={PLACEMENT_GROUP_PARTITION: "2"})
    assert ec2.asked == 3, "read without a cache"
    ec2.error = AwsError("Timeout", "late")
    with pytest.raises(ProviderError):
        await hook.check(claim)


@pytest.mark.parametrize("own", [SPOT, {**SPOT, PLACEMENT_GROUP_PARTITION: "3"}], ids=["no group", "known"])
async def test_an_instance_without_a_partition_group_does_not_wait(own: dict[str, str]) -> None:
    """AWS-612."""
    cluster, ec2 = FakeAwsCluster(), Ec2()
    await cluster.add_instance("a", "i-1", own)
    assert await PlacementGroupPartitionHook(ec2).check(await cluster.claim("a")) == HookSatisfied()
    assert ec2.asked == 0


# -- repair ---------------------------------------------------------------------------------------------------------------------

ON = Settings(feature_gates=parse_feature_gates("NodeRepair=true"), legacy_node_repair=True)
CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("reboots", [False, True])
def test_two_settings_choose_the_policies_of_the_provider(legacy: bool, reboots: bool) -> None:
    """K15-A10, K15-A74: repair and the cluster state get the policies that the settings choose."""
    gates = f"NodeClassCEL=false,RebootForRepair={str(reboots).lower()}"
    given = {"AWS_FEATURE_GATES": gates, "LEGACY_NODE_REPAIR": str(legacy).lower(), "CLUSTER_NAME": "shop"}
    settings = resolve_settings({}, given)
    declared = (settings, settings.gates, settings.intervals)
    own = aws_settings_of(*declared, legacy_node_repair=settings.legacy_node_repair)
    clock = SystemClock()
    facts = DiscoveredCluster(AwsClusterInfo("shop", "us-west-2", "https://shop", "Q0E=", "1.35"), cast(Any, None))
    services = AwsSession(SdkMetrics(Metrics())).services
    made = AwsOperator(context(services, facts, own, MemoryKube(MemoryServer(clock)), clock, Metrics()))
    expected = LEGACY_REPAIR_POLICIES if legacy else ec2_repair_policies(reboots=reboots)
    assert made.provider.repair_policies() == expected


def test_repair_policies_are_those_of_the_specification() -> None:
    """K15-A63, AWS-690, DIS-381, API-381: the policies of release 1.14: condition, status and toleration."""
    minutes = {
        (repair_policy.condition_type, repair_policy.condition_status): repair_policy.toleration
        for repair_policy in LEGACY_REPAIR_POLICIES
    }
    half_an_hour = timedelta(minutes=30)
    assert minutes.pop(("AcceleratedHardwareReady", "False")) == timedelta(minutes=10)
    assert minutes == dict.fromkeys(
        [
            ("Ready", "False"),
            ("Ready", "Unknown"),
            ("StorageReady", "False"),
            ("NetworkingReady", "False"),
            ("KernelReady", "False"),
            ("ContainerRuntimeReady", "False"),
        ],
        half_an_hour,
    )


@pytest.mark.parametrize(
    ("reason", "reboots", "action", "minutes", "bound"),
    [
        ("NvidiaXID48Error", True, RepairAction.REBOOT, 10, 5),
        ("NvidiaXID48Error", False, RepairAction.REPLACE, 10, 5),
        ("NvidiaXID480Error", True, RepairAction.REBOOT, 10, 5),
        ("NvidiaXID79Error", True, RepairAction.REPLACE, 10, 5),
        ("NvidiaXID142Error", True, RepairAction.REPLACE, 30, 10),
        ("NvidiaDoubleBitError", True, RepairAction.REPLACE, 30, 10),
    ],
)
def test_the_reason_of_a_broken_accelerator_decides_the_repair_action(
    reason: str, reboots: bool, action: RepairAction, minutes: int, bound: int
) -> None:
    """K15-A66 to K15-A73, K15-A143, K15-A144: the set is valid (K15-204), and the one fallback waits 30 minutes."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    condition = Condition(type="AcceleratedHardwareReady", status="False", reason=reason, last_transition_time=now)
    node = Node(status=NodeStatus(conditions=(condition,)))
    policies = repair_policies(ec2_repair_policies(reboots=reboots))
    assert policies.next_eligible(node, now) == now + timedelta(minutes=minutes)
    decision = policies.decision(node, now + timedelta(minutes=minutes))
    assert decision is not None
    assert (decision.action, decision.drain_bound) == (action, timedelta(minutes=bound))


@pytest.mark.parametrize("name", ["StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady", "Ready"])
def test_other_broken_parts_are_replaced_after_half_an_hour(name: str) -> None:
    """K15-A64, K15-A65, K15-A69"""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    condition = Condition(type=name, status="False", reason="x", last_transition_time=now)
    policies = repair_policies(ec2_repair_policies(reboots=True))
    decision = policies.decision(Node(status=NodeStatus(conditions=(condition,))), now + timedelta(minutes=30))
    assert decision is not None
    assert (decision.action, decision.drain_bound) == (RepairAction.REPLACE, timedelta(minutes=10))


async def _joined(cluster: VirtualCluster) -> None:
    cluster.cloud.repair_policies = lambda: LEGACY_REPAIR_POLICIES
    await cluster.node_class()
    pool = await cluster.pool(disruption=CLOSED)
    await cluster.start(ON)
    await cluster.owned_claim(pool, "n")
    await asyncio.sleep(0.1)
    await cluster.join("n", "n")
    await asyncio.sleep(1)


async def _stays(cluster: VirtualCluster) -> bool:
    return any(obj.metadata.deletion_timestamp is None for obj in await cluster.all(kinds.NODE_CLAIM))


@in_virtual_time
async def test_broken_accelerators_are_repaired_after_ten_minutes(cluster: VirtualCluster) -> None:
    """AWS-T690."""
    await _joined(cluster)
    await cluster.set_condition(kinds.NODE, "n", "AcceleratedHardwareReady", "False")
    await asyncio.sleep(9 * 60)
    assert await _stays(cluster)
    await asyncio.sleep(2 * 60)
    assert not await _stays(cluster)


@in_virtual_time
async def test_a_node_that_is_not_ready_for_29_minutes_is_not_repaired_yet(cluster: VirtualCluster) -> None:
    """AWS-T691."""
    await _joined(cluster)
    await cluster.set_ready("n", "Unknown")
    await asyncio.sleep(29 * 60)
    assert await _stays(cluster)
    await asyncio.sleep(2 * 60)
    assert not await _stays(cluster)


# -- metrics --------------------------------------------------------------------------------------------------------------------


async def test_offering_metrics_cover_node_pools_with_a_ready_class() -> None:
    """AWS-790."""
    cluster = FakeAwsCluster()
    await cluster.pool()
    await cluster.kube.create(kinds.NODE_POOL, node_pool("unready"))
    await cluster.sync()
    written: list[list[OfferedTypes]] = []
    types = tuple(STD)

    async def types_of(pool: NodePool) -> InstanceTypes:
        if pool.metadata.name == "unready":
            raise NodeClassNotReady("no class")
        return types

    figures = OfferingMetricsController(cluster, types_of, lambda lists: written.append(list(lists)))
    assert await figures.reconcile() == 60.0
    assert [[offered.types for offered in lists] for lists in written] == [[types]]


async def test_an_error_for_the_types_of_one_node_pool_keeps_the_metrics_of_the_others() -> None:
    """K15-A100, K15-A151: the rows of the others are written, and the pass reports an error."""
    cluster = FakeAwsCluster()
    for name in ("a", "b", "c"):
        await cluster.kube.create(kinds.NODE_POOL, node_pool(name))
    await cluster.sync()
    written: list[list[OfferedTypes]] = []
    types = tuple(STD)

    async def types_of(pool: NodePool) -> InstanceTypes:
        if pool.metadata.name != "b":
            raise ProviderError("the class cannot be read")
        return types

    figures = OfferingMetricsController(cluster, types_of, lambda lists: written.append(list(lists)))
    with pytest.raises(ProviderError) as raised:
        await figures.reconcile()
    assert [[offered.types for offered in lists] for lists in written] == [[types]]
    assert str(raised.value) == (
        "getting instance types, NodePool a: the class cannot be read; NodePool c: the class cannot be read"
    )


async def test_an_offering_that_a_node_pool_excludes_is_not_available_to_it() -> None:
    """AWS-T780, AWS-790: a zone, a type; and what another pool takes is available."""
    offered = {instance_type.name: {offering.zone for offering in instance_type.offerings} for instance_type in STD}
    name, zones = next((name, zones) for name, zones in offered.items() if len(zones) > 1)
    zone = min(zones)
    narrow = node_pool("narrow", (wanted(labels.ZONE, "In", zone), wanted(labels.INSTANCE_TYPE, "In", name)))
    cluster = FakeAwsCluster()
    await cluster.kube.create(kinds.NODE_POOL, narrow)
    await cluster.sync()
    written: list[list[OfferedTypes]] = []
    types = tuple(STD)

    async def types_of(pool: NodePool) -> InstanceTypes:
        return types

    figures = OfferingMetricsController(cluster, types_of, lambda lists: written.append(list(lists)))
    await figures.reconcile()
    ways = available(written[-1])
    assert {way[0] for way in ways} == {name}
    assert {way[1] for way in ways} == {zone}
    await figures.reconcile()
    assert len(written) == 1, "nothing changed, so nothing is summed up again"
    await cluster.pool()
    await figures.reconcile()
    assert available(written[-1]) == {
        (instance_type.name, offering.zone)
        for instance_type in STD
        for offering in instance_type.offerings
        if offering.available
    }


def available(lists: list[OfferedTypes]) -> set[tuple[str, str]]:
    """Types and zones that any NodePool can use."""
    return {
        (instance_type.name, offering.zone)
        for offered in lists
        for instance_type, offering, is_available in offered
        if is_available
    }
