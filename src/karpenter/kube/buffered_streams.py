"""Streams that buffer a request until its answer is read. They use less CPU than those of the HTTP library.

* The library writes the head of a request and its body separately: two TLS records, two system calls, and the server wakes up
  twice. Here both leave in one write, before the first read of the answer.
* For every request, the library's pool checks whether each idle connection is readable, which means that the server closed it.
  To find the socket it builds a dictionary of everything known about the connection, every time. Here the socket is stored once.

Together that is a fifth of the CPU of a write to the API server. A request leaves after ``send_request_body`` of the library's
trace events and before ``receive_response_headers``: ``client`` checks its write fence before the latter, too.

The library has no public way to pass a backend of one's own. With a version of it that has other internals, its own streams
are used.
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
#: A larger buffer is written at once: it takes many TLS records (16 KiB each) in any case, so one write fewer saves little, while
#: each further part would copy the whole buffer.
_MAX_BUFFERED_BYTES = 65_536


def use_buffered_streams(transport: httpx2.AsyncHTTPTransport) -> httpx2.AsyncHTTPTransport:
    """The same transport; connections that it opens from now on are buffered."""
    pool: Any = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if isinstance(backend, httpcore2.AsyncNetworkBackend):
        pool._network_backend = _BufferingBackend(backend)
    return transport


class _BufferingBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections with another backend."""

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
        return BufferedStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        """See ``AsyncNetworkBackend``."""
        await self._backend.sleep(seconds)


class BufferedStream(httpcore2.AsyncNetworkStream):
    """Buffers writes until the next read, and stores its socket."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket: socket.socket | None = stream.get_extra_info("socket")
        self._buffer = b""
        self._write_timeout: float | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Write the buffer, then read."""
        if self._buffer:
            # As the library does: a server that closed the connection early may have answered before, so read its answer.
            with suppress(httpcore2.WriteError):
                await self._flush()
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Add to the buffer, and write it if it is large."""
        self._buffer += buffer
        self._write_timeout = timeout
        if len(self._buffer) > _MAX_BUFFERED_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        buffer, self._buffer = self._buffer, b""
        await self._stream.write(buffer, self._write_timeout)

    async def aclose(self) -> None:
        """Close without writing the buffer: its request was given up."""
        self._buffer = b""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """The same connection under TLS."""
        return BufferedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """See ``AsyncNetworkStream``."""
        if info == "is_readable" and self._socket is not None:
            return _is_readable(self._socket.fileno())
        return self._stream.get_extra_info(info)


def _is_readable(descriptor: int) -> bool:
    """Whether data or the end of the connection arrived. As in the library, a closed socket is readable."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
