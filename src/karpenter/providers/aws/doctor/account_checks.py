"""Permissions, quotas, cluster and queue: what holds for the whole account and cluster. And whether nodes can join: bootstrap
tokens of self-managed clusters (AWS-936), and the ConfigMap ``kube-system/aws-auth``, by which clusters without access entries
know the roles of their nodes (AWS-726).
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterable
from typing import NamedTuple

import yaml

from karpenter.api import kinds
from karpenter.api.control_plane import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.kube.protocol import Kube, Reader
from karpenter.model import labels, quantity
from karpenter.model.bounded_yaml import load_yaml
from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.token_issuer import missing_prerequisites
from karpenter.providers.aws.cloudformation import EVENT_RULES
from karpenter.providers.aws.doctor.doctor_types import (
    DoctorCheck,
    DoctorFinding,
    DoctorSubject,
    PermissionQuery,
    request_context,
)

_PERMISSIONS = DoctorCheck("permissions")
_CLUSTER = DoctorCheck("cluster")
_QUEUE = DoctorCheck("interruption queue")
_QUOTAS = DoctorCheck("quotas")
#: Versions of Kubernetes the provider knows (AWS-025).
OLDEST_KUBERNETES, NEWEST_KUBERNETES = (1, 26), (1, 37)
#: EC2 quotas of vCPUs for standard families, by capacity type.
_QUOTA_CODES = {labels.ON_DEMAND: "L-1216C47A", labels.SPOT: "L-34B43A08"}
_MIN_QUOTA = 32


async def permissions(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the controller's role may do all it does, statement by statement (AWS-700 to AWS-717)."""
    statements = [
        iam_statement
        for policy in iam_policies.controller_policies(subject.location)
        for iam_statement in policy.statements
    ]
    try:
        answers = await asyncio.gather(*(_denied_actions(subject, statement) for statement in statements))
    except AwsError as error:
        text = f"permissions of {subject.principal} cannot be simulated: {error}"
        return [
            _PERMISSIONS.warning(
                text, "missing permissions show only when they are needed", "allow yourself iam:SimulatePrincipalPolicy"
            )
        ]
    missing = [(iam_statement, refused) for iam_statement, refused in zip(statements, answers, strict=True) if refused]
    if not missing:
        return [_PERMISSIONS.ok(f"{subject.principal} may do everything the controller does")]
    return [_denied_finding(subject, statement, refused) for statement, refused in missing]


async def _denied_actions(subject: DoctorSubject, statement: iam_policies.IamStatement) -> tuple[str, ...]:
    resources = tuple(resource.replace(":*:", f":{subject.location.account}:") for resource in statement.resources)
    query = PermissionQuery(subject.principal, statement.actions, resources, request_context(statement.conditions))
    return await subject.doctor_api.denied_actions(query)


def _policy_command(subject: DoctorSubject) -> str:
    place = subject.location
    command = f"karpenter iam-policy --cluster-name {place.cluster} --region {place.region} --account {place.account}"
    return f"{command} --bootstrap-mode kubeadm" if place.bootstrap_mode is BootstrapMode.KUBEADM else command


def _denied_finding(
    subject: DoctorSubject, statement: iam_policies.IamStatement, denied: tuple[str, ...]
) -> DoctorFinding:
    place = subject.location
    part = next(policy.part for policy in iam_policies.controller_policies(place) if statement in policy.statements)
    command = f"{_policy_command(subject)} --part {part}"
    return _PERMISSIONS.failure(
        f"{subject.principal} may not {', '.join(denied)}",
        f"what needs {statement.sid} fails with UnauthorizedOperation",
        f"attach the statement {statement.sid}, which `{command}` prints",
    )


async def cluster(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the cluster is there, and of a version that is known (AWS-019, AWS-025)."""
    if subject.settings.cluster_endpoint and not subject.settings.eks_control_plane:
        return [_CLUSTER.ok(f"the API server is at {subject.settings.cluster_endpoint}, as --cluster-endpoint says")]
    if subject.settings.bootstrap.is_kubeadm:
        impact = "the controller does not start"
        return [_CLUSTER.failure("mode kubeadm without --cluster-endpoint", impact, "set --cluster-endpoint")]
    name = subject.location.cluster
    try:
        description = await subject.services.eks.describe_cluster(name)
    except AwsError as error:
        return [
            _CLUSTER.failure(
                f"EKS says of cluster {name}: {error}",
                "the controller does not start without the API server's endpoint",
                "check --cluster-name and the region, or set --cluster-endpoint for a cluster outside EKS",
            )
        ]
    version = tuple(int(part) for part in description.version.split(".")[:2] if part.isdigit())
    if not OLDEST_KUBERNETES <= version <= NEWEST_KUBERNETES:
        supported = f"{'.'.join(map(str, OLDEST_KUBERNETES))} to {'.'.join(map(str, NEWEST_KUBERNETES))}"
        return [
            _CLUSTER.warning(
                f"cluster {name} is of Kubernetes {description.version}; known are {supported}",
                "images and labels may not be found",
                "use a release of Karpenter for this version",
            )
        ]
    return [_CLUSTER.ok(f"cluster {name} is of Kubernetes {description.version}")]


# -- queue ----------------------------------------------------------------------------------------------------------------------


async def queue(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the interruption queue exists and all rules feed it (AWS-730, AWS-731, AWS-854)."""
    name = subject.settings.interruption_queue
    stack = f"{_policy_command(subject)} -o cloudformation"
    mend = f"make the queue and its rules with the stack that `{stack}` prints, and set INTERRUPTION_QUEUE"
    if not name:
        return [_no_queue_finding(subject, mend)]
    try:
        arn = await subject.doctor_api.get_queue_arn(await subject.services.sqs.get_queue_url(name))
    except AwsError as error:
        return [_QUEUE.failure(f"queue {name}: {error}", "pods are not moved before spot instances end", mend)]
    try:
        rules = await subject.doctor_api.rules_targeting(arn)
    except AwsError as error:
        return [
            _QUEUE.warning(
                f"the rules that feed queue {name} cannot be read: {error}",
                "a missing rule shows only when an instance ends unannounced",
                "allow yourself events:ListRuleNamesByTarget and events:DescribeRule",
            )
        ]
    matched = {(source, kind) for rule in rules for source in rule.sources for kind in rule.detail_types}
    missing = [kind for source, kind in EVENT_RULES.values() if (source, kind) not in matched]
    if missing:
        return [
            _QUEUE.failure(f"no rule sends {kind!r} to queue {name}", "nobody is told of it", mend) for kind in missing
        ]
    return [_QUEUE.ok(f"queue {name} is fed by {len(EVENT_RULES)} rules")]


def _no_queue_finding(subject: DoctorSubject, fix: str) -> DoctorFinding:
    spot = [pool.metadata.name for pool in subject.pools if _allows_spot(pool)]
    if spot:
        return _QUEUE.warning(
            f"NodePools {', '.join(spot)} allow spot instances and no queue is set",
            "spot instances end without their pods being moved before",
            fix,
        )
    return _QUEUE.warning("no queue is set", "instances that AWS takes away end without a warning", fix)


def _allows_spot(pool: NodePool) -> bool:
    """Whether a pool may launch spot instances: it names the capacity type, or leaves it open."""
    for requirement in pool.spec.template.spec.requirements:
        if requirement.key == labels.CAPACITY_TYPE and requirement.operator == "In":
            return labels.SPOT in requirement.values
        if requirement.key == labels.CAPACITY_TYPE and requirement.operator == "NotIn":
            return labels.SPOT not in requirement.values
    return True


# -- quotas ---------------------------------------------------------------------------------------------------------------------


async def quotas(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the account may run what the pools may grow to."""
    vcpus = _wanted_vcpus(subject.pools)
    findings = await asyncio.gather(*(_quota(subject, capacity_type, vcpus) for capacity_type in _QUOTA_CODES))
    return list(findings)


async def _quota(subject: DoctorSubject, capacity_type: str, wanted_vcpus: int) -> DoctorFinding:
    code = _QUOTA_CODES[capacity_type]
    try:
        quota = await subject.doctor_api.get_vcpu_quota(code)
    except AwsError as error:
        return _QUOTAS.warning(
            f"the quota of {capacity_type} vCPUs cannot be read: {error}",
            "launches may stop at it with VcpuLimitExceeded or MaxSpotInstanceCountExceeded",
            "allow yourself servicequotas:GetServiceQuota",
        )
    least = max(wanted_vcpus, _MIN_QUOTA)
    if quota < least:
        needs = f"the NodePools' limits come to {wanted_vcpus}" if wanted_vcpus else "that is little for a cluster"
        return _QUOTAS.warning(
            f"the account may run {quota:g} {capacity_type} vCPUs of standard families; {needs}",
            "launches stop at it with VcpuLimitExceeded or MaxSpotInstanceCountExceeded",
            f"aws service-quotas request-service-quota-increase --region {subject.location.region} "
            f"--service-code ec2 --quota-code {code} --desired-value {least}",
        )
    return _QUOTAS.ok(f"the account may run {quota:g} {capacity_type} vCPUs of standard families")


def _wanted_vcpus(pools: Iterable[NodePool]) -> int:
    """Whole vCPUs that pools with limits may grow to together."""
    limits = [str(pool.spec.limits["cpu"]) for pool in pools if "cpu" in pool.spec.limits]
    return sum(quantity.parse_milli(text) for text in limits) // 1000


#: No object has this name. The answer to a request for it says whether its kind is served.
_PROBE_NAME = "karpenter-doctor-asks-whether-this-kind-is-served"
_KINDS_CHECK = DoctorCheck("kinds")
_RBAC_CHECK = DoctorCheck("rights in the cluster")
_REQUIRED_KINDS: tuple[Kind[Wire], ...] = (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS)  # type: ignore[assignment]


class ClusterPermission(NamedTuple):
    """A verb on a resource of a group, perhaps on a part of it."""

    group: str
    resource: str
    subresource: str
    verb: str

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {name}.{self.group}" if self.group else f"{self.verb} {name}"


#: Without any of these nothing goes on. The whole list is in docs/install.md.
REQUIRED_PERMISSIONS = (
    ClusterPermission("karpenter.sh", "nodepools", "", "watch"),
    ClusterPermission("karpenter.sh", "nodepools", "status", "patch"),
    ClusterPermission("karpenter.sh", "nodeclaims", "", "create"),
    ClusterPermission("karpenter.sh", "nodeclaims", "status", "patch"),
    ClusterPermission("karpenter.k8s.aws", "ec2nodeclasses", "", "watch"),
    ClusterPermission("karpenter.k8s.aws", "ec2nodeclasses", "", "patch"),
    ClusterPermission("karpenter.k8s.aws", "ec2nodeclasses", "status", "patch"),
    ClusterPermission("", "nodes", "", "patch"),
    ClusterPermission("", "nodes", "", "delete"),
    ClusterPermission("", "pods", "", "watch"),
    ClusterPermission("", "pods", "eviction", "create"),
    ClusterPermission("", "pods", "status", "patch"),
    ClusterPermission("", "events", "", "create"),
)


async def check_installation(kube: Kube, service_account: str) -> list[DoctorFinding]:
    """What is installed; ``service_account`` is the controller's, as ``namespace:name``."""
    missing = [kind for kind in _REQUIRED_KINDS if not await _is_served(kube, kind)]
    if len(missing) == len(_REQUIRED_KINDS):
        text = "Karpenter's kinds are not installed yet"
        return [_KINDS_CHECK.warning(text, "nothing before the installation", "kubectl apply -f deploy/crds/crds.yaml")]
    if missing:
        names = ", ".join(f"{kind.name} {kind.api_version}" for kind in missing)
        mend = "kubectl apply -f deploy/crds/crds.yaml"
        return [
            _KINDS_CHECK.failure(f"the cluster does not serve {names}", "the controller does not become ready", mend)
        ]
    return [_KINDS_CHECK.ok("all kinds are served"), *await _missing_permissions(kube, service_account)]


async def _is_served(kube: Kube, kind: Kind[Wire]) -> bool:
    try:
        await kube.get(kind, _PROBE_NAME)
    except NotFound as answer:
        return answer.reason != KIND_NOT_SERVED
    return True


async def _missing_permissions(kube: Kube, service_account: str) -> list[DoctorFinding]:
    user = f"system:serviceaccount:{service_account}"
    try:
        answers = await asyncio.gather(*(_is_allowed(kube, user, right) for right in REQUIRED_PERMISSIONS))
    except KubeError as error:
        mend = "look as somebody who may create subjectaccessreviews"
        return [_RBAC_CHECK.warning(f"rights of {user} cannot be asked for: {error}", "nothing by itself", mend)]
    refused = [str(right) for right, allowed in zip(REQUIRED_PERMISSIONS, answers, strict=True) if not allowed]
    if refused:
        text = f"{user} may not {', '.join(refused)}"
        mend = "helm upgrade karpenter charts/karpenter --reset-then-reuse-values"
        return [_RBAC_CHECK.failure(text, "the controller logs 403 and does nothing", mend)]
    return [_RBAC_CHECK.ok(f"{user} may do its work")]


async def _is_allowed(kube: Kube, user: str, permission: ClusterPermission) -> bool:
    attributes = ResourceAttributes(
        verb=permission.verb, resource=permission.resource, group=permission.group, subresource=permission.subresource
    )
    question = SubjectAccessReview(spec=SubjectAccessReviewSpec(user=user, resource_attributes=attributes))
    return (await kube.create(kinds.SUBJECT_ACCESS_REVIEW, question)).status.allowed


_JOINING = DoctorCheck("joining")


async def check_joining(kube: Reader, settings: BootstrapSettings) -> list[DoctorFinding]:
    """What the cluster lacks so that nodes can join with a token; nothing outside mode kubeadm and with delivery external."""
    if not settings.is_kubeadm or settings.token_delivery is TokenDelivery.EXTERNAL:
        return []
    try:
        missing = await missing_prerequisites(kube, settings.token_groups)
    except KubeError as error:
        text = f"what nodes need to join cannot be read: {error}"
        return [_JOINING.warning(text, "nothing by itself", "run the command again with rights to read the cluster")]
    if not missing:
        return [_JOINING.ok("nodes can join with bootstrap tokens: cluster-info and the bindings of kubeadm are there")]
    text = f"nodes cannot join with bootstrap tokens; missing: {'; '.join(missing)}"
    fix = "run `kubeadm init phase bootstrap-token` on a node of the control plane"
    return [_JOINING.failure(text, "instances start, do not join, and are terminated", fix)]


NAMESPACE, NAME, FIELD = "kube-system", "aws-auth", "mapRoles"
_USERNAME = "system:node:{{EC2PrivateDNSName}}"
_GROUPS = ("system:bootstrappers", "system:nodes")


def command_to_add(map_roles: str | None, role_arn: str) -> str:
    """The kubectl line that lets the cluster know a node role; empty where ``mapRoles`` cannot be read.

    ``map_roles`` is its present text; None where there is no ConfigMap. The line makes the ConfigMap, or replaces ``mapRoles``
    by what it is with one entry more. Everything else of the ConfigMap stays.
    """
    entry = {"rolearn": role_arn, "username": _USERNAME, "groups": list(_GROUPS)}
    if map_roles is None:
        return (
            f"kubectl create configmap {NAME} -n {NAMESPACE} --from-literal={shlex.quote(f'{FIELD}={_text([entry])}')}"
        )
    try:
        present = load_yaml(map_roles) or []
    except yaml.YAMLError:
        return ""
    if not isinstance(present, list):
        return ""
    patch = json.dumps({"data": {FIELD: _text([*present, entry])}})
    return f"kubectl patch configmap {NAME} -n {NAMESPACE} --type merge -p {shlex.quote(patch)}"


def _text(entries: list[object]) -> str:
    return yaml.safe_dump(entries, sort_keys=False)
