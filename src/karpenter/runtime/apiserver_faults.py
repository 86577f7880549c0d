"""The messages reported while the API server cannot be used: each cause once, and only causes.

An unavailable server is one cause, whichever connections notice it and however: refused, cut off or timed out. A server that
comes back gives errors in its first seconds that do not last: it has no roles yet and forbids everything, it does not serve all
kinds, it asks for pauses. Such messages would mislead an administrator. So an error that begins soon after an outage, or that is
the server's own (5xx), is reported only once it has lasted. At all other times a missing right is reported at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple

import structlog

from karpenter.kube.error_messages import is_unreachable
from karpenter.kube.errors import KubeError, TooManyRequests
from karpenter.model import durations

#: How long a server that was away is given to find itself, and how long a doubtful cause must last. Watches ask again
#: every ten seconds at the latest, so what lasts this long was answered several times.
GRACE_SECONDS = 30.0
_UNREACHABLE = "unreachable"


class FaultReport(NamedTuple):
    """``lines`` say why the API server cannot be used; ``has_recovered``: it works again after a reported fault."""

    lines: tuple[str, ...]
    has_recovered: bool


class ApiServerFaultReporter:
    """Tells causes from their echoes. ``explain`` makes the line for people; times are seconds that never jump."""

    def __init__(self, explain: Callable[[KubeError], str]) -> None:
        self._explain = explain
        #: What was said since all was well.
        self._reported: set[str] = set()
        #: Since when each cause there is now has been seen without a break.
        self._cause_since: dict[str, float] = {}
        self._last_outage = float("-inf")

    def update(self, faults: Iterable[KubeError], now: float) -> FaultReport:
        """What is new about the faults there are at ``now``. To be called every second or so."""
        causes = self._faults_by_cause(faults)
        self._cause_since = {cause: self._cause_since.get(cause, now) for cause in causes}
        if _UNREACHABLE in causes:
            self._last_outage = now
        if not causes:
            was_said, self._reported = bool(self._reported), set()
            return FaultReport((), has_recovered=was_said)
        new = [
            cause for cause in causes if cause not in self._reported and self._is_reportable(cause, causes[cause], now)
        ]
        self._reported.update(new)
        return FaultReport(tuple(sorted(self._explain(causes[cause]) for cause in new)), has_recovered=False)

    def _faults_by_cause(self, faults: Iterable[KubeError]) -> dict[str, KubeError]:
        """Each cause with the first of the faults that show it."""
        kube_errors: dict[str, KubeError] = {}
        for fault in faults:
            kube_errors.setdefault(self._cause_of(fault), fault)
        return kube_errors

    def _cause_of(self, fault: KubeError) -> str:
        """What the fault has in common with others of the same origin, whose words differ from moment to moment."""
        if is_unreachable(fault):
            return _UNREACHABLE
        if isinstance(fault, TooManyRequests) or fault.status >= 500:
            return str(fault.status)
        return self._explain(fault)

    def _is_reportable(self, cause: str, fault: KubeError, now: float) -> bool:
        if cause == _UNREACHABLE:
            return True
        since = self._cause_since[cause]
        is_doubtful = fault.status >= 500 or since - self._last_outage < GRACE_SECONDS
        return not is_doubtful or now - since >= GRACE_SECONDS


_SYNC_REPORT_DELAY_SECONDS = 30.0
_SYNC_CHECK_SECONDS = 10.0
_log = structlog.get_logger()


class ClusterSyncReporter:
    """Reports a cluster state that stays incomplete (OPS-111). ``unsynced`` says what is missing, if anything."""

    def __init__(self, unsynced: Callable[[], str], delay_seconds: float = _SYNC_REPORT_DELAY_SECONDS) -> None:
        self._delay_seconds = delay_seconds
        self._unsynced = unsynced
        self._unsynced_since: float | None = None

    async def reconcile(self) -> float:
        """Check; returns the seconds until the next check."""
        self._check()
        return min(_SYNC_CHECK_SECONDS, self._delay_seconds)

    def _check(self) -> None:
        unsynced = self._unsynced()
        now = asyncio.get_running_loop().time()
        if not unsynced:
            self._unsynced_since = None
            return
        self._unsynced_since = now if self._unsynced_since is None else self._unsynced_since
        lasted = now - self._unsynced_since
        if lasted > self._delay_seconds:
            duration = durations.duration_text(timedelta(seconds=round(lasted)))
            _log.error(
                "cluster is waiting on sync for extended duration",
                error="waiting on cluster sync",
                duration=duration,
                unsynced=unsynced,
            )
