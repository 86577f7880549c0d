"""Dry runs of launches: their calls and instance types, and how answers are interpreted (AWS §3.6)."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from karpenter.api.karpenter import NodeClaimTemplateMeta
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_packaged_types
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import dry_run_candidates
from karpenter.providers.contract import LaunchFailed
from support.builders import node_pool, wanted
from support.fake_node_class_services import THROTTLED, UNAUTHORIZED
from support.node_class_environment import REFERENCE, TYPES, NodeClassEnvironment
from support.node_class_validation import TRIED, VALID, tried, validation_of, verdict

CAPACITY_TYPE, TENANCY = "karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-tenancy"


async def test_every_call_of_a_launch_has_a_dry_run_and_no_resources_are_left() -> None:
    """AWS-115 to AWS-119, AWS-128, AWS-446, AWS-721; K15-A97: reboots are not included."""
    environment = NodeClassEnvironment().with_resources()
    assert await validation_of(environment, tags={"team": "a"}) == VALID
    assert tried(environment) == ["CreateLaunchTemplate", "CreateFleet", "RunInstances"]
    ((name, data, own),) = environment.ec2.asked("CreateLaunchTemplate")
    assert environment.ec2.templates == []
    ours = {
        "team": "a",
        "kubernetes.io/cluster/shop": "owned",
        "karpenter.sh/nodepool": "",
        "eks:eks-cluster-name": "shop",
        "karpenter.k8s.aws/ec2nodeclass": "default",
    }
    assert tag_map(own.tags) == ours
    (fleet,) = environment.ec2.asked("CreateFleet")
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
    (dry_run,) = environment.ec2.asked("RunInstances")
    assert dry_run.subnet_id == "subnet-b"
    assert dry_run.template.launch_template_name == name
    assert (dry_run.data.user_data, dry_run.data.network_interfaces) == ("", data.network_interfaces)
    tagged = {
        tag_specification.resource_type: tag_map(tag_specification.tags)
        for tag_specification in dry_run.data.tag_specifications
    }
    batch = {"karpenter.k8s.aws/launch-batch": "dry-run"}
    assert tagged == {"instance": ours | batch, "volume": ours, "network-interface": ours}
    fleet_tags = {
        specification.resource_type: tag_map(specification.tags) for specification in fleet.tag_specifications
    }
    assert fleet_tags == {"instance": ours | batch, "volume": ours, "fleet": ours}


async def test_dry_runs_carry_the_tags_of_a_launch_for_the_pool_with_the_most_to_write() -> None:
    """E25: policies can depend on tags, and EC2 limits user data, which has labels and taints."""
    environment = NodeClassEnvironment().with_resources()
    small, large = (replace(pool(), metadata=ObjectMeta(name=name)) for name in ("small", "large"))
    template = replace(large.spec.template, metadata=NodeClaimTemplateMeta(labels={"team": "a" * 60}))
    large = replace(large, spec=replace(large.spec, template=template))
    for stored in (small, large):
        await environment.kube.create(NODE_POOL, stored)
    assert await validation_of(environment) == VALID
    (fleet, *_) = environment.ec2.asked("CreateFleet")
    assert {tag_map(specification.tags)["karpenter.sh/nodepool"] for specification in fleet.tag_specifications} == {
        "large"
    }


async def test_the_dry_run_of_a_spot_launch_requests_spot() -> None:
    """AWS-116, its Beyond, and AWS-128: EC2 accepts tags of spot requests only in a request for a spot instance."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.kube.create(NODE_POOL, pool())
    await environment.reconcile()
    on_demand, spot = (trial.data for trial in environment.ec2.asked("RunInstances"))
    assert on_demand.instance_market_options is None
    assert spot.instance_market_options.market_type == "spot"
    kinds = [{tagged.resource_type for tagged in data.tag_specifications} for data in (on_demand, spot)]
    assert kinds[1] - kinds[0] == {"spot-instances-request"}


async def test_a_leftover_launch_template_is_used_and_deleted() -> None:
    """AWS-115, its Beyond: equal data gives an equal name, so the next run deletes it."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("DeleteLaunchTemplate", THROTTLED)
    assert await validation_of(environment) == VALID
    assert len(environment.ec2.templates) == 1
    environment.ec2.refuse("DeleteLaunchTemplate", None)
    environment.clock.advance(minutes=30)
    await environment.reconcile()
    assert await verdict(environment) == VALID
    assert environment.ec2.templates == []


async def test_without_a_launch_template_the_other_permissions_are_still_checked() -> None:
    """AWS-116, its Beyond: one missing permission does not hide another."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("CreateLaunchTemplate", UNAUTHORIZED)
    assert await validation_of(environment) == ("False", "CreateLaunchTemplateAuthCheckFailed")
    (trial,) = environment.ec2.asked("RunInstances")
    assert trial.template is None
    assert trial.data.image_id == "ami-1"
    calls = len(environment.ec2.calls)
    await environment.reconcile()
    assert len(environment.ec2.calls) == calls


async def test_dry_runs_leave_out_the_batch_tag_like_launches() -> None:
    """E25: an organization can restrict tag keys."""
    environment = NodeClassEnvironment(launch_batch_tag=False).with_resources()
    assert await validation_of(environment) == VALID
    (fleet,) = environment.ec2.asked("CreateFleet")
    keys = {key for specification in fleet.tag_specifications for key in tag_map(specification.tags)}
    assert "karpenter.k8s.aws/launch-batch" not in keys


async def test_a_missing_permission_is_reported_and_not_checked_again_until_the_class_changes() -> None:
    """AWS-T093, AWS-109, AWS-126"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("CreateFleet", UNAUTHORIZED)
    assert await validation_of(environment) == ("False", "CreateFleetAuthCheckFailed")
    message = await environment.message("ValidationSucceeded")
    assert message.startswith(
        "Controller isn't authorized to call ec2:CreateFleet: no policy allows it: UnauthorizedOperation"
    )
    calls = len(environment.ec2.calls)
    await environment.reconcile()
    assert len(environment.ec2.calls) == calls
    environment.ec2.refuse("CreateFleet", None)
    await environment.change({"userData": "echo"})
    await environment.reconcile()
    assert await verdict(environment) == VALID


@pytest.mark.parametrize(("random_value", "minutes"), [(0.0, 25), (0.5, 30), (1.0, 35)])
async def test_dry_runs_are_repeated_after_about_half_an_hour(random_value: float, minutes: int) -> None:
    """AWS-109, K15-A14: each process has a random interval of 25 to 35 minutes."""
    environment = NodeClassEnvironment()
    environment.random_value = random_value
    environment.made = environment.restarted()
    environment = environment.with_resources()
    environment.ec2.refuse("CreateFleet", UNAUTHORIZED)
    await validation_of(environment)
    environment.ec2.refuse("CreateFleet", None)
    environment.clock.advance(minutes=minutes - 1)
    await environment.reconcile()
    assert await verdict(environment) == ("False", "CreateFleetAuthCheckFailed")
    environment.clock.advance(minutes=1)
    await environment.reconcile()
    assert await verdict(environment) == VALID


async def test_one_missing_permission_does_not_hide_another() -> None:
    """AWS-116, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    for call in TRIED:
        environment.ec2.refuse(call, UNAUTHORIZED)
    assert await validation_of(environment) == ("False", "CreateLaunchTemplateAuthCheckFailed")
    message = await environment.message("ValidationSucceeded")
    assert all(f"ec2:{call}" in message for call in TRIED)


async def test_one_valid_subnet_is_enough() -> None:
    """AWS-T094"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refusals["RunInstances"] = lambda trial: UNAUTHORIZED if trial.subnet_id == "subnet-b" else None
    assert await validation_of(environment) == VALID
    assert [trial.subnet_id for trial in environment.ec2.asked("RunInstances")] == ["subnet-b", "subnet-a"]


async def test_the_error_of_the_first_subnet_is_reported_if_all_fail() -> None:
    """AWS-117"""
    environment = NodeClassEnvironment().with_resources()
    other = AwsError("InvalidSubnetID.NotFound", "gone", status=400)
    environment.ec2.refusals["RunInstances"] = lambda trial: UNAUTHORIZED if trial.subnet_id == "subnet-b" else other
    assert await validation_of(environment) == ("False", "RunInstancesAuthCheckFailed")


NO_PROFILE = AwsError(
    "InvalidParameterValue",
    "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    status=400,
)


async def test_a_class_waits_for_a_new_instance_profile_that_ec2_does_not_know_yet() -> None:
    """AWS-T095, AWS-118"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("RunInstances", NO_PROFILE)
    await environment.create()
    assert await environment.reconcile() == 5
    assert await verdict(environment) == ("Unknown", "AwaitingReconciliation")
    environment.ec2.refuse("RunInstances", None)
    await environment.reconcile()
    assert await verdict(environment) == VALID
    assert tried(environment).count("CreateFleet") == 1


async def test_a_missing_instance_profile_of_the_user_is_reported_and_retried() -> None:
    """AWS-118"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("RunInstances", NO_PROFILE)
    await environment.create(role=None, instance_profile="mine")
    assert await environment.reconcile() == 5
    assert await verdict(environment) == ("False", "InstanceProfileNotFound")
    environment.ec2.refuse("RunInstances", None)
    await environment.reconcile()
    assert await verdict(environment) == VALID


@pytest.mark.parametrize("call", TRIED)
async def test_throttling_does_not_change_the_validation(call: str) -> None:
    """AWS-T096"""
    environment = NodeClassEnvironment().with_resources()
    await validation_of(environment)
    await environment.change({"userData": "echo"})
    environment.ec2.refuse(call, THROTTLED)
    assert await environment.reconcile() == 5
    assert await verdict(environment) == VALID
    assert await environment.condition("Ready") == ("Unknown", "ReconcilingDependents")
    environment.ec2.refuse(call, None)
    await environment.reconcile()
    assert await environment.condition("Ready") == ("True", "Ready")


@pytest.mark.parametrize("call", ["CreateLaunchTemplate", "RunInstances"])
async def test_an_answer_unrelated_to_permissions_is_an_error(call: str) -> None:
    """AWS-115, AWS-117"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse(call, AwsError("InvalidParameterValue", "what?", status=400))
    await environment.create()
    with pytest.raises(NodeClassReconcileFailed, match="what"):
        await environment.reconcile()
    assert await verdict(environment) == ("Unknown", "AwaitingReconciliation")


async def test_a_fleet_refused_for_its_launch_template_is_no_missing_permission() -> None:
    """AWS-116: EC2 may not find a new launch template yet. The condition says so and is not cached."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse(
        "CreateFleet", AwsError("InvalidLaunchTemplateName.NotFoundException", "no such", status=400)
    )
    assert await validation_of(environment) == VALID
    assert await environment.message("ValidationSucceeded") == (
        "dry runs that prove nothing: ec2:CreateFleet (InvalidLaunchTemplateName.NotFoundException)"
    )
    environment.ec2.refuse("CreateFleet", None)
    await environment.reconcile()
    assert await environment.message("ValidationSucceeded") == ""


async def test_with_dry_runs_off_a_class_is_valid_without_any() -> None:
    """AWS-T104, AWS-110"""
    environment = NodeClassEnvironment(disable_dry_run=True).with_resources()
    assert await validation_of(environment) == VALID
    assert tried(environment) == []


@pytest.mark.parametrize(("size", "expected"), [(16385, ("False", "UserDataSizeLimitExceeded")), (16384, VALID)])
async def test_user_data_that_ec2_would_refuse_is_reported(size: int, expected: tuple[str, str]) -> None:
    """AWS-T237, AWS-115"""
    environment = NodeClassEnvironment().with_resources()
    environment.user_data = b64encode(b"x" * size).decode()
    assert await validation_of(environment) == expected


async def test_an_error_of_the_launch_template_data_is_reported_unchanged() -> None:
    environment = NodeClassEnvironment().with_resources()

    def refusing(*_: Any) -> Any:
        raise LaunchFailed("InvalidUserData", "userData: is not TOML")

    environment.template_data = refusing
    assert await validation_of(environment) == ("False", "InvalidUserData")
    assert await environment.message("ValidationSucceeded") == "userData: is not TOML"


async def test_images_without_a_compatible_type_are_reported() -> None:
    environment = NodeClassEnvironment().with_resources()
    environment.types = tuple(instance_type for instance_type in TYPES if instance_type.name == "m6g.large")
    assert await validation_of(environment) == ("False", "NoCompatibleInstanceTypes")
    assert await environment.message("ValidationSucceeded") == "no instance type fits the images of the class (ami-1)"


async def test_writing_the_hash_of_a_class_causes_no_further_dry_runs() -> None:
    """AWS-109: the first reconcile writes it."""
    environment = NodeClassEnvironment().with_resources()
    await validation_of(environment)
    await environment.kube.patch(EC2_NODE_CLASS, "default", {"metadata": {"annotations": {"mine": "1"}}})
    before = len(tried(environment))
    await environment.reconcile()
    assert len(tried(environment)) == 2 * before


async def test_a_recreated_class_has_dry_runs_again() -> None:
    """AWS-124"""
    environment = NodeClassEnvironment(isolated_vpc=True).with_resources()
    await validation_of(environment, role=None, instance_profile="mine")
    before = len(tried(environment))
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    await environment.reconcile()
    await validation_of(environment, role=None, instance_profile="mine")
    assert len(tried(environment)) == 2 * before


def pool(*requirements: Any) -> Any:
    made = node_pool(requirements=requirements)
    template = made.spec.template
    own = replace(template, spec=replace(template.spec, node_class_ref=REFERENCE))
    return replace(made, spec=replace(made.spec, template=own))


async def chosen(
    pools: list[Any], environment: NodeClassEnvironment, fits: Any = lambda *_: True
) -> list[tuple[str, str, str]]:
    """Instance types, capacity types and tenancies of the dry runs of a class."""
    await environment.reconcile()
    result = dry_run_candidates(await environment.get(), pools, environment.types, fits)
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
async def test_dry_runs_use_types_that_the_node_pools_allow(
    pools: list[Any], expected: list[tuple[str, str, str]]
) -> None:
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    assert await chosen(pools, environment) == expected


async def test_dry_runs_cover_each_architecture_of_the_images() -> None:
    """AWS-116, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.images.append(ImageInfo(image_id="ami-2", architecture="arm64"))
    terms = ({"id": "ami-1"}, {"id": "ami-2"})
    await environment.create()
    await environment.change({"amiSelectorTerms": list(terms)})
    assert [name for name, _, _ in await chosen([], environment)] == ["m5.large", "m6g.large"]


async def test_dry_runs_leave_out_types_that_the_class_cannot_use() -> None:
    """AWS-127, AWS-340"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()

    def fits(_: Any, obj: Any) -> bool:
        return bool(obj.name != "m5.large")

    assert [name for name, _, _ in await chosen([on_demand(of_type("m5.large", "c5.xlarge"))], environment, fits)] == [
        "c5.xlarge"
    ]


async def test_the_pools_of_other_classes_do_not_count() -> None:
    """AWS-127"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    other = node_pool(requirements=(of_type("c5.xlarge"),))
    assert [name for name, _, _ in await chosen([other], environment)] == ["m5.large"]


async def test_node_pools_are_read_from_the_cluster_view() -> None:
    """AWS-127"""
    environment = NodeClassEnvironment().with_resources()
    stored = on_demand(of_type("c5.xlarge"))
    await environment.kube.create(NODE_POOL, type(stored)(metadata=ObjectMeta(name="np"), spec=stored.spec))
    await validation_of(environment)
    (fleet,) = environment.ec2.asked("CreateFleet")
    assert {override.instance_type for override in fleet.launch_template_configs[0].overrides} == {"c5.xlarge"}


async def test_dry_runs_of_windows_use_the_default_types() -> None:
    """AWS-127"""
    environment = NodeClassEnvironment().with_resources()
    environment.types = ec2_packaged_types.packaged_instance_types()
    await environment.create(ami_family="Windows2022")
    actual = await chosen([on_demand(of_type("c5.xlarge"))], environment)
    assert [name for name, _, _ in actual] == ["m5.large"]
