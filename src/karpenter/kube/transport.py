"""Connections to an API server: kept alive, renewed with the credentials, and through a proxy where there is one.

Silence. A watch says nothing for minutes, and a server or a gateway that vanishes without closing its connections says nothing
either. The kernel can tell the two apart: it probes a silent connection and breaks it when there is no answer. Without that a
controller would go on acting on an old picture until the watch's own limit.

Credentials. Each request shows the identity's current ones; one that is not accepted is sent once more with renewed ones. A
client certificate belongs to a connection, and a server that has seen it expire refuses every further request there. So when
certificates or authorities change, new requests go over new connections; what is under way on the old ones ends by itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from karpenter.kube import tls
from karpenter.kube.buffered_streams import use_buffered_streams
from karpenter.kube.credentials import Credentials, CredentialsRefused, Identity
from karpenter.kube.reloaded_files import SourceUnreadable

#: Room for the requests in flight and one connection per watch.
_MAX_CONNECTIONS = 128

#: The first probe after so much silence, the next ones at this distance, given up after so many: 45 s in all.
_KEEPALIVE_IDLE_SECONDS = 15
_KEEPALIVE_INTERVAL_SECONDS = 10
_KEEPALIVE_PROBES = 3

_UNAUTHORIZED = 401

#: Opens connections under a TLS context.
TransportFactory = Callable[[ssl.SSLContext], httpx2.AsyncBaseTransport]


def keepalive_transport(proxy: str | None, verify: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    """Connections that notice when the other side is gone, through ``proxy`` (a URL) if there is one."""
    transport = httpx2.AsyncHTTPTransport(
        verify=verify,
        limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS),
        proxy=proxy,
        socket_options=tuple(_keepalive_options()),
    )
    return use_buffered_streams(transport)


def proxy_for(server: str) -> str | None:
    """The proxy that ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name for a URL.

    As Go programs read them, for pods get the same variables whatever they are written in: ``NO_PROXY`` may hold networks
    (``10.0.0.0/8``), and the local host is never reached through a proxy.
    """
    address = urlsplit(server)
    proxies = getproxies()
    if _bypasses_proxy(address.hostname or "", proxies.get("no", "")) or proxy_bypass(
        address.netloc.rpartition("@")[2]
    ):
        return None
    proxy = proxies.get(address.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _bypasses_proxy(host: str, exempt: str) -> bool:
    try:
        ip = ip_address(host)
    except ValueError:
        return host == "localhost"
    return ip.is_loopback or any(ip in network for network in _networks(exempt))


def _networks(exempt: str) -> Iterator[IPv4Network | IPv6Network]:
    for entry in exempt.split(","):
        if "/" in entry:
            # What is no network is for others to match, or a mistake that exempts nothing.
            with suppress(ValueError):
                yield ip_network(entry.strip(), strict=False)


class AuthenticatedTransport(httpx2.AsyncBaseTransport):
    """Sends requests as an identity, over connections opened by ``open_pool`` under the TLS context of the moment."""

    def __init__(self, identity: Identity, trust: tls.ServerTrust, open_pool: TransportFactory) -> None:
        """Raises ``CredentialsRefused``, ``tls.Unusable`` and ``sources.Unreadable`` for what is unusable from the beginning."""
        self._identity = identity
        self._trust = trust
        self._open_pool = open_pool
        first = identity.available()
        self._material = tls.current_material(trust, first.certificate, first.key)
        self._pool = _ConnectionPool(open_pool(tls.ssl_context(trust, self._material)))
        #: Papers nothing can be done with, such as a certificate whose new key has not been written yet, and what is wrong.
        self._unusable_material: tuple[tls.TlsMaterial, str] | None = None
        self._retired_pools: list[_ConnectionPool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send as the current credentials, and once more as renewed ones when they are refused."""
        shown = await self._identity.current()
        response = await self._send(request, shown)
        if response.status_code != _UNAUTHORIZED:
            return response
        renewed = await self._refreshed_credentials(shown, response)
        if renewed == shown:
            return response
        await response.aclose()
        return await self._send(request, renewed)

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in (self._pool, *self._retired_pools):
            await pool.aclose()

    async def _refreshed_credentials(self, refused: Credentials, response: httpx2.Response) -> Credentials:
        try:
            if self._unusable_material is not None:
                raise CredentialsRefused(self._unusable_material[1])
            return await self._identity.refreshed(refused)
        except BaseException:
            await response.aclose()
            raise

    async def _send(self, request: httpx2.Request, credentials: Credentials) -> httpx2.Response:
        if credentials.authorization:
            request.headers["Authorization"] = credentials.authorization
        if self._trust.server_name:
            request.extensions["sni_hostname"] = self._trust.server_name
        pool = await self._pool_for(credentials)
        try:
            return await pool.send(request)
        except httpx2.ConnectError as error:
            if self._unusable_material is None:
                raise
            raise httpx2.ConnectError(f"{error}; {self._unusable_material[1]}") from error

    async def _pool_for(self, credentials: Credentials) -> _ConnectionPool:
        """Connections under the present papers. While those are unusable the former ones go on."""
        try:
            papers = tls.current_material(self._trust, credentials.certificate, credentials.key)
        except SourceUnreadable as error:
            raise CredentialsRefused(str(error)) from error
        if papers == self._material:
            self._unusable_material = None
        elif self._unusable_material is None or self._unusable_material[0] != papers:
            await self._replace_pool(papers)
        return self._pool

    async def _replace_pool(self, material: tls.TlsMaterial) -> None:
        try:
            context = tls.ssl_context(self._trust, material)
        except tls.UnusableCertificate as error:
            self._unusable_material = material, str(error)
            return
        former, self._pool = self._pool, _ConnectionPool(self._open_pool(context))
        self._material, self._unusable_material = material, None
        self._retired_pools = [pool for pool in (*self._retired_pools, former) if not pool.is_idle]
        await former.retire()


class _ConnectionPool:
    """Connections that are closed once they are retired and nothing is under way on them any more."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self._requests_in_flight = 0
        self._is_retired = False

    @property
    def is_idle(self) -> bool:
        return self._requests_in_flight == 0

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        self._requests_in_flight += 1
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException:
            await self._on_request_done()
            raise
        body = response.stream
        if not isinstance(body, httpx2.AsyncByteStream):
            raise TypeError("the answer to an asynchronous request has an asynchronous body")
        response.stream = _TrackedBody(body, self._on_request_done)
        return response

    async def retire(self) -> None:
        self._is_retired = True
        await self._close_if_done()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _on_request_done(self) -> None:
        self._requests_in_flight -= 1
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._is_retired and self.is_idle:
            await self._transport.aclose()


class _TrackedBody(httpx2.AsyncByteStream):
    """The body of an answer; says when it has been closed."""

    def __init__(self, body: httpx2.AsyncByteStream, on_closed: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._on_closed = on_closed
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._body.aclose()
            finally:
                await self._on_closed()


def _keepalive_options() -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    # Not every platform has each of them, and one calls the first by another name.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _KEEPALIVE_IDLE_SECONDS),
        (("TCP_KEEPINTVL",), _KEEPALIVE_INTERVAL_SECONDS),
        (("TCP_KEEPCNT",), _KEEPALIVE_PROBES),
    ):
        option = next((number for name in names if (number := getattr(socket, name, None)) is not None), None)
        if option is not None:
            yield socket.IPPROTO_TCP, option, value
