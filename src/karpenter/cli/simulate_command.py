"""``karpenter simulate``: weeks of a cluster's life in virtual time, on the production controllers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.cli.simulate_options import SimulateOptions, StudySource, with_source_options
from karpenter.cli.terminal import INTERRUPTED, WrongInput, check_writable, print_error

if TYPE_CHECKING:
    from karpenter.cli.simulate_runner import SimulationResult


@with_setting_options(("instance_types_file_path", *CONNECTION_SETTINGS))
@with_source_options
def simulate(
    *,
    flags: Flags,
    source: StudySource,
    seed: Annotated[int, typer.Option(help="Random seed of the scenario.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Compare over so many seeds, from --seed on.")] = 1,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Policy: lean, karpenter, empty-only, or a YAML file. Default: lean."),
    ] = "",
    compare: Annotated[
        str, typer.Option(metavar="A,B,...", help="Compare these policies with the first of them, instead of --policy.")
    ] = "",
    executor: Annotated[
        str,
        typer.Option(
            metavar="EXECUTOR",
            help="Make the runs of --compare side by side: processes, processes:N, or dask://HOST:PORT, the scheduler of a "
            "Dask cluster. Default: one after the other.",
        ),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a page with charts, too.")
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Simulate days of a cluster on the production controllers: cost, waiting times, restarts. Needs no cluster.

    The same seed gives the same report. Ctrl-C ends a run with the report so far.
    """
    from karpenter.cli import render_simulation

    if seeds > 1 and not (compare and (source.trace is None or source.world)):
        raise WrongInput("--seeds needs --compare, and with --trace also --world; a trace has no random numbers")
    if policy and compare:
        raise WrongInput("--policy and --compare exclude each other: name all policies in --compare")
    source.check("simulate", flags)
    policies = tuple(compare.split(",")) if compare else (policy or "lean",)
    options = SimulateOptions(source, range(seed, seed + seeds), policies, executor)
    result = _simulated(options, flags, html)
    printable = Printable(
        document=lambda: render_simulation.document(result),
        page=lambda out: render_simulation.write(result, out),
        names=lambda: render_simulation.policy_names(result),
        markdown=lambda: render_simulation.markdown(result),
    )
    write_output(output, printable)
    if result.is_partial:
        print_error("karpenter simulate: interrupted; the report covers the time until then")
        raise typer.Exit(INTERRUPTED)


def _simulated(options: SimulateOptions, flags: Flags, html: Path | None) -> SimulationResult:
    """Run it, and write the page; a page that cannot be written is told before the run."""
    from karpenter.cli import render_simulation_html
    from karpenter.cli.simulate_runner import run_simulation
    from karpenter.simulator.workload import WorkloadError

    if html is not None:
        check_writable("--html", html)
    try:
        result = run_simulation(options, resolve_or_exit("simulate", flags))
    except WorkloadError as error:
        raise WrongInput(str(error)) from None
    if html is not None:
        _write_page(html, render_simulation_html.html_page(result))
    return result


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"--html {path}: cannot be written ({error.strerror})") from None
