"""Running the demo: the stage, the story on it, somebody to show it, and an open door for kubectl."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from karpenter.catalog import ec2
from karpenter.cli.demo import Options
from karpenter.cli.demo_story import Teller, story
from karpenter.cli.demo_text import PlainLines, Presenter, progress, summary
from karpenter.cli.demo_view import Screen
from karpenter.control import logging
from karpenter.providers.simulated import Timing
from karpenter.sim import Cast, LoopClock, Stage, on_stage, run_paced
from karpenter.sim.stage import NO_HEARTBEATS
from karpenter.sim.time import PacedLoop

#: When stories begin that nobody can reach into: always the same, so that they are the same.
_BEGINNING = datetime(2026, 1, 1, 8, tzinfo=UTC)
#: More cluster time than the show takes. Where kubectl reads the time too, a show begins this long ago and ends about now.
_LONGEST_SHOW = timedelta(minutes=6)
#: The pace of the quiet time that may be left then.
_CATCHING_UP = 60.0

_NEXT = (
    ("karpenter demo --serve", "the same with an open door for kubectl"),
    ("karpenter plan -f FILE", "what would be bought for your own pods, and why"),
    ("karpenter run", "on a cluster of your own, with simulated machines"),
)

#: What to type at the open door.
_TRY = (
    "get nodes",
    "create deployment web --image=nginx",
    "set resources deployment web --requests=cpu=3,memory=6Gi",
    "scale deployment web --replicas=20",
    "get nodeclaims --watch",
    "delete deployment web",
)


class ShowError(Exception):
    """The show cannot begin; the message says what to change."""


class Stopped(Exception):
    """Somebody ended the show early."""


class _Console(Console):
    """A console. ``told`` is set when it is time to stop: nobody reads on (or, by ``_Show``, a signal came)."""

    def __init__(self) -> None:
        super().__init__(highlight=False)
        self.told = asyncio.Event()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        self.told.set()


def show(options: Options) -> str:
    """Run the demo to its end. Returns what went wrong, in one line; empty when nothing did.

    Raises ``ShowError`` before the beginning, ``Stopped`` when a signal comes before the end, ``BrokenPipeError`` when nobody
    reads on.
    """
    console = _Console()
    with _log_to(options.log):
        return run_paced(lambda clock: _Show(console, options, clock).run(), _start(options), options.speed)


def _start(options: Options) -> datetime:
    if options.port is None:
        return _BEGINNING
    begun = datetime.now(UTC) - _LONGEST_SHOW * (1 - 1 / max(options.speed, 1.0))
    # On the second, as the other beginning: creation times have whole seconds, and pods are taken in their order.
    return begun.replace(microsecond=0)


@contextmanager
def _log_to(path: Path | None) -> Iterator[None]:
    try:
        stream = open(path or os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ShowError(f"--log={path}: cannot be written ({error.strerror})") from None
    with stream:
        logging.configure("info", stream)
        yield


class _Show:
    """One run."""

    def __init__(self, console: _Console, options: Options, clock: LoopClock) -> None:
        self._console = console
        self._options = options
        self._clock = clock
        self._start = clock.now()
        self._told = console.told

    async def run(self) -> str:
        """See ``show``."""
        loop = asyncio.get_running_loop()
        for sort in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sort, self._told.set)
        async with on_stage(self._clock, self._cast()) as stage, self._door(stage) as url:
            presenter = self._presenter(stage)
            self._invite(url)
            complaint = await self._play(stage, presenter)
            if url:
                await self._stay_open(stage, presenter, url)
            return complaint

    def _cast(self) -> Cast:
        # Visitors ask for the heartbeats of nodes, nobody else does.
        timing = NO_HEARTBEATS if self._options.port is None else Timing()
        return Cast(ec2.types(), timing=timing)

    @asynccontextmanager
    async def _door(self, stage: Stage) -> AsyncIterator[str]:
        """The API server's address while it listens; empty when nobody is let in."""
        port = self._options.port
        if port is None:
            yield ""
            return
        from karpenter.kube.serve import serving

        async with AsyncExitStack() as stack:
            try:
                url = await stack.enter_async_context(serving(stage.server, port))
            except OSError as error:
                raise ShowError(f"--port={port}: {error.strerror}; choose another, or 0 for a free one") from None
            yield url

    def _presenter(self, stage: Stage) -> Presenter:
        console = self._console
        if sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf"):
            return Screen(self._console, stage, self._start, self._options.speed)
        return PlainLines(self._console, stage, self._start)

    async def _play(self, stage: Stage, presenter: Presenter) -> str:
        teller = Teller(stage, story(self._options.pods, self._options.seed), presenter.chapter)
        finished = await self._shown(presenter, self._tell(teller))
        self._sum_up(stage)
        if self._console.quiet:
            raise BrokenPipeError
        if not finished:
            raise Stopped
        return "; ".join(teller.complaints)

    async def _tell(self, teller: Teller) -> None:
        await teller.set_up()
        await teller.rise_and_fall()
        if self._options.port is None:
            await teller.close()
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Until the cluster's time is the real time, then go on as it does: people compare the two."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, PacedLoop):
            return
        loop.pace(max(self._options.speed, _CATCHING_UP))
        while (behind := datetime.now(UTC) - self._clock.now()) > timedelta(seconds=1):
            await asyncio.sleep(behind.total_seconds())
        loop.pace(1.0)

    async def _shown(self, presenter: Presenter, work: Coroutine[object, object, None]) -> bool:
        """Do the work and show it meanwhile; False if a signal came before it was done."""
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(presenter.run())
            told = group.create_task(self._told.wait())
            working = group.create_task(work)
            await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
            for task in (showing, told, working):
                task.cancel()
        return not working.cancelled()

    def _sum_up(self, stage: Stage) -> None:
        self._print()
        for label, value in summary(stage, self._start, self._clock.now()):
            self._print(Text.assemble((f"  {label:<20}", "dim"), (value, "bold")))
        self._print()
        for command, meaning in _NEXT if self._options.port is None else _NEXT[1:]:
            self._print(Text.assemble("  ", (f"{command:<24}", "cyan"), meaning))

    def _invite(self, url: str) -> None:
        if url:
            self._print(Text.assemble("the cluster listens at ", (url, "bold"), " while this runs"))

    async def _stay_open(self, stage: Stage, presenter: Presenter, url: str) -> None:
        self._print()
        self._print("In another terminal, for as long as this one runs (Ctrl-C ends it):")
        for arguments in _TRY:
            self._print(Text.assemble("  ", (f"kubectl --server {url} {arguments}", "cyan")))
        self._print()
        presenter.settle_down()
        presenter.chapter("the cluster goes on in real time")
        await self._shown(presenter, _for_ever())
        rate = stage.ledger.meter.rate_usd_per_hour(self._clock.now())
        self._print(f"closed; gone with this process: {progress(stage.census(), rate)}")

    def _print(self, what: str | Text = "") -> None:
        self._console.print(what, soft_wrap=True)


async def _for_ever() -> None:
    await asyncio.Event().wait()
