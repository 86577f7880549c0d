"""``karpenter doctor``: checks a setup on AWS before and after the installation, and names the fix of what is wrong."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from karpenter.cli import terminal
from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.settings import SETTING_GROUPS

if TYPE_CHECKING:
    from karpenter.api.ec2_node_class import EC2NodeClass
    from karpenter.api.karpenter import NodePool
    from karpenter.kube.protocol import Kube
    from karpenter.providers.aws.doctor import DoctorFinding, DoctorSubject
    from karpenter.providers.aws.iam_policies import ClusterLocation
    from karpenter.providers.aws.sdk.aws_session import AwsSession
    from karpenter.settings import Settings

#: Settings that the checks depend on.
_SETTINGS = (
    *SETTING_GROUPS["AWS provider"],
    *SETTING_GROUPS["Self-managed clusters on AWS"],
    "feature_gates",
    *CONNECTION_SETTINGS,
)
_ARN = re.compile(r"arn:(?P<partition>[^:]+):(?:sts|iam)::(?P<account>[0-9]{12}):(?P<who>.+)")


class _DoctorInput(NamedTuple):
    """Classes and pools to look at, who is mapped in aws-auth (None: nobody knows), and what is installed."""

    classes: tuple[EC2NodeClass, ...] = ()
    pools: tuple[NodePool, ...] = ()
    aws_auth: str | None = None
    installation_findings: tuple[DoctorFinding, ...] = ()


@with_setting_options(_SETTINGS)
def doctor(
    *,
    flags: Flags,
    role: Annotated[str, typer.Option(metavar="ARN", help="ARN of the controller's role. Default: the caller.")] = "",
    service_account: Annotated[
        str, typer.Option(metavar="NAMESPACE:NAME", help="The controller's ServiceAccount.")
    ] = "kube-system:karpenter",
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", metavar="FILE", help="EC2NodeClasses and NodePools to check instead of the cluster's."
        ),
    ] = None,
    fix_print: Annotated[
        bool,
        typer.Option("--fix-print", help="Print the commands that correct the findings, as a script; run nothing."),
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Check that AWS and the cluster are set up as the controller needs them. Read-only.

    Exits with 1 if a check fails.
    """
    from karpenter.cli import render_doctor, render_fixes
    from karpenter.providers.aws.doctor import FindingLevel
    from karpenter.runtime import logging

    # Findings say all there is to say; lines of the provider's would come between them.
    logging.configure("error", sys.stderr)
    settings = resolve_or_exit("doctor", flags)
    if not settings.cluster_name:
        raise terminal.WrongInput("karpenter doctor: --cluster-name (CLUSTER_NAME) is missing")
    given = _read_manifests(filename or [])
    in_cluster = _read_cluster(settings, service_account)
    if filename:
        in_cluster = in_cluster._replace(classes=given.classes, pools=given.pools)
    findings = [*asyncio.run(_run_checks(settings, role, in_cluster)), *in_cluster.installation_findings]
    printable = Printable(
        document=lambda: render_doctor.document(findings),
        page=lambda out: render_doctor.write(findings, out),
        names=lambda: (finding.check for finding in findings),
    )
    if fix_print:
        render_fixes.write(findings, sys.stdout)
    else:
        write_output(output, printable)
    if any(finding.level is FindingLevel.FAILURE for finding in findings):
        raise typer.Exit(1)


# -- on AWS ---------------------------------------------------------------------------------------------------------------------


async def _run_checks(settings: Settings, role: str, doctor_input: _DoctorInput) -> list[DoctorFinding]:
    from karpenter.metrics import BuildInfo, Metrics
    from karpenter.providers.aws.aws_errors import AwsError
    from karpenter.providers.aws.aws_metrics import SdkMetrics
    from karpenter.providers.aws.doctor import run_checks
    from karpenter.providers.aws.doctor.doctor_types import DoctorCheck
    from karpenter.providers.aws.sdk.aws_session import AwsSession

    account = AwsSession(SdkMetrics(Metrics(BuildInfo())))
    credentials = DoctorCheck("credentials")
    try:
        region = await account.open()
        caller = await account.services.sts.get_caller_identity()
        patient = _doctor_subject(account, settings, _Caller(caller, region, role), doctor_input)
        return [credentials.ok(f"calls are made as {caller} in {region}"), *await run_checks(patient)]
    except AwsError as error:
        mend = "set AWS_REGION, and AWS_PROFILE or other credentials; `aws sts get-caller-identity` shows what they are"
        return [credentials.failure(str(error), "nothing on AWS can be read or launched", mend)]
    finally:
        account.close()


class _Caller(NamedTuple):
    arn: str
    region: str
    role: str


def _doctor_subject(
    account: AwsSession, settings: Settings, caller: _Caller, doctor_input: _DoctorInput
) -> DoctorSubject:
    from karpenter.providers.aws.aws_settings import aws_settings_of
    from karpenter.providers.aws.doctor import DoctorSubject
    from karpenter.providers.aws.sdk.doctor_client import DoctorClient

    place = _iam_context(settings, caller)
    return DoctorSubject(
        services=account.services,
        doctor_api=DoctorClient(account),
        settings=aws_settings_of(settings, settings.gates, settings.intervals),
        location=place,
        principal=caller.role or _role_of(caller.arn),
        classes=doctor_input.classes,
        pools=doctor_input.pools,
        aws_auth=doctor_input.aws_auth,
    )


def _iam_context(settings: Settings, caller: _Caller) -> ClusterLocation:
    from karpenter.providers.aws.iam_policies import ClusterLocation

    match = _ARN.fullmatch(caller.arn)
    partition, account = (match["partition"], match["account"]) if match else ("aws", "")
    return ClusterLocation(
        settings.cluster_name,
        caller.region,
        account,
        partition,
        queue=settings.interruption_queue,
        bootstrap_mode=settings.bootstrap_mode,
        token_delivery=settings.bootstrap_token_delivery,
    )


def _role_of(caller: str) -> str:
    """The role behind a session, as policies are simulated for; anybody else as he is."""
    match = _ARN.fullmatch(caller)
    if match is None or not match["who"].startswith("assumed-role/"):
        return caller
    name = match["who"].split("/")[1]
    return f"arn:{match['partition']}:iam::{match['account']}:role/{name}"


# -- manifests and cluster ------------------------------------------------------------------------------------------------------


def _read_manifests(files: list[str]) -> _DoctorInput:
    """Classes and pools of manifests, checked as ``karpenter plan`` checks them; ends the command where one is invalid."""
    from karpenter.cli import manifest_reader
    from karpenter.cli.planning_options import InputOptions
    from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS
    from karpenter.model import labels

    objects = manifest_reader.read_manifests(InputOptions(files), labels.WELL_KNOWN | INSTANCE_LABELS)
    for line in objects.problems:
        terminal.print_error(line)
    if objects.problems:
        raise typer.Exit(terminal.WRONG_INPUT)
    return _DoctorInput(tuple(objects.node_classes), tuple(objects.pools))


def _read_cluster(settings: Settings, service_account: str) -> _DoctorInput:
    """What the cluster of the kubeconfig has; a finding where there is none."""
    from karpenter.cli.cluster_reader import ClusterUnreachable, query_cluster
    from karpenter.providers.aws.doctor.doctor_types import DoctorCheck

    try:
        return query_cluster(settings, lambda kube: _list_cluster_objects(kube, settings, service_account))
    except ClusterUnreachable as error:
        check = DoctorCheck("cluster access")
        text = f"the cluster was not checked: {error}"
        finding = check.warning(text, "nothing by itself", "set KUBECONFIG and run the command again")
        return _DoctorInput(installation_findings=(finding,))


async def _list_cluster_objects(kube: Kube, settings: Settings, service_account: str) -> _DoctorInput:
    from karpenter.api import kinds
    from karpenter.kube.errors import KubeError, NotFound
    from karpenter.providers.aws.bootstrap.bootstrap_settings import bootstrap_settings_of
    from karpenter.providers.aws.doctor.account_checks import check_installation, check_joining

    findings = await check_installation(kube, service_account)
    findings += await check_joining(kube, bootstrap_settings_of(settings))
    try:
        classes = (await kube.list(kinds.EC2_NODE_CLASS)).items
        pools = (await kube.list(kinds.NODE_POOL)).items
    except NotFound:
        classes, pools = (), ()
    try:
        aws_auth: str | None = (await kube.get(kinds.CONFIG_MAP, "aws-auth", "kube-system")).data.get("mapRoles", "")
    except KubeError:
        aws_auth = None
    return _DoctorInput(classes, pools, aws_auth, tuple(findings))
