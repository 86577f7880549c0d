"""The timeline of CapacitySchedules: as tables for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import tzinfo
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.capacityschedule.schedule_timeline import MONTH_HOURS, ScheduleSegment
from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, print_line
from karpenter.model import clock
from karpenter.model.capacity_calendar import CapacityState

_TIME = "%a %d %b %Y %H:%M"
_STYLES = {CapacityState.AWAKE: "green", CapacityState.ASLEEP: "blue"}


@dataclass(frozen=True, slots=True)
class PoolPreview:
    """A NodePool of a schedule. ``price_per_hour``: USD of its nodes while it is awake.

    ``other_schedules``: those that select it, too; ``asleep_fraction``: the share of time in which all of them have it asleep.
    """

    name: str
    other_schedules: tuple[str, ...]
    price_per_hour: float
    asleep_fraction: float


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """One schedule ahead of time. ``asleep_fraction``: the share of time, whatever other schedules say."""

    name: str
    node_pools: tuple[PoolPreview, ...]
    segments: tuple[ScheduleSegment, ...]
    zone: tzinfo
    asleep_fraction: float

    @property
    def price_per_hour(self) -> float:
        """USD of the nodes of its NodePools while all are awake."""
        return sum(pool.price_per_hour for pool in self.node_pools)

    @property
    def saving_per_month(self) -> float:
        """USD per month, of NodePools in several schedules while all of these have them asleep."""
        return sum(pool.price_per_hour * pool.asleep_fraction for pool in self.node_pools) * MONTH_HOURS


def write(previews: Iterable[SchedulePreview], out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, SEARCHABLE_WIDTH)
    for preview in previews:
        pools = ", ".join(pool.name for pool in preview.node_pools) or "none is selected"
        headline = Text.assemble((f"CapacitySchedule {preview.name}", "bold"), f": NodePools {pools}")
        headline.append(f" (times: {preview.zone})", style="dim")
        print_line(console, headline)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for column in ("from", "until", "state"):
            table.add_column(column, no_wrap=True)
        table.add_column("holidays", overflow="fold")
        for segment in preview.segments:
            begin, end = (
                moment.astimezone(preview.zone).strftime(_TIME) for moment in (segment.span.begin, segment.span.end)
            )
            state = Text(segment.state.value, style=_STYLES[segment.state])
            table.add_row(begin, end, state, _holidays_text(segment))
        console.print(table)
        for pool in preview.node_pools:
            if pool.other_schedules:
                print_line(console, _overlap_text(pool))
        print_line(console, _saving_text(preview))


def _overlap_text(pool: PoolPreview) -> str:
    others, awake = ", ".join(pool.other_schedules), 1 - pool.asleep_fraction
    return f"NodePool {pool.name} is also in {others}: it is awake while one of them is, {awake:.0%} of the time"


def _holidays_text(segment: ScheduleSegment) -> str:
    return ", ".join(f"{name} ({day:%d %b})" for day, name in segment.holidays.items())


def _saving_text(preview: SchedulePreview) -> str:
    share = f"asleep {preview.asleep_fraction:.0%} of the time"
    if not preview.price_per_hour:
        return f"{share}; no node and no pending pod shows what that saves"
    return (
        f"{share}, which saves ${preview.saving_per_month:.2f} of "
        f"${preview.price_per_hour * MONTH_HOURS:.2f} per month at today's prices"
    )


def document(preview: SchedulePreview) -> Json:
    """The preview as plain data. Times are in UTC, amounts in USD."""
    return {
        "schedule": preview.name,
        "nodePools": [pool.name for pool in preview.node_pools],
        "overlaps": [
            {
                "nodePool": pool.name,
                "schedules": list(pool.other_schedules),
                "asleepFraction": round(pool.asleep_fraction, 4),
            }
            for pool in preview.node_pools
            if pool.other_schedules
        ],
        "timeline": [
            {
                "from": clock.rfc3339(segment.span.begin),
                "until": clock.rfc3339(segment.span.end),
                "state": segment.state.value,
                "holidays": {day.isoformat(): name for day, name in segment.holidays.items()},
            }
            for segment in preview.segments
        ],
        "asleepFraction": round(preview.asleep_fraction, 4),
        "pricePerHour": round(preview.price_per_hour, 5),
        "savingPerMonth": round(preview.saving_per_month, 2),
    }
