"""The least the controller needs to be allowed, and what must be there around it (AWS §16).

Statements are data, so that a test can hold every call of the adapters against them: a policy kept by hand falls behind the code,
and a missing action shows only when the call is made. Actions on what is bought ask for the cluster's tags; that is why every
request carries them (AWS-721).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NODE_POOL_TAG = "karpenter.sh/nodepool"
NODE_CLAIM_TAG = "karpenter.sh/nodeclaim"
NODE_CLASS_TAG = "karpenter.k8s.aws/ec2nodeclass"
EKS_CLUSTER_TAG = "eks:eks-cluster-name"
#: Managed policies of the node role (AWS-725).
NODE_POLICIES = (
    "AmazonEKS_CNI_Policy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
)
_VERSION = "2012-10-17"
_DESCRIBED = (
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

Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]


@dataclass(frozen=True)
class Place:
    """Where the controller works: the cluster, its region, account and partition (``aws``, ``aws-cn``, ``aws-us-gov``).

    ``node_role`` and ``queue`` are names; the usual ones where empty (AWS-725, AWS-730).
    """

    cluster: str
    region: str
    account: str
    partition: str = "aws"
    node_role: str = ""
    queue: str = ""

    @property
    def node_role_name(self) -> str:
        """The role machines run under."""
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
class Statement:
    """One permission."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Conditions = field(default_factory=dict)

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
class Policy:
    """Statements that belong together: each policy is below the size a managed one may have."""

    part: str
    statements: tuple[Statement, ...]


def policy_name(part: str, cluster: str) -> str:
    """AWS-718"""
    return f"KarpenterController{part}Policy-{cluster}"


def document(statements: Sequence[Statement]) -> dict[str, object]:
    """A policy document."""
    return {"Version": _VERSION, "Statement": [statement.as_json() for statement in statements]}


def policies(place: Place) -> tuple[Policy, ...]:
    """Everything the controller may do, in six policies (AWS-700 to AWS-718)."""
    return (
        Policy("NodeLifecycle", tuple(_node_lifecycle(place))),
        Policy("IAMIntegration", tuple(_iam(place))),
        Policy(
            "EKSIntegration", (_statement("AllowAPIServerEndpointDiscovery", "eks:DescribeCluster", place.cluster_arn),)
        ),
        Policy("Interruption", (_queue(place),)),
        Policy("ZonalShift", (_zonal_shift(place),)),
        Policy("ResourceDiscovery", tuple(_discovery(place))),
    )


def allowed_actions(place: Place) -> frozenset[str]:
    """Every action named anywhere, such as ``ec2:RunInstances``."""
    return frozenset(
        action for policy in policies(place) for statement in policy.statements for action in statement.actions
    )


def _statement(sid: str, actions: str, *resources: str, **conditions: Mapping[str, str | Sequence[str]]) -> Statement:
    return Statement(sid, tuple(actions.split()), resources, conditions)


def _owned(place: Place) -> str:
    return f"kubernetes.io/cluster/{place.cluster}"


def _requested(place: Place) -> Conditions:
    """Conditions on what a request tags its makings with."""
    return {
        "StringEquals": {
            f"aws:RequestTag/{_owned(place)}": "owned",
            f"aws:RequestTag/{EKS_CLUSTER_TAG}": place.cluster,
        },
        "StringLike": {f"aws:RequestTag/{NODE_POOL_TAG}": "*"},
    }


def _tagged(place: Place) -> Conditions:
    """Conditions on what a resource is tagged with."""
    return {
        "StringEquals": {f"aws:ResourceTag/{_owned(place)}": "owned"},
        "StringLike": {f"aws:ResourceTag/{NODE_POOL_TAG}": "*"},
    }


def _node_lifecycle(place: Place) -> Iterator[Statement]:
    made = place.ec2("fleet instance volume network-interface launch-template spot-instances-request")
    buying = "ec2:RunInstances ec2:CreateFleet"
    inputs = (
        place.arn("ec2", "image/*", account=""),
        place.arn("ec2", "snapshot/*", account=""),
        *place.ec2("security-group subnet capacity-reservation placement-group"),
    )
    yield _statement("AllowScopedEC2InstanceAccessActions", buying, *inputs)
    yield _statement(
        "AllowScopedEC2LaunchTemplateAccessActions", buying, *place.ec2("launch-template"), **_tagged(place)
    )
    yield _statement(
        "AllowScopedEC2InstanceActionsWithTags", f"{buying} ec2:CreateLaunchTemplate", *made, **_requested(place)
    )
    creating = {"ec2:CreateAction": ("RunInstances", "CreateFleet", "CreateLaunchTemplate")}
    requested = _requested(place)
    yield _statement(
        "AllowScopedResourceCreationTagging",
        "ec2:CreateTags",
        *made,
        StringEquals={**requested["StringEquals"], **creating},
        StringLike=requested["StringLike"],
    )
    yield _statement(
        "AllowScopedResourceTagging",
        "ec2:CreateTags",
        *place.ec2("instance"),
        **_tagged(place),
        StringEqualsIfExists={f"aws:RequestTag/{EKS_CLUSTER_TAG}": place.cluster},
        **{"ForAllValues:StringEquals": {"aws:TagKeys": (EKS_CLUSTER_TAG, NODE_CLAIM_TAG, "Name")}},
    )
    yield _statement(
        "AllowScopedDeletion",
        "ec2:TerminateInstances ec2:DeleteLaunchTemplate",
        *place.ec2("instance launch-template"),
        **_tagged(place),
    )


def _iam(place: Place) -> Iterator[Statement]:
    profiles = place.arn("iam", "instance-profile/*", region="")
    ours = {f"{_owned(place)}": "owned", "topology.kubernetes.io/region": place.region}
    on_resource = {f"aws:ResourceTag/{key}": value for key, value in ours.items()}
    in_request = {f"aws:RequestTag/{key}": value for key, value in {**ours, EKS_CLUSTER_TAG: place.cluster}.items()}
    class_of_resource = {f"aws:ResourceTag/{NODE_CLASS_TAG}": "*"}
    class_in_request = {f"aws:RequestTag/{NODE_CLASS_TAG}": "*"}
    yield _statement(
        "AllowPassingInstanceRole",
        "iam:PassRole",
        place.arn("iam", f"role/{place.node_role_name}", region=""),
        StringEquals={"iam:PassedToService": ("ec2.amazonaws.com", "ec2.amazonaws.com.cn")},
    )
    yield _statement(
        "AllowScopedInstanceProfileCreationActions",
        "iam:CreateInstanceProfile",
        profiles,
        StringEquals=in_request,
        StringLike=class_in_request,
    )
    yield _statement(
        "AllowScopedInstanceProfileTagActions",
        "iam:TagInstanceProfile",
        profiles,
        StringEquals={**on_resource, **in_request},
        StringLike={**class_of_resource, **class_in_request},
    )
    yield _statement(
        "AllowScopedInstanceProfileActions",
        "iam:AddRoleToInstanceProfile iam:RemoveRoleFromInstanceProfile iam:DeleteInstanceProfile",
        profiles,
        StringEquals=on_resource,
        StringLike=class_of_resource,
    )


def _queue(place: Place) -> Statement:
    return _statement(
        "AllowInterruptionQueueActions",
        "sqs:DeleteMessage sqs:GetQueueUrl sqs:ReceiveMessage",
        place.arn("sqs", place.queue_name),
    )


def _zonal_shift(place: Place) -> Statement:
    return _statement(
        "AllowZonalShiftStatusReadOnly",
        "arc-zonal-shift:GetManagedResource",
        "*",
        StringEquals={"arc-zonal-shift:ResourceIdentifier": place.cluster_arn},
    )


def _discovery(place: Place) -> Iterator[Statement]:
    yield _statement(
        "AllowRegionalReadActions",
        " ".join(f"ec2:Describe{what}" for what in _DESCRIBED),
        "*",
        StringEquals={"aws:RequestedRegion": place.region},
    )
    yield _statement("AllowSSMReadActions", "ssm:GetParameter", place.arn("ssm", "parameter/aws/service/*", account=""))
    yield _statement("AllowPricingReadActions", "pricing:GetProducts", "*")
    yield _statement("AllowUnscopedInstanceProfileListAction", "iam:ListInstanceProfiles", "*")
    yield _statement(
        "AllowInstanceProfileReadActions",
        "iam:GetInstanceProfile",
        place.arn("iam", "instance-profile/*", region=""),
    )
