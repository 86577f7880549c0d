"""HTTP as the client of an API server needs it: requests, answers, and the two ways in which there is no answer.

``http_connections`` sends requests; tests have other transports. Nothing here depends on an HTTP library.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, urlencode


class ConnectionNotMade(Exception):
    """There is no connection: nothing of the request was sent. The message says why."""


class ConnectionBroken(Exception):
    """The connection failed, or was silent for too long, before the answer was whole: the request may have been carried out."""


def always_permitted() -> None:
    """The check of requests that may leave at any time."""


def encoded_target(path: str, query: Mapping[str, str]) -> str:
    """Path and query as they are sent."""
    encoded = quote(path, safe="/:@!$&'()*+,;=~-._")
    return f"{encoded}?{urlencode(query)}" if query else encoded


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """One request. ``path`` and ``query`` are not encoded yet; ``path`` begins with a slash.

    ``check_permitted`` runs right before bytes of a request with a body leave. If it raises, nothing leaves, and the error is
    the sender's.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    check_permitted: Callable[[], None] = always_permitted


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer. The names in ``headers`` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is one of the two hundreds."""
        return 200 <= self.status < 300


class HttpStream(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; their names are found in any case."""
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, without its content encoding. Raises ``ConnectionBroken``."""
        ...


class HttpTransport(Protocol):
    """Sends requests to one server. Both ways raise ``ConnectionNotMade`` and ``ConnectionBroken``, and what a check raises."""

    @property
    def server(self) -> str:
        """The server's URL."""
        ...

    async def exchange(self, request: OutgoingRequest) -> HttpAnswer:
        """Send, and read the whole answer."""
        ...

    def stream(self, request: OutgoingRequest) -> AbstractAsyncContextManager[HttpStream]:
        """Send, and read the head of the answer. Leaving closes the connection unless the body was read to its end."""
        ...

    async def aclose(self) -> None:
        """Close all connections. What is under way fails."""
        ...
