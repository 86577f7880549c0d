"""What only the doctor asks of AWS, over boto3. All methods raise ``AwsError``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from karpenter.providers.aws.boto.account import Account
from karpenter.providers.aws.boto.operations import Operation, Pages
from karpenter.providers.aws.boto.pacing import Group
from karpenter.providers.aws.doctor.ports import RoleFacts, Rule, Trial
from karpenter.providers.aws.shapes import Shape

_ALLOWED = "allowed"
_ENABLED = "ENABLED"


class _Evaluation(Shape, frozen=True, kw_only=True):
    eval_action_name: str
    eval_decision: str


class _Role(Shape, frozen=True, kw_only=True):
    arn: str
    assume_role_policy_document: object = None


class _QueueAttributes(Shape, frozen=True, kw_only=True):
    queue_arn: str


class _Pattern(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    source: tuple[str, ...] = ()
    detail_type: tuple[str, ...] = ()


class _RuleFacts(Shape, frozen=True, kw_only=True):
    name: str = ""
    event_pattern: str = "{}"
    state: str = _ENABLED


class _AccessEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str = ""


class _Key(Shape, frozen=True, kw_only=True):
    key_state: str = ""


class _Quota(Shape, frozen=True, kw_only=True):
    value: float = 0.0


_SIMULATE = Operation(
    "SimulatePrincipalPolicy", "EvaluationResults", tuple[_Evaluation, ...], Group.IAM, pages=Pages("Marker", "Marker")
)
_GET_ROLE = Operation("GetRole", "Role", _Role, Group.IAM)
_QUEUE_ATTRIBUTES = Operation("GetQueueAttributes", "Attributes", _QueueAttributes, Group.QUEUE)
_RULE_NAMES = Operation("ListRuleNamesByTarget", "RuleNames", tuple[str, ...], Group.QUEUE)
_RULE = Operation("DescribeRule", "", _RuleFacts, Group.QUEUE)
_ACCESS_ENTRY = Operation("DescribeAccessEntry", "accessEntry", _AccessEntry, Group.EKS)
_KEY = Operation("DescribeKey", "KeyMetadata", _Key, Group.IAM)
_QUOTA = Operation("GetServiceQuota", "Quota", _Quota, Group.IAM)


class Examiner:
    """See ``DoctorPort``."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def refused_actions(self, trial: Trial) -> tuple[str, ...]:
        """See ``DoctorPort``."""
        entries = [
            {"ContextKeyName": key, "ContextKeyValues": list(values), "ContextKeyType": "string"}
            for key, values in sorted(trial.context.items())
        ]
        request = {
            "PolicySourceArn": trial.principal,
            "ActionNames": list(trial.actions),
            "ResourceArns": list(trial.resources),
            "ContextEntries": entries,
        }
        found = await self._account.service("iam").all(_SIMULATE, request)
        return tuple(sorted({item.eval_action_name for item in found if item.eval_decision != _ALLOWED}))

    async def get_role(self, name: str) -> RoleFacts:
        """See ``DoctorPort``."""
        role = await self._account.service("iam").call(_GET_ROLE, {"RoleName": name})
        return RoleFacts(role.arn, tuple(sorted(_services(role.assume_role_policy_document))))

    async def get_queue_arn(self, url: str) -> str:
        """See ``DoctorPort``."""
        request = {"QueueUrl": url, "AttributeNames": ["QueueArn"]}
        return (await self._account.service("sqs").call(_QUEUE_ATTRIBUTES, request)).queue_arn

    async def rules_feeding(self, target_arn: str) -> Sequence[Rule]:
        """See ``DoctorPort``."""
        events = self._account.service("events")
        names = await events.all(_RULE_NAMES, {"TargetArn": target_arn})
        found = [await events.call(_RULE, {"Name": name}) for name in names]
        return [_rule(item) for item in found if item.state == _ENABLED]

    async def get_access_entry_type(self, cluster: str, principal: str) -> str:
        """See ``DoctorPort``."""
        request = {"clusterName": cluster, "principalArn": principal}
        return (await self._account.service("eks").call(_ACCESS_ENTRY, request)).type

    async def get_key_state(self, key: str) -> str:
        """See ``DoctorPort``."""
        return (await self._account.service("kms").call(_KEY, {"KeyId": key})).key_state

    async def get_vcpu_quota(self, code: str) -> float:
        """See ``DoctorPort``."""
        request = {"ServiceCode": "ec2", "QuotaCode": code}
        return (await self._account.service("service-quotas").call(_QUOTA, request)).value


def _rule(facts: _RuleFacts) -> Rule:
    pattern = msgspec.json.decode(facts.event_pattern, type=_Pattern)
    return Rule(facts.name, pattern.source, pattern.detail_type)


def _services(document: object) -> set[str]:
    """Services that a trust policy lets take the role on. IAM hands the policy out as text in URLs' spelling, boto3 decoded."""
    policy = json.loads(unquote(document)) if isinstance(document, str) else document
    statements = policy.get("Statement", []) if isinstance(policy, dict) else []
    services: set[str] = set()
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal", {})
        named = principal.get("Service", []) if isinstance(principal, dict) else []
        services |= {named} if isinstance(named, str) else set(named)
    return services
