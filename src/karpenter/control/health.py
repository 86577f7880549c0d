"""``/healthz`` and ``/readyz`` (OPS-364): alive while the process runs, ready when the watches are."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping

import structlog

#: A check by name: empty text when all is well, else what is wrong.
Checks = Mapping[str, Callable[[], str]]


#: How often a port that cannot be had is tried again.
_RETRY_SECONDS = 5.0
_log = structlog.get_logger()


class HealthServer:
    """A minimal HTTP responder. ``checks`` decide readiness; a failing one gives 500 and its text."""

    def __init__(self, port: int, checks: Checks) -> None:
        self._port = port
        self._checks = checks

    async def run(self) -> None:
        """Serve until cancelled, as soon as the port can be had; until then one log line says why not."""
        async with await self._listening() as server:
            await server.serve_forever()

    async def _listening(self) -> asyncio.Server:
        said = ""
        while True:
            try:
                return await self._bound()
            except OSError as error:
                why = _explained(error, self._port)
                if why != said:
                    _log.error("health probes cannot be answered", error=why)
                said = why
                await asyncio.sleep(_RETRY_SECONDS)

    async def _bound(self) -> asyncio.Server:
        """Listen on the addresses of all families, as probes come over the pod's own, whichever it has."""
        try:
            return await asyncio.start_server(self._answer, None, self._port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # A kernel that knows IPv6 but was told to have none.
            return await asyncio.start_server(self._answer, "0.0.0.0", self._port)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            parts = head.decode("latin-1").split()
            status, body = self.respond(parts[1].partition("?")[0] if len(parts) > 1 else "")
            text = body.encode()
            headers = ("Content-Type: text/plain", f"Content-Length: {len(text)}", "Connection: close")
            writer.write("\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode() + text)
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        finally:
            writer.close()

    def respond(self, path: str) -> tuple[str, str]:
        """Status line and body for a path."""
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            results = {name: check() for name, check in self._checks.items()}
            lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in results.items()]
            failed = any(results.values())
            return ("500 Internal Server Error" if failed else "200 OK"), "\n".join(lines) + "\n"
        return "404 Not Found", "not found\n"


def _explained(error: OSError, port: int) -> str:
    mend = "choose another with --health-probe-port, or 0 for none"
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} is taken by another process: end that, or {mend}"
        case errno.EACCES:
            return f"port {port} is not allowed to this user: {mend}"
    return f"port {port} cannot be listened on ({error}): {mend}"
