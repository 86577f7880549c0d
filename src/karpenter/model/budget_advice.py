"""Budgets that are legal and probably not meant: the traps people fall into (API-049, API-089, DIS §6 Beyond)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from karpenter.api.karpenter import Budget, NodePool
from karpenter.model import durations, nodepool_budgets
from karpenter.model.budget_windows import TimeSpan, merged_spans
from karpenter.model.nodepool_budgets import ParsedBudget
from karpenter.model.structural_schema import Finding

#: The reasons budgets speak about (DIS-016).
_REASONS = ("Empty", "Drifted", "Underutilized", "Unhealthy")
#: Pool sizes that distinguish any two budgets: in one a percentage is smallest, in one it is its own number, in one it is
#: beyond every count.
_SAMPLE_POOL_SIZES = (1, 100, 10**12)
#: Any two weeks, to see whether windows leave gaps.
_TWO_WEEKS = TimeSpan(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 15, tzinfo=UTC))
_DAY = timedelta(days=1)


def advise_budgets(pool: NodePool) -> Iterator[Finding]:
    """What the owner of a pool should know about its budgets. Nothing about their effect where some cannot be read."""
    for index, budget in enumerate(pool.spec.disruption.budgets):
        if budget.reasons == ():
            text = "an empty list of reasons counts as all reasons; leave it out or name some"
            yield Finding(f"{nodepool_budgets.BUDGETS_PATH}[{index}].reasons", "reasons", text)
    rules = nodepool_budgets.nodepool_budgets(pool).parsed
    for rule in rules:
        yield from _never_strictest(rule, rules)
        yield from _overlapping_occurrences(rule)
    yield from _unrestricted_outside_windows(rules)


def _never_strictest(rule: ParsedBudget, others: Sequence[ParsedBudget]) -> Iterator[Finding]:
    """A budget under one that always allows as little, for the same reasons (API-089); of two equal ones the later."""
    for other in others:
        if other is rule or not _is_never_above(other, rule):
            continue
        if _is_never_above(rule, other) and others.index(rule) < others.index(other):
            continue
        mend = "leave one of them out" if rule.window.is_always else "give that one a schedule, too"
        text = (
            f"has no effect: {other.path} always allows as little ({other.budget.nodes}), and of several budgets the "
            f"strictest counts; {mend}"
        )
        yield Finding(rule.path, "budget", text)
        return


def _is_never_above(budget: ParsedBudget, other: ParsedBudget) -> bool:
    """Whether a budget is always active and never looser than the other, in a pool of any size."""
    return (
        budget.window.is_always
        and _covers(budget.budget, other.budget)
        and all(
            nodepool_budgets.allowed_nodes(budget.budget, nodes) <= nodepool_budgets.allowed_nodes(other.budget, nodes)
            for nodes in _SAMPLE_POOL_SIZES
        )
    )


def _covers(budget: Budget, other: Budget) -> bool:
    return not budget.reasons or (bool(other.reasons) and set(other.reasons or ()) <= set(budget.reasons))


def _overlapping_occurrences(rule: ParsedBudget) -> Iterator[Finding]:
    """Hits that come before the window of the hit before is over, such as ``0 9-17 * * mon-fri`` for 8h."""
    recurrence = rule.window.recurrence
    if recurrence is None:
        return
    for opens, closes in recurrence.daily_windows():
        if closes - opens > recurrence.duration and not _occurrences_only_touch(
            recurrence.schedule.times_of_day(), recurrence.duration
        ):
            text = (
                f"every hit opens {durations.duration_text(recurrence.duration)} of its own, which makes one window from "
                f"{_time_of_day(opens)} to {_time_of_day(closes)}; let the schedule hit once "
                "where one window of that length is meant"
            )
            yield Finding(f"{rule.path}.schedule", "windows", text)
            return


def _occurrences_only_touch(times: Sequence[timedelta], duration: timedelta) -> bool:
    return all(later - earlier >= duration for earlier, later in pairwise(times))


def _time_of_day(since_midnight: timedelta) -> str:
    days, rest = divmod(since_midnight, _DAY)
    minutes = rest // timedelta(minutes=1)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (
        f" ({days} days later)" if days > 1 else " (next day)" if days else ""
    )


def _unrestricted_outside_windows(rules: Sequence[ParsedBudget]) -> Iterator[Finding]:
    """Reasons that some budget limits at times, and none at all other times."""
    unlimited = [
        reason
        for reason in _REASONS
        if _has_gaps([rule for rule in rules if nodepool_budgets.applies_to_reason(rule.budget, reason)])
    ]
    if unlimited:
        text = (
            f"outside the windows of these budgets nothing limits disruption for {', '.join(unlimited)}; add a budget without a "
            "schedule (100% where that is meant)"
        )
        yield Finding(nodepool_budgets.BUDGETS_PATH, "windows", text)


def _has_gaps(rules: Sequence[ParsedBudget]) -> bool:
    """Whether windows are all there is, and leave times without any. Dates end, so a budget between dates fills no gap."""
    if not rules or any(rule.window.is_always for rule in rules):
        return False
    recurring = [rule.window for rule in rules if rule.window.begin is None and rule.window.end is None]
    spans = sorted((span for window in recurring for span in window.spans(_TWO_WEEKS)), key=lambda span: span.begin)
    return tuple(merged_spans(spans)) != (_TWO_WEEKS,)
