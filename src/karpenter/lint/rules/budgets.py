"""Rules about what disruption budgets allow: some limit nothing, some allow nothing ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from karpenter.api.karpenter import NodePool
from karpenter.lint.lint_input import LintInput
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.rules.reported_findings import advice, matched
from karpenter.model import nodepool_budgets
from karpenter.model.budget_windows import TimeSpan, merged_spans
from karpenter.model.nodepool_budgets import BUDGETS_PATH, ParsedBudget
from karpenter.model.quantity import parse_milli
from karpenter.model.texts import count_text

_REASONS = ("Empty", "Drifted", "Underutilized", "Unhealthy")
#: Larger than any pool: what allows nothing of it never allows anything.
_HUGE_POOL = 10**9
#: A leap year, so that every day of a calendar is in it.
_A_YEAR = TimeSpan(datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))
_THOUSANDTHS = 1000


def _without_effect(lint_input: LintInput) -> Iterator[Match]:
    return _advised(lint_input, "budget")


def _empty_reasons(lint_input: LintInput) -> Iterator[Match]:
    return _advised(lint_input, "reasons")


def _overlapping(lint_input: LintInput) -> Iterator[Match]:
    return (match for match in _advised(lint_input, "windows") if match.path.endswith(".schedule"))


def _gaps(lint_input: LintInput) -> Iterator[Match]:
    return (match for match in _advised(lint_input, "windows") if match.path == BUDGETS_PATH)


def _advised(lint_input: LintInput, code: str) -> Iterator[Match]:
    for where, obj, finding in advice(lint_input):
        if isinstance(obj, NodePool) and finding.code == code:
            yield matched(where, finding)


def _never_relaxes(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        rules = nodepool_budgets.nodepool_budgets(pool).parsed
        blocked = [reason for reason in _REASONS if _is_closed_all_year(_zero_budgets(rules, reason))]
        if blocked:
            path = _zero_budgets(rules, blocked[0])[0].path
            which = "any reason" if len(blocked) == len(_REASONS) else " or ".join(blocked)
            yield Match(where, path, f"no node is ever disrupted for {which}: these budgets allow 0 nodes at all times")


def _zero_budgets(rules: Sequence[ParsedBudget], reason: str) -> list[ParsedBudget]:
    return [
        rule
        for rule in rules
        if nodepool_budgets.applies_to_reason(rule.budget, reason)
        and nodepool_budgets.allowed_nodes(rule.budget, _HUGE_POOL) == 0
    ]


def _is_closed_all_year(rules: Sequence[ParsedBudget]) -> bool:
    if any(rule.window.is_always for rule in rules):
        return True
    spans = sorted((span for rule in rules for span in rule.window.spans(_A_YEAR)), key=lambda span: span.begin)
    return tuple(merged_spans(spans)) == (_A_YEAR,)


def _never_binds(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        limit = pool.spec.limits.get("nodes")
        most = pool.spec.replicas if limit is None else parse_milli(limit) // _THOUSANDTHS
        for index, budget in enumerate(pool.spec.disruption.budgets if most else ()):
            if budget.nodes.isdecimal() and most is not None and int(budget.nodes) >= most:
                nodes = count_text(int(most), "node")
                text = f"{budget.nodes} is never reached: the pool has at most {nodes}; write less, or a percentage"
                yield Match(where, f"{BUDGETS_PATH}[{index}].nodes", text)


RULES = (
    Rule(
        "KL101",
        "budget-without-effect",
        Severity.WARNING,
        Topic.BUDGETS,
        "A budget under another one that always allows as little.",
        "Of several budgets the strictest counts, so this one never binds and its author expects what does not happen.",
        "Leave one of them out, or give the stricter one a schedule.",
        _without_effect,
    ),
    Rule(
        "KL102",
        "budget-never-binds",
        Severity.NOTE,
        Topic.BUDGETS,
        "A budget of as many nodes as the pool may have, or more.",
        "All nodes of the pool may go at once.",
        "Write fewer nodes, or a percentage.",
        _never_binds,
    ),
    Rule(
        "KL103",
        "budget-never-relaxes",
        Severity.WARNING,
        Topic.BUDGETS,
        "Budgets that allow 0 nodes at all times for some reason.",
        "Nodes are never consolidated, or never get a new image: only expiry and hands take them away.",
        "Give the budget a schedule and a duration, or the pool a maintenance window.",
        _never_relaxes,
    ),
    Rule(
        "KL104",
        "overlapping-windows",
        Severity.WARNING,
        Topic.BUDGETS,
        "A schedule that hits again before its duration is over, such as `0 9-17 * * mon-fri` with 8h.",
        "Every hit opens a window of its own: the one above lasts from 09:00 to 01:00.",
        "Let the schedule hit once, at the beginning of the window: `0 9 * * mon-fri`.",
        _overlapping,
    ),
    Rule(
        "KL105",
        "unlimited-outside-windows",
        Severity.WARNING,
        Topic.BUDGETS,
        "All budgets for a reason have schedules, and at other times none is active.",
        "Written budgets replace the default of 10%: outside the windows all nodes may go at once.",
        "Add a budget without a schedule, `100%` where no limit is meant.",
        _gaps,
    ),
    Rule(
        "KL106",
        "empty-reasons",
        Severity.WARNING,
        Topic.BUDGETS,
        "A budget with an empty list of reasons.",
        "It counts as a budget for all reasons.",
        "Leave the list out, or name reasons.",
        _empty_reasons,
    ),
)
