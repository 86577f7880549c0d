"""How many nodes of a pool may be disrupted at once (API-080 ff.).

Budgets combine by minimum: every budget that speaks about the reason has to agree, so a further budget can only tighten. What
cannot be read allows nothing, since a safeguard that fails open is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from karpenter.api.karpenter import Budget
from karpenter.model import schedules

#: What is allowed where no budget speaks: the largest 32-bit number, as the API counts (API-085).
UNLIMITED = 2**31 - 1

_VALUE = re.compile(r"([+-]?[0-9]{1,9})(%?)", re.ASCII)
_WHOLE = 100


class BudgetError(ValueError):
    """A budget whose ``nodes`` is neither a count nor a percentage. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        super().__init__(f'budget nodes {text!r} is neither a count such as "5" nor a percentage such as "10%"')
        self.text = text


def allowed(budgets: Sequence[Budget], nodes: int, reason: str) -> int:
    """Nodes that may be disrupted for ``reason`` in a pool of ``nodes``; ``UNLIMITED`` where no budget applies (API-087).

    Any budget that cannot be read makes the answer 0, even one for other reasons (API-088). Budgets with a schedule count as
    active at all times here: the answer is never looser than at the moment the schedule is on.
    """
    if not all(budget.schedule is None or schedules.is_sound(budget.schedule) for budget in budgets):
        return 0
    try:
        values = [(budget, value(budget, nodes)) for budget in budgets]
    except BudgetError:
        return 0
    return min((count for budget, count in values if applies(budget, reason)), default=UNLIMITED)


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
