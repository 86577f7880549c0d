"""Where probes are answered, and what is said when they cannot be."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from io import StringIO

import msgspec
import pytest
import structlog

from karpenter.control import health, logging
from karpenter.control.health import HealthServer

LONGEST_SECONDS = 20


@pytest.fixture
def log() -> Iterator[StringIO]:
    stream = StringIO()
    logging.configure("info", stream)
    yield stream
    structlog.reset_defaults()


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@asynccontextmanager
async def serving(port: int) -> AsyncIterator[None]:
    task = asyncio.create_task(HealthServer(port, {}).run())
    yield
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def answer(host: str, port: int) -> bytes:
    """The status line of /healthz, asked for until somebody listens."""
    async with asyncio.timeout(LONGEST_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        status = await reader.readline()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        return status


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A socket that holds a port."""
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        yield holder


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))]
)
async def test_probes_are_answered_in_every_family(port: int, host: str) -> None:
    """OPS-364"""
    async with serving(port):
        assert await answer(host, port) == b"HTTP/1.1 200 OK\r\n"


async def test_a_host_without_ipv6_answers_over_ipv4(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = asyncio.start_server

    async def without_ipv6(respond: object, host: str | None, port: int) -> asyncio.Server:
        if host is None:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return await usual(respond, host, port)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "start_server", without_ipv6)
    async with serving(port):
        assert await answer("127.0.0.1", port) == b"HTTP/1.1 200 OK\r\n"


async def test_a_taken_port_is_told_once_and_used_when_it_is_free(
    taken: socket.socket, log: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = taken.getsockname()[1]
    tries = 0
    usual = HealthServer._bound

    async def counted(server: HealthServer) -> asyncio.Server:
        nonlocal tries
        tries += 1
        return await usual(server)

    monkeypatch.setattr(HealthServer, "_bound", counted)
    monkeypatch.setattr(health, "_RETRY_SECONDS", 0.01)
    async with serving(port):
        async with asyncio.timeout(LONGEST_SECONDS):
            while tries < 3:
                await asyncio.sleep(0.01)
        taken.close()
        assert await answer("127.0.0.1", port) == b"HTTP/1.1 200 OK\r\n"
    (line,) = [msgspec.json.decode(line) for line in log.getvalue().splitlines()]
    assert line["level"] == "ERROR"
    assert str(port) in line["error"]
    assert "--health-probe-port" in line["error"]
