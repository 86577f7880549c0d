"""TODO: say what belongs here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchWindow:
    """A batch closes after ``idle_seconds`` without news, at the latest ``longest_seconds`` after its first trigger."""

    idle_seconds: float = 1.0
    max_seconds: float = 10.0
