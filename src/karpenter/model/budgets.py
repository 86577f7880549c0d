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
from karpenter.model import durations, labels, moments, schedules, schema, zones
from karpenter.model.schema import Finding
from karpenter.model.windows import Recurrence, Span, Window

#: What is allowed where no budget speaks: the largest 32-bit number, as the API counts (API-085).
UNLIMITED = 2**31 - 1

PATH = "spec.disruption.budgets"
#: Where the extension is.
WINDOWS_PATH = schema.at("metadata.annotations", labels.BUDGET_WINDOWS)
_BLOCKED = "until that is mended, no node of the pool may be disrupted"
_VALUE = re.compile(r"([+-]?[0-9]{1,9})(%?)", re.ASCII)
_WHOLE = 100
_LONGEST_SHOWN = 160


class BudgetError(ValueError):
    """A budget whose ``nodes`` is neither a count nor a percentage. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        super().__init__(f'budget nodes {text!r} is neither a count such as "5" nor a percentage such as "10%"')
        self.text = text


@dataclass(frozen=True, slots=True)
class Allowance:
    """Nodes that may be disrupted at once, and the path of the field that says so; empty where nothing limits it."""

    nodes: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One budget that could be read: where it stands, and when it is active."""

    path: str
    budget: Budget
    window: Window


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of a pool. With ``findings`` some could not be read, and then nothing is allowed (API-088, DIS-143)."""

    rules: tuple[Rule, ...] = ()
    findings: tuple[Finding, ...] = ()

    def allowance(self, nodes: int, reason: str, now: datetime) -> Allowance:
        """What is allowed for ``reason`` in a pool of ``nodes`` at ``now``: the strictest budget, the first of equals."""
        if self.findings:
            return Allowance(0, self.findings[0].path)
        found = [
            Allowance(value(rule.budget, nodes), rule.path)
            for rule in self.rules
            if applies(rule.budget, reason) and rule.window.is_on(now)
        ]
        return min(found, key=lambda allowance: allowance.nodes, default=Allowance(UNLIMITED))

    def edges(self, period: Span) -> frozenset[datetime]:
        """The moments within a period, its ends left out, at which some budget begins or ceases to be active."""
        spans = (span for rule in self.rules for span in rule.window.spans(period))
        ends = (moment for span in spans for moment in (span.begin, span.end))
        return frozenset(moment for moment in ends if period.begin < moment < period.end)


def allowed(pool: NodePool, nodes: int, reason: str, now: datetime) -> int:
    """How many of ``nodes`` the pool's budgets let go for ``reason`` at ``now``; ``UNLIMITED`` without any (API-087)."""
    return of_pool(pool).allowance(nodes, reason, now).nodes


def of_pool(pool: NodePool) -> Budgets:
    """A pool's budgets with what its annotation adds to them."""
    budgets = pool.spec.disruption.budgets
    try:
        extensions = _extensions(pool, len(budgets))
    except _Unreadable as error:
        return Budgets(findings=(error.finding,))
    rules: list[Rule] = []
    findings: list[Finding] = []
    for index, budget in enumerate(budgets):
        path = f"{PATH}[{index}]"
        findings += _broken_count(budget, path)
        try:
            rules.append(Rule(path, budget, _window(budget, extensions[index], index)))
        except _Unreadable as error:
            findings.append(error.finding)
    return Budgets(() if findings else tuple(rules), tuple(findings))


def applies(budget: Budget, reason: str) -> bool:
    """Whether the budget speaks about the reason. An empty list of reasons counts as an absent one (API-049 Beyond)."""
    return not budget.reasons or reason in budget.reasons


def value(budget: Budget, nodes: int) -> int:
    """The count a budget stands for; percentages are rounded up (API-084). Raises ``BudgetError``."""
    match = _VALUE.fullmatch(budget.nodes)
    if match is None:
        raise BudgetError(budget.nodes)
    number = int(match[1])
    if number < 0 or (match[2] and number > _WHOLE):
        raise BudgetError(budget.nodes)
    return -(-number * nodes // _WHOLE) if match[2] else min(number, UNLIMITED)


# -- reading ------------------------------------------------------------------------------------------------------------------


class _Unreadable(ValueError):
    """A part of the budgets cannot be read."""

    def __init__(self, path: str, code: str, why: object) -> None:
        self.finding = Finding(path, code, f"{why}; {_BLOCKED}")
        super().__init__(str(self.finding))


class _Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the annotation says of one budget."""

    time_zone: str | None = msgspec.field(name="timeZone", default=None)
    begin: str | None = msgspec.field(name="from", default=None)
    end: str | None = msgspec.field(name="until", default=None)


_NOTHING = _Extension()
_DECODER = msgspec.json.Decoder(tuple[_Extension | None, ...])


def _extensions(pool: NodePool, count: int) -> tuple[_Extension, ...]:
    """One for each budget. Raises ``_Unreadable``."""
    text = pool.metadata.annotations.get(labels.BUDGET_WINDOWS)
    if text is None:
        return (_NOTHING,) * count
    try:
        found = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        why = _shown(str(error)).replace("`", "'").replace("$", "list")
        raise _Unreadable(WINDOWS_PATH, "windows", why) from error
    except (msgspec.DecodeError, RecursionError) as error:
        why = f'is not JSON ({error}); expected a list with null or an object such as {{"timeZone": "Asia/Seoul"}}'
        raise _Unreadable(WINDOWS_PATH, "windows", why) from error
    if len(found) != count:
        why = f"has {len(found)} members for {count} budgets; give one for each, null where there is nothing to add"
        raise _Unreadable(WINDOWS_PATH, "windows", why)
    return tuple(item or _NOTHING for item in found)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _broken_count(budget: Budget, path: str) -> Iterator[Finding]:
    """API-086: admission lets numbers of any length through."""
    try:
        value(budget, 1)
    except BudgetError as error:
        yield Finding(f"{path}.nodes", "budget", f"{error}; {_BLOCKED}")


def _window(budget: Budget, extension: _Extension, index: int) -> Window:
    """When the budget is active. Raises ``_Unreadable``."""
    path = f"{WINDOWS_PATH}[{index}]"
    begin, end = _moment(extension.begin, f"{path}.from"), _moment(extension.end, f"{path}.until")
    if begin is not None and end is not None and begin >= end:
        raise _Unreadable(f"{path}.until", "windows", f"{extension.end} is not after {extension.begin}")
    zone = _zone(extension, budget, f"{path}.timeZone")
    return Window(_recurrence(budget, zone, f"{PATH}[{index}]"), begin, end)


def _moment(text: str | None, path: str) -> datetime | None:
    try:
        return None if text is None else moments.parse(text)
    except moments.MomentError as error:
        raise _Unreadable(path, "windows", error) from error


def _zone(extension: _Extension, budget: Budget, path: str) -> tzinfo:
    if extension.time_zone is None:
        return UTC
    if budget.schedule is None:
        raise _Unreadable(path, "windows", "says whose clocks a schedule means, but the budget has no schedule")
    try:
        return zones.find(extension.time_zone)
    except zones.ZoneError as error:
        raise _Unreadable(path, "windows", error) from error


def _recurrence(budget: Budget, zone: tzinfo, path: str) -> Recurrence | None:
    """The windows a schedule opens; None for a budget without (API-080). Raises ``_Unreadable``."""
    if budget.schedule is None and budget.duration is None:
        return None
    if budget.schedule is None or budget.duration is None:
        raise _Unreadable(path, "schedule", "schedule and duration must be given together")
    duration = _duration(budget.duration, f"{path}.duration")
    path = f"{path}.schedule"
    try:
        schedule = schedules.parse(budget.schedule)
    except schedules.ScheduleError as error:
        raise _Unreadable(path, "schedule", error) from error
    if not schedules.is_sound(budget.schedule):
        raise _Unreadable(path, "schedule", f"schedule {_shown(budget.schedule)!r} names a day that never comes")
    return Recurrence(schedule, duration, zone)


def _duration(text: str, path: str) -> timedelta:
    try:
        found = durations.parse(text)
    except durations.DurationError as error:
        raise _Unreadable(path, "duration", error) from error
    if found < timedelta(0):
        raise _Unreadable(path, "duration", f"{text} is below zero")
    return found
