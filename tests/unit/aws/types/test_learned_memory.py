"""Memory learned from nodes."""

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
    FakeRegion,
    InstanceTypeFixture,
    ManualClock,
    ami,
    instance_type_fixture,
    of_kubelet,
    of_status,
)

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


async def test_a_node_that_joined_says_how_much_memory_its_like_have() -> None:
    """AWS-T302, AWS-292: a learned value replaces the computed one."""
    fixture, lessons = await school()
    assert memory_mib(fixture) == 3788
    assert attend(fixture, lessons, "3840Mi")
    assert memory_mib(fixture) == 3840
    assert attend(fixture, lessons, "3839Mi")
    assert memory_mib(fixture) == 3839
    assert not attend(fixture, lessons, "3900Mi")
    assert memory_mib(fixture) == 3839


async def test_only_the_type_that_was_learned_about_is_made_anew() -> None:
    """AWS-318: the lesson counts at once, and costs one type."""
    fixture, lessons = await school()
    before = fixture.types()
    attend(fixture, lessons, "3840Mi")
    after = fixture.types()
    assert after["m5.large"] is before["m5.large"]
    assert after["t3.medium"] is not before["t3.medium"]


async def test_an_instance_with_an_outdated_image_teaches_nothing() -> None:
    """AWS-T303."""
    fixture, lessons = await school()
    assert not attend(fixture, lessons, "3840Mi", image="ami-0")
    assert memory_mib(fixture) == 3788


async def test_other_images_may_leave_other_memory() -> None:
    """AWS-T304."""
    fixture, lessons = await school()
    attend(fixture, lessons, "3840Mi")
    other = fixture.types(of_status(amis=(ami("ami-2"),)))
    assert other["t3.medium"].capacity[res.MEMORY] == 3788 * MIB * quantity.MILLI


async def test_a_percentage_for_eviction_is_of_the_reckoned_memory() -> None:
    """AWS-314."""
    fixture, lessons = await school()
    node_class = of_kubelet(evictionHard={"memory.available": "10%"})
    before = fixture.types(node_class)["t3.medium"].overhead
    attend(fixture, lessons, "3840Mi")
    assert fixture.types(node_class)["t3.medium"].overhead == before


@pytest.mark.parametrize("memory", ["broken", "0"])
async def test_a_node_that_makes_no_sense_teaches_nothing(memory: str) -> None:
    fixture, lessons = await school()
    assert not attend(fixture, lessons, memory)
    assert memory_mib(fixture) == 3788


def test_what_nobody_confirms_is_forgotten() -> None:
    """AWS-316: sixty days, counted from the last confirmation."""
    clock = ManualClock()
    memory = DiscoveredCapacity(clock)
    memory.record("m5.large", "set", 1000)
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert not memory.record("m5.large", "set", 1000)
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert memory.memory_bytes("m5.large", "set") == 1000
    clock.time += DISCOVERED_CAPACITY_TTL / 2
    assert memory.memory_bytes("m5.large", "set") is None


def test_what_was_learned_survives_a_restart() -> None:
    """AWS-318 Beyond."""
    clock = ManualClock()
    memory, other = DiscoveredCapacity(clock), DiscoveredCapacity(clock)
    memory.record("m5.large", "set", 1000)
    memory.record("c5.large", "set", 500)
    other.record("c5.large", "set", 400)
    other.load(memory.dump())
    assert other.memory_bytes("m5.large", "set") == 1000
    assert other.memory_bytes("c5.large", "set") == 400
    assert DiscoveredCapacity(clock).dump() == b"[]"


@pytest.mark.parametrize("text", [b"", b"{", b'[["m5.large"]]', b'[["m5.large","set","much","2026-01-01T00:00:00Z"]]'])
def test_a_broken_record_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        DiscoveredCapacity(ManualClock()).load(text)


def test_a_set_of_images_has_one_name_whatever_their_order() -> None:
    one, other = ami("ami-1"), ami("ami-2", "arm64")
    assert image_set((one, other)) == image_set((other, one))
    assert image_set((one,)) != image_set((ami("ami-1", "arm64"),))
