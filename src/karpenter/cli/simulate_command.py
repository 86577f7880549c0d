"""``karpenter simulate``: weeks of a cluster's life in virtual time, on the production controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from karpenter.cli import planning_options
from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import Flags, resolve_or_exit, with_setting_options
from karpenter.cli.simulate_options import SimulateOptions
from karpenter.cli.terminal import INTERRUPTED, WrongInput, print_error


@with_setting_options(("instance_types_file_path",))
def simulate(
    *,
    flags: Flags,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trace: CSV or Parquet with one row per pod.")
    ] = None,
    scenario: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Scenario: web, batch, office, or a YAML file.")
    ] = "",
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE",
            help="YAML or JSON with NodePools and DaemonSets, and without --trace and --scenario with the workloads to "
            "simulate; may be repeated. Default: one NodePool of c, m and r types.",
        ),
    ] = None,
    from_cluster: Annotated[
        bool, typer.Option("--from-cluster", help="Simulate the pods and NodePools of the cluster of the kubeconfig.")
    ] = False,
    pattern: Annotated[
        Literal["steady", "daily", "office"],
        typer.Option(help="How the pods of -f or --from-cluster come and go: never, with the day, or in office hours."),
    ] = "daily",
    days: Annotated[
        float | None, typer.Option(min=0.01, max=366, help="Days to simulate. Default: all of the trace or scenario.")
    ] = None,
    from_day: Annotated[float, typer.Option(min=0, help="Day of the trace at which the simulation begins.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of the scenario.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Compare over so many seeds, from --seed on.")] = 1,
    policy: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Policy: lean, karpenter, empty-only, or a YAML file.")
    ] = "lean",
    compare: Annotated[
        str, typer.Option(metavar="A,B,...", help="Compare these policies with the first of them, instead of --policy.")
    ] = "",
    world: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML with delays, stock-outs, interruptions. Default: the scenario's."),
    ] = None,
    region: planning_options.RegionOption = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a page with charts, too.")
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Simulate days of a cluster on the production controllers: cost, waiting times, restarts. Needs no cluster.

    The same seed gives the same report. Ctrl-C ends a run with the report so far.
    """
    from karpenter.cli import render_simulation, render_simulation_html
    from karpenter.cli.simulate_runner import run_simulation
    from karpenter.simulator.workload import WorkloadError

    sources = (trace is not None, bool(scenario), from_cluster)
    if sum(sources) > 1 or not (any(sources) or filename):
        raise WrongInput(
            "karpenter simulate needs one of --trace FILE, --scenario NAME, --from-cluster and -f FILE with pods"
        )
    if from_cluster and filename:
        raise WrongInput("--from-cluster takes NodePools from the cluster, so -f has no use beside it")
    if seeds > 1 and not (compare and (trace is None or world)):
        raise WrongInput("--seeds needs --compare, and with --trace also --world; a trace has no random numbers")
    policies = tuple(compare.split(",")) if compare else (policy,)
    options = SimulateOptions(
        trace,
        scenario,
        tuple(filename or ()),
        days,
        from_day,
        range(seed, seed + seeds),
        policies,
        region,
        world,
        from_cluster,
        pattern,
    )
    if html is not None:
        _write_page(html, "")
    try:
        result = run_simulation(options, resolve_or_exit("simulate", flags))
    except WorkloadError as error:
        raise WrongInput(str(error)) from None
    if html is not None:
        _write_page(html, render_simulation_html.html_page(result))
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


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"--html {path}: cannot be written ({error.strerror})") from None
