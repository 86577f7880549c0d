"""Dry runs of launches: which calls are tried for a class, with which types, and what their answers mean (AWS §3.6)."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from karpenter.api.karpenter import NodeClaimTemplateMeta
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_catalog as catalogue
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import dry_run_candidates
from karpenter.providers.contract import LaunchFailed
from support.builders import node_pool, wanted
from support.class_validation import TRIED, VALID, judged, tried, verdict
from support.ec2_class_services import THROTTLED, UNAUTHORIZED
from support.ec2_classes import REFERENCE, TYPES, Classes

CAPACITY_TYPE, TENANCY = "karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-tenancy"


async def test_every_call_of_a_launch_is_tried_and_nothing_is_left() -> None:
    """AWS-115 to AWS-119, AWS-128, AWS-446, AWS-721; K15-A97: a reboot is none of them."""
    world = Classes().stocked()
    assert await judged(world, tags={"team": "a"}) == VALID
    assert tried(world) == ["CreateLaunchTemplate", "CreateFleet", "RunInstances"]
    ((name, data, own),) = world.ec2.asked("CreateLaunchTemplate")
    assert world.ec2.templates == []
    ours = {
        "team": "a",
        "kubernetes.io/cluster/shop": "owned",
        "karpenter.sh/nodepool": "",
        "eks:eks-cluster-name": "shop",
        "karpenter.k8s.aws/ec2nodeclass": "default",
    }
    assert tag_map(own.tags) == ours
    (fleet,) = world.ec2.asked("CreateFleet")
    (config,) = fleet.launch_template_configs
    assert config.launch_template_specification.launch_template_name == name
    overrides = config.overrides
    assert [(override.instance_type, override.subnet_id) for override in overrides] == [
        ("m5.large", "subnet-b"),
        ("m5.large", "subnet-a"),
    ]
    assert {tag_specification.resource_type for tag_specification in fleet.tag_specifications} == {
        "instance",
        "volume",
        "fleet",
    }
    (machine,) = world.ec2.asked("RunInstances")
    assert machine.subnet_id == "subnet-b"
    assert machine.template.launch_template_name == name
    assert (machine.data.user_data, machine.data.network_interfaces) == ("", data.network_interfaces)
    tagged = {
        tag_specification.resource_type: tag_map(tag_specification.tags)
        for tag_specification in machine.data.tag_specifications
    }
    batch = {"karpenter.k8s.aws/launch-batch": "dry-run"}
    assert tagged == {"instance": ours | batch, "volume": ours, "network-interface": ours}
    fleet_tags = {
        specification.resource_type: tag_map(specification.tags) for specification in fleet.tag_specifications
    }
    assert fleet_tags == {"instance": ours | batch, "volume": ours, "fleet": ours}


async def test_dry_runs_carry_the_tags_of_a_launch_for_the_pool_with_the_most_to_write() -> None:
    """E25: a policy may judge tags, and EC2 limits user data, to which labels and taints belong."""
    world = Classes().stocked()
    small, large = (replace(pool(), metadata=ObjectMeta(name=name)) for name in ("small", "large"))
    template = replace(large.spec.template, metadata=NodeClaimTemplateMeta(labels={"team": "a" * 60}))
    large = replace(large, spec=replace(large.spec, template=template))
    for stored in (small, large):
        await world.kube.create(NODE_POOL, stored)
    assert await judged(world) == VALID
    (fleet, *_) = world.ec2.asked("CreateFleet")
    assert {tag_map(specification.tags)["karpenter.sh/nodepool"] for specification in fleet.tag_specifications} == {
        "large"
    }


async def test_a_spot_instance_is_tried_as_one() -> None:
    """AWS-116, its Beyond, and AWS-128: EC2 takes tags of spot requests only in a request for a spot instance."""
    world = Classes().stocked()
    await world.create()
    await world.kube.create(NODE_POOL, pool())
    await world.look()
    on_demand, spot = (trial.data for trial in world.ec2.asked("RunInstances"))
    assert on_demand.instance_market_options is None
    assert spot.instance_market_options.market_type == "spot"
    kinds = [{tagged.resource_type for tagged in data.tag_specifications} for data in (on_demand, spot)]
    assert kinds[1] - kinds[0] == {"spot-instances-request"}


async def test_a_template_that_was_left_behind_is_used_and_deleted() -> None:
    """AWS-115, its Beyond: equal content has an equal name, so nothing is left after the next run."""
    world = Classes().stocked()
    world.ec2.refuse("DeleteLaunchTemplate", THROTTLED)
    assert await judged(world) == VALID
    assert len(world.ec2.templates) == 1
    world.ec2.refuse("DeleteLaunchTemplate", None)
    world.clock.forward(minutes=30)
    await world.look()
    assert await verdict(world) == VALID
    assert world.ec2.templates == []


async def test_without_a_template_the_other_permissions_are_tried_all_the_same() -> None:
    """AWS-116, its Beyond: one missing permission does not hide another."""
    world = Classes().stocked()
    world.ec2.refuse("CreateLaunchTemplate", UNAUTHORIZED)
    assert await judged(world) == ("False", "CreateLaunchTemplateAuthCheckFailed")
    (trial,) = world.ec2.asked("RunInstances")
    assert trial.template is None
    assert trial.data.image_id == "ami-1"
    calls = len(world.ec2.calls)
    await world.look()
    assert len(world.ec2.calls) == calls


async def test_dry_runs_leave_the_batch_tag_out_where_launches_do() -> None:
    """E25: an organization may list the tag keys it allows."""
    world = Classes(launch_batch_tag=False).stocked()
    assert await judged(world) == VALID
    (fleet,) = world.ec2.asked("CreateFleet")
    keys = {key for specification in fleet.tag_specifications for key in tag_map(specification.tags)}
    assert "karpenter.k8s.aws/launch-batch" not in keys


async def test_a_missing_permission_is_told_and_not_asked_for_again_until_the_class_changes() -> None:
    """AWS-T093, AWS-109, AWS-126"""
    world = Classes().stocked()
    world.ec2.refuse("CreateFleet", UNAUTHORIZED)
    assert await judged(world) == ("False", "CreateFleetAuthCheckFailed")
    message = await world.message("ValidationSucceeded")
    assert message.startswith(
        "Controller isn't authorized to call ec2:CreateFleet: no policy allows it: UnauthorizedOperation"
    )
    calls = len(world.ec2.calls)
    await world.look()
    assert len(world.ec2.calls) == calls
    world.ec2.refuse("CreateFleet", None)
    await world.change({"userData": "echo"})
    await world.look()
    assert await verdict(world) == VALID


@pytest.mark.parametrize(("drawn", "minutes"), [(0.0, 25), (0.5, 30), (1.0, 35)])
async def test_verdicts_are_asked_for_again_after_about_half_an_hour(drawn: float, minutes: int) -> None:
    """AWS-109, K15-A14: each process draws its own time, 25 to 35 minutes, and keeps it."""
    world = Classes()
    world.drawn = drawn
    world.made = world.restarted()
    world = world.stocked()
    world.ec2.refuse("CreateFleet", UNAUTHORIZED)
    await judged(world)
    world.ec2.refuse("CreateFleet", None)
    world.clock.forward(minutes=minutes - 1)
    await world.look()
    assert await verdict(world) == ("False", "CreateFleetAuthCheckFailed")
    world.clock.forward(minutes=1)
    await world.look()
    assert await verdict(world) == VALID


async def test_one_missing_permission_does_not_hide_another() -> None:
    """AWS-116, its Beyond"""
    world = Classes().stocked()
    for call in TRIED:
        world.ec2.refuse(call, UNAUTHORIZED)
    assert await judged(world) == ("False", "CreateLaunchTemplateAuthCheckFailed")
    message = await world.message("ValidationSucceeded")
    assert all(f"ec2:{call}" in message for call in TRIED)


async def test_one_subnet_that_works_is_enough() -> None:
    """AWS-T094"""
    world = Classes().stocked()
    world.ec2.refusals["RunInstances"] = lambda trial: UNAUTHORIZED if trial.subnet_id == "subnet-b" else None
    assert await judged(world) == VALID
    assert [trial.subnet_id for trial in world.ec2.asked("RunInstances")] == ["subnet-b", "subnet-a"]


async def test_the_first_subnet_speaks_for_all_that_do_not_work() -> None:
    """AWS-117"""
    world = Classes().stocked()
    other = AwsError("InvalidSubnetID.NotFound", "gone", status=400)
    world.ec2.refusals["RunInstances"] = lambda trial: UNAUTHORIZED if trial.subnet_id == "subnet-b" else other
    assert await judged(world) == ("False", "RunInstancesAuthCheckFailed")


NO_PROFILE = AwsError(
    "InvalidParameterValue",
    "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    status=400,
)


async def test_a_new_profile_ec2_does_not_know_yet_is_waited_for() -> None:
    """AWS-T095, AWS-118"""
    world = Classes().stocked()
    world.ec2.refuse("RunInstances", NO_PROFILE)
    await world.create()
    assert await world.look() == 5
    assert await verdict(world) == ("Unknown", "AwaitingReconciliation")
    world.ec2.refuse("RunInstances", None)
    await world.look()
    assert await verdict(world) == VALID
    assert tried(world).count("CreateFleet") == 1


async def test_a_profile_of_the_users_that_does_not_exist_is_told_and_tried_again() -> None:
    """AWS-118"""
    world = Classes().stocked()
    world.ec2.refuse("RunInstances", NO_PROFILE)
    await world.create(role=None, instance_profile="mine")
    assert await world.look() == 5
    assert await verdict(world) == ("False", "InstanceProfileNotFound")
    world.ec2.refuse("RunInstances", None)
    await world.look()
    assert await verdict(world) == VALID


@pytest.mark.parametrize("call", TRIED)
async def test_throttling_changes_no_verdict(call: str) -> None:
    """AWS-T096"""
    world = Classes().stocked()
    await judged(world)
    await world.change({"userData": "echo"})
    world.ec2.refuse(call, THROTTLED)
    assert await world.look() == 5
    assert await verdict(world) == VALID
    assert await world.condition("Ready") == ("Unknown", "ReconcilingDependents")
    world.ec2.refuse(call, None)
    await world.look()
    assert await world.condition("Ready") == ("True", "Ready")


@pytest.mark.parametrize("call", ["CreateLaunchTemplate", "RunInstances"])
async def test_what_says_nothing_about_permissions_is_an_error(call: str) -> None:
    """AWS-115, AWS-117"""
    world = Classes().stocked()
    world.ec2.refuse(call, AwsError("InvalidParameterValue", "what?", status=400))
    await world.create()
    with pytest.raises(NodeClassReconcileFailed, match="what"):
        await world.look()
    assert await verdict(world) == ("Unknown", "AwaitingReconciliation")


async def test_a_fleet_that_is_refused_for_its_template_is_no_missing_permission() -> None:
    """AWS-116: EC2 may not know a template yet that it has just made. The verdict says so and is not kept."""
    world = Classes().stocked()
    world.ec2.refuse("CreateFleet", AwsError("InvalidLaunchTemplateName.NotFoundException", "no such", status=400))
    assert await judged(world) == VALID
    assert await world.message("ValidationSucceeded") == (
        "dry runs that prove nothing: ec2:CreateFleet (InvalidLaunchTemplateName.NotFoundException)"
    )
    world.ec2.refuse("CreateFleet", None)
    await world.look()
    assert await world.message("ValidationSucceeded") == ""


async def test_with_dry_runs_off_a_class_is_valid_without_any() -> None:
    """AWS-T104, AWS-110"""
    world = Classes(disable_dry_run=True).stocked()
    assert await judged(world) == VALID
    assert tried(world) == []


@pytest.mark.parametrize(("size", "expected"), [(16385, ("False", "UserDataSizeLimitExceeded")), (16384, VALID)])
async def test_user_data_ec2_would_not_take_is_told(size: int, expected: tuple[str, str]) -> None:
    """AWS-T237, AWS-115"""
    world = Classes().stocked()
    world.user_data = b64encode(b"x" * size).decode()
    assert await judged(world) == expected


async def test_what_the_template_cannot_say_is_told_in_its_own_words() -> None:
    world = Classes().stocked()

    def refusing(*_: Any) -> Any:
        raise LaunchFailed("InvalidUserData", "userData: is not TOML")

    world.template_data = refusing  # type: ignore[method-assign]
    assert await judged(world) == ("False", "InvalidUserData")
    assert await world.message("ValidationSucceeded") == "userData: is not TOML"


async def test_images_no_type_fits_are_told() -> None:
    world = Classes().stocked()
    world.types = tuple(instance_type for instance_type in TYPES if instance_type.name == "m6g.large")
    assert await judged(world) == ("False", "NoCompatibleInstanceTypes")
    assert await world.message("ValidationSucceeded") == "no instance type fits the images of the class (ami-1)"


async def test_the_hash_of_a_class_is_no_reason_to_try_it_again() -> None:
    """AWS-109: it is written by the first look itself."""
    world = Classes().stocked()
    await judged(world)
    await world.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"annotations": {"mine": "1"}}})
    before = len(tried(world))
    await world.look()
    assert len(tried(world)) == 2 * before


async def test_a_class_made_again_under_its_name_is_tried_again() -> None:
    """AWS-124"""
    world = Classes(isolated_vpc=True).stocked()
    await judged(world, role=None, instance_profile="mine")
    before = len(tried(world))
    await world.kube.delete(EC2_NODE_CLASS, "default")
    await world.look()
    await judged(world, role=None, instance_profile="mine")
    assert len(tried(world)) == 2 * before


def pool(*requirements: Any) -> Any:
    made = node_pool(requirements=requirements)
    template = made.spec.template
    own = replace(template, spec=replace(template.spec, node_class_ref=REFERENCE))
    return replace(made, spec=replace(made.spec, template=own))


async def chosen(pools: list[Any], world: Classes, fits: Any = lambda *_: True) -> list[tuple[str, str, str]]:
    """Types, ways to buy them and tenancies that are tried for the class as it was found."""
    await world.look()
    result = dry_run_candidates(await world.get(), pools, world.types, fits)
    return [
        (dry_run_candidate.instance_type.name, dry_run_candidate.capacity_type, dry_run_candidate.tenancy)
        for dry_run_candidate in result
    ]


def on_demand(*more: Any) -> Any:
    return pool(wanted(CAPACITY_TYPE, "In", "on-demand"), *more)


def of_type(*names: str) -> Any:
    return wanted("node.kubernetes.io/instance-type", "In", *names)


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        pytest.param([], [("m5.large", "on-demand", "default")], id="AWS-127-no-pool"),
        pytest.param(
            [on_demand(of_type("c5.xlarge"))], [("c5.xlarge", "on-demand", "default")], id="AWS-127-the-pools-type"
        ),
        pytest.param(
            [pool(of_type("c5.xlarge"))],
            [("c5.xlarge", "on-demand", "default"), ("c5.xlarge", "spot", "default")],
            id="AWS-116-spot-where-allowed",
        ),
        pytest.param(
            [on_demand(wanted(TENANCY, "In", "dedicated"))],
            [("m5.large", "on-demand", "dedicated")],
            id="AWS-127-dedicated",
        ),
        pytest.param(
            [on_demand(of_type("x9.none"))], [("m5.large", "on-demand", "default")], id="AWS-127-no-such-type"
        ),
    ],
)
async def test_types_the_pools_would_buy_are_tried(pools: list[Any], expected: list[tuple[str, str, str]]) -> None:
    world = Classes().stocked()
    await world.create()
    assert await chosen(pools, world) == expected


async def test_each_architecture_the_class_has_images_for_is_tried() -> None:
    """AWS-116, its Beyond"""
    world = Classes().stocked()
    world.ec2.images.append(ImageInfo(image_id="ami-2", architecture="arm64"))
    terms = ({"id": "ami-1"}, {"id": "ami-2"})
    await world.create()
    await world.change({"amiSelectorTerms": list(terms)})
    assert [name for name, _, _ in await chosen([], world)] == ["m5.large", "m6g.large"]


async def test_types_the_class_cannot_be_made_of_are_not_tried() -> None:
    """AWS-127, AWS-340"""
    world = Classes().stocked()
    await world.create()

    def fits(_: Any, obj: Any) -> bool:
        return bool(obj.name != "m5.large")

    assert [name for name, _, _ in await chosen([on_demand(of_type("m5.large", "c5.xlarge"))], world, fits)] == [
        "c5.xlarge"
    ]


async def test_the_pools_of_other_classes_do_not_count() -> None:
    """AWS-127"""
    world = Classes().stocked()
    await world.create()
    other = node_pool(requirements=(of_type("c5.xlarge"),))
    assert [name for name, _, _ in await chosen([other], world)] == ["m5.large"]


async def test_pools_are_read_as_watches_last_told_them() -> None:
    """AWS-127"""
    world = Classes().stocked()
    stored = on_demand(of_type("c5.xlarge"))
    await world.kube.create(NODE_POOL, type(stored)(metadata=ObjectMeta(name="np"), spec=stored.spec))
    await judged(world)
    (fleet,) = world.ec2.asked("CreateFleet")
    assert {override.instance_type for override in fleet.launch_template_configs[0].overrides} == {"c5.xlarge"}


async def test_windows_is_tried_on_the_usual_types() -> None:
    """AWS-127"""
    world = Classes().stocked()
    world.types = catalogue.packaged_instance_types()
    await world.create(ami_family="Windows2022")
    actual = await chosen([on_demand(of_type("c5.xlarge"))], world)
    assert [name for name, _, _ in actual] == ["m5.large"]
