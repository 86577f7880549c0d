"""The latest document for all viewers with the same rights: made once, whatever their number, and only while there are any.

The event loop only takes the cluster as it is, once for all feeds. Views and documents are made in threads, one at a time, and
a feed begins none while a decision is being computed, for up to ten seconds.
An error is shown to the viewers, who keep the last document. The work is tried again after growing pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
import structlog

from karpenter.console.assessment import Assessment, assess
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.viewer_source import ViewerSource
from karpenter.console.visible_objects import Visibility, visible_input
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.model import clock
from karpenter.model.backoff import Backoff
from karpenter.runtime.decisions_in_progress import DecisionsInProgress
from karpenter.webconsole.console_document import console_document
from karpenter.webconsole.feed_limits import MAX_FEEDS, TooManyViewers

_REFRESH_SECONDS = 1.0
_ASSESSMENT_PAUSE_SECONDS = 5.0
#: A cluster where one decision follows the other is shown all the same.
_LONGEST_WAIT_FOR_DECISIONS_SECONDS = 10.0
_FAILURE_BACKOFF = Backoff(1.0, 60.0)
#: An idle stream still sends something this often, so that a viewer who left is noticed.
_KEEP_ALIVE_SECONDS = 15.0
#: A feed without requests for this long ends.
_IDLE_SECONDS = 60.0
_log = structlog.get_logger()


@dataclass(frozen=True)
class FeedFault:
    """Why the document is stale or incomplete. ``since``: the time of the latest document, RFC 3339; empty without one."""

    fault: str
    since: str


class SharedCluster:
    """The cluster as it is now, taken once for all feeds that ask within a refresh; and the turns of their threads."""

    def __init__(self, source: ViewerSource, options: DisruptionOptions, decisions: DecisionsInProgress) -> None:
        self.source = source
        self.options = options
        self._decisions = decisions
        #: One view and one assessment at a time: threads that compute take turns with the controllers.
        self.building, self.assessing = asyncio.Semaphore(1), asyncio.Semaphore(1)
        self._given: ConsoleInput | None = None
        self._taken_at = float("-inf")

    def current(self) -> ConsoleInput | None:
        """The whole cluster; None before the first objects came."""
        now = asyncio.get_running_loop().time()
        if now >= self._taken_at + _REFRESH_SECONDS / 2:
            self._given, self._taken_at = self.source.current(), now
        return self._given

    async def until_no_decision(self) -> None:
        """Wait for the decision that is being computed, for a while."""
        await self._decisions.until_idle(_LONGEST_WAIT_FOR_DECISIONS_SECONDS)


class ConsoleFeed:
    """The latest document of one audience. The document's ``fault`` says why the cluster may be stale."""

    def __init__(self, cluster: SharedCluster, visibility: Visibility) -> None:
        self.document = b""
        #: What is wrong now, by the part of the feed that failed.
        self._faults: dict[str, FeedFault] = {}
        #: The cluster as this audience may see it, in the latest document.
        self._given: ConsoleInput | None = None
        #: The whole cluster that ``_given`` is a part of.
        self._whole: ConsoleInput | None = None
        self._cluster = cluster
        self._visibility = visibility
        self._assessment = Assessment()
        #: The assessment that the document was made with.
        self._shown = self._assessment
        self._changed = asyncio.Condition()
        #: Increased with every change that streams have to send.
        self._version = 0
        self._is_over = False
        self._asked_at = 0.0

    async def run(self) -> None:
        """Keep the document current until there was no request for a minute."""
        self.touch()
        assessing = asyncio.create_task(self._repeat("assessment", self._assess))
        try:
            await self._repeat("document", self._refresh)
        finally:
            assessing.cancel()
            self._is_over = True
            await self._tell()

    def touch(self) -> None:
        """Note a request."""
        self._asked_at = asyncio.get_running_loop().time()

    async def _repeat(self, part: str, work: Callable[[], Awaitable[float]]) -> None:
        """Do a part's work again and again: ``work`` returns the pause; where it fails, pauses grow up to a minute."""
        loop, failures = asyncio.get_running_loop(), 0
        while loop.time() - self._asked_at < _IDLE_SECONDS:
            try:
                pause = await work()
                failures = 0
                if part in self._faults:
                    await self._set_fault(part, "")
            except Exception as error:
                failures += 1
                pause = _FAILURE_BACKOFF.delay(failures)
                _log.error("a page of the console cannot be made", part=part, exc_info=error)
                # The kind of error only: its text may be about objects that not all viewers may see.
                await self._set_fault(part, f"the {part} cannot be made ({type(error).__name__}); the log says more")
            await asyncio.sleep(pause)

    async def _refresh(self) -> float:
        """The larger the cluster, the longer the pauses: a third of the time at most goes into documents."""
        await self._cluster.until_no_decision()
        begun = asyncio.get_running_loop().time()
        await self.refresh()
        return max(_REFRESH_SECONDS, 2 * (asyncio.get_running_loop().time() - begun))

    async def refresh(self) -> None:
        """Make the document anew if there is anything new to say. Raises whatever making it raises."""
        whole, assessment = self._cluster.current(), self._assessment
        if whole is None:
            await self._set_fault("cluster", self._cluster.source.fault() if self.document else "")
            return
        if self.document and whole is self._whole and self._shown is assessment:
            return
        said = {"fault": self._cluster.source.fault(), "title": self._cluster.source.title}
        async with self._cluster.building:
            given, document = await asyncio.to_thread(self._made, whole, assessment, said)
        self._given, self._whole, self._shown = given, whole, assessment
        self.document = document
        self._faults.pop("cluster", None)
        await self._tell()

    def _made(self, whole: ConsoleInput, assessment: Assessment, said: Mapping[str, str]) -> tuple[ConsoleInput, bytes]:
        """The visible part of the cluster, and its document."""
        given = visible_input(whole, self._visibility)
        view = ConsoleView(replace(given, placements=given.placements or assessment.placements))
        data = console_document(view, assessment.bound_per_hour)
        return given, msgspec.json.encode({**data, **said})

    async def _assess(self) -> float:
        await self._cluster.until_no_decision()
        given = self._given
        if given is None:
            return _REFRESH_SECONDS / 4
        async with self._cluster.assessing:
            self._assessment = await asyncio.to_thread(assess, given, self._cluster.options)
        return _ASSESSMENT_PAUSE_SECONDS

    async def input(self) -> ConsoleInput | None:
        """The cluster as in the latest document, or as it is now; None before the first objects came."""
        whole = self._cluster.current()
        if self._given is not None or whole is None:
            return self._given
        return await asyncio.to_thread(visible_input, whole, self._visibility)

    # -- telling the viewers ----------------------------------------------------------------------------------------------

    @property
    def fault(self) -> FeedFault:
        """What is wrong now; empty where all is well."""
        return next(iter(self._faults.values()), FeedFault("", ""))

    async def _set_fault(self, part: str, reason: str) -> None:
        before = self.fault
        if not reason:
            self._faults.pop(part, None)
        elif part not in self._faults or self._faults[part].fault != reason:
            since = clock.rfc3339(self._given.now) if self._given is not None else ""
            self._faults[part] = FeedFault(reason, since)
        if self.fault != before:
            await self._tell()

    async def _tell(self) -> None:
        self._version += 1
        async with self._changed:
            self._changed.notify_all()

    async def news(self) -> AsyncIterator[bytes | FeedFault | None]:
        """Each new document from the present one on, and each change of what is wrong; None after a while without either.

        Ends with the feed.
        """
        document, fault = b"", FeedFault("", "")
        while not self._is_over:
            self.touch()
            version = self._version
            if self.fault != fault:
                fault = self.fault
                yield fault
            elif self.document is not document:
                document = self.document
                yield document
            elif not await self._has_changed_since(version):
                yield None

    async def _has_changed_since(self, version: int) -> bool:
        """Wait for a new version; False if none came for a while."""
        try:
            async with asyncio.timeout(_KEEP_ALIVE_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._version != version)
        except TimeoutError:
            return False
        return True


class ConsoleFeeds:
    """A feed per audience: viewers with the same rights share one. ``decisions``: those of this process, for which it waits."""

    def __init__(
        self, source: ViewerSource, options: DisruptionOptions, decisions: DecisionsInProgress | None = None
    ) -> None:
        self.options = options
        self._cluster = SharedCluster(source, options, decisions or DecisionsInProgress())
        self._feeds: dict[Visibility, ConsoleFeed] = {}
        self._tasks: dict[Visibility, asyncio.Task[None]] = {}

    def feed(self, visibility: Visibility) -> ConsoleFeed:
        """The running feed of this audience. Raises ``TooManyViewers`` where it would be one too many."""
        task = self._tasks.get(visibility)
        if task is None or task.done():
            if len(self._tasks) >= MAX_FEEDS:
                raise TooManyViewers(
                    f"{MAX_FEEDS} groups of viewers with different rights look already; try again in a minute"
                )
            feed = ConsoleFeed(self._cluster, visibility)
            self._feeds[visibility] = feed
            self._tasks[visibility] = asyncio.create_task(feed.run())
            self._tasks[visibility].add_done_callback(lambda _: self._drop(visibility, feed))
        self._feeds[visibility].touch()
        return self._feeds[visibility]

    def _drop(self, visibility: Visibility, feed: ConsoleFeed) -> None:
        if self._feeds.get(visibility) is feed:
            del self._feeds[visibility]
            del self._tasks[visibility]

    async def input(self, visibility: Visibility) -> ConsoleInput | None:
        """The cluster as this audience may see it, as in its latest document. Raises ``TooManyViewers``."""
        return await self.feed(visibility).input()

    async def close(self) -> None:
        """End all feeds."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
