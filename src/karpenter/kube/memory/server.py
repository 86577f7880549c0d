"""An API server inside the process: the verbs of a real one on objects kept as JSON.

Every verb is one synchronous step, so a write is atomic and its order is the order of calls. What happens on the way is told
elsewhere: ``admission`` fills in and refuses, ``deletion`` decides whether an object stays, ``store`` keeps entries and logs,
``pods`` adds binding and eviction. This module is the traffic between them, plus what follows from a removal: dependents go
with their last owner, and a namespace goes when it is empty.

Differences from a real server, all on purpose: foreground deletion is background deletion, managed fields are not tracked, core
kinds are not checked against their full schema, and uids and generated names repeat from run to run.
"""

from __future__ import annotations

import random
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from karpenter.api.kinds import KINDS, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    Unavailable,
    not_served,
)
from karpenter.kube.memory import admission, deletion
from karpenter.kube.memory.deletion import DeleteOptions
from karpenter.kube.memory.query import Query
from karpenter.kube.memory.resources import Resource, describe
from karpenter.kube.memory.store import Change, Entry, JsonDict, Log, Table
from karpenter.kube.memory.watching import Watch
from karpenter.kube.protocol import EventType, JsonObject
from karpenter.model.clock import Clock

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_ATTEMPTS = 8
_UIDS = uuid.UUID("5b0f2b57-5a34-4a43-9a3c-1c1fd1b1a1f0")
_BUILT_IN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVENT_LIFE = timedelta(hours=1)
_KEPT_PAGES = 64
_SET_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
)
#: A watcher that was told nothing for this many versions gets a bookmark.
BOOKMARK_EVERY = 500

#: Changes a decoded object into the one wanted; may raise ``KubeError``.
Transform = Callable[[JsonDict], JsonDict]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a consistent list. ``token`` continues it and is empty at the end."""

    entries: tuple[Entry, ...]
    version: int
    token: str = ""
    remaining: int = 0


@dataclass(slots=True)
class _Fault:
    """An error waiting for a call to strike."""

    error: KubeError
    verb: str
    plural: str
    name: str
    times: int

    def strikes(self, verb: str, plural: str, name: str) -> bool:
        return self.verb in ("", verb) and self.plural in ("", plural) and self.name in ("", name)


class MemoryServer:
    """The whole server. ``history`` is how many changes per resource a watch can go back (at least)."""

    def __init__(
        self, clock: Clock, *, kinds: Iterable[Kind[Wire]] = tuple(KINDS.values()), history: int = 10_000
    ) -> None:
        self.clock = clock
        self._tables: dict[tuple[str, str, str], Table] = {}
        for kind in kinds:
            self._tables[(kind.group, kind.version, kind.plural)] = Table(describe(kind), Log(history))
        self._revision = 0
        self._created = 0
        self._random = random.Random(0)
        self._alive: dict[str, Entry] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        self._faults: list[_Fault] = []
        self._watches: dict[Watch, Log] = {}
        self._bookmarked = 0
        self._pages: OrderedDict[str, tuple[Sequence[Entry], int]] = OrderedDict()
        self._expiring: deque[tuple[datetime, str, str]] = deque()
        for name in _BUILT_IN_NAMESPACES:
            self.create(self.resource("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    # ---- what is served -------------------------------------------------------------------------------------------------

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Everything served, in the order the kinds were given."""
        return tuple(table.resource for table in self._tables.values())

    @property
    def revision(self) -> int:
        """The version of the latest change."""
        return self._revision

    def resource(self, group: str, version: str, plural: str) -> Resource:
        """What is served under this path. Raises ``NotFound``."""
        table = self._tables.get((group, version, plural))
        if table is None:
            raise not_served(plural, f"{group}/{version}" if group else version)
        return table.resource

    # ---- reading --------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Entry:
        """The current version of an object. Raises ``NotFound``."""
        entry = self._table(resource).get(namespace, name)
        if entry is None:
            raise NotFound(f'{resource.name} "{name}" not found', status=404, reason="NotFound")
        return entry

    def list(self, resource: Resource, query: Query) -> Page:
        """All objects meant by ``query``, ordered by namespace and name."""
        found = [entry for entry in self._candidates(resource, query) if query.matches(entry)]
        found.sort(key=lambda entry: (entry.namespace, entry.name))
        return Page(tuple(found), self._revision)

    def _candidates(self, resource: Resource, query: Query) -> Iterator[Entry]:
        table = self._table(resource)
        if query.name and (query.namespace or not resource.kind.namespaced):
            entry = table.get(query.namespace if resource.kind.namespaced else "", query.name)
            return iter(() if entry is None else (entry,))
        return table.entries(query.namespace)

    def page(self, resource: Resource, query: Query, limit: int, token: str = "") -> Page:
        """At most ``limit`` objects of a list, all pages of which show the same moment. Raises ``Gone`` for a stale token."""
        if token:
            kept = self._pages.pop(token, None)
            if kept is None:
                raise Gone("the provided continue parameter is too old, list again", status=410, reason="Expired")
            rest, version = kept
        else:
            rest, version = self.list(resource, query).entries, self._revision
        page, rest = tuple(rest[:limit]), rest[limit:]
        if not rest:
            return Page(page, version)
        return Page(page, version, self._keep(rest, version), len(rest))

    def _keep(self, rest: Sequence[Entry], version: int) -> str:
        token = self._random.randbytes(12).hex()
        self._pages[token] = (rest, version)
        while len(self._pages) > _KEPT_PAGES:
            self._pages.popitem(last=False)
        return token

    def watch(self, resource: Resource, query: Query, version: int) -> Watch:
        """Changes after ``version``. Raises ``Gone`` when it is too old, ``Unavailable`` when it is in the future."""
        if version > self._revision:
            raise Unavailable(f"too large resource version: {version}", status=504, reason="Timeout")
        log = self._table(resource).log
        watch = Watch(log, query, version, self._bookmark_due)
        self._watches[watch] = log
        return watch

    def unwatch(self, watch: Watch) -> None:
        """End one watch."""
        watch.close()
        log = self._watches.pop(watch, None)
        if log is not None:
            log.wake()

    def close_watches(self) -> None:
        """End every watch, as a server does when it restarts."""
        for watch in tuple(self._watches):
            self.unwatch(watch)

    def compact(self) -> None:
        """Forget all history: a watch from an older version is ``Gone``."""
        for table in self._tables.values():
            table.log.forget(len(table.log.changes))
            table.log.horizon = self._revision
            table.log.wake()

    def _bookmark_due(self, last: int) -> int | None:
        return self._revision if self._revision - last >= BOOKMARK_EVERY else None

    # ---- writing --------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: JsonObject) -> Entry:
        """Store a new object. Raises ``AlreadyExists``, ``Invalid`` or ``NotFound`` (its namespace)."""
        new = self._named(resource, namespace, body)
        if resource.kind.namespaced:
            self._check_namespace(new["metadata"]["namespace"])
        for key in _SET_BY_SERVER:
            new["metadata"].pop(key, None)
        self._stamp(new)
        return self._insert(resource, admission.on_create(resource, new))

    def load(self, bodies: Iterable[JsonObject]) -> None:
        """Store objects as they are, status included, as if they had always been there: a dump, or the scene of a test.

        Missing namespaces are created; uid and creation time are filled in where absent. Raises ``AlreadyExists`` or ``Invalid``.
        """
        by_kind = {
            (table.resource.kind.api_version, table.resource.kind.name): table.resource
            for table in self._tables.values()
        }
        for body in bodies:
            key = (str(body.get("apiVersion")), str(body.get("kind")))
            if key not in by_kind:
                raise Invalid(f"no kind {key[1]} of {key[0]} is served", status=400, reason="BadRequest")
            resource = by_kind[key]
            meta = cast(JsonDict, body.get("metadata") or {})
            new = self._named(resource, str(meta.get("namespace") or "default"), body)
            if resource.kind.namespaced:
                self._ensure_namespace(new["metadata"]["namespace"])
            self._stamp(new)
            self._insert(resource, new)

    def update(self, resource: Resource, namespace: str, name: str, change: Transform) -> Entry:
        """Replace an object by what ``change`` makes of it; status stays where it has its own subresource.

        The result's ``metadata.resourceVersion``, where present, is a precondition. Raises ``NotFound``, ``Conflict``
        or ``Invalid``, and whatever ``change`` raises.
        """
        return self._rewrite(resource, namespace, name, change, admission.on_update)

    def update_status(self, resource: Resource, namespace: str, name: str, change: Transform) -> Entry:
        """As ``update``, for the status alone."""
        if not resource.status:
            raise NotFound(f"{resource.name} has no status subresource", status=404, reason="NotFound")
        return self._rewrite(resource, namespace, name, change, admission.on_status)

    def rewrite(self, resource: Resource, namespace: str, name: str, change: Transform) -> Entry:
        """Change any part of an object, as the server's own subresources do. Raises ``NotFound`` and what ``change`` raises."""
        return self._rewrite(resource, namespace, name, change, lambda _resource, _old, new: new)

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions = DeleteOptions()) -> Entry:  # noqa: B008
        """Delete, or mark as being deleted while finalizers or a grace period hold it. Raises ``NotFound`` or ``Conflict``."""
        entry = self.get(resource, namespace, name)
        _check_preconditions(resource, entry, options)
        if options.orphan:
            self._release_dependents(entry.uid)
            entry = self.get(resource, namespace, name)
        old = entry.decoded()
        body = deletion.begin(resource, old, options.grace_period_seconds, self.clock.now())
        if resource.kind.name == "Namespace":
            return self._delete_namespace(entry, old, body)
        return self._store(entry, old, body)

    # ---- faults ---------------------------------------------------------------------------------------------------------

    def fail_next(self, error: KubeError, *, verb: str = "", plural: str = "", name: str = "", times: int = 1) -> None:
        """Answer the next ``times`` matching calls of clients with ``error``. Empty matches everything.

        Verbs: get, list, watch, create, patch, update, delete, bind, evict. Direct calls on the server are not affected.
        """
        self._faults.append(_Fault(error, verb, plural, name, times))

    def meet_fault(self, verb: str, plural: str, name: str = "") -> None:
        """Raise the error waiting for such a call, if there is one. Fronts call this before they act."""
        for fault in self._faults:
            if fault.strikes(verb, plural, name):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                raise fault.error

    # ---- how a write happens --------------------------------------------------------------------------------------------

    def _table(self, resource: Resource) -> Table:
        kind = resource.kind
        return self._tables[(kind.group, kind.version, kind.plural)]

    def _named(self, resource: Resource, namespace: str, body: JsonObject) -> JsonDict:
        """The first draft of a new object: its place and its name, and nothing the server decides on."""
        kind = resource.kind
        meta = dict(cast(JsonDict, body.get("metadata") or {}))
        own = meta.get("namespace") or namespace
        if kind.namespaced and namespace and own != namespace:
            raise Invalid(
                f"the namespace of the object ({own}) does not match the namespace of the request ({namespace})",
                status=400,
                reason="BadRequest",
            )
        for key in (
            "managedFields",
            "selfLink",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "resourceVersion",
            "namespace",
        ):
            meta.pop(key, None)
        if kind.namespaced:
            meta["namespace"] = own or "default"
        meta["name"] = meta.get("name") or self._generate(resource, meta)
        rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **_without_nulls(rest)}

    def _generate(self, resource: Resource, meta: JsonDict) -> str:
        prefix = meta.get("generateName")
        if not prefix:
            raise admission.invalid(resource, "", "metadata.name: Required value: name or generateName is required")
        for _attempt in range(_NAME_ATTEMPTS):
            name = str(prefix)[:58] + "".join(self._random.choices(_ALPHABET, k=5))
            if self._table(resource).get(meta.get("namespace", ""), name) is None:
                return name
        raise AlreadyExists(
            f"no free name starting with {prefix!r} was found, try again", status=409, reason="AlreadyExists"
        )

    def _stamp(self, body: JsonDict) -> None:
        self._created += 1
        body["metadata"].setdefault("uid", str(uuid.uuid5(_UIDS, str(self._created))))
        body["metadata"].setdefault("creationTimestamp", deletion.stamp(self.clock.now()))

    def _insert(self, resource: Resource, body: JsonDict) -> Entry:
        meta = body["metadata"]
        if self._table(resource).get(meta.get("namespace", ""), meta["name"]) is not None:
            raise AlreadyExists(f'{resource.name} "{meta["name"]}" already exists', status=409, reason="AlreadyExists")
        entry = self._next(resource, body)
        self._table(resource).put(entry)
        self._index(entry)
        self._record(EventType.ADDED, entry, None)
        if resource.kind.name == "Event":
            self._expire_events(entry)
        return entry

    def _rewrite(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Transform,
        admit: Callable[[Resource, JsonDict, JsonDict], JsonDict],
    ) -> Entry:
        entry = self.get(resource, namespace, name)
        old = entry.decoded()
        new = change(entry.decoded())
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise Invalid("an object needs metadata", status=400, reason="BadRequest")
        _check_version(resource, entry, new["metadata"].get("resourceVersion"))
        new = admit(resource, old, {**new, "metadata": dict(new["metadata"])})
        new["metadata"]["resourceVersion"] = str(entry.version)
        return self._store(entry, old, new)

    def _store(self, entry: Entry, old: JsonDict, body: JsonDict) -> Entry:
        """Put ``body`` in the place of ``entry``, or remove the object when nothing holds it any longer."""
        if deletion.is_finished(body) and entry.resource.kind.name != "Namespace":
            return self._remove(entry, body)
        if _same(old, body):
            return entry
        new = self._next(entry.resource, body)
        self._unindex(entry)
        self._table(entry.resource).put(new)
        self._index(new)
        self._record(EventType.MODIFIED, new, entry)
        return new

    def _remove(self, entry: Entry, body: JsonDict) -> Entry:
        last = self._next(entry.resource, body)
        self._table(entry.resource).drop(entry)
        self._unindex(entry)
        self._record(EventType.DELETED, last, entry)
        self._collect(entry.uid)
        if entry.namespace:
            self._finish_namespace(entry.namespace)
        return last

    def _next(self, resource: Resource, body: JsonDict) -> Entry:
        self._revision += 1
        body["metadata"]["resourceVersion"] = str(self._revision)
        return Entry(resource, body, self._revision)

    def _record(self, type_: EventType, entry: Entry, previous: Entry | None) -> None:
        self._table(entry.resource).log.append(Change(type_, entry, previous))
        if self._revision - self._bookmarked >= BOOKMARK_EVERY:
            self._bookmarked = self._revision
            for table in self._tables.values():
                table.log.wake()

    # ---- owners and dependents ------------------------------------------------------------------------------------------

    def _index(self, entry: Entry) -> None:
        self._alive[entry.uid] = entry
        for owner in entry.owners:
            self._dependents.setdefault(owner, {})[entry.uid] = None

    def _unindex(self, entry: Entry) -> None:
        del self._alive[entry.uid]
        for owner in entry.owners:
            owned = self._dependents.get(owner)
            if owned is not None:
                owned.pop(entry.uid, None)
                if not owned:
                    del self._dependents[owner]

    def _collect(self, uid: str) -> None:
        """Delete what the removed owner leaves behind, except what another living owner holds."""
        for dependent in tuple(self._dependents.get(uid, ())):
            entry = self._alive.get(dependent)
            if entry is None:
                continue
            if any(owner in self._alive for owner in entry.owners):
                self._disown(entry, uid)
            else:
                self.delete(entry.resource, entry.namespace, entry.name)

    def _release_dependents(self, uid: str) -> None:
        for dependent in tuple(self._dependents.get(uid, ())):
            self._disown(self._alive[dependent], uid)

    def _disown(self, entry: Entry, uid: str) -> None:
        body = entry.decoded()
        kept = [owner for owner in body["metadata"]["ownerReferences"] if owner["uid"] != uid]
        self._store(entry, body, {**body, "metadata": {**body["metadata"], "ownerReferences": kept}})

    def owner(self, uid: str) -> Entry | None:
        """The living object with this uid."""
        return self._alive.get(uid)

    # ---- namespaces and events ------------------------------------------------------------------------------------------

    def _check_namespace(self, name: str) -> None:
        entry = self._tables[("", "v1", "namespaces")].get("", name)
        if entry is None:
            raise NotFound(f'namespaces "{name}" not found: create it first', status=404, reason="NotFound")
        if entry.phase == "Terminating":
            raise Forbidden(
                f"namespace {name} is being terminated: nothing can be created in it", status=403, reason="Forbidden"
            )

    def _ensure_namespace(self, name: str) -> None:
        if self._tables[("", "v1", "namespaces")].get("", name) is None:
            self.create(self.resource("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    def _delete_namespace(self, entry: Entry, old: JsonDict, body: JsonDict) -> Entry:
        result = self._store(entry, old, {**body, "status": {**(body.get("status") or {}), "phase": "Terminating"}})
        for table in self._tables.values():
            for content in tuple(table.entries(entry.name)) if table.resource.kind.namespaced else ():
                if content.uid in self._alive:
                    self.delete(content.resource, content.namespace, content.name)
        self._finish_namespace(entry.name)
        return result

    def _finish_namespace(self, name: str) -> None:
        entry = self._tables[("", "v1", "namespaces")].get("", name)
        if entry is None or entry.phase != "Terminating":
            return
        spaces = (table for table in self._tables.values() if table.resource.kind.namespaced)
        if not any(name in table.spaces for table in spaces) and deletion.is_finished(entry.decoded()):
            self._remove(entry, entry.decoded())

    def _expire_events(self, entry: Entry) -> None:
        """Events live for an hour; old ones go when new ones come."""
        now = self.clock.now()
        self._expiring.append((now + _EVENT_LIFE, entry.namespace, entry.name))
        while self._expiring[0][0] <= now:
            _due, namespace, name = self._expiring.popleft()
            old = self._table(entry.resource).get(namespace, name)
            if old is not None:
                self.delete(old.resource, namespace, name)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, (list, tuple)) else value


def _same(old: JsonDict, new: JsonDict) -> bool:
    """Equal as JSON. Python takes ``1`` for ``True``, so what compares equal is compared once more as text."""
    if old != new:
        return False
    encoder = msgspec.json.Encoder(order="deterministic")
    return encoder.encode(old) == encoder.encode(new)


def _check_version(resource: Resource, entry: Entry, wanted: object) -> None:
    if wanted and wanted != str(entry.version):
        raise Conflict(
            f'Operation cannot be fulfilled on {resource.name} "{entry.name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
            status=409,
            reason="Conflict",
        )


def _check_preconditions(resource: Resource, entry: Entry, options: DeleteOptions) -> None:
    if options.uid and options.uid != entry.uid:
        raise Conflict(
            f'Operation cannot be fulfilled on {resource.name} "{entry.name}": the UID in the precondition ({options.uid}) does '
            f"not match the UID of the object ({entry.uid})",
            status=409,
            reason="Conflict",
        )
    _check_version(resource, entry, options.resource_version)
