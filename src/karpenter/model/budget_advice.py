"""Budgets that are legal and probably not meant: the traps people fall into (API-049, API-089, DIS §6 Beyond)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from karpenter.api.karpenter import Budget, NodePool
from karpenter.model import budgets, durations
from karpenter.model.budgets import Rule
from karpenter.model.schema import Finding
from karpenter.model.windows import Span, joined

#: The reasons budgets speak about (DIS-016).
_REASONS = ("Empty", "Drifted", "Underutilized")
#: Pool sizes that tell any two budgets apart: in one a percentage is smallest, in one it is its own number, in one it is
#: beyond every count.
_SIZES = (1, 100, 10**12)
#: Any two weeks, to see whether windows leave gaps.
_TWO_WEEKS = Span(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 15, tzinfo=UTC))
_DAY = timedelta(days=1)


def advise(pool: NodePool) -> Iterator[Finding]:
    """What the owner of a pool should know about its budgets. Nothing about their effect where some cannot be read."""
    for index, budget in enumerate(pool.spec.disruption.budgets):
        if budget.reasons == ():
            text = "an empty list of reasons counts as all reasons; leave it out or name some"
            yield Finding(f"{budgets.PATH}[{index}].reasons", "reasons", text)
    rules = budgets.of_pool(pool).rules
    for rule in rules:
        yield from _never_the_least(rule, rules)
        yield from _overlapping(rule)
    yield from _open_outside(rules)


def _never_the_least(rule: Rule, others: Sequence[Rule]) -> Iterator[Finding]:
    """A budget under one that always allows as little, for the same reasons (API-089); of two equal ones the later."""
    for other in others:
        if other is rule or not _rules_out(other, rule):
            continue
        if _rules_out(rule, other) and others.index(rule) < others.index(other):
            continue
        mend = "leave one of them out" if rule.window.is_always else "give that one a schedule, too"
        text = (
            f"has no effect: {other.path} always allows as little ({other.budget.nodes}), and of several budgets the "
            f"strictest counts; {mend}"
        )
        yield Finding(rule.path, "budget", text)
        return


def _rules_out(one: Rule, other: Rule) -> bool:
    """Whether one budget is always active and never looser than the other, in a pool of any size."""
    return (
        one.window.is_always
        and _covers(one.budget, other.budget)
        and all(budgets.value(one.budget, nodes) <= budgets.value(other.budget, nodes) for nodes in _SIZES)
    )


def _covers(one: Budget, other: Budget) -> bool:
    return not one.reasons or (bool(other.reasons) and set(other.reasons or ()) <= set(one.reasons))


def _overlapping(rule: Rule) -> Iterator[Finding]:
    """Hits that come before the window of the hit before is over, such as ``0 9-17 * * mon-fri`` for 8h."""
    recurrence = rule.window.recurrence
    if recurrence is None:
        return
    for opens, closes in recurrence.windows_of_a_day():
        if closes - opens > recurrence.duration and not _only_touch(recurrence.schedule.times(), recurrence.duration):
            text = (
                f"every hit opens {durations.text(recurrence.duration)} of its own, which makes one window from {_clock(opens)} "
                f"to {_clock(closes)}; let the schedule hit once where one window of that length is meant"
            )
            yield Finding(f"{rule.path}.schedule", "windows", text)
            return


def _only_touch(times: Sequence[timedelta], duration: timedelta) -> bool:
    return all(later - earlier >= duration for earlier, later in pairwise(times))


def _clock(since_midnight: timedelta) -> str:
    days, rest = divmod(since_midnight, _DAY)
    minutes = rest // timedelta(minutes=1)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (
        f" ({days} days later)" if days > 1 else " (next day)" if days else ""
    )


def _open_outside(rules: Sequence[Rule]) -> Iterator[Finding]:
    """Reasons that some budget limits at times, and none at all other times."""
    found = [
        reason for reason in _REASONS if _has_gaps([rule for rule in rules if budgets.applies(rule.budget, reason)])
    ]
    if found:
        text = (
            f"outside the windows of these budgets nothing limits disruption for {', '.join(found)}; add a budget without a "
            "schedule (100% where that is meant)"
        )
        yield Finding(budgets.PATH, "windows", text)


def _has_gaps(rules: Sequence[Rule]) -> bool:
    """Whether windows are all there is, and leave times without any. Dates end, so a budget between dates fills no gap."""
    if not rules or any(rule.window.is_always for rule in rules):
        return False
    recurring = [rule.window for rule in rules if rule.window.begin is None and rule.window.end is None]
    spans = sorted((span for window in recurring for span in window.spans(_TWO_WEEKS)), key=lambda span: span.begin)
    return tuple(joined(spans)) != (_TWO_WEEKS,)
