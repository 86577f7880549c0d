"""Options of commands that plan, beside those of their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.settings import Settings

#: Which replicas of a workload with a HorizontalPodAutoscaler count.
ReplicaChoice = Literal["min", "current", "max"]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where the objects of a plan come from: files, or without any the cluster; and how they are read."""

    filename: list[str] | None
    replicas: ReplicaChoice = "current"
    skip_invalid: bool = False


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
ReplicasOption = Annotated[
    ReplicaChoice,
    typer.Option(
        "--replicas", help="Replicas of workloads with a HorizontalPodAutoscaler: its least, those of now, or its most."
    ),
]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Ignore invalid objects instead of failing.")]


def disruption_options(settings: Settings) -> DisruptionOptions:
    """The options of a disruption decision."""
    return settings.disruption_options(settings.scheduling_options(settings.gates), settings.gates)
