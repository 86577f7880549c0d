"""Serving a web application on loopback within the event loop of the caller. ``karpenter run`` does not need it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette

_SHUTDOWN_SECONDS = 2


@asynccontextmanager
async def serving_on_loopback(
    app: Starlette, port: int = 0, on_stop: Callable[[], None] = lambda: None
) -> AsyncIterator[str]:
    """Serve while the context lasts; yields the URL. Port 0 takes a free one. Raises ``OSError`` for a taken one.

    ``on_stop`` ends answers that have no end of their own.
    """
    with _listening_socket(port) as listening:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = _Uvicorn(config)
        task = asyncio.create_task(server.serve([listening]))
        try:
            await server.ready.wait()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            on_stop()
            await task


def _listening_socket(port: int) -> socket.socket:
    # With its protocol named, or asyncio would not send small answers at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


class _Uvicorn(uvicorn.Server):
    """A server that says when it listens and leaves signals to the program around it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
