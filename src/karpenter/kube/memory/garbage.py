"""Dependents of deleted owners, as the garbage collector of a cluster treats them.

A dependent goes when none of its owners is left; while one is, only the reference to the others is removed. An owner that is
deleted in the foreground stays until every dependent that blocks it has gone; one that is deleted as an orphan's parent lets
go of its dependents first. All of it happens within the call that causes it.

An owner that dies is remembered for a while, so that an object which names it later is collected as well. An owner this server
has never seen counts as alive, other than on a cluster: what is loaded here may be a part of something larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from karpenter.kube.memory.deletion import FOREGROUND, DeleteOptions
from karpenter.kube.memory.store import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Entry, JsonDict, Transform

_REMEMBERED_DEAD = 10_000


class Objects(Protocol):
    """What the collector does to objects."""

    def delete_entry(self, entry: Entry, options: DeleteOptions) -> Entry:
        """Ask the object to go."""

    def change_entry(self, entry: Entry, change: Transform) -> Entry:
        """Change any part of the object."""


class Garbage:
    """The index of owners, kept right by ``see``."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._alive: dict[str, Entry] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        self._dead: dict[str, None] = {}

    def owner(self, uid: str) -> Entry | None:
        """The living object with this uid."""
        return self._alive.get(uid)

    def see(self, before: Entry | None, after: Entry | None) -> None:
        """Take a change that has been stored, and do what follows from it."""
        if before is not None:
            self._forget(before)
        if after is not None:
            self._remember(after)
            self._follow(before, after)
        elif before is not None:
            self._bury(before.uid)
            for dependent in self._owned_by(before.uid):
                self._judge(dependent)
        for owner in before.owners if before is not None else ():
            self._finish_foreground(owner)

    def _remember(self, entry: Entry) -> None:
        self._alive[entry.uid] = entry
        for owner in entry.owners:
            self._dependents.setdefault(owner, {})[entry.uid] = None

    def _forget(self, entry: Entry) -> None:
        del self._alive[entry.uid]
        for owner in entry.owners:
            owned = self._dependents.get(owner)
            if owned is not None:
                owned.pop(entry.uid, None)
                if not owned:
                    del self._dependents[owner]

    def _bury(self, uid: str) -> None:
        self._dead[uid] = None
        if len(self._dead) > _REMEMBERED_DEAD:
            del self._dead[next(iter(self._dead))]

    def _owned_by(self, uid: str) -> list[Entry]:
        return [self._alive[dependent] for dependent in tuple(self._dependents.get(uid, ()))]

    def _follow(self, before: Entry | None, after: Entry) -> None:
        if any(owner in self._dead for owner in after.owners):
            self._judge(after)
        held, was_held = after.leaves or (), (before.leaves if before is not None else None) or ()
        if ORPHAN_FINALIZER in held and ORPHAN_FINALIZER not in was_held:
            self._orphan(after)
        elif FOREGROUND_FINALIZER in held and FOREGROUND_FINALIZER not in was_held:
            for dependent in self._owned_by(after.uid):
                self._judge(dependent)
            self._finish_foreground(after.uid)

    def _judge(self, entry: Entry) -> None:
        """Delete what no owner holds any longer; remove references to owners that do not count."""
        current = self._alive.get(entry.uid)
        if current is None or current.leaves is not None:
            return
        waiting = [owner for owner in current.owners if self._waits(owner)]
        lost = [*waiting, *(owner for owner in current.owners if owner in self._dead)]
        if len(lost) < len(current.owners):
            self._disown(current, lost)
        elif lost:
            own = FOREGROUND if waiting and self._dependents.get(current.uid) else ""
            self._objects.delete_entry(current, DeleteOptions(propagation=own))

    def _waits(self, uid: str) -> bool:
        """Whether this owner waits for its dependents to go first."""
        entry = self._alive.get(uid)
        return entry is not None and FOREGROUND_FINALIZER in (entry.leaves or ())

    def _disown(self, entry: Entry, owners: Iterable[str]) -> None:
        lost = frozenset(owners)

        def change(body: JsonDict) -> JsonDict:
            meta = body["metadata"]
            meta["ownerReferences"] = [owner for owner in meta["ownerReferences"] if owner["uid"] not in lost]
            return body

        if lost:
            self._objects.change_entry(entry, change)

    def _orphan(self, entry: Entry) -> None:
        for dependent in self._owned_by(entry.uid):
            self._disown(dependent, (entry.uid,))
        self._release(entry.uid, ORPHAN_FINALIZER)

    def _finish_foreground(self, uid: str) -> None:
        if self._waits(uid) and not any(self._blocks(dependent, uid) for dependent in self._owned_by(uid)):
            self._release(uid, FOREGROUND_FINALIZER)

    def _blocks(self, entry: Entry, uid: str) -> bool:
        """Whether the owner has to wait for this dependent; two that own each other would wait for ever."""
        in_circle = self._waits(entry.uid) and entry.uid in self._alive[uid].owners
        return uid in entry.blocked and not in_circle

    def _release(self, uid: str, finalizer: str) -> None:
        entry = self._alive.get(uid)

        def change(body: JsonDict) -> JsonDict:
            meta = body["metadata"]
            meta["finalizers"] = [name for name in meta.get("finalizers") or () if name != finalizer]
            return body

        if entry is not None:
            self._objects.change_entry(entry, change)
