"""A real cluster behind ``protocol.Kube``.

One HTTP client carries everything. Requests other than watches pass a token bucket (OPS-313, OPS-314) and a limit of requests
in flight; watches pass neither, so that a burst of writes never delays the news. Reads are retried a few times when the server
is busy or away, because repeating them is harmless; writes are not, since only the caller knows whether they still make sense.

Lists are decoded item by item: one object that does not decode costs that object, never the list. What the server's bytes
mean is read in ``decoding``; this module only asks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import httpx2
import msgspec

from karpenter.api.kinds import POD, Kind
from karpenter.api.meta import Wire
from karpenter.kube import decoding, errors
from karpenter.kube.credentials import CredentialsRefused
from karpenter.kube.protocol import EventType, Json, JsonObject, Listing, Rejected, WatchEvent
from karpenter.kube.throttle import TokenBucket

T = TypeVar("T", bound=Wire)

#: Requests per second and burst (OPS-313, OPS-314).
REQUESTS_PER_SECOND = 200.0
REQUEST_BURST = 300

_MOST_IN_FLIGHT = 32
_PAGE_SIZE = 500
_MOST_LIST_RESTARTS = 3
_READ_TRIES = 4
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
_WATCH_SECONDS = (300, 600)
_WATCH_SLACK_SECONDS = 15.0

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class _Call:
    """One request; ``body`` is JSON of the media type ``content``."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content: str = _JSON


class KubeClient:
    """A connection to a cluster; implements ``protocol.Kube``. Close it with ``aclose`` or ``async with``.

    ``http`` brings the server's address, TLS and credentials (``config.connect``).
    """

    def __init__(self, http: httpx2.AsyncClient, limit: TokenBucket | None = None) -> None:
        self._http = http
        self._limit = limit or TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST)
        self._in_flight = asyncio.Semaphore(_MOST_IN_FLIGHT)

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

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; ``NotFound`` if it does not exist."""
        return decoding.one(kind, await self._read(kind, _Call("GET", kind.path(namespace, name))))

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects, in pages; begun anew when the pages expire half-way, at last asked for in one piece."""
        path = kind.path(namespace)
        selection = _selection(label_selector, field_selector)
        for _ in range(_MOST_LIST_RESTARTS):
            try:
                return await self._list(kind, path, {**selection, "limit": str(_PAGE_SIZE)})
            except errors.Gone:
                continue
        return await self._list(kind, path, selection)

    async def _list(self, kind: Kind[T], path: str, query: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        rejected: list[Rejected] = []
        following = ""
        while True:
            asked = {**query, "continue": following} if following else query
            page = decoding.page(kind, await self._read(kind, _Call("GET", path, asked)))
            items.extend(page.items)
            rejected.extend(page.rejected)
            following = page.following
            if not following:
                return Listing(tuple(items), page.resource_version, tuple(rejected))

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
        A stream that stays open without a word beyond that time counts as broken: ``Unavailable``.
        """
        seconds = random.randint(*_WATCH_SECONDS)
        query = {
            **_selection(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": resource_version,
        }
        request = self._http.build_request(
            "GET",
            kind.path(namespace),
            params=query,
            headers={"Accept": _JSON, "Accept-Encoding": "identity"},
            timeout=self._watch_timeout(seconds),
        )
        with _transport_faults(request):
            response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                with _transport_faults(request):
                    raise _refusal(kind, response, await response.aread())
            yield WatchEvent(EventType.BOOKMARK, resource_version)
            async with aclosing(_lines(request, response)) as lines:
                async for line in lines:
                    yield decoding.event(kind, line)
        finally:
            await response.aclose()

    def _watch_timeout(self, seconds: int) -> httpx2.Timeout:
        usual = self._http.timeout
        return httpx2.Timeout(
            connect=usual.connect, write=usual.write, pool=usual.pool, read=seconds + _WATCH_SLACK_SECONDS
        )

    async def create(self, kind: Kind[T], obj: T) -> T:
        """Store a new object, in the namespace its metadata names; ``AlreadyExists`` if the name is taken."""
        path = kind.path(decoding.metadata(obj).namespace)
        return decoding.one(kind, await self._send(kind, _Call("POST", path, body=kind.encode(obj))))

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
        path = kind.path(namespace, name, subresource)
        call = _Call("PATCH", path, body=msgspec.json.encode(wanted), content=_MERGE_PATCH)
        return decoding.one(kind, await self._send(kind, call))

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
        await self._send(kind, _Call("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options)))

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Ask for a graceful eviction; ``TooManyRequests`` when a disruption budget forbids it now."""
        eviction: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _preconditions(uid),
        }
        await self._post_to_pod(name, namespace, "eviction", eviction)

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does."""
        binding: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._post_to_pod(name, namespace, "binding", binding)

    async def _post_to_pod(self, name: str, namespace: str, subresource: str, body: JsonObject) -> None:
        call = _Call("POST", POD.path(namespace, name, subresource), body=msgspec.json.encode(body))
        await self._send(POD, call)

    async def _read(self, kind: Kind[T], call: _Call) -> bytes:
        return await _patiently(lambda: self._send(kind, call))

    async def _send(self, kind: Kind[T], call: _Call) -> bytes:
        """The body of a successful answer. Raises ``errors.KubeError``."""
        headers = {"Accept": _JSON} if call.body is None else {"Accept": _JSON, "Content-Type": call.content}
        request = self._http.build_request(
            call.method, call.path, params=call.query, content=call.body, headers=headers
        )
        await self._limit.take()
        async with self._in_flight:
            with _transport_faults(request):
                response = await self._http.send(request)
        if not response.is_success:
            raise _refusal(kind, response, response.content)
        return response.content


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    named = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in named.items() if value}


def _at_version(patch: JsonObject, resource_version: str) -> JsonObject:
    metadata = patch.get("metadata")
    known: Mapping[str, Json] = metadata if isinstance(metadata, Mapping) else {}
    return {**patch, "metadata": {**known, "resourceVersion": resource_version}}


def _preconditions(uid: str) -> dict[str, Json]:
    return {"preconditions": {"uid": uid}} if uid else {}


async def _patiently(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Repeat a read while the server is busy or away, a few times, waiting longer each time or as long as it asks."""
    delay = _FIRST_DELAY_SECONDS
    for _ in range(_READ_TRIES - 1):
        try:
            return await read()
        except (errors.TooManyRequests, errors.Unavailable) as fault:
            wait = max(fault.retry_after_seconds, delay * random.uniform(0.5, 1.0))
            await asyncio.sleep(min(wait, _LONGEST_DELAY_SECONDS))
            delay *= 2
    return await read()


@contextmanager
def _transport_faults(request: httpx2.Request) -> Iterator[None]:
    from lightkube.core.exceptions import ConfigError  # a token file that is gone

    try:
        yield
    except httpx2.RequestError as fault:
        cause = str(fault) or type(fault).__name__
        raise errors.Unavailable(f"{request.method} {request.url.path}: {cause}") from fault
    except (ConfigError, CredentialsRefused) as fault:
        raise errors.Unauthorized(str(fault)) from fault


def _refusal(kind: Kind[T], response: httpx2.Response, body: bytes) -> errors.KubeError:
    try:
        asked = float(response.headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date: no API server sends one
        asked = None
    return decoding.refusal(kind, response.status_code, body, asked)


async def _lines(request: httpx2.Request, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The complete lines of a stream. A last one without its end was cut off and is dropped: it will be sent again."""
    rest = b""
    with _transport_faults(request):
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                *complete, rest = (rest + chunk).split(b"\n")
                for line in complete:
                    if line:
                        yield line
