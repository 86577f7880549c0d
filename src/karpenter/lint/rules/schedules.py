"""Rules about schedules of budgets: what their comment says against what they do, and whose clocks they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from karpenter.api.karpenter import NodePool
from karpenter.lint.lint_input import LintInput
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.schedule_comments import ScheduleComment, StatedHours, clock_text, parse_comment
from karpenter.lint.source_object import SourceObject
from karpenter.model import cron, nodepool_budgets
from karpenter.model.budget_windows import RecurringWindow
from karpenter.model.nodepool_budgets import ParsedBudget

_MINUTE = timedelta(minutes=1)
_MINUTES_PER_DAY = 1440
_ALL_DAYS = frozenset(range(7))
_WORKDAYS = frozenset(range(1, 6))
_ALL_MONTH_DAYS = 31
#: In a zone with summer time, one of the two holds; a comment that means either is right.
_SEASONS = (datetime(2024, 1, 8, tzinfo=UTC), datetime(2024, 7, 8, tzinfo=UTC))
#: Office hours, in minutes since midnight: windows that begin and end within these times of day look like them.
_OFFICE_BEGINS = range(6 * 60, 10 * 60 + 1)
_OFFICE_ENDS = range(16 * 60, 20 * 60 + 1)
#: From this offset on, office hours in UTC are no office hours there.
_FAR_FROM_UTC = timedelta(hours=2)
#: The time zone of most users of a region.
_REGION_ZONES: Mapping[str, str] = {
    "us-east-1": "America/New_York",
    "us-east-2": "America/New_York",
    "us-west-1": "America/Los_Angeles",
    "us-west-2": "America/Los_Angeles",
    "ca-central-1": "America/Toronto",
    "ca-west-1": "America/Edmonton",
    "sa-east-1": "America/Sao_Paulo",
    "mx-central-1": "America/Mexico_City",
    "eu-west-3": "Europe/Paris",
    "eu-central-1": "Europe/Berlin",
    "eu-central-2": "Europe/Zurich",
    "eu-north-1": "Europe/Stockholm",
    "eu-south-1": "Europe/Rome",
    "eu-south-2": "Europe/Madrid",
    "il-central-1": "Asia/Jerusalem",
    "me-central-1": "Asia/Dubai",
    "me-south-1": "Asia/Bahrain",
    "af-south-1": "Africa/Johannesburg",
    "ap-south-1": "Asia/Kolkata",
    "ap-south-2": "Asia/Kolkata",
    "ap-east-1": "Asia/Hong_Kong",
    "ap-northeast-1": "Asia/Tokyo",
    "ap-northeast-2": "Asia/Seoul",
    "ap-northeast-3": "Asia/Tokyo",
    "ap-southeast-1": "Asia/Singapore",
    "ap-southeast-2": "Australia/Sydney",
    "ap-southeast-3": "Asia/Jakarta",
}


@dataclass(frozen=True, slots=True)
class _ScheduledBudget:
    """A budget with one window on each of its days, and what is said about it."""

    where: SourceObject
    pool: NodePool
    rule: ParsedBudget
    recurrence: RecurringWindow
    hours: StatedHours
    length: timedelta
    comment: ScheduleComment

    @property
    def path(self) -> str:
        return f"{self.rule.path}.schedule"

    @property
    def weekdays(self) -> frozenset[int]:
        """The days it hits on; all where days of the month matter."""
        schedule = self.recurrence.schedule
        return schedule.days_of_week if len(schedule.days_of_month) == _ALL_MONTH_DAYS else _ALL_DAYS


def _scheduled(lint_input: LintInput) -> Iterator[_ScheduledBudget]:
    for where, pool in lint_input.of_type(NodePool):
        for rule in nodepool_budgets.nodepool_budgets(pool).parsed:
            recurrence = rule.window.recurrence
            windows = recurrence.daily_windows() if recurrence is not None else []
            if recurrence is not None and len(windows) == 1:
                opens, closes = (moment // _MINUTE for moment in windows[0])
                hours = StatedHours(opens, closes % _MINUTES_PER_DAY)
                comment = parse_comment(where.comment(rule.path))
                yield _ScheduledBudget(where, pool, rule, recurrence, hours, windows[0][1] - windows[0][0], comment)


def _differs(lint_input: LintInput) -> Iterator[Match]:
    for budget in _scheduled(lint_input):
        said = next(_contradictions(budget), "")
        if said:
            zone = _zone_text(budget.recurrence.zone)
            does = f"opens at {clock_text(budget.hours.begin)} {zone} for {_length_text(budget.length)}"
            yield Match(budget.where, budget.path, f"the comment says {said}, the schedule {does}")


def _contradictions(budget: _ScheduledBudget) -> Iterator[str]:
    comment = budget.comment
    is_same_zone = not comment.zone or _is_zone(budget.recurrence.zone, comment.zone)
    if comment.hours and is_same_zone and not any(_means(hours, budget, comment) for hours in comment.hours):
        yield " ".join((comment.hours[0].text, comment.zone)).strip()
    if comment.weekdays and is_same_zone and comment.weekdays not in _days_meant(budget):
        yield _days_text(comment.weekdays)
    length = budget.length // _MINUTE
    if comment.length_minutes and comment.length_minutes not in (length, _MINUTES_PER_DAY - length):
        yield f"{comment.length_minutes // 60} hours"


def _days_meant(budget: _ScheduledBudget) -> Iterator[frozenset[int]]:
    """The days on which windows open, those on which they are open, and the other days of each."""
    lasts = (timedelta(minutes=budget.hours.begin) + budget.length - _MINUTE) // timedelta(days=1)
    covered = frozenset((day + later) % 7 for day in budget.weekdays for later in range(lasts + 1))
    for days in (budget.weekdays, covered):
        yield from (days, _ALL_DAYS - days)


def _means(stated: StatedHours, budget: _ScheduledBudget, comment: ScheduleComment) -> bool:
    """Whether the hours are those of the window, or those outside it, on some clock that the comment may mean."""
    is_whole = budget.length >= timedelta(days=1)
    if is_whole:
        return stated.begin == stated.end
    for shift in _shifts_minutes(budget.recurrence.zone, comment.zone):
        begin, end = ((moment + shift) % _MINUTES_PER_DAY for moment in (stated.begin, stated.end))
        if (begin, end) in (
            (budget.hours.begin, budget.hours.end),
            (budget.hours.end, budget.hours.begin),
        ):
            return True
    return False


def _shifts_minutes(own: tzinfo, stated: str) -> Iterator[int]:
    """What to add to the stated times for times of the budget's own zone, in each season."""
    zone = _find_zone(stated) if stated else None
    for moment in _SEASONS if zone is not None else ():
        theirs, ours = moment.astimezone(zone).utcoffset(), moment.astimezone(own).utcoffset()
        yield ((ours or timedelta()) - (theirs or timedelta())) // _MINUTE
    if zone is None:
        yield 0


def _zone_in_comment(lint_input: LintInput) -> Iterator[Match]:
    for budget in _scheduled(lint_input):
        comment = budget.comment
        if budget.recurrence.zone is not UTC or comment.names_utc or not (comment.zone or comment.means_local_time):
            continue
        is_converted = bool(comment.hours) and any(_means(hours, budget, comment) for hours in comment.hours)
        if comment.zone and is_converted and not _has_summer_time(comment.zone):
            continue
        place = comment.zone or "local time"
        opens = clock_text(budget.hours.begin)
        text = f"the comment speaks of {place}, but schedules are in UTC: the window opens at {opens} UTC"
        if is_converted and comment.zone:
            text = f"{text}, which is right for half of the year: {place} has summer time"
        yield Match(budget.where, budget.path, text)


def _office_hours(lint_input: LintInput) -> Iterator[Match]:
    for budget in _scheduled(lint_input):
        offer = lint_input.offers.get(budget.pool.metadata.name)
        region = offer.named_region if offer is not None else ""
        zone = _find_zone(_REGION_ZONES.get(region, ""))
        comment = budget.comment
        is_utc_meant = comment.names_utc or comment.zone or budget.recurrence.zone is not UTC
        if zone is None or is_utc_meant or not _is_like_office_hours(budget):
            continue
        offset = _SEASONS[0].astimezone(zone).utcoffset() or timedelta()
        if abs(offset) >= _FAR_FROM_UTC:
            local = clock_text(budget.hours.begin + offset // _MINUTE)
            text = f"these look like office hours, but in UTC: the window opens at {local} in {region} ({_zone_text(zone)})"
            yield Match(budget.where, budget.path, text)


def _is_like_office_hours(budget: _ScheduledBudget) -> bool:
    is_in_day = budget.hours.begin in _OFFICE_BEGINS and budget.hours.end in _OFFICE_ENDS
    return is_in_day and budget.weekdays <= _WORKDAYS


def _has_summer_time(zone_name: str) -> bool:
    zone = _find_zone(zone_name)
    return zone is not None and len({moment.astimezone(zone).utcoffset() for moment in _SEASONS}) > 1


def _find_zone(name: str) -> tzinfo | None:
    try:
        return cron.find_time_zone(name) if name else None
    except cron.TimeZoneError:
        return None


def _is_zone(zone: tzinfo, name: str) -> bool:
    return getattr(zone, "key", "UTC") == name


def _zone_text(zone: tzinfo) -> str:
    return str(getattr(zone, "key", "UTC"))


def _length_text(length: timedelta) -> str:
    hours, minutes = divmod(length // _MINUTE, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"


def _days_text(days: frozenset[int]) -> str:
    names = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
    return ", ".join(names[day] for day in sorted(days))


RULES = (
    Rule(
        "KL110",
        "comment-and-schedule-differ",
        Severity.WARNING,
        Topic.BUDGETS,
        "The comment beside a budget names other hours, days or another length than the schedule and duration make.",
        "One of the two is wrong, and the controller reads the schedule.",
        "Correct the schedule, the duration or the comment. `karpenter budgets POOL -f FILE` shows the windows.",
        _differs,
    ),
    Rule(
        "KL111",
        "local-time-in-comment",
        Severity.WARNING,
        Topic.BUDGETS,
        "The comment beside a schedule speaks of a time zone, and the schedule is in UTC.",
        "The window opens hours earlier or later than meant, or moves by an hour twice a year.",
        'Convert the hours, or name the zone in `karpenter.sh/budget-windows`, such as `[{"timeZone": "Asia/Seoul"}]`.',
        _zone_in_comment,
    ),
    Rule(
        "KL112",
        "office-hours-in-utc",
        Severity.NOTE,
        Topic.BUDGETS,
        "A schedule that looks like office hours, in UTC, of a pool in a region far from UTC.",
        "The window covers the night there and leaves the working day unprotected.",
        "Name the zone in the annotation `karpenter.sh/budget-windows`; where UTC is meant, say so in a comment.",
        _office_hours,
    ),
)
