"""A map whose entries expire, on an injected clock."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from karpenter.model.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlMap(Generic[K, V]):
    """Values by key, each forgotten ``ttl`` after it was put. Nothing runs in the background: the dead are buried on access."""

    def __init__(self, clock: Clock, ttl: timedelta) -> None:
        self._clock = clock
        self._ttl = ttl
        self._entries: dict[K, tuple[V, datetime]] = {}

    def get(self, key: K) -> V | None:
        """The value, None where there is none or no more."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= self._clock.now():
            del self._entries[key]
            return None
        return entry[0]

    def put(self, key: K, value: V, ttl: timedelta | None = None) -> None:
        """Remember, for ``ttl`` instead of the usual time where given."""
        self._entries[key] = (value, self._clock.now() + (self._ttl if ttl is None else ttl))

    def renew(self, key: K) -> None:
        """Begin the entry's time anew, if it is there."""
        value = self.get(key)
        if value is not None:
            self.put(key, value)

    def discard(self, key: K) -> None:
        """Forget one."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()

    def pop_expired(self) -> tuple[tuple[K, V], ...]:
        """Take out what has expired and was not asked for since: for caches whose entries own something."""
        now = self._clock.now()
        dead = tuple((key, value) for key, (value, until) in self._entries.items() if until <= now)
        for key, _ in dead:
            del self._entries[key]
        return dead

    def items(self) -> tuple[tuple[K, V], ...]:
        """What is there now."""
        now = self._clock.now()
        return tuple((key, value) for key, (value, until) in self._entries.items() if until > now)
