"""The look at an EC2NodeClass as a whole (AWS-080 to AWS-084, AWS-056 to AWS-060)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from karpenter.api.ec2_node_class import SubnetSelectorTerm
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.model import conditions
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION, HASH_VERSION_ANNOTATION
from support.ec2_class_services import THROTTLED
from support.ec2_classes import Classes

ALL = (
    "AMIsReady",
    "SubnetsReady",
    "SecurityGroupsReady",
    "InstanceProfileReady",
    "PlacementGroupReady",
    "ValidationSucceeded",
    "CapacityReservationsReady",
    "Ready",
)


async def test_a_class_whose_selectors_all_find_something_becomes_ready() -> None:
    """AWS-T080, AWS-081, AWS-083, AWS-572. AWS-063: the class gets its finalizer. API-375: all conditions are there."""
    world = Classes().stocked()
    await world.create()
    again = await world.look()
    node_class = await world.get()
    assert node_class.metadata.finalizers == ("karpenter.k8s.aws/termination",)
    assert {condition.type: condition.status for condition in node_class.status.conditions} == dict.fromkeys(
        ALL, "True"
    )
    assert node_class.status.conditions[-1].type == "Ready"
    assert node_class.metadata.annotations[HASH_VERSION_ANNOTATION] == HASH_VERSION
    assert node_class.metadata.annotations[HASH_ANNOTATION].isdigit()
    assert again == 60


async def test_a_second_look_with_no_news_writes_nothing_and_makes_no_call() -> None:
    """AWS-083, AWS-143, AWS-109"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    before = await world.get()
    calls = len(world.ec2.calls), len(world.iam.calls)
    await world.look()
    assert await world.get() == before
    assert (len(world.ec2.calls), len(world.iam.calls)) == calls


async def test_the_root_condition_tells_what_is_missing_newest_first() -> None:
    """AWS-T081, AWS-060; API-S175, API-663: without a subnet the class is not Ready."""
    world = Classes().stocked()
    await world.create(subnet_selector_terms=(SubnetSelectorTerm(tags={"no": "such"}),))
    await world.look()
    assert await world.condition("SubnetsReady") == ("False", "SubnetsNotFound")
    assert await world.condition("ValidationSucceeded") == ("False", "DependenciesNotReady")
    assert await world.condition("Ready") == ("False", "UnhealthyDependents")
    assert set((await world.message("Ready")).split(", ")) == {"SubnetsReady=False", "ValidationSucceeded=False"}


async def test_a_part_that_fails_keeps_its_condition_and_stops_no_other() -> None:
    """AWS-082, AWS-084. API-664: without a security group SecurityGroupsReady is False."""
    world = Classes().stocked()
    await world.create()
    await world.look()
    world.ec2.refuse("DescribeSubnets", THROTTLED)
    world.ec2.groups = []
    world.clock.forward(minutes=6)
    with pytest.raises(NodeClassReconcileFailed, match="RequestLimitExceeded"):
        await world.look()
    node_class = await world.get()
    assert await world.condition("SubnetsReady") == ("True", "SubnetsReady")
    assert len(node_class.status.subnets) == 2
    assert await world.condition("SecurityGroupsReady") == ("False", "SecurityGroupsNotFound")


async def test_a_change_in_between_is_not_overwritten_but_looked_at_again_soon() -> None:
    """AWS-083"""
    world = Classes().stocked()
    await world.create()
    await world.see()
    await world.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"labels": {"a": "b"}}})
    again = await world.made.controller.reconcile("default")
    assert again is not None
    assert again < 1
    assert (await world.get()).status.conditions == ()


async def test_a_class_that_is_gone_is_not_looked_at() -> None:
    world = Classes()
    assert await world.look("nobody") is None
    assert world.ec2.calls == []


async def test_without_the_gate_there_is_no_condition_of_reservations() -> None:
    """AWS-058"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    assert conditions.find_condition((await world.get()).status.conditions, "CapacityReservationsReady") is not None
    again = Classes(reserved_capacity=False)
    again.kube, again.ec2, again.iam = world.kube, world.ec2, world.iam
    again.made = again.restarted()
    await again.look()
    node_class = await again.get()
    assert conditions.find_condition(node_class.status.conditions, "CapacityReservationsReady") is None
    assert await again.condition("Ready") == ("True", "Ready")


async def test_a_changed_class_is_not_ready_at_its_old_generation() -> None:
    """AWS-060: what could not be looked at again since the change does not count."""
    world = Classes().stocked()
    await world.create()
    await world.look()
    await world.change({"userData": "echo"})
    world.clock.forward(minutes=2)
    world.ec2.refuse("DescribeSubnets", THROTTLED)
    with pytest.raises(NodeClassReconcileFailed):
        await world.look()
    assert await world.condition("Ready") == ("Unknown", "ReconcilingDependents")


async def test_a_class_that_changes_is_looked_at_and_one_that_goes_too() -> None:
    """AWS-080"""
    world = Classes().stocked()
    made = await world.create()
    await world.see()
    running = asyncio.create_task(world.made.controller.reconciler.run())
    await asyncio.sleep(0)
    world.made.controller.on_node_class(None, made)
    async with asyncio.timeout(20):
        while (await world.condition("Ready"))[0] != "True":
            await world.see()
    woken: list[str] = []
    world.made.controller.reconciler.add = woken.append  # type: ignore[method-assign]
    world.made.controller.on_node_class(made, None)
    world.made.controller.on_node_class(made, made)
    assert woken == ["default", "default"]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
