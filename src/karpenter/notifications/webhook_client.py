"""Posts to one destination: every post ends within a bound, and its outcome is a value, never an exception.

Addresses and secret headers are read from their files before each post. Neither is ever logged or returned: the address of a chat
is a secret by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol

import aiohttp
from yarl import URL

from karpenter.kube import tls
from karpenter.kube.proxies import Proxy, proxy_for, usable_proxy
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


class PostFailed(Exception):
    """Nothing answered. The message is for logs: it holds neither the address nor a header."""


class PostSender(Protocol):
    """Sends posts over HTTP."""

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
        """Status and headers of the answer. Raises ``PostFailed``, and ``ValueError`` for what cannot be sent."""
        ...


#: Makes the sender of a destination.
PostSenderFactory = Callable[[Destination], PostSender]


class HttpPostSender:
    """A connection for each post, through the proxy of the environment if there is one. It follows no redirect."""

    def __init__(self, destination: Destination) -> None:
        """Raises ``OSError`` where the file of authorities cannot be read."""
        if destination.ca_file:
            self._context = ssl.create_default_context(cafile=destination.ca_file)
        else:
            self._context = tls.system_context()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
        """See ``PostSender``. Nothing is read of the body of the answer."""
        timeout = aiohttp.ClientTimeout(connect=_TIMEOUT_SECONDS, sock_read=_TIMEOUT_SECONDS)
        proxy = _proxy_to(url)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    _exact(url),
                    data=body,
                    headers=headers,
                    ssl=self._context,
                    proxy=proxy.url,
                    proxy_headers=proxy.headers,
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, response.headers
        except aiohttp.InvalidURL:
            raise ValueError("the address cannot be used") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PostFailed(f"no answer ({type(error).__name__})") from None


class WebhookClient:
    """Posts to one destination."""

    def __init__(self, destination: Destination, sender: PostSender, clock: Clock) -> None:
        self._destination = destination
        self._sender = sender
        self._clock = clock

    async def post(self, post: Post) -> PostOutcome:
        """Post once. Only the status and the headers of the answer are read, never its body."""
        try:
            url, headers = self._address(), self._headers(post)
        except (OSError, ValueError) as error:
            return PostOutcome(str(error), may_retry=True)
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                status, answered = await self._sender.send(url, post.body, headers)
            return self._outcome(status, answered)
        except TimeoutError:
            return PostOutcome(f"no answer within {_TOTAL_SECONDS:g} s", may_retry=True)
        except ValueError:
            return PostOutcome("the address or a header cannot be used")
        except PostFailed as error:
            return PostOutcome(str(error), may_retry=True)

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

    def _outcome(self, status: int, headers: Mapping[str, str]) -> PostOutcome:
        if status in _ACCEPTED:
            return PostOutcome()
        may_retry = status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS
        return PostOutcome(f"answered with status {status}", may_retry, self._pause(headers))

    def _pause(self, headers: Mapping[str, str]) -> float:
        text = headers.get("Retry-After", "")
        try:
            seconds = (
                float(text) if text.isdigit() else (parsedate_to_datetime(text) - self._clock.now()).total_seconds()
            )
        except (ValueError, TypeError):
            return 0.0
        return min(max(seconds, 0.0), _LONGEST_PAUSE_SECONDS)


def _proxy_to(url: str) -> Proxy:
    """The proxy of the environment. Raises ``PostFailed`` where it cannot be used."""
    try:
        return usable_proxy(proxy_for(url))
    except ValueError as error:
        raise PostFailed(str(error)) from None


def _exact(url: str) -> URL:
    """The address as it is written, where it can be sent so: some carry a signature of themselves."""
    return URL(url, encoded=url.isascii() and " " not in url)


def _secret(path: str) -> str:
    """The content of a file. Raises ``OSError``; its message names the file, not what is in it."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise OSError(f"cannot read {path}: {reason}") from None
