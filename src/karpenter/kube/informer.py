"""A list of objects kept current by watching.

An ``Informer`` lists a kind once, then follows the changes, keeps the objects by name and in the indexes it was given, and
passes every difference to its handlers exactly once: ``(None, new)`` for an object that appeared, ``(old, new)`` for one that
changed, ``(old, None)`` for one that is gone. An object created anew under the same name gives both, the deletion of
the old one first. Handlers run synchronously, so between two differences everything they feed agrees with the store. A handler
that raises is a bug and ends ``run``.

What can go wrong on the way and what it costs:

* The stream ends or breaks: it is continued from the last version seen. Nothing is missed, nothing comes twice. After a stream
  that brought events there is no pause: a server ends the streams of clients that are slow to read a burst of changes. Only after
  several very short streams in a row there is one, because something between here and the server may close each watch after its
  first event.
* Something comes twice or late all the same: versions of an object are numbers that grow (the API promises so since 1.35), and
  an event that is not newer than the stored object or its reported deletion is dropped. Where versions are not numbers, only
  the same one is recognised.
* The version is too old by then (``Gone``), or anything else is refused: list again, after a pause drawn at random so that
  kinds which lost their streams together do not list together. What changed in the gap, deletions included, is worked
  out against the store and delivered as ordinary differences.
* Streams open and stay silent, one after another: most likely nothing changes, but a server restored from a backup looks the
  same: it sends no events until its versions have reached ours. So the list is requested now and then.
* An object does not decode: reported to ``on_undecodable``. An earlier state stays until the object is deleted or decodes
  again: a slightly old node is better than a missing one.

A list of many thousands is read page by page and delivered in batches, and other tasks run after each; of the pages only what
differs from the store is kept, so listing again needs little memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube import errors
from karpenter.kube.decoding import join_listings, metadata_of
from karpenter.kube.protocol import Listing, PagedReader, Reader, UndecodableObject, WatchEvent, WatchEventType
from karpenter.model.backoff import Backoff

S = TypeVar("S")
T = TypeVar("T", bound=Wire)

#: What a handler receives: the object before and after; None where there is none.
ChangeHandler = Callable[[T | None, T | None], None]
#: The values of an index under which an object is found.
IndexFunction = Callable[[T], Iterable[str]]

#: There are few clients like this one, so frequent attempts cost a server little, and one that is back is found soon.
_BACKOFF = Backoff(1.0, 10.0)
#: A stream that lasted this long was healthy, even without events.
_HEALTHY_STREAM_SECONDS = 60.0
#: This many streams in a row may end within this many seconds before there is a pause although each of them brought events.
_MAX_SHORT_STREAMS = 10
_SHORT_STREAM_SECONDS = 1.0
#: After so many streams in a row without a word the kind is listed again.
_MAX_SILENT_STREAMS = 3
#: Objects processed, or passed to handlers, before other tasks run.
_BATCH_SIZE = 250


class ObjectKey(NamedTuple):
    """An object's name within its kind; ``namespace`` is empty for kinds of the whole cluster."""

    namespace: str
    name: str


class WatchScope(NamedTuple):
    """Which objects of a kind to follow; empty means all. Selectors are as in the API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


#: Every object of the kind.
ALL_OBJECTS = WatchScope()


class Informer(Generic[T]):
    """The objects of a kind, kept current while ``run`` runs. Reading never waits.

    ``share`` returns an equal object that reuses parts of stored ones; it is called before an object is stored. ``jitter`` gives
    numbers from 0 to 1 that spread the attempts of many processes after a common fault.
    """

    def __init__(
        self,
        reader: Reader,
        kind: Kind[T],
        scope: WatchScope = ALL_OBJECTS,
        *,
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        on_undecodable: Callable[[UndecodableObject], None] = lambda rejected: None,
        share: Callable[[T], T] = lambda obj: obj,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._reader = reader
        self._share = share
        self.kind = kind
        self._scope = scope
        self._objects: dict[ObjectKey, T] = {}
        self._index_by = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[ObjectKey, None]]] = {name: {} for name in self._index_by}
        self._handlers: list[ChangeHandler[T]] = []
        #: Where the next stream goes on.
        self._version = ""
        #: Up to this version handlers have received everything: that of the last list or bookmark.
        self._delivered_version = ""
        #: Versions of reported deletions: a late event must not restore a deleted object.
        self._dropped_versions: dict[ObjectKey, str] = {}
        self._on_undecodable = on_undecodable
        self._synced = asyncio.Event()
        self._backoff = _RelistBackoff(jitter)
        #: Why no events arrive at the moment; None if there is no fault.
        self.fault: errors.KubeError | None = None

    def subscribe(self, handler: ChangeHandler[T]) -> None:
        """Call ``handler`` with every difference from now on, beginning with the objects already in the store."""
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
        """The stored object of that name, or None."""
        return self._objects.get(ObjectKey(namespace, name))

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
                await self._list()
                await self._follow()
            except errors.Gone:
                # Not a fault: the next list shows whether there is one. The delay keeps a faulty server from being flooded.
                await self._backoff.wait()
            except errors.KubeError as fault:
                self.fault = fault
                await self._backoff.wait()

    async def _list(self) -> None:
        listing = await self._listing()
        self.fault = None
        await self._replace(listing)
        self._version = listing.resource_version
        self._synced.set()

    async def _listing(self) -> Listing[T]:
        namespace, labels, fields = self._scope
        if isinstance(self._reader, PagedReader):
            pages = self._reader.pages(self.kind, namespace, label_selector=labels, field_selector=fields)
            try:
                return join_listings([self._reuse_known_objects(page) async for page in pages])
            except errors.Gone:
                # The pages expired before the last of them came: the reader knows how to get such a list.
                pass
        listing = await self._reader.list(self.kind, namespace, label_selector=labels, field_selector=fields)
        return self._reuse_known_objects(listing)

    def _reuse_known_objects(self, page: Listing[T]) -> Listing[T]:
        """The page with stored objects and parts in place of equal new ones, so that the copies can be freed."""
        return Listing(tuple(map(self._known_if_equal, page.items)), page.resource_version, page.undecodable)

    def _known_if_equal(self, obj: T) -> T:
        stored = self._objects.get(_key_of_object(obj))
        return stored if stored is not None and _is_same_version(stored, obj) else self._share(obj)

    async def _follow(self) -> None:
        """Watch from the last version, over and over; only errors end it, and silence that lasts."""
        now = asyncio.get_running_loop().time
        silent_streams = short_streams = 0
        while silent_streams < _MAX_SILENT_STREAMS:
            started, before = now(), self._version
            try:
                await self._consume_stream()
            except errors.ServerUnavailable as fault:
                self.fault = fault
            lasted = now() - started
            healthy = lasted >= _HEALTHY_STREAM_SECONDS
            if healthy:
                self._backoff.reset()
            short_streams = short_streams + 1 if lasted < _SHORT_STREAM_SECONDS else 0
            has_news = self._version != before
            if self.fault is not None or not (healthy or has_news) or short_streams > _MAX_SHORT_STREAMS:
                short_streams = 0
                await self._backoff.wait()
            else:
                silent_streams = 0 if has_news else silent_streams + 1

    async def _consume_stream(self) -> None:
        """One stream, to its end."""
        async with self._stream() as events:
            async for event in events:
                # Even the first event, which only means that the watch is open. Only further events shorten the pauses: a server
                # that opens watches and drops them is faulty.
                self.fault = None
                if event.resource_version not in ("", self._version):
                    self._version = _later_version(self._version, event.resource_version)
                    self._backoff.reset()
                elif event.type is WatchEventType.BOOKMARK:
                    continue
                self._apply(event)

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        namespace, labels, fields = self._scope
        events = self._reader.watch(self.kind, self._version, namespace, label_selector=labels, field_selector=fields)
        try:
            yield events
        finally:
            # Generators hold a connection until they are closed; other iterators have nothing to close.
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _replace(self, listing: Listing[T]) -> None:
        """Make the store equal to the list and deliver the differences, deletions first."""
        self._set_delivered_version(listing.resource_version)
        present = {ObjectKey(rejected.namespace, rejected.name) for rejected in listing.undecodable}
        await _in_batches(listing.items, lambda obj: present.add(_key_of_object(obj)))
        await _in_batches([key for key in self._objects if key not in present], self._remove)
        await _in_batches(listing.undecodable, self._on_undecodable)
        await _in_batches(listing.items, self._put_if_changed)

    def _set_delivered_version(self, version: str) -> None:
        self._delivered_version = version
        self._dropped_versions.clear()

    def _put_if_changed(self, obj: T) -> None:
        stored = self._objects.get(_key_of_object(obj))
        if stored is None or not _is_same_version(stored, obj):
            self._put(obj)

    def _apply(self, event: WatchEvent[T]) -> None:
        key = _key_of_event(event)
        if key is None:
            self._set_delivered_version(_later_version(self._delivered_version, event.resource_version))
        elif self._is_news(key, event.resource_version):
            self._apply_change(key, event)

    def _is_news(self, key: ObjectKey, version: str) -> bool:
        stored = self._objects.get(key)
        own = "" if stored is None else metadata_of(stored).resource_version
        return all(
            _is_newer(version, seen) for seen in (self._delivered_version, self._dropped_versions.get(key, ""), own)
        )

    def _apply_change(self, key: ObjectKey, event: WatchEvent[T]) -> None:
        if event.undecodable is not None:
            self._dropped_versions[key] = event.resource_version
            self._on_undecodable(event.undecodable)
        if event.type is WatchEventType.DELETED:
            self._dropped_versions[key] = event.resource_version
            self._remove(key)
        elif event.object is not None:
            self._put(self._share(event.object))

    def _put(self, obj: T) -> None:
        key = _key_of_object(obj)
        old = self._objects.get(key)
        if old is not None and metadata_of(old).uid != metadata_of(obj).uid:
            self._remove(key)
            old = None
        self._reindex(key, old, obj)
        self._objects[key] = obj
        self._notify_handlers(old, obj)

    def _remove(self, key: ObjectKey) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._reindex(key, old, None)
            self._notify_handlers(old, None)

    def _reindex(self, key: ObjectKey, old: T | None, new: T | None) -> None:
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

    def _notify_handlers(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(old, new)


class _RelistBackoff:
    """Pauses between attempts: 1 s doubling to 10 s, each shortened at random by up to half."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    async def wait(self) -> None:
        self._failures += 1
        await asyncio.sleep(_BACKOFF.delay(self._failures) * (1.0 - self._jitter() / 2))


async def _in_batches(entries: Sequence[S], do: Callable[[S], None]) -> None:
    for start in range(0, len(entries), _BATCH_SIZE):
        if start:
            await asyncio.sleep(0)
        for entry in entries[start : start + _BATCH_SIZE]:
            do(entry)


def _is_same_version(stored: Wire, obj: Wire) -> bool:
    ours, theirs = metadata_of(stored), metadata_of(obj)
    return (ours.uid, ours.resource_version) == (theirs.uid, theirs.resource_version)


def _is_newer(version: str, seen: str) -> bool:
    return not seen or (version != seen and _later_version(seen, version) == version)


def _later_version(version: str, other: str) -> str:
    """The later of two versions; ``other`` where they are no numbers and cannot be compared."""
    if version.isdecimal() and other.isdecimal():
        return other if int(other) > int(version) else version
    return other


def _key_of_object(obj: Wire) -> ObjectKey:
    meta = metadata_of(obj)
    return ObjectKey(meta.namespace, meta.name)


def _key_of_event(event: WatchEvent[T]) -> ObjectKey | None:
    if event.object is not None:
        return _key_of_object(event.object)
    return None if event.undecodable is None else ObjectKey(event.undecodable.namespace, event.undecodable.name)


def key_of(metadata: ObjectMeta) -> ObjectKey:
    """Where an object lives."""
    return ObjectKey(metadata.namespace, metadata.name)
