"""Decisions as rows of the console, whoever told of them: events and NodeClaims, or a history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DecisionKind(StrEnum):
    """What kind of decision."""

    LAUNCH = "launch"
    DISRUPTION = "disruption"
    INTERRUPTION = "interruption"
    FAILURE = "failure"


@dataclass(frozen=True)
class DecisionRow:
    """Nodes that were launched or disrupted together.

    ``reason``: of a disruption its reason, of an interruption or failure the event's. ``nodes``: names of the NodeClaims (of
    Nodes where only those have events). ``text``: ``+2 nodes (m5.large)``, ``-1 node (underutilized)``.
    ``replaces``: NodeClaims that a launch takes the place of. ``replaced_by``: NodeClaims that take the place of what a
    disruption ends. ``saving_per_hour``: USD, as the controller estimated it when it decided; None where it said nothing.
    ``restarts``: how many pods had to move, and so started again elsewhere; None without a history, which counts them.
    """

    at: datetime
    kind: DecisionKind
    reason: str
    nodes: tuple[str, ...]
    text: str
    replaces: tuple[str, ...] = ()
    saving_per_hour: float | None = None
    replaced_by: tuple[str, ...] = ()
    restarts: int | None = None


@dataclass(frozen=True)
class RecordedDecisions:
    """Decisions that a history tells of. ``names``: the NodeClaims (or Nodes) that they are about."""

    rows: tuple[DecisionRow, ...] = ()
    names: frozenset[str] = frozenset()
