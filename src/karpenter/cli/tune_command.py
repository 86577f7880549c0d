"""``karpenter tune``: searches settings for the best trade of cost against restarts, by simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.cli.simulate_options import StudySource, with_source_options
from karpenter.cli.terminal import INTERRUPTED, WrongInput, print_error

if TYPE_CHECKING:
    from karpenter.cli.tune_runner import TuneOptions, TuneResult


@with_setting_options(("instance_types_file_path", *CONNECTION_SETTINGS))
@with_source_options
def tune(
    *,
    flags: Flags,
    source: StudySource,
    seed: Annotated[int, typer.Option(help="Random seed of the scenario and of the search.")] = 1,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Simulate each candidate with so many seeds, from --seed on.")
    ] = 1,
    space: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML with the parameters to search. Default: those of consolidation."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="Candidates to try beside the profile.")] = 40,
    executor: Annotated[
        str,
        typer.Option(
            metavar="EXECUTOR",
            help="Where runs are made: processes, processes:N, or dask://HOST:PORT, the scheduler of a Dask cluster.",
        ),
    ] = "processes",
    policies: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Write the policies of the front as files for simulate --policy."),
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Search settings for the best trade of cost against restarts, by simulation. Needs no cluster.

    The page shows the Pareto front: the policies that no other one beats in cost and restarts. The same seed gives the
    same search. Ctrl-C ends it with the front so far.
    """
    from karpenter.cli import render_tuning
    from karpenter.cli.tune_runner import TuneOptions

    if seeds > 1 and source.trace is not None and not source.world:
        raise WrongInput("--seeds with --trace needs --world; a trace has no random numbers")
    source.check("tune", flags)
    result = _tuned(TuneOptions(source, range(seed, seed + seeds), space, trials, executor), flags, policies)
    printable = Printable(
        document=lambda: render_tuning.document(result),
        page=lambda out: render_tuning.write(result, out),
        names=lambda: render_tuning.front_names(result),
        markdown=lambda: render_tuning.markdown(result),
    )
    write_output(output, printable)
    if result.is_partial:
        print_error("karpenter tune: interrupted; the page covers the candidates until then")
        raise typer.Exit(INTERRUPTED)


def _tuned(options: TuneOptions, flags: Flags, policies: Path | None) -> TuneResult:
    """Search, and write the policies; what cannot become a directory is told before the search."""
    from karpenter.cli.tune_runner import run_tuning
    from karpenter.simulator.workload import WorkloadError

    if policies is not None:
        _check_directory(policies)
    try:
        result = run_tuning(options, resolve_or_exit("tune", flags))
    except WorkloadError as error:
        raise WrongInput(str(error)) from None
    if policies is not None:
        _write_policies(policies, result)
    return result


def _check_directory(directory: Path) -> None:
    """Raises ``WrongInput`` where the directory cannot be made or written. It is not made yet."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise WrongInput(f"--policies {directory}: cannot be written ({existing} is no directory)")
    if not os.access(existing, os.W_OK):
        raise WrongInput(f"--policies {directory}: cannot be written (Permission denied)")


def _write_policies(directory: Path, result: TuneResult) -> None:
    from karpenter.cli import render_tuning
    from karpenter.simulator.policy_search import pareto_front

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for figures in pareto_front(result.figures):
            path = directory / f"{figures.candidate.name}.yaml"
            path.write_text(render_tuning.policy_yaml(result, figures.candidate), encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"--policies {directory}: cannot be written ({error.strerror})") from None
