"""The web server of ``karpenter console``: one page, its data, and a stream of server-sent events. It only reads.

It shows what the kubeconfig's user may read, and listens on loopback. Other users of the machine and pages of other sites reach
loopback, too, so every request needs the secret of the printed address (afterwards a cookie that no other site can send) and
the host name of that address, which a rebound DNS name has not.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from importlib import resources

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from karpenter.cli.console_document import console_document
from karpenter.cli.top_answers import Assessment, assess, explain
from karpenter.cli.top_source import ViewerSource
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.disruption.decide.disruption_problem import DisruptionOptions

_FILES = resources.files("karpenter.cli") / "console_page"
_HOST_NAMES = frozenset({"127.0.0.1", "localhost"})
_REFRESH_SECONDS = 1.0
_ASSESSMENT_PAUSE_SECONDS = 5.0
#: A stream without news says something all the same, so that a viewer who left is noticed.
_KEEP_ALIVE_SECONDS = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ConsoleFeed:
    """The latest document, made once for all viewers."""

    def __init__(self, source: ViewerSource, options: DisruptionOptions) -> None:
        self.options = options
        self.given: ConsoleInput | None = None
        self.document = b""
        self._source = source
        self._assessment = Assessment()
        #: The assessment that the document was made with.
        self._shown = self._assessment
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Keep the document current until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._source.run())
            group.create_task(self._keep_current())
            group.create_task(self._keep_assessing())

    async def _keep_current(self) -> None:
        """The larger the cluster, the longer the pauses: a third of the time at most goes into documents."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.refresh()
            await asyncio.sleep(max(_REFRESH_SECONDS, 2 * (loop.time() - begun)))

    async def refresh(self) -> None:
        """Make the document anew if there is anything new to say."""
        given = self._source.current()
        if given is None or (self.document and given is self.given and self._shown is self._assessment):
            return
        self.given, self._shown = given, self._assessment
        shown = replace(given, placements=self._assessment.placements)
        document = await asyncio.to_thread(self._encoded, ConsoleView(shown))
        async with self._changed:
            self.document = document
            self._changed.notify_all()

    def _encoded(self, view: ConsoleView) -> bytes:
        data = console_document(view, self._assessment.bound_per_hour)
        return msgspec.json.encode({**data, "fault": self._source.fault(), "title": self._source.title})

    async def _keep_assessing(self) -> None:
        while True:
            if self.given is not None:
                self._assessment = await asyncio.to_thread(assess, self.given, self.options)
                await self.refresh()
            await asyncio.sleep(_ASSESSMENT_PAUSE_SECONDS if self.document else _REFRESH_SECONDS / 4)

    async def documents(self) -> AsyncIterator[bytes]:
        """Each new document from the present one on; empty after a while without news."""
        sent = b""
        while True:
            if self.document and self.document != sent:
                sent = self.document
                yield sent
                continue
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                yield b""


def console_app(feed: ConsoleFeed, secret: str) -> Starlette:
    """The application. ``secret``: what the first request has to bring as ``?token=``."""

    async def data(_request: Request) -> Response:
        if not feed.document:
            return PlainTextResponse("waiting for the first objects", 503)
        return Response(feed.document, media_type="application/json")

    async def stream(_request: Request) -> Response:
        return StreamingResponse(_events(feed), media_type="text/event-stream")

    async def explanation(request: Request) -> Response:
        subject = request.query_params.get("subject", "")
        given = feed.given
        if given is None or subject.partition("/")[0] not in ("node", "pod"):
            return PlainTextResponse("expected subject=node/NAME or subject=pod/NAMESPACE/NAME", 400)
        return PlainTextResponse(await asyncio.to_thread(explain, given, subject, feed.options))

    routes = [
        Route("/", _file("console.html", "text/html")),
        Route("/console.js", _file("console.js", "text/javascript")),
        Route("/console.css", _file("console.css", "text/css")),
        Route("/favicon.ico", _no_icon),
        Route("/api/view", data),
        Route("/api/stream", stream),
        Route("/api/explanation", explanation),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, secret=secret)])


async def _no_icon(_request: Request) -> Response:
    """Browsers ask for one, and report what is missing."""
    return Response(status_code=204)


async def _events(feed: ConsoleFeed) -> AsyncIterator[bytes]:
    async for document in feed.documents():
        yield b"data: " + document + b"\n\n" if document else b": nothing new\n\n"


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (_FILES / name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


class _Guard(BaseHTTPMiddleware):
    """Answers only those who know the secret, under a host name of loopback, and sets the headers that confine the page."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        super().__init__(app)
        self._secret = secret
        # Cookies do not know ports: each console has one of its own.
        self._cookie = f"karpenter-console-{sha256(secret.encode()).hexdigest()[:8]}"

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse, let in, or answer."""
        response = self._refusal(request) or self._entrance(request) or await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: Request) -> Response | None:
        if request.url.hostname not in _HOST_NAMES:
            return PlainTextResponse("this host name is not one of the console", 421)
        known = request.query_params.get("token") or request.cookies.get(self._cookie, "")
        if not hmac.compare_digest(known.encode(), self._secret.encode()):
            return PlainTextResponse("open the address that karpenter console printed", 401)
        return None

    def _entrance(self, request: Request) -> Response | None:
        """Swap the token of the address for a cookie, so that the address can be copied without it."""
        if "token" not in request.query_params:
            return None
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict")
        return response
