"""Requests over persistent connections, against a real socket: what is sent, and what is never sent twice."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from karpenter.api.kinds import CONFIG_MAP
from karpenter.kube.client import KubeClient
from karpenter.kube.http_connections import Endpoint, HttpConnections
from karpenter.kube.http_exchange import ConnectionBroken, ConnectionNotMade, OutgoingRequest
from support.recording_server import RecordingServer


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    async with RecordingServer().serving() as started:
        yield started


@pytest.fixture
async def connections(server: RecordingServer) -> AsyncIterator[HttpConnections]:
    opened = HttpConnections(Endpoint(server.url), ssl.create_default_context())
    yield opened
    await opened.aclose()


def patch(body: bytes = b"body") -> OutgoingRequest:
    return OutgoingRequest("PATCH", "/x", body=body)


async def test_requests_share_a_connection_and_a_closed_one_is_replaced(
    server: RecordingServer, connections: HttpConnections
) -> None:
    """Nothing was sent over one that was closed a moment ago, so the client sends it again."""
    client = KubeClient(connections)
    for _ in range(2):
        await client.patch(CONFIG_MAP, "a", {}, "ns")
    assert len(server.connections) == 1
    await server.close_connections()
    await client.patch(CONFIG_MAP, "a", {}, "ns")
    assert len(server.connections) == 2
    assert [body for _, body in server.requests] == [b"{}"] * 3


@pytest.mark.parametrize("method", ["DELETE", "PUT", "POST", "PATCH"])
async def test_a_write_whose_connection_breaks_is_not_sent_again(
    server: RecordingServer, connections: HttpConnections, method: str
) -> None:
    """The library repeats what HTTP calls idempotent, and what was deleted or replaced meanwhile may be another object."""
    await connections.exchange(patch())
    server.refusals = 1
    with pytest.raises(ConnectionBroken):
        await connections.exchange(OutgoingRequest(method, "/x", body=b"{}"))
    assert [line.split()[0] for line, _ in server.requests] == ["PATCH", method]
    assert (await connections.exchange(patch())).is_success


async def test_nothing_of_a_request_leaves_that_its_check_refuses(
    server: RecordingServer, connections: HttpConnections
) -> None:
    """OPS-361: the check runs once the connection is there, right before the first byte."""

    def refuse() -> None:
        raise PermissionError("expired")

    await connections.exchange(patch())
    with pytest.raises(PermissionError, match="expired"):
        await connections.exchange(OutgoingRequest("PATCH", "/x", body=b"refused", check_permitted=refuse))
    assert (await connections.exchange(patch(b"after"))).is_success
    assert [body for _, body in server.requests] == [b"body", b"after"]


async def test_a_server_that_is_not_there_got_nothing() -> None:
    async with RecordingServer().serving() as gone:
        pass
    connections = HttpConnections(Endpoint(gone.url), ssl.create_default_context())
    with pytest.raises(ConnectionNotMade):
        await connections.exchange(patch())
    await connections.aclose()


async def test_path_and_query_are_encoded_behind_those_of_the_endpoint(server: RecordingServer) -> None:
    endpoint = Endpoint(f"{server.url}/clusters/one/", query={"dryRun": "All"})
    connections = HttpConnections(endpoint, ssl.create_default_context())
    await connections.exchange(OutgoingRequest("GET", "/apis/a b", {"labelSelector": "app=web,x in (1,2)", "q": "ü"}))
    await connections.aclose()
    assert server.requests[0][0] == (
        "GET /clusters/one/apis/a%20b?labelSelector=app%3Dweb%2Cx+in+%281%2C2%29&q=%C3%BC&dryRun=All HTTP/1.1"
    )


@pytest.mark.parametrize(("own", "expected"), [({}, "Basic am86eA=="), ({"Authorization": "Bearer t"}, "Bearer t")])
async def test_user_and_password_of_a_url_are_shown_where_a_request_has_nothing_else(
    server: RecordingServer, own: dict[str, str], expected: str
) -> None:
    endpoint = Endpoint(server.url.replace("http://", "http://jo:x@"))
    connections = HttpConnections(endpoint, ssl.create_default_context())
    await connections.exchange(OutgoingRequest("GET", "/x", headers=own))
    await connections.aclose()
    assert [value for name, value in server.heads[0] if name == "authorization"] == [expected]


async def test_the_body_of_a_stream_comes_in_pieces(server: RecordingServer, connections: HttpConnections) -> None:
    async with connections.stream(OutgoingRequest("GET", "/x")) as stream:
        assert (stream.status, stream.headers["content-TYPE"]) == (200, "application/json")
        assert b"".join([chunk async for chunk in stream.chunks()]) == b'{"metadata":{"name":"a"}}'


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_is_shown_its_own_login_and_nothing_of_the_servers(scheme: str) -> None:
    """Neither the password of the API server nor whom requests act for; the answer is no proxy's, so nothing was sent."""
    async with RecordingServer().serving() as proxy:
        endpoint = Endpoint(
            f"{scheme}://jo:apipassword@api.test",
            (("Impersonate-User", "admin"),),
            proxy=proxy.url.replace("http://", "http://user:s%40cret@"),
        )
        connections = HttpConnections(endpoint, ssl.create_default_context())
        with suppress(ConnectionNotMade):
            await connections.exchange(patch())
        await connections.aclose()
        head = dict(proxy.heads[0])
    assert head["proxy-authorization"] == "Basic dXNlcjpzQGNyZXQ="
    if scheme == "https":
        assert proxy.requests[0][0] == "CONNECT api.test:443 HTTP/1.1"
        assert not {"authorization", "impersonate-user"} & head.keys()


@pytest.mark.parametrize("first_line", [b"HTTP/1.1 407 Auth", b"junk"])
async def test_the_password_of_a_proxy_is_in_no_error(first_line: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first_line + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        endpoint = Endpoint("https://api.test", proxy=f"http://user:s%40cret@127.0.0.1:{port}")
        connections = HttpConnections(endpoint, ssl.create_default_context())
        with pytest.raises(ConnectionNotMade) as raised:
            await connections.exchange(patch())
        await connections.aclose()
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize("proxy", ["http://user:secret@proxy:bad", "socks5://user:secret@proxy:1080", "http://[secret"])
def test_an_unusable_proxy_is_reported_at_once_without_its_password(proxy: str) -> None:
    with pytest.raises(ValueError, match="proxy") as raised:
        HttpConnections(Endpoint("https://api.test", proxy=proxy), ssl.create_default_context())
    assert "secret" not in str(raised.value)


async def test_closing_ends_what_is_under_way(server: RecordingServer) -> None:
    """A watch, an answer of which a part has come, and whatever is asked afterwards."""
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{}"
    connections = HttpConnections(Endpoint(server.url), ssl.create_default_context())
    reading = asyncio.create_task(connections.exchange(OutgoingRequest("GET", "/half")))
    async with connections.stream(OutgoingRequest("GET", "/watch")) as stream, asyncio.timeout(30):
        chunks = stream.chunks()
        assert await anext(chunks) == b"{}"
        waiting = asyncio.create_task(anext(chunks))
        while len(server.requests) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        await connections.aclose()
        for task in (reading, waiting):
            with pytest.raises(ConnectionBroken):
                await task
    with pytest.raises(ConnectionNotMade, match="closed"):
        await connections.exchange(patch())


async def test_an_unrequested_answer_is_no_answer_to_the_next_request(
    server: RecordingServer, connections: HttpConnections
) -> None:
    """A gateway says that it waited in vain; that goes for no request after it."""
    await connections.exchange(patch())
    server.connections[0].write(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n")
    await server.connections[0].drain()
    await asyncio.sleep(0.05)
    assert [(await connections.exchange(patch())).status for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("token", ["a\nb", "a\x00b"])
async def test_a_header_that_cannot_be_sent_is_a_failure_like_others(connections: HttpConnections, token: str) -> None:
    """A file with a token may be written half."""
    with pytest.raises(ConnectionNotMade) as raised:
        await connections.exchange(OutgoingRequest("GET", "/x", headers={"Authorization": token}))
    assert token not in str(raised.value)


async def test_gateways_may_add_many_and_long_headers(server: RecordingServer, connections: HttpConnections) -> None:
    added = b"".join(b"X-%d: %s\r\n" % (number, b"v" * 100) for number in range(300)) + b"X-Long: " + b"v" * 20_000
    server.answer = b"HTTP/1.1 200 OK\r\n" + added + b"\r\nContent-Length: 0\r\n\r\n"
    assert (await connections.exchange(patch())).is_success
