"""``karpenter plan``: the nodes Karpenter would launch for these objects or for the cluster's pending pods, and on request the
nodes it would disrupt.

It is the controller's own decision, without carrying it out. Read-only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

import typer

from karpenter.cli import planning, planning_options, terminal
from karpenter.cli.output_formats import Output, OutputOption, Printable, node_name, nodeclaim_name, write_output
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.cli.terminal import WrongInput

if TYPE_CHECKING:
    from karpenter.cli.planning_options import InputOptions
    from karpenter.cli.render_common import Json
    from karpenter.cli.render_plan_data import PlanComparison, PlanReport
    from karpenter.disruption.decide.disruption_preview import DisruptionPreview
    from karpenter.scheduling.scheduling_options import SchedulingOptions
    from karpenter.settings import Settings

_IMPORTED_AT = time.perf_counter()
_CLOCK_TICK_FIELD = 19
#: The word that stands for the objects of the cluster in ``--diff``.
_CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a call asks for beside the plan."""

    compares: bool
    consolidates: bool
    record: str
    verbose: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the exit code says: pods stay without a place, or there is something to do."""

    has_unschedulable: bool
    has_changes: bool


@with_setting_options(PLANNING_SETTINGS)
def plan(
    *,
    flags: Flags,
    filename: planning_options.FilesOption = None,
    output: OutputOption = "table",
    recursive: planning_options.RecursiveOption = False,
    replicas: planning_options.ReplicasOption = "current",
    region: planning_options.RegionOption = "",
    live_prices: planning_options.LivePricesOption = False,
    skip_invalid: planning_options.SkipInvalidOption = False,
    verbose: planning_options.VerboseOption = False,
    detailed_exitcode: planning_options.DetailedExitcodeOption = False,
    fail_on: planning_options.FailOnOption = None,
    diff: planning_options.DiffOption = None,
    compare: planning_options.CompareOption = None,
    consolidate: planning_options.ConsolidateOption = False,
    record: planning_options.RecordOption = "",
    at: planning_options.AtOption = "",
) -> None:
    """Show the nodes Karpenter would launch for pending pods and their cost. Read-only."""
    wanted = _Wanted(compare is not None, consolidate, record, verbose or output == "wide")
    with terminal.all_errors_as_failures() if detailed_exitcode else nullcontext(), planning.gc_disabled():
        settings = resolve_or_exit("plan", flags, filename)
        options = planning_options.InputOptions(
            filename, replicas, region, live_prices, recursive=recursive, skip_invalid=skip_invalid, at=at
        )
        if diff is not None:
            outcome = _show_difference(options, diff, settings, wanted, output)
        else:
            outcome = _show_plan(options, settings, wanted, output)
    if outcome.has_unschedulable and (detailed_exitcode or fail_on is not None):
        raise typer.Exit(terminal.UNSCHEDULABLE)
    if detailed_exitcode and outcome.has_changes:
        raise typer.Exit(terminal.CHANGES)


def _show_plan(input_options: InputOptions, settings: Settings, wanted: _Wanted, output: Output) -> _Outcome:
    """Print the plan of one input."""
    from karpenter.cli.cluster_objects import FREEZE_KINDS
    from karpenter.cli.render_plan_data import PlanComparison
    from karpenter.scheduling.scheduling_options import PackingMode

    plan_input = planning.load_plan_input(input_options, settings, FREEZE_KINDS if wanted.consolidates else ())
    options = settings.scheduling_options(settings.gates)
    chosen = _report(plan_input, options, wanted.record, wanted.verbose)
    planning.report_skipped_pools(chosen.plan, plan_input.objects)
    comparison = None
    if wanted.compares:
        classic = replace(options, packing_mode=PackingMode.CLASSIC)
        comparison = PlanComparison(chosen, _report(plan_input, classic, "", wanted.verbose))
    preview = None
    if wanted.consolidates:
        preview = planning.compute_disruption_preview(plan_input, planning_options.disruption_options(settings))
    write_reports(chosen, comparison, preview, output)
    has_commands = preview is not None and bool(preview.within_budgets.commands)
    return _Outcome(bool(chosen.plan.unschedulable), bool(chosen.plan.new_claims) or has_commands)


def _report(plan_input: planning.PlanInput, options: SchedulingOptions, record: str, verbose: bool) -> PlanReport:
    from karpenter.cli.render_plan_data import PlanReport, PlanTiming

    computed = planning.compute_plan(plan_input, options)
    if record:
        _record(computed, record)
    instance_types = plan_input.instance_types
    timing = PlanTiming(computed.seconds, instance_types.load_seconds, wall_seconds())
    increases = planning.needed_limit_increases(plan_input, computed)
    return PlanReport(computed.solution, instance_types.indexes, timing, instance_types.prices, verbose, increases)


def _show_difference(
    options: InputOptions, sides: tuple[str, str], settings: Settings, wanted: _Wanted, output: Output
) -> _Outcome:
    """Print what differs between the plans of two inputs."""
    from karpenter.cli import render_difference
    from karpenter.cli.plan_difference import plan_difference

    if wanted.compares or wanted.consolidates or wanted.record:
        raise WrongInput("--diff excludes --compare, --consolidate and --record: run karpenter plan for each input")
    scheduling = settings.scheduling_options(settings.gates)
    old, new = (
        planning.compute_plan(planning.load_plan_input(_side(options, side), settings), scheduling).solution
        for side in sides
    )
    difference = plan_difference(old, new)
    printable = Printable(
        document=lambda: render_difference.document(difference),
        page=lambda out: render_difference.write(difference, out),
        names=lambda: (f"pod/{pod.name}" for pod in difference.lost),
        markdown=lambda: render_difference.markdown(difference),
    )
    write_output(output, printable)
    return _Outcome(bool(difference.lost), not difference.is_empty)


def _side(options: InputOptions, side: str) -> InputOptions:
    """The input of one side: its files with those of both sides, or the cluster."""
    if side != _CLUSTER:
        return replace(options, filename=[*(options.filename or ()), side])
    if options.filename:
        raise WrongInput("--diff with the cluster takes no -f: its objects are those of the cluster")
    return replace(options, filename=None)


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
    printable = Printable(
        document=lambda: _document(report, comparison, disruption),
        page=lambda out: _write_page(report, comparison, disruption, out),
        names=lambda: _object_names(report, disruption),
    )
    write_output(output, printable)


def _object_names(report: PlanReport, disruption: DisruptionPreview | None) -> Iterator[str]:
    """The NodeClaims to launch, then the nodes to disrupt."""
    yield from (nodeclaim_name(claim.name) for claim in report.plan.new_claims)
    for command in disruption.within_budgets.commands if disruption is not None else ():
        yield from (node_name(candidate.state_node.name) for candidate in command.candidates)


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
