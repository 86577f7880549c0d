"""An API server inside the process: the verbs of a real one on objects kept as JSON.

Every verb is one synchronous step, so a write is atomic and its order is the order of calls. Other modules
hold what happens on the way: ``object_admission`` fills in and refuses, ``object_deletion`` decides whether an object stays,
``dependents`` deletes dependents, ``object_store`` keeps entries and changes, ``subresources`` has binding, eviction and scale.
This module connects them, and it removes a namespace when it is empty.

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
from datetime import datetime, timedelta
from typing import cast

import msgspec

from karpenter.api.kinds import KINDS, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import AlreadyExists, KubeError, kind_not_served
from karpenter.kube.protocol import JsonObject, WatchEventType
from karpenter.model.clock import Clock
from karpenter.simulation.apiserver import object_admission, object_deletion, status_errors
from karpenter.simulation.apiserver.dependents import DependentsCollector
from karpenter.simulation.apiserver.injected_faults import InjectedFaults
from karpenter.simulation.apiserver.list_query import ObjectQuery
from karpenter.simulation.apiserver.object_checks import (
    NAMESPACE_MISMATCH,
    check_event,
    check_identity,
    drop_empty,
    equal_as_json,
    type_mismatch,
    without_nulls_in_tuples,
)
from karpenter.simulation.apiserver.object_deletion import DeleteOptions
from karpenter.simulation.apiserver.object_store import (
    ChangeLog,
    JsonDict,
    ObjectTable,
    StoredChange,
    StoredEntry,
    Transform,
)
from karpenter.simulation.apiserver.open_watch import OpenWatch
from karpenter.simulation.apiserver.paging import (
    ContinueToken,
    ListPage,
    PageRequest,
    parse_continue_token,
    sort_key,
    sorted_entries,
)
from karpenter.simulation.apiserver.served_resources import ServedResource, resource_for

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_ATTEMPTS = 8
_UID_NAMESPACE = uuid.UUID("5b0f2b57-5a34-4a43-9a3c-1c1fd1b1a1f0")
_BUILT_IN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVENT_TTL = timedelta(hours=1)
_MAX_CACHED_LISTS = 8
_SERVER_SET_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_DROPPED_METADATA = ("managedFields", "selfLink")
_METADATA_DROPPED_WHEN_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences")
_DATA_FIELDS = ("data", "binaryData")
#: A watcher without an event for this many versions gets a bookmark.
BOOKMARK_EVERY = 500


class MemoryServer:
    """The whole server. ``history`` is how many changes per resource a watch can go back (at least)."""

    def __init__(
        self, clock: Clock, *, kinds: Iterable[Kind[Wire]] = tuple(KINDS.values()), history: int = 10_000
    ) -> None:
        self.clock = clock
        self._tables: dict[tuple[str, str, str], ObjectTable] = {}
        for kind in kinds:
            self._tables[(kind.group, kind.version, kind.plural)] = ObjectTable(resource_for(kind), ChangeLog(history))
        self._revision = 0
        self._created = 0
        self._random = random.Random(0)
        self._dependents = DependentsCollector(self)
        self._faults = InjectedFaults()
        self._watches: dict[OpenWatch, ChangeLog] = {}
        self._bookmarked_revision = 0
        self._cached_lists: OrderedDict[tuple[str, ObjectQuery, int], Sequence[StoredEntry]] = OrderedDict()
        self._expiring: deque[tuple[datetime, str, str]] = deque()
        for name in _BUILT_IN_NAMESPACES:
            self.create(self.resource("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    # ---- what is served -------------------------------------------------------------------------------------------------

    @property
    def resources(self) -> tuple[ServedResource, ...]:
        """Everything served, in the order the kinds were given."""
        return tuple(table.resource for table in self._tables.values())

    @property
    def revision(self) -> int:
        """The version of the latest change."""
        return self._revision

    def resource(self, group: str, version: str, plural: str) -> ServedResource:
        """What is served under this path. Raises ``NotFound``."""
        table = self._tables.get((group, version, plural))
        if table is None:
            raise kind_not_served(plural, f"{group}/{version}" if group else version)
        return table.resource

    # ---- reading --------------------------------------------------------------------------------------------------------

    def get(self, resource: ServedResource, namespace: str, name: str) -> StoredEntry:
        """The current version of an object. Raises ``NotFound``."""
        entry = self._table(resource).get(namespace, name)
        if entry is None:
            raise status_errors.not_found(resource, name)
        return entry

    def list(self, resource: ServedResource, query: ObjectQuery) -> ListPage:
        """All objects meant by ``query``, ordered by namespace and name."""
        return ListPage(sorted_entries(self._candidates(resource, query), query), self._revision)

    def _candidates(self, resource: ServedResource, query: ObjectQuery) -> Iterator[StoredEntry]:
        table = self._table(resource)
        if query.name and (query.namespace or not resource.kind.namespaced):
            entry = table.get(query.namespace if resource.kind.namespaced else "", query.name)
            return iter(() if entry is None else (entry,))
        return table.entries(query.namespace)

    def page(self, resource: ServedResource, query: ObjectQuery, page_request: PageRequest) -> ListPage:
        """Part of a list; all parts of one list show the same moment.

        Raises ``Gone`` when that moment is forgotten, ``ServerUnavailable`` when it has not come yet, and ``Invalid`` for a token
        this server did not give out.
        """
        mark = (
            parse_continue_token(page_request.continue_token)
            if page_request.continue_token
            else ContinueToken(page_request.resource_version or self._revision)
        )
        entries = self._list_at(resource, query, mark.rv)
        start = bisect_right(entries, tuple(mark.start.split("/")), key=sort_key) if page_request.continue_token else 0
        return self._cut_page((resource.name, query, mark.rv), entries, start, page_request.limit)

    def _list_at(self, resource: ServedResource, query: ObjectQuery, version: int) -> Sequence[StoredEntry]:
        stored_entries = self._cached_lists.get((resource.name, query, version))
        if stored_entries is not None:
            return stored_entries
        if version == self._revision:
            return self.list(resource, query).entries
        if version > self._revision:
            raise status_errors.version_too_large(version, self._revision)
        return sorted_entries(self._table(resource).entries_at(version), query)

    def _cut_page(
        self, key: tuple[str, ObjectQuery, int], entries: Sequence[StoredEntry], start: int, limit: int
    ) -> ListPage:
        end = start + limit if limit else len(entries)
        page, version = tuple(entries[start:end]), key[2]
        if end >= len(entries):
            self._cached_lists.pop(key, None)
            return ListPage(page, version)
        self._cache_list(key, entries)
        token = base64.urlsafe_b64encode(msgspec.json.encode(ContinueToken(version, "/".join(sort_key(page[-1])))))
        return ListPage(page, version, token.rstrip(b"=").decode(), len(entries) - end)

    def _cache_list(self, key: tuple[str, ObjectQuery, int], entries: Sequence[StoredEntry]) -> None:
        """Keep a list until its last page is read; later requests rebuild it from the log."""
        self._cached_lists[key] = entries
        self._cached_lists.move_to_end(key)
        while len(self._cached_lists) > _MAX_CACHED_LISTS:
            self._cached_lists.popitem(last=False)

    def watch(self, resource: ServedResource, query: ObjectQuery, version: int) -> OpenWatch:
        """Changes after ``version``, which may lie in the future. Raises ``Gone`` when it is too old."""
        log = self._table(resource).log
        watch = OpenWatch(log, query, version, self._bookmark_due)
        self._watches[watch] = log
        return watch

    def unwatch(self, watch: OpenWatch) -> None:
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
            table.log.compact(len(table.log.changes))
            table.log.compacted_version = self._revision
            table.log.wake()
        self._cached_lists.clear()

    def _bookmark_due(self, last: int) -> int | None:
        return self._revision if self._revision - last >= BOOKMARK_EVERY else None

    # ---- writing --------------------------------------------------------------------------------------------------------

    def create(self, resource: ServedResource, namespace: str, body: JsonObject) -> StoredEntry:
        """Store a new object. Raises ``AlreadyExists``, ``Invalid`` or ``NotFound`` (its namespace)."""
        if cast(JsonDict, body.get("metadata") or {}).get("resourceVersion"):
            raise status_errors.server_error("resourceVersion should not be set on objects to be created")
        new = self._draft(resource, namespace, body)
        if resource.kind.namespaced:
            self._check_namespace(resource, new["metadata"])
        if resource.kind.name == "Event":
            check_event(resource, new)
        if resource.kind.name == "Pod":
            self._admit_pod(resource, namespace, new)
        for key in _SERVER_SET_METADATA:
            new["metadata"].pop(key, None)
        self._set_uid_and_creation_time(new)
        admitted = object_admission.on_create(resource, new)
        fault = type_mismatch(resource, admitted)
        if fault:
            kind = resource.kind
            text = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {fault}'
            raise status_errors.bad_request(text)
        return self._insert(resource, admitted)

    def load_objects(self, bodies: Iterable[JsonObject]) -> None:
        """Store objects as they are, status included, as if they had always been there: a dump, or the start of a test.

        Missing namespaces are created; uid and creation time are filled in where absent. Raises ``AlreadyExists`` or ``Invalid``.
        """
        by_kind = {
            (table.resource.kind.api_version, table.resource.kind.name): table.resource
            for table in self._tables.values()
        }
        for body in bodies:
            key = (str(body.get("apiVersion")), str(body.get("kind")))
            if key not in by_kind:
                raise status_errors.bad_request(f"no kind {key[1]} of {key[0]} is served")
            resource = by_kind[key]
            meta = cast(JsonDict, body.get("metadata") or {})
            new = self._draft(resource, str(meta.get("namespace") or "default"), body)
            if resource.kind.namespaced:
                self._ensure_namespace(new["metadata"]["namespace"])
            self._set_uid_and_creation_time(new)
            self._insert(resource, new)

    def update(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """Replace an object by what ``change`` makes of it; status stays where it has its own subresource.

        The result's ``metadata.resourceVersion``, where present, is a precondition. Raises ``NotFound``, ``Conflict``
        or ``Invalid``, and whatever ``change`` raises.
        """
        return self._update(resource, namespace, name, change, object_admission.on_update)

    def update_status(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """As ``update``, for the status alone."""
        if not resource.has_status:
            raise status_errors.no_such_subresource()
        return self._update(resource, namespace, name, change, object_admission.on_status)

    def update_any(self, resource: ServedResource, namespace: str, name: str, change: Transform) -> StoredEntry:
        """Change any part of an object, as the server's own subresources do. Raises ``NotFound`` and what ``change`` raises."""
        return self._update(resource, namespace, name, change, lambda _resource, _old, new: new)

    def delete(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        options: DeleteOptions = DeleteOptions(),  # noqa: B008
    ) -> StoredEntry:
        """Delete, or mark as being deleted while finalizers or a grace period hold it. Raises ``NotFound`` or ``Conflict``."""
        entry = self.get(resource, namespace, name)
        self.check_preconditions(entry, options)
        return self.delete_entry(entry, options)

    def delete_entry(self, entry: StoredEntry, options: DeleteOptions) -> StoredEntry:
        """As ``delete``, for an object at hand and whatever its version. Preconditions are not checked."""
        old = entry.decoded()
        body = object_deletion.mark_deleted(entry.resource, old, options, self.clock.now())
        if entry.resource.kind.name == "Namespace":
            return self._delete_namespace(entry, old, body)
        return self._store(entry, old, body)

    def update_entry(self, entry: StoredEntry, change: Transform) -> StoredEntry:
        """As ``update_any``, for an object at hand."""
        return self._store(entry, entry.decoded(), change(entry.decoded()))

    def check_preconditions(self, entry: StoredEntry, options: DeleteOptions) -> None:
        """Raises ``Conflict`` when the call is meant for another object or another version of it."""
        resource, version = entry.resource, str(entry.version)
        if options.uid and options.uid != entry.uid:
            raise status_errors.precondition_failed(resource, entry.name, "UID", options.uid, entry.uid)
        if options.resource_version and options.resource_version != version:
            wanted = options.resource_version
            raise status_errors.precondition_failed(resource, entry.name, "ResourceVersion", wanted, version)

    # ---- faults ---------------------------------------------------------------------------------------------------------

    def inject_fault(
        self, error: KubeError, *, verb: str = "", plural: str = "", name: str = "", times: int = 1
    ) -> None:
        """Answer the next ``times`` matching calls of clients with ``error``. Empty matches everything.

        Verbs: get, list, watch, create, patch, update, delete, bind, evict. Direct calls on the server are not affected.
        """
        self._faults.add(error, verb=verb, plural=plural, name=name, times=times)

    def raise_injected_fault(self, verb: str, plural: str, name: str = "") -> None:
        """Raise the error waiting for such a call, if there is one. Fronts call this before they act."""
        self._faults.raise_next(verb, plural, name)

    # ---- how a write happens --------------------------------------------------------------------------------------------

    def _table(self, resource: ServedResource) -> ObjectTable:
        kind = resource.kind
        return self._tables[(kind.group, kind.version, kind.plural)]

    def _admit_pod(self, resource: ServedResource, namespace: str, pod: JsonDict) -> None:
        """Fill in what other objects say about a new pod: its priority and the defaults of LimitRanges."""
        classes = self._tables.get(("scheduling.k8s.io", "v1", "priorityclasses"))
        object_admission.set_priority(resource, pod, classes.entries() if classes is not None else ())
        limit_ranges = self._tables.get(("", "v1", "limitranges"))
        object_admission.apply_limit_ranges(pod, limit_ranges.entries(namespace) if limit_ranges is not None else ())

    def _draft(self, resource: ServedResource, namespace: str, body: JsonObject) -> JsonDict:
        """The first draft of a new object: its place and its name, and nothing the server decides on."""
        kind = resource.kind
        meta = dict(cast(JsonDict, body.get("metadata") or {}))
        own = meta.get("namespace") or namespace
        if kind.namespaced and namespace and own != namespace:
            raise status_errors.bad_request(NAMESPACE_MISMATCH)
        for key in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "resourceVersion",
            "namespace",
            *_DROPPED_METADATA,
        ):
            meta.pop(key, None)
        if kind.namespaced:
            meta["namespace"] = own or "default"
        meta["name"] = meta.get("name") or self._generate(resource, meta)
        rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **without_nulls_in_tuples(rest)}

    def _generate(self, resource: ServedResource, meta: JsonDict) -> str:
        prefix = meta.get("generateName")
        if not prefix:
            raise status_errors.invalid(resource, "", "metadata.name: Required value: name or generateName is required")
        for _attempt in range(_NAME_ATTEMPTS):
            name = str(prefix)[:58] + "".join(self._random.choices(_ALPHABET, k=5))
            if self._table(resource).get(meta.get("namespace", ""), name) is None:
                return name
        raise AlreadyExists(
            f"no free name starting with {prefix!r} was found, try again", status=409, reason="AlreadyExists"
        )

    def _set_uid_and_creation_time(self, body: JsonDict) -> None:
        self._created += 1
        body["metadata"].setdefault("uid", str(uuid.uuid5(_UID_NAMESPACE, str(self._created))))
        body["metadata"].setdefault("creationTimestamp", object_deletion.format_time(self.clock.now()))

    def _insert(self, resource: ServedResource, body: JsonDict) -> StoredEntry:
        meta = body["metadata"]
        taken = self._table(resource).get(meta.get("namespace", ""), meta["name"])
        if taken is not None:
            raise status_errors.already_exists(
                resource, meta["name"], is_terminating=taken.pending_finalizers is not None
            )
        entry = self._next_entry(resource, body)
        self._table(resource).put(entry)
        self._log_change(WatchEventType.ADDED, entry, None)
        self._dependents.on_change(None, entry)
        if resource.kind.name == "Event":
            self._expire_events(entry)
        return entry

    def _update(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        change: Transform,
        admit: Callable[[ServedResource, JsonDict, JsonDict], JsonDict],
    ) -> StoredEntry:
        entry = self.get(resource, namespace, name)
        old = entry.decoded()
        new = change(entry.decoded())
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise status_errors.bad_request("an object needs metadata")
        new = {**new, "metadata": dict(new["metadata"])}
        check_identity(entry, new)
        if new["metadata"].get("resourceVersion") not in (None, "", str(entry.version)):
            raise status_errors.object_modified(resource, entry.name)
        for key in _DROPPED_METADATA:
            new["metadata"].pop(key, None)
        new = admit(resource, old, new)
        fault = type_mismatch(resource, new)
        if fault:
            raise status_errors.invalid(resource, entry.name, f"patch: Invalid value: {fault}")
        new["metadata"]["resourceVersion"] = str(entry.version)
        return self._store(entry, old, new)

    def _store(self, entry: StoredEntry, old: JsonDict, body: JsonDict) -> StoredEntry:
        """Put ``body`` in the place of ``entry``, or remove the object when nothing holds it any longer."""
        drop_empty(body["metadata"], _METADATA_DROPPED_WHEN_EMPTY)
        if not entry.resource.is_custom:
            drop_empty(body, _DATA_FIELDS)
        if object_deletion.is_deletable(body) and entry.resource.kind.name != "Namespace":
            return self._remove(entry, body)
        if equal_as_json(old, body):
            return entry
        new = self._next_entry(entry.resource, body)
        self._table(entry.resource).put(new)
        self._log_change(WatchEventType.MODIFIED, new, entry)
        self._dependents.on_change(entry, new)
        return new

    def _remove(self, entry: StoredEntry, body: JsonDict) -> StoredEntry:
        """Remove an object. The caller gets ``body``, watchers get the state that was stored last."""
        last = self._next_entry(entry.resource, body)
        self._table(entry.resource).remove(entry)
        self._log_change(WatchEventType.DELETED, entry.with_version(last.version), entry)
        self._dependents.on_change(entry, None)
        if entry.namespace:
            self._finish_namespace(entry.namespace)
        return last

    def _next_entry(self, resource: ServedResource, body: JsonDict) -> StoredEntry:
        self._revision += 1
        body["metadata"]["resourceVersion"] = str(self._revision)
        return StoredEntry(resource, body, self._revision)

    def _log_change(self, type_: WatchEventType, entry: StoredEntry, previous: StoredEntry | None) -> None:
        self._table(entry.resource).log.append(StoredChange(type_, entry, previous))
        if self._revision - self._bookmarked_revision >= BOOKMARK_EVERY:
            self._bookmarked_revision = self._revision
            for table in self._tables.values():
                table.log.wake()

    def live_object(self, uid: str) -> StoredEntry | None:
        """The stored object with this uid, if there is one."""
        return self._dependents.live_object(uid)

    # ---- namespaces and events ------------------------------------------------------------------------------------------

    def _check_namespace(self, resource: ServedResource, meta: JsonDict) -> None:
        namespaces = self.resource("", "v1", "namespaces")
        if self.get(namespaces, "", meta["namespace"]).phase == "Terminating":
            raise status_errors.namespace_terminating(resource, meta["name"], meta["namespace"])

    def _ensure_namespace(self, name: str) -> None:
        if self._tables[("", "v1", "namespaces")].get("", name) is None:
            self.create(self.resource("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    def _delete_namespace(self, entry: StoredEntry, old: JsonDict, body: JsonDict) -> StoredEntry:
        result = self._store(entry, old, {**body, "status": {**(body.get("status") or {}), "phase": "Terminating"}})
        for table in self._tables.values():
            for content in tuple(table.entries(entry.name)) if table.resource.kind.namespaced else ():
                if self.live_object(content.uid) is not None:
                    self.delete(content.resource, content.namespace, content.name)
        self._finish_namespace(entry.name)
        return result

    def _finish_namespace(self, name: str) -> None:
        entry = self._tables[("", "v1", "namespaces")].get("", name)
        if entry is None or entry.phase != "Terminating":
            return
        spaces = (table for table in self._tables.values() if table.resource.kind.namespaced)
        if not any(name in table.by_namespace for table in spaces) and object_deletion.is_deletable(entry.decoded()):
            self._remove(entry, entry.decoded())

    def _expire_events(self, entry: StoredEntry) -> None:
        """Events live for an hour; old ones go when new ones come."""
        now = self.clock.now()
        self._expiring.append((now + _EVENT_TTL, entry.namespace, entry.name))
        while self._expiring[0][0] <= now:
            _due, namespace, name = self._expiring.popleft()
            old = self._table(entry.resource).get(namespace, name)
            if old is not None:
                self.delete(old.resource, namespace, name)
