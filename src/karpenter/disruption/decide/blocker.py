"""What all blockers of disruption have in common: a kind, a category, and when they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

_FIGURES_THAT_CHANGE = frozenset(
    {"until", "saving_per_hour", "minimum_per_hour", "price_per_hour", "replacement_price_per_hour", "nodes"}
)


class BlockerCategory(StrEnum):
    """What a blocker is about."""

    NODE = "node"
    POD = "pod"
    NODE_POOL = "pool"
    CONSOLIDATE_AFTER = "consolidate-after"
    NODE_AGE = "node-age"
    ROLLOUT = "rollout"
    SAVING = "saving"
    MOVE = "move"
    BUDGET = "budget"
    FREEZE = "freeze"


@dataclass(frozen=True)
class Blocker:
    """Base of all blockers.

    ``kind`` names the class outside the program. ``concerns_consolidation_only``: it rules out consolidation or emptiness, not
    every disruption, so it is published as Unconsolidatable instead of DisruptionBlocked (DIS-398). ``until``: when it ends by
    itself, if known.
    """

    kind: ClassVar[str]
    category: ClassVar[BlockerCategory]
    concerns_consolidation_only: ClassVar[bool] = False

    until: datetime | None = field(default=None, kw_only=True)

    @property
    def identity(self) -> tuple[str, ...]:
        """Kind and lasting figures: blockers of one node with equal identities are reported once."""
        return (self.kind, *(str(value) for name, value in vars(self).items() if name not in _FIGURES_THAT_CHANGE))
