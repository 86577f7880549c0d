"""Connections to one server, kept alive between requests: aiohttp behind ``http_exchange``.

Idle connections. A watch may send nothing for minutes, and so does a server or a gateway that vanishes without closing its
connections. TCP keepalive distinguishes the two: the kernel probes an idle connection and breaks it when there is no answer.
Without it a controller would act on outdated state until the watch's own time limit.

Writes. The library sends the head of a request together with its body, and reads the body right before. The check of a request
runs at that point. It sends reads, deletions and replacements once more by itself when the server closes the connection before it
answers; a body can be read only once, so no write is sent twice. Reads may be.

Proxies. The library has one TLS context for the server and for a proxy of https://, as Go's clients have.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.payload import BytesPayload
from aiohttp.tracing import Trace
from yarl import URL

from karpenter.kube.cancellation import is_being_cancelled
from karpenter.kube.http_exchange import (
    ConnectionBroken,
    ConnectionNotMade,
    HttpAnswer,
    HttpStream,
    OutgoingRequest,
    encoded_target,
)
from karpenter.kube.proxies import login_header, usable_proxy, without_login

#: Room for the requests in flight and one connection per watch.
_MAX_CONNECTIONS = 128
#: How long a connection without requests is kept. API servers close theirs after 90 s.
_IDLE_SECONDS = 60.0

#: Seconds to connect to one address; until there is a connection at all, with names, further addresses and proxies; and to wait
#: for the next piece of an ordinary answer.
_ADDRESS_TIMEOUT_SECONDS = 10.0
_CONNECT_TIMEOUT_SECONDS = 30.0
_READ_TIMEOUT_SECONDS = 30.0
#: Bytes of one header and number of headers: more than the library's own limits, because gateways add theirs.
_MAX_HEADER_BYTES, _MAX_HEADERS = 65_536, 1_000

#: The first probe after so much silence, the next ones at this distance, given up after so many: 45 s in all.
_KEEPALIVE_IDLE_SECONDS = 15
_KEEPALIVE_INTERVAL_SECONDS = 10
_KEEPALIVE_PROBES = 3

_STREAM_TIMEOUT = aiohttp.ClientTimeout(connect=_CONNECT_TIMEOUT_SECONDS, sock_connect=_ADDRESS_TIMEOUT_SECONDS)
_EXCHANGE_TIMEOUT = aiohttp.ClientTimeout(
    connect=_CONNECT_TIMEOUT_SECONDS, sock_connect=_ADDRESS_TIMEOUT_SECONDS, sock_read=_READ_TIMEOUT_SECONDS
)
#: Failures before a connection stood. Others of the library's errors are derived from the same bases.
_NOT_CONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and what all requests to it share.

    ``url`` may have a path, before those of the requests, and a user with a password. ``headers`` may repeat a name.
    ``query`` is added to that of each request. ``proxy`` is the URL of a proxy, which may have a user, or None.
    ``server_name`` is the name that the server's certificate has to be for, empty for the one in the URL.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    server_name: str = ""


class HttpConnections:
    """Implements ``http_exchange.HttpTransport``. Used on the event loop of its first request."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Raises ``ValueError`` for a server or a proxy that cannot be used."""
        self._endpoint = endpoint
        self._context = context
        authorization = login_header(endpoint.url)
        self._base = without_login(endpoint.url).rstrip("/")
        self._headers = (*endpoint.headers, *([("Authorization", authorization)] if authorization else []))
        self._proxy = usable_proxy(endpoint.proxy)
        self._session: aiohttp.ClientSession | None = None
        self._open_responses: set[aiohttp.ClientResponse] = set()
        self._is_closed = False

    @property
    def server(self) -> str:
        """See ``HttpTransport``."""
        return self._endpoint.url.rstrip("/")

    async def exchange(self, request: OutgoingRequest) -> HttpAnswer:
        """See ``HttpTransport``."""
        async with self._response_to(request, _EXCHANGE_TIMEOUT) as response:
            with _translated_errors():
                return HttpAnswer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(self, request: OutgoingRequest) -> AsyncIterator[HttpStream]:
        """See ``HttpTransport``."""
        async with self._response_to(request, _STREAM_TIMEOUT) as response:
            yield _ResponseStream(response)

    async def aclose(self) -> None:
        """See ``HttpTransport``."""
        self._is_closed = True
        # Without that a reader would wait on: the library closes their connections, but does not wake them.
        for response in tuple(self._open_responses):
            _give_up(response)
        if self._session is not None:
            await self._session.close()
        await asyncio.sleep(0)  # aborted connections are closed with the next turn of the loop

    @asynccontextmanager
    async def _response_to(
        self, request: OutgoingRequest, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer once its head is there."""
        response = await self._send(request, timeout)
        self._open_responses.add(response)
        try:
            yield response
        finally:
            self._open_responses.discard(response)
            _give_up(response)

    async def _send(self, request: OutgoingRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        self._check_open()
        if self._session is None:
            self._session = self._new_session()
        body = None if request.body is None else _CheckedBody(request.body, request.check_permitted)
        try:
            with _translated_errors(body):
                return await self._session.request(
                    request.method,
                    self._url_of(request),
                    data=body,
                    headers=self._headers_of(request),
                    timeout=timeout,
                    allow_redirects=False,
                    server_hostname=self._endpoint.server_name or None,
                    proxy=self._proxy.url,
                    proxy_headers=self._proxy.headers,
                )
        except asyncio.CancelledError:
            if not is_being_cancelled():
                # The library cancels what waits for a connection when it is closed.
                self._check_open()
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionNotMade("the client is closed") from None

    def _url_of(self, request: OutgoingRequest) -> URL:
        query = {**request.query, **self._endpoint.query} if self._endpoint.query else request.query
        return URL(self._base + encoded_target(request.path, query), encoded=True)

    def _headers_of(self, request: OutgoingRequest) -> list[tuple[str, str]]:
        """Those of the request, and what all share. Not the session's headers: a proxy would be shown these, too."""
        shared = [header for header in self._headers if header[0] not in request.headers]
        return [*shared, *request.headers.items()]

    def _new_session(self) -> aiohttp.ClientSession:
        connector = _Connector(
            limit=_MAX_CONNECTIONS,
            keepalive_timeout=_IDLE_SECONDS,
            ssl=self._context,
            socket_factory=_probed_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )


def _give_up(response: aiohttp.ClientResponse) -> None:
    """Close the connection at once, without the TLS closing handshake, unless the response was read to its end."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


class _Connector(aiohttp.TCPConnector):
    """Closes idle connections on which unrequested data arrived: the next request would get it as its answer.

    The library has no public way to inspect them. A test fails if its internals change.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        return None


class _CheckedBody(BytesPayload):
    """A body that is written once, after a check. ``refusal`` says why it was not written, None where it was or will be."""

    def __init__(self, body: bytes, check_permitted: Callable[[], None]) -> None:
        super().__init__(body)
        self._check_permitted = check_permitted
        self.is_written = False
        self.refusal: Exception | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by the library before anything of the request has left."""
        try:
            if self.is_written:
                raise ConnectionBroken("the server closed the connection before it answered")
            self._check_permitted()
            self.is_written = True
            await super().write_with_length(writer, content_length)
        except aiohttp.ClientConnectionResetError:
            # Raised instead of writing: head and body leave in one piece.
            self.refusal = ConnectionNotMade("the server closed the connection")
            raise
        except Exception as refusal:
            self.refusal = refusal
            raise


class _ResponseStream:
    """Implements ``http_exchange.HttpStream``."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while chunk := await self._next_chunk():
            yield chunk

    async def _next_chunk(self) -> bytes:
        """What has arrived; nothing at the end."""
        with _translated_errors():
            try:
                return await self._response.content.readany()
            except RuntimeError as error:  # the library's word for connections that are closed here
                raise ConnectionBroken("the connection was closed") from error


@contextmanager
def _translated_errors(body: _CheckedBody | None = None) -> Iterator[None]:
    """The library's errors as those of ``http_exchange``; where ``body`` was not written, the reason."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if body is not None and body.refusal is not None:
            raise body.refusal from None
        if isinstance(error, _NOT_CONNECTED) or (body is not None and not body.is_written):
            raise ConnectionNotMade(_error_text(error)) from error
        raise ConnectionBroken(_error_text(error)) from error
    except ValueError as error:
        # A header or an address that cannot be sent. The text may hold it.
        raise ConnectionNotMade(f"the request cannot be sent ({type(error).__name__})") from None


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for an address, with the kernel's probes on."""
    family, sort, protocol, *_ = address
    made = socket.socket(family, sort, protocol)
    try:
        for level, option, value in _keepalive_options():
            made.setsockopt(level, option, value)
    except OSError:
        made.close()
        raise
    return made


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
