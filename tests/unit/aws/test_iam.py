"""The controller's policy (AWS §16)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, TokenDelivery
from karpenter.providers.aws.iam_policies import ClusterLocation
from karpenter.providers.aws.sdk import api_clients
from karpenter.providers.aws.sdk.service_client import ApiOperation, RateLimitGroup

PLACE = ClusterLocation("shop", "eu-central-1", "123456789012")
#: Action names by statement, as the specification lists them.
SPECIFIED = {
    "AWS-700": ("AllowScopedEC2InstanceAccessActions", "ec2:CreateFleet ec2:RunInstances"),
    "AWS-701": ("AllowScopedEC2LaunchTemplateAccessActions", "ec2:CreateFleet ec2:RunInstances"),
    "AWS-702": ("AllowScopedEC2InstanceActionsWithTags", "ec2:CreateFleet ec2:CreateLaunchTemplate ec2:RunInstances"),
    "AWS-703": ("AllowScopedResourceCreationTagging", "ec2:CreateTags"),
    "AWS-704": ("AllowScopedResourceTagging", "ec2:CreateTags"),
    # K15-A95: reboots of repair as well.
    "AWS-705": ("AllowScopedDeletion", "ec2:DeleteLaunchTemplate ec2:RebootInstances ec2:TerminateInstances"),
    "AWS-706": ("AllowPassingInstanceRole", "iam:PassRole"),
    "AWS-707": ("AllowScopedInstanceProfileCreationActions", "iam:CreateInstanceProfile"),
    "AWS-708": ("AllowScopedInstanceProfileTagActions", "iam:TagInstanceProfile"),
    "AWS-709": (
        "AllowScopedInstanceProfileActions",
        "iam:AddRoleToInstanceProfile iam:DeleteInstanceProfile iam:RemoveRoleFromInstanceProfile",
    ),
    "AWS-710": ("AllowAPIServerEndpointDiscovery", "eks:DescribeCluster"),
    "AWS-711": ("AllowInterruptionQueueActions", "sqs:DeleteMessage sqs:GetQueueUrl sqs:ReceiveMessage"),
    "AWS-712": ("AllowZonalShiftStatusReadOnly", "arc-zonal-shift:GetManagedResource"),
    "AWS-713": (
        "AllowRegionalReadActions",
        "ec2:DescribeCapacityReservations ec2:DescribeImages ec2:DescribeInstanceStatus "
        "ec2:DescribeInstanceTypeOfferings ec2:DescribeInstanceTypes ec2:DescribeInstances "
        "ec2:DescribeLaunchTemplates ec2:DescribePlacementGroups ec2:DescribeSecurityGroups "
        "ec2:DescribeSpotPriceHistory ec2:DescribeSubnets",
    ),
    "AWS-714": ("AllowSSMReadActions", "ssm:GetParameter"),
    "AWS-715": ("AllowPricingReadActions", "pricing:GetProducts"),
    "AWS-716": ("AllowUnscopedInstanceProfileListAction", "iam:ListInstanceProfiles"),
    "AWS-717": ("AllowInstanceProfileReadActions", "iam:GetInstanceProfile"),
}


def statements() -> dict[str, iam_policies.IamStatement]:
    return {
        statement.sid: statement
        for policy in iam_policies.controller_policies(PLACE)
        for statement in policy.statements
    }


@pytest.mark.parametrize("row", SPECIFIED)
def test_each_statement_allows_what_the_specification_lists(row: str) -> None:
    sid, actions = SPECIFIED[row]
    assert sorted(statements()[sid].actions) == actions.split()


def test_nothing_else_is_allowed() -> None:
    """AWS-718"""
    assert set(statements()) == {sid for sid, _ in SPECIFIED.values()}
    assert [policy.part for policy in iam_policies.controller_policies(PLACE)] == [
        "NodeLifecycle",
        "IAMIntegration",
        "EKSIntegration",
        "Interruption",
        "ZonalShift",
        "ResourceDiscovery",
    ]
    assert iam_policies.policy_name("ZonalShift", "shop") == "KarpenterControllerZonalShiftPolicy-shop"


@pytest.mark.parametrize(
    ("sid", "operator", "key", "value"),
    [
        ("AllowScopedEC2LaunchTemplateAccessActions", "StringLike", "aws:ResourceTag/karpenter.sh/nodepool", "*"),
        ("AllowScopedEC2InstanceActionsWithTags", "StringEquals", "aws:RequestTag/eks:eks-cluster-name", "shop"),
        ("AllowScopedEC2InstanceActionsWithTags", "StringEquals", "aws:RequestTag/kubernetes.io/cluster/shop", "owned"),
        (
            "AllowScopedResourceCreationTagging",
            "StringEquals",
            "ec2:CreateAction",
            ("RunInstances", "CreateFleet", "CreateLaunchTemplate"),
        ),
        (
            "AllowScopedResourceTagging",
            "ForAllValues:StringEquals",
            "aws:TagKeys",
            ("eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"),
        ),
        ("AllowScopedResourceTagging", "StringEqualsIfExists", "aws:RequestTag/eks:eks-cluster-name", "shop"),
        ("AllowScopedDeletion", "StringEquals", "aws:ResourceTag/kubernetes.io/cluster/shop", "owned"),
        (
            "AllowPassingInstanceRole",
            "StringEquals",
            "iam:PassedToService",
            ("ec2.amazonaws.com", "ec2.amazonaws.com.cn"),
        ),
        (
            "AllowScopedInstanceProfileActions",
            "StringEquals",
            "aws:ResourceTag/topology.kubernetes.io/region",
            "eu-central-1",
        ),
        ("AllowRegionalReadActions", "StringEquals", "aws:RequestedRegion", "eu-central-1"),
        (
            "AllowZonalShiftStatusReadOnly",
            "StringEquals",
            "arc-zonal-shift:ResourceIdentifier",
            "arn:aws:eks:eu-central-1:123456789012:cluster/shop",
        ),
    ],
)
def test_permissions_are_bound_to_the_cluster(sid: str, operator: str, key: str, value: object) -> None:
    """AWS-700 to AWS-717"""
    assert statements()[sid].conditions[operator][key] == value


#: IAM service prefixes by call group. GetCallerIdentity needs no permission.
_PREFIXES = {
    **{group: "ec2" for group in RateLimitGroup if group.startswith("ec2 ")},
    RateLimitGroup.IAM: "iam",
    RateLimitGroup.SSM: "ssm",
    RateLimitGroup.PRICING: "pricing",
    RateLimitGroup.QUEUE: "sqs",
    RateLimitGroup.EKS: "eks",
    RateLimitGroup.ZONAL_SHIFT: "arc-zonal-shift",
}
#: Needed without a call: tags and roles are passed to calls that create resources.
_IMPLIED = {"iam:PassRole", "iam:TagInstanceProfile"}


def callable_actions() -> set[str]:
    """Actions of all calls in the adapters."""
    result = (
        var for module in (api_clients, api_clients) for var in vars(module).values() if isinstance(var, ApiOperation)
    )
    return {
        f"{_PREFIXES[api_operation.rate_group]}:{api_operation.name}"
        for api_operation in result
        if api_operation.rate_group is not RateLimitGroup.IDENTITY
    }


def test_the_policy_allows_exactly_the_calls_of_the_adapters() -> None:
    """AWS-T700, AWS §16 Beyond: read from the adapters, so that the policy has no more and no fewer actions."""
    storing = replace(PLACE, token_delivery=TokenDelivery.PARAMETER)
    self_managed = replace(PLACE, bootstrap_mode=BootstrapMode.KUBEADM)
    allowed = iam_policies.allowed_actions(storing) | iam_policies.allowed_actions(self_managed)
    assert callable_actions() == allowed - _IMPLIED


def test_the_policy_of_a_self_managed_cluster_has_no_eks_actions_and_only_token_parameters() -> None:
    """AWS-941."""
    self_managed = replace(PLACE, bootstrap_mode=BootstrapMode.KUBEADM)
    services = {action.partition(":")[0] for action in iam_policies.allowed_actions(self_managed)}
    assert services == {"ec2", "iam", "sqs", "ssm", "pricing"}
    storing = replace(self_managed, token_delivery=TokenDelivery.PARAMETER)
    added = iam_policies.allowed_actions(storing) - iam_policies.allowed_actions(self_managed)
    assert added == {"ssm:PutParameter", "ssm:DeleteParameter"}
    (statement,) = iam_policies.controller_policies(storing)[-1].statements
    assert statement.resources == (PLACE.arn("ssm", f"parameter/karpenter/{PLACE.cluster}/*"),)


def test_console_output_is_read_in_self_managed_clusters_only_and_of_their_own_instances() -> None:
    """AWS-932."""
    assert "ec2:GetConsoleOutput" not in iam_policies.allowed_actions(PLACE)
    self_managed = replace(PLACE, bootstrap_mode=BootstrapMode.KUBEADM)
    all_statements = [one for policy in iam_policies.controller_policies(self_managed) for one in policy.statements]
    (statement,) = (one for one in all_statements if "ec2:GetConsoleOutput" in one.actions)
    assert statement.actions == ("ec2:GetConsoleOutput",)
    assert statement.resources == PLACE.ec2("instance")
    assert statement.conditions["StringEquals"] == {"aws:ResourceTag/kubernetes.io/cluster/shop": "owned"}


def test_every_policy_is_below_the_size_limit_of_managed_policies() -> None:
    place = ClusterLocation("c" * 100, "us-northeast-central-1", "123456789012", "aws-us-gov")
    for policy in iam_policies.controller_policies(place):
        assert len(json.dumps(iam_policies.policy_document(policy.statements), separators=(",", ":"))) <= 6144


def test_the_command_prints_a_policy_document() -> None:
    words = ["--cluster-name", "shop", "--region", "cn-north-1", "--account", "123456789012"]
    done = CliRunner().invoke(app, ["iam-policy", *words])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["Version"] == "2012-10-17"
    assert {statement["Sid"] for statement in document["Statement"]} == {sid for sid, _ in SPECIFIED.values()}
    assert "arn:aws-cn:iam::123456789012:role/KarpenterNodeRole-shop" in done.stdout
    assert "karpenter.k8s.aws/launch-batch" in done.stderr  # not in the document: policies for tag keys must allow it


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--service-account", "karpenter", "--service-account='karpenter' is not NAMESPACE:NAME"),
        ("--account", "12", "--account='12' is not an account of twelve digits"),
        ("--region", "Frankfurt", "--region='Frankfurt' is not a region such as eu-central-1"),
        ("--cluster-name", "a b", "--cluster-name='a b' is not the name of an EKS cluster"),
        ("--part", "All", "--part='All' is not one of NodeLifecycle, IAMIntegration"),
    ],
)
def test_wrong_input_is_one_line(flag: str, value: str, says: str) -> None:
    words = {"--cluster-name": "shop", "--region": "eu-west-1", "--account": "123456789012", flag: value}
    done = CliRunner().invoke(app, ["iam-policy", *(word for pair in words.items() for word in pair)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"karpenter iam-policy: {says}")
