"""Requests over kept connections, against a real socket: what is sent, and what is never sent twice."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

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
