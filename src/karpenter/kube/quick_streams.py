"""Connections that cost less CPU than those the client library opens.

* The library's pool looks at all its idle connections with every request: one on which something arrived was closed by the
  server. To find a connection's socket it makes a table of all that is known of it, every time. Here it is found once.
* The library writes the head of a request and its body apart: two TLS records, two system calls, two wake-ups of the server.
  Here what is written leaves when the answer is read, which is right after.

Together that is a fifth of what a write to the API server costs. The library has no public way to bring a backend along; a
version of it that is built otherwise works as it comes.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2

_SocketOptions = Iterable[Any]
#: More than this is not held back.
_MOST_HELD_BYTES = 65_536


def use_quick_streams(transport: httpx2.AsyncHTTPTransport) -> httpx2.AsyncHTTPTransport:
    """The transport, which opens such connections from now on."""
    pool: Any = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if isinstance(backend, httpcore2.AsyncNetworkBackend):
        pool._network_backend = _QuickBackend(backend)
    return transport


class _QuickBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections as another backend does."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """See ``AsyncNetworkBackend``."""
        return QuickStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        """See ``AsyncNetworkBackend``."""
        await self._backend.sleep(seconds)


class QuickStream(httpcore2.AsyncNetworkStream):
    """A stream that knows its socket and writes when it reads."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket: socket.socket | None = stream.get_extra_info("socket")
        self._held = b""
        self._write_timeout: float | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What arrives next, after what was written has left."""
        if self._held:
            # As the library does: a server that closes early may have answered before, and what it said is read now.
            with suppress(httpcore2.WriteError):
                await self._flush()
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write with the next read, at once where it is much."""
        self._held += buffer
        self._write_timeout = timeout
        if len(self._held) > _MOST_HELD_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held, b""
        await self._stream.write(held, self._write_timeout)

    async def aclose(self) -> None:
        """Close; what has not left yet is dropped."""
        self._held = b""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """The same connection under TLS."""
        return QuickStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """See ``AsyncNetworkStream``."""
        if info == "is_readable" and self._socket is not None:
            return _is_readable(self._socket.fileno())
        return self._stream.get_extra_info(info)


def _is_readable(descriptor: int) -> bool:
    """Whether something arrived; a socket that is closed counts as readable, as the library has it."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
