"""``karpenter schedule``: when NodePools sleep in the next days, and what that saves. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning, planning_options, terminal
from karpenter.cli.output_formats import OutputOption, Printable, write_output
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.api.capacity_schedule import CapacitySchedule
    from karpenter.api.karpenter import NodePool
    from karpenter.api.kinds import Kind
    from karpenter.api.meta import Wire
    from karpenter.cli.render_schedule import PoolPreview, SchedulePreview
    from karpenter.model.budget_windows import TimeSpan
    from karpenter.model.capacity_calendar import CapacityCalendar

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

    settings = resolve_or_exit("schedule", flags, filename)
    period = _period(begin, days)
    with planning.gc_disabled():
        options = planning_options.InputOptions(filename, region=region, skip_invalid=skip_invalid)
        wanted: tuple[Kind[Wire], ...] = (kinds.CAPACITY_SCHEDULE,)  # type: ignore[assignment]
        # What sleep saves is the price of NodePools that are awake.
        plan_input = replace(planning.load_plan_input(options, settings, () if filename else wanted), at=None)
        calendars = list(_calendars(plan_input.objects.schedules, name))
        if not any(name in ("", each.metadata.name) for each, _ in calendars):
            where = "cluster" if plan_input.objects.from_cluster else "input"
            text = f"no CapacitySchedule {name} in the {where}" if name else f"no CapacitySchedule in the {where}"
            terminal.exit_with_error(text, terminal.WRONG_INPUT)
        computed = planning.compute_plan(plan_input, settings.scheduling_options(settings.gates))
        prices = planning.nodepool_prices(plan_input, computed)
        outlook = _Outlook(calendars, plan_input.objects.pools, prices, period)
        previews = [outlook.preview(each, calendar) for each, calendar in calendars if name in ("", each.metadata.name)]
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


def _calendars(schedules: Sequence[CapacitySchedule], name: str) -> Iterator[tuple[CapacitySchedule, CapacityCalendar]]:
    """Schedules with their calendars. One that cannot be evaluated keeps nothing awake; asked for, it ends the command."""
    from karpenter.model.capacity_calendar import CapacityScheduleError, capacity_calendar

    for schedule in schedules:
        try:
            yield schedule, capacity_calendar(schedule.spec)
        except CapacityScheduleError as error:
            if name in ("", schedule.metadata.name):
                terminal.exit_with_error(f"CapacitySchedule {schedule.metadata.name}: {error}", terminal.WRONG_INPUT)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What previews are made of: all schedules with their calendars, NodePools with their prices in USD per hour."""

    calendars: Sequence[tuple[CapacitySchedule, CapacityCalendar]]
    pools: Sequence[NodePool]
    prices: Mapping[str, float]
    period: TimeSpan

    def preview(self, schedule: CapacitySchedule, calendar: CapacityCalendar) -> SchedulePreview:
        """One schedule ahead of time."""
        from karpenter.capacityschedule.schedule_timeline import asleep_fraction, schedule_timeline
        from karpenter.capacityschedule.sleep_decision import selects
        from karpenter.cli.render_schedule import SchedulePreview

        pools = sorted((pool for pool in self.pools if selects(schedule, pool)), key=lambda pool: pool.metadata.name)
        return SchedulePreview(
            schedule.metadata.name,
            tuple(self._pool(schedule, pool) for pool in pools),
            schedule_timeline(calendar, self.period),
            calendar.zone,
            asleep_fraction([calendar], self._saving_period),
        )

    def _pool(self, schedule: CapacitySchedule, pool: NodePool) -> PoolPreview:
        from karpenter.capacityschedule.schedule_timeline import asleep_fraction
        from karpenter.capacityschedule.sleep_decision import selects
        from karpenter.cli.render_schedule import PoolPreview

        selecting = [(each, calendar) for each, calendar in self.calendars if selects(each, pool)]
        others = sorted(each.metadata.name for each, _ in selecting if each is not schedule)
        return PoolPreview(
            pool.metadata.name,
            tuple(others),
            self.prices.get(pool.metadata.name, 0.0),
            asleep_fraction([calendar for _, calendar in selecting], self._saving_period),
        )

    @property
    def _saving_period(self) -> TimeSpan:
        from karpenter.model.budget_windows import TimeSpan

        return TimeSpan(self.period.begin, self.period.begin + _SAVING_PERIOD)
