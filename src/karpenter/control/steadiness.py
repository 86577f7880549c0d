"""Whether the time of day can be believed: it is held against a clock that only goes forward.

Quiet times, ages and nominations are measured by the time of day, as it is what the API server writes. When that is set anew,
or the machine was suspended, hours seem to have passed in a moment, and machines would be given back for it.
"""

from __future__ import annotations

from datetime import datetime

#: The clocks may drift apart by so much between two looks; more is a jump.
_TOLERANCE_SECONDS = 30.0
#: So long after a jump nothing is decided by the time of day: it may be set back, and watches may have missed something.
_HOLD_SECONDS = 300.0


class Steadiness:
    """Notices jumps of the time of day."""

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None
        self._held_until = 0.0

    def jump_seconds(self, now: datetime, steady: float) -> float:
        """By how much the time of day jumped since the last call, 0 where it did not. ``steady``: seconds that never go back."""
        last, self._last = self._last, (now, steady)
        if last is None:
            return 0.0
        jump = (now - last[0]).total_seconds() - (steady - last[1])
        if abs(jump) <= _TOLERANCE_SECONDS:
            return 0.0
        self._held_until = steady + _HOLD_SECONDS
        return jump

    def is_steady(self, steady: float) -> bool:
        """Whether it has not jumped for a while."""
        return steady >= self._held_until
