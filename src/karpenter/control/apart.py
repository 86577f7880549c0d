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

#: Stands in an election until told to leave: is handed whom to tell that it has won, and what is set when it should leave.
Campaign = Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]]


class Leadership(Protocol):
    """Whether this process leads."""

    async def elected(self) -> None:
        """Return once it leads."""

    async def ended(self) -> None:
        """Return, or raise what was the matter, when it does not lead any more and never will."""

    async def leave(self) -> None:
        """Let another process lead. Whoever asks has seen to it that nothing is written any more."""


class Alone:
    """Where nobody else stands: this process leads (OPS-317)."""

    async def elected(self) -> None:
        """At once."""

    async def ended(self) -> None:
        """Never."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Nobody waits for it."""


class Apart:
    """A campaign on a thread of its own. Create it on the event loop that wants to know how it goes."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._here = asyncio.get_running_loop()
        self._there = asyncio.new_event_loop()
        self._won = asyncio.Event()
        self._leave = asyncio.Event()
        self._end: asyncio.Future[None] = self._here.create_future()
        # A process that ends in any other way than by ``leave`` does not wait for it.
        threading.Thread(target=self._work, name="leader election", daemon=True).start()

    async def elected(self) -> None:
        """Return once the campaign has won."""
        await self._won.wait()

    async def ended(self) -> None:
        """Return or raise as the campaign does."""
        await asyncio.shield(self._end)

    async def leave(self) -> None:
        """Tell the campaign to leave and wait until it has. Raises what it raises."""
        if not self._end.done():
            self._there.call_soon_threadsafe(self._leave.set)
        await self.ended()

    def _work(self) -> None:
        fault: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._there) as runner:
                runner.run(self._campaign(self._has_won, self._leave))
        except BaseException as error:
            fault = error
        self._tell(self._conclude, fault)

    def _has_won(self) -> None:
        self._tell(self._won.set)

    def _tell(self, what: Callable[..., object], *about: object) -> None:
        # The other loop may be closed already, when the whole process ends.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(what, *about)

    def _conclude(self, fault: BaseException | None) -> None:
        if self._end.cancelled():
            return
        if fault is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(fault)
