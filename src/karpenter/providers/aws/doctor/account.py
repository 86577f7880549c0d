"""Permissions, quotas, cluster and queue: what holds for the whole account and cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from karpenter.api.karpenter import NodePool
from karpenter.model import labels, quantity
from karpenter.providers.aws import iam
from karpenter.providers.aws.doctor.findings import Check, Finding
from karpenter.providers.aws.doctor.patient import Patient
from karpenter.providers.aws.doctor.ports import Trial, context_of
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.stack import RULES

_PERMISSIONS = Check("permissions")
_CLUSTER = Check("cluster")
_QUEUE = Check("interruption queue")
_QUOTAS = Check("quotas")
#: Versions of Kubernetes the provider knows (AWS-025).
OLDEST, NEWEST = (1, 26), (1, 36)
#: EC2 quotas of vCPUs for standard families, by capacity type.
_QUOTA_CODES = {labels.ON_DEMAND: "L-1216C47A", labels.SPOT: "L-34B43A08"}
_SMALL_QUOTA = 32


async def permissions(patient: Patient) -> list[Finding]:
    """Whether the controller's role may do all it does, statement by statement (AWS-700 to AWS-717)."""
    statements = [item for policy in iam.policies(patient.place) for item in policy.statements]
    try:
        answers = await asyncio.gather(*(_refused(patient, statement) for statement in statements))
    except AwsError as error:
        text = f"permissions of {patient.principal} cannot be simulated: {error}"
        return [
            _PERMISSIONS.warning(
                text, "missing permissions show only when they are needed", "allow yourself iam:SimulatePrincipalPolicy"
            )
        ]
    missing = [(item, refused) for item, refused in zip(statements, answers, strict=True) if refused]
    if not missing:
        return [_PERMISSIONS.ok(f"{patient.principal} may do everything the controller does")]
    return [_missing(patient, statement, refused) for statement, refused in missing]


async def _refused(patient: Patient, statement: iam.Statement) -> tuple[str, ...]:
    resources = tuple(resource.replace(":*:", f":{patient.place.account}:") for resource in statement.resources)
    trial = Trial(patient.principal, statement.actions, resources, context_of(statement.conditions))
    return await patient.more.refused_actions(trial)


def _policy_command(patient: Patient) -> str:
    place = patient.place
    return f"karpenter iam-policy --cluster-name {place.cluster} --region {place.region} --account {place.account}"


def _missing(patient: Patient, statement: iam.Statement, refused: tuple[str, ...]) -> Finding:
    place = patient.place
    part = next(policy.part for policy in iam.policies(place) if statement in policy.statements)
    command = f"{_policy_command(patient)} --part {part}"
    return _PERMISSIONS.failure(
        f"{patient.principal} may not {', '.join(refused)}",
        f"what needs {statement.sid} fails with UnauthorizedOperation",
        f"attach the statement {statement.sid}, which `{command}` prints",
    )


async def cluster(patient: Patient) -> list[Finding]:
    """Whether the cluster is there, and of a version that is known (AWS-019, AWS-025)."""
    if patient.settings.cluster_endpoint and not patient.settings.eks_control_plane:
        return [_CLUSTER.ok(f"the API server is at {patient.settings.cluster_endpoint}, as --cluster-endpoint says")]
    name = patient.place.cluster
    try:
        found = await patient.services.eks.describe_cluster(name)
    except AwsError as error:
        return [
            _CLUSTER.failure(
                f"EKS says of cluster {name}: {error}",
                "the controller does not start without the API server's endpoint",
                "check --cluster-name and the region, or set --cluster-endpoint for a cluster outside EKS",
            )
        ]
    version = tuple(int(part) for part in found.version.split(".")[:2] if part.isdigit())
    if not OLDEST <= version <= NEWEST:
        known = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
        return [
            _CLUSTER.warning(
                f"cluster {name} is of Kubernetes {found.version}; known are {known}",
                "images and labels may not be found",
                "use a release of Karpenter for this version",
            )
        ]
    return [_CLUSTER.ok(f"cluster {name} is of Kubernetes {found.version}")]


# -- queue ----------------------------------------------------------------------------------------------------------------------


async def queue(patient: Patient) -> list[Finding]:
    """Whether somebody tells of interruptions (AWS-730, AWS-731, AWS-854)."""
    name = patient.settings.interruption_queue
    stack = f"{_policy_command(patient)} -o cloudformation"
    mend = f"make the queue and its rules with the stack that `{stack}` prints, and set INTERRUPTION_QUEUE"
    if not name:
        return [_without_queue(patient, mend)]
    try:
        arn = await patient.more.get_queue_arn(await patient.services.queue.get_queue_url(name))
    except AwsError as error:
        return [_QUEUE.failure(f"queue {name}: {error}", "pods are not moved before spot machines end", mend)]
    try:
        rules = await patient.more.rules_feeding(arn)
    except AwsError as error:
        return [
            _QUEUE.warning(
                f"the rules that feed queue {name} cannot be read: {error}",
                "a missing rule shows only when a machine ends unannounced",
                "allow yourself events:ListRuleNamesByTarget and events:DescribeRule",
            )
        ]
    heard = {(source, kind) for rule in rules for source in rule.sources for kind in rule.detail_types}
    missing = [kind for source, kind in RULES.values() if (source, kind) not in heard]
    if missing:
        return [
            _QUEUE.failure(f"no rule sends {kind!r} to queue {name}", "nobody is told of it", mend) for kind in missing
        ]
    return [_QUEUE.ok(f"queue {name} is fed by {len(RULES)} rules")]


def _without_queue(patient: Patient, mend: str) -> Finding:
    spot = [pool.metadata.name for pool in patient.pools if _allows_spot(pool)]
    if spot:
        return _QUEUE.warning(
            f"NodePools {', '.join(spot)} allow spot machines and no queue is set",
            "spot machines end without their pods being moved before",
            mend,
        )
    return _QUEUE.warning("no queue is set", "machines that AWS takes away end without a warning", mend)


def _allows_spot(pool: NodePool) -> bool:
    """Whether a pool may buy spot machines: it names the capacity type, or leaves it open."""
    for requirement in pool.spec.template.spec.requirements:
        if requirement.key == labels.CAPACITY_TYPE and requirement.operator == "In":
            return labels.SPOT in requirement.values
        if requirement.key == labels.CAPACITY_TYPE and requirement.operator == "NotIn":
            return labels.SPOT not in requirement.values
    return True


# -- quotas ---------------------------------------------------------------------------------------------------------------------


async def quotas(patient: Patient) -> list[Finding]:
    """Whether the account may run what the pools may grow to."""
    wanted = _wanted_vcpus(patient.pools)
    found = await asyncio.gather(*(_quota(patient, capacity_type, wanted) for capacity_type in _QUOTA_CODES))
    return list(found)


async def _quota(patient: Patient, capacity_type: str, wanted: int) -> Finding:
    code = _QUOTA_CODES[capacity_type]
    try:
        quota = await patient.more.get_vcpu_quota(code)
    except AwsError as error:
        return _QUOTAS.warning(
            f"the quota of {capacity_type} vCPUs cannot be read: {error}",
            "launches may stop at it with VcpuLimitExceeded or MaxSpotInstanceCountExceeded",
            "allow yourself servicequotas:GetServiceQuota",
        )
    least = max(wanted, _SMALL_QUOTA)
    if quota < least:
        needs = f"the NodePools' limits come to {wanted}" if wanted else "that is little for a cluster"
        return _QUOTAS.warning(
            f"the account may run {quota:g} {capacity_type} vCPUs of standard families; {needs}",
            "launches stop at it with VcpuLimitExceeded or MaxSpotInstanceCountExceeded",
            f"aws service-quotas request-service-quota-increase --region {patient.place.region} "
            f"--service-code ec2 --quota-code {code} --desired-value {least}",
        )
    return _QUOTAS.ok(f"the account may run {quota:g} {capacity_type} vCPUs of standard families")


def _wanted_vcpus(pools: Iterable[NodePool]) -> int:
    """Whole vCPUs that pools with limits may grow to together."""
    limits = [str(pool.spec.limits["cpu"]) for pool in pools if "cpu" in pool.spec.limits]
    return sum(quantity.milli(text) for text in limits) // 1000
