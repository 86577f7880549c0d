"""A list of objects kept current by watching.

An ``Informer`` lists a kind once, then follows the changes, keeps the objects by name and in the indexes it was given, and
tells its handlers every difference exactly once: ``(None, new)`` for an object that appeared, ``(old, new)`` for one that
changed, ``(old, None)`` for one that is gone. Handlers run synchronously, so between two events everything they feed agrees
with the store. A handler that raises is a bug and ends ``run``.

What can go wrong on the way and what it costs:

* The stream ends or breaks: it is continued from the last version seen. Nothing is missed, nothing comes twice.
* The version is too old by then (``Gone``), or anything else is refused: list again. What changed in the gap, deletions
  included, is worked out against the store and delivered as ordinary differences.
* An object does not decode: reported to ``on_rejected``. If an earlier state of it is known, that one stays until the object
  is deleted or decodes again, because acting on a slightly old node beats acting as if it did not exist.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube import errors
from karpenter.kube.decoding import metadata
from karpenter.kube.protocol import EventType, Listing, Reader, Rejected, WatchEvent

T = TypeVar("T", bound=Wire)

#: What a handler is told: the object before and after; None where there is none.
Handler = Callable[[T | None, T | None], None]
#: The values of an index under which an object is found.
IndexBy = Callable[[T], Iterable[str]]

_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 30.0
#: A stream that lasted this long was a healthy one, even when it brought no news.
_HEALTHY_SECONDS = 60.0


class Key(NamedTuple):
    """An object's name within its kind; ``namespace`` is empty for kinds of the whole cluster."""

    namespace: str
    name: str


class Scope(NamedTuple):
    """Which objects of a kind to follow; empty means all. Selectors are as in the API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


#: Every object of the kind.
EVERYTHING = Scope()


class Informer(Generic[T]):
    """The objects of a kind, kept current while ``run`` runs. Reading never waits.

    ``jitter`` gives numbers from 0 to 1 that spread the attempts of many processes after a common fault.
    """

    def __init__(
        self,
        reader: Reader,
        kind: Kind[T],
        scope: Scope = EVERYTHING,
        *,
        indexes: Mapping[str, IndexBy[T]] | None = None,
        on_rejected: Callable[[Rejected], None] = lambda rejected: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._reader = reader
        self.kind = kind
        self._scope = scope
        self._objects: dict[Key, T] = {}
        self._index_by = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._index_by}
        self._handlers: list[Handler[T]] = []
        self._on_rejected = on_rejected
        self._synced = asyncio.Event()
        self._delays = _Delays(jitter)
        #: Why there is no news at the moment; None while all is well.
        self.fault: errors.KubeError | None = None

    def subscribe(self, handler: Handler[T]) -> None:
        """Tell ``handler`` every difference from now on, beginning with what is already here."""
        for obj in tuple(self._objects.values()):
            handler(None, obj)
        self._handlers.append(handler)

    @property
    def synced(self) -> bool:
        """Whether the first list is in and has been delivered."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for ``synced``."""
        await self._synced.wait()

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object of that name, if it is known."""
        return self._objects.get(Key(namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def by_index(self, index: str, value: str) -> tuple[T, ...]:
        """The objects which the named index files under ``value``, in the order they came."""
        return tuple(self._objects[key] for key in self._indexes[index].get(value, ()))

    async def run(self) -> None:
        """List, watch, and do so again for ever. Ends by cancellation only; faults are kept in ``fault`` and waited out."""
        while True:
            try:
                version = await self._list()
                await self._follow(version)
            except errors.Gone:
                # Not a fault: the next list tells whether there is one. The delay keeps a confused server from being flooded.
                await self._delays.wait()
            except errors.KubeError as fault:
                self.fault = fault
                await self._delays.wait()

    async def _list(self) -> str:
        namespace, labels, fields = self._scope
        listing = await self._reader.list(self.kind, namespace, label_selector=labels, field_selector=fields)
        self.fault = None
        self._replace(listing)
        self._synced.set()
        return listing.resource_version

    async def _follow(self, version: str) -> None:
        """Watch from ``version``, over and over; only errors end it."""
        now = asyncio.get_running_loop().time
        while True:
            started = now()
            try:
                async with self._stream(version) as events:
                    async for event in events:
                        # Even the first event, which says no more than that the watch is open. Only news shortens the pauses:
                        # a server that opens watches and drops them is not well.
                        self.fault = None
                        if event.resource_version not in ("", version):
                            version = event.resource_version
                            self._delays.reset()
                        self._apply(event)
            except errors.Unavailable as fault:
                self.fault = fault
            healthy = now() - started >= _HEALTHY_SECONDS
            if healthy:
                self._delays.reset()
            if self.fault is not None or not healthy:
                await self._delays.wait()

    @asynccontextmanager
    async def _stream(self, version: str) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        namespace, labels, fields = self._scope
        events = self._reader.watch(self.kind, version, namespace, label_selector=labels, field_selector=fields)
        try:
            yield events
        finally:
            # Generators hold a connection until they are closed; other iterators have nothing to close.
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def _replace(self, listing: Listing[T]) -> None:
        """Make the store equal to the list and tell the differences, what is gone first."""
        present = {_key(obj) for obj in listing.items}
        unreadable = {Key(rejected.namespace, rejected.name) for rejected in listing.rejected}
        for key in [key for key in self._objects if key not in present and key not in unreadable]:
            self._remove(key)
        for rejected in listing.rejected:
            self._on_rejected(rejected)
        for obj in listing.items:
            self._put(obj)

    def _apply(self, event: WatchEvent[T]) -> None:
        if event.rejected is not None:
            self._on_rejected(event.rejected)
        key = _event_key(event)
        if event.type is EventType.DELETED and key is not None:
            self._remove(key)
        elif event.object is not None:
            self._put(event.object)

    def _put(self, obj: T) -> None:
        key = _key(obj)
        old = self._objects.get(key)
        if old is not None and metadata(old).uid != metadata(obj).uid:
            self._remove(key)
            old = None
        if old is not None and metadata(old).resource_version == metadata(obj).resource_version:
            return
        self._reindex(key, old, obj)
        self._objects[key] = obj
        self._tell(old, obj)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._reindex(key, old, None)
            self._tell(old, None)

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, index_by in self._index_by.items():
            before = frozenset(() if old is None else index_by(old))
            after = frozenset(() if new is None else index_by(new))
            index = self._indexes[name]
            for value in before - after:
                del index[value][key]
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, {})[key] = None

    def _tell(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(old, new)


class _Delays:
    """Pauses between attempts: 1 s doubling to 30 s, each shortened at random by up to half."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next = _FIRST_DELAY_SECONDS

    def reset(self) -> None:
        self._next = _FIRST_DELAY_SECONDS

    async def wait(self) -> None:
        delay = self._next
        self._next = min(delay * 2, _LONGEST_DELAY_SECONDS)
        await asyncio.sleep(delay * (1.0 - self._jitter() / 2))


def _key(obj: Wire) -> Key:
    meta = metadata(obj)
    return Key(meta.namespace, meta.name)


def _event_key(event: WatchEvent[T]) -> Key | None:
    if event.object is not None:
        return _key(event.object)
    return None if event.rejected is None else Key(event.rejected.namespace, event.rejected.name)
