"""An election on a thread of its own, so that a long computation never costs the lease.

The controller decides on one event loop. While it computes a large plan nothing else on that loop gets a turn, and a lease that
waited there would not be renewed. On a thread with its own loop and its own connection it is: the interpreter hands threads
their turns within milliseconds. What the two share is the moment in the ``Fence`` and the messages here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

#: Runs an election until the stop event is set; takes the callback for a won election and that event.
ElectionRun = Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]]


class Leadership(Protocol):
    """Whether this process leads."""

    async def elected(self) -> None:
        """Return once it leads."""

    async def ended(self) -> None:
        """Return, or raise what was the matter, when it does not lead any more and never will."""

    async def release(self) -> None:
        """Let another process lead. The caller has stopped all writes."""


class NoElection:
    """Without leader election: this process leads (OPS-317)."""

    async def elected(self) -> None:
        """At once."""

    async def ended(self) -> None:
        """Never."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """No other process waits for the lease."""


class ElectionThread:
    """An election on its own thread. Create it on the event loop that receives the outcome."""

    def __init__(self, election_run: ElectionRun) -> None:
        self._election_run = election_run
        self._main_loop = asyncio.get_running_loop()
        self._election_loop = asyncio.new_event_loop()
        self._elected_event = asyncio.Event()
        self._release_event = asyncio.Event()
        self._result: asyncio.Future[None] = self._main_loop.create_future()
        # A process that ends in any other way than by ``release`` does not wait for it.
        threading.Thread(target=self._run, name="leader election", daemon=True).start()

    async def elected(self) -> None:
        """Return once the campaign has won."""
        await self._elected_event.wait()

    async def ended(self) -> None:
        """Return or raise as the campaign does."""
        await asyncio.shield(self._result)

    async def release(self) -> None:
        """Request the end of the election and wait for it. Raises what it raises."""
        if not self._result.done():
            self._election_loop.call_soon_threadsafe(self._release_event.set)
        await self.ended()

    def _run(self) -> None:
        fault: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._election_loop) as runner:
                runner.run(self._election_run(self._on_started_leading, self._release_event))
        except BaseException as error:
            fault = error
        self._call_in_main_loop(self._finish, fault)

    def _on_started_leading(self) -> None:
        self._call_in_main_loop(self._elected_event.set)

    def _call_in_main_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        # The other loop may be closed already, when the whole process ends.
        with suppress(RuntimeError):
            self._main_loop.call_soon_threadsafe(callback, *arguments)

    def _finish(self, error: BaseException | None) -> None:
        if self._result.cancelled():
            return
        if error is None:
            self._result.set_result(None)
        else:
            self._result.set_exception(error)
