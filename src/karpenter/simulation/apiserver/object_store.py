"""Objects as JSON bytes under one counter of versions, and the bounded log of their changes.

An entry is immutable: a write puts a new entry in its place, so lists, watchers and the log share bytes without copying. Each
resource has its own log; a watcher is no more than a position in it. When the log is cut, a position before the cut is ``Gone``,
exactly as on a real server whose watch cache moved on.

Costs: a write is one decode and one encode of the object and wakes the watchers of its resource; a watcher pays for the changes
it reads and for nothing else. The typed form of an object is decoded at most once, however many readers ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import Gone
from karpenter.kube.protocol import UndecodableObject, WatchEventType
from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.served_resources import ServedResource

JsonDict = dict[str, Any]
#: Changes a decoded object into the one wanted; may raise ``KubeError``.
Transform = Callable[[JsonDict], JsonDict]
#: Finalizers which the server itself serves: dependents go first, dependents stay.
FOREGROUND_FINALIZER, ORPHAN_FINALIZER = "foregroundDeletion", "orphan"
_NO_LABELS: Mapping[str, str] = {}


class StoredEntry:
    """One version of one object."""

    __slots__ = (
        "_typed",
        "blocking_owner_uids",
        "data",
        "labels",
        "name",
        "namespace",
        "node_name",
        "owner_uids",
        "pending_finalizers",
        "phase",
        "resource",
        "uid",
        "version",
    )

    def __init__(self, resource: ServedResource, body: JsonDict, version: int) -> None:
        meta = body["metadata"]
        self.resource = resource
        self.namespace: str = meta.get("namespace", "")
        self.name: str = meta["name"]
        self.uid: str = meta["uid"]
        self.version = version
        self.data = msgspec.json.encode(body)
        self.labels: Mapping[str, str] = meta.get("labels") or _NO_LABELS
        self.node_name: str = (body.get("spec") or {}).get("nodeName") or "" if resource.kind.name == "Pod" else ""
        self.phase: str = (body.get("status") or {}).get("phase") or "" if resource.has_status else ""
        owners = meta.get("ownerReferences") or ()
        self.owner_uids: tuple[str, ...] = tuple(owner["uid"] for owner in owners)
        #: The owners that, when deleted in the foreground, wait for this object.
        self.blocking_owner_uids: tuple[str, ...] = tuple(
            owner["uid"] for owner in owners if owner.get("blockOwnerDeletion")
        )
        #: None until the object is deleted, then the finalizers that hold it.
        self.pending_finalizers: tuple[str, ...] | None = None
        if meta.get("deletionTimestamp"):
            self.pending_finalizers = tuple(meta.get("finalizers") or ())
        self._typed: Wire | UndecodableObject | None = None

    def decoded(self) -> JsonDict:
        """A fresh decoded copy, free to change."""
        body: JsonDict = msgspec.json.decode(self.data)
        return body

    def typed(self, kind: Kind[Wire]) -> Wire | UndecodableObject:
        """The object as ``kind``'s struct, or why it does not decode."""
        if kind.type is not self.resource.kind.type:
            return self._decode(kind)
        if self._typed is None:
            self._typed = self._decode(kind)
        return self._typed

    def _decode(self, kind: Kind[Wire]) -> Wire | UndecodableObject:
        try:
            return kind.decode(self.data)
        except msgspec.DecodeError as error:
            return UndecodableObject(kind.name, self.namespace, self.name, str(error))

    def with_version(self, version: int) -> StoredEntry:
        """The same content under another version, as a deletion reports it."""
        body = self.decoded()
        body["metadata"]["resourceVersion"] = str(version)
        return StoredEntry(self.resource, body, version)


class StoredChange:
    """One line of a log: what an object became, and what it was before."""

    __slots__ = ("_as_deletion", "entry", "previous", "type", "version")

    def __init__(self, type_: WatchEventType, entry: StoredEntry, previous: StoredEntry | None) -> None:
        self.type = type_
        self.entry = entry
        self.previous = previous
        self.version = entry.version
        self._as_deletion: StoredEntry | None = None

    def as_deletion(self) -> StoredEntry:
        """What a watcher sees whose selector the object has just left: the old content under the new version."""
        if self._as_deletion is None:
            self._as_deletion = (self.previous or self.entry).with_version(self.version)
        return self._as_deletion


@dataclass(slots=True)
class ChangeLog:
    """The latest changes of one resource, oldest first."""

    limit: int
    #: Changes up to and including this version are forgotten.
    compacted_version: int = 0
    changes: list[StoredChange] = field(default_factory=list)
    #: How many changes were cut off before ``changes[0]``.
    compacted_count: int = 0
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def append(self, change: StoredChange) -> None:
        """Add a change and wake all waiting watches. At most twice the limit is kept, so trimming costs nothing on average."""
        self.changes.append(change)
        if len(self.changes) >= 2 * self.limit:
            self.compact(len(self.changes) - self.limit)
        self.wake()

    def compact(self, count: int) -> None:
        """Cut off the ``count`` oldest changes."""
        if count > 0:
            self.compacted_version = self.changes[count - 1].version
            del self.changes[:count]
            self.compacted_count += count

    def position(self, version: int) -> int:
        """Where reading the changes after ``version`` starts. Raises ``Gone`` when some of them are forgotten."""
        if version < self.compacted_version:
            raise too_old(version, self.compacted_version)
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].version <= version:
                low = middle + 1
            else:
                high = middle
        return self.compacted_count + low

    def changes_since(self, version: int) -> Sequence[StoredChange]:
        """The changes after ``version``, oldest first. Raises ``Gone`` when some of them are forgotten."""
        return self.changes[self.position(version) - self.compacted_count :]

    @property
    def end_position(self) -> int:
        """The position after the latest change."""
        return self.compacted_count + len(self.changes)

    def change_at(self, position: int) -> StoredChange:
        """The change at ``position`` (before ``end_position``). Raises ``Gone`` when it is forgotten."""
        if position < self.compacted_count:
            raise too_old(self.compacted_version - 1, self.compacted_version)
        return self.changes[position - self.compacted_count]

    def wake(self) -> None:
        """Wake all waiting watches."""
        waiting, self._waiters = self._waiters, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_for_change(self) -> None:
        """Return after the next ``wake``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        finally:
            if future in self._waiters:
                self._waiters.remove(future)


def too_old(version: int, horizon: int) -> Gone:
    """The error for a version the log does not reach back to."""
    return status_errors.resource_expired(f"too old resource version: {version} ({horizon})")


@dataclass(slots=True)
class ObjectTable:
    """All objects of one resource, by namespace and name, and the log of their changes."""

    resource: ServedResource
    log: ChangeLog
    by_namespace: dict[str, dict[str, StoredEntry]] = field(default_factory=dict)

    def get(self, namespace: str, name: str) -> StoredEntry | None:
        """The current entry, if the object exists."""
        return self.by_namespace.get(namespace, {}).get(name)

    def put(self, entry: StoredEntry) -> None:
        """Make ``entry`` the current version of its object."""
        self.by_namespace.setdefault(entry.namespace, {})[entry.name] = entry

    def remove(self, entry: StoredEntry) -> None:
        """Forget the object."""
        space = self.by_namespace[entry.namespace]
        del space[entry.name]
        if not space:
            del self.by_namespace[entry.namespace]

    def entries(self, namespace: str = "") -> Iterator[StoredEntry]:
        """All current entries, of one namespace or of all, in the order of the keys' insertion."""
        if namespace or not self.resource.kind.namespaced:
            yield from self.by_namespace.get(namespace if self.resource.kind.namespaced else "", {}).values()
        else:
            for space in self.by_namespace.values():
                yield from space.values()

    def entries_at(self, version: int) -> Iterable[StoredEntry]:
        """All entries as they were at an earlier version, in no order. Raises ``Gone`` when the log does not reach back to it."""
        stored_entries = {(entry.namespace, entry.name): entry for entry in self.entries()}
        for change in reversed(self.log.changes_since(version)):
            key = (change.entry.namespace, change.entry.name)
            if change.previous is None:
                stored_entries.pop(key, None)
            else:
                stored_entries[key] = change.previous
        return stored_entries.values()
