"""Runs the search of ``karpenter tune``: hands each run to the executor, gathers the figures, shows how far the search is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from karpenter.cli.simulate_options import StudySource
from karpenter.cli.study_inputs import StudyInputs, read_inputs, with_node_pools
from karpenter.cli.terminal import WrongInput
from karpenter.settings import Settings
from karpenter.simulator.parameter_space import POOLS, ParameterSpace, read_space
from karpenter.simulator.policy_search import CandidateFigures, PolicyCandidate, candidate_figures, search_policies
from karpenter.simulator.simulation_report import SimulationReport
from karpenter.simulator.study_executor import open_executor, simulated_report


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """``trials``: candidates beside the profile; ``space``: file of the search space, None for the packaged one."""

    source: StudySource
    seeds: Sequence[int]
    space: Path | None
    trials: int
    executor: str


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What was searched. ``figures``: the profile first, then candidates as they were made; empty if nothing was finished."""

    space: ParameterSpace
    workload: str
    days: float
    seeds: int
    figures: tuple[CandidateFigures, ...]
    is_partial: bool


def run_tuning(options: TuneOptions, settings: Settings) -> TuneResult:
    """Search; after Ctrl-C what is known by then. Raises ``WorkloadError`` and ``WrongInput``."""
    space = read_space(options.space)
    inputs = _inputs_by_pools(options, space, settings)
    options.source.print_assumption("tune")
    figures: list[CandidateFigures] = []
    is_partial = False
    try:
        with open_executor(options.executor) as executor, _shown_progress(options) as progress:
            runs = _Runs(executor, space, inputs, options.seeds, progress)
            # Extended by what comes, so that an interrupt keeps it.
            figures.extend(search_policies(space, options.trials, options.seeds[0], runs.evaluate))
    except KeyboardInterrupt:
        is_partial = True
    workload = next(iter(next(iter(inputs.values())).workloads.values()))
    days = workload.duration_seconds / 86_400
    return TuneResult(space, workload.name, days, len(options.seeds), tuple(figures), is_partial)


def _inputs_by_pools(options: TuneOptions, space: ParameterSpace, settings: Settings) -> dict[str, StudyInputs]:
    """What the runs share, by the file of NodePools; under "" with those of ``-f``, which the profile is tried with."""
    source = options.source
    if space.pool_files and source.trace is None and not source.scenario:
        raise WrongInput(f"parameter {POOLS} needs --trace or --scenario, as its files replace those of -f")
    inputs = read_inputs(source, options.seeds, settings)
    return {"": inputs} | {
        file: with_node_pools(inputs, replace(source, filename=(file,)), settings) for file in space.pool_files
    }


@dataclass(frozen=True)
class _Runs:
    """All runs of candidates, each with every seed."""

    executor: Executor
    space: ParameterSpace
    inputs: Mapping[str, StudyInputs]
    seeds: Sequence[int]
    progress: _SearchProgress

    def evaluate(self, candidates: Sequence[PolicyCandidate]) -> Sequence[CandidateFigures]:
        """The figures of candidates, in their order; all runs are handed over at once."""
        submitted = []
        for candidate in candidates:
            policy = self.space.policy(candidate.name, candidate.values)
            inputs = self.inputs[candidate.values.get(POOLS, "")]
            runs = [
                self.executor.submit(simulated_report, inputs.study(policy, seed), inputs.bounds[seed])
                for seed in self.seeds
            ]
            submitted.append((candidate, runs))
        return list(self._gathered(submitted))

    def _gathered(
        self, submitted: Sequence[tuple[PolicyCandidate, Sequence[Future[SimulationReport]]]]
    ) -> Iterator[CandidateFigures]:
        for candidate, runs in submitted:
            figures = candidate_figures(candidate, [run.result() for run in runs])
            self.progress.advance(figures)
            yield figures


@dataclass
class _SearchProgress:
    """A bar with the cheapest candidate so far."""

    bar: Progress
    task: TaskID
    least_usd_per_month: float | None = None

    def advance(self, figures: CandidateFigures) -> None:
        """One candidate more is known."""
        cost = figures.usd_per_month.mean
        least = cost if self.least_usd_per_month is None else min(cost, self.least_usd_per_month)
        self.least_usd_per_month = least
        self.bar.update(self.task, advance=1, cost=f"cheapest ${least:,.0f} per month")


@contextmanager
def _shown_progress(options: TuneOptions) -> Iterator[_SearchProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[cost]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        yield _SearchProgress(bar, bar.add_task("candidates", total=options.trials + 1, cost=""))
