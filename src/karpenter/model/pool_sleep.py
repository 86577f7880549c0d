"""NodePools that sleep: they launch nothing, and after a while their nodes are drained (CapacitySchedule)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PoolSleep:
    """Why a NodePool sleeps, and how far that has come.

    ``cause`` names the object that wants it. ``wakes_at``: an aware moment in the schedule's time zone, None where no end is
    known. ``is_draining``: the grace period is over. ``ignores_do_not_disrupt`` and ``ignores_disruption_budgets``: the deadline
    has passed, and the schedule lets pods with that protection go then. ``began_at``: since when it sleeps, None if unknown.
    """

    cause: str
    wakes_at: datetime | None = None
    is_draining: bool = False
    ignores_do_not_disrupt: bool = False
    ignores_disruption_budgets: bool = False
    began_at: datetime | None = None

    def __str__(self) -> str:
        if self.wakes_at is None:
            return self.cause
        # In the schedule's time zone; UTC as in everything else that Kubernetes shows.
        return f"{self.cause} until {self.wakes_at.isoformat().replace('+00:00', 'Z')}"
