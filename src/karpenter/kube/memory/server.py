"""An API server inside the process: the verbs of a real one on objects kept as JSON.

Every verb is one synchronous step, so a write is atomic and its order is the order of calls. What happens on the way is told
elsewhere: ``admission`` fills in and refuses, ``deletion`` decides whether an object stays, ``garbage`` takes dependents along,
``store`` keeps entries and logs, ``pods`` and ``eviction`` are the subresources. This module is the traffic between them, and
it removes a namespace when it is empty.

Differences from a real server, all on purpose: managed fields are not tracked, core kinds are not checked against their full
schema, uids and generated names repeat from run to run, and what controllers do elsewhere a moment later (collecting
dependents, emptying namespaces) is done before the call returns.
"""

from __future__ import annotations

import base64
import random
import uuid
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from karpenter.api.kinds import KINDS, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import AlreadyExists, KubeError, not_served
from karpenter.kube.memory import admission, deletion, refusals
from karpenter.kube.memory.deletion import DeleteOptions
from karpenter.kube.memory.garbage import Garbage
from karpenter.kube.memory.query import Query
from karpenter.kube.memory.resources import Resource, describe
from karpenter.kube.memory.store import Change, Entry, JsonDict, Log, Table, Transform
from karpenter.kube.memory.watching import Watch
from karpenter.kube.protocol import EventType, JsonObject
from karpenter.model.clock import Clock

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_ATTEMPTS = 8
_UIDS = uuid.UUID("5b0f2b57-5a34-4a43-9a3c-1c1fd1b1a1f0")
_BUILT_IN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVENT_LIFE = timedelta(hours=1)
_OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"
_KEPT_LISTS = 8
_SET_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)
_NOT_KEPT = ("managedFields", "selfLink")
_GONE_WHEN_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences")
_DATA = ("data", "binaryData")
#: A watcher that was told nothing for this many versions gets a bookmark.
BOOKMARK_EVERY = 500


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a consistent list. ``token`` continues it and is empty at the end, ``remaining`` is how much is left."""

    entries: tuple[Entry, ...]
    version: int
    token: str = ""
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a list is asked for: at most ``limit`` objects (0: all), as of ``version`` (0: now) or after ``token``."""

    limit: int = 0
    version: int = 0
    token: str = ""


class _Mark(msgspec.Struct, frozen=True):
    """What a token says: the version a list shows, and namespace and name of the last object that was given."""

    rv: int
    start: str = ""
    v: str = "meta.k8s.io/v1"


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
        self._garbage = Garbage(self)
        self._faults: list[_Fault] = []
        self._watches: dict[Watch, Log] = {}
        self._bookmarked = 0
        self._lists: OrderedDict[tuple[str, Query, int], Sequence[Entry]] = OrderedDict()
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
            raise refusals.not_found(resource, name)
        return entry

    def list(self, resource: Resource, query: Query) -> Page:
        """All objects meant by ``query``, ordered by namespace and name."""
        return Page(_ordered(self._candidates(resource, query), query), self._revision)

    def _candidates(self, resource: Resource, query: Query) -> Iterator[Entry]:
        table = self._table(resource)
        if query.name and (query.namespace or not resource.kind.namespaced):
            entry = table.get(query.namespace if resource.kind.namespaced else "", query.name)
            return iter(() if entry is None else (entry,))
        return table.entries(query.namespace)

    def page(self, resource: Resource, query: Query, part: Part) -> Page:
        """Part of a list; all parts of one list show the same moment.

        Raises ``Gone`` when that moment is forgotten, ``Unavailable`` when it has not come yet, and ``Invalid`` for a token this
        server did not give out.
        """
        mark = _mark(part.token) if part.token else _Mark(part.version or self._revision)
        entries = self._list_at(resource, query, mark.rv)
        start = bisect_right(entries, tuple(mark.start.split("/")), key=_place) if part.token else 0
        return self._cut((resource.name, query, mark.rv), entries, start, part.limit)

    def _list_at(self, resource: Resource, query: Query, version: int) -> Sequence[Entry]:
        known = self._lists.get((resource.name, query, version))
        if known is not None:
            return known
        if version == self._revision:
            return self.list(resource, query).entries
        if version > self._revision:
            raise refusals.from_the_future(version, self._revision)
        return _ordered(self._table(resource).entries_at(version), query)

    def _cut(self, key: tuple[str, Query, int], entries: Sequence[Entry], start: int, limit: int) -> Page:
        end = start + limit if limit else len(entries)
        page, version = tuple(entries[start:end]), key[2]
        if end >= len(entries):
            self._lists.pop(key, None)
            return Page(page, version)
        self._keep(key, entries)
        token = base64.urlsafe_b64encode(msgspec.json.encode(_Mark(version, "/".join(_place(page[-1])))))
        return Page(page, version, token.rstrip(b"=").decode(), len(entries) - end)

    def _keep(self, key: tuple[str, Query, int], entries: Sequence[Entry]) -> None:
        """Keep a list until its last page was asked for; who wants it again has it worked out from the log."""
        self._lists[key] = entries
        self._lists.move_to_end(key)
        while len(self._lists) > _KEPT_LISTS:
            self._lists.popitem(last=False)

    def watch(self, resource: Resource, query: Query, version: int) -> Watch:
        """Changes after ``version``, which may lie in the future. Raises ``Gone`` when it is too old."""
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
        self._lists.clear()

    def _bookmark_due(self, last: int) -> int | None:
        return self._revision if self._revision - last >= BOOKMARK_EVERY else None

    # ---- writing --------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: JsonObject) -> Entry:
        """Store a new object. Raises ``AlreadyExists``, ``Invalid`` or ``NotFound`` (its namespace)."""
        if cast(JsonDict, body.get("metadata") or {}).get("resourceVersion"):
            raise refusals.server_error("resourceVersion should not be set on objects to be created")
        new = self._named(resource, namespace, body)
        if resource.kind.namespaced:
            self._check_namespace(resource, new["metadata"])
        if resource.kind.name == "Event":
            _check_event(resource, new)
        for key in _SET_BY_SERVER:
            new["metadata"].pop(key, None)
        self._stamp(new)
        admitted = admission.on_create(resource, new)
        fault = _misfit(resource, admitted)
        if fault:
            kind = resource.kind
            text = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {fault}'
            raise refusals.bad_request(text)
        return self._insert(resource, admitted)

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
                raise refusals.bad_request(f"no kind {key[1]} of {key[0]} is served")
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
            raise refusals.no_such_subresource()
        return self._rewrite(resource, namespace, name, change, admission.on_status)

    def rewrite(self, resource: Resource, namespace: str, name: str, change: Transform) -> Entry:
        """Change any part of an object, as the server's own subresources do. Raises ``NotFound`` and what ``change`` raises."""
        return self._rewrite(resource, namespace, name, change, lambda _resource, _old, new: new)

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions = DeleteOptions()) -> Entry:  # noqa: B008
        """Delete, or mark as being deleted while finalizers or a grace period hold it. Raises ``NotFound`` or ``Conflict``."""
        entry = self.get(resource, namespace, name)
        self.check_preconditions(entry, options)
        return self.delete_entry(entry, options)

    def delete_entry(self, entry: Entry, options: DeleteOptions) -> Entry:
        """As ``delete``, for an object at hand and whatever its version. Preconditions are not looked at."""
        old = entry.decoded()
        body = deletion.begin(entry.resource, old, options, self.clock.now())
        if entry.resource.kind.name == "Namespace":
            return self._delete_namespace(entry, old, body)
        return self._store(entry, old, body)

    def change_entry(self, entry: Entry, change: Transform) -> Entry:
        """As ``rewrite``, for an object at hand."""
        return self._store(entry, entry.decoded(), change(entry.decoded()))

    def check_preconditions(self, entry: Entry, options: DeleteOptions) -> None:
        """Raises ``Conflict`` when the call is meant for another object or another version of it."""
        resource, version = entry.resource, str(entry.version)
        if options.uid and options.uid != entry.uid:
            raise refusals.precondition_failed(resource, entry.name, "UID", options.uid, entry.uid)
        if options.resource_version and options.resource_version != version:
            wanted = options.resource_version
            raise refusals.precondition_failed(resource, entry.name, "ResourceVersion", wanted, version)

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
            raise refusals.bad_request(_OTHER_NAMESPACE)
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "namespace", *_NOT_KEPT):
            meta.pop(key, None)
        if kind.namespaced:
            meta["namespace"] = own or "default"
        meta["name"] = meta.get("name") or self._generate(resource, meta)
        rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **_without_nulls(rest)}

    def _generate(self, resource: Resource, meta: JsonDict) -> str:
        prefix = meta.get("generateName")
        if not prefix:
            raise refusals.invalid(resource, "", "metadata.name: Required value: name or generateName is required")
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
        taken = self._table(resource).get(meta.get("namespace", ""), meta["name"])
        if taken is not None:
            raise refusals.already_exists(resource, meta["name"], leaving=taken.leaves is not None)
        entry = self._next(resource, body)
        self._table(resource).put(entry)
        self._record(EventType.ADDED, entry, None)
        self._garbage.see(None, entry)
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
            raise refusals.bad_request("an object needs metadata")
        new = {**new, "metadata": dict(new["metadata"])}
        _check_identity(entry, new)
        if new["metadata"].get("resourceVersion") not in (None, "", str(entry.version)):
            raise refusals.modified(resource, entry.name)
        for key in _NOT_KEPT:
            new["metadata"].pop(key, None)
        new = admit(resource, old, new)
        fault = _misfit(resource, new)
        if fault:
            raise refusals.invalid(resource, entry.name, f"patch: Invalid value: {fault}")
        new["metadata"]["resourceVersion"] = str(entry.version)
        return self._store(entry, old, new)

    def _store(self, entry: Entry, old: JsonDict, body: JsonDict) -> Entry:
        """Put ``body`` in the place of ``entry``, or remove the object when nothing holds it any longer."""
        _drop_empty(body["metadata"], _GONE_WHEN_EMPTY)
        if not entry.resource.custom:
            _drop_empty(body, _DATA)
        if deletion.is_finished(body) and entry.resource.kind.name != "Namespace":
            return self._remove(entry, body)
        if _same(old, body):
            return entry
        new = self._next(entry.resource, body)
        self._table(entry.resource).put(new)
        self._record(EventType.MODIFIED, new, entry)
        self._garbage.see(entry, new)
        return new

    def _remove(self, entry: Entry, body: JsonDict) -> Entry:
        """Remove an object; the caller is answered ``body``, while watchers are told the state that was stored last."""
        last = self._next(entry.resource, body)
        self._table(entry.resource).drop(entry)
        self._record(EventType.DELETED, entry.at(last.version), entry)
        self._garbage.see(entry, None)
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

    def owner(self, uid: str) -> Entry | None:
        """The living object with this uid."""
        return self._garbage.owner(uid)

    # ---- namespaces and events ------------------------------------------------------------------------------------------

    def _check_namespace(self, resource: Resource, meta: JsonDict) -> None:
        namespaces = self.resource("", "v1", "namespaces")
        if self.get(namespaces, "", meta["namespace"]).phase == "Terminating":
            raise refusals.namespace_terminating(resource, meta["name"], meta["namespace"])

    def _ensure_namespace(self, name: str) -> None:
        if self._tables[("", "v1", "namespaces")].get("", name) is None:
            self.create(self.resource("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    def _delete_namespace(self, entry: Entry, old: JsonDict, body: JsonDict) -> Entry:
        result = self._store(entry, old, {**body, "status": {**(body.get("status") or {}), "phase": "Terminating"}})
        for table in self._tables.values():
            for content in tuple(table.entries(entry.name)) if table.resource.kind.namespaced else ():
                if self.owner(content.uid) is not None:
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


def _drop_empty(value: JsonDict, keys: Iterable[str]) -> None:
    for key in keys:
        if not value.get(key, True):
            del value[key]


def _same(old: JsonDict, new: JsonDict) -> bool:
    """Equal as JSON. Python takes ``1`` for ``True``, so what compares equal is compared once more as text."""
    if old != new:
        return False
    encoder = msgspec.json.Encoder(order="deterministic")
    return encoder.encode(old) == encoder.encode(new)


def _check_identity(entry: Entry, new: JsonDict) -> None:
    """Refuse a body that is about another object than the path it was sent to. Raises ``Invalid``."""
    kind, meta = entry.resource.kind, new["metadata"]
    if not meta.get("name"):
        raise refusals.bad_request(f"the name of the object ({entry.name} based on URL) was undeterminable")
    if meta["name"] != entry.name:
        text = f"the name of the object ({meta['name']}) does not match the name on the URL ({entry.name})"
        raise refusals.bad_request(text)
    if meta.get("namespace", entry.namespace) != entry.namespace:
        raise refusals.bad_request(_OTHER_NAMESPACE)
    if entry.leaves is None and meta.get("deletionTimestamp"):
        cause = f'metadata.deletionTimestamp: Invalid value: "{meta["deletionTimestamp"]}": field is immutable'
        raise refusals.invalid(entry.resource, entry.name, cause)
    for key, expected in (("apiVersion", kind.api_version), ("kind", kind.name)):
        if new.get(key, expected) != expected:
            raise refusals.invalid(
                entry.resource, entry.name, f'{key}: Invalid value: "{new[key]}": must be {expected}'
            )


def _misfit(resource: Resource, body: JsonDict) -> str:
    """What is of the wrong type in an object of a core kind, as far as its struct goes; empty if nothing is."""
    if resource.custom:  # those have a schema, and admission has seen to it
        return ""
    try:
        resource.kind.decode(msgspec.json.encode(body))
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def _check_event(resource: Resource, body: JsonDict) -> None:
    """An event lives with its object, or in the default namespace when that has none. Raises ``Invalid``."""
    about = (body.get("involvedObject") or {}).get("namespace", "")
    if body["metadata"]["namespace"] != (about or "default"):
        cause = f'involvedObject.namespace: Invalid value: "{about}": does not match event.namespace'
        raise refusals.invalid(resource, body["metadata"]["name"], cause)


def _mark(token: str) -> _Mark:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Mark)
    except ValueError as error:
        raise refusals.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def _place(entry: Entry) -> tuple[str, str]:
    return entry.namespace, entry.name


def _ordered(entries: Iterable[Entry], query: Query) -> tuple[Entry, ...]:
    return tuple(sorted((entry for entry in entries if query.matches(entry)), key=_place))
