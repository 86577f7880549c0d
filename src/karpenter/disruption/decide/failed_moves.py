"""Moves that failed lately, as a decision sees them: which of them it may not try again yet, and which nodes it tries last.

A bar belongs to a node, a reason and a move: deletion without replacement, or replacement by an offering. So an offering that is
sold out bars neither other nodes of the NodePool, nor a deletion, nor the replacement by another offering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim

#: The move that launches nothing; other moves are named by the offering they launch.
DELETION = "delete"


@dataclass(frozen=True)
class FailedMoves:
    """By reason and node (by key): the moves that are in backoff (``barred``), and how often in a row moves failed."""

    barred: Mapping[DisruptionReason, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    failures: Mapping[DisruptionReason, Mapping[str, int]] = field(default_factory=dict)

    def bar(self, command: Command) -> bool:
        """Whether the command is a move that is in backoff for one of its nodes."""
        barred = self.barred.get(command.reason, {})
        moves = moves_of(command) if barred else frozenset[str]()
        return any(not moves.isdisjoint(barred.get(candidate.key, ())) for candidate in command.candidates)

    def bar_deletion(self, reason: DisruptionReason, key: str) -> bool:
        """Whether a node may not be deleted without replacement yet."""
        return DELETION in self.barred.get(reason, {}).get(key, ())

    def bar_a_replacement(self, reason: DisruptionReason, key: str) -> bool:
        """Whether some replacement of a node is in backoff."""
        return bool(self.barred.get(reason, {}).get(key, frozenset()) - {DELETION})

    def count(self, reason: DisruptionReason, key: str) -> int:
        """How often in a row moves of a node failed. Candidates are tried in this order first, so they rotate."""
        return self.failures.get(reason, {}).get(key, 0)


NO_FAILED_MOVES = FailedMoves()


def moves_of(command: Command) -> frozenset[str]:
    """What a command does with each of its nodes: the offerings it launches, or deletion."""
    return frozenset(map(_offering_name, command.replacements)) or frozenset((DELETION,))


def _offering_name(replacement: NewNodeClaim) -> str:
    """Instance type, zone and capacity type that a replacement is launched as first."""
    requirements = replacement.cheapest_offering.requirements
    zone, capacity_type = (
        min(requirements.requirement_for(key).values, default="") for key in (labels.ZONE, labels.CAPACITY_TYPE)
    )
    return "/".join((replacement.instance_types[0], zone, capacity_type))
