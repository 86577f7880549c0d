"""What to say while the API server cannot be used: its causes, each once, and only those that are causes.

A server that is away is one cause, whichever of many connections notices it and however: refused here, cut off or timed out
there. One that comes back says much in its first seconds that does not last: it knows no roles yet and forbids everything, it
does not serve all kinds, it asks for pauses. Told to an administrator such things lead astray. So what begins soon after an
outage, or is an error that a server calls its own (5xx), counts only once it has lasted. At all other times a missing right is
said at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from karpenter.kube.errors import KubeError, TooManyRequests
from karpenter.kube.explain import is_unreachable

#: How long a server that was away is given to find itself, and how long a doubtful cause must last. Watches ask again
#: every ten seconds at the latest, so what lasts this long was answered several times.
SETTLING_SECONDS = 30.0
#: How long a start may wait for the first lists before that is told, and how often it is told again.
PATIENCE_SECONDS = 10.0
REMINDER_SECONDS = 60.0
_UNREACHABLE = "unreachable"


class News(NamedTuple):
    """``lines`` say why the API server cannot be used; ``is_over`` tells that it can again, after it was said that it cannot."""

    lines: tuple[str, ...]
    is_over: bool


class Complaints:
    """Tells causes from their echoes. ``explain`` makes the line for people; times are seconds that never jump."""

    def __init__(self, explain: Callable[[KubeError], str]) -> None:
        self._explain = explain
        #: What was said since all was well.
        self._said: set[str] = set()
        #: Since when each cause there is now has been seen without a break.
        self._since: dict[str, float] = {}
        self._last_outage = float("-inf")

    def hear(self, faults: Iterable[KubeError], now: float) -> News:
        """What is new about the faults there are at ``now``. To be called every second or so."""
        causes = self._causes(faults)
        self._since = {cause: self._since.get(cause, now) for cause in causes}
        if _UNREACHABLE in causes:
            self._last_outage = now
        if not causes:
            was_said, self._said = bool(self._said), set()
            return News((), is_over=was_said)
        new = [cause for cause in causes if cause not in self._said and self._counts(cause, causes[cause], now)]
        self._said.update(new)
        return News(tuple(sorted(self._explain(causes[cause]) for cause in new)), is_over=False)

    def _causes(self, faults: Iterable[KubeError]) -> dict[str, KubeError]:
        """Each cause with the first of the faults that show it."""
        found: dict[str, KubeError] = {}
        for fault in faults:
            found.setdefault(self._cause(fault), fault)
        return found

    def _cause(self, fault: KubeError) -> str:
        """What the fault has in common with others of the same origin, whose words differ from moment to moment."""
        if is_unreachable(fault):
            return _UNREACHABLE
        if isinstance(fault, TooManyRequests) or fault.status >= 500:
            return str(fault.status)
        return self._explain(fault)

    def _counts(self, cause: str, fault: KubeError, now: float) -> bool:
        if cause == _UNREACHABLE:
            return True
        since = self._since[cause]
        is_doubtful = fault.status >= 500 or since - self._last_outage < SETTLING_SECONDS
        return not is_doubtful or now - since >= SETTLING_SECONDS


class Waiting:
    """Tells of a start that takes long though nothing has failed yet: silence of a server becomes an error only after minutes."""

    def __init__(self) -> None:
        self._tell_at: float | None = None

    def hear(self, awaited: str, now: float) -> str:
        """What to say about what is ``awaited`` (empty: nothing) at ``now``; empty when nothing is to be said."""
        if not awaited:
            self._tell_at = None
        elif self._tell_at is None:
            self._tell_at = now + PATIENCE_SECONDS
        elif now >= self._tell_at:
            self._tell_at = now + REMINDER_SECONDS
            return awaited
        return ""
