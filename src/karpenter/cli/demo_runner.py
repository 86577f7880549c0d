"""Running the demo: the stage, the story on it, somebody to show it, and an open door for kubectl."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from karpenter.cli.demo_chart import PriceChart, Step
from karpenter.cli.demo_node_classes import report_ec2_classes
from karpenter.cli.demo_options import DemoOptions
from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.cli.demo_screen import DemoScreen
from karpenter.cli.demo_text import DemoPresenter, PlainPresenter, comparison, progress, summary
from karpenter.cli.terminal import check_writable
from karpenter.instancetypes import ec2_packaged_types
from karpenter.providers.simulated import SimulatedTiming
from karpenter.runtime import logging
from karpenter.simulation import LoopClock, SimulatedCluster, SimulationConfig, run_paced, running_cluster
from karpenter.simulation.simulated_cluster import NO_NODE_HEARTBEATS
from karpenter.simulation.virtual_time import PacedLoop

#: When stories begin that nobody can reach into: always the same, so that they are the same.
_FIXED_START = datetime(2026, 1, 1, 8, tzinfo=UTC)
#: More cluster time than the show takes. Where kubectl reads the time too, a show begins this long ago and ends about now.
_LONGEST_RUN = timedelta(minutes=16)
#: The pace of the quiet time that may be left then.
_CATCH_UP_SPEED = 60.0

_NEXT_COMMANDS = (
    ("karpenter demo --serve", "the same, with an API server for kubectl"),
    ("karpenter plan -f FILE", "the nodes for your own pods, and why"),
    ("karpenter run", "on your own cluster, with simulated instances"),
)

#: Commands that work on the demo cluster.
_KUBECTL_EXAMPLES = (
    "get nodes",
    "create deployment web --image=nginx",
    "set resources deployment web --requests=cpu=3,memory=6Gi",
    "scale deployment web --replicas=20",
    "get nodeclaims --watch",
    "delete deployment web",
)


class DemoStartError(Exception):
    """The demo cannot begin; the message says what to change."""


class DemoInterrupted(Exception):
    """A signal ended the demo early."""


class _Console(Console):
    """A console. ``stop_requested`` is set when the reader is gone, and by ``_DemoRun`` when a signal came."""

    def __init__(self) -> None:
        super().__init__(highlight=False)
        self.stop_requested = asyncio.Event()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        self.stop_requested.set()


def run_demo(options: DemoOptions) -> str:
    """Run the demo to its end. Returns what went wrong, in one line; empty when nothing did.

    Raises ``DemoStartError`` before the beginning, ``DemoInterrupted`` when a signal comes before the end, ``BrokenPipeError``
    when the reader is gone.
    """
    console = _Console()
    if options.svg is not None and not options.svg.parent.is_dir():
        raise DemoStartError(f"--svg={options.svg}: {options.svg.parent} is no directory")
    if options.svg is not None:
        check_writable("--svg", options.svg)
    with _log_to(options.log):
        return run_paced(lambda clock: _DemoRun(console, options, clock).run(), _start(options), options.speed)


def _start(options: DemoOptions) -> datetime:
    if options.port is None:
        return _FIXED_START
    begun = datetime.now(UTC) - _LONGEST_RUN * (1 - 1 / max(options.speed, 1.0))
    # On the second, as the other beginning: creation times have whole seconds, and pods are taken in their order.
    return begun.replace(microsecond=0)


@contextmanager
def _log_to(path: Path | None) -> Iterator[None]:
    try:
        stream = open(path or os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise DemoStartError(f"--log={path}: cannot be written ({error.strerror})") from None
    with stream:
        logging.configure("info", stream)
        yield


class _DemoRun:
    """One run."""

    def __init__(self, console: _Console, options: DemoOptions, clock: LoopClock) -> None:
        self._console = console
        self._options = options
        self._clock = clock
        self._start = clock.now()
        self._stop_requested = console.stop_requested

    async def run(self) -> str:
        """See ``run_demo``."""
        loop = asyncio.get_running_loop()
        for sort in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sort, self._stop_requested.set)
        async with running_cluster(self._clock, self._stage_config()) as stage, self._serve_api(stage) as url:
            presenter = self._presenter(stage)
            self._print_address(url)
            complaint = await self._play_scenario(stage, presenter)
            if url:
                await self._serve_until_stopped(stage, presenter, url)
            return complaint

    def _stage_config(self) -> SimulationConfig:
        # Visitors ask for the heartbeats of nodes, nobody else does.
        timing = NO_NODE_HEARTBEATS if self._options.port is None else SimulatedTiming()
        return SimulationConfig(ec2_packaged_types.packaged_instance_types(), timing=timing)

    @asynccontextmanager
    async def _serve_api(self, stage: SimulatedCluster) -> AsyncIterator[str]:
        """The API server's address while it listens; empty when nobody is let in."""
        port = self._options.port
        if port is None:
            yield ""
            return
        from karpenter.simulation.apiserver.http_front import serving

        async with AsyncExitStack() as stack:
            try:
                url = await stack.enter_async_context(serving(stage.server, port))
            except OSError as error:
                raise DemoStartError(f"--port={port}: {error.strerror}; choose another, or 0 for a free one") from None
            reporting = asyncio.create_task(report_ec2_classes(stage.kube, self._clock))
            stack.callback(reporting.cancel)
            yield url

    def _presenter(self, stage: SimulatedCluster) -> DemoPresenter:
        console = self._console
        if sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf"):
            return DemoScreen(self._console, stage, self._start, self._options.speed)
        return PlainPresenter(self._console, stage, self._start)

    async def _play_scenario(self, stage: SimulatedCluster, presenter: DemoPresenter) -> str:
        teller = ScenarioPlayer(stage, build_scenario(self._options.pods, self._options.seed), presenter)
        finished = await self._present_while(presenter, self._run_phases(teller))
        self._print_summary(stage, teller)
        self._write_chart(stage, teller)
        if self._console.quiet:
            raise BrokenPipeError
        if not finished:
            raise DemoInterrupted
        return "; ".join(teller.failures)

    async def _run_phases(self, teller: ScenarioPlayer) -> None:
        await teller.run_until_load_falls()
        if self._options.port is None:
            await teller.scale_to_zero()
        else:
            await self._catch_up_with_real_time()

    async def _catch_up_with_real_time(self) -> None:
        """Until the cluster's time is the real time, then go on as it does: people compare the two."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, PacedLoop):
            return
        loop.set_speed(max(self._options.speed, _CATCH_UP_SPEED))
        while (behind := datetime.now(UTC) - self._clock.now()) > timedelta(seconds=1):
            await asyncio.sleep(behind.total_seconds())
        loop.set_speed(1.0)

    async def _present_while(self, presenter: DemoPresenter, work: Coroutine[object, object, None]) -> bool:
        """Do the work and show it meanwhile; False if a signal came before it was done."""
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(presenter.run())
            stopping = group.create_task(self._stop_requested.wait())
            working = group.create_task(work)
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (showing, stopping, working):
                task.cancel()
        return not working.cancelled()

    def _print_summary(self, stage: SimulatedCluster, teller: ScenarioPlayer) -> None:
        self._print()
        self._print(
            _two_columns(
                (*summary(stage, self._start, self._clock.now()), *comparison(teller.comparisons)), "dim", "bold"
            )
        )
        self._print()
        self._print(_two_columns(_NEXT_COMMANDS if self._options.port is None else _NEXT_COMMANDS[1:], "cyan", ""))

    def _write_chart(self, stage: SimulatedCluster, teller: ScenarioPlayer) -> None:
        if self._options.svg is None:
            return

        chart = price_chart(stage, teller, self._start)
        self._options.svg.write_text(chart.svg(), encoding="utf-8")
        self._print(f"chart: {self._options.svg}")

    def _print_address(self, url: str) -> None:
        if url:
            self._print(Text.assemble("the cluster listens at ", (url, "bold"), " while this runs"))

    async def _serve_until_stopped(self, stage: SimulatedCluster, presenter: DemoPresenter, url: str) -> None:
        self._print()
        self._print("In another terminal, for as long as this one runs (Ctrl-C ends it):")
        for arguments in _KUBECTL_EXAMPLES:
            self._print(Text.assemble("  ", (f"kubectl --server {url} {arguments}", "cyan")))
        self._print()
        presenter.switch_to_real_time()
        presenter.phase("the cluster goes on in real time")
        await self._present_while(presenter, _wait_forever())
        rate = stage.history.meter.rate_usd_per_hour(self._clock.now())
        self._print(f"closed; gone with this process: {progress(stage.counts(), rate)}")

    def _print(self, what: str | Text | Table = "") -> None:
        if isinstance(what, Table) and not self._console.is_terminal:
            with self._console.capture() as capture:
                self._console.print(what)
            what = "\n".join(line.rstrip() for line in capture.get().splitlines())  # rich fills cells with blanks
        self._console.print(what, soft_wrap=not isinstance(what, Table))


def price_chart(stage: SimulatedCluster, teller: ScenarioPlayer, start: datetime) -> PriceChart:
    """The chart of the story so far."""

    def steps(changes: Iterable[tuple[datetime, float]]) -> list[Step]:
        return [Step((at - start).total_seconds(), price) for at, price in changes]

    return PriceChart(
        steps(stage.history.meter.rate_changes()),
        steps(teller.bounds),
        [((at - start).total_seconds(), headline) for at, headline in teller.phases],
        (stage.clock.now() - start).total_seconds(),
    )


def _two_columns(rows: Iterable[tuple[str, str]], first_style: str, second_style: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for first, second in rows:
        table.add_row(Text(f"  {first}", style=first_style, no_wrap=True), Text(second, style=second_style))
    return table


async def _wait_forever() -> None:
    await asyncio.Event().wait()
