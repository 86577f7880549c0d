"""Growing pauses between questions that were answered with "not now": a second at first, doubling to a minute.

Every refusal is written to its claim, every write wakes the claim; without a pause of its own a cloud that words each refusal
differently would be asked without end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim
from karpenter.model.backoff import DEFAULT_BACKOFF, Backoff, BackoffTable


class NodeClaimBackoff:
    """Backoff per NodeClaim, on the event loop's clock. A new claim with the same name starts without backoff."""

    def __init__(self) -> None:
        self._table: BackoffTable[str] = BackoffTable(DEFAULT_BACKOFF, _monotonic_now)
        self._uids: dict[str, str] = {}

    def remaining_seconds(self, claim: NodeClaim) -> float:
        """How much of the claim's delay is left; 0 when there is none."""
        is_same = self._uids.get(claim.metadata.name) == claim.metadata.uid
        return self._table.remaining_seconds(claim.metadata.name) if is_same else 0.0

    def next_delay(self, claim: NodeClaim) -> float:
        """Begin the claim's next delay, twice as long as its last one; how many seconds it lasts."""
        name, uid = claim.metadata.name, claim.metadata.uid
        if self._uids.get(name) != uid:
            self._table.forget(name)
            self._uids[name] = uid
        return self._table.record_failure(name)

    def forget(self, name: str) -> None:
        """The claim succeeded, or is gone."""
        self._table.forget(name)
        self._uids.pop(name, None)


def _monotonic_now() -> float:
    return asyncio.get_running_loop().time()


_REPORT_BACKOFF = Backoff(300.0, 3600.0)
_FIRST_REPORT_INTERVAL = timedelta(seconds=_REPORT_BACKOFF.base_seconds)
_MESSAGE_CHANGE_INTERVAL = timedelta(seconds=10)


@dataclass(frozen=True)
class ReportSchedule:
    """When the next report about an object is due, and how long the pause after it will be."""

    next_report_at: datetime
    interval: timedelta

    @staticmethod
    def first(since: datetime) -> ReportSchedule:
        """Nothing has been reported yet about what began then."""
        return ReportSchedule(since + _FIRST_REPORT_INTERVAL, _FIRST_REPORT_INTERVAL)

    def after_report(self, now: datetime) -> ReportSchedule:
        """After a report now."""
        return ReportSchedule(
            now + self.interval, timedelta(seconds=_REPORT_BACKOFF.after(self.interval.total_seconds()))
        )


class MessageThrottle:
    """Keeps texts that change often from being written often: at most every ten seconds each."""

    def __init__(self) -> None:
        self._next_change_at: dict[str, datetime] = {}

    def text_to_write(self, key: str, stored: str, wanted: str, now: datetime) -> str:
        """The text to write under ``key``: the wanted one, or the stored one while that is recent."""
        if stored == wanted or now < self._next_change_at.get(key, now):
            return stored
        self._next_change_at[key] = now + _MESSAGE_CHANGE_INTERVAL
        return wanted

    def forget(self, key: str) -> None:
        """What the text was about is gone."""
        self._next_change_at.pop(key, None)
