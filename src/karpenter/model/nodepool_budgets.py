"""How many nodes of a pool may be disrupted at once, and when (API-080 ff., DIS §6).

Budgets combine by minimum: every budget that is active and speaks about the reason has to agree, so a further budget can only
tighten. What cannot be read allows nothing, since a safeguard that fails open is none.

The API has no place for time zones and dates. They stand in an annotation of the NodePool, which other tools ignore
(``karpenter.sh/budget-windows``): a JSON list with one member for each budget, ``null`` where there is nothing to add::

    [null, {"timeZone": "Asia/Seoul"}, {"from": "2026-12-24T00:00:00+09:00", "until": "2027-01-02T00:00:00+09:00"}]

``timeZone`` says whose clocks a schedule means (``windows``), ``from`` and ``until`` bound when a budget can be active at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from karpenter.api.karpenter import Budget, NodePool
from karpenter.model import clock, cron, durations, labels, structural_schema
from karpenter.model.budget_windows import ActiveWindow, RecurringWindow, TimeSpan
from karpenter.model.structural_schema import Finding
from karpenter.model.texts import shorten

#: What is allowed where no budget speaks: the largest 32-bit number, as the API counts (API-085).
UNLIMITED_DISRUPTIONS = 2**31 - 1

BUDGETS_PATH = "spec.disruption.budgets"
#: Where the extension is.
BUDGET_WINDOWS_PATH = structural_schema.child_path("metadata.annotations", labels.BUDGET_WINDOWS)
_CONSEQUENCE = "until that is corrected, no node of the pool may be disrupted"
_VALUE = re.compile(r"([+-]?[0-9]{1,9})(%?)", re.ASCII)
_PERCENT = 100
_LONGEST_SHOWN = 160


class BudgetError(ValueError):
    """A budget whose ``nodes`` is neither a count nor a percentage. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        super().__init__(f'budget nodes {text!r} is neither a count such as "5" nor a percentage such as "10%"')
        self.text = text


@dataclass(frozen=True, slots=True)
class DisruptionAllowance:
    """Nodes that may be disrupted at once, and the path of the field that says so; empty where nothing limits it."""

    nodes: int
    limiting_path: str = ""


@dataclass(frozen=True, slots=True)
class ParsedBudget:
    """One budget that could be read: where it stands, and when it is active."""

    path: str
    budget: Budget
    window: ActiveWindow


@dataclass(frozen=True, slots=True)
class NodePoolBudgets:
    """The budgets of a pool. With ``findings`` some could not be read, and then nothing is allowed (API-088, DIS-143)."""

    parsed: tuple[ParsedBudget, ...] = ()
    findings: tuple[Finding, ...] = ()

    def allowance(self, nodes: int, reason: str, now: datetime) -> DisruptionAllowance:
        """What is allowed for ``reason`` in a pool of ``nodes`` at ``now``: the strictest budget, the first of equals."""
        if self.findings:
            return DisruptionAllowance(0, self.findings[0].path)
        allowances = [
            DisruptionAllowance(allowed_nodes(rule.budget, nodes), rule.path)
            for rule in self.parsed
            if applies_to_reason(rule.budget, reason) and rule.window.is_active(now)
        ]
        return min(
            allowances, key=lambda allowance: allowance.nodes, default=DisruptionAllowance(UNLIMITED_DISRUPTIONS)
        )

    def transitions(self, period: TimeSpan) -> frozenset[datetime]:
        """The moments within a period, its ends left out, at which some budget begins or ceases to be active."""
        spans = (span for rule in self.parsed for span in rule.window.spans(period))
        ends = (moment for span in spans for moment in (span.begin, span.end))
        return frozenset(moment for moment in ends if period.begin < moment < period.end)


def nodepool_budgets(pool: NodePool) -> NodePoolBudgets:
    """A pool's budgets with what its annotation adds to them."""
    budgets = pool.spec.disruption.budgets
    try:
        extensions = _extensions(pool, len(budgets))
    except _UnparseableBudget as error:
        return NodePoolBudgets(findings=(error.finding,))
    rules: list[ParsedBudget] = []
    findings: list[Finding] = []
    for index, budget in enumerate(budgets):
        path = f"{BUDGETS_PATH}[{index}]"
        findings += _invalid_nodes(budget, path)
        try:
            rules.append(ParsedBudget(path, budget, _window(budget, extensions[index], index)))
        except _UnparseableBudget as error:
            findings.append(error.finding)
    return NodePoolBudgets(() if findings else tuple(rules), tuple(findings))


def applies_to_reason(budget: Budget, reason: str) -> bool:
    """Whether the budget speaks about the reason. An empty list of reasons counts as an absent one (API-049 Beyond)."""
    return not budget.reasons or reason in budget.reasons


def allowed_nodes(budget: Budget, nodes: int) -> int:
    """The count a budget stands for; percentages are rounded up (API-084). Raises ``BudgetError``."""
    match = _VALUE.fullmatch(budget.nodes)
    if match is None:
        raise BudgetError(budget.nodes)
    number = int(match[1])
    if number < 0 or (match[2] and number > _PERCENT):
        raise BudgetError(budget.nodes)
    return -(-number * nodes // _PERCENT) if match[2] else min(number, UNLIMITED_DISRUPTIONS)


# -- reading ------------------------------------------------------------------------------------------------------------------


class _UnparseableBudget(ValueError):
    """A part of the budgets cannot be read."""

    def __init__(self, path: str, code: str, why: object) -> None:
        self.finding = Finding(path, code, f"{why}; {_CONSEQUENCE}")
        super().__init__(str(self.finding))


class _WindowExtension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the annotation says of one budget."""

    time_zone: str | None = msgspec.field(name="timeZone", default=None)
    begin: str | None = msgspec.field(name="from", default=None)
    end: str | None = msgspec.field(name="until", default=None)


_NO_EXTENSION = _WindowExtension()
_DECODER = msgspec.json.Decoder(tuple[_WindowExtension | None, ...])


def _extensions(pool: NodePool, count: int) -> tuple[_WindowExtension, ...]:
    """One for each budget. Raises ``_UnparseableBudget``."""
    text = pool.metadata.annotations.get(labels.BUDGET_WINDOWS)
    if text is None:
        return (_NO_EXTENSION,) * count
    try:
        extensions = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        why = _shown(str(error)).replace("`", "'").replace("$", "list")
        raise _UnparseableBudget(BUDGET_WINDOWS_PATH, "windows", why) from error
    except (msgspec.DecodeError, RecursionError) as error:
        why = f'is not JSON ({error}); expected a list with null or an object such as {{"timeZone": "Asia/Seoul"}}'
        raise _UnparseableBudget(BUDGET_WINDOWS_PATH, "windows", why) from error
    if len(extensions) != count:
        why = (
            f"has {len(extensions)} members for {count} budgets; give one for each, null where there is nothing to add"
        )
        raise _UnparseableBudget(BUDGET_WINDOWS_PATH, "windows", why)
    return tuple(window_extension or _NO_EXTENSION for window_extension in extensions)


def _shown(text: str) -> str:
    return shorten(text, _LONGEST_SHOWN)


def _invalid_nodes(budget: Budget, path: str) -> Iterator[Finding]:
    """API-086: admission lets numbers of any length through."""
    try:
        allowed_nodes(budget, 1)
    except BudgetError as error:
        yield Finding(f"{path}.nodes", "budget", f"{error}; {_CONSEQUENCE}")


def _window(budget: Budget, extension: _WindowExtension, index: int) -> ActiveWindow:
    """When the budget is active. Raises ``_UnparseableBudget``."""
    path = f"{BUDGET_WINDOWS_PATH}[{index}]"
    begin, end = _timestamp(extension.begin, f"{path}.from"), _timestamp(extension.end, f"{path}.until")
    if begin is not None and end is not None and begin >= end:
        raise _UnparseableBudget(f"{path}.until", "windows", f"{extension.end} is not after {extension.begin}")
    zone = _zone(extension, budget, f"{path}.timeZone")
    return ActiveWindow(_recurrence(budget, zone, f"{BUDGETS_PATH}[{index}]"), begin, end)


def _timestamp(text: str | None, path: str) -> datetime | None:
    try:
        return None if text is None else clock.parse_timestamp(text)
    except clock.TimestampError as error:
        raise _UnparseableBudget(path, "windows", error) from error


def _zone(extension: _WindowExtension, budget: Budget, path: str) -> tzinfo:
    if extension.time_zone is None:
        return UTC
    if budget.schedule is None:
        raise _UnparseableBudget(path, "windows", "says whose clocks a schedule means, but the budget has no schedule")
    try:
        return cron.find_time_zone(extension.time_zone)
    except cron.TimeZoneError as error:
        raise _UnparseableBudget(path, "windows", error) from error


def _recurrence(budget: Budget, zone: tzinfo, path: str) -> RecurringWindow | None:
    """The windows a schedule opens; None for a budget without (API-080). Raises ``_UnparseableBudget``."""
    if budget.schedule is None and budget.duration is None:
        return None
    if budget.schedule is None or budget.duration is None:
        raise _UnparseableBudget(path, "schedule", "schedule and duration must be given together")
    duration = _duration(budget.duration, f"{path}.duration")
    path = f"{path}.schedule"
    try:
        schedule = cron.parse_schedule(budget.schedule)
    except cron.CronScheduleError as error:
        raise _UnparseableBudget(path, "schedule", error) from error
    if not cron.is_valid_schedule(budget.schedule):
        raise _UnparseableBudget(path, "schedule", f"schedule {_shown(budget.schedule)!r} names a day that never comes")
    return RecurringWindow(schedule, duration, zone)


def _duration(text: str, path: str) -> timedelta:
    try:
        duration = durations.parse_duration(text)
    except durations.DurationError as error:
        raise _UnparseableBudget(path, "duration", error) from error
    if duration < timedelta(0):
        raise _UnparseableBudget(path, "duration", f"{text} is below zero")
    return duration
