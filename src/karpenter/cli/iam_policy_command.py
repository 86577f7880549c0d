"""``karpenter iam-policy``: the permissions the controller needs on AWS for one cluster, derived from the calls it makes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from karpenter.cli.terminal import WRONG_INPUT, exit_with_error, print_error, write_text
from karpenter.model.setting_kinds import is_placeholder
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, TokenDelivery

if TYPE_CHECKING:
    from karpenter.providers.aws.iam_policies import ClusterLocation, IamStatement

Format = Literal["json", "cloudformation"]
_ACCOUNT = re.compile(r"[0-9]{12}")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]")
_CLUSTER = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
_SERVICE_ACCOUNT_DEFAULT = "kube-system:karpenter"
_SERVICE_ACCOUNT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?:[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


#: For who restricts tag keys, as by a service control policy. Not in the document, which is JSON.
_TAG_NOTE = (
    "note: instances carry the tag karpenter.k8s.aws/launch-batch, which Karpenter does not set; policies that list the allowed "
    "tag keys must allow it, or switch it off with --launch-batch-tag=false"
)
_PartOption = Annotated[
    str, typer.Option(metavar="NAME", help="Only this policy, such as NodeLifecycle. Default: all in one document.")
]
_ServiceAccountOption = Annotated[
    str,
    typer.Option(metavar="NAMESPACE:NAME", help="The controller's ServiceAccount, for the stack of an EKS cluster."),
]
_ModeOption = Annotated[
    BootstrapMode,
    typer.Option(envvar="BOOTSTRAP_MODE", help="The kind of cluster; kubeadm needs no EKS permissions."),
]
_DeliveryOption = Annotated[
    TokenDelivery,
    typer.Option(
        envvar="BOOTSTRAP_TOKEN_DELIVERY", help="How bootstrap tokens travel; parameter needs SSM permissions."
    ),
]
_OutputOption = Annotated[
    Format, typer.Option("-o", "--output", help="A policy document, or a stack with roles, policies, queue and rules.")
]


def iam_policy(
    cluster_name: Annotated[str, typer.Option(envvar="CLUSTER_NAME", help="Name of the cluster.")],
    region: Annotated[str, typer.Option(envvar="AWS_REGION", help="Region of the cluster, such as eu-central-1.")],
    account: Annotated[str, typer.Option(metavar="ID", help="AWS account, twelve digits.")],
    partition: Annotated[str, typer.Option(help="AWS partition. Default: the region's.")] = "",
    node_role: Annotated[str, typer.Option(metavar="NAME", help="Node role. Default: KarpenterNodeRole-CLUSTER.")] = "",
    queue: Annotated[str, typer.Option(metavar="NAME", help="Interruption queue. Default: the cluster's name.")] = "",
    part: _PartOption = "",
    service_account: _ServiceAccountOption = _SERVICE_ACCOUNT_DEFAULT,
    bootstrap_mode: _ModeOption = BootstrapMode.EKS,
    bootstrap_token_delivery: _DeliveryOption = TokenDelivery.PER_CLAIM,
    output: _OutputOption = "json",
) -> None:
    """Print the minimal IAM policy for the controller. Makes no calls."""
    from karpenter.providers.aws import aws_partitions, cloudformation, iam_policies

    _check(_CLUSTER, "--cluster-name", cluster_name, "the name of an EKS cluster")
    _check(_REGION, "--region", region, "a region such as eu-central-1")
    _check(_ACCOUNT, "--account", account, "an account of twelve digits")
    _check(_SERVICE_ACCOUNT, "--service-account", service_account, "NAMESPACE:NAME")
    if bootstrap_mode is BootstrapMode.KUBEADM and service_account != _SERVICE_ACCOUNT_DEFAULT:
        _exit_with_error("--service-account is for pod identities, which only EKS has: leave it out")
    place = iam_policies.ClusterLocation(
        cluster_name,
        region,
        account,
        partition or aws_partitions.partition_of(region).id,
        node_role,
        queue,
        bootstrap_mode,
        bootstrap_token_delivery,
    )
    if output == "cloudformation":
        identity = cloudformation.ControllerServiceAccount(*service_account.split(":"))
        _print_json(cloudformation.cloudformation_template(place, identity))
        return
    _print_json(iam_policies.policy_document(_statements(place, part)))
    print_error(_TAG_NOTE)


def _statements(place: ClusterLocation, part: str) -> list[IamStatement]:
    from karpenter.providers.aws import iam_policies

    controller_policies = iam_policies.controller_policies(place)
    names = [policy.part for policy in controller_policies]
    if part and part not in names:
        _exit_with_error(f"--part={part!r} is not one of {', '.join(names)}")
    return [statement for policy in controller_policies if part in ("", policy.part) for statement in policy.statements]


def _check(pattern: re.Pattern[str], flag: str, value: str, expected: str) -> None:
    if is_placeholder(value):
        _exit_with_error(f"{flag}={value!r} is a placeholder; expected {expected}")
    if pattern.fullmatch(value) is None:
        _exit_with_error(f"{flag}={value!r} is not {expected}")


def _exit_with_error(message: str) -> NoReturn:
    exit_with_error(f"karpenter iam-policy: {message}", WRONG_INPUT)


def _print_json(value: object) -> None:
    write_text(json.dumps(value, indent=2) + "\n")
