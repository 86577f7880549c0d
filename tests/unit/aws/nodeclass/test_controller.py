"""The reconcile of an EC2NodeClass (AWS-080 to AWS-084, AWS-056 to AWS-060)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from karpenter.api.ec2_node_class import SubnetSelectorTerm
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.model import conditions
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION, HASH_VERSION_ANNOTATION
from support.fake_node_class_services import THROTTLED
from support.node_class_environment import NodeClassEnvironment

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


async def test_a_class_whose_selectors_all_match_becomes_ready() -> None:
    """AWS-T080, AWS-081, AWS-083, AWS-572. AWS-063: the class gets its finalizer. API-375: all conditions are there."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    again = await environment.reconcile()
    node_class = await environment.get()
    assert node_class.metadata.finalizers == ("karpenter.k8s.aws/termination",)
    assert {condition.type: condition.status for condition in node_class.status.conditions} == dict.fromkeys(
        ALL, "True"
    )
    assert node_class.status.conditions[-1].type == "Ready"
    assert node_class.metadata.annotations[HASH_VERSION_ANNOTATION] == HASH_VERSION
    assert node_class.metadata.annotations[HASH_ANNOTATION].isdigit()
    assert again == 60


async def test_a_reconcile_without_changes_writes_nothing_and_makes_no_call() -> None:
    """AWS-083, AWS-143, AWS-109"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    before = await environment.get()
    calls = len(environment.ec2.calls), len(environment.iam.calls)
    await environment.reconcile()
    assert await environment.get() == before
    assert (len(environment.ec2.calls), len(environment.iam.calls)) == calls


async def test_the_root_condition_names_what_is_missing_newest_first() -> None:
    """AWS-T081, AWS-060; API-S175, API-663: without a subnet the class is not Ready."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(subnet_selector_terms=(SubnetSelectorTerm(tags={"no": "such"}),))
    await environment.reconcile()
    assert await environment.condition("SubnetsReady") == ("False", "SubnetsNotFound")
    assert await environment.condition("ValidationSucceeded") == ("False", "DependenciesNotReady")
    assert await environment.condition("Ready") == ("False", "UnhealthyDependents")
    assert set((await environment.message("Ready")).split(", ")) == {"SubnetsReady=False", "ValidationSucceeded=False"}


async def test_a_failed_subreconciler_keeps_its_condition_and_does_not_stop_the_others() -> None:
    """AWS-082, AWS-084. API-664: without a security group SecurityGroupsReady is False."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    environment.ec2.refuse("DescribeSubnets", THROTTLED)
    environment.ec2.groups = []
    environment.clock.advance(minutes=6)
    with pytest.raises(NodeClassReconcileFailed, match="RequestLimitExceeded"):
        await environment.reconcile()
    node_class = await environment.get()
    assert await environment.condition("SubnetsReady") == ("True", "SubnetsReady")
    assert len(node_class.status.subnets) == 2
    assert await environment.condition("SecurityGroupsReady") == ("False", "SecurityGroupsNotFound")


async def test_a_concurrent_change_is_not_overwritten_but_reconciled_again_soon() -> None:
    """AWS-083"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.sync()
    await environment.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"labels": {"a": "b"}}})
    again = await environment.made.controller.reconcile("default")
    assert again is not None
    assert again < 1
    assert (await environment.get()).status.conditions == ()


async def test_a_missing_class_is_not_reconciled() -> None:
    environment = NodeClassEnvironment()
    assert await environment.reconcile("nobody") is None
    assert environment.ec2.calls == []


async def test_without_the_gate_there_is_no_condition_of_reservations() -> None:
    """AWS-058"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    assert (
        conditions.find_condition((await environment.get()).status.conditions, "CapacityReservationsReady") is not None
    )
    again = NodeClassEnvironment(reserved_capacity=False)
    again.kube, again.ec2, again.iam = environment.kube, environment.ec2, environment.iam
    again.made = again.restarted()
    await again.reconcile()
    node_class = await again.get()
    assert conditions.find_condition(node_class.status.conditions, "CapacityReservationsReady") is None
    assert await again.condition("Ready") == ("True", "Ready")


async def test_a_changed_class_is_not_ready_at_its_old_generation() -> None:
    """AWS-060: conditions from before the change do not count."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    await environment.change({"userData": "echo"})
    environment.clock.advance(minutes=2)
    environment.ec2.refuse("DescribeSubnets", THROTTLED)
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert await environment.condition("Ready") == ("Unknown", "ReconcilingDependents")


async def test_changed_and_deleted_classes_are_reconciled() -> None:
    """AWS-080"""
    environment = NodeClassEnvironment().with_resources()
    made = await environment.create()
    await environment.sync()
    running = asyncio.create_task(environment.made.controller.reconciler.run())
    await asyncio.sleep(0)
    environment.made.controller.on_node_class(None, made)
    async with asyncio.timeout(20):
        while (await environment.condition("Ready"))[0] != "True":
            await environment.sync()
    woken: list[str] = []
    environment.made.controller.reconciler.add = woken.append
    environment.made.controller.on_node_class(made, None)
    environment.made.controller.on_node_class(made, made)
    assert woken == ["default", "default"]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
