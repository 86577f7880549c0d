"""The controller of EC2NodeClasses over boto3 against the double of AWS: behavior that the fakes of other tests lack."""

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
from karpenter.instancetypes import ec2_packaged_types
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
from support.node_class_environment import CLUSTER, REFERENCE, NodeClassEnvironment

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
    """An environment whose AWS is the double."""

    double: Double
    environment: NodeClassEnvironment

    def carried_out(self, *operations: str) -> int:
        """The number of successful calls of these operations."""
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
    """Launch template data of launches."""
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
    environment: Any = NodeClassEnvironment()
    environment.ec2, environment.iam, environment.ssm = account.services.ec2, account.services.iam, account.services.ssm
    environment.cluster = replace(environment.cluster, version="1.35")
    environment.types = ec2_packaged_types.packaged_instance_types()
    environment.template_data = _template_data
    environment.made = environment.restarted()
    double.calls.clear()
    return Region(double, environment)


async def test_a_class_becomes_ready_and_its_deletion_leaves_no_resources(region: Region) -> None:
    """AWS-T080, AWS-T085, AWS-T090, AWS-T180"""
    environment = region.environment
    await environment.create(**FOUND)
    assert await environment.reconcile() == 60
    node_class = await environment.get()
    assert (await environment.condition("Ready"), await environment.message("Ready")) == (("True", "Ready"), "")
    assert len(node_class.status.subnets) == 3
    assert len(node_class.status.amis) == 5
    assert all(region.double.calls.of(operation) for operation in TRIED)
    assert region.carried_out("CreateFleet", "RunInstances") == 0
    assert client(region.double, "ec2").describe_launch_templates()["LaunchTemplates"] == []
    assert await environment.message("ValidationSucceeded") == ""
    assert region.carried_out("CreateInstanceProfile", "AddRoleToInstanceProfile") == 2
    before = len(region.double.calls.all)
    await environment.reconcile()
    assert len(region.double.calls.all) == before
    await environment.kube.delete(EC2_NODE_CLASS, "default")
    assert await environment.reconcile() is None
    with pytest.raises(NotFound):
        await environment.get()
    left = client(region.double, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    assert left == []


@pytest.mark.parametrize("operation", TRIED)
async def test_a_missing_permission_is_named(region: Region, operation: str) -> None:
    """AWS-T093, AWS-T964, AWS-126"""
    region.double.control.deny(f"ec2:{operation}")
    await region.environment.create(**FOUND)
    await region.environment.reconcile()
    assert await region.environment.condition("ValidationSucceeded") == ("False", f"{operation}AuthCheckFailed")
    assert f"ec2:{operation}" in await region.environment.message("ValidationSucceeded")


@pytest.mark.parametrize("operation", ["CreateFleet", "RunInstances"])
async def test_a_permission_missing_only_with_the_launch_template_is_named(region: Region, operation: str) -> None:
    """AWS-116, AWS-117, AWS-707: only a dry run with a launch template detects it."""
    region.double.control.deny(f"ec2:{operation}", resource="launch-template")
    await region.environment.create(**FOUND)
    await region.environment.reconcile()
    assert await region.environment.condition("ValidationSucceeded") == ("False", f"{operation}AuthCheckFailed")
    assert "launch-template/" in await region.environment.message("ValidationSucceeded")
    assert client(region.double, "ec2").describe_launch_templates()["LaunchTemplates"] == []


async def test_spot_dry_runs_have_their_own_launch_template(region: Region) -> None:
    """AWS-116, its Beyond: EC2 refuses tags of spot requests in an on-demand request."""
    region.environment.template_data = _data_of_a_launch
    pool = node_pool()
    template = replace_struct(
        pool.spec.template, spec=replace_struct(pool.spec.template.spec, node_class_ref=REFERENCE)
    )
    await region.environment.kube.create(
        NODE_POOL, replace_struct(pool, spec=replace_struct(pool.spec, template=template))
    )
    await region.environment.create(**FOUND)
    await region.environment.reconcile()
    assert await region.environment.condition("Ready") == ("True", "Ready")
    trials = region.double.calls.of("RunInstances")
    assert {trial.code for trial in trials} == {"DryRunOperation"}
    market_types = {trial.parameters.get("InstanceMarketOptions", {}).get("MarketType") for trial in trials}
    assert market_types == {None, "spot"}


async def test_an_instance_profile_that_cannot_be_created_is_reported(region: Region) -> None:
    """API-665, its Beyond"""
    region.double.control.deny("iam:CreateInstanceProfile")
    await region.environment.create(**FOUND)
    with pytest.raises(NodeClassReconcileFailed):
        await region.environment.reconcile()
    assert await region.environment.condition("InstanceProfileReady") == ("False", "InstanceProfileCreationFailed")
    assert await region.environment.condition("AMIsReady") == ("True", "AMIsReady")


async def test_a_missing_role_leaves_no_instance_profile(region: Region) -> None:
    """AWS-T087"""
    await region.environment.create(**{**FOUND, "role": "team/nobody"})
    with pytest.raises(NodeClassReconcileFailed):
        await region.environment.reconcile()
    calls = len(region.double.calls.all)
    with pytest.raises(NodeClassReconcileFailed):
        await region.environment.reconcile()
    assert len(region.double.calls.all) == calls
    left = client(region.double, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    assert left == []


async def test_a_missing_reservation_is_left_out(region: Region) -> None:
    """AWS-T145"""
    terms = (CapacityReservationSelectorTerm(id="cr-0123456789abcdef0"),)
    await region.environment.create(**FOUND, capacity_reservation_selector_terms=terms)
    await region.environment.reconcile()
    assert (await region.environment.get()).status.capacity_reservations == ()
    assert await region.environment.condition("Ready") == ("True", "Ready")


async def test_a_class_waits_for_its_placement_group(region: Region) -> None:
    """AWS-094"""
    await region.environment.create(**FOUND, placement_group_selector=PlacementGroupSelector(name="tight"))
    assert await region.environment.reconcile() == 60
    assert await region.environment.condition("PlacementGroupReady") == ("False", "PlacementGroupNotFound")
    group = region.double.control.add_group("tight", "cluster")
    region.environment.clock.advance(minutes=1)
    await region.environment.reconcile()
    assert await region.environment.condition("Ready") == ("True", "Ready")
    group_info_entry = region.environment.made.placement_groups.cached(await region.environment.get())
    assert group_info_entry is not None
    assert group_info_entry.group_id == group


async def test_a_deleted_security_group_is_reported(region: Region) -> None:
    """AWS-090"""
    await region.environment.create(**FOUND)
    await region.environment.reconcile()
    for group in (await region.environment.get()).status.security_groups:
        client(region.double, "ec2").delete_security_group(GroupId=group.id)
    region.environment.clock.advance(minutes=1)
    await region.environment.reconcile()
    assert await region.environment.condition("SecurityGroupsReady") == ("False", "SecurityGroupsNotFound")
    assert await region.environment.condition("ValidationSucceeded") == ("False", "DependenciesNotReady")
