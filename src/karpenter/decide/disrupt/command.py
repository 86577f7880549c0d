"""What a disruption decision says: machines to give back, and machines to buy in their place first (DIS §8, §12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.cluster.nodes import NodeView
from karpenter.decide.plan import PlacedPods, PlannedClaim


class DisruptionReason(StrEnum):
    """Why a machine goes of our own will; budgets speak about these (DIS-016)."""

    EMPTY = "Empty"
    DRIFTED = "Drifted"
    UNDERUTILIZED = "Underutilized"


class Decision(StrEnum):
    """What becomes of a command's machines (DIS-017)."""

    DELETE = "delete"
    REPLACE = "replace"


class ConsolidationType(StrEnum):
    """The kind of consolidation, as metrics label it; drift has none (DIS §9)."""

    NONE = ""
    EMPTY = "empty"
    MULTI = "multi"
    SINGLE = "single"


@dataclass(frozen=True)
class Candidate:
    """A machine that may go.

    ``price_per_hour`` is USD of its offering, None when it is not known; ``disruption_cost`` as DIS-114; ``pods`` those that need
    another place.
    """

    view: NodeView
    pool: str
    pods: tuple[Pod, ...]
    price_per_hour: float | None
    disruption_cost: float

    @property
    def key(self) -> str:
        """The NodeClaim's name."""
        return self.view.key


@dataclass(frozen=True)
class Command:
    """Machines that go together, and what their pods need beforehand.

    ``replacements`` are bought and initialised before any candidate goes; ``placed`` are pods meant for machines that exist
    (DIS-306). ``saving_per_hour`` in USD may be negative (drift), None where a price is not known.
    """

    reason: DisruptionReason
    candidates: tuple[Candidate, ...]
    replacements: tuple[PlannedClaim, ...] = ()
    placed: tuple[PlacedPods, ...] = ()
    consolidation_type: ConsolidationType = ConsolidationType.NONE
    saving_per_hour: float | None = None

    @property
    def decision(self) -> Decision:
        """Delete without replacement, or replace."""
        return Decision.REPLACE if self.replacements else Decision.DELETE

    @property
    def pools(self) -> tuple[str, ...]:
        """The NodePools its machines are of, each once, by name."""
        return tuple(sorted({candidate.pool for candidate in self.candidates}))
