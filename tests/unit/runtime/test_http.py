"""HTTP pages of the process: their ports and answers, and the message about a port that cannot be used."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from io import StringIO

import msgspec
import pytest
import structlog

from controlplane.ports import free_port
from karpenter.runtime import http_server, logging
from karpenter.runtime.http_server import (
    HttpRequest,
    HttpResponse,
    HttpServer,
    ListenAddress,
    PageHandler,
    text_response,
)

LONGEST_SECONDS = 20


async def hello(request: HttpRequest) -> HttpResponse:
    return text_response(f"hello {request.query.get('name', '')}")


async def broken(_request: HttpRequest) -> HttpResponse:
    raise KeyError("a mistake")


PAGES: dict[str, PageHandler] = {"/hello": hello, "/broken": broken}


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
    address = ListenAddress(port, "--metrics-port", "metrics cannot be served")
    task = asyncio.create_task(HttpServer(address, PAGES).run())
    yield
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def ask(port: int, request: bytes, host: str = "127.0.0.1") -> bytes:
    """The answer, as soon as the server listens."""
    async with asyncio.timeout(LONGEST_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A socket that holds a port."""
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        yield holder


@pytest.fixture
def port() -> int:
    return free_port()


HELLO = b"GET /hello?x=1&name=you HTTP/1.1\r\nHost: x\r\nUser-Agent: kube-probe\r\n\r\n"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))]
)
async def test_pages_are_served_in_every_family(port: int, host: str) -> None:
    """OPS-364"""
    async with serving(port):
        head, _, body = (await ask(port, HELLO, host)).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert set(lines[1:]) == {b"Content-Type: text/plain; charset=utf-8", b"Content-Length: 10", b"Connection: close"}
    assert body == b"hello you\n"


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"HEAD /hello HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /secret HTTP/1.1\r\n\r\n", b"404 Not Found", b"not found\n"),
        (b"GET /hello/ HTTP/1.1\r\n\r\n", b"404 Not Found", b"not found\n"),
        (b"POST /hello HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET and HEAD are answered\n"),
        (b"nonsense\r\n\r\n", b"405 Method Not Allowed", b"only GET and HEAD are answered\n"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500 Internal Server Error", b"this page failed; the log says why\n"),
    ],
    ids=["head", "absent", "slash", "post", "nonsense", "broken"],
)
async def test_what_is_answered_otherwise(
    port: int, log: StringIO, request_: bytes, status: bytes, body: bytes
) -> None:
    async with serving(port):
        answer = await ask(port, request_)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert answer.partition(b"\r\n\r\n")[2] == body
        assert b"200 OK" in await ask(port, HELLO)
    assert ("a mistake" in log.getvalue()) == (b"broken" in request_)


async def test_a_silent_client_delays_no_other(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.01)
    async with serving(port):
        await ask(port, HELLO)
        assert await ask(port, b"GET /hello") == b""
        assert await ask(port, b"") == b""
        assert b"200 OK" in await ask(port, HELLO)


async def test_a_host_without_ipv6_answers_over_ipv4(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = asyncio.start_server

    async def without_ipv6(respond: object, host: str | None, port: int, ssl: None) -> asyncio.Server:
        if host is None:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return await usual(respond, host, port)

    monkeypatch.setattr(asyncio, "start_server", without_ipv6)
    async with serving(port):
        assert b"200 OK" in await ask(port, HELLO)


async def test_a_taken_port_is_reported_once_and_used_when_it_is_free(
    taken: socket.socket, log: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = taken.getsockname()[1]
    tries = 0
    usual = HttpServer._bind

    async def counted(server: HttpServer) -> asyncio.Server:
        nonlocal tries
        tries += 1
        return await usual(server)

    monkeypatch.setattr(HttpServer, "_bind", counted)
    monkeypatch.setattr(http_server, "_RETRY_SECONDS", 0.01)
    async with serving(port):
        async with asyncio.timeout(LONGEST_SECONDS):
            while tries < 3:
                await asyncio.sleep(0.01)
        taken.close()
        assert b"200 OK" in await ask(port, HELLO)
    (line,) = [msgspec.json.decode(line) for line in log.getvalue().splitlines()]
    assert (line["level"], line["message"]) == ("ERROR", "metrics cannot be served")
    assert str(port) in line["error"]
    assert "--metrics-port" in line["error"]


def test_the_last_of_several_values_counts() -> None:
    method, request = http_server._parse_request(b"GET /a?x=1&x=2&verbose HTTP/1.1\r\nHost: y\r\n\r\n")
    assert (method, request) == ("GET", HttpRequest("/a", {"x": "2", "verbose": ""}))
    assert text_response("a", HTTPStatus.NOT_FOUND) == HttpResponse(b"a\n", HTTPStatus.NOT_FOUND)
