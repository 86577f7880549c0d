"""Instance profiles of classes (AWS-096 to AWS-099, AWS-120 to AWS-125)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import InstanceProfile, RoleInfo
from karpenter.providers.aws.nodeclass import instance_profiles
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from support.node_class_environment import CLUSTER, NodeClassEnvironment

NO_ROLE = AwsError("NoSuchEntity", "The Role with name nodes cannot be found.", status=404)


async def profile(environment: NodeClassEnvironment) -> str:
    return (await environment.get()).status.instance_profile


async def test_a_role_gets_one_instance_profile() -> None:
    """AWS-T085, AWS-098"""
    environment = NodeClassEnvironment().with_resources()
    made = await environment.create(tags={"team": "a"})
    await environment.reconcile()
    ((name, path, tags),) = environment.iam.asked("CreateInstanceProfile")
    assert name.startswith("shop_")
    assert path == f"/karpenter/us-west-2/shop/{made.metadata.uid}/"
    assert tags == {
        "team": "a",
        "kubernetes.io/cluster/shop": "owned",
        "eks:eks-cluster-name": "shop",
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "topology.kubernetes.io/region": "us-west-2",
    }
    assert environment.iam.asked("AddRoleToInstanceProfile") == [(name, "nodes")]
    assert await profile(environment) == name
    environment.clock.advance(minutes=20)
    await environment.reconcile()
    assert environment.iam.writes() == ["CreateInstanceProfile", "AddRoleToInstanceProfile"]


async def test_another_role_gets_another_instance_profile_and_the_old_one_stays() -> None:
    """AWS-T086, AWS-099"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    old = await profile(environment)
    await environment.claim("c", {"karpenter.k8s.aws/instance-profile-name": old})
    await environment.change({"role": "other"})
    await environment.reconcile()
    new = await profile(environment)
    assert new != old
    assert set(environment.iam.profiles) == {old, new}
    environment.clock.advance(hours=2)
    await environment.sync()
    await environment.made.collector.collect()
    assert set(environment.iam.profiles) == {old, new}


@pytest.mark.parametrize("role", ["nodes", "team/nodes"])
async def test_an_unknown_role_leaves_no_profile_and_is_not_retried_at_once(role: str) -> None:
    """AWS-T087, AWS-120 and its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(role=role)
    environment.iam.refuse("AddRoleToInstanceProfile", NO_ROLE)
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    status, reason = await environment.condition("InstanceProfileReady")
    assert (status, reason) == ("False", "InstanceProfileCreationFailed")
    assert "The Role with name nodes cannot be found" in await environment.message("InstanceProfileReady")
    assert environment.iam.profiles == {}
    writes = list(environment.iam.writes())
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert environment.iam.writes() == writes
    environment.iam.refuse("AddRoleToInstanceProfile", None)
    environment.clock.advance(minutes=1)
    await environment.reconcile()
    assert await environment.condition("InstanceProfileReady") == ("True", "InstanceProfileReady")


async def test_an_instance_profile_whose_name_could_not_be_stored_is_reused() -> None:
    """AWS-T088"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.sync()
    await environment.kube.patch(
        EC2_NODE_CLASS, "default", {"metadata": {"finalizers": ["karpenter.k8s.aws/termination"]}}
    )
    await environment.sync()
    await environment.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"labels": {"a": "b"}}})
    assert await environment.made.controller.reconcile("default") == 0.2
    assert await profile(environment) == ""
    await environment.reconcile()
    assert [await profile(environment)] == list(environment.iam.profiles)


async def test_an_instance_profile_of_the_user_is_only_written_to_the_status() -> None:
    """AWS-T089"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(role=None, instance_profile="mine")
    await environment.reconcile()
    assert await profile(environment) == "mine"
    assert environment.iam.calls == []


async def test_a_role_with_a_path_is_used_by_its_name() -> None:
    """AWS-121, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(role="team/nodes")
    await environment.reconcile()
    environment.clock.advance(minutes=20)
    await environment.reconcile()
    assert len(environment.iam.profiles) == 1
    assert environment.iam.asked("AddRoleToInstanceProfile")[0][1] == "nodes"


async def test_a_deleted_instance_profile_is_created_again() -> None:
    """AWS-097"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    old = await profile(environment)
    environment.iam.profiles.clear()
    environment.clock.advance(minutes=16)
    await environment.reconcile()
    assert [await profile(environment)] == list(environment.iam.profiles) != [old]


async def test_unused_instance_profiles_are_deleted() -> None:
    """AWS-T092, AWS-125"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    used = await profile(environment)
    path = "/karpenter/us-west-2/shop/other/"
    for name in ("left", "annotated"):
        roles = (RoleInfo(role_name="r"),)
        environment.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path, roles=roles)
    environment.iam.profiles["foreign"] = InstanceProfile(
        instance_profile_name="foreign", path="/karpenter/us-west-2/other/x/"
    )
    await environment.claim("c", {"karpenter.k8s.aws/instance-profile-name": "annotated"})
    await environment.sync()
    await environment.made.collector.collect()
    assert set(environment.iam.profiles) == {used, "annotated", "foreign"}


async def test_a_new_instance_profile_is_not_deleted_before_its_class_names_it() -> None:
    """AWS-T092, AWS-099"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.sync()
    await environment.made.controller.reconcile("default")
    # The cluster view still has the class without a profile.
    await environment.made.collector.collect()
    assert len(environment.iam.profiles) == 1


async def test_an_instance_profile_replaced_by_one_of_the_user_is_kept_for_an_hour() -> None:
    """AWS-096"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    old = await profile(environment)
    await environment.change({"role": None, "instanceProfile": "mine"})
    await environment.reconcile()
    await environment.sync()
    await environment.made.collector.collect()
    assert old in environment.iam.profiles
    environment.clock.advance(minutes=61)
    await environment.made.collector.collect()
    assert old not in environment.iam.profiles


async def test_an_instance_profile_that_cannot_be_deleted_does_not_stop_the_others() -> None:
    """AWS-125"""
    environment = NodeClassEnvironment()
    path = "/karpenter/us-west-2/shop/x/"
    for name in ("a", "b"):
        environment.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path)
    refusal = AwsError("DeleteConflict", "still in use", status=409)
    environment.iam.refusals["DeleteInstanceProfile"] = lambda name: refusal if name == "a" else None
    await environment.made.collector.collect()
    assert set(environment.iam.profiles) == {"a"}


async def test_invalid_instance_profile_names_are_not_requested() -> None:
    """AWS-124"""
    node_class = await NodeClassEnvironment().create()
    assert instance_profiles.legacy_profile_name(CLUSTER, node_class) == "shop_" + str(
        instance_profiles._fnv("us-west-2default")
    )
    long = CLUSTER.__class__("s" * 120, "us-west-2", "", "", "1.32")
    assert instance_profiles.legacy_profile_name(long, node_class) == ""


@pytest.mark.parametrize(
    ("cluster", "begin"), [("shop", "shop_"), ("our shop: prod/1", "our-shop--prod-1_"), ("s" * 200, "ss")]
)
async def test_every_cluster_name_gives_a_valid_instance_profile_name(cluster: str, begin: str) -> None:
    """AWS-943: tags allow characters that names of profiles do not."""
    node_class = await NodeClassEnvironment().create()
    name = instance_profiles._profile_name(replace(CLUSTER, name=cluster), node_class, "unique")
    assert re.fullmatch(r"[\w+=,.@-]{1,128}", name, re.ASCII)
    assert name.startswith(begin)
    assert name.rpartition("_")[2].isdigit()


def test_the_hash_of_old_names_is_fnv() -> None:
    """Published test vectors of FNV-1, 64 bits."""
    assert instance_profiles._fnv("") == 0xCBF29CE484222325
    assert instance_profiles._fnv("a") == 0xAF63BD4C8601B7BE
    assert instance_profiles._fnv("foobar") == 0x340D8765A4DDA9C2
