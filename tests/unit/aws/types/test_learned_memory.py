"""Memory of instance types discovered from nodes."""

from __future__ import annotations

import pytest

from karpenter.api.core import Node, NodeStatus
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClaimStatus, NodeClassReference
from karpenter.api.meta import ObjectMeta
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.providers.aws.instancetype.discovered_capacity import (
    DISCOVERED_CAPACITY_TTL,
    CapacityLearner,
    DiscoveredCapacity,
)
from karpenter.providers.aws.instancetype.nodeclass_terms import image_set
from karpenter.providers.aws.nodeclass.ami_selection import ami_for
from support.ec2_instance_types import (
    PLAIN,
    START,
    FakeRegion,
    InstanceTypeFixture,
    ami,
    instance_type_fixture,
    of_kubelet,
    of_status,
)
from support.manual_clock import ManualClock

MIB = 2**20


def node(memory: str) -> Node:
    return Node(metadata=ObjectMeta(name="node-1"), status=NodeStatus(capacity={"memory": memory}))


def claim(image: str) -> NodeClaim:
    reference = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
    return NodeClaim(
        metadata=ObjectMeta(name="claim-1"),
        spec=NodeClaimSpec(node_class_ref=reference, requirements=()),
        status=NodeClaimStatus(image_id=image),
    )


async def school() -> tuple[InstanceTypeFixture, CapacityLearner]:
    fixture = await instance_type_fixture(FakeRegion(names=["t3.medium", "m5.large"]))
    return fixture, CapacityLearner(fixture.memories.discovered_capacity, ami_for)


def attend(fixture: InstanceTypeFixture, lessons: CapacityLearner, memory: str, image: str = "ami-1") -> bool:
    return lessons.learn(node(memory), claim(image), fixture.types()["t3.medium"], PLAIN.status.amis)


def memory_mib(fixture: InstanceTypeFixture) -> int:
    return fixture.types()["t3.medium"].capacity[res.MEMORY] // quantity.MILLI // MIB


async def test_the_memory_of_a_joined_node_is_used_for_its_instance_type() -> None:
    """AWS-T302, AWS-292: a learned value replaces the computed one."""
    fixture, lessons = await school()
    assert memory_mib(fixture) == 3788
    assert attend(fixture, lessons, "3840Mi")
    assert memory_mib(fixture) == 3840
    assert attend(fixture, lessons, "3839Mi")
    assert memory_mib(fixture) == 3839
    assert not attend(fixture, lessons, "3900Mi")
    assert memory_mib(fixture) == 3839


async def test_only_the_type_with_new_memory_is_rebuilt() -> None:
    """AWS-318: the value applies at once and rebuilds one type."""
    fixture, lessons = await school()
    before = fixture.types()
    attend(fixture, lessons, "3840Mi")
    after = fixture.types()
    assert after["m5.large"] is before["m5.large"]
    assert after["t3.medium"] is not before["t3.medium"]


async def test_the_memory_of_an_instance_with_an_outdated_image_is_ignored() -> None:
    """AWS-T303."""
    fixture, lessons = await school()
    assert not attend(fixture, lessons, "3840Mi", image="ami-0")
    assert memory_mib(fixture) == 3788


async def test_memory_is_kept_per_set_of_images() -> None:
    """AWS-T304."""
    fixture, lessons = await school()
    attend(fixture, lessons, "3840Mi")
    other = fixture.types(of_status(amis=(ami("ami-2"),)))
    assert other["t3.medium"].capacity[res.MEMORY] == 3788 * MIB * quantity.MILLI


async def test_an_eviction_percentage_refers_to_the_computed_memory() -> None:
    """AWS-314."""
    fixture, lessons = await school()
    node_class = of_kubelet(evictionHard={"memory.available": "10%"})
    before = fixture.types(node_class)["t3.medium"].overhead
    attend(fixture, lessons, "3840Mi")
    assert fixture.types(node_class)["t3.medium"].overhead == before


@pytest.mark.parametrize("memory", ["broken", "0"])
async def test_an_implausible_memory_value_is_ignored(memory: str) -> None:
    fixture, lessons = await school()
    assert not attend(fixture, lessons, memory)
    assert memory_mib(fixture) == 3788


def test_a_value_without_confirmation_expires() -> None:
    """AWS-316: sixty days, counted from the last confirmation."""
    clock = ManualClock(START)
    memory = DiscoveredCapacity(clock)
    memory.record("m5.large", "set", 1000)
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert not memory.record("m5.large", "set", 1000)
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert memory.memory_bytes("m5.large", "set") == 1000
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert memory.memory_bytes("m5.large", "set") is None


def test_learned_memory_survives_a_restart() -> None:
    """AWS-318 Beyond."""
    clock = ManualClock(START)
    memory, other = DiscoveredCapacity(clock), DiscoveredCapacity(clock)
    memory.record("m5.large", "set", 1000)
    memory.record("c5.large", "set", 500)
    other.record("c5.large", "set", 400)
    other.load(memory.dump())
    assert other.memory_bytes("m5.large", "set") == 1000
    assert other.memory_bytes("c5.large", "set") == 400
    assert DiscoveredCapacity(clock).dump() == b"[]"


@pytest.mark.parametrize("text", [b"", b"{", b'[["m5.large"]]', b'[["m5.large","set","much","2026-01-01T00:00:00Z"]]'])
def test_an_invalid_record_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        DiscoveredCapacity(ManualClock(START)).load(text)


def test_the_name_of_a_set_of_images_does_not_depend_on_their_order() -> None:
    one, other = ami("ami-1"), ami("ami-2", "arm64")
    assert image_set((one, other)) == image_set((other, one))
    assert image_set((one,)) != image_set((ami("ami-1", "arm64"),))
