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
from support.ec2_classes import CLUSTER, Classes

NO_ROLE = AwsError("NoSuchEntity", "The Role with name nodes cannot be found.", status=404)


async def profile(world: Classes) -> str:
    return (await world.get()).status.instance_profile


async def test_a_role_gets_a_profile_of_its_own_once() -> None:
    """AWS-T085, AWS-098"""
    world = Classes().stocked()
    made = await world.create(tags={"team": "a"})
    await world.look()
    ((name, path, tags),) = world.iam.asked("CreateInstanceProfile")
    assert name.startswith("shop_")
    assert path == f"/karpenter/us-west-2/shop/{made.metadata.uid}/"
    assert tags == {
        "team": "a",
        "kubernetes.io/cluster/shop": "owned",
        "eks:eks-cluster-name": "shop",
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "topology.kubernetes.io/region": "us-west-2",
    }
    assert world.iam.asked("AddRoleToInstanceProfile") == [(name, "nodes")]
    assert await profile(world) == name
    world.clock.forward(minutes=20)
    await world.look()
    assert world.iam.writes() == ["CreateInstanceProfile", "AddRoleToInstanceProfile"]


async def test_another_role_gets_another_profile_and_the_old_one_stays() -> None:
    """AWS-T086, AWS-099"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    old = await profile(world)
    await world.claim("c", {"karpenter.k8s.aws/instance-profile-name": old})
    await world.change({"role": "other"})
    await world.look()
    new = await profile(world)
    assert new != old
    assert set(world.iam.profiles) == {old, new}
    world.clock.forward(hours=2)
    await world.see()
    await world.made.collector.collect()
    assert set(world.iam.profiles) == {old, new}


@pytest.mark.parametrize("role", ["nodes", "team/nodes"])
async def test_a_role_iam_does_not_know_leaves_nothing_and_is_not_tried_again_at_once(role: str) -> None:
    """AWS-T087, AWS-120 and its Beyond"""
    world = Classes().stocked()
    await world.create(role=role)
    world.iam.refuse("AddRoleToInstanceProfile", NO_ROLE)
    with pytest.raises(NodeClassReconcileFailed):
        await world.look()
    status, reason = await world.condition("InstanceProfileReady")
    assert (status, reason) == ("False", "InstanceProfileCreationFailed")
    assert "The Role with name nodes cannot be found" in await world.message("InstanceProfileReady")
    assert world.iam.profiles == {}
    writes = list(world.iam.writes())
    with pytest.raises(NodeClassReconcileFailed):
        await world.look()
    assert world.iam.writes() == writes
    world.iam.refuse("AddRoleToInstanceProfile", None)
    world.clock.forward(minutes=1)
    await world.look()
    assert await world.condition("InstanceProfileReady") == ("True", "InstanceProfileReady")


async def test_a_profile_whose_name_could_not_be_written_down_is_used_all_the_same() -> None:
    """AWS-T088"""
    world = Classes().stocked()
    await world.create()
    await world.see()
    await world.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"finalizers": ["karpenter.k8s.aws/termination"]}})
    await world.see()
    await world.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"labels": {"a": "b"}}})
    assert await world.made.controller.reconcile("default") == 0.2
    assert await profile(world) == ""
    await world.look()
    assert [await profile(world)] == list(world.iam.profiles)


async def test_a_profile_of_the_users_is_only_written_down() -> None:
    """AWS-T089"""
    world = Classes().stocked()
    await world.create(role=None, instance_profile="mine")
    await world.look()
    assert await profile(world) == "mine"
    assert world.iam.calls == []


async def test_a_role_with_a_path_is_the_role_of_its_name() -> None:
    """AWS-121, its Beyond"""
    world = Classes().stocked()
    await world.create(role="team/nodes")
    await world.look()
    world.clock.forward(minutes=20)
    await world.look()
    assert len(world.iam.profiles) == 1
    assert world.iam.asked("AddRoleToInstanceProfile")[0][1] == "nodes"


async def test_a_profile_somebody_deleted_is_made_again() -> None:
    """AWS-097"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    old = await profile(world)
    world.iam.profiles.clear()
    world.clock.forward(minutes=16)
    await world.look()
    assert [await profile(world)] == list(world.iam.profiles) != [old]


async def test_profiles_nobody_refers_to_are_collected() -> None:
    """AWS-T092, AWS-125"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    used = await profile(world)
    path = "/karpenter/us-west-2/shop/other/"
    for name in ("left", "annotated"):
        roles = (RoleInfo(role_name="r"),)
        world.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path, roles=roles)
    world.iam.profiles["foreign"] = InstanceProfile(
        instance_profile_name="foreign", path="/karpenter/us-west-2/other/x/"
    )
    await world.claim("c", {"karpenter.k8s.aws/instance-profile-name": "annotated"})
    await world.see()
    await world.made.collector.collect()
    assert set(world.iam.profiles) == {used, "annotated", "foreign"}


async def test_a_profile_made_a_moment_ago_is_not_collected_though_no_class_shows_it_yet() -> None:
    """AWS-T092, AWS-099"""
    world = Classes().stocked()
    await world.create()
    await world.see()
    await world.made.controller.reconcile("default")
    # The watches still show the class without a profile.
    await world.made.collector.collect()
    assert len(world.iam.profiles) == 1


async def test_the_profile_before_one_of_the_users_is_kept_for_an_hour() -> None:
    """AWS-096"""
    world = Classes().stocked()
    await world.create()
    await world.look()
    old = await profile(world)
    await world.change({"role": None, "instanceProfile": "mine"})
    await world.look()
    await world.see()
    await world.made.collector.collect()
    assert old in world.iam.profiles
    world.clock.forward(minutes=61)
    await world.made.collector.collect()
    assert old not in world.iam.profiles


async def test_one_profile_that_cannot_be_deleted_keeps_no_other() -> None:
    """AWS-125"""
    world = Classes()
    path = "/karpenter/us-west-2/shop/x/"
    for name in ("a", "b"):
        world.iam.profiles[name] = InstanceProfile(instance_profile_name=name, path=path)
    refusal = AwsError("DeleteConflict", "still in use", status=409)
    world.iam.refusals["DeleteInstanceProfile"] = lambda name: refusal if name == "a" else None
    await world.made.collector.collect()
    assert set(world.iam.profiles) == {"a"}


async def test_names_no_profile_can_have_are_not_asked_for() -> None:
    """AWS-124"""
    node_class = await Classes().create()
    assert instance_profiles.legacy_profile_name(CLUSTER, node_class) == "shop_" + str(
        instance_profiles._fnv("us-west-2default")
    )
    long = CLUSTER.__class__("s" * 120, "us-west-2", "", "", "1.32")
    assert instance_profiles.legacy_profile_name(long, node_class) == ""


@pytest.mark.parametrize(
    ("cluster", "begin"), [("shop", "shop_"), ("our shop: prod/1", "our-shop--prod-1_"), ("s" * 200, "ss")]
)
async def test_a_profile_can_be_made_for_every_name_of_a_cluster(cluster: str, begin: str) -> None:
    """AWS-943: tags take characters that names of profiles do not."""
    node_class = await Classes().create()
    name = instance_profiles._profile_name(replace(CLUSTER, name=cluster), node_class, "unique")
    assert re.fullmatch(r"[\w+=,.@-]{1,128}", name, re.ASCII)
    assert name.startswith(begin)
    assert name.rpartition("_")[2].isdigit()


def test_the_hash_of_old_names_is_fnv() -> None:
    """Published test vectors of FNV-1, 64 bits."""
    assert instance_profiles._fnv("") == 0xCBF29CE484222325
    assert instance_profiles._fnv("a") == 0xAF63BD4C8601B7BE
    assert instance_profiles._fnv("foobar") == 0x340D8765A4DDA9C2
