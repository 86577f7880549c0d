"""The AWS calls that only ``karpenter doctor`` makes, implemented on botocore. All methods raise ``AwsError``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import msgspec

from karpenter.providers.aws.aws_types import AwsStruct
from karpenter.providers.aws.doctor.doctor_types import EventBridgeRule, PermissionQuery, RoleDescription
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.aws.sdk.service_client import MARKER, NEXT_TOKEN, ApiOperation, RateLimitGroup

_ALLOWED = "allowed"
_ENABLED = "ENABLED"


class _Evaluation(AwsStruct, frozen=True, kw_only=True):
    eval_action_name: str
    eval_decision: str


class _Role(AwsStruct, frozen=True, kw_only=True):
    arn: str
    assume_role_policy_document: object = None


class _QueueAttributes(AwsStruct, frozen=True, kw_only=True):
    queue_arn: str


class _EventPattern(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    source: tuple[str, ...] = ()
    detail_type: tuple[str, ...] = ()


class _RuleDescription(AwsStruct, frozen=True, kw_only=True):
    name: str = ""
    event_pattern: str = "{}"
    state: str = _ENABLED


class _AccessEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str = ""


class _Key(AwsStruct, frozen=True, kw_only=True):
    key_state: str = ""


class _Quota(AwsStruct, frozen=True, kw_only=True):
    value: float = 0.0


_SIMULATE = ApiOperation(
    "SimulatePrincipalPolicy",
    "EvaluationResults",
    tuple[_Evaluation, ...],
    RateLimitGroup.IAM,
    pagination=MARKER,
)
_GET_ROLE = ApiOperation("GetRole", "Role", _Role, RateLimitGroup.IAM)
_QUEUE_ATTRIBUTES = ApiOperation("GetQueueAttributes", "Attributes", _QueueAttributes, RateLimitGroup.QUEUE)
_RULE_NAMES = ApiOperation(
    "ListRuleNamesByTarget", "RuleNames", tuple[str, ...], RateLimitGroup.QUEUE, pagination=NEXT_TOKEN
)
_RULE = ApiOperation("DescribeRule", "", _RuleDescription, RateLimitGroup.QUEUE)
_ACCESS_ENTRY = ApiOperation("DescribeAccessEntry", "accessEntry", _AccessEntry, RateLimitGroup.EKS)
_KEY = ApiOperation("DescribeKey", "KeyMetadata", _Key, RateLimitGroup.IAM)
_QUOTA = ApiOperation("GetServiceQuota", "Quota", _Quota, RateLimitGroup.IAM)


def _context_entry(key: str, values: Iterable[str]) -> dict[str, object]:
    return {"ContextKeyName": key, "ContextKeyValues": list(values), "ContextKeyType": "string"}


class DoctorClient:
    """See ``DoctorApi``."""

    def __init__(self, session: AwsSession) -> None:
        self._session = session

    async def denied_actions(self, query: PermissionQuery) -> tuple[str, ...]:
        """See ``DoctorApi``."""
        entries = [_context_entry(key, values) for key, values in sorted(query.context.items())]
        request = {
            "PolicySourceArn": query.principal,
            "ActionNames": list(query.actions),
            "ResourceArns": list(query.resources),
            "ContextEntries": entries,
        }
        evaluations = await self._session.service("iam").call_all_pages(_SIMULATE, request)
        denied = {answer.eval_action_name for answer in evaluations if answer.eval_decision != _ALLOWED}
        return tuple(sorted(denied))

    async def get_role(self, name: str) -> RoleDescription:
        """See ``DoctorApi``."""
        role = await self._session.service("iam").call(_GET_ROLE, {"RoleName": name})
        return RoleDescription(role.arn, tuple(sorted(_trusted_services(role.assume_role_policy_document))))

    async def get_queue_arn(self, url: str) -> str:
        """See ``DoctorApi``."""
        request = {"QueueUrl": url, "AttributeNames": ["QueueArn"]}
        return (await self._session.service("sqs").call(_QUEUE_ATTRIBUTES, request)).queue_arn

    async def rules_targeting(self, target_arn: str) -> Sequence[EventBridgeRule]:
        """See ``DoctorApi``."""
        events = self._session.service("events")
        names = await events.call_all_pages(_RULE_NAMES, {"TargetArn": target_arn})
        rules = [await events.call(_RULE, {"Name": name}) for name in names]
        return [_event_rule(rule_description) for rule_description in rules if rule_description.state == _ENABLED]

    async def get_access_entry_type(self, cluster: str, principal: str) -> str:
        """See ``DoctorApi``."""
        request = {"clusterName": cluster, "principalArn": principal}
        return (await self._session.service("eks").call(_ACCESS_ENTRY, request)).type

    async def get_key_state(self, key: str) -> str:
        """See ``DoctorApi``."""
        return (await self._session.service("kms").call(_KEY, {"KeyId": key})).key_state

    async def get_vcpu_quota(self, code: str) -> float:
        """See ``DoctorApi``."""
        request = {"ServiceCode": "ec2", "QuotaCode": code}
        return (await self._session.service("service-quotas").call(_QUOTA, request)).value


def _event_rule(facts: _RuleDescription) -> EventBridgeRule:
    pattern = msgspec.json.decode(facts.event_pattern, type=_EventPattern)
    return EventBridgeRule(facts.name, pattern.source, pattern.detail_type)


def _trusted_services(document: object) -> set[str]:
    """Services that a trust policy lets take the role on. IAM returns the policy URL-encoded; botocore decodes it."""
    policy = json.loads(unquote(document)) if isinstance(document, str) else document
    statements = policy.get("Statement", []) if isinstance(policy, dict) else []
    services: set[str] = set()
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal", {})
        principals = principal.get("Service", []) if isinstance(principal, dict) else []
        services |= {principals} if isinstance(principals, str) else set(principals)
    return services
