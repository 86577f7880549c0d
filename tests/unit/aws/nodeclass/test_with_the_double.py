"""A class under its controller, over boto3, against the double of AWS: what the stand-ins of the other tests cannot tell."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    CapacityReservationSelectorTerm,
    EC2NodeClass,
    PlacementGroupSelector,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.instancetypes import ec2_catalog as catalogue
from karpenter.kube.errors import NotFound
from karpenter.providers.aws.ec2_requests import (
    InstanceProfileRequest,
    LaunchTemplateData,
    NetworkInterfaceRequest,
    PlacementRequest,
)
from karpenter.providers.aws.instance.launch_templates import LaunchTemplateParameters, template_data
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import DryRunCandidate
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.clients import client
from support.aws.double import Double
from support.aws.seeds import seed
from support.aws.sessions import session_of
from support.builders import node_pool
from support.ec2_classes import CLUSTER, REFERENCE, Classes

TRIED = ("CreateLaunchTemplate", "CreateFleet", "RunInstances")
FOUND: dict[str, Any] = {
    "subnet_selector_terms": (SubnetSelectorTerm(tags={"karpenter.sh/discovery": "test"}),),
    "security_group_selector_terms": (SecurityGroupSelectorTerm(tags={"karpenter.sh/discovery": "*"}),),
    "ami_selector_terms": (AMISelectorTerm(alias="al2023@latest"),),
    "ami_family": None,
    "role": "team/node",
}


@dataclass
class Region:
    """A world whose AWS is the double."""

    double: Double
    world: Classes

    def carried_out(self, *operations: str) -> int:
        """How often these calls did what they asked for."""
        return sum(len(self.double.calls.carried_out(operation)) for operation in operations)


def _template_data(node_class: EC2NodeClass, trial: DryRunCandidate) -> LaunchTemplateData:
    groups = tuple(security_group.id for security_group in node_class.status.security_groups)
    return LaunchTemplateData(
        image_id=trial.image.id,
        user_data=b64encode(b"hello").decode(),
        iam_instance_profile=InstanceProfileRequest(name=node_class.status.instance_profile),
        network_interfaces=(NetworkInterfaceRequest(device_index=0, groups=groups),),
        placement=PlacementRequest(tenancy=trial.tenancy),
    )


def _data_of_a_launch(node_class: EC2NodeClass, trial: DryRunCandidate) -> LaunchTemplateData:
    """As launches make it."""
    parameters = LaunchTemplateParameters(trial.image.id, b"hello", trial.capacity_type, trial.tenancy)
    return template_data(node_class, CLUSTER, parameters, {"team": "a"}, reserved_capacity=True)


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture(scope="module")
def account(double: Double) -> Iterator[AwsSession]:
    with session_of(double) as opened:
        yield opened


@pytest.fixture
def region(double: Double, account: AwsSession) -> Region:
    double.reset()
    seed(double)
    world: Any = Classes()
    world.ec2, world.iam, world.ssm = account.services.ec2, account.services.iam, account.services.ssm
    world.cluster = replace(world.cluster, version="1.35")
    world.types = catalogue.packaged_instance_types()
    world.template_data = _template_data
    world.made = world.restarted()
    double.calls.clear()
    return Region(double, world)


async def test_a_class_becomes_ready_and_leaves_nothing_when_it_goes(region: Region) -> None:
    """AWS-T080, AWS-T085, AWS-T090, AWS-T180"""
    world = region.world
    await world.create(**FOUND)
    assert await world.look() == 60
    node_class = await world.get()
    assert (await world.condition("Ready"), await world.message("Ready")) == (("True", "Ready"), "")
    assert len(node_class.status.subnets) == 3
    assert len(node_class.status.amis) == 5
    assert all(region.double.calls.of(operation) for operation in TRIED)
    assert region.carried_out("CreateFleet", "RunInstances") == 0
    assert client(region.double, "ec2").describe_launch_templates()["LaunchTemplates"] == []
    assert await world.message("ValidationSucceeded") == ""
    assert region.carried_out("CreateInstanceProfile", "AddRoleToInstanceProfile") == 2
    before = len(region.double.calls.all)
    await world.look()
    assert len(region.double.calls.all) == before
    await world.kube.delete(EC2_NODE_CLASS, "default")
    assert await world.look() is None
    with pytest.raises(NotFound):
        await world.get()
    left = client(region.double, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    assert left == []


@pytest.mark.parametrize("operation", TRIED)
async def test_a_permission_that_is_missing_is_named(region: Region, operation: str) -> None:
    """AWS-T093, AWS-T964, AWS-126"""
    region.double.control.deny(f"ec2:{operation}")
    await region.world.create(**FOUND)
    await region.world.look()
    assert await region.world.condition("ValidationSucceeded") == ("False", f"{operation}AuthCheckFailed")
    assert f"ec2:{operation}" in await region.world.message("ValidationSucceeded")


@pytest.mark.parametrize("operation", ["CreateFleet", "RunInstances"])
async def test_a_permission_that_is_missing_for_the_template_alone_is_named(region: Region, operation: str) -> None:
    """AWS-116, AWS-117, AWS-707: only a dry run through a launch template shows it."""
    region.double.control.deny(f"ec2:{operation}", resource="launch-template")
    await region.world.create(**FOUND)
    await region.world.look()
    assert await region.world.condition("ValidationSucceeded") == ("False", f"{operation}AuthCheckFailed")
    assert "launch-template/" in await region.world.message("ValidationSucceeded")
    assert client(region.double, "ec2").describe_launch_templates()["LaunchTemplates"] == []


async def test_spot_is_tried_through_its_own_template(region: Region) -> None:
    """AWS-116, its Beyond: EC2 refuses tags of spot requests in a request that makes none."""
    region.world.template_data = _data_of_a_launch
    pool = node_pool()
    template = replace_struct(
        pool.spec.template, spec=replace_struct(pool.spec.template.spec, node_class_ref=REFERENCE)
    )
    await region.world.kube.create(NODE_POOL, replace_struct(pool, spec=replace_struct(pool.spec, template=template)))
    await region.world.create(**FOUND)
    await region.world.look()
    assert await region.world.condition("Ready") == ("True", "Ready")
    trials = region.double.calls.of("RunInstances")
    assert {trial.code for trial in trials} == {"DryRunOperation"}
    markets = {trial.parameters.get("InstanceMarketOptions", {}).get("MarketType") for trial in trials}
    assert markets == {None, "spot"}


async def test_a_profile_that_may_not_be_made_is_told(region: Region) -> None:
    """API-665, its Beyond"""
    region.double.control.deny("iam:CreateInstanceProfile")
    await region.world.create(**FOUND)
    with pytest.raises(NodeClassReconcileFailed):
        await region.world.look()
    assert await region.world.condition("InstanceProfileReady") == ("False", "InstanceProfileCreationFailed")
    assert await region.world.condition("AMIsReady") == ("True", "AMIsReady")


async def test_a_role_nobody_made_leaves_no_profile(region: Region) -> None:
    """AWS-T087"""
    await region.world.create(**{**FOUND, "role": "team/nobody"})
    with pytest.raises(NodeClassReconcileFailed):
        await region.world.look()
    calls = len(region.double.calls.all)
    with pytest.raises(NodeClassReconcileFailed):
        await region.world.look()
    assert len(region.double.calls.all) == calls
    left = client(region.double, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    assert left == []


async def test_a_reservation_that_does_not_exist_is_none(region: Region) -> None:
    """AWS-T145"""
    terms = (CapacityReservationSelectorTerm(id="cr-0123456789abcdef0"),)
    await region.world.create(**FOUND, capacity_reservation_selector_terms=terms)
    await region.world.look()
    assert (await region.world.get()).status.capacity_reservations == ()
    assert await region.world.condition("Ready") == ("True", "Ready")


async def test_a_placement_group_is_waited_for(region: Region) -> None:
    """AWS-094"""
    await region.world.create(**FOUND, placement_group_selector=PlacementGroupSelector(name="tight"))
    assert await region.world.look() == 60
    assert await region.world.condition("PlacementGroupReady") == ("False", "PlacementGroupNotFound")
    group = region.double.control.add_group("tight", "cluster")
    region.world.clock.forward(minutes=1)
    await region.world.look()
    assert await region.world.condition("Ready") == ("True", "Ready")
    group_info_entry = region.world.made.placement_groups.cached(await region.world.get())
    assert group_info_entry is not None
    assert group_info_entry.group_id == group


async def test_a_security_group_that_is_deleted_is_told(region: Region) -> None:
    """AWS-090"""
    await region.world.create(**FOUND)
    await region.world.look()
    for group in (await region.world.get()).status.security_groups:
        client(region.double, "ec2").delete_security_group(GroupId=group.id)
    region.world.clock.forward(minutes=1)
    await region.world.look()
    assert await region.world.condition("SecurityGroupsReady") == ("False", "SecurityGroupsNotFound")
    assert await region.world.condition("ValidationSucceeded") == ("False", "DependenciesNotReady")
