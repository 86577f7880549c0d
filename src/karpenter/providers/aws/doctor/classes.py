"""What the selectors of each class find, and what the running controller says of the class."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from karpenter.api.ec2 import EC2NodeClass
from karpenter.model import conditions as model_conditions
from karpenter.providers.aws.doctor.findings import Check, Finding
from karpenter.providers.aws.doctor.patient import Patient, ownership_tag
from karpenter.providers.aws.nodeclass import queries
from karpenter.providers.aws.shapes import SecurityGroupInfo, SubnetInfo, tag_map

_SUBNETS = Check("subnets")
_GROUPS = Check("security groups")
_CLASSES = Check("node classes")
#: Fewer free addresses than one larger machine's pods may take.
_FEW_ADDRESSES = 32
#: What mends a condition, by its reason (AWS §3).
_MENDS: Mapping[str, str] = {
    "SubnetsNotFound": "tag the subnets, or correct spec.subnetSelectorTerms",
    "SecurityGroupsNotFound": "tag the group, or correct spec.securityGroupSelectorTerms",
    "AMINotFound": "correct spec.amiSelectorTerms: name, owner, region and architecture must fit",
    "UnsupportedAlias": "choose an alias that exists for this version of Kubernetes",
    "PlacementGroupNotFound": "make the placement group, or correct spec.placementGroupSelector",
    "InstanceProfileNotFound": "name an instance profile that exists, or set spec.role",
    "CreateLaunchTemplateAuthCheckFailed": "attach the policy part NodeLifecycle of `karpenter iam-policy`",
    "CreateFleetAuthCheckFailed": "attach the policy part NodeLifecycle of `karpenter iam-policy`",
    "RunInstancesAuthCheckFailed": "attach the policy parts NodeLifecycle and IAMIntegration of `karpenter iam-policy`",
    "ClusterCIDRResolutionFailed": "allow eks:DescribeCluster, or set SERVICE_CIDR",
    "UserDataSizeLimitExceeded": "shorten spec.userData: EC2 takes 16384 bytes",
}


async def selectors(patient: Patient) -> list[Finding]:
    """Subnets and security groups of all classes (AWS-088 to AWS-090, AWS-852)."""
    if not patient.classes:
        text = "no EC2NodeClass was given with -f or found in the cluster"
        return [_CLASSES.warning(text, "nothing of it could be looked at", "karpenter doctor -f CLASS.yaml")]
    found = await asyncio.gather(*(_of_class(patient, node_class) for node_class in patient.classes))
    return [finding for findings in found for finding in findings]


async def _of_class(patient: Patient, node_class: EC2NodeClass) -> list[Finding]:
    spec, ec2 = node_class.spec, patient.services.ec2
    subnets = await asyncio.gather(
        *(ec2.describe_subnets(filters) for filters in queries.subnets(spec.subnet_selector_terms))
    )
    groups = await asyncio.gather(
        *(
            ec2.describe_security_groups(filters)
            for filters in queries.security_groups(spec.security_group_selector_terms)
        )
    )
    own_subnets = tuple({item.subnet_id: item for answer in subnets for item in answer}.values())
    own_groups = tuple({item.group_id: item for answer in groups for item in answer}.values())
    name = node_class.metadata.name
    return [*_subnets(patient, name, own_subnets), *_groups(patient, name, own_groups, own_subnets)]


def _subnets(patient: Patient, name: str, found: Sequence[SubnetInfo]) -> list[Finding]:
    if not found:
        text = f"EC2NodeClass {name} selects no subnet"
        return [_SUBNETS.failure(text, "no machine of the class can be launched", patient.tag_command)]
    free: dict[str, int] = {}
    for subnet in found:
        free[subnet.availability_zone] = free.get(subnet.availability_zone, 0) + subnet.available_ip_address_count
    few = {zone: count for zone, count in sorted(free.items()) if count < _FEW_ADDRESSES}
    shown = ", ".join(f"{zone} {count}" for zone, count in sorted(free.items()))
    if few:
        text = f"EC2NodeClass {name}: few free addresses in {', '.join(few)} (free by zone: {shown})"
        breaks = "launches there fail with InsufficientFreeAddressesInSubnet, or pods get no address"
        return [_SUBNETS.warning(text, breaks, "add subnets with room and tag them: " + patient.tag_command)]
    return [_SUBNETS.ok(f"EC2NodeClass {name} selects {len(found)} subnets; free addresses by zone: {shown}")]


def _groups(
    patient: Patient, name: str, found: Sequence[SecurityGroupInfo], subnets: Iterable[SubnetInfo]
) -> list[Finding]:
    if not found:
        text = f"EC2NodeClass {name} selects no security group"
        return [_GROUPS.failure(text, "no machine of the class can be launched", patient.tag_command)]
    findings = []
    vpcs = {subnet.vpc_id for subnet in subnets}
    foreign = [group.group_id for group in found if vpcs and group.vpc_id not in vpcs]
    if foreign:
        text = f"EC2NodeClass {name}: {', '.join(foreign)} lie in another VPC than the subnets"
        breaks = "launches fail with SecurityGroupSubnetVPCMismatch"
        findings.append(_GROUPS.failure(text, breaks, "select groups of the subnets' VPC only"))
    owned = [group.group_id for group in found if ownership_tag(patient.place).items() <= tag_map(group.tags).items()]
    if len(owned) > 1:
        text = f"EC2NodeClass {name}: {', '.join(owned)} all carry the cluster's ownership tag"
        breaks = "load-balancer controllers refuse machines with more than one such group"
        findings.append(_GROUPS.warning(text, breaks, "select only one of them"))
    return findings or [_GROUPS.ok(f"EC2NodeClass {name} selects {', '.join(group.group_id for group in found)}")]


async def conditions(patient: Patient) -> list[Finding]:
    """What the controller found out about the classes it looks after: images, profiles, permissions by dry runs."""
    return [_condition(node_class) for node_class in patient.classes if node_class.status.conditions]


def _condition(node_class: EC2NodeClass) -> Finding:
    name = node_class.metadata.name
    bad = [item for item in node_class.status.conditions if item.status != model_conditions.TRUE]
    if not bad:
        return _CLASSES.ok(f"EC2NodeClass {name} is ready, with {len(node_class.status.amis)} images")
    shown = "; ".join(f"{item.type} {item.status}: {item.reason} {item.message}".rstrip() for item in bad)
    mends = [_MENDS[item.reason] for item in bad if item.reason in _MENDS]
    mend = "; ".join(dict.fromkeys(mends)) or f"kubectl describe ec2nodeclass {name}"
    return _CLASSES.failure(f"EC2NodeClass {name}: {shown}", "its NodePools buy nothing", mend)
