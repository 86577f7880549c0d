"""``karpenter doctor``: look at a set-up on AWS before and after the installation, and say what mends what is wrong."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from karpenter.cli import deciding
from karpenter.cli.output import emit

if TYPE_CHECKING:
    from karpenter.api.ec2 import EC2NodeClass
    from karpenter.api.karpenter import NodePool
    from karpenter.control.settings import Settings
    from karpenter.kube.protocol import Kube
    from karpenter.providers.aws.boto.account import Account
    from karpenter.providers.aws.doctor import Finding, Patient
    from karpenter.providers.aws.iam import Place

Output = Literal["table", "json"]
_ARN = re.compile(r"arn:(?P<partition>[^:]+):(?:sts|iam)::(?P<account>[0-9]{12}):(?P<who>.+)")


class _Found(NamedTuple):
    """Classes and pools to look at, who is mapped in aws-auth (None: nobody knows), and what is installed."""

    classes: tuple[EC2NodeClass, ...] = ()
    pools: tuple[NodePool, ...] = ()
    aws_auth: str | None = None
    findings: tuple[Finding, ...] = ()


def doctor(
    cluster_name: Annotated[str, typer.Option(envvar="CLUSTER_NAME", help="Name of the cluster.")],
    interruption_queue: Annotated[
        str, typer.Option(envvar="INTERRUPTION_QUEUE", help="Name of the queue that tells of interruptions.")
    ] = "",
    role: Annotated[
        str, typer.Option(metavar="ARN", help="Role whose permissions count: the controller's; else whoever calls.")
    ] = "",
    service_account: Annotated[
        str, typer.Option(metavar="NAMESPACE:NAME", help="The controller's ServiceAccount.")
    ] = "kube-system:karpenter",
    filename: Annotated[
        list[Path] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE",
            help="EC2NodeClasses and NodePools to look at, instead of the cluster's.",
        ),
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table",
) -> None:
    """Look whether everything on AWS and in the cluster is as the controller needs it. Changes nothing.

    Ends with 1 where something does not work.
    """
    from karpenter.cli.render_doctor import as_json, page
    from karpenter.control import logging
    from karpenter.control.settings import SettingError, resolve
    from karpenter.providers.aws.doctor import Level

    # Findings say all there is to say; lines of the provider's would come between them.
    logging.configure("error", sys.stderr)
    flags = {"provider": "aws", "cluster_name": cluster_name, "interruption_queue": interruption_queue}
    try:
        settings = resolve(flags, os.environ)
        given = _given(filename or [])
    except SettingError as error:
        deciding.stop(str(error), deciding.WRONG_INPUT)
    in_cluster = _in_cluster(service_account)
    if filename:
        in_cluster = in_cluster._replace(classes=given.classes, pools=given.pools)
    findings = [*asyncio.run(_examined(settings, role, in_cluster)), *in_cluster.findings]
    emit(as_json(findings) if output == "json" else page(findings))
    if any(finding.level is Level.FAILURE for finding in findings):
        raise typer.Exit(1)


# -- on AWS ---------------------------------------------------------------------------------------------------------------------


async def _examined(settings: Settings, role: str, found: _Found) -> list[Finding]:
    from karpenter.providers.aws.boto.account import Account
    from karpenter.providers.aws.doctor import examine
    from karpenter.providers.aws.doctor.findings import Check
    from karpenter.providers.aws.errors import AwsError
    from karpenter.telemetry import Build, Metrics
    from karpenter.telemetry.aws import SdkMetrics

    account = Account(SdkMetrics(Metrics(Build())))
    credentials = Check("credentials")
    try:
        region = await account.open()
        caller = await account.services.sts.get_caller_identity()
        patient = _patient(account, settings, _Who(caller, region, role), found)
        return [credentials.ok(f"calls are made as {caller} in {region}"), *await examine(patient)]
    except AwsError as error:
        mend = "set AWS_REGION, and AWS_PROFILE or other credentials; `aws sts get-caller-identity` shows what they are"
        return [credentials.failure(str(error), "nothing on AWS can be read or bought", mend)]
    finally:
        account.close()


class _Who(NamedTuple):
    caller: str
    region: str
    role: str


def _patient(account: Account, settings: Settings, who: _Who, found: _Found) -> Patient:
    from karpenter.providers.aws.boto.examiner import Examiner
    from karpenter.providers.aws.doctor import Patient

    place = _place(settings, who)
    return Patient(
        services=account.services,
        more=Examiner(account),
        settings=settings.aws,
        place=place,
        principal=who.role or _role_of(who.caller),
        classes=found.classes,
        pools=found.pools,
        aws_auth=found.aws_auth,
    )


def _place(settings: Settings, who: _Who) -> Place:
    from karpenter.providers.aws.iam import Place

    match = _ARN.fullmatch(who.caller)
    partition, account = (match["partition"], match["account"]) if match else ("aws", "")
    return Place(settings.cluster_name, who.region, account, partition, queue=settings.interruption_queue)


def _role_of(caller: str) -> str:
    """The role behind a session, as policies are simulated for; anybody else as he is."""
    match = _ARN.fullmatch(caller)
    if match is None or not match["who"].startswith("assumed-role/"):
        return caller
    name = match["who"].split("/")[1]
    return f"arn:{match['partition']}:iam::{match['account']}:role/{name}"


# -- manifests and cluster ------------------------------------------------------------------------------------------------------


def _given(files: list[Path]) -> _Found:
    """Classes and pools of manifests; what else is in them is passed over."""
    import msgspec
    import yaml

    from karpenter.api import kinds

    classes: list[EC2NodeClass] = []
    pools: list[NodePool] = []
    for file in files:
        try:
            for document in yaml.safe_load_all(file.read_text()):
                kind = document.get("kind") if isinstance(document, dict) else None
                if kind == kinds.EC2_NODE_CLASS.name:
                    classes.append(kinds.EC2_NODE_CLASS.decode(msgspec.json.encode(document)))
                elif kind == kinds.NODE_POOL.name:
                    pools.append(kinds.NODE_POOL.decode(msgspec.json.encode(document)))
        except (OSError, yaml.YAMLError, msgspec.MsgspecError) as error:
            deciding.stop(f"{file}: {' '.join(str(error).split())}", deciding.WRONG_INPUT)
    return _Found(tuple(classes), tuple(pools))


def _in_cluster(service_account: str) -> _Found:
    """What the cluster of the kubeconfig has; a finding where there is none."""
    from karpenter.cli.live import Unanswered, ask
    from karpenter.providers.aws.doctor.findings import Check

    try:
        return ask(lambda kube: _read(kube, service_account))
    except Unanswered as error:
        check = Check("cluster access")
        text = f"the cluster was not looked at: {error}"
        return _Found(findings=(check.warning(text, "nothing by itself", "set KUBECONFIG, and look again"),))


async def _read(kube: Kube, service_account: str) -> _Found:
    from karpenter.api import kinds
    from karpenter.kube.errors import KubeError, NotFound
    from karpenter.providers.aws.doctor.installation import installation

    findings = await installation(kube, service_account)
    try:
        classes = (await kube.list(kinds.EC2_NODE_CLASS)).items
        pools = (await kube.list(kinds.NODE_POOL)).items
    except NotFound:
        classes, pools = (), ()
    try:
        aws_auth: str | None = (await kube.get(kinds.CONFIG_MAP, "aws-auth", "kube-system")).data.get("mapRoles", "")
    except KubeError:
        aws_auth = None
    return _Found(classes, pools, aws_auth, tuple(findings))
