"""Options of commands that plan, beside those of their settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.settings import Settings

#: Which replicas of a workload with a HorizontalPodAutoscaler count.
ReplicaChoice = Literal["min", "current", "max"]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where the objects of a plan come from: files or a text, or without either the cluster; and how they are read.

    ``text``: YAML or JSON instead of files.
    ``region``: the region whose types and prices count; empty where the objects decide. ``live_prices``: those of EC2 count.
    """

    filename: list[str] | None
    replicas: ReplicaChoice = "current"
    region: str = ""
    live_prices: bool = False
    recursive: bool = False
    skip_invalid: bool = False
    text: str | None = None
    #: A time with an offset, for which the plan is made; empty for now.
    at: str = ""


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
HistoryOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="History file of the controller (--history-file), or a copy of it.")
]
ControllerOption = Annotated[
    str, typer.Option(metavar="URL", help="Console of the controller (--console), for what its history tells.")
]
ControllerTokenOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with a token to sign in to that console with.")
]
RecursiveOption = Annotated[
    bool, typer.Option("-R", "--recursive", help="Also read the directories in directories given with -f.")
]
ReplicasOption = Annotated[
    ReplicaChoice,
    typer.Option(
        "--replicas", help="Replicas of workloads with a HorizontalPodAutoscaler: its least, those of now, or its most."
    ),
]
RegionOption = Annotated[
    str,
    typer.Option(
        "--region",
        metavar="REGION",
        help="EC2 region whose instance types and prices count. Default: the region that nodes, NodePools or pods "
        "name, else AWS_REGION, else us-east-1.",
    ),
]
LivePricesOption = Annotated[
    bool,
    typer.Option(
        "--live-prices",
        help="Take instance types and prices from EC2 and its price list, with the credentials of the environment; answers are "
        "kept for half an hour.",
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Give reasons in full, with all requirements and resources.")
]
DetailedExitcodeOption = Annotated[
    bool,
    typer.Option(
        "--detailed-exitcode",
        help="Exit with 0 if there is nothing to launch or disrupt, 2 if there is, 3 if pods stay unschedulable, 1 on errors.",
    ),
]
FailOnOption = Annotated[
    Literal["unschedulable"] | None, typer.Option("--fail-on", help="Exit with 3 if pods stay unschedulable.")
]
CompareOption = Annotated[
    Literal["classic"] | None,
    typer.Option(help="Compare with another packing; classic: first-fit decreasing, one node at a time."),
]
ConsolidateOption = Annotated[
    bool,
    typer.Option(
        "--consolidate", help="Also show which nodes would be disrupted (deleted or replaced), when, and the savings."
    ),
]
AtOption = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Plan for another time, such as 2026-12-24T07:00:00+01:00: NodePools that sleep then launch nothing.",
    ),
]
RecordOption = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Write the problem and its solution to a file that karpenter replay solves again."
    ),
]
DiffOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--diff",
        metavar="OLD NEW",
        help="Show what differs between the plans of two inputs: nodes, price, pods that lose their place. An input is a file, a "
        "directory, or the word cluster. Files of -f belong to both.",
    ),
]
SkipInvalidOption = Annotated[bool, typer.Option("--skip-invalid", help="Ignore invalid objects instead of failing.")]


def disruption_options(settings: Settings) -> DisruptionOptions:
    """The options of a disruption decision."""
    return settings.disruption_options(settings.scheduling_options(settings.gates), settings.gates)
