"""Options of ``karpenter simulate`` and ``karpenter tune``; reading them imports no simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from karpenter.cli.terminal import WrongInput

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
        "simulate; may be repeated. Default: one NodePool of c, m and r types.",
    ),
]
FromClusterOption = Annotated[
    bool, typer.Option("--from-cluster", help="Simulate the pods and NodePools of the cluster of the kubeconfig.")
]
PatternOption = Annotated[
    Pattern,
    typer.Option(
        "--pattern",
        help="How the pods of -f or --from-cluster come and go: never, with the day, or in office hours.",
    ),
]
DaysOption = Annotated[
    float | None,
    typer.Option("--days", min=0.01, max=366, help="Days to simulate. Default: all of the trace or scenario."),
]
FromDayOption = Annotated[
    float, typer.Option("--from-day", min=0, help="Day of the trace at which the simulation begins.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed of the scenario.")]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, max=1000, help="Compare over so many seeds, from --seed on.")
]
WorldOption = Annotated[
    Path | None,
    typer.Option(
        "--world", metavar="FILE", help="YAML with delays, stock-outs, interruptions. Default: the scenario's."
    ),
]


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """At most one of ``trace`` and ``scenario`` is given; without either the pods of ``filename`` or of the cluster count.

    ``days`` None: all of it; ``policies`` has at least one name. ``pattern``: how pods of files or of the cluster come and go.
    """

    trace: Path | None
    scenario: str
    filename: tuple[str, ...]
    days: float | None
    from_day: float
    seeds: Sequence[int]
    policies: tuple[str, ...]
    region: str
    world: Path | None
    from_cluster: bool = False
    pattern: Pattern = "daily"

    def check_sources(self, command: str) -> None:
        """Raises ``WrongInput`` unless exactly one source of pods is given; ``command`` is named in the message."""
        sources = (self.trace is not None, bool(self.scenario), self.from_cluster)
        if sum(sources) > 1 or not (any(sources) or self.filename):
            raise WrongInput(
                f"karpenter {command} needs one of --trace FILE, --scenario NAME, --from-cluster and -f FILE with pods"
            )
        if self.from_cluster and self.filename:
            raise WrongInput("--from-cluster takes NodePools from the cluster, so -f has no use beside it")
