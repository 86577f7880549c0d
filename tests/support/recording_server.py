"""A plain HTTP server that records requests and gives each the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 25\r\n\r\n{"metadata":{"name":"a"}}'


@dataclass
class RecordingServer:
    """``requests`` are request lines with bodies, ``heads`` the headers of each, ``connections`` all that were opened."""

    requests: list[tuple[str, bytes]] = field(default_factory=list)
    heads: list[list[tuple[str, str]]] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)
    #: The number of next requests that are answered by closing the connection.
    refusals: int = 0
    answer: bytes = _ANSWER
    url: str = ""
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RecordingServer]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listening:
            self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            yield self
            await self.close_connections()
            await asyncio.gather(*self._handlers)

    async def close_connections(self) -> None:
        """Close open connections, as a server that restarts."""
        for writer in self.connections:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        self.connections.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
                head = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
                body = await reader.readexactly(int(dict(head).get("content-length", "0")))
                self.requests.append((first, body))
                self.heads.append(head)
                if self.refusals:
                    self.refusals -= 1
                    break
                writer.write(self.answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
