"""The least the controller needs to be allowed, and what must be there around it (AWS §16).

Statements are data, so that a test can hold every call of the adapters against them: a policy kept by hand falls behind the code,
and a missing action shows only when the call is made. Actions on what is launched ask for the cluster's tags; that is why every
request carries them (AWS-721).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from karpenter.model.labels import NODE_POOL
from karpenter.providers.aws.aws_labels import CLUSTER_TAG, NODE_CLAIM_TAG, NODE_CLASS
from karpenter.providers.aws.aws_partitions import partition_by_id
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, TokenDelivery

#: Managed policies of every node role, and those that nodes of EKS need beside them (AWS-725).
_NODE_POLICIES = ("AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore")
_EKS_NODE_POLICIES = ("AmazonEKS_CNI_Policy", "AmazonEKSWorkerNodePolicy")
_VERSION = "2012-10-17"
_DESCRIBE_ACTIONS = (
    "CapacityReservations",
    "Images",
    "Instances",
    "InstanceStatus",
    "InstanceTypeOfferings",
    "InstanceTypes",
    "LaunchTemplates",
    "PlacementGroups",
    "SecurityGroups",
    "SpotPriceHistory",
    "Subnets",
)

IamConditions = Mapping[str, Mapping[str, str | Sequence[str]]]


@dataclass(frozen=True)
class ClusterLocation:
    """Where the controller works: the cluster, its region, account and partition (``aws``, ``aws-cn``, ``aws-us-gov``).

    ``node_role`` and ``queue`` are names; the usual ones where empty (AWS-725, AWS-730). ``bootstrap_mode`` and
    ``token_delivery`` are the settings of these names.
    """

    cluster: str
    region: str
    account: str
    partition: str = "aws"
    node_role: str = ""
    queue: str = ""
    bootstrap_mode: BootstrapMode = BootstrapMode.EKS
    token_delivery: TokenDelivery = TokenDelivery.PER_CLAIM

    @property
    def node_role_name(self) -> str:
        """The role instances run under."""
        return self.node_role or f"KarpenterNodeRole-{self.cluster}"

    @property
    def queue_name(self) -> str:
        """The interruption queue."""
        return self.queue or self.cluster

    @property
    def cluster_arn(self) -> str:
        """The EKS cluster."""
        return self.arn("eks", f"cluster/{self.cluster}")

    def arn(self, service: str, resource: str, region: str | None = None, account: str | None = None) -> str:
        """An ARN of this place."""
        where = self.region if region is None else region
        whose = self.account if account is None else account
        return f"arn:{self.partition}:{service}:{where}:{whose}:{resource}"

    def ec2(self, kinds: str) -> tuple[str, ...]:
        """EC2 resources of these kinds, of any account."""
        return tuple(self.arn("ec2", f"{kind}/*", account="*") for kind in kinds.split())


@dataclass(frozen=True)
class IamStatement:
    """One permission."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: IamConditions = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """The statement as policies write it."""
        return {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": sorted(self.actions),
            "Resource": sorted(self.resources),
            **({"Condition": self.conditions} if self.conditions else {}),
        }


@dataclass(frozen=True)
class IamPolicy:
    """Statements that belong together: each policy is below the size a managed one may have."""

    part: str
    statements: tuple[IamStatement, ...]


def policy_name(part: str, cluster: str) -> str:
    """The name of a managed policy (AWS-718)."""
    return f"KarpenterController{part}Policy-{cluster}"


def policy_document(statements: Sequence[IamStatement]) -> dict[str, object]:
    """A policy document."""
    return {"Version": _VERSION, "Statement": [statement.as_json() for statement in statements]}


def node_policies(mode: BootstrapMode) -> tuple[str, ...]:
    """Managed policies of the node role (AWS-725); nodes of self-managed clusters call neither EKS nor, as a rule, the VPC CNI
    (AWS-874)."""
    return (*_EKS_NODE_POLICIES, *_NODE_POLICIES) if mode is BootstrapMode.EKS else _NODE_POLICIES


def controller_policies(location: ClusterLocation) -> tuple[IamPolicy, ...]:
    """Everything the controller may do (AWS-700 to AWS-718).

    Where the cluster is self-managed, without EKS and with the console output of its instances (AWS-932, AWS-941).
    """
    eks_discovery = _iam_statement("AllowAPIServerEndpointDiscovery", "eks:DescribeCluster", location.cluster_arn)
    is_eks = location.bootstrap_mode is BootstrapMode.EKS
    stores_tokens = location.token_delivery is TokenDelivery.PARAMETER
    return (
        IamPolicy("NodeLifecycle", tuple(_node_lifecycle(location))),
        IamPolicy("IAMIntegration", tuple(_iam(location))),
        *((IamPolicy("EKSIntegration", (eks_discovery,)),) if is_eks else ()),
        IamPolicy("Interruption", (_queue(location),)),
        *((IamPolicy("ZonalShift", (_zonal_shift(location),)),) if is_eks else ()),
        IamPolicy("ResourceDiscovery", tuple(_discovery(location))),
        *((IamPolicy("BootstrapTokens", (_token_parameters(location),)),) if stores_tokens else ()),
    )


def allowed_actions(location: ClusterLocation) -> frozenset[str]:
    """Every action named anywhere, such as ``ec2:RunInstances``."""
    return frozenset(
        action
        for policy in controller_policies(location)
        for statement in policy.statements
        for action in statement.actions
    )


def _iam_statement(
    sid: str, actions: str, *resources: str, **conditions: Mapping[str, str | Sequence[str]]
) -> IamStatement:
    return IamStatement(sid, tuple(actions.split()), resources, conditions)


def _ownership_tag_key(location: ClusterLocation) -> str:
    return f"kubernetes.io/cluster/{location.cluster}"


def _request_tag_conditions(location: ClusterLocation) -> IamConditions:
    """Conditions on what a request tags its makings with."""
    return {
        "StringEquals": {
            f"aws:RequestTag/{_ownership_tag_key(location)}": "owned",
            f"aws:RequestTag/{CLUSTER_TAG}": location.cluster,
        },
        "StringLike": {f"aws:RequestTag/{NODE_POOL}": "*"},
    }


def _resource_tag_conditions(location: ClusterLocation) -> IamConditions:
    """Conditions on what a resource is tagged with."""
    return {
        "StringEquals": {f"aws:ResourceTag/{_ownership_tag_key(location)}": "owned"},
        "StringLike": {f"aws:ResourceTag/{NODE_POOL}": "*"},
    }


def _node_lifecycle(location: ClusterLocation) -> Iterator[IamStatement]:
    created = location.ec2("fleet instance volume network-interface launch-template spot-instances-request")
    launching = "ec2:RunInstances ec2:CreateFleet"
    inputs = (
        location.arn("ec2", "image/*", account=""),
        location.arn("ec2", "snapshot/*", account=""),
        *location.ec2("security-group subnet capacity-reservation placement-group"),
    )
    yield _iam_statement("AllowScopedEC2InstanceAccessActions", launching, *inputs)
    yield _iam_statement(
        "AllowScopedEC2LaunchTemplateAccessActions",
        launching,
        *location.ec2("launch-template"),
        **_resource_tag_conditions(location),
    )
    yield _iam_statement(
        "AllowScopedEC2InstanceActionsWithTags",
        f"{launching} ec2:CreateLaunchTemplate",
        *created,
        **_request_tag_conditions(location),
    )
    creating = {"ec2:CreateAction": ("RunInstances", "CreateFleet", "CreateLaunchTemplate")}
    requested = _request_tag_conditions(location)
    yield _iam_statement(
        "AllowScopedResourceCreationTagging",
        "ec2:CreateTags",
        *created,
        StringEquals={**requested["StringEquals"], **creating},
        StringLike=requested["StringLike"],
    )
    yield _iam_statement(
        "AllowScopedResourceTagging",
        "ec2:CreateTags",
        *location.ec2("instance"),
        **_resource_tag_conditions(location),
        StringEqualsIfExists={f"aws:RequestTag/{CLUSTER_TAG}": location.cluster},
        **{"ForAllValues:StringEquals": {"aws:TagKeys": (CLUSTER_TAG, NODE_CLAIM_TAG, "Name")}},
    )
    yield _iam_statement(
        "AllowScopedDeletion",
        "ec2:TerminateInstances ec2:RebootInstances ec2:DeleteLaunchTemplate",
        *location.ec2("instance launch-template"),
        **_resource_tag_conditions(location),
    )


def _ec2_principals(location: ClusterLocation) -> tuple[str, ...]:
    """EC2 as the partition calls it, beside the names it has in the commercial partition and in China."""
    usual = ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")
    own = partition_by_id(location.partition).ec2_principal
    return usual if own in usual else (*usual, own)


def _iam(location: ClusterLocation) -> Iterator[IamStatement]:
    profiles = location.arn("iam", "instance-profile/*", region="")
    ours = {f"{_ownership_tag_key(location)}": "owned", "topology.kubernetes.io/region": location.region}
    on_resource = {f"aws:ResourceTag/{key}": value for key, value in ours.items()}
    in_request = {f"aws:RequestTag/{key}": value for key, value in {**ours, CLUSTER_TAG: location.cluster}.items()}
    class_of_resource = {f"aws:ResourceTag/{NODE_CLASS}": "*"}
    class_in_request = {f"aws:RequestTag/{NODE_CLASS}": "*"}
    yield _iam_statement(
        "AllowPassingInstanceRole",
        "iam:PassRole",
        location.arn("iam", f"role/{location.node_role_name}", region=""),
        StringEquals={"iam:PassedToService": _ec2_principals(location)},
    )
    yield _iam_statement(
        "AllowScopedInstanceProfileCreationActions",
        "iam:CreateInstanceProfile",
        profiles,
        StringEquals=in_request,
        StringLike=class_in_request,
    )
    yield _iam_statement(
        "AllowScopedInstanceProfileTagActions",
        "iam:TagInstanceProfile",
        profiles,
        StringEquals={**on_resource, **in_request},
        StringLike={**class_of_resource, **class_in_request},
    )
    yield _iam_statement(
        "AllowScopedInstanceProfileActions",
        "iam:AddRoleToInstanceProfile iam:RemoveRoleFromInstanceProfile iam:DeleteInstanceProfile",
        profiles,
        StringEquals=on_resource,
        StringLike=class_of_resource,
    )


def _queue(location: ClusterLocation) -> IamStatement:
    return _iam_statement(
        "AllowInterruptionQueueActions",
        "sqs:DeleteMessage sqs:GetQueueUrl sqs:ReceiveMessage",
        location.arn("sqs", location.queue_name),
    )


def _zonal_shift(location: ClusterLocation) -> IamStatement:
    return _iam_statement(
        "AllowZonalShiftStatusReadOnly",
        "arc-zonal-shift:GetManagedResource",
        "*",
        StringEquals={"arc-zonal-shift:ResourceIdentifier": location.cluster_arn},
    )


def _token_parameters(location: ClusterLocation) -> IamStatement:
    """The right to write and delete the bootstrap tokens of this cluster in Parameter Store (AWS-941)."""
    parameters = location.arn("ssm", f"parameter/karpenter/{location.cluster}/*")
    return _iam_statement("AllowBootstrapTokenParameters", "ssm:PutParameter ssm:DeleteParameter", parameters)


def _discovery(location: ClusterLocation) -> Iterator[IamStatement]:
    yield _iam_statement(
        "AllowRegionalReadActions",
        " ".join(f"ec2:Describe{what}" for what in _DESCRIBE_ACTIONS),
        "*",
        StringEquals={"aws:RequestedRegion": location.region},
    )
    if location.bootstrap_mode is BootstrapMode.KUBEADM:
        yield _iam_statement(
            "AllowScopedConsoleOutput",
            "ec2:GetConsoleOutput",
            *location.ec2("instance"),
            **_resource_tag_conditions(location),
        )
    parameters = location.arn("ssm", "parameter/aws/service/*", account="")
    yield _iam_statement("AllowSSMReadActions", "ssm:GetParameter", parameters)
    yield _iam_statement("AllowPricingReadActions", "pricing:GetProducts", "*")
    yield _iam_statement("AllowUnscopedInstanceProfileListAction", "iam:ListInstanceProfiles", "*")
    profiles = location.arn("iam", "instance-profile/*", region="")
    yield _iam_statement("AllowInstanceProfileReadActions", "iam:GetInstanceProfile", profiles)
