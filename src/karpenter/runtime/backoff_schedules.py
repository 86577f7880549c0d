"""Growing pauses between questions that were answered with "not now": a second at first, doubling to a minute.

Every refusal is written to its claim, every write wakes the claim; without a pause of its own a cloud that words each refusal
differently would be asked without end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim

_FIRST_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 60.0


@dataclass(frozen=True)
class _Delay:
    uid: str
    seconds: float
    until: float


class NodeClaimBackoff:
    """Until when not to ask again, per claim. Time is the event loop's: nobody sets it."""

    def __init__(self) -> None:
        self._delays: dict[str, _Delay] = {}

    def remaining_seconds(self, claim: NodeClaim) -> float:
        """How many seconds the claim's pause goes on; 0 when there is none."""
        pause = self._delay_of(claim)
        return max(0.0, pause.until - _monotonic_now()) if pause is not None else 0.0

    def next_delay(self, claim: NodeClaim) -> float:
        """Begin the claim's next pause, twice as long as its last one; how many seconds it is."""
        last = self._delay_of(claim)
        seconds = min(_MAX_DELAY_SECONDS, 2 * last.seconds) if last is not None else _FIRST_DELAY_SECONDS
        self._delays[claim.metadata.name] = _Delay(claim.metadata.uid, seconds, _monotonic_now() + seconds)
        return seconds

    def forget(self, name: str) -> None:
        """The claim got its answer, or is gone."""
        self._delays.pop(name, None)

    def _delay_of(self, claim: NodeClaim) -> _Delay | None:
        pause = self._delays.get(claim.metadata.name)
        return pause if pause is not None and pause.uid == claim.metadata.uid else None


def _monotonic_now() -> float:
    return asyncio.get_running_loop().time()


_FIRST_REPORT_INTERVAL = timedelta(minutes=5)
_MAX_REPORT_INTERVAL = timedelta(hours=1)
_MESSAGE_CHANGE_INTERVAL = timedelta(seconds=10)


@dataclass(frozen=True)
class ReportSchedule:
    """When the next report about an object is due, and how long the pause after it will be."""

    next_report_at: datetime
    interval: timedelta

    @staticmethod
    def first(since: datetime) -> ReportSchedule:
        """Nothing has been told yet about what began then."""
        return ReportSchedule(since + _FIRST_REPORT_INTERVAL, _FIRST_REPORT_INTERVAL)

    def after_report(self, now: datetime) -> ReportSchedule:
        """After a report now."""
        return ReportSchedule(now + self.interval, min(_MAX_REPORT_INTERVAL, self.interval * 2))


class MessageThrottle:
    """Keeps texts that change often from being written often: at most every ten seconds each."""

    def __init__(self) -> None:
        self._next_change_at: dict[str, datetime] = {}

    def text_to_write(self, key: str, stored: str, wanted: str, now: datetime) -> str:
        """The text to write under ``key``: the wished one, or what is stored already while that is young."""
        if stored == wanted or now < self._next_change_at.get(key, now):
            return stored
        self._next_change_at[key] = now + _MESSAGE_CHANGE_INTERVAL
        return wanted

    def forget(self, key: str) -> None:
        """What the text was about is gone."""
        self._next_change_at.pop(key, None)
