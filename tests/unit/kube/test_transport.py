"""Connections to the API server: probed while they are silent, and through the proxy where there is one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from controlplane.harness import ControlPlane
from karpenter.api.kinds import CONFIG_MAP
from karpenter.kube import config, errors
from karpenter.kube.client import KubeClient
from karpenter.kube.http_exchange import OutgoingRequest
from karpenter.kube.proxies import proxy_for
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def noticed_after(client: KubeClient) -> float:
    """Seconds until the kernel gives up a connection whose other side does not answer any more; 0 for never."""
    async with client._transport.stream(OutgoingRequest("GET", "/api/v1/namespaces", {"watch": "true"})) as answer:
        assert answer.status == 200
        connection = answer._response.connection.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return 0.0
        idle, distance, probes = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        return float(idle + distance * probes)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the platform names its options otherwise")
async def test_a_server_that_vanishes_is_noticed_within_a_minute(tmp_path: Path) -> None:
    async with serving(MemoryServer(SystemClock())) as url:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        async with config.connect(config.load(str(path))) as client:
            assert await noticed_after(client) == 45


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the platform names its options otherwise")
async def test_a_real_server_is_probed_too_with_its_certificate_and_our_token_checked(
    control_plane: ControlPlane,
) -> None:
    async with control_plane.client() as client:
        assert await noticed_after(client) == 45


@pytest.mark.parametrize(
    ("variables", "server", "expected"),
    [
        ({}, "https://api:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://api:6443", "http://proxy:3128"),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://api:6443", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://api:6443", None),
        ({"ALL_PROXY": "http://proxy:3128"}, "https://api:6443", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,.example"}, "https://api.example:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, "https://api:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc, 10.96.0.0/12"}, "https://10.96.0.1:443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "fd00::/8"}, "https://[fd00::1]:443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "a/b,10.0.0.0/33"}, "https://10.0.0.1", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.96.0.0/12"}, "https://api:443", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://127.0.0.1:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://localhost:6443", None),
    ],
    ids=[
        "none",
        "https",
        "bare-name",
        "other-scheme",
        "all",
        "exempt-domain",
        "exempt-address",
        "exempt-all",
        "exempt-network",
        "exempt-network-of-ipv6",
        "no-network",
        "not-an-address",
        "this-machine",
        "this-machine-by-name",
    ],
)
def test_the_environments_proxy_is_used(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], server: str, expected: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(server) == expected


@pytest.mark.parametrize("proxy", ["ftp://proxy:21", "socks5://proxy:1080"])
def test_a_proxy_that_cannot_be_used_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for("http://api.test"))
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(config.ConfigError, match=r"kubeconfig.*(ftp|SOCKS)"):
        config.connect(config.load(str(path)))


async def test_requests_go_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for("http://api.test"))
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        async with config.connect(config.load(str(path))) as client:
            assert (await client._transport.exchange(OutgoingRequest("GET", "/version"))).status == 204
    assert asked == [b"GET http://api.test/version HTTP/1.1\r\n"]


async def test_requests_given_up_leave_their_connections_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes requests and answers none must not use up what the next server needs."""
    monkeypatch.setattr("karpenter.kube.client._REQUEST_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("karpenter.kube.http_connections._MAX_CONNECTIONS", 4)
    answered = b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"metadata":{"name":"a"}}'
    is_well = False
    serving: set[asyncio.StreamWriter] = set()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                if is_well:
                    writer.write(answered)
        writer.transport.abort()
        serving.discard(writer)

    path = tmp_path / "kubeconfig"
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        path.write_text(kubeconfig_for(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"))
        async with config.connect(config.load(str(path))) as client:
            requests = [client.delete(CONFIG_MAP, "a", "ns") for _ in range(20)]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            assert all(isinstance(outcome, errors.ServerUnavailable) for outcome in outcomes)
            is_well = True
            monkeypatch.setattr("karpenter.kube.client._REQUEST_TIMEOUT_SECONDS", 10.0)
            assert (await client.get(CONFIG_MAP, "a", "ns")).metadata.name == "a"
        async with asyncio.timeout(10):
            while serving:
                await asyncio.sleep(0.01)
