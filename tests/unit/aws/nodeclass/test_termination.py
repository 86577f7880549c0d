"""Deletion of a class (AWS-123, AWS-124, API-376)."""

from __future__ import annotations

import pytest

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import InstanceProfile, tag_list
from karpenter.providers.aws.ec2_requests import LaunchTemplate
from karpenter.providers.aws.nodeclass import instance_profiles
from support.node_class_environment import CLUSTER, NodeClassEnvironment

OURS = {"eks:eks-cluster-name": "shop", "karpenter.k8s.aws/ec2nodeclass": "default"}


def template(name: str, **tagged: str) -> LaunchTemplate:
    return LaunchTemplate(launch_template_id=f"lt-{name}", launch_template_name=name, tags=tag_list({**OURS, **tagged}))


async def ready(environment: NodeClassEnvironment) -> EC2NodeClass:
    await environment.create()
    await environment.reconcile()
    environment.ec2.templates = [
        template("a"),
        template("b"),
        template("c", **{"karpenter.k8s.aws/ec2nodeclass": "other"}),
        template("d", **{"eks:eks-cluster-name": "other"}),
    ]
    return await environment.get()


async def exists(environment: NodeClassEnvironment) -> bool:
    try:
        await environment.get()
    except NotFound:
        return False
    return True


async def test_a_deleted_class_waits_for_its_claims_and_names_five_of_them() -> None:
    """AWS-T090, AWS-123, API-S176, OPS-544: it is deleted after the last NodeClaim."""
    environment = NodeClassEnvironment().with_resources()
    await ready(environment)
    for number in range(7):
        await environment.claim(f"c{number}")
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    assert await environment.reconcile() == 600
    assert environment.recorder.of("WaitingOnNodeClaimTermination") == [
        "Waiting on NodeClaim termination for c0, c1, c2, c3, c4 and 2 other(s)"
    ]
    assert len(environment.iam.profiles) == 1
    for number in range(7):
        await environment.kube.delete(NODE_CLAIM, f"c{number}")
    assert await environment.reconcile() is None
    assert not await exists(environment)
    assert environment.iam.profiles == {}
    assert [launch_template.launch_template_name for launch_template in environment.ec2.templates] == ["c", "d"]
    assert environment.gone == ["default"]


async def test_a_deleted_class_that_waits_has_conditions_of_its_current_generation() -> None:
    """AWS-060, API-605"""
    environment = NodeClassEnvironment().with_resources()
    await ready(environment)
    await environment.claim("c")
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    await environment.reconcile()
    node_class = await environment.get()
    assert {condition.observed_generation for condition in node_class.status.conditions} == {
        node_class.metadata.generation
    }


async def test_a_launch_template_that_cannot_be_deleted_keeps_the_class() -> None:
    """AWS-T091"""
    environment = NodeClassEnvironment().with_resources()
    await ready(environment)
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    environment.ec2.refuse("DeleteLaunchTemplate", AwsError("UnauthorizedOperation", "no", status=403))
    with pytest.raises(AwsError):
        await environment.reconcile()
    assert await exists(environment)
    environment.ec2.refuse("DeleteLaunchTemplate", AwsError("InvalidLaunchTemplateId.NotFound", "gone", status=400))
    await environment.reconcile()
    assert not await exists(environment)


async def test_all_instance_profiles_of_a_class_are_deleted_with_it() -> None:
    """AWS-124"""
    environment = NodeClassEnvironment().with_resources()
    node_class = await ready(environment)
    legacy = instance_profiles.legacy_profile_name(CLUSTER, node_class)
    for name, path in (
        ("older", instance_profiles.node_class_profile_path(CLUSTER, node_class)),
        (legacy, "/"),
        ("foreign", "/"),
    ):
        environment.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path)
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    await environment.reconcile()
    assert set(environment.iam.profiles) == {"foreign"}


async def test_in_an_isolated_vpc_instance_profiles_are_not_deleted() -> None:
    """AWS-004"""
    environment = NodeClassEnvironment(isolated_vpc=True).with_resources()
    await ready(environment)
    before = len(environment.iam.calls)
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    await environment.reconcile()
    assert not await exists(environment)
    assert len(environment.iam.calls) == before


async def test_a_deleted_class_does_not_wait_for_claims_of_others() -> None:
    environment = NodeClassEnvironment().with_resources()
    await ready(environment)
    await environment.create("other")
    await environment.claim("c")
    await environment.reconcile("other")
    await environment.kube.delete(EC2_NODE_CLASS, "other")
    assert await environment.reconcile("other") is None


async def test_the_deletion_of_a_claim_reconciles_its_class() -> None:
    """AWS-080"""
    environment = NodeClassEnvironment().with_resources()
    claim = await environment.claim("c")
    woken: list[str] = []
    environment.made.controller.reconciler.add = woken.append
    environment.made.controller.on_claim(None, claim)
    environment.made.controller.on_claim(claim, claim)
    assert woken == []
    environment.made.controller.on_claim(claim, None)
    assert woken == ["default"]
