"""Growing pauses between questions that were answered with "not now": a second at first, doubling to a minute.

Every refusal is written to its claim, every write wakes the claim; without a pause of its own a cloud that words each refusal
differently would be asked without end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0


@dataclass(frozen=True)
class _Pause:
    uid: str
    seconds: float
    until: float


class Pauses:
    """Until when not to ask again, per claim. Time is the event loop's: nobody sets it."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def left(self, claim: NodeClaim) -> float:
        """How many seconds the claim's pause goes on; 0 when there is none."""
        pause = self._of(claim)
        return max(0.0, pause.until - _now()) if pause is not None else 0.0

    def lengthen(self, claim: NodeClaim) -> float:
        """Begin the claim's next pause, twice as long as its last one; how many seconds it is."""
        last = self._of(claim)
        seconds = min(_LONGEST_SECONDS, 2 * last.seconds) if last is not None else _FIRST_SECONDS
        self._pauses[claim.metadata.name] = _Pause(claim.metadata.uid, seconds, _now() + seconds)
        return seconds

    def forget(self, name: str) -> None:
        """The claim got its answer, or is gone."""
        self._pauses.pop(name, None)

    def _of(self, claim: NodeClaim) -> _Pause | None:
        pause = self._pauses.get(claim.metadata.name)
        return pause if pause is not None and pause.uid == claim.metadata.uid else None


def _now() -> float:
    return asyncio.get_running_loop().time()
