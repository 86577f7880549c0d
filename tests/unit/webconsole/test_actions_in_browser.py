"""Freezes, approved plans, savings and decisions in a real browser. `make soak` installs what they need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.history.history_records import ClusterSample, DecisionRecord, NodeFacts, SpendingPart
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.kube.errors import NotFound
from karpenter.model import freezes
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.browser import TIMEOUT_MS, Visit, served
from support.builders import NOW, claim, seconds
from support.console_cases import StagedSource, console_input
from support.disruption_cases import on, pool, running

T = TypeVar("T")
pytestmark = pytest.mark.soak
CLUSTER = (pool(), pool("other"), running("n", "m", 1))


class Acting:
    """Actions reach this server, and so does the test."""

    def __init__(self) -> None:
        self.kube = MemoryKube(MemoryServer(SystemClock()))

    @asynccontextmanager
    async def __call__(self, _viewer: object) -> AsyncIterator[MemoryKube]:
        yield self.kube

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In a thread of its own: Playwright has an event loop in that of the test."""
        with ThreadPoolExecutor(1) as pool_of_one:
            return pool_of_one.submit(asyncio.run, work).result()


def confirm(visit: Visit, label: str) -> str:
    """Open an action, do it, close it; its kubectl line."""
    page = visit.page
    page.get_by_role("button", name=label).first.click()
    page.wait_for_function("() => document.querySelector('dialog[open] pre')?.textContent.startsWith('kubectl ')")
    line: str = page.inner_text("dialog[open] pre")
    page.locator("dialog[open] button.primary").click()
    page.wait_for_function("() => document.querySelector('dialog[open] .outcome')?.textContent === 'Done.'")
    page.keyboard.press("Escape")
    return line


def test_a_frozen_cluster_is_announced_on_every_page_and_thawed(chromium: Any) -> None:
    acting, source = Acting(), StagedSource(console_input(*CLUSTER))
    thawed = source.given
    assert thawed is not None
    with served(source, act_as=acting) as address:
        visit = Visit(chromium, address)
        assert visit.page.locator("#freezes").count() == 0
        visit.go("pools")
        assert confirm(visit, "Freeze the cluster").startswith("kubectl create configmap karpenter-freeze ")
        written = acting.run(acting.kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE))
        snapshot = replace(thawed.snapshot, freeze=freezes.cluster_freeze(written))
        source.given = replace(thawed, snapshot=snapshot)
        visit.page.wait_for_selector("#freezes", timeout=TIMEOUT_MS)
        for page in ("overview", "nodes", "pools"):
            visit.go(page)
            assert visit.page.inner_text("#freezes") == f"All NodePools are frozen by {freezes.CLUSTER_SOURCE}"
        assert confirm(visit, "Thaw the cluster").startswith("kubectl delete configmap karpenter-freeze ")
        source.given = replace(thawed, now=seconds(1))
        visit.page.wait_for_selector("#freezes", state="detached", timeout=TIMEOUT_MS)
        assert visit.complaints == []
        visit.close()


def test_a_frozen_nodepool_is_named_with_its_reason(chromium: Any) -> None:
    notes = {"karpenter.sh/freeze": "release week", "karpenter.sh/freeze-until": "2026-12-27T00:00:00Z"}
    web = pool("web")
    frozen = msgspec.structs.replace(web, metadata=msgspec.structs.replace(web.metadata, annotations=notes))
    with served(StagedSource(console_input(frozen, *CLUSTER))) as address:
        visit = Visit(chromium, address)
        said = visit.page.inner_text("#freezes")
        assert said.startswith("NodePool web is frozen by ")
        assert said.endswith(" until 2026-12-27T00:00:00Z: release week")
        visit.close()


def test_the_plan_of_a_drained_node_is_approved_after_its_consequences_are_shown(chromium: Any) -> None:
    acting = Acting()
    given = console_input(*CLUSTER)
    (existing,) = [view.claim for view in given.snapshot.nodes if view.claim is not None]
    name = existing.metadata.name
    acting.run(acting.kube.create(kinds.NODE_CLAIM, claim(name)))
    with served(StagedSource(given), act_as=acting) as address:
        visit = Visit(chromium, address)
        visit.go("what-if?drain=n")
        assert "1 node goes" in visit.page.inner_text(".verdict")
        line = confirm(visit, "Approve: drain n")
        assert line == f"kubectl delete nodeclaim {name} --wait=false"
        with pytest.raises(NotFound):
            acting.run(acting.kube.get(kinds.NODE_CLAIM, name))
        visit.go("what-if?pods=3&cpu=1&memory=1Gi")
        assert visit.page.get_by_role("button", name="Approve").count() == 0
        visit.close()


# -- savings --------------------------------------------------------------------------------------------------------------

_DAY = 86_400


def kept_history(folder: Path) -> HistoryStore:
    """Two hours of two days, five minutes apart, and a disruption."""
    store = HistoryStore(folder / "history.db", HistoryBounds(timedelta(days=90), 2**30))
    parts = (
        SpendingPart("namespace", "shop", 3.0, 2),
        SpendingPart("label team", "<b>pay</b>", 2.5, 2),
        SpendingPart("label team", "(no label)", 0.5, 1),
        SpendingPart("unused", "room between pods", 0.75, 1),
        SpendingPart("unused", "held", 0.25, 1),
    )
    for begin in (0, _DAY):
        for minute in range(0, 120, 5):
            at = seconds(begin + 60 * minute)
            store.add_sample(ClusterSample(at, 4.0, 3.0, 2.0, 1, 0, 0.5, 0.5, parts, classic_per_hour=6.0))
    before = NodeFacts("old", "np", "l", "z1", "spot", 4.0, 7, 0.5)
    after = NodeFacts("new", "np", "m", "z1", "on-demand", 3.0, 7, 0.9)
    store.add_decisions(
        [
            DecisionRecord(
                "cmd",
                NOW,
                "disruption",
                "Underutilized",
                "-1 node +1 node",
                "succeeded",
                ended_at=NOW,
                pods=7,
                saving_per_hour=1.25,
                before=(before,),
                after=(after,),
            )
        ]
    )
    return store


def cells(visit: Visit, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    rows = visit.page.locator(f"#{table} tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]


def test_the_savings_ledger_has_days_teams_unused_capacity_and_classic_packing(chromium: Any, tmp_path: Path) -> None:
    given = replace(console_input(*CLUSTER), now=seconds(_DAY + 7200))
    with served(StagedSource(given), history=kept_history(tmp_path)) as address:
        visit = Visit(chromium, address)
        visit.go("savings")
        visit.page.wait_for_selector("#days tbody tr", timeout=TIMEOUT_MS)
        ledger = visit.page.evaluate("async () => (await fetch('api/ledger?days=7')).json()")
        figures = {
            figure: visit.page.inner_text(f"[data-figure={figure}] .value")
            for figure in ("spent", "paid", "classic", "saved-by-packing", "saved-by-decisions")
        }
        assert figures == {
            "spent": f"${ledger['spent']:.2f}",
            "paid": f"${sum(day['nodePools'] for day in ledger['days']):.2f}",
            "classic": f"${sum(day['classicPacking'] for day in ledger['days']):.2f}",
            "saved-by-packing": f"${ledger['savedByPacking']:.2f}",
            "saved-by-decisions": f"${ledger['savedByDecisions']:.2f}",
        }
        assert figures["saved-by-decisions"] == "$24.00", "1 USD per hour realized, for 24 hours at most"
        assert "1.50 \u00d7 the lower bound" in visit.page.inner_text("[data-figure=paid]")
        days = cells(visit, "days")
        assert [row[0] for row in days] == [day["day"] for day in ledger["days"]]
        assert days[1][1:] == ["2.0", "$8.00", "$6.00", "$4.00", "$12.00"]
        teams, unused = cells(visit, "spent-label-team"), cells(visit, "unused")
        assert [row[0] for row in teams] == ["<b>pay</b>", "(no label)"]
        assert [(row[0], row[2]) for row in unused] == [("room between pods", "75"), ("held", "25")]
        assert cells(visit, "saved")[0][5:] == ["$1.2500", "$1.0000", "$24.00"]
        visit.page.select_option("#main select", "1")
        visit.page.wait_for_function(
            "() => document.querySelectorAll('#days tbody tr').length === 1", timeout=TIMEOUT_MS
        )
        assert "days=1" in visit.page.url
        assert visit.complaints == []
        visit.close()


# -- decisions and prices -------------------------------------------------------------------------------------------------


def test_the_price_is_shown_against_its_bound_as_a_figure_and_over_time(chromium: Any, demo_console: str) -> None:
    visit = Visit(chromium, demo_console)
    shown = """async () => {
        const view = await (await fetch('api/view')).json();
        const text = document.querySelector('[data-figure=bound] .value')?.textContent;
        return view.bound > 0 && text === `${(view.managedPrice / view.bound).toFixed(2)} \u00d7`
            && view.managedPrice >= view.bound;
    }"""
    visit.until(shown)
    chart = visit.page.locator("section[aria-labelledby=h-cost] .chart").first
    assert chart.locator("canvas").count() == 1
    legend = chart.inner_text()
    assert "price per hour" in legend
    assert "lower bound" in legend
    visit.close()


def test_charts_have_their_times_in_utc_as_the_rest_of_the_page_wherever_the_browser_is(
    chromium: Any, demo_console: str
) -> None:
    kept = """
        window.drawn = [];
        const fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            window.drawn.push(text);
            return fill.call(this, text, ...rest);
        };
    """
    visit = Visit(chromium, demo_console, prepared=kept, timezone_id="Asia/Kathmandu")
    now = visit.page.evaluate("async () => (await (await fetch('api/view')).json()).now")
    seen = visit.until(
        "() => { const found = window.drawn.filter((text) => /:/.test(text)); return found.length && found; }"
    )
    moments = [time.fromisoformat(text.split("\n")[0]) for text in seen]
    at = datetime.fromisoformat(now)
    minutes = [(at.hour * 60 + at.minute - moment.hour * 60 - moment.minute) % 1440 for moment in moments]
    assert max(minutes) < 120, (seen, now)
    visit.close()


def test_what_may_not_be_evicted_is_named_before_a_drain_is_approved(chromium: Any) -> None:
    kept = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    with served(StagedSource(console_input(*CLUSTER, on("n", 1, prefix="kept", meta=kept)))) as address:
        visit = Visit(chromium, address)
        visit.go("what-if?drain=n")
        assert visit.page.inner_text("#held").startswith("1 pod may not be evicted now")
        assert [row[0] for row in cells(visit, "holding")] == ["default/kept-0"]
        visit.close()


def test_a_decision_shows_its_nodes_before_and_after_with_the_pods_that_move(chromium: Any, demo_console: str) -> None:
    visit = Visit(chromium, demo_console)
    told = visit.until("""async () => {
        const history = await (await fetch('api/history?hours=24')).json();
        return history.decisions.find((decision) => decision.before.length && decision.pods) ?? null;
    }""")
    visit.page.evaluate("id => { location.hash = '#/decision/' + id }", told["id"])
    visit.page.wait_for_selector(".picture", timeout=TIMEOUT_MS)
    names = [host.inner_text() for host in visit.page.locator(".picture .host.gone strong").all()]
    assert names == [node["name"] for node in told["before"]]
    names = [host.inner_text() for host in visit.page.locator(".picture .host.new strong").all()]
    assert names == [node["name"] for node in told["after"]]
    moving = visit.page.inner_text(".picture .arrow")
    assert f"{told['pods']} pod" in moving
    dots = visit.page.locator(".picture .host.gone").first.locator(".dots i").count()
    assert dots == min(40, told["before"][0]["pods"])
    visit.close()


@pytest.mark.parametrize("page", ["nodes", "pools", "decisions", "spend", "savings"])
def test_at_1280_pixels_no_column_is_cut(chromium: Any, demo_console: str, page: str) -> None:
    visit = Visit(chromium, demo_console, 1280)
    visit.go(page)
    visit.page.wait_for_selector("main table", timeout=TIMEOUT_MS)
    assert cut_tables(visit) == []
    visit.close()


def test_at_1280_pixels_long_names_of_nodes_are_not_cut(chromium: Any) -> None:
    name = "ip-192-168-119-202.ap-northeast-2.compute.internal"
    with served(StagedSource(console_input(pool(), running(name, "c6a.metal-48xlarge", 1)))) as address:
        visit = Visit(chromium, address, 1280)
        visit.go("nodes")
        visit.page.wait_for_selector("main table", timeout=TIMEOUT_MS)
        assert name in visit.page.inner_text("main table")
        assert cut_tables(visit) == []
        visit.close()


def cut_tables(visit: Visit) -> list[str]:
    """Labels of the tables that are wider than their frame."""
    cut: list[str] = visit.page.evaluate(
        """() => [...document.querySelectorAll('main .scroll')]
        .filter((frame) => frame.scrollWidth > frame.clientWidth).map((frame) => frame.getAttribute('aria-label'))"""
    )
    return cut
