"""The latest document for everybody who may see the same: made once, whatever the number of viewers, and not without any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgspec

from karpenter.console.assessment import Assessment, assess
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.visible_objects import Visibility
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.webconsole.console_document import console_document

_REFRESH_SECONDS = 1.0
_ASSESSMENT_PAUSE_SECONDS = 5.0
#: A stream without news says something all the same, so that a viewer who left is noticed.
_KEEP_ALIVE_SECONDS = 15.0
#: A feed that nobody asked for so long ends.
_IDLE_SECONDS = 60.0

#: The cluster as somebody may see it; None before the first objects came.
CurrentInput = Callable[[], ConsoleInput | None]


class ConsoleFeed:
    """The latest document of one audience. ``fault`` says why it may be stale, ``title`` which cluster it is."""

    def __init__(
        self, current: CurrentInput, title: Callable[[], str], fault: Callable[[], str], options: DisruptionOptions
    ) -> None:
        self.options = options
        self.given: ConsoleInput | None = None
        self.document = b""
        self._current = current
        self._title = title
        self._fault = fault
        self._assessment = Assessment()
        #: The assessment that the document was made with.
        self._shown = self._assessment
        self._changed = asyncio.Condition()
        self._asked_at = 0.0

    async def run(self) -> None:
        """Keep the document current until nobody asked for a minute."""
        self.touch()
        assessing = asyncio.create_task(self._keep_assessing())
        try:
            await self._keep_current()
        finally:
            assessing.cancel()

    def touch(self) -> None:
        """Somebody asks."""
        self._asked_at = asyncio.get_running_loop().time()

    async def _keep_current(self) -> None:
        """The larger the cluster, the longer the pauses: a third of the time at most goes into documents."""
        loop = asyncio.get_running_loop()
        while loop.time() - self._asked_at < _IDLE_SECONDS:
            begun = loop.time()
            await self.refresh()
            await asyncio.sleep(max(_REFRESH_SECONDS, 2 * (loop.time() - begun)))

    async def refresh(self) -> None:
        """Make the document anew if there is anything new to say."""
        given = self._current()
        if given is None or (self.document and given is self.given and self._shown is self._assessment):
            return
        self.given, self._shown = given, self._assessment
        placed = replace(given, placements=self._assessment.placements or given.placements)
        document = await asyncio.to_thread(self._encoded, ConsoleView(placed))
        async with self._changed:
            self.document = document
            self._changed.notify_all()

    def _encoded(self, view: ConsoleView) -> bytes:
        data = console_document(view, self._shown.bound_per_hour)
        return msgspec.json.encode({**data, "fault": self._fault(), "title": self._title()})

    async def _keep_assessing(self) -> None:
        while True:
            if self.given is not None:
                self._assessment = await asyncio.to_thread(assess, self.given, self.options)
                await self.refresh()
            await asyncio.sleep(_ASSESSMENT_PAUSE_SECONDS if self.document else _REFRESH_SECONDS / 4)

    async def documents(self) -> AsyncIterator[bytes]:
        """Each new document from the present one on; empty after a while without news."""
        sent = b""
        while True:
            self.touch()
            if self.document and self.document != sent:
                sent = self.document
                yield sent
                continue
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                yield b""


#: The cluster as an audience may see it.
InputFor = Callable[[Visibility], ConsoleInput | None]


class ConsoleFeeds:
    """A feed per audience: people who may see the same share one."""

    def __init__(
        self, input_for: InputFor, title: Callable[[], str], fault: Callable[[], str], options: DisruptionOptions
    ) -> None:
        self.options = options
        self._input_for = input_for
        self._title = title
        self._fault = fault
        self._feeds: dict[Visibility, ConsoleFeed] = {}
        self._tasks: dict[Visibility, asyncio.Task[None]] = {}

    def feed(self, visibility: Visibility) -> ConsoleFeed:
        """The running feed of this audience."""
        task = self._tasks.get(visibility)
        if task is None or task.done():
            feed = ConsoleFeed(lambda: self._input_for(visibility), self._title, self._fault, self.options)
            self._feeds[visibility] = feed
            self._tasks[visibility] = asyncio.create_task(feed.run())
            self._tasks[visibility].add_done_callback(lambda _: self._drop(visibility, feed))
        self._feeds[visibility].touch()
        return self._feeds[visibility]

    def _drop(self, visibility: Visibility, feed: ConsoleFeed) -> None:
        if self._feeds.get(visibility) is feed:
            del self._feeds[visibility]
            del self._tasks[visibility]

    def input(self, visibility: Visibility) -> ConsoleInput | None:
        """The cluster as this audience may see it, as in its latest document."""
        feed = self.feed(visibility)
        return feed.given or self._input_for(visibility)

    async def close(self) -> None:
        """End all feeds."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
