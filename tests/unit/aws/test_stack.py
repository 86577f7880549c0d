"""The CloudFormation stack of the controller (AWS §16.3), by kind of cluster and with a stack of Karpenter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.aws.stacks import DeploymentFailed, StackAccount, active

_NODE_ROLE = "arn:aws:iam::123456789012:role/KarpenterNodeRole-shop"
_POLICIES = ("NodeLifecycle", "IAMIntegration", "EKSIntegration", "Interruption", "ZonalShift", "ResourceDiscovery")
#: Resources that Karpenter's guide creates with eksctl: a role with a pod identity, and in API mode an access entry.
_POD_IDENTITY = ("AWS::EKS::PodIdentityAssociation", "shop", "kube-system", "karpenter")
_ACCESS_ENTRY = ("AWS::EKS::AccessEntry", "shop", _NODE_ROLE)


def stack(*options: str) -> Mapping[str, Any]:
    """Our stack, as the command prints it."""
    words = ["--cluster-name", "shop", "--region", "eu-central-1", "--account", "123456789012", "-o", "cloudformation"]
    result: Mapping[str, Any] = json.loads(CliRunner().invoke(app, ["iam-policy", *words, *options]).stdout)
    return result


def karpenter_stack(*policies: str) -> Mapping[str, Any]:
    """The names in the stack of Karpenter's guide: with one policy until 1.7, then with six."""
    resources = {
        "KarpenterNodeRole": ("AWS::IAM::Role", {"RoleName": "KarpenterNodeRole-shop"}),
        **{name: ("AWS::IAM::ManagedPolicy", {"ManagedPolicyName": f"{name}-shop"}) for name in policies},
        "KarpenterInterruptionQueue": ("AWS::SQS::Queue", {"QueueName": "shop"}),
        "KarpenterInterruptionQueuePolicy": ("AWS::SQS::QueuePolicy", {}),
        "ScheduledChangeRule": ("AWS::Events::Rule", {}),
        "SpotInterruptionRule": ("AWS::Events::Rule", {}),
        "RebalanceRule": ("AWS::Events::Rule", {}),
        "InstanceStateChangeRule": ("AWS::Events::Rule", {}),
    }
    return {"Resources": {name: {"Type": kind, "Properties": given} for name, (kind, given) in resources.items()}}


ONE_POLICY = karpenter_stack("KarpenterControllerPolicy")
SIX_POLICIES = karpenter_stack(*(f"KarpenterController{part}Policy" for part in _POLICIES))
_KEEP = {"ControllerRole": "shop-karpenter", "NodeAccess": "exists"}


def test_the_stack_has_all_resources_of_the_controller() -> None:
    """AWS-725 to AWS-732"""
    resources = active(stack(), {})
    kinds = [resource["Type"] for resource in resources.values()]
    assert kinds.count("AWS::Events::Rule") == 5
    assert kinds.count("AWS::IAM::ManagedPolicy") == 6
    assert resources["KarpenterNodeRole"]["Properties"]["RoleName"] == "KarpenterNodeRole-shop"
    assert resources["KarpenterInterruptionQueue"]["Properties"] == {
        "QueueName": "shop",
        "MessageRetentionPeriod": 300,
        "SqsManagedSseEnabled": True,
    }


@pytest.mark.parametrize(
    ("mode", "entries"), [("API", 1), ("API_AND_CONFIG_MAP", 1), ("CONFIG_MAP", 0)], ids=lambda value: str(value)
)
def test_the_stack_deploys_in_each_authentication_mode_and_has_an_access_entry_where_the_cluster_takes_one(
    mode: str, entries: int
) -> None:
    """AWS-726: EKS refuses access entries in mode CONFIG_MAP, and the stack would fail."""
    changes = StackAccount(mode).deploy("karpenter-shop", stack(), AuthenticationMode=mode)
    assert len([name for name in changes.created if name == "NodeAccessEntry"]) == entries
    assert {"KarpenterNodeRole", "KarpenterInterruptionQueue", "KarpenterControllerRole"} <= set(changes.created)


def test_the_stack_of_a_self_managed_cluster_has_no_eks_resources() -> None:
    """AWS-941: no access entry and no pod identity; the controller's role is for the instances that it runs on."""
    template = stack("--bootstrap-mode", "kubeadm")
    resources = template["Resources"]
    assert not [resource for resource in resources.values() if resource["Type"].startswith("AWS::EKS::")]
    assert "eks:DescribeCluster" not in json.dumps(resources)
    assert "AmazonEKS" not in json.dumps(resources)
    assert (set(template["Parameters"]), set(template["Conditions"])) == ({"ControllerRole"}, {"CreatesControllerRole"})
    (statement,) = resources["KarpenterControllerRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "ec2.amazonaws.com"}
    assert resources["KarpenterControllerInstanceProfile"]["Properties"] == {
        "InstanceProfileName": "KarpenterController-shop",
        "Roles": [{"Ref": "KarpenterControllerRole"}],
    }
    assert {"KarpenterNodeRole", "KarpenterInterruptionQueue", "SpotInterruptionRule"} <= set(resources)


def test_the_stack_of_a_self_managed_cluster_deploys_without_an_eks_cluster() -> None:
    account = StackAccount("CONFIG_MAP")  # it takes no access entries
    changes = account.deploy("karpenter-shop", stack("--bootstrap-mode", "kubeadm"))
    assert {"KarpenterControllerRole", "KarpenterControllerInstanceProfile"} <= set(changes.created)
    kept = active(stack("--bootstrap-mode", "kubeadm"), {"ControllerRole": "own"})
    assert not {"KarpenterControllerRole", "KarpenterControllerInstanceProfile"} & set(kept)


def test_a_service_account_for_a_self_managed_cluster_is_refused() -> None:
    words = ["--cluster-name", "shop", "--region", "eu-central-1", "--account", "123456789012", "-o", "cloudformation"]
    more = ["--bootstrap-mode", "kubeadm", "--service-account", "karpenter:karpenter"]
    done = CliRunner().invoke(app, ["iam-policy", *words, *more])
    assert (done.exit_code, done.stderr) == (
        2,
        "karpenter iam-policy: --service-account is for pod identities, which only EKS has: leave it out\n",
    )


def test_the_stack_fails_without_the_parameter_for_clusters_without_access_entries() -> None:
    with pytest.raises(DeploymentFailed, match="authentication mode"):
        StackAccount("CONFIG_MAP").deploy("karpenter-shop", stack())


@pytest.mark.parametrize("theirs", [ONE_POLICY, SIX_POLICIES], ids=["until 1.7", "since 1.8"])
def test_names_shared_with_a_stack_of_karpenter_belong_to_the_same_resource(theirs: Mapping[str, Any]) -> None:
    """Issue 17: a name under another logical ID would collide; under the same one CloudFormation updates in place."""
    ours, others = active(stack(), {}), theirs["Resources"]
    for logical, resource in ours.items():
        names = {value for key, value in resource["Properties"].items() if key.endswith("Name")}
        same = [
            other
            for other, theirs_resource in others.items()
            if theirs_resource["Type"] == resource["Type"] and names & set(theirs_resource["Properties"].values())
        ]
        assert same in ([], [logical])


@pytest.mark.parametrize(
    ("theirs", "deleted"),
    [(ONE_POLICY, ("KarpenterControllerPolicy",)), (SIX_POLICIES, ())],
    ids=["until 1.7", "since 1.8"],
)
@pytest.mark.parametrize("mode", ["API", "CONFIG_MAP"])
def test_a_stack_of_karpenter_is_updated_in_place_and_back(
    theirs: Mapping[str, Any], deleted: tuple[str, ...], mode: str
) -> None:
    """Issue 17: role, queue and rules stay unchanged, and the controller keeps its role and its pod identity."""
    account = StackAccount(mode, foreign={_POD_IDENTITY, *([_ACCESS_ENTRY] if mode == "API" else [])})
    account.deploy("Karpenter-shop", theirs)
    changes = account.deploy("Karpenter-shop", stack(), AuthenticationMode=mode, **_KEEP)
    assert changes.deleted == deleted
    assert set(changes.updated) == theirs["Resources"].keys() - set(deleted)
    assert not any("Identity" in name or "Role" in name or "Entry" in name for name in changes.created)
    handed_back = account.deploy("Karpenter-shop", theirs)
    assert {"KarpenterNodeRole", "KarpenterInterruptionQueue"} <= set(handed_back.updated)
    assert not {"KarpenterNodeRole", "KarpenterInterruptionQueue"} & set(handed_back.deleted)


@pytest.mark.parametrize("theirs", [ONE_POLICY, SIX_POLICIES], ids=["until 1.7", "since 1.8"])
def test_a_second_stack_beside_that_of_karpenter_fails(theirs: Mapping[str, Any]) -> None:
    """Role and queue have the names that Karpenter gives them: the migration guide says to update the stack instead."""
    account = StackAccount()
    account.deploy("Karpenter-shop", theirs)
    with pytest.raises(DeploymentFailed, match="already exists"):
        account.deploy("karpenter-shop", stack())


def test_a_takeover_without_the_existing_pod_identity_fails_and_changes_nothing() -> None:
    account = StackAccount(foreign={_POD_IDENTITY})
    account.deploy("Karpenter-shop", SIX_POLICIES)
    with pytest.raises(DeploymentFailed, match=r"KarpenterControllerIdentity: .* already exists"):
        account.deploy("Karpenter-shop", stack())
    assert account.deploy("Karpenter-shop", SIX_POLICIES).created == ()


def test_the_policies_are_attached_to_the_existing_controller_role() -> None:
    """AWS-718"""
    made, kept = active(stack(), {}), active(stack(), _KEEP)
    policies = [f"KarpenterController{part}Policy" for part in _POLICIES]
    assert [made[name]["Properties"]["Roles"] for name in policies] == [[{"Ref": "KarpenterControllerRole"}]] * 6
    assert [kept[name]["Properties"]["Roles"] for name in policies] == [["shop-karpenter"]] * 6
    assert made.keys() - kept.keys() == {"KarpenterControllerRole", "KarpenterControllerIdentity", "NodeAccessEntry"}


def test_the_stack_gives_its_role_to_the_named_service_account() -> None:
    """AWS-732: the release may live in a namespace of its own."""
    resources = active(stack("--service-account", "autoscaling:karpenter"), {})
    identity = resources["KarpenterControllerIdentity"]["Properties"]
    assert (identity["Namespace"], identity["ServiceAccount"]) == ("autoscaling", "karpenter")
