"""A current copy of one kind's objects, kept by listing and watching; the eyes of the stand-ins in this room.

Handlers are called in the order of changes with the object before and after; ``None`` stands for "did not exist" and
"exists no more". They must not block. After a gap in the watch the list is compared with the copy, so a handler sees
every difference exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from karpenter.api.core import (
    DaemonSet,
    Deployment,
    Namespace,
    Node,
    Pod,
    ReplicaSet,
)
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import Gone, KubeError
from karpenter.kube.protocol import EventType, Reader, WatchEvent

T = TypeVar("T", Pod, Node, Namespace, DaemonSet, Deployment, ReplicaSet)
#: Namespace (empty for cluster-wide kinds) and name.
Key = tuple[str, str]
Handler = Callable[[T | None, T | None], None]

_RETRY_SECONDS = 1.0


def key_of(metadata: ObjectMeta) -> Key:
    """Where an object lives."""
    return (metadata.namespace, metadata.name)


class Mirror(Generic[T]):
    """The objects of one kind, by key. ``synced`` is set once the first list is in."""

    def __init__(self, reader: Reader, kind: Kind[T], handler: Handler[T]) -> None:
        self.synced = asyncio.Event()
        self._reader = reader
        self._kind: Kind[T] = kind
        self._handler: Handler[T] = handler
        self._items: dict[Key, T] = {}

    @property
    def items(self) -> Mapping[Key, T]:
        """All objects as last seen."""
        return self._items

    async def run(self) -> None:
        """Follow the server until cancelled; an unreachable server is asked again every second."""
        while True:
            try:
                await self._follow(await self._relist())
            except Gone:
                continue
            except KubeError:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _relist(self) -> str:
        listing = await self._reader.list(self._kind)
        current = {key_of(item.metadata): item for item in listing.items}
        for key in sorted(self._items.keys() - current.keys()):
            self._set(key, None)
        for key, item in current.items():
            known = self._items.get(key)
            if known is None or known.metadata.resource_version != item.metadata.resource_version:
                self._set(key, item)
        self.synced.set()
        return listing.resource_version

    async def _follow(self, version: str) -> None:
        while True:
            async for event in self._reader.watch(self._kind, version):
                version = event.resource_version
                self._apply(event)
            await asyncio.sleep(_RETRY_SECONDS)

    def _apply(self, event: WatchEvent[T]) -> None:
        if event.object is None:
            return
        deleted = event.type is EventType.DELETED
        self._set(key_of(event.object.metadata), None if deleted else event.object)

    def _set(self, key: Key, item: T | None) -> None:
        before = self._items.get(key)
        if before is not None and item is not None and before.metadata.uid != item.metadata.uid:
            self._set(key, None)
            before = None
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
        if before is not None or item is not None:
            self._handler(before, item)
