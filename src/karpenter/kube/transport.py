"""Connections to an API server: kept alive, renewed with the credentials, and through a proxy where there is one.

Silence. A watch says nothing for minutes, and a server or a gateway that vanishes without closing its connections says nothing
either. The kernel can tell the two apart: it probes a silent connection and breaks it when nobody answers. Without that a
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
from karpenter.kube.credentials import Credentials, CredentialsRefused, Identity
from karpenter.kube.sources import Unreadable

#: Room for the requests in flight and one connection per watch.
_MOST_CONNECTIONS = 128

#: The first probe after so much silence, the next ones at this distance, given up after so many: 45 s in all.
_FIRST_PROBE_SECONDS = 15
_PROBE_SECONDS = 10
_PROBES = 3

_UNAUTHORIZED = 401

#: Opens connections under a TLS context.
Open = Callable[[ssl.SSLContext], httpx2.AsyncBaseTransport]


def lively(proxy: str | None, verify: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    """Connections that notice when the other side is gone, through ``proxy`` (a URL) if there is one."""
    return httpx2.AsyncHTTPTransport(
        verify=verify,
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS),
        proxy=proxy,
        socket_options=tuple(_probing()),
    )


def proxy_for(server: str) -> str | None:
    """The proxy that ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name for a URL.

    As Go programs read them, for pods get the same variables whatever they are written in: ``NO_PROXY`` may hold networks
    (``10.0.0.0/8``), and this machine is never asked through a proxy.
    """
    address = urlsplit(server)
    found = getproxies()
    if _is_near(address.hostname or "", found.get("no", "")) or proxy_bypass(address.netloc.rpartition("@")[2]):
        return None
    proxy = found.get(address.scheme) or found.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _is_near(host: str, exempt: str) -> bool:
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


class Authenticated(httpx2.AsyncBaseTransport):
    """Sends requests as an identity, over connections opened by ``open_pool`` under the TLS context of the moment."""

    def __init__(self, identity: Identity, trust: tls.Trust, open_pool: Open) -> None:
        """Raises ``CredentialsRefused``, ``tls.Unusable`` and ``sources.Unreadable`` for what is unusable from the beginning."""
        self._identity = identity
        self._trust = trust
        self._open_pool = open_pool
        first = identity.at_hand()
        self._papers = tls.papers(trust, first.certificate, first.key)
        self._pool = _Pool(open_pool(tls.context(trust, self._papers)))
        #: Papers nothing can be done with, such as a certificate whose new key has not been written yet, and what is wrong.
        self._unusable: tuple[tls.Papers, str] | None = None
        self._former: list[_Pool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send as the current credentials, and once more as renewed ones when they are refused."""
        shown = await self._identity.current()
        response = await self._sent(request, shown)
        if response.status_code != _UNAUTHORIZED:
            return response
        renewed = await self._instead(shown, response)
        if renewed == shown:
            return response
        await response.aclose()
        return await self._sent(request, renewed)

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in (self._pool, *self._former):
            await pool.aclose()

    async def _instead(self, shown: Credentials, response: httpx2.Response) -> Credentials:
        try:
            if self._unusable is not None:
                raise CredentialsRefused(self._unusable[1])
            return await self._identity.renewed(shown)
        except BaseException:
            await response.aclose()
            raise

    async def _sent(self, request: httpx2.Request, shown: Credentials) -> httpx2.Response:
        if shown.authorization:
            request.headers["Authorization"] = shown.authorization
        if self._trust.server_name:
            request.extensions["sni_hostname"] = self._trust.server_name
        pool = await self._pool_for(shown)
        try:
            return await pool.send(request)
        except httpx2.ConnectError as error:
            if self._unusable is None:
                raise
            raise httpx2.ConnectError(f"{error}; {self._unusable[1]}") from error

    async def _pool_for(self, shown: Credentials) -> _Pool:
        """Connections under the present papers. While those are unusable the former ones go on."""
        try:
            papers = tls.papers(self._trust, shown.certificate, shown.key)
        except Unreadable as error:
            raise CredentialsRefused(str(error)) from error
        if papers == self._papers:
            self._unusable = None
        elif self._unusable is None or self._unusable[0] != papers:
            await self._renew(papers)
        return self._pool

    async def _renew(self, papers: tls.Papers) -> None:
        try:
            context = tls.context(self._trust, papers)
        except tls.Unusable as error:
            self._unusable = papers, str(error)
            return
        former, self._pool = self._pool, _Pool(self._open_pool(context))
        self._papers, self._unusable = papers, None
        self._former = [pool for pool in (*self._former, former) if not pool.is_idle]
        await former.retire()


class _Pool:
    """Connections that are closed once they are retired and nothing is under way on them any more."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self._under_way = 0
        self._is_retired = False

    @property
    def is_idle(self) -> bool:
        return self._under_way == 0

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        self._under_way += 1
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException:
            await self._ended()
            raise
        body = response.stream
        if not isinstance(body, httpx2.AsyncByteStream):
            raise TypeError("the answer to an asynchronous request has an asynchronous body")
        response.stream = _Tracked(body, self._ended)
        return response

    async def retire(self) -> None:
        self._is_retired = True
        await self._close_if_done()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ended(self) -> None:
        self._under_way -= 1
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._is_retired and self.is_idle:
            await self._transport.aclose()


class _Tracked(httpx2.AsyncByteStream):
    """The body of an answer; says when it has been closed."""

    def __init__(self, body: httpx2.AsyncByteStream, ended: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._ended = ended
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
                await self._ended()


def _probing() -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    # Not every platform has each of them, and one calls the first by another name.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _FIRST_PROBE_SECONDS),
        (("TCP_KEEPINTVL",), _PROBE_SECONDS),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        option = next((number for name in names if (number := getattr(socket, name, None)) is not None), None)
        if option is not None:
            yield socket.IPPROTO_TCP, option, value
