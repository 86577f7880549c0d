"""A watch as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from karpenter.kube.errors import KubeError
from karpenter.kube.memory import refusals, tables
from karpenter.kube.memory.calls import Call
from karpenter.kube.memory.server import MemoryServer
from karpenter.kube.memory.store import Entry, JsonDict
from karpenter.kube.memory.watching import Seen, Watch
from karpenter.kube.protocol import EventType

#: How long a watch lasts whose client does not say.
WATCH_SECONDS = 1800.0

#: After so much silence a client is told how far the server has got, if it has.
BOOKMARK_SECONDS = 60.0

_PIECE_BYTES = 64 * 1024
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class Stream:
    """The lines of one watch, several to a piece where several are ready."""

    def __init__(self, server: MemoryServer, call: Call, watch: Watch) -> None:
        self._server = server
        self._call = call
        self._watch = watch
        self._bookmarks = call.flag("allowWatchBookmarks")
        self._line: Callable[[EventType, Entry], bytes] = self._row if call.wants_table else line

    async def pieces(self, initial: Iterable[Entry] = (), mark_at: int | None = None) -> AsyncIterator[bytes]:
        """Lines until the server or the asked-for time ends the stream.

        It begins with ``initial`` and, with ``mark_at``, a bookmark of that version which says that this was all.
        """
        try:
            begin = [self._line(EventType.ADDED, entry) for entry in initial]
            if mark_at is not None and self._bookmarks:
                begin.append(self._bookmark(mark_at, _INITIAL_EVENTS_END))
            for piece in _pieces(begin):
                yield piece
            async with asyncio.timeout(self._call.number("timeoutSeconds") or WATCH_SECONDS):
                while (seen := await self._next()) is not None:
                    for piece in _pieces(map(self._told, (seen, *self._watch.ready()))):
                        yield piece
        except TimeoutError:
            return
        except KubeError as error:
            yield b'{"type":"ERROR","object":' + msgspec.json.encode(refusals.status_of(error)) + b"}\n"
        finally:
            self._server.unwatch(self._watch)

    async def _next(self) -> Seen | None:
        while True:
            try:
                async with asyncio.timeout(BOOKMARK_SECONDS):
                    return await self._watch.next()
            except TimeoutError:
                bookmark = self._watch.caught_up(self._server.revision)
                if bookmark is not None:
                    return bookmark

    def _told(self, seen: Seen) -> bytes:
        if seen.entry is None:
            return self._bookmark(seen.version, {}) if self._bookmarks else b""
        return self._line(seen.type, seen.entry)

    def _row(self, type_: EventType, entry: Entry) -> bytes:
        head = {"resourceVersion": str(entry.version)}
        table = tables.table(entry.resource, (entry,), self._server.clock.now(), head)
        return _document(type_, msgspec.json.encode(table))

    def _bookmark(self, version: int, annotations: dict[str, str]) -> bytes:
        kind = self._call.resource.kind
        meta: JsonDict = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        body = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        return _document(EventType.BOOKMARK, msgspec.json.encode(body))


def line(type_: EventType, entry: Entry) -> bytes:
    """One event."""
    return _document(type_, entry.data)


def _document(type_: EventType, body: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"


def _pieces(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The lines put together to pieces worth sending."""
    piece = bytearray()
    for each in lines:
        piece += each
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
