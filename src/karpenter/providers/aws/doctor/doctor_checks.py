"""What the selectors of each class find, and what the running controller says of the class."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from karpenter.api.ec2_node_class import AMI, EC2NodeClass, EC2NodeClassStatus
from karpenter.api.karpenter import NodePool
from karpenter.model import conditions as model_conditions
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.model.texts import count_text
from karpenter.providers.aws import aws_labels, iam_policies
from karpenter.providers.aws.aws_apis import RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsError, explain_denial
from karpenter.providers.aws.aws_types import Ec2Filter, tag_map
from karpenter.providers.aws.doctor import account_checks
from karpenter.providers.aws.doctor.doctor_types import DoctorCheck, DoctorFinding, DoctorSubject, ownership_tag
from karpenter.providers.aws.ec2_descriptions import SecurityGroupInfo, SubnetInfo
from karpenter.providers.aws.ec2_requests import (
    InstanceMarketOptionsRequest,
    LaunchTemplateData,
    NetworkInterfaceRequest,
    TemplateReference,
)
from karpenter.providers.aws.instancetype.offering_metrics import offered_to_pool
from karpenter.providers.aws.live_instance_types import LiveInstanceTypes, cached_answers, live_instance_types
from karpenter.providers.aws.nodeclass import selector_queries
from karpenter.providers.aws.nodeclass.ami_selection import is_standard_ami
from karpenter.providers.contract import ProviderError

_SUBNETS = DoctorCheck("subnets")
_SECURITY_GROUPS = DoctorCheck("security groups")
_CLASSES = DoctorCheck("node classes")
_LAUNCHES = DoctorCheck("launches")
_INSTANCE_TYPES = DoctorCheck("instance types")
_READ_TYPES = "allow yourself the policy part ResourceDiscovery of `karpenter iam-policy`"
_DESCRIBE = "kubectl describe ec2nodeclass"
_USE_ITS_ROLE = "run the doctor with the controller's credentials"
#: A type of each architecture that is sold nearly everywhere.
_COMMON_TYPES = {"amd64": "m5.large", "arm64": "m6g.large"}
#: Fewer free addresses than one larger instance's pods may take.
_MIN_FREE_ADDRESSES = 32
#: How to fix a condition, by its reason (AWS §3).
_FIXES: Mapping[str, str] = {
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
    "BootstrapPrerequisitesMissing": "run `kubeadm init phase bootstrap-token` on a node of the control plane",
    "UserDataSizeLimitExceeded": "shorten spec.userData: EC2 takes 16384 bytes",
}


async def selectors(subject: DoctorSubject) -> list[DoctorFinding]:
    """Subnets and security groups of all classes (AWS-088 to AWS-090, AWS-852)."""
    if not subject.classes:
        text = "no EC2NodeClass was given with -f or found in the cluster"
        return [_CLASSES.warning(text, "nothing of it could be looked at", "karpenter doctor -f CLASS.yaml")]
    answers = await asyncio.gather(*(_selector_findings(subject, node_class) for node_class in subject.classes))
    return [finding for findings in answers for finding in findings]


async def _selector_findings(subject: DoctorSubject, node_class: EC2NodeClass) -> list[DoctorFinding]:
    spec, ec2 = node_class.spec, subject.services.ec2
    subnets = await asyncio.gather(
        *(ec2.describe_subnets(filters) for filters in selector_queries.subnet_filters(spec.subnet_selector_terms))
    )
    groups = await asyncio.gather(
        *(
            ec2.describe_security_groups(filters)
            for filters in selector_queries.security_group_filters(spec.security_group_selector_terms)
        )
    )
    own_subnets = tuple({subnet_info.subnet_id: subnet_info for answer in subnets for subnet_info in answer}.values())
    own_groups = tuple({group_info.group_id: group_info for answer in groups for group_info in answer}.values())
    name = node_class.metadata.name
    return [
        *_subnet_findings(subject, name, own_subnets),
        *_security_group_findings(subject, name, own_groups, own_subnets),
    ]


def _subnet_findings(subject: DoctorSubject, name: str, subnets: Sequence[SubnetInfo]) -> list[DoctorFinding]:
    if not subnets:
        text = f"EC2NodeClass {name} selects no subnet"
        return [_SUBNETS.failure(text, "no instance of the class can be launched", subject.tag_command)]
    free: dict[str, int] = {}
    for subnet in subnets:
        free[subnet.availability_zone] = free.get(subnet.availability_zone, 0) + subnet.available_ip_address_count
    few = {zone: count for zone, count in sorted(free.items()) if count < _MIN_FREE_ADDRESSES}
    shown = ", ".join(f"{zone} {count}" for zone, count in sorted(free.items()))
    if few:
        text = f"EC2NodeClass {name}: few free addresses in {', '.join(few)} (free by zone: {shown})"
        breaks = "launches there fail with InsufficientFreeAddressesInSubnet, or pods get no address"
        return [_SUBNETS.warning(text, breaks, "add subnets with room and tag them: " + subject.tag_command)]
    return [
        _SUBNETS.ok(
            f"EC2NodeClass {name} selects {count_text(len(subnets), 'subnet')}; free addresses by zone: {shown}"
        )
    ]


def _security_group_findings(
    subject: DoctorSubject, name: str, groups: Sequence[SecurityGroupInfo], subnets: Iterable[SubnetInfo]
) -> list[DoctorFinding]:
    if not groups:
        text = f"EC2NodeClass {name} selects no security group"
        return [_SECURITY_GROUPS.failure(text, "no instance of the class can be launched", subject.tag_command)]
    findings = []
    vpcs = {subnet.vpc_id for subnet in subnets}
    foreign = [group.group_id for group in groups if vpcs and group.vpc_id not in vpcs]
    if foreign:
        text = f"EC2NodeClass {name}: {', '.join(foreign)} lie in another VPC than the subnets"
        breaks = "launches fail with SecurityGroupSubnetVPCMismatch"
        findings.append(_SECURITY_GROUPS.failure(text, breaks, "select groups of the subnets' VPC only"))
    owned = [
        group.group_id for group in groups if ownership_tag(subject.location).items() <= tag_map(group.tags).items()
    ]
    if len(owned) > 1:
        text = f"EC2NodeClass {name}: {', '.join(owned)} all carry the cluster's ownership tag"
        breaks = "load-balancer controllers refuse instances with more than one such group"
        findings.append(_SECURITY_GROUPS.warning(text, breaks, "select only one of them"))
    return findings or [
        _SECURITY_GROUPS.ok(f"EC2NodeClass {name} selects {', '.join(group.group_id for group in groups)}")
    ]


async def conditions(subject: DoctorSubject) -> list[DoctorFinding]:
    """What the controller found out about the classes it looks after: images, profiles, permissions by dry runs."""
    return [_condition(node_class) for node_class in subject.classes if node_class.status.conditions]


def _condition(node_class: EC2NodeClass) -> DoctorFinding:
    name = node_class.metadata.name
    bad = [condition for condition in node_class.status.conditions if condition.status != model_conditions.TRUE]
    if not bad:
        return _ready_class_finding(node_class)
    shown = "; ".join(
        f"{condition.type} {condition.status}: {condition.reason} {condition.message}".rstrip() for condition in bad
    )
    mends = [_FIXES[condition.reason] for condition in bad if condition.reason in _FIXES]
    mend = "; ".join(dict.fromkeys(mends)) or f"{_DESCRIBE} {name}"
    return _CLASSES.failure(f"EC2NodeClass {name}: {shown}", "its NodePools launch nothing", mend)


def _ready_class_finding(node_class: EC2NodeClass) -> DoctorFinding:
    """A condition that is True says in its message what its dry runs did not prove."""
    name = node_class.metadata.name
    unproven = [condition.message for condition in node_class.status.conditions if condition.message]
    if unproven:
        text = f"EC2NodeClass {name} is ready, but {'; '.join(unproven)}"
        return _CLASSES.warning(text, "what these calls lack shows at the first launch", f"{_DESCRIBE} {name}")
    return _CLASSES.ok(f"EC2NodeClass {name} is ready, with {count_text(len(node_class.status.amis), 'image')}")


async def launches(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the newest launch template of each class still makes an instance: a dry run, as the caller (AWS-117)."""
    classes = [
        node_class
        for node_class in subject.classes
        if node_class.status.subnets and _images_with_types(node_class.status)
    ]
    return list(await asyncio.gather(*(_launch_finding(subject, node_class) for node_class in classes)))


async def _launch_finding(subject: DoctorSubject, node_class: EC2NodeClass) -> DoctorFinding:
    tags = {aws_labels.CLUSTER_TAG: subject.location.cluster, aws_labels.NODE_CLASS: node_class.metadata.name}
    filters = tuple(Ec2Filter(name=f"tag:{key}", values=(value,)) for key, value in tags.items())
    templates = await subject.services.ec2.describe_launch_templates(filters=filters)
    name = node_class.metadata.name
    if not templates:
        text = f"EC2NodeClass {name} has no launch template yet, so no launch was tried: its conditions tell"
        return _LAUNCHES.ok(text)
    newest = max(templates, key=lambda template: str(template.create_time)).launch_template_name
    errors = [await _dry_run_error(subject, node_class.status, newest, kind) for kind in (None, labels.SPOT)]
    refused = [error for error in errors if error is not None and not error.is_dry_run_passed]
    if len(refused) < len(errors):
        return _LAUNCHES.ok(f"EC2NodeClass {name}: RunInstances through launch template {newest} would succeed")
    if any(error.is_unauthorized for error in refused):
        denial = next(str(error) for error in refused if error.is_unauthorized)
        text = f"EC2NodeClass {name}: you may not launch through {newest}: {explain_denial(denial)}"
        return _LAUNCHES.warning(text, "nothing is proven where the controller has another role", _USE_ITS_ROLE)
    text = f"EC2NodeClass {name}: RunInstances through {newest}: {'; '.join(dict.fromkeys(map(str, refused)))}"
    return _LAUNCHES.failure(text, "no instance of the class can be launched", f"{_DESCRIBE} {name}")


async def _dry_run_error(
    subject: DoctorSubject, status: EC2NodeClassStatus, template: str, market_type: str | None
) -> AwsError | None:
    """What EC2 says. A template of spot launches is good for a spot instance alone, and the other way round."""
    ami, instance_type = _images_with_types(status)[0]
    data = LaunchTemplateData(
        image_id=ami.id,
        network_interfaces=(
            NetworkInterfaceRequest(device_index=0, groups=tuple(group.id for group in status.security_groups)),
        ),
        instance_market_options=InstanceMarketOptionsRequest(market_type=market_type) if market_type else None,
    )
    reference = TemplateReference(launch_template_name=template)
    dry_run = RunInstancesDryRun(instance_type, data, status.subnets[0].id, reference)
    try:
        await subject.services.ec2.dry_run_instances(dry_run)
    except AwsError as error:
        return error
    return None


def _images_with_types(status: EC2NodeClassStatus) -> list[tuple[AMI, str]]:
    """The class's images without accelerators, each with a common type of its architecture."""
    return [
        (ami, _COMMON_TYPES[value])
        for ami in status.amis
        if is_standard_ami(ami)
        for requirement in ami.requirements
        if requirement.key == labels.ARCH
        for value in requirement.values
        if value in _COMMON_TYPES
    ]


async def instance_types(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether EC2 sells something that each NodePool allows, and what the cheapest costs (AWS-350, AWS-360, AWS-365)."""
    if not subject.pools:
        return []
    location, clock = subject.location, SystemClock()
    try:
        answers = await cached_answers(
            subject.services, subject.answer_cache, location.account, location.region, clock.now()
        )
        live = await live_instance_types(answers, location.region, subject.settings, clock)
    except ProviderError as error:
        return [_INSTANCE_TYPES.warning(str(error), "what NodePools can launch is not known", _READ_TYPES)]
    return [_pool_types_finding(subject, live, pool) for pool in subject.pools]


def _pool_types_finding(subject: DoctorSubject, live: LiveInstanceTypes, pool: NodePool) -> DoctorFinding:
    name, reference = pool.metadata.name, pool.spec.template.spec.node_class_ref
    node_class = next((each for each in subject.classes if each.metadata.name == reference.name), None)
    try:
        types = live.types() if node_class is None else live.class_types(node_class)
    except ProviderError as error:
        return _INSTANCE_TYPES.failure(f"NodePool {name}: {error}", "it launches nothing", "correct its EC2NodeClass")
    available = [
        (offering.price_per_hour, instance_type.name, offering)
        for instance_type, offering, is_available in offered_to_pool(pool, types)
        if is_available
    ]
    if not available:
        text = f"NodePool {name}: EC2 sells no instance type in {live.region} that its requirements and zones allow"
        fix = f"correct its requirements, or the subnets of EC2NodeClass {reference.name}"
        return _INSTANCE_TYPES.failure(text, "it launches nothing", fix)
    price, cheapest, offering = min(available, key=itemgetter(0, 1))
    count = len({entry[1] for entry in available})
    cheapest_offering = f"{cheapest} {offering.capacity_type} in {offering.zone} at {price:.4f} {live.currency}/h"
    return _INSTANCE_TYPES.ok(f"NodePool {name}: instance types to choose from: {count}; cheapest: {cheapest_offering}")


#: A check of something, which raises ``AwsError`` where AWS does not answer.
DoctorCheckFunction = Callable[[DoctorSubject], Awaitable[list[DoctorFinding]]]


async def run_checks(subject: DoctorSubject) -> list[DoctorFinding]:
    """What all checks found, in their order. A check that AWS does not let finish is a finding itself."""
    answers = await asyncio.gather(*(_run_check(check, subject) for check in _CHECKS))
    return [finding for findings in answers for finding in findings]


async def _run_check(check: DoctorCheckFunction, subject: DoctorSubject) -> list[DoctorFinding]:
    try:
        return await check(subject)
    except AwsError as error:
        name = DoctorCheck(check.__name__.replace("_", " "))
        return [
            name.failure(
                f"{error.operation or 'a call'} failed: {error}", "this could not be looked at", "see the error"
            )
        ]


_ROLE = DoctorCheck("node role")
_KEYS = DoctorCheck("volume keys")
_ENDED_INSTANCES = DoctorCheck("instances")
#: What EKS says of access entries where the authentication mode is CONFIG_MAP.
_NO_ACCESS_ENTRIES = "InvalidRequestException"
#: Types of access entries whose principals join as nodes (AWS-726).
_NODE_ENTRY_TYPES = frozenset({"EC2_LINUX", "EC2_WINDOWS", "EC2"})
_UNKNOWN_ROLE_IMPACT = "instances run but never join, and claims end at the registration timeout"


async def roles(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the roles of all classes exist, are for EC2 and known to the cluster (AWS-725, AWS-726, AWS-853)."""
    class_by_role: dict[str, EC2NodeClass] = {}
    findings: list[DoctorFinding] = []
    for node_class in subject.classes:
        try:
            role = await _role_name(subject, node_class)
        except AwsError as error:
            findings.append(_no_profile_finding(node_class, error))
            continue
        if role:
            class_by_role.setdefault(role, node_class)
    answers = await asyncio.gather(*(_role_findings(subject, name) for name in class_by_role))
    return findings + [finding for doctor_findings in answers for finding in doctor_findings]


async def _role_name(subject: DoctorSubject, node_class: EC2NodeClass) -> str:
    spec = node_class.spec
    if spec.role:
        return spec.role.rpartition("/")[2]
    if not spec.instance_profile:
        return ""
    profile = await subject.services.iam.get_instance_profile(spec.instance_profile)
    return profile.roles[0].role_name if profile.roles else ""


def _no_profile_finding(node_class: EC2NodeClass, error: AwsError) -> DoctorFinding:
    profile = node_class.spec.instance_profile
    return _ROLE.failure(
        f"instance profile {profile} of EC2NodeClass {node_class.metadata.name}: {error}",
        "launches fail with InstanceProfileNameInvalid",
        "name an instance profile that exists, or set spec.role and let the controller make one",
    )


async def _role_findings(subject: DoctorSubject, name: str) -> list[DoctorFinding]:
    try:
        role = await subject.doctor_api.get_role(name)
    except AwsError as error:
        return [
            _ROLE.failure(
                f"role {name}: {error}",
                "no instance profile can be made, and no instance launched",
                f"make the role, with the policies {', '.join(iam_policies.node_policies(subject.location.bootstrap_mode))}",
            )
        ]
    findings = []
    if not any(service.startswith("ec2.") for service in role.trusted_services):
        findings.append(
            _ROLE.failure(
                f"role {name} cannot be taken on by EC2",
                "launches fail with UnauthorizedOperation",
                "let the service ec2.amazonaws.com assume the role (its trust policy)",
            )
        )
    if subject.settings.bootstrap.is_kubeadm:
        return findings or [_ROLE.ok(f"role {name} can be taken on by EC2")]
    mapping = await _cluster_mapping(subject, role.arn)
    if not mapping.known_by:
        fix = _access_entry_fix(subject, role.arn) if mapping.has_access_entries else _aws_auth_fix(subject, role.arn)
        findings.append(_ROLE.failure(f"the cluster does not know role {name}", _UNKNOWN_ROLE_IMPACT, fix))
    return findings or [_ROLE.ok(f"role {name} is known to the cluster by {mapping.known_by}")]


class _ClusterMapping(NamedTuple):
    """How the cluster authorizes a role, empty if it does not; and whether it has access entries at all."""

    known_by: str = ""
    has_access_entries: bool = True


async def _cluster_mapping(subject: DoctorSubject, arn: str) -> _ClusterMapping:
    if subject.aws_auth is not None and arn in subject.aws_auth:
        return _ClusterMapping("aws-auth")
    try:
        kind = await subject.doctor_api.get_access_entry_type(subject.location.cluster, arn)
    except AwsError as error:
        return _ClusterMapping(has_access_entries=error.code != _NO_ACCESS_ENTRIES)
    return _ClusterMapping(f"an access entry of type {kind}" if kind in _NODE_ENTRY_TYPES else "")


def _access_entry_fix(subject: DoctorSubject, arn: str) -> str:
    place = subject.location
    command = f"aws eks create-access-entry --region {place.region} --cluster-name {place.cluster}"
    return f"{command} --principal-arn {arn} --type EC2_LINUX"


def _aws_auth_fix(subject: DoctorSubject, arn: str) -> str:
    """A cluster of authentication mode CONFIG_MAP authorizes roles by the ConfigMap alone."""
    return (
        account_checks.command_to_add(subject.aws_auth, arn)
        or f"add {arn} to mapRoles of ConfigMap kube-system/aws-auth"
    )


# -- keys -----------------------------------------------------------------------------------------------------------------------


async def volume_keys(subject: DoctorSubject) -> list[DoctorFinding]:
    """Whether the keys of encrypted volumes can be used (AWS-719, AWS-858)."""
    keys = sorted(set(_volume_key_ids(subject.classes)))
    return list(await asyncio.gather(*(_key_finding(subject, key) for key in keys)))


def _volume_key_ids(classes: Iterable[EC2NodeClass]) -> list[str]:
    return [
        mapping.ebs.kms_key_id
        for node_class in classes
        for mapping in node_class.spec.block_device_mappings
        if mapping.ebs is not None and mapping.ebs.kms_key_id
    ]


async def _key_finding(subject: DoctorSubject, key: str) -> DoctorFinding:
    breaks = "instances end right after their start, with a Client error"
    try:
        state = await subject.doctor_api.get_key_state(key)
    except AwsError as error:
        mend = (
            "let the key's policy allow kms:CreateGrant, Decrypt, DescribeKey, GenerateDataKeyWithoutPlainText and "
            f"ReEncrypt* to {subject.principal}"
        )
        return _KEYS.failure(f"key {key} cannot be used: {error}", breaks, mend)
    if state != "Enabled":
        mend = f"aws kms enable-key --region {subject.location.region} --key-id {key}"
        return _KEYS.failure(f"key {key} is {state}", breaks, mend)
    return _KEYS.ok(f"key {key} is enabled")


# -- deaths ---------------------------------------------------------------------------------------------------------------------


async def ended_instances(subject: DoctorSubject) -> list[DoctorFinding]:
    """Instances that ended by themselves, and why (AWS-858)."""
    filters = (
        Ec2Filter(name="tag-key", values=(labels.NODE_POOL,)),
        Ec2Filter(name=f"tag:{aws_labels.CLUSTER_TAG}", values=(subject.location.cluster,)),
        Ec2Filter(name="instance-state-name", values=("terminated",)),
    )
    try:
        ended = await subject.services.ec2.describe_instances(filters=filters)
    except AwsError as error:
        return [
            _ENDED_INSTANCES.warning(
                f"instances cannot be listed: {error}", "nothing by itself", "allow ec2:DescribeInstances"
            )
        ]
    reasons = {
        instance.instance_id: instance.state_reason
        for instance in ended
        if instance.state_reason is not None and _is_unexpected_end(instance.state_reason.code)
    }
    return [
        _ENDED_INSTANCES.failure(
            f"instance {name} ended by itself: {reason.code}: {reason.message}",
            "instances are launched and lost again, and pods wait",
            "for an error of a key let its policy allow the controller's role; for others see the class's volumes and image",
        )
        for name, reason in sorted(reasons.items())
    ]


def _is_unexpected_end(code: str) -> bool:
    """Whether a reason is neither an order to end nor AWS's own need."""
    return code.startswith("Client.") and code != "Client.UserInitiatedShutdown"


_CHECKS: tuple[Callable[[DoctorSubject], Awaitable[list[DoctorFinding]]], ...] = (
    account_checks.permissions,
    account_checks.cluster,
    selectors,
    conditions,
    launches,
    instance_types,
    roles,
    volume_keys,
    account_checks.queue,
    account_checks.quotas,
    ended_instances,
)
