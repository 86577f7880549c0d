"""The end of a class (AWS-123, AWS-124, API-376)."""

from __future__ import annotations

import pytest

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import InstanceProfile, tag_list
from karpenter.providers.aws.ec2_requests import LaunchTemplate
from karpenter.providers.aws.nodeclass import instance_profiles
from support.ec2_classes import CLUSTER, Classes

OURS = {"eks:eks-cluster-name": "shop", "karpenter.k8s.aws/ec2nodeclass": "default"}


def template(name: str, **tagged: str) -> LaunchTemplate:
    return LaunchTemplate(launch_template_id=f"lt-{name}", launch_template_name=name, tags=tag_list({**OURS, **tagged}))


async def ready(world: Classes) -> EC2NodeClass:
    await world.create()
    await world.look()
    world.ec2.templates = [
        template("a"),
        template("b"),
        template("c", **{"karpenter.k8s.aws/ec2nodeclass": "other"}),
        template("d", **{"eks:eks-cluster-name": "other"}),
    ]
    return await world.get()


async def exists(world: Classes) -> bool:
    try:
        await world.get()
    except NotFound:
        return False
    return True


async def test_a_class_waits_for_its_instances_and_names_five_of_them() -> None:
    """AWS-T090, AWS-123, API-S176, OPS-544: it goes after the last claim."""
    world = Classes().stocked()
    await ready(world)
    for number in range(7):
        await world.claim(f"c{number}")
    await world.kube.delete(EC2_NODE_CLASS, "default")
    assert await world.look() == 600
    assert world.recorder.of("WaitingOnNodeClaimTermination") == [
        "Waiting on NodeClaim termination for c0, c1, c2, c3, c4 and 2 other(s)"
    ]
    assert len(world.iam.profiles) == 1
    for number in range(7):
        await world.kube.delete(NODE_CLAIM, f"c{number}")
    assert await world.look() is None
    assert not await exists(world)
    assert world.iam.profiles == {}
    assert [launch_template.launch_template_name for launch_template in world.ec2.templates] == ["c", "d"]
    assert world.gone == ["default"]


async def test_a_class_that_is_waiting_has_conditions_of_its_present_generation() -> None:
    """AWS-060, API-605"""
    world = Classes().stocked()
    await ready(world)
    await world.claim("c")
    await world.kube.delete(EC2_NODE_CLASS, "default")
    await world.look()
    node_class = await world.get()
    assert {condition.observed_generation for condition in node_class.status.conditions} == {
        node_class.metadata.generation
    }


async def test_a_template_that_cannot_be_deleted_keeps_the_class() -> None:
    """AWS-T091"""
    world = Classes().stocked()
    await ready(world)
    await world.kube.delete(EC2_NODE_CLASS, "default")
    world.ec2.refuse("DeleteLaunchTemplate", AwsError("UnauthorizedOperation", "no", status=403))
    with pytest.raises(AwsError):
        await world.look()
    assert await exists(world)
    world.ec2.refuse("DeleteLaunchTemplate", AwsError("InvalidLaunchTemplateId.NotFound", "gone", status=400))
    await world.look()
    assert not await exists(world)


async def test_all_profiles_of_a_class_go_with_it_also_one_of_an_early_version() -> None:
    """AWS-124"""
    world = Classes().stocked()
    node_class = await ready(world)
    legacy = instance_profiles.legacy_profile_name(CLUSTER, node_class)
    for name, path in (
        ("older", instance_profiles.node_class_profile_path(CLUSTER, node_class)),
        (legacy, "/"),
        ("foreign", "/"),
    ):
        world.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path)
    await world.kube.delete(EC2_NODE_CLASS, "default")
    await world.look()
    assert set(world.iam.profiles) == {"foreign"}


async def test_in_an_isolated_vpc_profiles_are_left_alone() -> None:
    """AWS-004"""
    world = Classes(isolated_vpc=True).stocked()
    await ready(world)
    before = len(world.iam.calls)
    await world.kube.delete(EC2_NODE_CLASS, "default")
    await world.look()
    assert not await exists(world)
    assert len(world.iam.calls) == before


async def test_the_claim_of_another_class_is_not_waited_for() -> None:
    world = Classes().stocked()
    await ready(world)
    await world.create("other")
    await world.claim("c")
    await world.look("other")
    await world.kube.delete(EC2_NODE_CLASS, "other")
    assert await world.look("other") is None


async def test_the_end_of_a_claim_wakes_the_look_at_its_class() -> None:
    """AWS-080"""
    world = Classes().stocked()
    claim = await world.claim("c")
    woken: list[str] = []
    world.made.controller.reconciler.add = woken.append  # type: ignore[method-assign]
    world.made.controller.on_claim(None, claim)
    world.made.controller.on_claim(claim, claim)
    assert woken == []
    world.made.controller.on_claim(claim, None)
    assert woken == ["default"]
