"""``karpenter plan``: what would be bought for these objects, or for the pods waiting in the cluster now, and on request which
machines would be given back.

The same decision the controller takes, without carrying it out. Nothing is changed anywhere.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karpenter.cli import deciding
from karpenter.decide.worth import COST_PER_INTERRUPTION, EXPOSURE, NODE_FEE_PER_HOUR

if TYPE_CHECKING:
    from karpenter.cli.render import Comparison, Report
    from karpenter.cli.render_reasons import Json
    from karpenter.decide.disrupt.outlook import Outlook

_IMPORTED_AT = time.perf_counter()
_CLOCK_TICK_FIELD = 19

Output = Literal["table", "json", "yaml"]


def plan(
    filename: deciding.Files = None,
    instance_types: deciding.InstanceTypes = "",
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table",
    skip_invalid: deciding.SkipInvalid = False,
    preference_policy: deciding.PreferencePolicy = "Respect",
    min_values_policy: deciding.MinValuesPolicy = "Strict",
    scheduler_config: deciding.SchedulerConfig = "",
    node_fee: deciding.NodeFee = NODE_FEE_PER_HOUR,
    exposure: deciding.Exposure = EXPOSURE,
    interruption_cost: deciding.InterruptionCost = COST_PER_INTERRUPTION,
    compare: Annotated[
        Literal["classic"] | None,
        typer.Option(
            help="Show beside it the plan of another packing: classic, which fills the largest machines first."
        ),
    ] = None,
    consolidate: Annotated[
        bool,
        typer.Option(
            "--consolidate", help="Show also which machines would be given back or replaced, when, and what that saves."
        ),
    ] = False,
    feature_gates: deciding.FeatureGates = "",
) -> None:
    """Say which machines would be bought for the pods that wait, and what they cost. Changes nothing."""
    from karpenter.cli.inputs import FREEZE
    from karpenter.cli.render import Comparison, Report, Timing
    from karpenter.decide.provision import PackingWay

    worth = deciding.worth_of(node_fee, exposure, interruption_cost)
    options = deciding.options_of(preference_policy, min_values_policy, scheduler_config, worth)
    with deciding.uncollected():
        disruption = deciding.disruption_options_of(options, feature_gates) if consolidate else None
        further = FREEZE if consolidate else ()
        ground = deciding.ready(filename, instance_types, options, further, skip_invalid=skip_invalid)
        catalogue = ground.catalogue

        def report(packing: PackingWay) -> Report:
            found, seconds = deciding.decided(ground.objects, catalogue.index, replace(options, packing=packing))
            return Report(found, catalogue.index, Timing(seconds, catalogue.seconds, _wall_seconds()))

        chosen = report(PackingWay.CHEAPEST)
        deciding.say_skipped(chosen.plan)
        classic = report(PackingWay.CLASSIC) if compare is not None else None
        seen = deciding.looked_ahead(ground, disruption) if disruption is not None else None
        _write(chosen, Comparison(chosen, classic) if classic is not None else None, seen, output)


def _write(report: Report, comparison: Comparison | None, seen: Outlook | None, output: Output) -> None:
    from karpenter.cli import render
    from karpenter.cli.output import to_whoever_reads

    if output == "table":
        from karpenter.cli import render_compare, render_table

        with to_whoever_reads():
            if comparison is not None:
                render_compare.write(comparison, sys.stdout)
            else:
                render_table.write(report, sys.stdout)
            if seen is not None:
                from karpenter.cli import render_disruption

                render_disruption.write(seen, sys.stdout)
    else:
        data = render.document(report) if comparison is None else render.compared(comparison)
        if seen is not None:
            from karpenter.cli import render_disruption

            data |= {"disruption": render_disruption.document(seen)}
        _emit(data, output)


def _emit(data: Json, output: Output) -> None:
    from karpenter.cli import render
    from karpenter.cli.output import emit

    emit(render.to_json(data) if output == "json" else render.to_yaml(data))


def _wall_seconds() -> float:
    """Seconds since the process started, as the kernel counts; where it does not tell, since this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        started = int(fields[_CLOCK_TICK_FIELD]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.perf_counter() - _IMPORTED_AT
