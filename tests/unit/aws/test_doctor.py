"""Findings of `karpenter doctor`: each names the problem and the fix."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from msgspec.structs import replace

from karpenter.api.ec2_node_class import (
    AMI,
    BlockDevice,
    BlockDeviceMapping,
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
    ImageRequirement,
    SecurityGroup,
    SecurityGroupSelectorTerm,
    Subnet,
    SubnetSelectorTerm,
)
from karpenter.api.kinds import KINDS
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.cli import render_doctor, render_fixes
from karpenter.model import labels
from karpenter.providers.aws.aws_apis import AwsApis, RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.aws_types import Ec2Filter, EksCluster, Tag
from karpenter.providers.aws.bootstrap.bootstrap_objects import CLUSTER_ROLE_BINDING
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings
from karpenter.providers.aws.cloudformation import EVENT_RULES
from karpenter.providers.aws.doctor import DoctorFinding, DoctorSubject, FindingLevel, run_checks
from karpenter.providers.aws.doctor.account_checks import check_joining
from karpenter.providers.aws.doctor.doctor_types import DoctorCheck, EventBridgeRule, PermissionQuery, RoleDescription
from karpenter.providers.aws.ec2_descriptions import InstanceInfo, SecurityGroupInfo, StateReason, SubnetInfo
from karpenter.providers.aws.ec2_requests import LaunchTemplate
from karpenter.providers.aws.iam_policies import ClusterLocation
from karpenter.providers.aws.live_instance_types import AnswerCache
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import node_pool, wanted
from support.ec2_instance_types import START, A, FakeRegion, product, spot
from support.manual_clock import ManualClock

CONTROLLER = "arn:aws:iam::123456789012:role/KarpenterController"
NODE_ROLE = "arn:aws:iam::123456789012:role/nodes"
OWNED = Tag(key="kubernetes.io/cluster/shop", value="owned")


class Aws:
    """A healthy account, in which tests cause problems."""

    def __init__(self) -> None:
        self.subnets = [
            SubnetInfo(subnet_id="subnet-1", vpc_id="v", availability_zone="a", available_ip_address_count=99)
        ]
        self.groups = [SecurityGroupInfo(group_id="sg-1", vpc_id="v", tags=(OWNED,))]
        self.instances: list[InstanceInfo] = []
        self.version = "1.35"
        self.refused: set[str] = set()
        self.rules = [EventBridgeRule("r", (source,), (kind,)) for source, kind in EVENT_RULES.values()]
        self.roles = {"nodes": RoleDescription(NODE_ROLE, ("ec2.amazonaws.com",))}
        self.entries = {NODE_ROLE: "EC2_LINUX"}
        self.entry_refusal = "ResourceNotFoundException"
        self.key_state = "Enabled"
        self.quota = 1000.0
        self.faults: dict[str, AwsError] = {}
        self.templates: list[LaunchTemplate] = []
        self.launch_answers: dict[str | None, AwsError] = {}
        self.region = FakeRegion(spot=[spot("m5.large", A, 0.05)])
        self.region.products = {"Shared": (product("m5.large", 0.2),), "Dedicated": (product("m5.metal", 9),)}
        for call in ("describe_instance_types", "describe_instance_type_offerings", "describe_spot_price_history"):
            setattr(self, call, getattr(self.region, call))
        self.get_products = self.region.get_products

    def _called(self, name: str) -> None:
        if name in self.faults:
            raise self.faults[name]

    async def describe_subnets(self, filters: Sequence[Ec2Filter]) -> tuple[SubnetInfo, ...]:
        self._called("subnets")
        return tuple(self.subnets)

    async def describe_security_groups(self, filters: Sequence[Ec2Filter]) -> tuple[SecurityGroupInfo, ...]:
        return tuple(self.groups)

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        return tuple(self.instances)

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        return tuple(self.templates)

    async def dry_run_instances(self, dry_run: RunInstancesDryRun) -> None:
        assert (dry_run.instance_type, dry_run.subnet_id) == ("m5.large", "subnet-1")
        market_options = dry_run.data.instance_market_options
        raise self.launch_answers[market_options.market_type if market_options else None]

    async def describe_cluster(self, name: str) -> EksCluster:
        self._called("cluster")
        return EksCluster(name=name, version=self.version)

    async def get_queue_url(self, name: str) -> str:
        self._called("queue")
        return f"url:{name}"

    async def denied_actions(self, query: PermissionQuery) -> tuple[str, ...]:
        self._called("simulate")
        assert query.principal == CONTROLLER
        return tuple(action for action in query.actions if action in self.refused)

    async def get_role(self, name: str) -> RoleDescription:
        if name not in self.roles:
            raise AwsError("NoSuchEntity", "no such role")
        return self.roles[name]

    async def get_queue_arn(self, url: str) -> str:
        return f"arn:{url}"

    async def rules_targeting(self, target_arn: str) -> Sequence[EventBridgeRule]:
        return self.rules

    async def get_access_entry_type(self, cluster: str, principal: str) -> str:
        if principal not in self.entries:
            raise AwsError(self.entry_refusal, "no entry")
        return self.entries[principal]

    async def get_key_state(self, key: str) -> str:
        self._called("key")
        return self.key_state

    async def get_vcpu_quota(self, code: str) -> float:
        return self.quota


def node_class(**changes: object) -> EC2NodeClass:
    spec = EC2NodeClassSpec(
        subnet_selector_terms=(SubnetSelectorTerm(tags={"karpenter.sh/discovery": "shop"}),),
        security_group_selector_terms=(SecurityGroupSelectorTerm(id="sg-1"),),
        role="path/nodes",
    )
    return EC2NodeClass(metadata=ObjectMeta(name="default"), spec=replace(spec, **changes))


def patient(aws: Aws, **changes: object) -> DoctorSubject:
    port = cast(Any, aws)
    doctor_subject = DoctorSubject(
        services=AwsApis(port, port, port, port, port, port, port, port),
        doctor_api=aws,
        settings=AwsSettings("shop", interruption_queue="shop"),
        location=ClusterLocation("shop", "eu-west-1", "123456789012"),
        principal=CONTROLLER,
        classes=(node_class(),),
        pools=(node_pool(),),
        answer_cache=AnswerCache(Path("/nonexistent"), timedelta(0)),
    )
    return DoctorSubject(**{**doctor_subject.__dict__, **changes})


async def bad(aws: Aws, **changes: object) -> list[DoctorFinding]:
    """Findings that are not ok."""
    return [finding for finding in await run_checks(patient(aws, **changes)) if finding.level is not FindingLevel.OK]


async def test_a_healthy_account_has_no_findings() -> None:
    findings = await run_checks(patient(Aws()))
    assert {finding.level for finding in findings} == {FindingLevel.OK}
    assert {finding.check for finding in findings} == {
        "permissions",
        "cluster",
        "subnets",
        "security groups",
        "node role",
        "interruption queue",
        "instance types",
        "quotas",
    }
    page = StringIO()
    render_doctor.write(findings, page)
    assert page.getvalue().endswith(f"{len(findings)} ok, 0 warnings, 0 failures\n")


async def test_a_missing_permission_names_the_statement_to_attach() -> None:
    """AWS-700 to AWS-717"""
    aws = Aws()
    aws.refused = {"ec2:CreateLaunchTemplate", "iam:PassRole"}
    first, second = await bad(aws)
    assert "may not ec2:CreateLaunchTemplate" in first.text
    assert "AllowScopedEC2InstanceActionsWithTags" in first.fix
    assert "--part NodeLifecycle" in first.fix
    assert "AllowPassingInstanceRole" in second.fix
    assert "--part IAMIntegration" in second.fix
    assert {first.level, second.level} == {FindingLevel.FAILURE}


@pytest.mark.parametrize(
    ("illness", "level", "says", "mend"),
    [
        ({"subnets": []}, FindingLevel.FAILURE, "selects no subnet", "create-tags --region eu-west-1"),
        ({"groups": []}, FindingLevel.FAILURE, "selects no security group", "karpenter.sh/discovery"),
        ({"version": "1.25"}, FindingLevel.WARNING, "is of Kubernetes 1.25; known are 1.26 to 1.37", "release"),
        ({"rules": []}, FindingLevel.FAILURE, "no rule sends 'AWS Health Event'", "-o cloudformation"),
        ({"roles": {}}, FindingLevel.FAILURE, "role nodes: NoSuchEntity", "AmazonEKSWorkerNodePolicy"),
        ({"entries": {}}, FindingLevel.FAILURE, "the cluster does not know role nodes", f"--principal-arn {NODE_ROLE}"),
        ({"quota": 5.0}, FindingLevel.WARNING, "may run 5 on-demand vCPUs", "request-service-quota-increase"),
    ],
    ids=["AWS-T081-subnets", "groups", "AWS-025", "AWS-731", "AWS-725", "AWS-853", "quota"],
)
async def test_each_problem_is_found_with_its_fix(
    illness: dict[str, object], level: FindingLevel, says: str, mend: str
) -> None:
    aws = Aws()
    for name, value in illness.items():
        setattr(aws, name, value)
    finding = (await bad(aws))[0]
    assert finding.level is level
    assert says in finding.text
    assert mend in finding.fix
    assert finding.impact


async def test_a_role_in_aws_auth_needs_no_access_entry() -> None:
    """AWS-726"""
    aws = Aws()
    aws.entries = {}
    assert await bad(aws, aws_auth=f"- rolearn: {NODE_ROLE}\n  username: system:node:x\n") == []


@pytest.mark.parametrize(
    ("map_roles", "command", "kept"),
    [
        (None, "kubectl create configmap aws-auth -n kube-system --from-literal=", []),
        ("", "kubectl patch configmap aws-auth -n kube-system --type merge -p ", []),
        ("- rolearn: arn:other\n  username: other\n", "kubectl patch configmap aws-auth", ["arn:other"]),
    ],
    ids=["no ConfigMap", "an empty one", "one with other roles"],
)
async def test_for_a_cluster_without_access_entries_the_fix_adds_the_role_to_aws_auth(
    map_roles: str | None, command: str, kept: list[str]
) -> None:
    """AWS-726, AWS-853: the fix is a shell command that keeps the content of the ConfigMap."""
    aws = Aws()
    aws.entries, aws.entry_refusal = {}, "InvalidRequestException"
    (finding,) = await bad(aws, aws_auth=map_roles)
    assert finding.fix.startswith(command)
    last = shlex.split(finding.fix)[-1]
    text = json.loads(last)["data"]["mapRoles"] if map_roles is not None else last.partition("mapRoles=")[2]
    entries = yaml.safe_load(text)
    assert [entry["rolearn"] for entry in entries] == [*kept, NODE_ROLE]
    assert entries[-1]["username"] == "system:node:{{EC2PrivateDNSName}}"
    assert entries[-1]["groups"] == ["system:bootstrappers", "system:nodes"]


async def test_an_unreadable_aws_auth_is_not_overwritten() -> None:
    aws = Aws()
    aws.entries, aws.entry_refusal = {}, "InvalidRequestException"
    (finding,) = await bad(aws, aws_auth="mapping: {")
    assert finding.fix == f"add {NODE_ROLE} to mapRoles of ConfigMap kube-system/aws-auth"


def test_the_fixes_are_a_script_in_which_manual_steps_are_comments() -> None:
    """Issue 17: `doctor --fix-print` prints commands; manual steps are comments and are not executed."""
    check = DoctorCheck("node role")
    out = io.StringIO()
    findings = [
        check.ok("known"),
        check.failure("not known", "nothing joins", "aws eks create-access-entry --cluster-name shop"),
        check.warning("odd\nlines", "", "ask your\nadministrator"),
    ]
    render_fixes.write(findings, out)
    assert out.getvalue().splitlines()[2:] == [
        *("", "# failure: node role: not known", "aws eks create-access-entry --cluster-name shop"),
        *("", "# warning: node role: odd lines", "# by hand: ask your administrator"),
    ]
    assert subprocess.run(["sh", "-n"], input=out.getvalue(), text=True, check=False).returncode == 0


async def test_a_role_that_is_not_for_ec2_is_found() -> None:
    aws = Aws()
    aws.roles = {"nodes": RoleDescription(NODE_ROLE, ("lambda.amazonaws.com",))}
    (finding,) = await bad(aws)
    assert finding.text == "role nodes cannot be taken on by EC2"


async def test_few_free_addresses_are_reported_by_zone() -> None:
    aws = Aws()
    aws.subnets.append(
        SubnetInfo(subnet_id="subnet-2", vpc_id="v", availability_zone="b", available_ip_address_count=7)
    )
    (finding,) = await bad(aws)
    assert finding.level is FindingLevel.WARNING
    assert "few free addresses in b (free by zone: a 99, b 7)" in finding.text


async def test_groups_of_another_vpc_and_two_owned_ones_are_found() -> None:
    """AWS-852"""
    aws = Aws()
    aws.groups.append(SecurityGroupInfo(group_id="sg-2", vpc_id="w", tags=(OWNED,)))
    foreign, owned = await bad(aws)
    assert foreign.text.endswith("sg-2 lie in another VPC than the subnets")
    assert owned.text.endswith("sg-1, sg-2 all carry the cluster's ownership tag")


@pytest.mark.parametrize("error", [None, AwsError("AccessDeniedException", "no")], ids=["disabled", "AWS-858-refused"])
async def test_a_kms_key_that_cannot_be_used_is_found(error: AwsError | None) -> None:
    """AWS-719, AWS-858"""
    aws = Aws()
    aws.key_state = "Disabled"
    aws.faults = {"key": error} if error else {}
    volume = BlockDeviceMapping(device_name="/dev/xvda", ebs=BlockDevice(volume_size="20Gi", kms_key_id="key-1"))
    (finding,) = await bad(aws, classes=(node_class(block_device_mappings=(volume,)),))
    assert finding.level is FindingLevel.FAILURE
    assert "right after their start" in finding.impact


async def test_instances_terminated_by_ec2_are_reported_with_the_reason() -> None:
    """AWS-858"""
    aws = Aws()
    aws.instances = [
        InstanceInfo(
            instance_id="i-1", state_reason=StateReason(code="Client.InvalidKMSKey.InvalidState", message="key")
        ),
        InstanceInfo(instance_id="i-2", state_reason=StateReason(code="Client.UserInitiatedShutdown")),
        InstanceInfo(instance_id="i-3"),
    ]
    (finding,) = await bad(aws)
    assert finding.text == "instance i-1 ended by itself: Client.InvalidKMSKey.InvalidState: key"


async def test_spot_without_an_interruption_queue_is_a_warning() -> None:
    """AWS-854, AWS-T852: one warning if any NodePool allows spot."""
    (finding,) = await bad(Aws(), settings=AwsSettings("shop"))
    assert finding.level is FindingLevel.WARNING
    assert "allow spot instances and no queue is set" in finding.text


async def test_conditions_of_a_class_are_reported_with_the_fix() -> None:
    """AWS-T702, AWS-T703"""
    condition = Condition(type="ValidationSucceeded", status="False", reason="CreateFleetAuthCheckFailed", message="no")
    ill = replace(node_class(), status=EC2NodeClassStatus(conditions=(condition,)))
    (finding,) = await bad(Aws(), classes=(ill,))
    assert finding.text == "EC2NodeClass default: ValidationSucceeded False: CreateFleetAuthCheckFailed no"
    assert "NodeLifecycle" in finding.fix


async def test_a_class_with_inconclusive_dry_runs_is_a_finding() -> None:
    """AWS-116, AWS-T702."""
    message = "dry runs that prove nothing: ec2:CreateFleet (InternalError)"
    condition = Condition(type="ValidationSucceeded", status="True", reason="ValidationSucceeded", message=message)
    unproven = replace(node_class(), status=EC2NodeClassStatus(conditions=(condition,)))
    (finding,) = await bad(Aws(), classes=(unproven,))
    assert (finding.level, finding.text) == (FindingLevel.WARNING, f"EC2NodeClass default is ready, but {message}")


def launchable() -> EC2NodeClass:
    """A class whose status is complete for a launch."""
    status = EC2NodeClassStatus(
        subnets=(Subnet(id="subnet-1", zone="a"),),
        security_groups=(SecurityGroup(id="sg-1"),),
        amis=(AMI(id="ami-1", requirements=(ImageRequirement(key=labels.ARCH, operator="In", values=("amd64",)),)),),
    )
    return replace(node_class(), status=status)


_PASSED = AwsError("DryRunOperation", "would have succeeded")
_WRONG_MARKET_TYPE = AwsError("InvalidParameterValue", "You cannot specify tags for Spot instances requests")


async def test_a_node_pool_is_reported_with_its_types_and_lowest_price() -> None:
    """AWS-350, AWS-360, AWS-365: at the live prices of the region."""
    pool = node_pool("spot", (wanted(labels.CAPACITY_TYPE, "In", "spot"),))
    findings = await run_checks(patient(Aws(), pools=(pool,)))
    assert [finding.text for finding in findings if finding.check == "instance types"] == [
        f"NodePool spot: instance types to choose from: 1; cheapest: m5.large spot in {A} at 0.0500 USD/h"
    ]


async def test_a_node_pool_without_instance_types_is_a_finding() -> None:
    """AWS-350: a type that the region does not offer."""
    pool = node_pool("exotic", (wanted(labels.INSTANCE_TYPE, "In", "x9.none"),))
    (finding,) = await bad(Aws(), pools=(pool,))
    assert finding.level is FindingLevel.FAILURE
    assert finding.text == (
        "NodePool exotic: EC2 sells no instance type in eu-west-1 that its requirements and zones allow"
    )


async def test_instance_types_that_cannot_be_read_are_a_warning() -> None:
    """AWS-364"""
    aws = Aws()
    aws.region.failing = {"products": AwsError("AccessDeniedException", "no", "GetProducts")}
    (finding,) = await bad(aws)
    assert (finding.check, finding.level) == ("instance types", FindingLevel.WARNING)
    assert "AccessDeniedException" in finding.text


@pytest.mark.parametrize(
    ("on_demand", "spot", "level"),
    [
        (_PASSED, AwsError("InvalidParameterValue", "no"), FindingLevel.OK),
        (_WRONG_MARKET_TYPE, _PASSED, FindingLevel.OK),
        (AwsError("UnauthorizedOperation", "no"), AwsError("UnauthorizedOperation", "no"), FindingLevel.WARNING),
        (AwsError("InvalidAMIID.NotFound", "no"), AwsError("InvalidAMIID.NotFound", "no"), FindingLevel.FAILURE),
    ],
)
async def test_the_launch_dry_run_uses_the_newest_launch_template_of_the_class(
    on_demand: AwsError, spot: AwsError, level: FindingLevel
) -> None:
    """AWS-117: the answer of EC2 to RunInstances with the launch template of launches."""
    aws = Aws()
    aws.templates = [
        LaunchTemplate(
            launch_template_id=name, launch_template_name=name, create_time=datetime(2026, 1, day, tzinfo=UTC)
        )
        for name, day in (("new", 2), ("old", 1))
    ]
    aws.launch_answers = {None: on_demand, "spot": spot}
    findings = [
        finding for finding in await run_checks(patient(aws, classes=(launchable(),))) if finding.check == "launches"
    ]
    assert [finding.level for finding in findings] == [level]
    assert "new" in findings[0].text


async def test_without_a_launch_template_the_doctor_reports_that_no_launch_was_tried() -> None:
    """AWS-117"""
    findings = await run_checks(patient(Aws(), classes=(launchable(),)))
    assert [finding.text for finding in findings if finding.check == "launches"] == [
        "EC2NodeClass default has no launch template yet, so no launch was tried: its conditions tell"
    ]


async def test_without_permission_to_simulate_policies_the_other_checks_run() -> None:
    aws = Aws()
    aws.faults = {
        "simulate": AwsError("AccessDenied", "no"),
        "subnets": AwsError("UnauthorizedOperation", "no", "DescribeSubnets"),
    }
    findings = await bad(aws)
    assert [finding.level for finding in findings] == [FindingLevel.WARNING, FindingLevel.FAILURE]
    assert "cannot be simulated" in findings[0].text
    assert "DescribeSubnets failed" in findings[1].text


_KUBEADM = AwsSettings("shop", interruption_queue="shop", bootstrap=BootstrapSettings(mode=BootstrapMode.KUBEADM))


async def test_in_mode_kubeadm_eks_is_not_called_and_roles_need_no_access_entry() -> None:
    """AWS-900: the endpoint must be set, and access entries are not checked."""
    aws = Aws()
    aws.entries = {}
    aws.faults["cluster"] = AwsError("AccessDeniedException", "EKS was asked")
    (found,) = await bad(aws, settings=_KUBEADM)
    assert (found.check, found.fix) == ("cluster", "set --cluster-endpoint")
    with_endpoint = dataclasses.replace(_KUBEADM, cluster_endpoint="https://10.0.0.10:6443")
    assert await bad(aws, settings=with_endpoint) == []


async def test_in_mode_kubeadm_the_policy_to_attach_is_that_of_the_mode() -> None:
    """AWS-941"""
    aws = Aws()
    aws.refused = {"iam:PassRole"}
    place = ClusterLocation("shop", "eu-west-1", "123456789012", bootstrap_mode=BootstrapMode.KUBEADM)
    found = await bad(aws, location=place)
    assert "--bootstrap-mode kubeadm --part IAMIntegration" in found[0].fix


async def test_missing_join_prerequisites_are_a_failure_in_mode_kubeadm_only() -> None:
    """AWS-936"""
    kube = MemoryKube(MemoryServer(ManualClock(START), kinds=(*KINDS.values(), CLUSTER_ROLE_BINDING)))
    (found,) = await check_joining(kube, _KUBEADM.bootstrap)
    assert found.level is FindingLevel.FAILURE
    assert "ConfigMap kube-public/cluster-info" in found.text
    assert found.fix == "run `kubeadm init phase bootstrap-token` on a node of the control plane"
    assert await check_joining(kube, BootstrapSettings()) == []
