"""Options of ``karpenter simulate`` and ``karpenter tune``; reading them imports no simulation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from karpenter.cli.planning_options import RegionOption
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, own_parameters, with_parameters
from karpenter.cli.terminal import WrongInput, print_error

#: Days that a study of the pods of files or of a cluster takes without ``--days``.
CLUSTER_DAYS = 7.0
#: How the pods of files or of a cluster come and go.
Pattern = Literal["steady", "daily", "office"]

TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Trace: CSV or Parquet with one row per pod.")
]
ScenarioOption = Annotated[
    str, typer.Option("--scenario", metavar="NAME|FILE", help="Scenario: web, batch, office, or a YAML file.")
]
FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="FILE",
        help="YAML or JSON with NodePools and DaemonSets, and without --trace and --scenario with the workloads to "
        "simulate and the nodes to begin with; may be repeated. Default: one NodePool of c, m and r types.",
    ),
]
FromClusterOption = Annotated[
    bool,
    typer.Option(
        "--from-cluster", help="Begin with the nodes and pods of the cluster of the kubeconfig, under its NodePools."
    ),
]
PatternOption = Annotated[
    Pattern | None,
    typer.Option(
        "--pattern",
        help="How the pods of -f or --from-cluster come and go: never, with the day, or in office hours. "
        "Default: daily.",
    ),
]
DaysOption = Annotated[
    float | None,
    typer.Option(
        "--days",
        min=0.01,
        max=366,
        help="Days to simulate. Default: all of the trace or scenario; 7 with the pods of -f or --from-cluster.",
    ),
]
FromDayOption = Annotated[
    float, typer.Option("--from-day", min=0, help="Day of the trace at which the simulation begins.")
]
WorldOption = Annotated[
    Path | None,
    typer.Option(
        "--world", metavar="FILE", help="YAML with delays, stock-outs, interruptions. Default: the scenario's."
    ),
]


@dataclass(frozen=True, slots=True)
class StudySource:
    """Where the pods, NodePools and the world of a study come from.

    At most one of ``trace`` and ``scenario`` is given; without either the pods of ``filename`` or of the cluster count.
    ``days`` None: all of it. ``pattern``: how pods of files or of the cluster come and go, None: with the day.
    """

    trace: Path | None
    scenario: str
    filename: tuple[str, ...]
    from_cluster: bool
    pattern: Pattern | None
    days: float | None
    from_day: float
    world: Path | None
    region: str

    def check(self, command: str, flags: Flags) -> None:
        """Raises ``WrongInput`` unless exactly one source of pods is given; ``command`` is named in the message.

        ``flags``: settings that were given as options; those that name a cluster are for ``from_cluster``.
        """
        sources = (self.trace is not None, bool(self.scenario), self.from_cluster)
        if sum(sources) > 1 or not (any(sources) or self.filename):
            raise WrongInput(
                f"karpenter {command} needs one of --trace FILE, --scenario NAME, --from-cluster and -f FILE with pods"
            )
        if self.from_cluster and self.filename:
            raise WrongInput("--from-cluster takes NodePools from the cluster, so -f has no use beside it")
        if not self.from_cluster and any(flags.get(name) is not None for name in CONNECTION_SETTINGS):
            raise WrongInput("--kubeconfig and --context are for --from-cluster: leave them out without it")
        if self.from_day and self.trace is None:
            raise WrongInput("--from-day is a day of a trace: give --trace, or leave it out")
        if self.pattern is not None and (self.trace is not None or self.scenario):
            raise WrongInput(
                "--pattern is for the pods of -f and --from-cluster: leave it out with --trace and --scenario"
            )

    def print_assumption(self, command: str) -> None:
        """Say how long the study is where nobody said so: outside of a terminal it shows no progress, and may take long."""
        if self.days is None and self.trace is None and not self.scenario:
            print_error(f"karpenter {command}: {CLUSTER_DAYS:g} days are simulated; --days gives another number")


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """``policies`` has at least one name. ``executor``: where runs are made; empty: one after the other in this process."""

    source: StudySource
    seeds: Sequence[int]
    policies: tuple[str, ...]
    executor: str = ""


_SOURCE_OPTIONS = (
    ("trace", TraceOption, None),
    ("scenario", ScenarioOption, ""),
    ("filename", FilesOption, None),
    ("from_cluster", FromClusterOption, False),
    ("pattern", PatternOption, None),
    ("days", DaysOption, None),
    ("from_day", FromDayOption, 0.0),
    ("world", WorldOption, None),
    ("region", RegionOption, ""),
)


def with_source_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a ``StudySource``, which it receives as ``source``."""
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in _SOURCE_OPTIONS
    ]
    return with_parameters(command, "source", added, [*added, *own_parameters(command, "source")], _source)


def _source(*, filename: list[str] | None, **given: Any) -> StudySource:
    return StudySource(filename=tuple(filename or ()), **given)
