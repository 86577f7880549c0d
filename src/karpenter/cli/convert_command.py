"""``karpenter convert``: manifests of older Karpenter releases as objects of ``v1`` (API §17.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karpenter.cli.planning_options import RecursiveOption
from karpenter.cli.terminal import FAILED, WrongInput, print_error, write_text

if TYPE_CHECKING:
    from karpenter.conversion.drafts import InputObject
    from karpenter.conversion.manifests import ConvertedManifests

Format = Literal["yaml", "json"]


FilenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE",
        help="YAML or JSON with objects, a directory of such files, or - for standard input; may be repeated.",
    ),
]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="YAML documents, or one JSON List.")]
IgnoreDefaultsOption = Annotated[
    bool,
    typer.Option(
        "--ignore-defaults", help="Do not add the requirements that the old webhook wrote into each Provisioner."
    ),
]
NodeRoleOption = Annotated[
    str, typer.Option(metavar="ROLE", help="Role of classes with neither role nor instance profile.")
]
InstanceProfileOption = Annotated[
    str, typer.Option(metavar="NAME", help="Instance profile of classes with neither role nor instance profile.")
]
DefaultNodeClassOption = Annotated[str, typer.Option(metavar="NAME", help="EC2NodeClass of NodePools that name none.")]
ClusterNameOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="Cluster whose tag selects subnets and security groups where none are given."),
]
KubernetesVersionOption = Annotated[
    str, typer.Option(metavar="MINOR", help="Minor version of the cluster, such as 1.33, for Ubuntu images.")
]
KeepOthersOption = Annotated[bool, typer.Option("--keep-others", help="Write objects of other kinds unchanged.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit with 1 and write nothing when there is a warning.")]


def convert(
    filename: FilenameOption = None,
    recursive: RecursiveOption = False,
    output: FormatOption = "yaml",
    ignore_defaults: IgnoreDefaultsOption = False,
    node_role: NodeRoleOption = "",
    instance_profile: InstanceProfileOption = "",
    default_nodeclass: DefaultNodeClassOption = "default",
    cluster_name: ClusterNameOption = "",
    kubernetes_version: KubernetesVersionOption = "",
    keep_others: KeepOthersOption = False,
    strict: StrictOption = False,
) -> None:
    """Convert Provisioners, Machines, AWSNodeTemplates and v1beta1 objects to v1.

    Objects go to standard output, notes to standard error. Exits with 1 when an object could not be converted, with 2 when there
    is none to convert.
    """
    from karpenter.conversion.manifests import convert_manifests
    from karpenter.conversion.options import ConversionOptions

    if not filename:
        raise WrongInput("convert needs -f FILE; use -f - for standard input")
    if node_role and instance_profile:
        raise WrongInput("--node-role and --instance-profile exclude each other; keep one")
    options = ConversionOptions(
        ignore_defaults=ignore_defaults,
        node_role=node_role,
        instance_profile=instance_profile,
        default_node_class=default_nodeclass,
        cluster_name=cluster_name,
        kubernetes_version=kubernetes_version,
        keep_others=keep_others,
    )
    inputs, malformed = _read(filename, recursive=recursive)
    converted = convert_manifests(inputs, options)
    for line in (*malformed, *_note_lines(converted)):
        print_error(line)
    if converted.nothing_to_convert and not converted.objects and not malformed:
        raise WrongInput(_nothing_to_convert(converted))
    is_withheld = strict and _has_warnings(converted)
    if not is_withheld:
        write_text(_rendered(converted, output))
    if is_withheld or malformed or converted.failed:
        raise typer.Exit(FAILED)


def _read(paths: list[str], *, recursive: bool) -> tuple[list[InputObject], list[str]]:
    """The objects of the input, and a line for each document that is none. Raises ``WrongInput`` for a file it cannot read."""
    from karpenter.cli.convert_input import parse_input
    from karpenter.cli.manifest_documents import MalformedDocument, read_readable_contents

    parts = [part for content in read_readable_contents("convert", paths, recursive) for part in parse_input(content)]
    malformed = [f"ERROR {part.message}" for part in parts if isinstance(part, MalformedDocument)]
    return [part for part in parts if not isinstance(part, MalformedDocument)], malformed


def _nothing_to_convert(converted: ConvertedManifests) -> str:
    from karpenter.conversion.manifests import CONVERTED_KIND_NAMES
    from karpenter.model.texts import count_text

    *kinds, last = CONVERTED_KIND_NAMES
    taken = f"convert takes {', '.join(kinds)} and {last}"
    if not converted.foreign_count:
        return f"no objects in the input; {taken}"
    count = converted.foreign_count
    what = (
        "the object of the input is not" if count == 1 else f"none of the {count_text(count, 'object')} of the input is"
    )
    return f"{what} of a kind that is converted; {taken}"


def _note_lines(converted: ConvertedManifests) -> list[str]:
    """``LEVEL FILE:DOCUMENT KIND/NAME PATH: TEXT`` for each note (API-818)."""
    return [
        f"{note.level.value} {' '.join(part for part in (noted.origin, noted.subject, note.path) if part)}: {note.text}"
        for noted in converted.notes
        for note in noted.notes
    ]


def _has_warnings(converted: ConvertedManifests) -> bool:
    return any(note.level.value == "WARN" for noted in converted.notes for note in noted.notes)


def _rendered(converted: ConvertedManifests, output: Format) -> str:
    if output == "json":
        import json

        return f"{json.dumps({'apiVersion': 'v1', 'kind': 'List', 'items': list(converted.objects)}, indent=2)}\n"
    from karpenter.cli.manifest_yaml import manifests_yaml

    return manifests_yaml(converted.objects)
