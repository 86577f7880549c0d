"""``karpenter adopt --check``: what would happen to the objects of a running Karpenter if this controller took its place.

Read-only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning_options
from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.cli.terminal import FAILED, WrongInput

if TYPE_CHECKING:
    from karpenter.adoption.takeover_check import AdoptionInput
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.kube.protocol import Kube

_NOTHING_TO_WRITE = (
    "a take-over writes nothing beforehand: scale Karpenter to zero and install this controller "
    "(docs/migrate/from-karpenter.md); karpenter adopt --check says what would happen"
)
_NOTHING_TO_CHECK = "no NodePool, NodeClaim, EC2NodeClass or Node in the input: there is nothing to check"
#: The Lease of Karpenter's leader election, unless renamed.
_LEASE = "karpenter-leader-election"


@with_setting_options(CONNECTION_SETTINGS)
def adopt(
    *,
    flags: Flags,
    check: Annotated[bool, typer.Option("--check", help="Say what would happen, and change nothing.")] = False,
    filename: planning_options.FilesOption = None,
    output: OutputOption = "table",
) -> None:
    """Check whether this controller can take the place of a running Karpenter, object by object. Read-only.

    Exits with 1 if something has to be changed first.
    """
    from karpenter.adoption.takeover_check import Verdict, check_takeover
    from karpenter.cli import render_adoption
    from karpenter.cli.cluster_reader import query_cluster

    if not check:
        raise WrongInput(_NOTHING_TO_WRITE)
    settings = resolve_or_exit("adopt", flags, filename)
    adoption_input = _read_files(filename) if filename else query_cluster(settings, read_adoption_input)
    findings = check_takeover(adoption_input)
    if filename and not findings:
        raise WrongInput(_NOTHING_TO_CHECK)
    printable = Printable(
        document=lambda: render_adoption.document(findings),
        page=lambda out: render_adoption.write(findings, out),
        names=lambda: (finding.subject for finding in findings),
    )
    write_output(output, printable)
    if any(finding.verdict is Verdict.CHANGE_FIRST for finding in findings):
        raise typer.Exit(FAILED)


def _read_files(paths: list[str]) -> AdoptionInput:
    """The objects of files. Raises ``WrongInput`` where a file cannot be read, or none has an object."""
    from karpenter.cli import manifest_reader
    from karpenter.cli.manifest_documents import EmptySource, read_readable_contents, read_source
    from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS
    from karpenter.model import labels

    contents = read_readable_contents("adopt --check", paths, recursive=False)
    parts = [part for content in contents for part in read_source(content.source, content.content)]
    if all(isinstance(part, EmptySource) for part in parts):
        raise WrongInput(_NOTHING_TO_CHECK)
    return _adoption_input(manifest_reader.read_parts(parts, labels.WELL_KNOWN | INSTANCE_LABELS))


async def read_adoption_input(kube: Kube) -> AdoptionInput:
    """The objects of a cluster that matter to a take-over. Raises ``KubeError``."""
    from karpenter.api import kinds
    from karpenter.cli.cluster_reader import list_pools_and_nodes
    from karpenter.kube.optional_kinds import OptionalKindsReader

    objects = await list_pools_and_nodes(kube)
    optional = OptionalKindsReader(kube)
    objects.node_classes = list((await optional.list(kinds.EC2_NODE_CLASS)).items)
    objects.kwok_node_classes = list((await optional.list(kinds.KWOK_NODE_CLASS)).items)
    leases = (await kube.list(kinds.LEASE)).items
    return replace(
        _adoption_input(objects),
        deployments=tuple((await kube.list(kinds.DEPLOYMENT)).items),
        leases=tuple(lease for lease in leases if lease.metadata.name == _LEASE),
        definitions=tuple((await kube.list(kinds.CUSTOM_RESOURCE_DEFINITION)).items),
    )


def _adoption_input(objects: ClusterObjects) -> AdoptionInput:
    from karpenter.adoption.takeover_check import AdoptionInput
    from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS
    from karpenter.model import labels

    return AdoptionInput(
        datetime.now(UTC),
        pools=tuple(objects.pools),
        claims=tuple(objects.claims),
        nodes=tuple(objects.nodes),
        node_classes=(*objects.node_classes, *objects.kwok_node_classes),
        well_known=labels.WELL_KNOWN | INSTANCE_LABELS,
        unreadable=tuple(objects.problems),
    )
