"""Connections to the API server: when requests are written, and how idle connections are checked."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2
import pytest

from karpenter.kube.buffered_streams import BufferedStream, use_buffered_streams

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Wire(httpcore2.AsyncNetworkStream):
    """A stream that notes what is done to it."""

    def __init__(self, own: socket.socket | None = None) -> None:
        self.own = own
        self.done: list[str] = []
        self.is_broken = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.done.append("read")
        return b"answer"

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.done.append(f"write {buffer.decode()[:20]}")
        if self.is_broken:
            raise httpcore2.WriteError

    async def aclose(self) -> None:
        self.done.append("close")

    def get_extra_info(self, info: str) -> Any:
        return self.own if info == "socket" else f"the wire's {info}"


async def test_head_and_body_leave_together_when_the_answer_is_read() -> None:
    wire = Wire()
    stream = BufferedStream(wire)
    await stream.write(b"head ")
    await stream.write(b"body")
    assert wire.done == []
    assert await stream.read(100) == b"answer"
    await stream.read(100)
    assert wire.done == ["write head body", "read", "read"]


async def test_a_large_body_is_not_held_back() -> None:
    wire = Wire()
    stream = BufferedStream(wire)
    await stream.write(b"x" * 65_537)
    assert len(wire.done) == 1


async def test_what_a_server_said_before_it_closed_is_read() -> None:
    """A refusal may be on its way while the request is written."""
    wire = Wire()
    wire.is_broken = True
    stream = BufferedStream(wire)
    await stream.write(b"head")
    assert await stream.read(100) == b"answer"


async def test_a_request_that_is_given_up_before_it_left_never_leaves() -> None:
    wire = Wire()
    stream = BufferedStream(wire)
    await stream.write(b"head")
    await stream.aclose()
    assert wire.done == ["close"]


def test_a_connection_that_the_server_closed_is_readable_and_a_quiet_one_is_not() -> None:
    ours, theirs = socket.socketpair()
    stream = BufferedStream(Wire(ours))
    assert stream.get_extra_info("is_readable") is False
    theirs.close()
    assert stream.get_extra_info("is_readable") is True
    ours.close()
    assert stream.get_extra_info("is_readable") is True
    assert stream.get_extra_info("server_addr") == "the wire's server_addr"


async def test_requests_over_kept_connections_are_answered_and_a_closed_one_is_replaced() -> None:
    """Against a real socket: two requests on one connection, then the server closes it and a third opens another."""
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(4)
                writer.write(_ANSWER)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = use_buffered_streams(httpx2.AsyncHTTPTransport())
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert (await client.patch("/x", content=b"body")).text == "ok"
        assert len(opened) == 1
        opened[0].close()
        await opened[0].wait_closed()
        await asyncio.sleep(0)
        assert (await client.patch("/x", content=b"body")).text == "ok"
        assert len(opened) == 2
    server.close()
    await server.wait_closed()
    await opened[1].wait_closed()


@pytest.mark.parametrize("proxy", [None, "http://proxy:3128"])
def test_the_library_is_built_as_this_module_expects(proxy: str | None) -> None:
    """Otherwise nothing fails and nothing is saved."""
    transport = use_buffered_streams(httpx2.AsyncHTTPTransport(proxy=proxy))
    pool: Any = transport._pool
    assert type(pool._network_backend).__name__ == "_BufferingBackend"
