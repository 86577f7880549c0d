"""What is better not tried again soon: moves that failed, were undone or refused, barred with growing pauses.

Without such a memory the same machine is chosen again at once, pass after pass, and a replacement is bought and lost each time.
Remembered are names (of claims and pools) with a reason, in memory only: after a restart everything may be tried once more.
Pauses are measured on the event loop's clock, which no correction of the time of day moves.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: The first pause, and the longest; in between each is twice the one before (DIS §9.3 Beyond, for single machines longer).
FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
#: Pauses are longer by up to this part, so that what failed together is not tried again together.
_JITTER = 0.2
#: After so long without a failure it counts as the first again.
_FORGOTTEN_SECONDS = 6 * 3600.0
_KEPT = 10_000


@dataclass(frozen=True)
class Regret:
    """How often in a row something failed, until when it is barred, and why it failed last."""

    failures: int
    until: float
    at: float
    cause: str


class Regrets:
    """A bounded memory of failures; the oldest are forgotten first. ``now`` gives seconds that never go back."""

    def __init__(self, now: Callable[[], float], most: int = _KEPT) -> None:
        self._now = now
        self._most = most
        self._known: OrderedDict[tuple[str, str], Regret] = OrderedDict()

    def note(self, reason: str, names: Iterable[str], cause: str) -> None:
        """These failed to go for a reason: each is barred for it, longer than last time."""
        now = self._now()
        for name in names:
            last = self._known.pop((reason, name), None)
            failures = last.failures + 1 if last is not None and now - last.at < _FORGOTTEN_SECONDS else 1
            until = now + _pause(name, failures)
            self._known[reason, name] = Regret(failures, until, now, cause)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forgive(self, reason: str, names: Iterable[str]) -> None:
        """These succeeded, or are gone."""
        for name in names:
            self._known.pop((reason, name), None)

    def barred(self, reason: str, names: Iterable[str], now: float) -> Regret | None:
        """What bars one of the names from going for a reason at a time; None when nothing does. May be asked from any thread."""
        if not self._known:
            return None
        found = (self._known.get((reason, name)) for name in names)
        return next((known for known in found if known is not None and known.until > now), None)

    def next_end(self) -> float | None:
        """When the next bar falls, on the clock of ``now``; None when nothing is barred."""
        now = self._now()
        return min((known.until for known in self._known.values() if known.until > now), default=None)


def _pause(name: str, failures: int) -> float:
    """Doubling, with a part that depends on the name and the count and on nothing else."""
    seconds = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(failures - 1, 16))
    share = zlib.crc32(f"{name}/{failures}".encode()) / 2**32
    return float(seconds * (1 + _JITTER * share))
