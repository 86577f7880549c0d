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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
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
from karpenter.kube import decoding, errors
from karpenter.kube.credentials import CredentialsRefused
from karpenter.kube.protocol import Json, JsonObject, Listing, WatchEvent, WatchEventType
from karpenter.kube.request_metrics import NO_RESPONSE, FinishedRequest, NoRequestObserver, RequestObserver
from karpenter.kube.request_retries import EVICTION_RETRIES, READ_RETRIES, WRITE_RETRIES, RetryPolicy, with_retries
from karpenter.kube.write_fence import Fence
from karpenter.model.call_deadline import not_counted
from karpenter.model.token_bucket import TokenBucket

T = TypeVar("T", bound=Wire)

#: Requests per second and burst (OPS-313, OPS-314).
REQUESTS_PER_SECOND = 200.0
REQUEST_BURST = 300

_MAX_IN_FLIGHT = 32
_PAGE_SIZE = 500
_MAX_LIST_RESTARTS = 3

#: kube-apiserver ends ordinary requests after 60 s (its --request-timeout): an answer that takes longer will never be whole.
_REQUEST_TIMEOUT_SECONDS = 65.0
#: A server that is well accepts a watch at once; one that is still filling its memory may take a while.
_WATCH_OPEN_TIMEOUT_SECONDS = 30.0
#: Requested length of a watch; the server ends it then.
_WATCH_TIMEOUT_SECONDS = (300, 600)
#: kube-apiserver sends a bookmark a minute where anything moved. Longer silence means that the kind rests, which costs one
#: request to find out, or that the stream is dead. Drawn at random: watches opened together need not be opened anew together.
_WATCH_IDLE_SECONDS = (75.0, 105.0)

_JSON = "application/json"
#: Ends of the names of the transport's events after which bytes of a request can leave. ``buffered_streams`` write a request
#: when its answer is read; other streams, and those with a large body, write while it is sent.
_BEFORE_WRITES = ("send_request_headers.started", "send_request_body.started", "receive_response_headers.started")
_MERGE_PATCH = "application/merge-patch+json"
_METHODS = {"LIST": "GET", "WATCH": "GET", "CREATE": "POST"}
#: Failures before a connection stood: nothing was sent.
_CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    """One request about a kind, an object of it or a subresource; ``body`` is JSON of the media type ``content``."""

    verb: str
    kind: Kind[T]
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = _JSON

    @property
    def method(self) -> str:
        return _METHODS.get(self.verb, self.verb)

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name, self.subresource)

    @property
    def description(self) -> str:
        return f"{self.method} {self.path}"

    def to_finished(self, code: str, seconds: float) -> FinishedRequest:
        kind = self.kind
        return FinishedRequest(
            self.verb, self.method, kind.group, kind.version, kind.plural, self.subresource, code, seconds
        )


class _ServerVersion(msgspec.Struct):
    """What is read of ``/version``."""

    major: str
    minor: str


def _always_permitted() -> None:
    """The check of requests that pass no fence."""


class KubeClient:
    """A connection to a cluster; implements ``protocol.Kube`` and ``protocol.Pager``. Close it with ``aclose`` or ``async with``.

    ``http`` brings the server's address, TLS and credentials (``config.connect``); ``observer`` is notified of every request;
    writes pass ``fence``, if there is one, and raise ``WriteFenced`` where it is closed.
    """

    def __init__(
        self,
        http: httpx2.AsyncClient,
        rate_limit: TokenBucket | None = None,
        observer: RequestObserver | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._http = http
        self._fence = fence
        self._rate_limit = rate_limit or TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST)
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._observer = observer or NoRequestObserver()

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
        await self._rate_limit.take()
        with _translate_transport_errors("GET /version"):
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                response = await self._http.get("/version")
        if not response.is_success:
            raise errors.ServerUnavailable(f"GET /version: HTTP {response.status_code}")
        try:
            server_version = msgspec.json.decode(response.content, type=_ServerVersion)
        except msgspec.MsgspecError as error:
            raise errors.ServerUnavailable(f"GET /version: {error}") from error
        return f"{server_version.major}.{server_version.minor}"

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; ``NotFound`` if it does not exist."""
        return decoding.decode_object(kind, await self._send(_Request("GET", kind, namespace, name), READ_RETRIES))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects, in pages; begun anew when the pages expire half-way, at last asked for in one piece."""
        for _ in range(_MAX_LIST_RESTARTS):
            pages = self.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector)
            try:
                return decoding.join_listings([page async for page in pages])
            except errors.Gone:
                continue
        call = _Request("LIST", kind, namespace, query=_selector_query(label_selector, field_selector))
        pieces = []
        for piece in decoding.decode_in_batches(kind, await self._send(call, READ_RETRIES), _PAGE_SIZE):
            pieces.append(piece)
            await asyncio.sleep(0)  # others have a turn between pieces, as they have between pages
        return decoding.join_listings(pieces)

    async def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        """See ``protocol.Pager.pages``."""
        query = {**_selector_query(label_selector, field_selector), "limit": str(_PAGE_SIZE)}
        call = _Request("LIST", kind, namespace, query=query)
        while True:
            page = decoding.decode_page(kind, await self._send(call, READ_RETRIES))
            yield page.listing
            if not page.continue_token:
                return
            call = replace(call, query={**query, "continue": page.continue_token})

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
            **_selector_query(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_TIMEOUT_SECONDS)),
            "resourceVersion": resource_version,
        }
        call = _Request("WATCH", kind, namespace, query=query)
        response = await self._exchange(
            call, self._http.send(self._watch_request(call), stream=True), _WATCH_OPEN_TIMEOUT_SECONDS
        )
        try:
            if not response.is_success:
                raise _error_of_response(call, response, await self._read_body(call, response))
            yield WatchEvent(WatchEventType.BOOKMARK, resource_version)
            async with aclosing(_lines(call, response)) as lines:
                async for line in lines:
                    yield decoding.decode_event(kind, line)
        finally:
            await response.aclose()

    def _watch_request(self, call: _Request[T]) -> httpx2.Request:
        usual = self._http.timeout
        timeout = httpx2.Timeout(connect=usual.connect, write=usual.write, pool=usual.pool, read=None)
        headers = {"Accept": _JSON, "Accept-Encoding": "identity"}
        return self._http.build_request(call.method, call.path, params=call.query, headers=headers, timeout=timeout)

    async def _read_body(self, call: _Request[T], response: httpx2.Response) -> bytes:
        with _translate_transport_errors(call.description):
            async with asyncio.timeout(_WATCH_OPEN_TIMEOUT_SECONDS):
                return await response.aread()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[T], obj: T) -> T:
        """Store a new object, in the namespace its metadata names; ``AlreadyExists`` if the name is taken."""
        call = _Request("CREATE", kind, decoding.metadata_of(obj).namespace, body=kind.encode(obj))
        return decoding.decode_object(kind, await self._write(call, WRITE_RETRIES))

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
        wanted = _with_resource_version(patch, resource_version) if resource_version else patch
        body = msgspec.json.encode(wanted)
        call = _Request("PATCH", kind, namespace, name, subresource, body=body, content_type=_MERGE_PATCH)
        return decoding.decode_object(kind, await self._write(call, WRITE_RETRIES))

    async def delete(
        self, kind: Kind[T], name: str, namespace: str = "", *, uid: str = "", grace_period_seconds: int | None = None
    ) -> None:
        """Delete; finalizers and grace period may keep the object a while. ``uid`` is a precondition (``Conflict``)."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **_preconditions(uid)}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._write(_Request("DELETE", kind, namespace, name, body=msgspec.json.encode(options)), WRITE_RETRIES)

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Ask for a graceful eviction; ``TooManyRequests`` when a disruption budget forbids it now."""
        eviction: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _preconditions(uid),
        }
        await self._write(_pod_subresource_request(name, namespace, "eviction", eviction), EVICTION_RETRIES)

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does."""
        binding: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write(_pod_subresource_request(name, namespace, "binding", binding), WRITE_RETRIES)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _write(self, call: _Request[T], policy: RetryPolicy) -> bytes:
        """Like ``_send``, through the fence if there is one."""
        fence = self._fence
        if fence is None:
            return await self._send(call, policy)
        return await fence.run(lambda: self._send(call, policy, fence.check_permitted))

    async def _send(
        self, call: _Request[T], policy: RetryPolicy, check: Callable[[], None] = _always_permitted
    ) -> bytes:
        """The body of a successful answer. ``check`` runs right before each attempt leaves. Raises ``errors.KubeError``."""
        return await with_retries(partial(self._send_once, call, check), policy)

    async def _send_once(self, call: _Request[T], check: Callable[[], None]) -> bytes:
        headers = {"Accept": _JSON} if call.body is None else {"Accept": _JSON, "Content-Type": call.content_type}
        request = self._http.build_request(
            call.method, call.path, params=call.query, content=call.body, headers=headers, extensions=_checked(check)
        )
        await self._rate_limit.take()
        with not_counted():
            await self._in_flight.acquire()
        try:
            check()
            response = await self._exchange(call, self._http.send(request), _REQUEST_TIMEOUT_SECONDS)
        finally:
            self._in_flight.release()
        if not response.is_success:
            raise _error_of_response(call, response, response.content)
        return response.content

    async def _exchange(
        self, call: _Request[T], exchange: Awaitable[httpx2.Response], timeout_seconds: float
    ) -> httpx2.Response:
        """The response, whatever its status; the observer is notified. Raises ``errors.KubeError`` without a response."""
        now = asyncio.get_running_loop().time
        began, code = now(), NO_RESPONSE
        try:
            with _translate_transport_errors(call.description):
                async with asyncio.timeout(timeout_seconds):
                    response = await exchange
            code = str(response.status_code)
            return response
        finally:
            self._observer.request_finished(call.to_finished(code, now() - began))


def _checked(check: Callable[[], None]) -> dict[str, object]:
    """What makes the transport run ``check`` each time before it writes to the connection; nothing for reads.

    Between the start of a request and its first byte lie a turn in the pool, perhaps a connection and a handshake. A process
    that is stopped there and resumes after its lease has ended would write before the timer of the fence runs. Where ``check``
    raises, the transport closes the connection, and the buffer of its stream is dropped.
    """
    if check is _always_permitted:
        return {}

    async def trace(event: str, _info: Mapping[str, object]) -> None:
        if event.endswith(_BEFORE_WRITES):
            check()

    return {"trace": trace}


def _selector_query(label_selector: str, field_selector: str) -> dict[str, str]:
    named = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in named.items() if value}


def _with_resource_version(patch: JsonObject, resource_version: str) -> JsonObject:
    metadata = patch.get("metadata")
    present: Mapping[str, Json] = metadata if isinstance(metadata, Mapping) else {}
    return {**patch, "metadata": {**present, "resourceVersion": resource_version}}


def _preconditions(uid: str) -> dict[str, Json]:
    return {"preconditions": {"uid": uid}} if uid else {}


def _pod_subresource_request(name: str, namespace: str, subresource: str, body: JsonObject) -> _Request[Pod]:
    return _Request("CREATE", POD, namespace, name, subresource, body=msgspec.json.encode(body))


@contextmanager
def _translate_transport_errors(description: str) -> Iterator[None]:
    try:
        yield
    except _CONNECT_ERRORS as fault:
        raise errors.RequestNotSent(f"{description}: {_error_text(fault)}") from fault
    except httpx2.RequestError as fault:
        raise errors.ServerUnavailable(f"{description}: {_error_text(fault)}") from fault
    except TimeoutError as fault:
        raise errors.ServerUnavailable(f"{description}: no answer in time") from fault
    except CredentialsRefused as fault:
        raise errors.Unauthorized(str(fault)) from fault


def _error_text(fault: Exception) -> str:
    return str(fault) or type(fault).__name__


def _error_of_response(call: _Request[T], response: httpx2.Response, body: bytes) -> errors.KubeError:
    try:
        asked = float(response.headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date: no API server sends one
        asked = None
    return decoding.decode_error(call.kind, response.status_code, body, asked)


async def _lines(call: _Request[T], response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The complete lines of a stream. A last one without its end was cut off and is dropped: it will be sent again."""
    rest = b""
    async with aclosing(_chunks(call, response)) as chunks:
        async for chunk in chunks:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                if line:
                    yield line


async def _chunks(call: _Request[T], response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """What arrives, until the stream ends or has been silent for too long."""
    with _translate_transport_errors(call.description):
        async with aclosing(response.aiter_bytes()) as arriving:
            while (chunk := await _next_within(random.uniform(*_WATCH_IDLE_SECONDS), arriving)) is not None:
                yield chunk


async def _next_within(seconds: float, chunks: AsyncIterator[bytes]) -> bytes | None:
    """The next piece, None at the end or when none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(chunks, None)
    except TimeoutError:
        return None
