"""What the doctor asks of AWS that the controller never does. All methods raise ``AwsError``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from karpenter.providers.aws.iam import Conditions


class Trial(NamedTuple):
    """Would this principal be allowed these actions on these resources, with these values in the request's context?"""

    principal: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    context: Mapping[str, tuple[str, ...]]


class RoleFacts(NamedTuple):
    """A role: its ARN, and the services that may take it on."""

    arn: str
    services: tuple[str, ...]


class Rule(NamedTuple):
    """An EventBridge rule that feeds a queue: sources and detail types it matches."""

    name: str
    sources: tuple[str, ...]
    detail_types: tuple[str, ...]


class DoctorPort(Protocol):
    """Calls for examinations."""

    async def refused_actions(self, trial: Trial) -> tuple[str, ...]:
        """The actions of the trial that would be refused (iam:SimulatePrincipalPolicy)."""

    async def get_role(self, name: str) -> RoleFacts:
        """A role; ``NoSuchEntity``."""

    async def get_queue_arn(self, url: str) -> str:
        """A queue's ARN."""

    async def rules_feeding(self, target_arn: str) -> Sequence[Rule]:
        """The enabled rules of the default bus with this target."""

    async def get_access_entry_type(self, cluster: str, principal: str) -> str:
        """The type of an EKS access entry, such as EC2_LINUX; ``ResourceNotFoundException``."""

    async def get_key_state(self, key: str) -> str:
        """The state of a KMS key, such as Enabled."""

    async def get_vcpu_quota(self, code: str) -> float:
        """An EC2 quota in vCPUs."""


def context_of(conditions: Conditions) -> dict[str, tuple[str, ...]]:
    """A request's context in which conditions hold: each key with a value they ask for."""
    return {
        key: (expected.replace("*", "x"),) if isinstance(expected, str) else (expected[0],)
        for operator in conditions.values()
        for key, expected in operator.items()
    }
