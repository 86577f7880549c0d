"""What machines run under: roles the cluster knows, keys volumes are encrypted with; and machines that died at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from karpenter.api.ec2 import EC2NodeClass
from karpenter.providers.aws import iam
from karpenter.providers.aws.doctor.findings import Check, Finding
from karpenter.providers.aws.doctor.patient import Patient
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.shapes import Filter

_ROLE = Check("node role")
_KEYS = Check("volume keys")
_DEATHS = Check("machines")
#: Types of access entries whose principals join as nodes (AWS-726).
_NODE_ENTRIES = frozenset({"EC2_LINUX", "EC2_WINDOWS", "EC2"})
_UNKNOWN_NODES = "machines run but never join, and claims end at the registration timeout"


async def roles(patient: Patient) -> list[Finding]:
    """Whether the roles of all classes exist, are for EC2 and known to the cluster (AWS-725, AWS-726, AWS-853)."""
    named: dict[str, EC2NodeClass] = {}
    findings: list[Finding] = []
    for node_class in patient.classes:
        try:
            role = await _role_name(patient, node_class)
        except AwsError as error:
            findings.append(_no_profile(node_class, error))
            continue
        if role:
            named.setdefault(role, node_class)
    answers = await asyncio.gather(*(_role(patient, name) for name in named))
    return findings + [finding for found in answers for finding in found]


async def _role_name(patient: Patient, node_class: EC2NodeClass) -> str:
    spec = node_class.spec
    if spec.role:
        return spec.role.rpartition("/")[2]
    if not spec.instance_profile:
        return ""
    profile = await patient.services.iam.get_instance_profile(spec.instance_profile)
    return profile.roles[0].role_name if profile.roles else ""


def _no_profile(node_class: EC2NodeClass, error: AwsError) -> Finding:
    profile = node_class.spec.instance_profile
    return _ROLE.failure(
        f"instance profile {profile} of EC2NodeClass {node_class.metadata.name}: {error}",
        "launches fail with InstanceProfileNameInvalid",
        "name an instance profile that exists, or set spec.role and let the controller make one",
    )


async def _role(patient: Patient, name: str) -> list[Finding]:
    place = patient.place
    try:
        role = await patient.more.get_role(name)
    except AwsError as error:
        return [
            _ROLE.failure(
                f"role {name}: {error}",
                "no instance profile can be made, and no machine launched",
                f"make the role, with the policies {', '.join(iam.NODE_POLICIES)}",
            )
        ]
    findings = []
    if not any(service.startswith("ec2.") for service in role.services):
        findings.append(
            _ROLE.failure(
                f"role {name} cannot be taken on by EC2",
                "launches fail with UnauthorizedOperation",
                "let the service ec2.amazonaws.com assume the role (its trust policy)",
            )
        )
    known = await _known_to_cluster(patient, role.arn)
    if known is None:
        command = f"aws eks create-access-entry --region {place.region} --cluster-name {place.cluster}"
        mend = f"{command} --principal-arn {role.arn} --type EC2_LINUX"
        findings.append(_ROLE.failure(f"the cluster does not know role {name}", _UNKNOWN_NODES, mend))
    return findings or [_ROLE.ok(f"role {name} is known to the cluster by {known}")]


async def _known_to_cluster(patient: Patient, arn: str) -> str | None:
    """By what the cluster knows a role; None where by nothing."""
    if patient.aws_auth is not None and arn in patient.aws_auth:
        return "aws-auth"
    try:
        kind = await patient.more.get_access_entry_type(patient.place.cluster, arn)
    except AwsError:
        return None
    return f"an access entry of type {kind}" if kind in _NODE_ENTRIES else None


# -- keys -----------------------------------------------------------------------------------------------------------------------


async def volume_keys(patient: Patient) -> list[Finding]:
    """Whether the keys of encrypted volumes can be used (AWS-719, AWS-858)."""
    keys = sorted(set(_keys(patient.classes)))
    return list(await asyncio.gather(*(_key(patient, key) for key in keys)))


def _keys(classes: Iterable[EC2NodeClass]) -> list[str]:
    return [
        mapping.ebs.kms_key_id
        for node_class in classes
        for mapping in node_class.spec.block_device_mappings
        if mapping.ebs is not None and mapping.ebs.kms_key_id
    ]


async def _key(patient: Patient, key: str) -> Finding:
    breaks = "machines end right after their start, with a Client error"
    try:
        state = await patient.more.get_key_state(key)
    except AwsError as error:
        mend = (
            "let the key's policy allow kms:CreateGrant, Decrypt, DescribeKey, GenerateDataKeyWithoutPlainText and "
            f"ReEncrypt* to {patient.principal}"
        )
        return _KEYS.failure(f"key {key} cannot be used: {error}", breaks, mend)
    if state != "Enabled":
        mend = f"aws kms enable-key --region {patient.place.region} --key-id {key}"
        return _KEYS.failure(f"key {key} is {state}", breaks, mend)
    return _KEYS.ok(f"key {key} is enabled")


# -- deaths ---------------------------------------------------------------------------------------------------------------------


async def deaths(patient: Patient) -> list[Finding]:
    """Machines that ended by themselves, and why (AWS-858)."""
    filters = (
        Filter(name="tag-key", values=(iam.NODE_POOL_TAG,)),
        Filter(name=f"tag:{iam.EKS_CLUSTER_TAG}", values=(patient.place.cluster,)),
        Filter(name="instance-state-name", values=("terminated",)),
    )
    try:
        ended = await patient.services.ec2.describe_instances(filters=filters)
    except AwsError as error:
        return [
            _DEATHS.warning(f"machines cannot be listed: {error}", "nothing by itself", "allow ec2:DescribeInstances")
        ]
    reasons = {
        machine.instance_id: machine.state_reason
        for machine in ended
        if machine.state_reason is not None and _is_own_fault(machine.state_reason.code)
    }
    return [
        _DEATHS.failure(
            f"machine {name} ended by itself: {reason.code}: {reason.message}",
            "machines are bought and lost again, and pods wait",
            "for an error of a key let its policy allow the controller's role; for others see the class's volumes and image",
        )
        for name, reason in sorted(reasons.items())
    ]


def _is_own_fault(code: str) -> bool:
    """Whether a reason is neither an order to end nor AWS's own need."""
    return code.startswith("Client.") and code != "Client.UserInitiatedShutdown"
