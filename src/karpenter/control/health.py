"""``/healthz`` and ``/readyz`` (OPS-364): alive while the process runs, ready when the watches are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

#: A check by name: empty text when all is well, else what is wrong.
Checks = Mapping[str, Callable[[], str]]


class HealthServer:
    """A minimal HTTP responder. ``checks`` decide readiness; a failing one gives 500 and its text."""

    def __init__(self, port: int, checks: Checks) -> None:
        self._port = port
        self._checks = checks

    async def run(self) -> None:
        """Serve until cancelled. Raises ``OSError`` when the port is taken."""
        server = await asyncio.start_server(self._answer, "0.0.0.0", self._port)
        async with server:
            await server.serve_forever()

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
