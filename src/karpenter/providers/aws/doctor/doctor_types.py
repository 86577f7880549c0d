"""What a check found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.iam_policies import ClusterLocation, IamConditions
from karpenter.providers.aws.live_instance_types import AnswerCache, default_cache_directory


class FindingLevel(StrEnum):
    """How bad it is: nothing to do, will hurt some day, does not work."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one check: its name, severity and text; then the impact, and the command or statement that fixes it."""

    check: str
    level: FindingLevel
    text: str
    impact: str = ""
    fix: str = ""


@dataclass(frozen=True)
class DoctorCheck:
    """Findings of one name."""

    name: str

    def ok(self, text: str) -> DoctorFinding:
        """All is well."""
        return DoctorFinding(self.name, FindingLevel.OK, text)

    def warning(self, text: str, impact: str, fix: str) -> DoctorFinding:
        """Something works, but not in all weathers."""
        return DoctorFinding(self.name, FindingLevel.WARNING, text, impact, fix)

    def failure(self, text: str, impact: str, fix: str) -> DoctorFinding:
        """Something does not work."""
        return DoctorFinding(self.name, FindingLevel.FAILURE, text, impact, fix)


@dataclass(frozen=True)
class DoctorSubject:
    """The input of the checks.

    ``principal`` is the ARN of the role whose permissions count. ``aws_auth`` is the text of ``mapRoles`` in ConfigMap
    kube-system/aws-auth; None where it cannot be read. ``classes`` and ``pools`` come from manifests or the cluster.
    ``answer_cache`` keeps instance types and prices.
    """

    services: AwsApis
    doctor_api: DoctorApi
    settings: AwsSettings
    location: ClusterLocation
    principal: str
    classes: tuple[EC2NodeClass, ...] = ()
    pools: tuple[NodePool, ...] = ()
    aws_auth: str | None = None
    answer_cache: AnswerCache = field(default_factory=lambda: AnswerCache(default_cache_directory()))

    @property
    def tag_command(self) -> str:
        """How to tag a resource so that the usual selectors find it."""
        return (
            f"aws ec2 create-tags --region {self.location.region} --resources ID "
            f"--tags Key=karpenter.sh/discovery,Value={self.location.cluster}"
        )


#: AWS-852: groups with this tag are the cluster's own for load balancers.
def ownership_tag(location: ClusterLocation) -> Mapping[str, str]:
    """The tag that says a resource is the cluster's."""
    return {f"kubernetes.io/cluster/{location.cluster}": "owned"}


class PermissionQuery(NamedTuple):
    """Would this principal be allowed these actions on these resources, with these values in the request's context?"""

    principal: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    context: Mapping[str, tuple[str, ...]]


class RoleDescription(NamedTuple):
    """A role: its ARN, and the services that may take it on."""

    arn: str
    trusted_services: tuple[str, ...]


class EventBridgeRule(NamedTuple):
    """An EventBridge rule that feeds a queue: sources and detail types it matches."""

    name: str
    sources: tuple[str, ...]
    detail_types: tuple[str, ...]


class DoctorApi(Protocol):
    """Calls for examinations."""

    async def denied_actions(self, query: PermissionQuery) -> tuple[str, ...]:
        """The actions of the query that would be refused (iam:SimulatePrincipalPolicy)."""

    async def get_role(self, name: str) -> RoleDescription:
        """A role; ``NoSuchEntity``."""

    async def get_queue_arn(self, url: str) -> str:
        """A queue's ARN."""

    async def rules_targeting(self, target_arn: str) -> Sequence[EventBridgeRule]:
        """The enabled rules of the default bus with this target."""

    async def get_access_entry_type(self, cluster: str, principal: str) -> str:
        """The type of an EKS access entry, such as EC2_LINUX; ``ResourceNotFoundException``."""

    async def get_key_state(self, key: str) -> str:
        """The state of a KMS key, such as Enabled."""

    async def get_vcpu_quota(self, code: str) -> float:
        """An EC2 quota in vCPUs."""


def request_context(conditions: IamConditions) -> dict[str, tuple[str, ...]]:
    """A request's context in which conditions hold: each key with a value they ask for."""
    return {
        key: (expected.replace("*", "x"),) if isinstance(expected, str) else (expected[0],)
        for operator in conditions.values()
        for key, expected in operator.items()
    }
