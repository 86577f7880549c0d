"""How many machines reservations still hold, between two looks at EC2 (AWS-600)."""

from __future__ import annotations

from datetime import timedelta

from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring

#: How long a count holds that no describe call confirms.
LIFE = timedelta(hours=24)


class ReservedUnits:
    """Units left by reservation id: set by what EC2 says, moved by what we do; 0 for a reservation nobody counted."""

    def __init__(self, clock: Clock) -> None:
        self._left: Expiring[str, int] = Expiring(clock, LIFE)
        #: Grows with every change of a count.
        self.version = 0

    def left(self, reservation: str) -> int:
        """Machines that can still be had of it."""
        return self._left.get(reservation) or 0

    def set(self, reservation: str, units: int) -> None:
        """EC2 says how many there are."""
        self._put(reservation, max(0, units))

    def taken(self, reservation: str) -> None:
        """A machine was launched into it."""
        self._put(reservation, max(0, self.left(reservation) - 1))

    def returned(self, reservation: str) -> None:
        """A machine of it is gone. One nobody counted stays uncounted."""
        left = self._left.get(reservation)
        if left is not None:
            self._put(reservation, left + 1)

    def exhausted(self, reservation: str) -> None:
        """EC2 refused a launch into it, or takes its machines away."""
        self._put(reservation, 0)

    def _put(self, reservation: str, units: int) -> None:
        if self._left.get(reservation) != units:
            self.version += 1
        self._left.put(reservation, units)
