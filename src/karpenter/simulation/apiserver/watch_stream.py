"""A watch as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import WatchEventType
from karpenter.simulation.apiserver import status_errors, table_output
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.open_watch import OpenWatch, WatchNotification
from karpenter.simulation.apiserver.request_parsing import ApiRequest

#: How long a watch lasts whose client does not say.
DEFAULT_WATCH_SECONDS = 1800.0

#: Seconds without an event after which the client gets a bookmark, if the version has advanced.
BOOKMARK_SECONDS = 60.0

_CHUNK_BYTES = 64 * 1024
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class WatchStream:
    """The lines of one watch, several to a piece where several are ready."""

    def __init__(self, server: MemoryServer, request: ApiRequest, watch: OpenWatch) -> None:
        self._server = server
        self._request = request
        self._watch = watch
        self._sends_bookmarks = request.flag_parameter("allowWatchBookmarks")
        self._line: Callable[[WatchEventType, StoredEntry], bytes] = (
            self._table_line if request.wants_table else event_line
        )

    async def chunks(
        self, initial: Iterable[StoredEntry] = (), bookmark_version: int | None = None
    ) -> AsyncIterator[bytes]:
        """Lines until the server or the asked-for time ends the stream.

        It begins with ``initial`` and, with ``bookmark_version``, a bookmark of that version which says that this was all.
        """
        try:
            begin = [self._line(WatchEventType.ADDED, entry) for entry in initial]
            if bookmark_version is not None and self._sends_bookmarks:
                begin.append(self._bookmark_line(bookmark_version, _INITIAL_EVENTS_END))
            for piece in _chunks(begin):
                yield piece
            async with asyncio.timeout(self._request.integer_parameter("timeoutSeconds") or DEFAULT_WATCH_SECONDS):
                while (seen := await self._next_notification()) is not None:
                    for piece in _chunks(map(self._encode, (seen, *self._watch.pending()))):
                        yield piece
        except TimeoutError:
            return
        except KubeError as error:
            yield b'{"type":"ERROR","object":' + msgspec.json.encode(status_errors.status_of(error)) + b"}\n"
        finally:
            self._server.unwatch(self._watch)

    async def _next_notification(self) -> WatchNotification | None:
        while True:
            try:
                async with asyncio.timeout(BOOKMARK_SECONDS):
                    return await self._watch.next()
            except TimeoutError:
                bookmark = self._watch.progress_bookmark(self._server.revision)
                if bookmark is not None:
                    return bookmark

    def _encode(self, seen: WatchNotification) -> bytes:
        if seen.entry is None:
            return self._bookmark_line(seen.version, {}) if self._sends_bookmarks else b""
        return self._line(seen.type, seen.entry)

    def _table_line(self, type_: WatchEventType, entry: StoredEntry) -> bytes:
        head = {"resourceVersion": str(entry.version)}
        table = table_output.render_table(entry.resource, (entry,), self._server.clock.now(), head)
        return _event_document(type_, msgspec.json.encode(table))

    def _bookmark_line(self, version: int, annotations: dict[str, str]) -> bytes:
        kind = self._request.resource.kind
        meta: JsonDict = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        body = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        return _event_document(WatchEventType.BOOKMARK, msgspec.json.encode(body))


def event_line(type_: WatchEventType, entry: StoredEntry) -> bytes:
    """One event."""
    return _event_document(type_, entry.data)


def _event_document(type_: WatchEventType, body: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"


def _chunks(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The lines put together to pieces worth sending."""
    piece = bytearray()
    for each in lines:
        piece += each
        if len(piece) >= _CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
