"""The web server of the console: the page, its data, a stream of server-sent events, questions, and actions.

Everything that reads is a GET. Actions are a POST with a header that only the page itself can send, so other sites cannot act.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from karpenter.api.core import ConfigMap
from karpenter.console.budget_calendar import budget_calendar
from karpenter.console.cluster_questions import UnanswerableQuestion, answer_question
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.history.history_store import HistoryStore
from karpenter.history.stored_ledger import LedgerBounds, ledger_document, stored_ledger
from karpenter.kube.errors import Forbidden, KubeError
from karpenter.kube.protocol import Kube
from karpenter.model.budget_windows import TimeSpan
from karpenter.webconsole import console_document, history_document, question_document
from karpenter.webconsole.console_actions import (
    ActionKind,
    ConsoleAction,
    UnknownAction,
    cluster_freeze,
    kubectl_line,
    parse_action,
    perform,
)
from karpenter.webconsole.console_feed import ConsoleFeed, ConsoleFeeds, FeedFault
from karpenter.webconsole.feed_limits import StreamSlots, TooManyViewers
from karpenter.webconsole.viewer_access import Refusal, SecretLinkAccess, Viewer, ViewerAccess

_ASSETS = resources.files("karpenter.webconsole") / "assets"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ONLY_TLS = "max-age=31536000"
#: Only a script of this page can send it: for other sites it needs a permission that no answer gives.
ACTION_HEADER = "X-Karpenter-Console"
_MAX_BODY_BYTES = 10_000
_MAX_HISTORY_HOURS = 24 * 90
_MAX_HISTORY_POINTS = 500
_MAX_HISTORY_ROWS = 500
_MAX_LEDGER_DAYS = 90
_LEDGER_BOUNDS = LedgerBounds(samples=20_000, names=500, decisions=2_000)
_MAX_CALENDAR_DAYS = 14
#: Questions and explanations at once: each takes a scheduling pass.
_CONCURRENT_PASSES = 2

#: The text of an explanation of ``node/NAME`` or ``pod/NAMESPACE/NAME``.
Explain = Callable[[ConsoleInput, str, DisruptionOptions], str]
#: A connection with the rights of a viewer.
ActAs = Callable[[Viewer], AbstractAsyncContextManager[Kube]]
#: Why the controller would ignore a wake, by a connection with the rights of a viewer; empty where it obeys or that is not known.
WhyNoWake = Callable[[Kube], Awaitable[str]]


async def _wakes(_kube: Kube) -> str:
    return ""


@dataclass(frozen=True)
class NoActions:
    """Nothing can be done from this console. ``reason``: why, as a clause."""

    reason: str = "this console shows a recording"


@dataclass(frozen=True)
class ConsoleParts:
    """The parts of the console. ``history``: None if none is kept. ``act_as``: performs actions with a viewer's rights, if
    possible.

    ``history_fault``: why the history cannot be read here, empty if it can. ``why_no_wake``: see ``WhyNoWake``.
    """

    feeds: ConsoleFeeds
    access: ViewerAccess
    explain: Explain
    history: HistoryStore | None = None
    act_as: ActAs | NoActions = NoActions()
    history_fault: Callable[[], str] = str
    why_no_wake: WhyNoWake = _wakes
    passes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_PASSES))
    streams: StreamSlots = field(default_factory=StreamSlots)


def console_app(parts: ConsoleParts) -> Starlette:
    """The application."""
    pages = _Pages(parts)
    answers: Mapping[str, _Answer] = {
        "/api/session": pages.session,
        "/api/view": pages.view,
        "/api/stream": pages.stream,
        "/api/explanation": pages.explanation,
        "/api/history": pages.history,
        "/api/decision": pages.decision,
        "/api/ledger": pages.ledger,
        "/api/budgets": pages.budgets,
        "/api/what-if": pages.what_if,
    }
    routes = [
        Route("/", _asset("index.html", "text/html")),
        Route("/console.js", _asset("console.js", "text/javascript")),
        Route("/console.css", _asset("console.css", "text/css")),
        Route("/favicon.ico", _no_icon),
        *(Route(path, pages.with_viewer(answer)) for path, answer in answers.items()),
        Route("/api/actions", pages.with_viewer(pages.act), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, access=parts.access)])


_Answer = Callable[[Request, Viewer], Awaitable[Response]]


class _Pages:
    """The responses, by viewer."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    def with_viewer(self, answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
        """The response, for viewers with access."""

        async def endpoint(request: Request) -> Response:
            viewer = await self._parts.access.viewer(request)
            if isinstance(viewer, Refusal):
                return PlainTextResponse(viewer.reason, viewer.status)
            try:
                return await answer(request, viewer)
            except TooManyViewers as error:
                return PlainTextResponse(str(error), 503)

        return endpoint

    async def session(self, _request: Request, viewer: Viewer) -> Response:
        """The viewer's name, what is hidden from them, and which functions they may use."""
        seen = viewer.visibility
        fault = self._parts.history_fault() if seen.is_complete else ""
        return _json(
            {
                "user": viewer.name,
                "signIn": self._parts.access.sign_in,
                "inaction": self._inaction,
                "hasHistory": self._parts.history is not None and seen.is_complete and not fault,
                "historyFault": fault,
                "hidden": [*console_document.hidden_parts(seen), *_unchecked_namespaces(viewer)],
            }
        )

    @property
    def _inaction(self) -> str:
        """Why nothing can be done from here; empty where viewers can act."""
        match self._parts.act_as:
            case NoActions(reason):
                return f"{reason}, so nothing can be done from here"
            case _:
                return ""

    def _feed(self, viewer: Viewer) -> ConsoleFeed:
        return self._parts.feeds.feed(viewer.visibility)

    async def view(self, _request: Request, viewer: Viewer) -> Response:
        """The whole document."""
        feed = self._feed(viewer)
        if not feed.document:
            return PlainTextResponse(feed.fault.fault or "waiting for the first objects", 503)
        return Response(feed.document, media_type="application/json")

    async def stream(self, request: Request, viewer: Viewer) -> Response:
        """Each new document and each change of what is wrong, until the viewer's rights change."""
        self._parts.streams.check(viewer.name)
        return _EventStream(self._events(request, viewer, self._feed(viewer)), self._parts.streams, viewer.name)

    async def _events(self, request: Request, viewer: Viewer, feed: ConsoleFeed) -> AsyncIterator[bytes]:
        async for news in feed.news():
            if await self._parts.access.viewer(request) != viewer:
                return
            match news:
                case None:
                    yield b": nothing new\n\n"
                case FeedFault():
                    yield b"event: fault\ndata: " + msgspec.json.encode(news) + b"\n\n"
                case document:
                    yield b"data: " + document + b"\n\n"

    async def explanation(self, request: Request, viewer: Viewer) -> Response:
        """What `karpenter explain` says."""
        subject = request.query_params.get("subject", "")
        given = await self._parts.feeds.input(viewer.visibility)
        if given is None or subject.partition("/")[0] not in ("node", "pod"):
            return PlainTextResponse("expected subject=node/NAME or subject=pod/NAMESPACE/NAME", 400)
        async with self._parts.passes:
            text = await asyncio.to_thread(self._parts.explain, given, subject, self._parts.feeds.options)
        return PlainTextResponse(text)

    def _readable_history(self, viewer: Viewer) -> HistoryStore | Response:
        """The history, or why this viewer does not get it here."""
        if not viewer.visibility.is_complete:
            return PlainTextResponse("the history tells of objects that you may not list", 403)
        if fault := self._parts.history_fault():
            return PlainTextResponse(fault, 503)
        return self._parts.history or PlainTextResponse("no history is kept; --history-file sets where", 404)

    async def history(self, request: Request, viewer: Viewer) -> Response:
        """Samples, what was spent, decisions and interruptions of the last hours."""
        store = self._readable_history(viewer)
        if isinstance(store, Response):
            return store
        hours = _number(request.query_params.get("hours", "24"), _MAX_HISTORY_HOURS)
        if hours is None:
            return PlainTextResponse(f"hours must be a number up to {_MAX_HISTORY_HOURS}", 400)
        period = await self._last(timedelta(hours=hours), viewer)
        async with self._parts.passes:
            return await asyncio.to_thread(_history, store, period)

    async def ledger(self, request: Request, viewer: Viewer) -> Response:
        """The savings ledger of the last days."""
        store = self._readable_history(viewer)
        if isinstance(store, Response):
            return store
        days = _number(request.query_params.get("days", "7"), _MAX_LEDGER_DAYS)
        if days is None:
            return PlainTextResponse(f"days must be a number up to {_MAX_LEDGER_DAYS}", 400)
        period = await self._last(timedelta(days=days), viewer)
        async with self._parts.passes:
            ledger = await asyncio.to_thread(stored_ledger, store, period, _LEDGER_BOUNDS)
        return _json(ledger_document(ledger))

    async def _last(self, duration: timedelta, viewer: Viewer) -> TimeSpan:
        """So long until the time of the latest view."""
        given = await self._parts.feeds.input(viewer.visibility)
        now = given.now if given is not None else datetime.now(UTC)
        return TimeSpan(now - duration, now)

    async def decision(self, request: Request, viewer: Viewer) -> Response:
        """One decision of the history."""
        store = self._readable_history(viewer)
        if isinstance(store, Response):
            return store
        record = await asyncio.to_thread(store.decision, request.query_params.get("id", ""))
        if record is None:
            return PlainTextResponse("the history does not have this decision (any more)", 404)
        return _json(history_document.decision_document(record))

    async def budgets(self, request: Request, viewer: Viewer) -> Response:
        """The budget calendar."""
        given = await self._parts.feeds.input(viewer.visibility)
        days = _number(request.query_params.get("days", "7"), _MAX_CALENDAR_DAYS)
        if given is None or days is None:
            return PlainTextResponse(f"days must be a number up to {_MAX_CALENDAR_DAYS}", 400)
        spans = await asyncio.to_thread(budget_calendar, given, round(days) or 1)
        return _json([console_document.span_document(span) for span in spans])

    async def what_if(self, request: Request, viewer: Viewer) -> Response:
        """The answer to a question, from a decision on a copy."""
        given = await self._parts.feeds.input(viewer.visibility)
        if given is None:
            return PlainTextResponse("waiting for the first objects", 503)
        try:
            question = question_document.parse_question(request.query_params)
            async with self._parts.passes:
                options = self._parts.feeds.options.provisioning
                answer = await asyncio.to_thread(answer_question, given, question, options)
        except UnanswerableQuestion as error:
            return PlainTextResponse(str(error), 400)
        return _json(question_document.answer_document(answer))

    async def act(self, request: Request, viewer: Viewer) -> Response:
        """Show the kubectl line of an action, or do it with the viewer's own rights."""
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            action = parse_action(body, datetime.now(UTC).replace(microsecond=0))
        except UnknownAction as error:
            return PlainTextResponse(str(error), 400)
        if not body.get("confirmed"):
            return _json({"kubectl": kubectl_line(action, await self._freeze_there(action, viewer)), "done": False})
        if isinstance(self._parts.act_as, NoActions):
            return PlainTextResponse(self._inaction, 409)
        try:
            there = await self._freeze_there(action, viewer)
            async with self._parts.act_as(viewer) as kube:
                if action.kind is ActionKind.WAKE and (why := await self._parts.why_no_wake(kube)):
                    return PlainTextResponse(why, 409)
                await perform(kube, action)
        except Forbidden as error:
            return PlainTextResponse(str(error), 403)
        except KubeError as error:
            return PlainTextResponse(str(error), 502)
        return _json({"kubectl": kubectl_line(action, there), "done": True})

    async def _freeze_there(self, action: ConsoleAction, viewer: Viewer) -> ConfigMap | None:
        """The freeze that a freeze of the whole cluster replaces, as far as the viewer may read it."""
        if action.kind is not ActionKind.FREEZE or action.target or isinstance(self._parts.act_as, NoActions):
            return None
        try:
            async with self._parts.act_as(viewer) as kube:
                return await cluster_freeze(kube)
        except KubeError:
            return None


class _EventStream(StreamingResponse):
    """Server-sent events that count as a stream of their viewer as long as they are sent."""

    def __init__(self, events: AsyncIterator[bytes], slots: StreamSlots, viewer: str) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._slots = slots
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slots.taken(self._viewer):
            await super().__call__(scope, receive, send)


def _history(store: HistoryStore, period: TimeSpan) -> Response:
    since = period.begin
    samples = store.samples(since, _MAX_HISTORY_POINTS)
    return _json(
        {
            "samples": history_document.sample_document(samples),
            "spent": history_document.spent_document(store.spent(period, _MAX_HISTORY_ROWS)),
            "decisions": [
                history_document.decision_document(record) for record in store.decisions(since, _MAX_HISTORY_ROWS)
            ],
            "interruptions": [
                history_document.interruption_document(record)
                for record in store.interruptions(since, _MAX_HISTORY_ROWS)
            ],
        }
    )


def _number(text: str, most: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number <= most else None


async def _body(request: Request) -> dict[str, object] | Response:
    """The JSON object of an action's request, or why it is refused."""
    if not _is_own_request(request):
        return PlainTextResponse("actions come from the page of the console only", 403)
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MAX_BODY_BYTES:
            return PlainTextResponse("the body is too large", 413)
    try:
        return msgspec.json.decode(content, type=dict[str, object])
    except msgspec.DecodeError:
        return PlainTextResponse("the body is no JSON object", 400)


def _is_own_request(request: Request) -> bool:
    """Whether the page of this console sent it, and no other site."""
    origin = request.headers.get("origin")
    own_origin = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    return (
        request.headers.get(ACTION_HEADER) == "1"
        and request.headers.get("content-type", "").partition(";")[0] == "application/json"
        and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        and own_origin
    )


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


async def _no_icon(_request: Request) -> Response:
    """Browsers ask for one, and report what is missing."""
    return Response(status_code=204)


def _asset(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (_ASSETS / name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


class _Guard(BaseHTTPMiddleware):
    """Refuses requests without any access, and sets the security headers of the page."""

    def __init__(self, app: ASGIApp, access: ViewerAccess) -> None:
        super().__init__(app)
        self._access = access

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse, let in, or answer."""
        refusal = self._access.refused(request)
        if refusal is not None:
            response: Response = PlainTextResponse(refusal.reason, refusal.status)
        else:
            response = self._entrance(request) or await call_next(request)
        response.headers.update(_HEADERS)
        if request.url.scheme == "https":
            response.headers["Strict-Transport-Security"] = _ONLY_TLS
        return response

    def _entrance(self, request: Request) -> Response | None:
        """Swap the token of the address for a cookie, so that the address can be copied without it."""
        if not isinstance(self._access, SecretLinkAccess) or "token" not in request.query_params:
            return None
        response = RedirectResponse("/", 303)
        response.set_cookie(self._access.cookie, request.query_params["token"], httponly=True, samesite="strict")
        return response


def _unchecked_namespaces(viewer: Viewer) -> tuple[str, ...]:
    """What may be hidden only because its namespace has not been checked yet."""
    if viewer.all_namespaces_checked:
        return ()
    return ("pods of namespaces that have not been checked yet: load the page again in 30 seconds",)
