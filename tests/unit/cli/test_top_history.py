"""``karpenter top`` with the history of a controller: from its file, or from the console that it serves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from textual.widgets import Static
from typer.testing import CliRunner

from karpenter.cli import planning_options
from karpenter.cli.history_beside_source import HistoryBesideSource
from karpenter.cli.main import app as commands
from karpenter.cli.top_app import TopApp, ViewerSetup
from karpenter.cli.top_cells import TableRow
from karpenter.cli.top_history import ControllerHistory, FileHistory, HistoryUnavailable
from karpenter.cli.top_options import ViewerOptions
from karpenter.cli.top_source import RecordedSource
from karpenter.cli.top_table_widget import LiveTable
from karpenter.console.console_view import ConsoleView
from karpenter.console.decision_rows import DecisionKind
from karpenter.history.history_records import ClusterSample, DecisionRecord, InterruptionRecord, NodeFacts
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.settings import Settings
from karpenter.webconsole.console_app import console_app
from support.console_cases import console_input, event
from support.disruption_cases import pool, running
from support.reviewing_server import ReviewingServer, reviewed_parts

DEADLINE_SECONDS = 60.0
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
EVENTS = [
    event("DisruptionTerminating", "NodeClaim", "old", "Disrupting Node: Underutilized", at=NOW),
    event("DisruptionTerminating", "NodeClaim", "later", "Disrupting Node: Empty", at=NOW),
    event("InsufficientCapacityError", "NodeClaim", "np-9", "no capacity", at=NOW),
]


@pytest.fixture
def store(tmp_path: Path) -> HistoryStore:
    """Two hours: a consolidation that no event tells of any more, one that an event tells of as well, an interruption."""
    made = HistoryStore(tmp_path / "history.db", HistoryBounds(timedelta(days=30), 2**30))
    facts = (NodeFacts("old"),), (NodeFacts("new"),)
    made.add_decisions(
        [
            DecisionRecord("a", NOW - 2 * HOUR, "disruption", "Empty", "-3 nodes (empty)", "failed"),
            DecisionRecord(
                "b", NOW - HOUR, "disruption", "Underutilized", "-1 node +1 node", "succeeded", "", None, 3, 0.5, *facts
            ),
        ]
    )
    made.add_interruptions([InterruptionRecord(NOW - HOUR, "SpotInterrupted", "spot-1", "two minutes")])
    for minute, price in ((90, 1.0), (60, 4.0), (30, 2.0)):
        at = NOW - timedelta(minutes=minute)
        made.add_sample(ClusterSample(at, price, price, None, 1, minute, 0.5, 0.5))
    return made


def test_a_history_tells_what_events_forgot_and_nothing_comes_twice(store: HistoryStore) -> None:
    recent = FileHistory(store).recent()
    assert (recent.prices, recent.pending) == ((1.0, 4.0, 2.0), (90.0, 60.0, 30.0))
    given = console_input(pool(), running("n", "m", 1), events=EVENTS, now=NOW)
    shown = ConsoleView(replace(given, recorded=recent.decisions)).decisions
    assert {(row.kind, row.text) for row in shown if row.kind is not DecisionKind.LAUNCH} == {
        (DecisionKind.DISRUPTION, "-3 nodes (empty), failed"),
        (DecisionKind.DISRUPTION, "-1 node +1 node"),
        (DecisionKind.DISRUPTION, "-1 node (empty)"),
        (DecisionKind.INTERRUPTION, "two minutes"),
        (DecisionKind.FAILURE, "no capacity"),
    }
    (replacing,) = [row for row in shown if row.text == "-1 node +1 node"]
    assert (replacing.nodes, replacing.replaced_by, replacing.restarts) == (("old",), ("new",), 3)
    assert [row.at for row in shown] == sorted((row.at for row in shown), reverse=True)


async def test_the_console_of_a_controller_tells_the_same_to_those_who_may_list_everything(store: HistoryStore) -> None:
    parts = reviewed_parts(ReviewingServer(), history=store)
    async with serving_on_loopback(console_app(parts)) as url:
        told = await asyncio.to_thread(ControllerHistory(url, "admin").recent)
        with pytest.raises(HistoryUnavailable, match="the history tells of objects that you may not list"):
            await asyncio.to_thread(ControllerHistory(url, "operator").recent)
        with pytest.raises(HistoryUnavailable):
            await asyncio.to_thread(ControllerHistory(url, "nobody").recent)
    await parts.feeds.close()
    with pytest.raises(HistoryUnavailable, match=url):
        await asyncio.to_thread(ControllerHistory(url, "admin").recent)
    names = {row.nodes for row in told.decisions.rows} if told.decisions is not None else set()
    assert names >= {("old",), ("spot-1",)}


async def test_the_console_of_a_kubeconfig_shows_decisions_of_the_controllers_history(store: HistoryStore) -> None:
    parts = reviewed_parts(ReviewingServer(), history=store)
    given = console_input(pool(), running("n", "m", 1), events=EVENTS, now=NOW)
    async with serving_on_loopback(console_app(parts)) as url, asyncio.timeout(DEADLINE_SECONDS):
        source = HistoryBesideSource(RecordedSource("a recording", given), ControllerHistory(url, "admin"))
        assert source.current() is given
        following = asyncio.create_task(source.run())
        while (shown := source.current()) is given:
            await asyncio.sleep(0.01)
        assert shown is not None
        decided = {row.text: row for row in ConsoleView(shown).decisions}
        assert (decided["-1 node +1 node"].restarts, source.fault(), source.title) == (3, "", "a recording")
        assert source.current() is shown, "as long as nothing changes no page is made anew"
        following.cancel()
    await parts.feeds.close()
    refused = HistoryBesideSource(RecordedSource("a recording", given), ControllerHistory("http://127.0.0.1:1", "x"))
    following = asyncio.create_task(refused.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (shown := refused.current()) or not shown.history_fault.startswith("http://127.0.0.1:1: "):
            await asyncio.sleep(0.01)
    assert refused.fault() == "", "the cluster is current"
    assert shown == replace(given, history_fault=shown.history_fault)
    assert refused.current() is shown
    following.cancel()


def screen(source: ControllerHistory | FileHistory) -> TopApp:
    given = console_input(pool(), running("n", "m", 1), events=EVENTS, now=NOW)
    options = planning_options.disruption_options(Settings())
    return TopApp(ViewerSetup(RecordedSource("a recording", given), ViewerOptions(), options, source))


async def test_the_screen_shows_recorded_decisions_and_the_prices_of_the_last_day(store: HistoryStore) -> None:
    app = screen(FileHistory(store))
    async with app.run_test(size=(120, 30)) as pilot, asyncio.timeout(DEADLINE_SECONDS):
        while not app.is_complete:
            await pilot.pause(0.01)
        await app.refresh_view()
        summary = str(app.query_one("#summary", Static).content)
        assert summary.endswith("$/h \u2583\u2588\u2585"), "1, 4 and 2 USD per hour"
        await pilot.press("3")
        while not any("-3 nodes (empty), failed" in row.search_text for row in _rows(app)):
            await pilot.pause(0.01)


async def test_without_an_answer_of_the_controller_the_cluster_is_shown_and_the_reason_named() -> None:
    app = screen(ControllerHistory("http://127.0.0.1:1", "token"))
    async with app.run_test(size=(200, 30)) as pilot, asyncio.timeout(DEADLINE_SECONDS):
        while not app.is_complete:
            await pilot.pause(0.01)
        await app.refresh_view()
        assert [row.cells[0].text for row in _rows(app)] == ["n"]
        assert "no history: http://127.0.0.1:1: " in str(app.query_one("#status", Static).content)


def _rows(app: TopApp) -> tuple[TableRow, ...]:
    (shown,) = (table for table in app.query(LiveTable) if table.has_focus)
    return tuple(shown.rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--history", "gone.db"], "--history=gone.db: no such file"),
        (["--controller", "http://10.0.0.1:8082"], "the token would cross the network in clear"),
        (["--controller", "ftp://x"], "expected an address such as http://127.0.0.1:8082"),
        (["--controller", "http://127.0.0.1:8082"], "--controller needs --controller-token-file"),
        (
            ["--controller", "https://k", "--controller-token-file", "gone"],
            "--controller-token-file=gone: cannot be read",
        ),
        (["--controller", "https://k", "--history", "gone.db"], "--history and --controller: name one of them"),
    ],
)
@pytest.mark.parametrize("command", ["top", "console"])
def test_a_history_that_cannot_be_meant_is_named_in_one_line(command: str, options: list[str], said: str) -> None:
    done = CliRunner().invoke(commands, [command, *options])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
