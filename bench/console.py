"""The web console of 500 nodes with 5 000 pods: first paint, CPU of server and browser; and what a history costs."""

from __future__ import annotations

import asyncio
import importlib.util
import resource
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Figure
from karpenter.cli import planning_options
from karpenter.cli.top_answers import explain
from karpenter.console.assessment import next_plan
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.history.decision_records import changed_decisions
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.history.sampling import ComparedPrices, cluster_sample, compared_prices
from karpenter.runtime.decisions_in_progress import DecisionsInProgress
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.settings import Settings
from karpenter.webconsole.console_app import ConsoleParts, console_app
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.viewer_access import SecretLinkAccess
from support.builders import pod
from support.console_cases import StagedSource, console_input
from support.disruption_cases import pool, running

VIEWERS, SECONDS = 10, 20
#: Turns with and without viewers, and decisions in each.
TURNS, DECISIONS = 4, 80
#: Between two decisions.
_PAUSE_SECONDS = 0.1
_SECRET = "s3cret"
#: A viewer: reads the stream and drops it.
_VIEWER = """
import socket, sys
host, port, cookie = sys.argv[1:4]
sockets = [socket.create_connection((host, int(port))) for _ in range(int(sys.argv[4]))]
for one in sockets:
    one.sendall(f"GET /api/stream HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nCookie: {cookie}\\r\\n\\r\\n".encode())
    one.settimeout(0.01)
while True:
    for one in sockets:
        try:
            one.recv(1 << 20)
        except TimeoutError:
            pass
"""
#: Milliseconds until the page has painted, and until the boxes of all nodes are there.
_PAINT = """() => new Promise((resolve) => {
    const wait = () => {
        const painted = performance.getEntriesByName('first-contentful-paint')[0];
        if (painted && document.querySelectorAll('a.box').length >= WANTED) resolve([painted.startTime, performance.now()]);
        else requestAnimationFrame(wait);
    };
    wait();
})"""


def cluster(nodes: int, waiting: int = 0) -> ConsoleInput:
    """So many nodes with ten pods each, and so many pods that wait."""
    full = [running(f"node-{number}", "m", *([0.3] * 10)) for number in range(nodes)]
    pending = [pod(f"waiting-{number}", {"cpu": f"{500 + 10 * (number % 40)}m"}) for number in range(waiting)]
    return console_input(pool(), full, pending)


def figures() -> Iterator[Figure]:
    """All of it; the paint only where Chromium and Playwright are installed."""
    yield from asyncio.run(_served(500))
    yield from asyncio.run(_served(5000))
    yield from asyncio.run(_listed(_decisions_beside()))
    yield from _history(cluster(500))


async def _listed(figures: AsyncIterator[Figure]) -> list[Figure]:
    return [figure async for figure in figures]


class _MovingSource(StagedSource):
    """Another input every time, as in a cluster where something always happens."""

    def current(self) -> ConsoleInput | None:
        assert self.given is not None
        return replace(self.given, now=self.given.now + timedelta(seconds=time.monotonic()))


async def _served(nodes: int) -> list[Figure]:
    given = cluster(nodes)
    feeds = ConsoleFeeds(_MovingSource(given), planning_options.disruption_options(Settings()))
    access = SecretLinkAccess(_SECRET, "bench")
    async with serving_on_loopback(console_app(ConsoleParts(feeds, access, explain))) as url:
        host, port = url.removeprefix("http://").split(":")
        cookie = f"{access.cookie}={_SECRET}"
        async with _viewers(host, port, cookie):
            before = _cpu_seconds()
            await asyncio.sleep(SECONDS)
            spent = _cpu_seconds() - before
        target = 100.0 if nodes == 500 else None
        found = [
            Figure(f"console, {nodes} nodes, {VIEWERS} viewers: server CPU", 1000 * spent / SECONDS, "ms/s", target)
        ]
        painted = await asyncio.to_thread(_paint, f"{url}/?token={_SECRET}", nodes)
    await feeds.close()
    names = (("first paint", "s"), ("all nodes are there", "s"), ("browser, page Nodes: main thread", "ms/s"))
    targets = (1.5 if nodes == 500 else None, None, None)
    found += [
        Figure(f"console, {nodes} nodes: {name}", value, unit, limit)
        for (name, unit), value, limit in zip(names, painted, targets, strict=False)
    ]
    return found


@asynccontextmanager
async def _viewers(host: str, port: str, cookie: str) -> AsyncIterator[None]:
    """Ten viewers, who have been there for a while."""
    viewers = await asyncio.create_subprocess_exec(sys.executable, "-c", _VIEWER, host, port, cookie, str(VIEWERS))
    await asyncio.sleep(SECONDS / 2)
    try:
        yield
    finally:
        viewers.kill()
        await viewers.wait()


async def _decisions_beside() -> AsyncIterator[Figure]:
    """How much longer a decision takes while ten viewers follow the console. In turns, because a computer's speed changes."""
    given = cluster(500)
    waiting = replace(given, snapshot=cluster(500, waiting=200).snapshot)
    options = planning_options.disruption_options(Settings())
    alone, beside = [], []
    decisions = DecisionsInProgress()

    async def decide() -> list[float]:
        return await _decision_seconds(lambda: next_plan(waiting, options), decisions)

    for _ in range(TURNS):
        alone += await decide()
        feeds = ConsoleFeeds(_MovingSource(given), options, decisions)
        access = SecretLinkAccess(_SECRET, "bench")
        async with serving_on_loopback(console_app(ConsoleParts(feeds, access, explain))) as url:
            host, port = url.removeprefix("http://").split(":")
            async with _viewers(host, port, f"{access.cookie}={_SECRET}"):
                beside += await decide()
        await feeds.close()
    more = 100 * (mean(beside) / mean(alone) - 1)
    yield Figure("console, 500 nodes: a decision alone", mean(alone), "s")
    yield Figure(f"console, 500 nodes: a decision beside {VIEWERS} viewers takes longer by", more, "%", 3.0)


async def _decision_seconds(decide: Callable[[], object], decisions: DecisionsInProgress) -> list[float]:
    """How long decisions take: in a thread, as those of consolidation, with pauses in which the viewers get their documents."""
    seconds = []
    for _ in range(DECISIONS):
        begun = time.perf_counter()
        with decisions.computing():
            await asyncio.to_thread(decide)
        seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(_PAUSE_SECONDS)
    return seconds


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _paint(address: str, nodes: int) -> list[float]:
    """Seconds until the first paint and until all nodes are there, and how busy the page Nodes then keeps the browser."""
    found = shutil.which("chromium")
    if found is None or importlib.util.find_spec("playwright") is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page: Any = browser.new_page()
        page.goto(address)
        times: list[float] = page.evaluate(_PAINT.replace("WANTED", str(nodes)))
        page.evaluate("location.hash = '#/nodes'")
        page.wait_for_function("nodes => document.querySelectorAll('#nodes tbody tr').length === nodes", arg=nodes)
        busy = _main_thread_share(page)
        browser.close()
    return [*(milliseconds / 1000 for milliseconds in times), busy]


def _main_thread_share(page: Any) -> float:
    """Milliseconds per second for which the page keeps its main thread busy while it follows the cluster."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy_seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    page.wait_for_timeout(2000)
    before, begun = busy_seconds(), time.monotonic()
    page.wait_for_timeout(1000 * SECONDS)
    return 1000 * (busy_seconds() - before) / (time.monotonic() - begun)


def _history(given: ConsoleInput) -> Iterator[Figure]:
    """The share of a core that recording takes, at the intervals of the controller."""
    with TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder) / "history.db", HistoryBounds(timedelta(days=30), 2**26))
        store.add_sample(cluster_sample(ConsoleView(given), ComparedPrices()))
        sample = _cpu_of(lambda: store.add_sample(cluster_sample(ConsoleView(replace(given)), ComparedPrices())))
        bound = _cpu_of(lambda: compared_prices(given))
        decisions = _cpu_of(lambda: changed_decisions(given, (), {}))
    share = sample / 60 + bound / 300 + decisions / 5
    yield Figure("history, 500 nodes: CPU of a sample", sample, "s")
    yield Figure("history, 500 nodes: CPU of the prices to compare with", bound, "s")
    yield Figure("history, 500 nodes: CPU of looking for decisions", decisions, "s")
    yield Figure("history, 500 nodes: share of a core", 100 * share, "%", 3.0)


def _cpu_of(work: Any) -> float:
    seconds = []
    for _ in range(3):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return min(seconds)
