"""Discovered memory of instance types, stored in the cluster and read by later processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from karpenter.api.core import ConfigMap, Node, NodeSpec, NodeStatus
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClaimStatus, NodeClassReference
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import ObjectMeta
from karpenter.model import labels
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.instancetype.discovered_capacity import (
    CONFIG_MAP_NAME,
    CONFIG_MAP_NAMESPACE,
    DiscoveredCapacityController,
)
from karpenter.providers.aws.instancetype.nodeclass_terms import image_set
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.ec2_instance_types import PLAIN, FakeRegion, InstanceTypeFixture, instance_type_fixture
from support.node_class_environment import WatchedObjects

MIB = 2**20
IMAGES = image_set(PLAIN.status.amis)
CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")


def node(memory: str = "3800Mi", registered: str = "true") -> Node:
    own = {labels.REGISTERED: registered} if registered else {}
    return Node(
        metadata=ObjectMeta(name="node-1", labels=own),
        spec=NodeSpec(provider_id="aws:///test-1a/i-1"),
        status=NodeStatus(capacity={"memory": memory}),
    )


CLAIM = NodeClaim(
    metadata=ObjectMeta(name="claim-1", labels={labels.INSTANCE_TYPE: "t3.medium"}),
    spec=NodeClaimSpec(node_class_ref=CLASS, requirements=()),
    status=NodeClaimStatus(provider_id="aws:///test-1a/i-1", image_id="ami-1"),
)


class LearningProcesses:
    """Processes on one cluster, one after another or concurrently."""

    def __init__(self, fixture: InstanceTypeFixture) -> None:
        self.fixture = fixture
        self.kube = MemoryKube(MemoryServer(fixture.clock))
        self.seen = WatchedObjects(known_claims=(CLAIM,))
        self.classes: Mapping[str, EC2NodeClass] = {"default": PLAIN}

    def process(self, found: InstanceTypeFixture | None = None) -> DiscoveredCapacityController:
        of = found or self.fixture
        return DiscoveredCapacityController(
            self.kube, of.memories.discovered_capacity, of.provider.types_for, cast(AwsClusterView, self)
        )

    async def work(self, learning: DiscoveredCapacityController) -> None:
        """Run one reconcile."""
        await learning.reconcile()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return self.seen.claim_of(instance_id)

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        return self.classes.get(name)

    async def written(self) -> str:
        return (await self.kube.get(CONFIG_MAP, CONFIG_MAP_NAME, CONFIG_MAP_NAMESPACE)).data["memory"]

    def known(self) -> int | None:
        memory_bytes = self.fixture.memories.discovered_capacity.memory_bytes("t3.medium", IMAGES)
        return memory_bytes // MIB if memory_bytes is not None else None


@pytest.fixture
async def processes() -> LearningProcesses:
    return LearningProcesses(await instance_type_fixture(FakeRegion(names=["t3.medium"])))


async def test_learned_memory_survives_the_process(processes: LearningProcesses) -> None:
    """AWS-316 to AWS-318, Beyond"""
    learning = processes.process()
    learning.on_node(None, node())
    await processes.work(learning)
    assert processes.known() == 3800
    next_one = await instance_type_fixture(FakeRegion(names=["t3.medium"]))
    await processes.process(next_one).load()
    assert next_one.memories.discovered_capacity.memory_bytes("t3.medium", IMAGES) == 3800 * MIB


async def test_a_process_that_becomes_leader_later_has_the_learned_memory(processes: LearningProcesses) -> None:
    """AWS-318, Beyond"""
    follower = await instance_type_fixture(FakeRegion(names=["t3.medium", "m5.large"]))
    waiting = processes.process(follower)
    await waiting.load()
    leader = processes.process()
    leader.on_node(None, node())
    await processes.work(leader)
    follower.memories.discovered_capacity.record("m5.large", IMAGES, 7000 * MIB)
    await processes.work(waiting)
    assert follower.memories.discovered_capacity.memory_bytes("t3.medium", IMAGES) == 3800 * MIB
    assert {"t3.medium", "m5.large"} == {entry[0] for entry in msgspec.json.decode(await processes.written())}


async def test_the_memory_of_a_node_is_read_once_and_again_when_it_changes(processes: LearningProcesses) -> None:
    """AWS-316, AWS-T302"""
    learning = processes.process()
    learning.on_node(None, node())
    learning.learn_from_waiting()
    processes.fixture.clock.advance(days=61)
    learning.on_node(None, node())
    learning.learn_from_waiting()
    assert processes.known() is None
    learning.on_node(None, node("3790Mi"))
    learning.learn_from_waiting()
    assert processes.known() == 3790


async def test_the_memory_of_an_unregistered_node_is_ignored(processes: LearningProcesses) -> None:
    """AWS-316"""
    learning = processes.process()
    learning.on_node(None, node(registered=""))
    learning.learn_from_waiting()
    assert processes.known() is None


async def test_a_node_whose_class_is_unknown_is_read_later(processes: LearningProcesses) -> None:
    learning = processes.process()
    node_classes, processes.classes = processes.classes, {}
    learning.on_node(None, node())
    learning.learn_from_waiting()
    processes.classes = node_classes
    learning.on_node(node(), node())
    learning.learn_from_waiting()
    assert processes.known() == 3800


async def test_a_node_deleted_before_it_was_read_is_dropped(processes: LearningProcesses) -> None:
    learning = processes.process()
    learning.on_node(None, node())
    learning.on_node(node(), None)
    learning.learn_from_waiting()
    assert processes.known() is None


async def test_without_changes_nothing_is_written(processes: LearningProcesses) -> None:
    learning = processes.process()
    learning.on_node(None, node())
    await processes.work(learning)
    before = (await processes.kube.get(CONFIG_MAP, CONFIG_MAP_NAME, CONFIG_MAP_NAMESPACE)).metadata.resource_version
    await processes.work(learning)
    assert (
        await processes.kube.get(CONFIG_MAP, CONFIG_MAP_NAME, CONFIG_MAP_NAMESPACE)
    ).metadata.resource_version == before


async def test_an_invalid_record_is_logged_and_learned_again(processes: LearningProcesses) -> None:
    config = ConfigMap(
        metadata=ObjectMeta(name=CONFIG_MAP_NAME, namespace=CONFIG_MAP_NAMESPACE), data={"memory": "{nonsense"}
    )
    await processes.kube.create(CONFIG_MAP, config)
    learning = processes.process()
    with capture_logs() as logs:
        await learning.load()
    assert [entry["event"] for entry in logs] == ["what was learned about instances cannot be read"]
    learning.on_node(None, node())
    await processes.work(learning)
    assert "t3.medium" in await processes.written()
