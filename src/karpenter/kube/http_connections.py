"""Connections to one server, kept alive between requests: aiohttp behind ``http_exchange``.

Silence. A watch says nothing for minutes, and a server or a gateway that vanishes without closing its connections says nothing
either. The kernel can tell the two apart: it probes a silent connection and breaks it when there is no answer. Without that a
controller would go on acting on an old picture until the watch's own limit.

Writes. The library sends the head of a request together with its body, and asks the body for its bytes right before: that is
where the check of a request runs. It sends some methods once more by itself when a kept connection turns out to be closed; a
body gives its bytes once, so that no write is sent twice.
"""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload
from yarl import URL

from karpenter.kube.http_exchange import ConnectionBroken, ConnectionNotMade, HttpAnswer, HttpStream, OutgoingRequest

#: Room for the requests in flight and one connection per watch.
_MAX_CONNECTIONS = 128
#: How long a connection without requests is kept. API servers close theirs after 90 s.
_IDLE_SECONDS = 60.0

#: Seconds to connect, and to wait for the next piece of an ordinary answer.
_CONNECT_TIMEOUT_SECONDS = 10.0
_READ_TIMEOUT_SECONDS = 30.0

#: The first probe after so much silence, the next ones at this distance, given up after so many: 45 s in all.
_KEEPALIVE_IDLE_SECONDS = 15
_KEEPALIVE_INTERVAL_SECONDS = 10
_KEEPALIVE_PROBES = 3

_EXCHANGE_TIMEOUT = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_SECONDS, sock_read=_READ_TIMEOUT_SECONDS)
_STREAM_TIMEOUT = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_SECONDS)
_PROXY_SCHEMES = ("http", "https")
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
    ``query`` is added to that of each request. ``proxy`` is the URL of a proxy or None. ``server_name`` is the name that the
    server's certificate has to be for, empty for the one in the URL.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    server_name: str = ""


class HttpConnections:
    """Implements ``http_exchange.HttpTransport``. Used on the event loop of its first request."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Raises ``ValueError`` for a proxy that cannot be used."""
        _check_proxy(endpoint.proxy)
        self._endpoint = endpoint
        self._context = context
        self._base, self._headers = _base_url(endpoint), _shared_headers(endpoint)
        self._session: aiohttp.ClientSession | None = None

    @property
    def server(self) -> str:
        """See ``HttpTransport``."""
        return self._endpoint.url.rstrip("/")

    async def exchange(self, request: OutgoingRequest) -> HttpAnswer:
        """See ``HttpTransport``."""
        async with self._sent(request, _EXCHANGE_TIMEOUT) as response:
            with _translated_errors():
                return HttpAnswer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(self, request: OutgoingRequest) -> AsyncIterator[HttpStream]:
        """See ``HttpTransport``."""
        async with self._sent(request, _STREAM_TIMEOUT) as response:
            yield _ResponseStream(response)

    async def aclose(self) -> None:
        """See ``HttpTransport``."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _sent(
        self, request: OutgoingRequest, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer once its head is there."""
        if self._session is None:
            self._session = self._new_session()
        query = {**request.query, **self._endpoint.query} if self._endpoint.query else request.query
        body = None if request.body is None else _CheckedBody(request.body, request.check_permitted)
        with _translated_errors(body):
            response = await self._session.request(
                request.method,
                URL(self._base + OutgoingRequest(request.method, request.path, query).target, encoded=True),
                data=body,
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
                proxy=self._endpoint.proxy,
                server_hostname=self._endpoint.server_name or None,
            )
        try:
            yield response
        finally:
            # What was read to its end has given its connection back already.
            response.close()

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=_MAX_CONNECTIONS,
            keepalive_timeout=_IDLE_SECONDS,
            ssl=self._context,
            socket_factory=_probed_socket,
        )
        return aiohttp.ClientSession(
            connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), requote_redirect_url=False
        )


class _CheckedBody(BytesPayload):
    """A body that is written once, after a check. ``refusal`` says why it was not written."""

    def __init__(self, body: bytes, check_permitted: Callable[[], None]) -> None:
        super().__init__(body)
        self._check_permitted = check_permitted
        self._is_written = False
        self.refusal: Exception | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by the library before anything of the request has left."""
        if self._is_written:
            raise ConnectionBroken("the server closed the connection")
        self._is_written = True
        try:
            self._check_permitted()
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
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        if body is not None and body.refusal is not None:
            raise body.refusal from None
        if isinstance(error, _NOT_CONNECTED):
            raise ConnectionNotMade(_error_text(error)) from error
        raise ConnectionBroken(_error_text(error)) from error


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _check_proxy(proxy: str | None) -> None:
    if proxy and urlsplit(proxy).scheme not in _PROXY_SCHEMES:
        shown = proxy.rpartition("@")[2] if "@" in proxy else proxy
        raise ValueError(f"proxy {shown}: only proxies of http:// and https:// can be used, no SOCKS")


def _base_url(endpoint: Endpoint) -> str:
    """The URL before the paths of requests, without user and password."""
    address = urlsplit(endpoint.url)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")


def _shared_headers(endpoint: Endpoint) -> list[tuple[str, str]]:
    """The headers of all requests; those of a request go before them."""
    address = urlsplit(endpoint.url)
    if not (address.username or address.password):
        return list(endpoint.headers)
    login = f"{unquote(address.username or '')}:{unquote(address.password or '')}"
    return [*endpoint.headers, ("Authorization", f"Basic {b64encode(login.encode()).decode('ascii')}")]


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for an address, with the kernel's probes on."""
    family, sort, protocol, *_ = address
    made = socket.socket(family, sort, protocol)
    for level, option, value in _keepalive_options():
        made.setsockopt(level, option, value)
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
