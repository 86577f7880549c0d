"""Runs the studies of ``karpenter simulate``: reads the input, runs every policy with every seed, shows how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from karpenter.cli.simulate_options import SimulateOptions
from karpenter.cli.study_inputs import read_inputs
from karpenter.settings import Settings
from karpenter.simulator import simulation_run
from karpenter.simulator.cost_bound import CostBound
from karpenter.simulator.policy import read_policy
from karpenter.simulator.simulation_report import SimulationReport
from karpenter.simulator.simulation_run import Study
from karpenter.simulator.study_executor import open_executor, simulated_report

_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class SimulationResult:
    """The reports of each policy, in the order of the policies and of the seeds. ``is_partial``: a run was interrupted."""

    reports: tuple[tuple[SimulationReport, ...], ...]
    is_partial: bool


def run_simulation(options: SimulateOptions, settings: Settings) -> SimulationResult:
    """Run every policy with every seed; after Ctrl-C only what was run so far. Raises ``WorkloadError`` and ``WrongInput``."""
    policies = [read_policy(name) for name in options.policies]
    inputs = read_inputs(options.source, options.seeds, settings)
    options.source.print_assumption("simulate")
    runs = [(inputs.study(policy, seed), inputs.bounds[seed]) for seed in options.seeds for policy in policies]
    reports: dict[str, list[SimulationReport]] = {policy.name: [] for policy in policies}
    try:
        for report in _reports_side_by_side(runs, options.executor) if options.executor else _reports_in_turn(runs):
            reports[report.policy].append(report)
        was_interrupted = False
    except KeyboardInterrupt:
        was_interrupted = True
    by_policy = tuple(tuple(own) for own in reports.values() if own)
    is_partial = was_interrupted or any(report.is_partial for own in by_policy for report in own)
    return SimulationResult(by_policy, is_partial)


_Run = tuple[Study, CostBound]


def _reports_in_turn(runs: Iterable[_Run]) -> Iterator[SimulationReport]:
    """In this process; the last one is partial after Ctrl-C."""
    with _shown_progress() as show:
        for study, bound in runs:
            title = f"{study.policy.name}, seed {study.seed}"
            report = simulated_report(study, bound, show(title, study.workload.duration_seconds))
            yield report
            if report.is_partial:
                return


def _reports_side_by_side(runs: Sequence[_Run], executor_address: str) -> Iterator[SimulationReport]:
    """All are handed over at once, and come in their order. Raises ``KeyboardInterrupt`` and ``WorkloadError``."""
    with open_executor(executor_address) as executor, _counted_runs(len(runs)) as advance:
        for future in [executor.submit(simulated_report, study, bound) for study, bound in runs]:
            yield future.result()
            advance()


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


@contextmanager
def _counted_runs(count: int) -> Iterator[Callable[[], None]]:
    """A bar of runs that are over."""
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("runs", total=count)
        yield lambda: progress.advance(task)


def _advance(progress: Progress, task: TaskID, state: simulation_run.Progress) -> None:
    progress.update(
        task, completed=state.seconds, day=state.seconds / _DAY_SECONDS, nodes=state.nodes, cost=state.cost_usd
    )
