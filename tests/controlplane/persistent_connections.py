"""HTTPS calls to one server over persistent connections: a TLS handshake costs both sides ten times as much as most calls.

Tests ask an API server thousands of times, above all while they wait for something.
"""

from __future__ import annotations

import http.client
import ssl
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of an answer."""

    status: int
    body: bytes


@dataclass
class PersistentConnections:
    """Connections to the server at ``url``; any number of threads may call. ``certificate`` is the file of its authority."""

    url: str
    certificate: Path
    _idle: deque[http.client.HTTPSConnection] = field(default_factory=deque, init=False)

    def call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> HttpAnswer:
        """One call that takes at most about ``seconds``. Raises ``OSError`` or ``http.client.HTTPException``.

        Where the server has closed a kept connection since its last call, the call is made on a new one.
        """
        with suppress(IndexError):
            # A server closes idle connections and loses all of them when it is killed.
            with suppress(http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):
                return self._call_on(self._idle.pop(), method, path, body, headers, seconds)
            self.close()
        return self._call_on(self._new(), method, path, body, headers, seconds)

    def close(self) -> None:
        """Close connections that are not in use."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _new(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection(urlsplit(self.url).netloc, context=context)

    def _call_on(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> HttpAnswer:
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            answer = HttpAnswer(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer
