"""A real cluster behind ``protocol.Kube``.

One HTTP client carries everything. Requests other than watches pass a token bucket (OPS-313, OPS-314) and a limit of requests
in flight; watches pass neither, so that a burst of writes never delays the news. What is sent again after a failure is written
in ``repeating``; credentials and connections that change are the matter of ``transport``.

Nothing waits for ever: connecting, the next piece of an answer and the whole answer each have their time, and a watch on which
nothing arrives is ended, since a server that hangs and a kind that rests look the same from here.

Lists are consistent reads of the present, page by page. The cheaper kind (``resourceVersion=0``) may answer with a past the
server happens to remember: after a reconnection to another server that can be older than what was acted on already, and a
machine deleted since would come back to life. Since Kubernetes 1.31 servers answer consistent reads from memory, too.

Lists are decoded item by item: one object that does not decode costs that object, never the list. What the server's bytes
mean is read in ``decoding``; this module only asks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

import httpx2
import msgspec

from karpenter.api.core import Pod
from karpenter.api.kinds import POD, Kind
from karpenter.api.meta import Wire
from karpenter.kube import decoding, errors, permission
from karpenter.kube.credentials import CredentialsRefused
from karpenter.kube.observer import NO_ANSWER, Finished, Nobody, RequestObserver
from karpenter.kube.protocol import EventType, Json, JsonObject, Listing, WatchEvent
from karpenter.kube.repeating import EVICTING, READING, WRITING, Patience, repeated
from karpenter.kube.throttle import TokenBucket

T = TypeVar("T", bound=Wire)

#: Requests per second and burst (OPS-313, OPS-314).
REQUESTS_PER_SECOND = 200.0
REQUEST_BURST = 300

_MOST_IN_FLIGHT = 32
_PAGE_SIZE = 500
_MOST_LIST_RESTARTS = 3

#: kube-apiserver ends ordinary requests after 60 s (its --request-timeout): an answer that takes longer will never be whole.
_REQUEST_SECONDS = 65.0
#: A server that is well accepts a watch at once; one that is still filling its memory may take a while.
_OPENING_SECONDS = 30.0
#: How long a watch is asked for; the server ends it then.
_WATCH_SECONDS = (300, 600)
#: kube-apiserver sends a bookmark a minute where anything moved. Longer silence means that the kind rests, which costs one
#: request to find out, or that the stream is dead. Drawn at random: watches opened together need not be opened anew together.
_SILENCE_SECONDS = (75.0, 105.0)

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_METHODS = {"LIST": "GET", "WATCH": "GET", "CREATE": "POST"}
#: Failures before a connection stood: nothing was sent.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """One request about a kind, an object of it or a subresource; ``body`` is JSON of the media type ``content``."""

    verb: str
    kind: Kind[T]
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content: str = _JSON

    @property
    def method(self) -> str:
        return _METHODS.get(self.verb, self.verb)

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name, self.subresource)

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"

    def finished(self, code: str, seconds: float) -> Finished:
        kind = self.kind
        return Finished(self.verb, self.method, kind.group, kind.version, kind.plural, self.subresource, code, seconds)


class _Version(msgspec.Struct):
    """What is read of ``/version``."""

    major: str
    minor: str


class KubeClient:
    """A connection to a cluster; implements ``protocol.Kube`` and ``protocol.Pager``. Close it with ``aclose`` or ``async with``.

    ``http`` brings the server's address, TLS and credentials (``config.connect``); ``observer`` is told of every request.
    """

    def __init__(
        self, http: httpx2.AsyncClient, limit: TokenBucket | None = None, observer: RequestObserver | None = None
    ) -> None:
        self._http = http
        self._limit = limit or TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST)
        self._in_flight = asyncio.Semaphore(_MOST_IN_FLIGHT)
        self._observer = observer or Nobody()

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self._http.base_url).rstrip("/")

    async def aclose(self) -> None:
        """Close every connection; watches fail."""
        await self._http.aclose()

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """The API server's version as it writes it, such as ``1.35`` or ``1.35+``. Raises ``errors.KubeError``."""
        await self._limit.take()
        with _transport_faults("GET /version"):
            async with asyncio.timeout(_REQUEST_SECONDS):
                response = await self._http.get("/version")
        if not response.is_success:
            raise errors.Unavailable(f"GET /version: HTTP {response.status_code}")
        try:
            found = msgspec.json.decode(response.content, type=_Version)
        except msgspec.MsgspecError as error:
            raise errors.Unavailable(f"GET /version: {error}") from error
        return f"{found.major}.{found.minor}"

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; ``NotFound`` if it does not exist."""
        return decoding.one(kind, await self._send(_Call("GET", kind, namespace, name), READING))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects, in pages; begun anew when the pages expire half-way, at last asked for in one piece."""
        for _ in range(_MOST_LIST_RESTARTS):
            pages = self.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector)
            try:
                return decoding.joined([page async for page in pages])
            except errors.Gone:
                continue
        call = _Call("LIST", kind, namespace, query=_selection(label_selector, field_selector))
        pieces = []
        for piece in decoding.pieces(kind, await self._send(call, READING), _PAGE_SIZE):
            pieces.append(piece)
            await asyncio.sleep(0)  # others have a turn between pieces, as they have between pages
        return decoding.joined(pieces)

    async def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        """See ``protocol.Pager.pages``."""
        query = {**_selection(label_selector, field_selector), "limit": str(_PAGE_SIZE)}
        call = _Call("LIST", kind, namespace, query=query)
        while True:
            page = decoding.page(kind, await self._send(call, READING))
            yield page.listing
            if not page.following:
                return
            call = replace(call, query={**query, "continue": page.following})

    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after ``resource_version`` until the server ends the stream, which it does after some minutes.

        The bookmark at the beginning is the server's status line: it sends that at once, and events when there are any.
        A stream on which nothing arrives for a minute and a half ends too: opening it anew shows whether it still lived.
        """
        query = {
            **_selection(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),
            "resourceVersion": resource_version,
        }
        call = _Call("WATCH", kind, namespace, query=query)
        response = await self._answered(call, self._http.send(self._watch_request(call), stream=True), _OPENING_SECONDS)
        try:
            if not response.is_success:
                raise _refusal(call, response, await self._body(call, response))
            yield WatchEvent(EventType.BOOKMARK, resource_version)
            async with aclosing(_lines(call, response)) as lines:
                async for line in lines:
                    yield decoding.event(kind, line)
        finally:
            await response.aclose()

    def _watch_request(self, call: _Call[T]) -> httpx2.Request:
        usual = self._http.timeout
        timeout = httpx2.Timeout(connect=usual.connect, write=usual.write, pool=usual.pool, read=None)
        headers = {"Accept": _JSON, "Accept-Encoding": "identity"}
        return self._http.build_request(call.method, call.path, params=call.query, headers=headers, timeout=timeout)

    async def _body(self, call: _Call[T], response: httpx2.Response) -> bytes:
        with _transport_faults(call.what):
            async with asyncio.timeout(_OPENING_SECONDS):
                return await response.aread()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], obj: T) -> T:
        """Store a new object, in the namespace its metadata names; ``AlreadyExists`` if the name is taken."""
        call = _Call("CREATE", kind, decoding.metadata(obj).namespace, body=kind.encode(obj))
        return decoding.one(kind, await self._send(call, WRITING))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T:
        """JSON merge patch of the object or one of its subresources (``status``).

        With ``resource_version`` the patch applies only to that version, else ``Conflict``.
        """
        wanted = _at_version(patch, resource_version) if resource_version else patch
        body = msgspec.json.encode(wanted)
        call = _Call("PATCH", kind, namespace, name, subresource, body=body, content=_MERGE_PATCH)
        return decoding.one(kind, await self._send(call, WRITING))

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Delete; finalizers and grace period may keep the object a while. ``uid`` is a precondition (``Conflict``)."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **_preconditions(uid)}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._send(_Call("DELETE", kind, namespace, name, body=msgspec.json.encode(options)), WRITING)

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Ask for a graceful eviction; ``TooManyRequests`` when a disruption budget forbids it now."""
        eviction: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _preconditions(uid),
        }
        await self._send(_on_pod(name, namespace, "eviction", eviction), EVICTING)

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does."""
        binding: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._send(_on_pod(name, namespace, "binding", binding), WRITING)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, call: _Call[T], patience: Patience) -> bytes:
        """The body of a successful answer. Raises ``errors.KubeError``."""
        return await repeated(partial(self._send_once, call), patience)

    async def _send_once(self, call: _Call[T]) -> bytes:
        headers = {"Accept": _JSON} if call.body is None else {"Accept": _JSON, "Content-Type": call.content}
        request = self._http.build_request(
            call.method, call.path, params=call.query, content=call.body, headers=headers
        )
        await self._limit.take()
        async with self._in_flight:
            permission.ask()
            response = await self._answered(call, self._http.send(request), _REQUEST_SECONDS)
        if not response.is_success:
            raise _refusal(call, response, response.content)
        return response.content

    async def _answered(
        self, call: _Call[T], exchange: Awaitable[httpx2.Response], most_seconds: float
    ) -> httpx2.Response:
        """What comes back, whatever its status, and the observer told of it. Raises ``errors.KubeError`` when nothing does."""
        now = asyncio.get_running_loop().time
        began, code = now(), NO_ANSWER
        try:
            with _transport_faults(call.what):
                async with asyncio.timeout(most_seconds):
                    response = await exchange
            code = str(response.status_code)
            return response
        finally:
            self._observer.finished(call.finished(code, now() - began))


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    named = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in named.items() if value}


def _at_version(patch: JsonObject, resource_version: str) -> JsonObject:
    metadata = patch.get("metadata")
    known: Mapping[str, Json] = metadata if isinstance(metadata, Mapping) else {}
    return {**patch, "metadata": {**known, "resourceVersion": resource_version}}


def _preconditions(uid: str) -> dict[str, Json]:
    return {"preconditions": {"uid": uid}} if uid else {}


def _on_pod(name: str, namespace: str, subresource: str, body: JsonObject) -> _Call[Pod]:
    return _Call("CREATE", POD, namespace, name, subresource, body=msgspec.json.encode(body))


@contextmanager
def _transport_faults(what: str) -> Iterator[None]:
    try:
        yield
    except _NOT_SENT as fault:
        raise errors.NotSent(f"{what}: {_cause(fault)}") from fault
    except httpx2.RequestError as fault:
        raise errors.Unavailable(f"{what}: {_cause(fault)}") from fault
    except TimeoutError as fault:
        raise errors.Unavailable(f"{what}: no answer in time") from fault
    except CredentialsRefused as fault:
        raise errors.Unauthorized(str(fault)) from fault


def _cause(fault: Exception) -> str:
    return str(fault) or type(fault).__name__


def _refusal(call: _Call[T], response: httpx2.Response, body: bytes) -> errors.KubeError:
    try:
        asked = float(response.headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date: no API server sends one
        asked = None
    return decoding.refusal(call.kind, response.status_code, body, asked)


async def _lines(call: _Call[T], response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The complete lines of a stream. A last one without its end was cut off and is dropped: it will be sent again."""
    rest = b""
    async with aclosing(_chunks(call, response)) as chunks:
        async for chunk in chunks:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                if line:
                    yield line


async def _chunks(call: _Call[T], response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """What arrives, until the stream ends or has been silent for too long."""
    with _transport_faults(call.what):
        async with aclosing(response.aiter_bytes()) as arriving:
            while (chunk := await _within(random.uniform(*_SILENCE_SECONDS), arriving)) is not None:
                yield chunk


async def _within(seconds: float, arriving: AsyncIterator[bytes]) -> bytes | None:
    """The next piece, None at the end or when none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(arriving, None)
    except TimeoutError:
        return None
