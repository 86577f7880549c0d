"""The ``Kube`` protocol on a server in the same process: typed structs in and out, no HTTP between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar, cast

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import Invalid
from karpenter.kube.protocol import JsonObject, Listing, UndecodableObject, WatchEvent, WatchEventType
from karpenter.simulation.apiserver import patch_formats, status_errors, subresources
from karpenter.simulation.apiserver.list_query import compile_query
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_deletion import DeleteOptions
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.open_watch import WatchNotification
from karpenter.simulation.apiserver.served_resources import ServedResource

T = TypeVar("T", bound=Wire)


class MemoryKube:
    """A client of ``server``. Every call gives other tasks a turn first, as a call over a network would."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """See ``Reader.get``."""
        resource = await self._begin_call(kind, "get", name)
        return _typed_object(kind, self.server.get(resource, _namespace_for(kind, namespace), name))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """See ``Reader.list``."""
        resource = await self._begin_call(kind, "list")
        query = compile_query(kind, namespace, label_selector, field_selector)
        page = self.server.list(resource, query)
        decoded = [entry.typed(cast(Kind[Wire], kind)) for entry in page.entries]
        return Listing(
            tuple(cast(T, obj) for obj in decoded if not isinstance(obj, UndecodableObject)),
            str(page.version),
            tuple(obj for obj in decoded if isinstance(obj, UndecodableObject)),
        )

    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """See ``Reader.watch``."""
        resource = await self._begin_call(kind, "watch")
        query = compile_query(kind, namespace, label_selector, field_selector)
        watch = self.server.watch(resource, query, parse_version(resource_version))
        try:
            yield WatchEvent(WatchEventType.BOOKMARK, resource_version)
            while (seen := await watch.next()) is not None:
                yield _watch_event(kind, seen)
        finally:
            self.server.unwatch(watch)

    async def create(self, kind: Kind[T], obj: T) -> T:
        """See ``Writer.create``."""
        body: JsonDict = msgspec.json.decode(kind.encode(obj))
        meta = body.get("metadata") or {}
        resource = await self._begin_call(kind, "create", meta.get("name", ""))
        return _typed_object(kind, self.server.create(resource, _namespace_for(kind, meta.get("namespace", "")), body))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T:
        """See ``Writer.patch``."""
        resource = await self._begin_call(kind, "patch", name)

        def change(body: JsonDict) -> JsonDict:
            merged = cast(JsonDict, patch_formats.merge_patch(body, patch))
            if resource_version:
                merged["metadata"] = {**merged["metadata"], "resourceVersion": resource_version}
            return merged

        match subresource:
            case "":
                entry = self.server.update(resource, _namespace_for(kind, namespace), name, change)
            case "status":
                entry = self.server.update_status(resource, _namespace_for(kind, namespace), name, change)
            case _:
                raise status_errors.no_such_subresource()
        return _typed_object(kind, entry)

    async def delete(
        self, kind: Kind[T], name: str, namespace: str = "", *, uid: str = "", grace_period_seconds: int | None = None
    ) -> None:
        """See ``Writer.delete``."""
        resource = await self._begin_call(kind, "delete", name)
        options = DeleteOptions(uid=uid, grace_period_seconds=grace_period_seconds)
        self.server.delete(resource, _namespace_for(kind, namespace), name, options)

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """See ``PodSubresources.evict``."""
        await asyncio.sleep(0)
        self.server.raise_injected_fault("evict", "pods", name)
        subresources.evict_pod(self.server, namespace, name, DeleteOptions(uid=uid))

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """See ``PodSubresources.bind``."""
        await asyncio.sleep(0)
        self.server.raise_injected_fault("bind", "pods", name)
        subresources.bind_pod(self.server, namespace, name, node)

    async def _begin_call(self, kind: Kind[T], verb: str, name: str = "") -> ServedResource:
        await asyncio.sleep(0)
        self.server.raise_injected_fault(verb, kind.plural, name)
        return self.server.resource(kind.group, kind.version, kind.plural)


def parse_version(text: str) -> int:
    """The number behind a version this server gave out. Raises ``Invalid``."""
    if not text.isdecimal():
        raise status_errors.bad_request(f"invalid resource version: {text!r}")
    return int(text)


def _namespace_for(kind: Kind[T], namespace: str) -> str:
    return (namespace or "default") if kind.namespaced else ""


def _typed_object(kind: Kind[T], entry: StoredEntry) -> T:
    typed = entry.typed(cast(Kind[Wire], kind))
    if isinstance(typed, UndecodableObject):
        raise Invalid(f'{kind.name} "{entry.name}" does not decode: {typed.error}', reason="Undecodable")
    return cast(T, typed)


def _watch_event(kind: Kind[T], seen: WatchNotification) -> WatchEvent[T]:
    version = str(seen.version)
    if seen.entry is None:
        return WatchEvent(seen.type, version)
    typed = seen.entry.typed(cast(Kind[Wire], kind))
    if isinstance(typed, UndecodableObject):
        return WatchEvent(seen.type, version, undecodable=typed)
    return WatchEvent(seen.type, version, cast(T, typed))
