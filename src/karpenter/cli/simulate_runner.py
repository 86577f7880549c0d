"""Runs the studies of ``karpenter simulate``: reads the input, runs every policy with every seed, shows how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from karpenter.cli.simulate_options import SimulateOptions
from karpenter.cli.study_inputs import read_inputs
from karpenter.settings import Settings
from karpenter.simulator import simulation_run
from karpenter.simulator.policy import read_policy
from karpenter.simulator.simulation_report import SimulationReport
from karpenter.simulator.study_executor import simulated_report

_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class SimulationResult:
    """The reports of each policy, in the order of the policies and of the seeds."""

    reports: tuple[tuple[SimulationReport, ...], ...]

    @property
    def is_partial(self) -> bool:
        """Whether a run was interrupted."""
        return any(report.is_partial for own in self.reports for report in own)


def run_simulation(options: SimulateOptions, settings: Settings) -> SimulationResult:
    """Run every policy with every seed; after Ctrl-C only what was run so far. Raises ``WorkloadError`` and ``WrongInput``."""
    policies = [read_policy(name) for name in options.policies]
    inputs = read_inputs(options.source, options.seeds, settings)
    runs = [(policy, seed) for seed in options.seeds for policy in policies]
    reports: dict[str, list[SimulationReport]] = {policy.name: [] for policy in policies}
    with _shown_progress() as show:
        for policy, seed in runs:
            study = inputs.study(policy, seed)
            on_progress = show(f"{policy.name}, seed {seed}", study.workload.duration_seconds)
            report = simulated_report(study, inputs.bounds[seed], on_progress)
            reports[policy.name].append(report)
            if report.is_partial:
                break
    return SimulationResult(tuple(tuple(own) for own in reports.values() if own))


# -- showing ----------------------------------------------------------------------------------------------------------------

_OnProgress = Callable[[simulation_run.Progress], None]
_ShowProgress = Callable[[str, int], _OnProgress]


@contextmanager
def _shown_progress() -> Iterator[_ShowProgress]:
    """A bar on standard error for each run, where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("day {task.fields[day]:.1f}, {task.fields[nodes]} nodes, ${task.fields[cost]:,.2f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:

        def show(title: str, duration_seconds: int) -> _OnProgress:
            task = progress.add_task(title, total=duration_seconds, day=0.0, nodes=0, cost=0.0)
            return lambda state: _advance(progress, task, state)

        yield show


def _advance(progress: Progress, task: TaskID, state: simulation_run.Progress) -> None:
    progress.update(
        task, completed=state.seconds, day=state.seconds / _DAY_SECONDS, nodes=state.nodes, cost=state.cost_usd
    )
