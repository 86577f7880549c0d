"""``karpenter schedule``: when NodePools sleep in the next days, and what that saves. Read-only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning, planning_options, terminal
from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.api.capacity_schedule import CapacitySchedule
    from karpenter.api.kinds import Kind
    from karpenter.api.meta import Wire
    from karpenter.cli.render_schedule import SchedulePreview
    from karpenter.model.budget_windows import TimeSpan

_MOST_DAYS = 366
#: Over what the share of time asleep is taken: whole weeks, a year of them.
_SAVING_PERIOD = timedelta(days=364)


@with_setting_options(PLANNING_SETTINGS)
def schedule(
    *,
    flags: Flags,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Name of a CapacitySchedule. Default: all.", show_default=False)
    ] = "",
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="Number of days to show.")] = 14,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start time, such as 2026-12-24T00:00:00+01:00. Default: now.")
    ] = "",
    filename: planning_options.FilesOption = None,
    region: planning_options.RegionOption = "",
    output: OutputOption = "table",
    skip_invalid: planning_options.SkipInvalidOption = False,
) -> None:
    """Show when NodePools sleep and wake by CapacitySchedules, with holidays, and what that saves per month at today's prices.

    The saving is of the nodes that there are, and of those that pending pods need. Read-only.
    """
    from karpenter.api import kinds
    from karpenter.cli import render_schedule

    settings = resolve_or_exit("schedule", flags)
    period = _period(begin, days)
    with planning.gc_disabled():
        options = planning_options.InputOptions(filename, region=region, skip_invalid=skip_invalid)
        wanted: tuple[Kind[Wire], ...] = (kinds.CAPACITY_SCHEDULE,)  # type: ignore[assignment]
        plan_input = planning.load_plan_input(options, settings, () if filename else wanted)
        schedules = [s for s in plan_input.objects.schedules if name in ("", s.metadata.name)]
        if not schedules:
            where = "cluster" if plan_input.objects.from_cluster else "input"
            text = f"no CapacitySchedule {name} in the {where}" if name else f"no CapacitySchedule in the {where}"
            terminal.exit_with_error(text, terminal.WRONG_INPUT)
        computed = planning.compute_plan(plan_input, settings.scheduling_options(settings.gates))
        prices = planning.nodepool_prices(plan_input, computed)
        previews = [_preview(found, plan_input, period, prices) for found in schedules]
    printable = Printable(
        document=lambda: [render_schedule.document(preview) for preview in previews],
        page=lambda out: render_schedule.write(previews, out),
        names=lambda: [f"capacityschedule.karpenter.sh/{preview.name}" for preview in previews],
    )
    write_output(output, printable)


def _period(begin: str, days: int) -> TimeSpan:
    from karpenter.model import clock
    from karpenter.model.budget_windows import TimeSpan

    try:
        first = clock.parse_timestamp(begin) if begin else datetime.now(UTC)
        first = first.astimezone(UTC).replace(microsecond=0)
        return TimeSpan(first, first + timedelta(days=days))
    except (clock.TimestampError, OverflowError) as error:
        terminal.exit_with_error(f"--from: {error}", terminal.WRONG_INPUT)


def _preview(
    found: CapacitySchedule, plan_input: planning.PlanInput, period: TimeSpan, prices: dict[str, float]
) -> SchedulePreview:
    from karpenter.capacityschedule.schedule_timeline import asleep_fraction, schedule_timeline
    from karpenter.capacityschedule.sleep_decision import selects
    from karpenter.cli.render_schedule import SchedulePreview
    from karpenter.model.budget_windows import TimeSpan
    from karpenter.model.capacity_calendar import CapacityScheduleError, capacity_calendar

    try:
        calendar = capacity_calendar(found.spec)
    except CapacityScheduleError as error:
        terminal.exit_with_error(f"CapacitySchedule {found.metadata.name}: {error}", terminal.WRONG_INPUT)
    pools = tuple(sorted(pool.metadata.name for pool in plan_input.objects.pools if selects(found, pool)))
    year = TimeSpan(period.begin, period.begin + _SAVING_PERIOD)
    return SchedulePreview(
        found.metadata.name,
        pools,
        schedule_timeline(calendar, period),
        calendar.zone,
        asleep_fraction(calendar, year),
        sum(prices.get(pool, 0.0) for pool in pools),
    )
