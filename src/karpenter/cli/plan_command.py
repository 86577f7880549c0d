"""``karpenter plan``: the nodes Karpenter would launch for these objects or for the cluster's pending pods, and on request the
nodes it would disrupt.

It is the controller's own decision, without carrying it out. Read-only.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from karpenter.cli import planning, planning_options, terminal
from karpenter.cli.render_common import Output
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.cli.render_common import Json
    from karpenter.cli.render_plan_data import PlanComparison, PlanReport
    from karpenter.disruption.decide.disruption_preview import DisruptionPreview

_IMPORTED_AT = time.perf_counter()
_CLOCK_TICK_FIELD = 19


@with_setting_options(PLANNING_SETTINGS)
def plan(
    *,
    flags: Flags,
    filename: planning_options.FilesOption = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table",
    recursive: planning_options.RecursiveOption = False,
    replicas: planning_options.ReplicasOption = "current",
    region: planning_options.RegionOption = "",
    live_prices: planning_options.LivePricesOption = False,
    skip_invalid: planning_options.SkipInvalidOption = False,
    verbose: planning_options.VerboseOption = False,
    detailed_exitcode: planning_options.DetailedExitcodeOption = False,
    fail_on: planning_options.FailOnOption = None,
    compare: Annotated[
        Literal["classic"] | None,
        typer.Option(help="Compare with another packing; classic: first-fit decreasing, one node at a time."),
    ] = None,
    consolidate: Annotated[
        bool,
        typer.Option(
            "--consolidate",
            help="Also show which nodes would be disrupted (deleted or replaced), when, and the savings.",
        ),
    ] = False,
    record: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Write the problem and its solution to a file that karpenter replay solves again."
        ),
    ] = "",
) -> None:
    """Show the nodes Karpenter would launch for pending pods and their cost. Read-only."""
    from karpenter.cli.cluster_objects import FREEZE_KINDS
    from karpenter.cli.render_plan_data import PlanComparison, PlanReport, PlanTiming
    from karpenter.scheduling.scheduling_options import PackingMode

    with terminal.all_errors_as_failures() if detailed_exitcode else nullcontext():
        settings = resolve_or_exit("plan", flags)
        options = settings.scheduling_options(settings.gates)
        input_options = planning_options.InputOptions(
            filename, replicas, region, live_prices, recursive=recursive, skip_invalid=skip_invalid
        )
        with planning.gc_disabled():
            disruption = planning_options.disruption_options(settings) if consolidate else None
            extra_kinds = FREEZE_KINDS if consolidate else ()
            plan_input = planning.load_plan_input(input_options, settings, extra_kinds)
            catalogs = plan_input.catalogs

            def report(packing: PackingMode) -> PlanReport:
                computed = planning.compute_plan(plan_input, replace(options, packing_mode=packing))
                timing = PlanTiming(computed.seconds, catalogs.load_seconds, wall_seconds())
                if record and packing is options.packing_mode:
                    _record(computed, record)
                return PlanReport(computed.solution, catalogs.indexes, timing, catalogs.prices, verbose)

            chosen = report(options.packing_mode)
            planning.report_skipped_pools(chosen.plan)
            classic = report(PackingMode.CLASSIC) if compare is not None else None
            preview = planning.compute_disruption_preview(plan_input, disruption) if disruption is not None else None
            write_reports(chosen, PlanComparison(chosen, classic) if classic is not None else None, preview, output)
    if chosen.plan.unschedulable and (detailed_exitcode or fail_on is not None):
        raise typer.Exit(terminal.UNSCHEDULABLE)
    if detailed_exitcode and (chosen.plan.new_claims or (preview is not None and preview.within_budgets.commands)):
        raise typer.Exit(terminal.CHANGES)


def _record(computed: planning.ComputedPlan, path: str) -> None:
    """Write the problem file. Ends the command where that fails."""
    from pathlib import Path

    from karpenter.cli.terminal import WRONG_INPUT, exit_with_error
    from karpenter.scheduling.problem_file import write_problem

    try:
        Path(path).write_bytes(write_problem(computed.problem, computed.solution))
    except OSError as error:
        exit_with_error(f"--record {path}: cannot be written ({error.strerror})", WRONG_INPUT)


def write_reports(
    report: PlanReport, comparison: PlanComparison | None, disruption: DisruptionPreview | None, output: Output
) -> None:
    """Print a plan, with a comparison and the disruption preview where there are such."""
    from karpenter.cli.render_common import write_output

    write_output(
        output,
        lambda: _document(report, comparison, disruption),
        lambda out: _write_page(report, comparison, disruption, out),
    )


def _write_page(
    report: PlanReport, comparison: PlanComparison | None, disruption: DisruptionPreview | None, out: TextIO
) -> None:
    from karpenter.cli import render_plan

    if comparison is not None:
        render_plan.write_comparison(comparison, out)
    else:
        render_plan.write(report, out)
    if disruption is not None:
        from karpenter.cli import render_disruption

        render_disruption.write(disruption, out)


def _document(report: PlanReport, comparison: PlanComparison | None, disruption: DisruptionPreview | None) -> Json:
    from karpenter.cli import render_plan_data

    document = (
        render_plan_data.document(report) if comparison is None else render_plan_data.comparison_document(comparison)
    )
    if disruption is not None:
        from karpenter.cli import render_disruption

        document |= {"disruption": render_disruption.document(disruption)}
    return document


def wall_seconds() -> float:
    """Seconds since the process started, as the kernel counts; where it does not tell, since this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        started = int(fields[_CLOCK_TICK_FIELD]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.perf_counter() - _IMPORTED_AT
