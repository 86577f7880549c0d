"""Posts to one destination: every post ends within a bound, and its outcome is a value, never an exception.

Addresses and secret headers are read from their files before each post. Neither is ever logged or returned: the address of a chat
is a secret by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx2

from karpenter.model.clock import Clock
from karpenter.notifications.notification_config import Destination, url_fault
from karpenter.notifications.notification_formats import Post

#: For each step of a post, such as connecting; and for all of them, however slowly a receiver dribbles its answer.
_TIMEOUT_SECONDS, _TOTAL_SECONDS = 10.0, 20.0
_LONGEST_PAUSE_SECONDS = 300.0
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
_ACCEPTED = range(200, 300)


@dataclass(frozen=True)
class PostOutcome:
    """What became of a post. ``error`` is empty where it was accepted; ``pause_seconds`` is the pause the receiver asks for."""

    error: str = ""
    may_retry: bool = False
    pause_seconds: float = 0.0


#: Makes the HTTP client of a destination.
HttpClientFactory = Callable[[Destination], httpx2.AsyncClient]


def new_http_client(destination: Destination) -> httpx2.AsyncClient:
    """A client that follows no redirect. Raises ``OSError`` where the file of authorities cannot be read."""
    verify: ssl.SSLContext | bool = True
    if destination.ca_file:
        verify = ssl.create_default_context(cafile=destination.ca_file)
    return httpx2.AsyncClient(verify=verify, timeout=_TIMEOUT_SECONDS, follow_redirects=False)


class WebhookClient:
    """Posts to one destination through one connection."""

    def __init__(self, destination: Destination, http: httpx2.AsyncClient, clock: Clock) -> None:
        self._destination = destination
        self._http = http
        self._clock = clock

    async def post(self, post: Post) -> PostOutcome:
        """Post once. Only the status and the headers of the answer are read, never its body."""
        try:
            url, headers = self._address(), self._headers(post)
        except (OSError, ValueError) as error:
            return PostOutcome(str(error), may_retry=True)
        try:
            async with (
                asyncio.timeout(_TOTAL_SECONDS),
                self._http.stream("POST", url, content=post.body, headers=headers) as response,
            ):
                return self._outcome(response)
        except TimeoutError:
            return PostOutcome(f"no answer within {_TOTAL_SECONDS:g} s", may_retry=True)
        except (httpx2.InvalidURL, ValueError):
            return PostOutcome("the address or a header cannot be used")
        except httpx2.RequestError as error:
            return PostOutcome(f"no answer ({type(error).__name__})", may_retry=True)

    def _address(self) -> str:
        """Raises ``OSError``, and ``ValueError`` for a file that holds no address."""
        if self._destination.url:
            return self._destination.url
        url = _secret(self._destination.url_file)
        if fault := url_fault(url):
            raise ValueError(f"the address in {self._destination.url_file} {fault}")
        return url

    def _headers(self, post: Post) -> dict[str, str]:
        secret = {name: _secret(path) for name, path in self._destination.header_files.items()}
        return {**self._destination.headers, **secret, "Content-Type": post.content_type}

    def _outcome(self, response: httpx2.Response) -> PostOutcome:
        status = response.status_code
        if status in _ACCEPTED:
            return PostOutcome()
        may_retry = status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS
        return PostOutcome(f"answered with status {status}", may_retry, self._pause(response))

    def _pause(self, response: httpx2.Response) -> float:
        text = response.headers.get("Retry-After", "")
        try:
            seconds = (
                float(text) if text.isdigit() else (parsedate_to_datetime(text) - self._clock.now()).total_seconds()
            )
        except (ValueError, TypeError):
            return 0.0
        return min(max(seconds, 0.0), _LONGEST_PAUSE_SECONDS)


def _secret(path: str) -> str:
    """The content of a file. Raises ``OSError``; its message names the file, not what is in it."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise OSError(f"cannot read {path}: {reason}") from None
