"""A real cluster behind ``protocol.Kube``.

One HTTP client carries everything. Requests other than watches pass a token bucket (OPS-313, OPS-314) and a limit of requests
in flight; watches pass neither, so that a burst of writes never delays watch events. What is sent again after a failure is
written in ``request_retries``; changing credentials and connections are handled in ``transport``.

Nothing waits for ever: connecting, the next piece of an answer and the whole answer each have their time, and a watch on which
nothing arrives is ended, since a server that hangs and a kind that rests look the same from here.

Lists are consistent reads of the present, page by page. The cheaper kind (``resourceVersion=0``) may answer with a past the
server happens to remember: after a reconnection to another server that can be older than what was acted on already, and a
machine deleted since would come back to life. Since Kubernetes 1.31 servers answer consistent reads from memory, too.

Lists are decoded item by item: one object that does not decode costs that object, never the list. ``decoding`` decodes the
server's responses; this module only sends requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from karpenter.api.core import Pod
from karpenter.api.kinds import POD, Kind
from karpenter.api.meta import Wire
from karpenter.kube import decoding, errors
from karpenter.kube.credentials import CredentialsRefused
from karpenter.kube.http_exchange import (
    ConnectionBroken,
    ConnectionNotMade,
    HttpAnswer,
    HttpStream,
    HttpTransport,
    OutgoingRequest,
    always_permitted,
)
from karpenter.kube.protocol import Json, JsonObject, Listing, WatchEvent, WatchEventType
from karpenter.kube.request_metrics import NO_RESPONSE, FinishedRequest, NoRequestObserver, RequestObserver
from karpenter.kube.request_retries import EVICTION_RETRIES, READ_RETRIES, WRITE_RETRIES, RetryPolicy, with_retries
from karpenter.kube.write_fence import Fence
from karpenter.model.call_deadline import not_counted
from karpenter.model.token_bucket import TokenBucket

T = TypeVar("T", bound=Wire)
A = TypeVar("A", HttpAnswer, HttpStream)

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
_READ_HEADERS: Mapping[str, str] = {"Accept": _JSON}
_OK = 200
_MERGE_PATCH = "application/merge-patch+json"
_METHODS = {"LIST": "GET", "WATCH": "GET", "CREATE": "POST"}


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    """One request about a kind, an object of it or a subresource; ``body`` is JSON of the media type ``content_type``."""

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

    def to_http(self, check_permitted: Callable[[], None]) -> OutgoingRequest:
        headers = _READ_HEADERS if self.body is None else {**_READ_HEADERS, "Content-Type": self.content_type}
        return OutgoingRequest(self.method, self.path, self.query, headers, self.body, check_permitted)

    def to_finished(self, code: str, seconds: float) -> FinishedRequest:
        kind = self.kind
        return FinishedRequest(
            self.verb, self.method, kind.group, kind.version, kind.plural, self.subresource, code, seconds
        )


class _ServerVersion(msgspec.Struct):
    """What is read of ``/version``."""

    major: str
    minor: str


class KubeClient:
    """A connection to a cluster; implements ``protocol.Kube`` and ``protocol.PagedReader``. Close it with ``aclose``, or
    use it in ``async with``.

    ``transport`` brings the address, TLS and credentials (``config.connect``); ``observer`` is notified of every request;
    writes pass ``fence``, if there is one, and raise ``WriteFenced`` where it is closed.
    """

    def __init__(
        self,
        transport: HttpTransport,
        rate_limit: TokenBucket | None = None,
        observer: RequestObserver | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._transport = transport
        self._fence = fence
        self._rate_limit = rate_limit or TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST)
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._observer = observer or NoRequestObserver()

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._transport.server

    async def aclose(self) -> None:
        """Close every connection; watches fail."""
        await self._transport.aclose()

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
                answer = await self._transport.exchange(OutgoingRequest("GET", "/version"))
        if not answer.is_success:
            raise errors.ServerUnavailable(f"GET /version: HTTP {answer.status}")
        try:
            server_version = msgspec.json.decode(answer.body, type=_ServerVersion)
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
        """See ``protocol.PagedReader.pages``."""
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
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(self._transport.stream(_watch_request(call)))
            stream = await self._answered(call, opening, _WATCH_OPEN_TIMEOUT_SECONDS)
            if stream.status != _OK:
                raise _error_of(call, stream, await self._read_body(call, stream))
            yield WatchEvent(WatchEventType.BOOKMARK, resource_version)
            async with aclosing(_lines(call, stream)) as lines:
                async for line in lines:
                    yield decoding.decode_event(kind, line)

    async def _read_body(self, call: _Request[T], stream: HttpStream) -> bytes:
        with _translate_transport_errors(call.description):
            async with asyncio.timeout(_WATCH_OPEN_TIMEOUT_SECONDS):
                return b"".join([chunk async for chunk in stream.chunks()])

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
        self, call: _Request[T], policy: RetryPolicy, check: Callable[[], None] = always_permitted
    ) -> bytes:
        """The body of a successful answer. ``check`` runs right before each attempt leaves. Raises ``errors.KubeError``."""
        return await with_retries(partial(self._send_once, call, check), policy)

    async def _send_once(self, call: _Request[T], check: Callable[[], None]) -> bytes:
        await self._rate_limit.take()
        with not_counted():
            await self._in_flight.acquire()
        try:
            check()
            exchange = self._transport.exchange(call.to_http(check))
            answer = await self._answered(call, exchange, _REQUEST_TIMEOUT_SECONDS)
        finally:
            self._in_flight.release()
        if not answer.is_success:
            raise _error_of(call, answer, answer.body)
        return answer.body

    async def _answered(self, call: _Request[T], exchange: Awaitable[A], timeout_seconds: float) -> A:
        """The answer, whatever its status; the observer is notified. Raises ``errors.KubeError`` without an answer."""
        now = asyncio.get_running_loop().time
        began, code = now(), NO_RESPONSE
        try:
            with _translate_transport_errors(call.description):
                async with asyncio.timeout(timeout_seconds):
                    answer = await exchange
            code = str(answer.status)
            return answer
        finally:
            self._observer.request_finished(call.to_finished(code, now() - began))


def _watch_request(call: _Request[T]) -> OutgoingRequest:
    return OutgoingRequest(call.method, call.path, call.query, {**_READ_HEADERS, "Accept-Encoding": "identity"})


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
    except ConnectionNotMade as fault:
        raise errors.RequestNotSent(f"{description}: {fault}") from fault
    except ConnectionBroken as fault:
        raise errors.ServerUnavailable(f"{description}: {fault}") from fault
    except TimeoutError as fault:
        raise errors.ServerUnavailable(f"{description}: no answer in time") from fault
    except CredentialsRefused as fault:
        raise errors.Unauthorized(str(fault)) from fault


def _error_of(call: _Request[T], answer: HttpAnswer | HttpStream, body: bytes) -> errors.KubeError:
    try:
        asked = float(answer.headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date: no API server sends one
        asked = None
    return decoding.decode_error(call.kind, answer.status, body, asked)


async def _lines(call: _Request[T], stream: HttpStream) -> AsyncGenerator[bytes, None]:
    """The complete lines of a stream. A last one without its end was cut off and is dropped: it will be sent again."""
    rest = b""
    async with aclosing(_chunks(call, stream)) as chunks:
        async for chunk in chunks:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                if line:
                    yield line


async def _chunks(call: _Request[T], stream: HttpStream) -> AsyncGenerator[bytes, None]:
    """What arrives, until the stream ends or has been silent for too long."""
    with _translate_transport_errors(call.description):
        async with aclosing(stream.chunks()) as arriving:
            while (chunk := await _next_within(random.uniform(*_WATCH_IDLE_SECONDS), arriving)) is not None:
                yield chunk


async def _next_within(seconds: float, chunks: AsyncIterator[bytes]) -> bytes | None:
    """The next piece, None at the end or when none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(chunks, None)
    except TimeoutError:
        return None
