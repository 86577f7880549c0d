"""Dependents of deleted owners, as the garbage collector of a cluster treats them.

A dependent goes when none of its owners is left; while one is, only the reference to the others is removed. An owner that is
deleted in the foreground stays until every dependent that blocks it has gone; one that is deleted as an orphan's parent lets
go of its dependents first. All of it happens within the call that causes it.

The uid of a deleted owner is kept for a while, so that an object which names it later is collected as well. Unlike on a cluster,
an owner this server has never stored counts as existing: the loaded objects may be a part of a larger cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from karpenter.simulation.apiserver.object_deletion import FOREGROUND, DeleteOptions
from karpenter.simulation.apiserver.object_store import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    JsonDict,
    StoredEntry,
    Transform,
)

_MAX_DELETED_OWNERS = 10_000


class EntryWriter(Protocol):
    """What the collector does to objects."""

    def delete_entry(self, entry: StoredEntry, options: DeleteOptions) -> StoredEntry:
        """Ask the object to go."""

    def update_entry(self, entry: StoredEntry, change: Transform) -> StoredEntry:
        """Change any part of the object."""


class DependentsCollector:
    """The index of owners, kept up to date by ``on_change``."""

    def __init__(self, writer: EntryWriter) -> None:
        self._writer = writer
        self._live_objects: dict[str, StoredEntry] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        self._deleted_owner_uids: dict[str, None] = {}

    def copy_for(self, writer: EntryWriter) -> DependentsCollector:
        """The same index for another writer."""
        copy = DependentsCollector(writer)
        copy._live_objects = dict(self._live_objects)
        copy._dependents = {uid: dict(entries) for uid, entries in self._dependents.items()}
        copy._deleted_owner_uids = dict(self._deleted_owner_uids)
        return copy

    def live_object(self, uid: str) -> StoredEntry | None:
        """The stored object with this uid, if there is one."""
        return self._live_objects.get(uid)

    def on_change(self, before: StoredEntry | None, after: StoredEntry | None) -> None:
        """Take a change that has been stored, and do what follows from it."""
        if before is not None:
            self._remove(before)
        if after is not None:
            self._add(after)
            self._on_stored(before, after)
        elif before is not None:
            self._add_deleted_owner(before.uid)
            for dependent in self._owned_by(before.uid):
                self._collect_if_unowned(dependent)
        for owner in before.owner_uids if before is not None else ():
            self._finish_foreground(owner)

    def _add(self, entry: StoredEntry) -> None:
        self._live_objects[entry.uid] = entry
        for owner in entry.owner_uids:
            self._dependents.setdefault(owner, {})[entry.uid] = None

    def _remove(self, entry: StoredEntry) -> None:
        del self._live_objects[entry.uid]
        for owner in entry.owner_uids:
            owned = self._dependents.get(owner)
            if owned is not None:
                owned.pop(entry.uid, None)
                if not owned:
                    del self._dependents[owner]

    def _add_deleted_owner(self, uid: str) -> None:
        self._deleted_owner_uids[uid] = None
        if len(self._deleted_owner_uids) > _MAX_DELETED_OWNERS:
            del self._deleted_owner_uids[next(iter(self._deleted_owner_uids))]

    def _owned_by(self, uid: str) -> list[StoredEntry]:
        return [self._live_objects[dependent] for dependent in tuple(self._dependents.get(uid, ()))]

    def _on_stored(self, before: StoredEntry | None, after: StoredEntry) -> None:
        if any(owner in self._deleted_owner_uids for owner in after.owner_uids):
            self._collect_if_unowned(after)
        held, was_held = (
            after.pending_finalizers or (),
            (before.pending_finalizers if before is not None else None) or (),
        )
        if ORPHAN_FINALIZER in held and ORPHAN_FINALIZER not in was_held:
            self._orphan(after)
        elif FOREGROUND_FINALIZER in held and FOREGROUND_FINALIZER not in was_held:
            for dependent in self._owned_by(after.uid):
                self._collect_if_unowned(dependent)
            self._finish_foreground(after.uid)

    def _collect_if_unowned(self, entry: StoredEntry) -> None:
        """Delete what no owner holds any longer; remove references to owners that do not count."""
        current = self._live_objects.get(entry.uid)
        if current is None or current.pending_finalizers is not None:
            return
        waiting = [owner for owner in current.owner_uids if self._is_foreground_deleted(owner)]
        lost = [*waiting, *(owner for owner in current.owner_uids if owner in self._deleted_owner_uids)]
        if len(lost) < len(current.owner_uids):
            self._remove_owner_references(current, lost)
        elif lost:
            own = FOREGROUND if waiting and self._dependents.get(current.uid) else ""
            self._writer.delete_entry(current, DeleteOptions(propagation=own))

    def _is_foreground_deleted(self, uid: str) -> bool:
        """Whether this owner waits for its dependents to go first."""
        entry = self._live_objects.get(uid)
        return entry is not None and FOREGROUND_FINALIZER in (entry.pending_finalizers or ())

    def _remove_owner_references(self, entry: StoredEntry, owners: Iterable[str]) -> None:
        lost = frozenset(owners)

        def change(body: JsonDict) -> JsonDict:
            meta = body["metadata"]
            meta["ownerReferences"] = [owner for owner in meta["ownerReferences"] if owner["uid"] not in lost]
            return body

        if lost:
            self._writer.update_entry(entry, change)

    def _orphan(self, entry: StoredEntry) -> None:
        for dependent in self._owned_by(entry.uid):
            self._remove_owner_references(dependent, (entry.uid,))
        self._remove_finalizer(entry.uid, ORPHAN_FINALIZER)

    def _finish_foreground(self, uid: str) -> None:
        if self._is_foreground_deleted(uid) and not any(
            self._blocks(dependent, uid) for dependent in self._owned_by(uid)
        ):
            self._remove_finalizer(uid, FOREGROUND_FINALIZER)

    def _blocks(self, entry: StoredEntry, uid: str) -> bool:
        """Whether the owner has to wait for this dependent; two that own each other would wait for ever."""
        in_circle = self._is_foreground_deleted(entry.uid) and entry.uid in self._live_objects[uid].owner_uids
        return uid in entry.blocking_owner_uids and not in_circle

    def _remove_finalizer(self, uid: str, finalizer: str) -> None:
        entry = self._live_objects.get(uid)

        def change(body: JsonDict) -> JsonDict:
            meta = body["metadata"]
            meta["finalizers"] = [name for name in meta.get("finalizers") or () if name != finalizer]
            return body

        if entry is not None:
            self._writer.update_entry(entry, change)
