"""Options of commands that plan, beside those of their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.settings import Settings

FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE",
        help="YAML or JSON with objects, a directory of such files, or - for standard input; may be repeated. "
        "Default: the cluster of the kubeconfig.",
    ),
]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Ignore invalid objects instead of failing.")]


def disruption_options(settings: Settings) -> DisruptionOptions:
    """The options of a disruption decision."""
    return settings.disruption_options(settings.scheduling_options(settings.gates), settings.gates)
