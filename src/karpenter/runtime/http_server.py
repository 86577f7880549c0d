"""Pages over HTTP, for probes, for Prometheus and for people: as little of a web server as that takes.

Probes, scrapes and `curl` ask for one thing and go, so every connection carries one request. A web framework would be
another 15 MB in every replica, and a good part of the time it takes to start.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import structlog

#: How often a port that cannot be had is tried again.
_RETRY_SECONDS = 5.0
#: Time limit for reading a request.
_REQUEST_SECONDS = 5.0
#: Larger bodies are not read: an API server sends at most one page of a list.
_LARGEST_BODY = 64 * 2**20
_METHODS = ("GET", "HEAD")
_log = structlog.get_logger()


@dataclass(frozen=True)
class HttpResponse:
    """What is sent back."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


def text_response(body: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    """Plain text, ending with a line break."""
    return HttpResponse(f"{body}\n".encode(), status)


@dataclass(frozen=True)
class HttpRequest:
    """A request: its path, the query's names with their last values, the body of a POST."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


#: Answers a request.
PageHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]

_NOT_FOUND = text_response("not found", HTTPStatus.NOT_FOUND)


@dataclass(frozen=True)
class ListenAddress:
    """A port, the flag that chooses it, and what cannot be done without it (as a log line says)."""

    port: int
    flag: str
    failure_message: str


class HttpServer:
    """Serves pages by path on one port, on the addresses of all families. ``receivers`` answer POST."""

    def __init__(
        self,
        address: ListenAddress,
        pages: Mapping[str, PageHandler],
        receivers: Mapping[str, PageHandler] = {},
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._pages = pages
        self._receivers = receivers
        self._tls = tls

    @property
    def _methods(self) -> tuple[str, ...]:
        return (*_METHODS, "POST") if self._receivers else _METHODS

    async def run(self) -> None:
        """Serve until cancelled, as soon as the port is free; until then one log line gives the reason."""
        async with await self._listen() as server:
            await server.serve_forever()

    async def respond(self, request: HttpRequest, method: str = "GET") -> HttpResponse:
        """The page, or that there is none."""
        page = (self._receivers if method == "POST" else self._pages).get(request.path)
        return _NOT_FOUND if page is None else await page(request)

    async def _listen(self) -> asyncio.Server:
        said = ""
        while True:
            try:
                return await self._bind()
            except OSError as error:
                why = _explain_bind_error(error, self._address)
                if why != said:
                    _log.error(self._address.failure_message, error=why)
                said = why
                await asyncio.sleep(_RETRY_SECONDS)

    async def _bind(self) -> asyncio.Server:
        """Listen on the addresses of all families, as probes come over the pod's own, whichever it has."""
        try:
            return await asyncio.start_server(self._serve, None, self._address.port, ssl=self._tls)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # A kernel with IPv6 support that is switched off.
            return await asyncio.start_server(self._serve, "0.0.0.0", self._address.port, ssl=self._tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, request = _parse_request(head)
                if method in self._methods:
                    request = replace(request, body=await reader.readexactly(_body_size(head)))
            answer = await self._reply(method, request)
            writer.write(_response_head(answer) + (b"" if method == "HEAD" else answer.body))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        finally:
            writer.close()

    async def _reply(self, method: str, request: HttpRequest) -> HttpResponse:
        if method not in self._methods:
            return text_response(f"only {' and '.join(self._methods)} are answered", HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await self.respond(request, method)
        except Exception as error:
            # A page that fails is a mistake of ours; probes and scrapes must go on (OPS-371).
            _log.error("page cannot be served", path=request.path, error=repr(error))
            return text_response("this page failed; the log says why", HTTPStatus.INTERNAL_SERVER_ERROR)


def _parse_request(head: bytes) -> tuple[str, HttpRequest]:
    """Method and request of a request's head; what is no HTTP has neither."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split()
    if len(words) != 3:
        return "", HttpRequest("")
    target = urlsplit(words[1])
    return words[0], HttpRequest(target.path, dict(parse_qsl(target.query, keep_blank_values=True)))


def _body_size(head: bytes) -> int:
    """Bytes of the body after a request's head. Raises ``LimitOverrunError`` where it is too large."""
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length" and value.strip().isdecimal():
            if int(value) > _LARGEST_BODY:
                raise asyncio.LimitOverrunError("body too large", 0)
            return int(value)
    return 0


def _response_head(response: HttpResponse) -> bytes:
    lines = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def _explain_bind_error(error: OSError, address: ListenAddress) -> str:
    port, mend = address.port, f"choose another with {address.flag}, or 0 for none"
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} is taken by another process: end that, or {mend}"
        case errno.EACCES:
            return f"port {port} is not allowed to this user: {mend}"
    return f"port {port} cannot be listened on ({error}): {mend}"
