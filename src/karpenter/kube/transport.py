"""Requests to an API server as an identity, over connections that are renewed with the credentials.

Each request shows the identity's current credentials; one that is not accepted is sent once more with renewed ones. A client
certificate belongs to a connection, and a server that has seen it expire refuses every further request there. So when
certificates or authorities change, new requests go over new connections; what is under way on the old ones ends by itself.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from karpenter.kube import tls
from karpenter.kube.credentials import Credentials, CredentialsRefused, Identity
from karpenter.kube.http_exchange import ConnectionNotMade, HttpAnswer, HttpStream, HttpTransport, OutgoingRequest
from karpenter.kube.reloaded_files import SourceUnreadable

_UNAUTHORIZED = 401

#: Opens connections under a TLS context.
TransportFactory = Callable[[ssl.SSLContext], HttpTransport]


class AuthenticatedTransport:
    """Sends requests as an identity, over connections opened by ``open_pool`` under the TLS context of the moment.

    Implements ``HttpTransport``. Both ways to send raise ``CredentialsRefused`` as well.
    """

    def __init__(self, identity: Identity, trust: tls.ServerTrust, open_pool: TransportFactory) -> None:
        """Raises ``CredentialsRefused``, ``UnusableCertificate`` and ``SourceUnreadable`` for what is unusable from the start."""
        self._identity = identity
        self._trust = trust
        self._open_pool = open_pool
        first = identity.available()
        self._material = tls.current_material(trust, first.certificate, first.key)
        self._pool = _ConnectionPool(open_pool(tls.ssl_context(trust, self._material)))
        #: Material nothing can be done with, such as a certificate whose new key has not been written yet, and what is wrong.
        self._unusable_material: tuple[tls.TlsMaterial, str] | None = None
        self._retired_pools: list[_ConnectionPool] = []

    @property
    def server(self) -> str:
        """See ``HttpTransport``."""
        return self._pool.transport.server

    async def exchange(self, request: OutgoingRequest) -> HttpAnswer:
        """Send as the current credentials, and once more as renewed ones when they are refused."""
        shown = await self._identity.current()
        answer = await self._exchange_as(shown, request)
        if answer.status != _UNAUTHORIZED:
            return answer
        renewed = await self._refreshed_credentials(shown)
        return answer if renewed == shown else await self._exchange_as(renewed, request)

    @asynccontextmanager
    async def stream(self, request: OutgoingRequest) -> AsyncIterator[HttpStream]:
        """As ``exchange``, with the body of the answer still to come."""
        shown = await self._identity.current()
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._stream_as(shown, request))
            if answer.status == _UNAUTHORIZED:
                renewed = await self._refreshed_credentials(shown)
                if renewed != shown:
                    await stack.aclose()
                    answer = await stack.enter_async_context(self._stream_as(renewed, request))
            yield answer

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in (self._pool, *self._retired_pools):
            await pool.transport.aclose()

    async def _refreshed_credentials(self, refused: Credentials) -> Credentials:
        if self._unusable_material is not None:
            raise CredentialsRefused(self._unusable_material[1])
        return await self._identity.refreshed(refused)

    async def _exchange_as(self, credentials: Credentials, request: OutgoingRequest) -> HttpAnswer:
        async with self._pool_for(credentials) as transport:
            return await transport.exchange(_authorized(request, credentials))

    @asynccontextmanager
    async def _stream_as(self, credentials: Credentials, request: OutgoingRequest) -> AsyncIterator[HttpStream]:
        async with (
            self._pool_for(credentials) as transport,
            transport.stream(_authorized(request, credentials)) as answer,
        ):
            yield answer

    @asynccontextmanager
    async def _pool_for(self, credentials: Credentials) -> AsyncIterator[HttpTransport]:
        """Connections under the present material, in use until it is left. While that is unusable the former ones go on."""
        try:
            material = tls.current_material(self._trust, credentials.certificate, credentials.key)
        except SourceUnreadable as error:
            raise CredentialsRefused(str(error)) from error
        if material == self._material:
            self._unusable_material = None
        elif self._unusable_material is None or self._unusable_material[0] != material:
            await self._replace_pool(material)
        try:
            async with self._pool.in_use() as transport:
                yield transport
        except ConnectionNotMade as error:
            if self._unusable_material is None:
                raise
            raise ConnectionNotMade(f"{error}; {self._unusable_material[1]}") from error

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

    def __init__(self, transport: HttpTransport) -> None:
        self.transport = transport
        self._requests_in_flight = 0
        self._is_retired = False

    @property
    def is_idle(self) -> bool:
        return self._requests_in_flight == 0

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[HttpTransport]:
        self._requests_in_flight += 1
        try:
            yield self.transport
        finally:
            self._requests_in_flight -= 1
            await self._close_if_done()

    async def retire(self) -> None:
        self._is_retired = True
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._is_retired and self.is_idle:
            await self.transport.aclose()


def _authorized(request: OutgoingRequest, credentials: Credentials) -> OutgoingRequest:
    if not credentials.authorization:
        return request
    return replace(request, headers={**request.headers, "Authorization": credentials.authorization})
