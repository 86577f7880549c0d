"""``karpenter console``: who is let in, what the page gets, and that it can do nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from karpenter.api import kinds
from karpenter.cli import planning_options
from karpenter.cli.main import app as commands
from karpenter.cli.top_answers import explain
from karpenter.console.console_input import ConsoleInput
from karpenter.console.visible_objects import COMPLETE
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.history.history_records import ClusterSample, DecisionRecord, NodeFacts, SpendingPart
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.model import freezes, labels
from karpenter.model.clock import SystemClock
from karpenter.model.feature_gates import FeatureGate
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.settings import Settings
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.webconsole.console_app import ACTION_HEADER, ConsoleParts, console_app
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.controller_console import why_no_wake_with
from karpenter.webconsole.viewer_access import SecretLinkAccess
from support.builders import NOW, node, pod, seconds
from support.console_cases import StagedSource, console_input
from support.disruption_cases import pool, running

ROOT = Path(__file__).parents[3]
WEB = ROOT / "console-web" / "src"
ASSETS = ROOT / "src" / "karpenter" / "webconsole" / "assets"
SECRET = "s3cret"
COOKIE = f"karpenter-console-{sha256(SECRET.encode()).hexdigest()[:8]}"
ADDRESS = "http://127.0.0.1:8080"
PATHS = (
    "/",
    "/console.js",
    "/console.css",
    "/api/session",
    "/api/view",
    "/api/stream",
    "/api/explanation?subject=node/n",
    "/api/history",
    "/api/decision?id=x",
    "/api/ledger",
    "/api/budgets",
    "/api/what-if?drain=n",
)
CLUSTER = (pool(), running("n", "m", 1), pod("huge", {"cpu": "100"}))


def parts(given: ConsoleInput | None = None, **further: object) -> ConsoleParts:
    shown = given or console_input(*CLUSTER)
    options = planning_options.disruption_options(Settings())
    feeds = ConsoleFeeds(StagedSource(shown, "a recording"), options)
    return ConsoleParts(feeds, SecretLinkAccess(SECRET, "me"), explain, **further)


@asynccontextmanager
async def browser(shown: ConsoleParts, address: str = ADDRESS) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=console_app(shown))
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=address, follow_redirects=True) as client:
            yield client
    finally:
        await shown.feeds.close()


async def ready(shown: ConsoleParts) -> ConsoleParts:
    """With the first document."""
    await shown.feeds.feed(COMPLETE).refresh()
    return shown


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_the_secret_nothing_is_shown(path: str, token: str) -> None:
    """Other users of the machine reach loopback, too."""
    async with browser(await ready(parts())) as client:
        cookie = {"Cookie": f"{COOKIE}={token}"}
        for answer in (
            await client.get(path, headers=cookie),
            await client.get(f"{path}{'&' if '?' in path else '?'}token={token}"),
        ):
            assert answer.status_code == 401
            assert answer.text == "open the address that karpenter console printed"


@pytest.mark.parametrize("path", PATHS)
async def test_under_another_host_name_nothing_is_shown(path: str) -> None:
    """A page of another site may let its name point to loopback."""
    async with browser(parts(), "http://evil.example:8080") as client:
        assert (await client.get(path, params={"token": SECRET})).status_code == 421


async def test_the_printed_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    async with browser(parts()) as client:
        entered = await client.get("/", params={"token": SECRET}, follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        attributes = entered.headers["set-cookie"].lower()
        assert "httponly" in attributes
        assert "samesite=strict" in attributes
        page = await client.get("/")
        assert page.status_code == 200
        assert "karpenter console" in page.text


async def test_every_answer_confines_the_page_to_its_own_files() -> None:
    async with browser(parts()) as client:
        for answer in (await client.get("/"), await client.get("/", params={"token": SECRET})):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_what_reads_answers_nothing_but_get(method: str) -> None:
    async with browser(parts()) as client:
        await client.get("/", params={"token": SECRET})
        for path in PATHS:
            assert (await client.request(method, path)).status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {ACTION_HEADER: "1", "Content-Type": "text/plain"},
        {ACTION_HEADER: "1", "Content-Type": "application/json", "Origin": "https://evil.example"},
        {ACTION_HEADER: "1", "Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_an_action_that_another_site_could_send_is_refused(headers: dict[str, str]) -> None:
    """A form of another site can send a POST with the cookie of an older browser, but neither this header nor JSON."""
    async with browser(parts()) as client:
        await client.get("/", params={"token": SECRET})
        body = json.dumps({"action": "freeze", "target": "np", "confirmed": True})
        answer = await client.post("/api/actions", content=body, headers=headers)
        assert (answer.status_code, answer.text) == (403, "actions come from the page of the console only")


async def test_a_recording_shows_the_command_of_an_action_and_does_nothing() -> None:
    async with browser(parts()) as client:
        await client.get("/", params={"token": SECRET})
        wanted = {"action": "keep-node", "target": "n"}
        shown = await client.post("/api/actions", json=wanted, headers={ACTION_HEADER: "1"})
        line = "kubectl annotate --overwrite node n karpenter.sh/do-not-disrupt=true"
        assert shown.json() == {"kubectl": line, "done": False}
        refused = await client.post("/api/actions", json={**wanted, "confirmed": True}, headers={ACTION_HEADER: "1"})
        assert refused.status_code == 409
        assert refused.text == (await client.get("/api/session")).json()["inaction"]
        assert refused.text == "this console shows a recording, so nothing can be done from here"


async def test_freezing_a_frozen_cluster_shows_the_patch_that_it_is() -> None:
    kube = MemoryKube(MemoryServer(SystemClock()))

    @asynccontextmanager
    async def act_as(_viewer: object) -> AsyncIterator[MemoryKube]:
        yield kube

    async with browser(parts(act_as=act_as)) as client:
        await client.get("/", params={"token": SECRET})
        verbs = []
        for confirmed in (False, True, False, True):
            body = {"action": "freeze", "reason": "the sale", "confirmed": confirmed}
            answer = await client.post("/api/actions", json=body, headers={ACTION_HEADER: "1"})
            assert answer.json()["done"] is confirmed
            verbs.append(answer.json()["kubectl"].split()[1])
        assert verbs == ["create", "create", "patch", "patch"]
    there = await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
    assert there.data["reason"] == "the sale"


@pytest.mark.parametrize(("gates", "status"), [(frozenset(), 409), ({FeatureGate.CAPACITY_SCHEDULE}, 200)])
async def test_a_wake_that_the_controller_would_ignore_is_refused_with_the_reason(
    gates: set[FeatureGate], status: int
) -> None:
    kube = MemoryKube(MemoryServer(SystemClock()))
    await kube.create(kinds.NODE_POOL, pool("dev"))

    @asynccontextmanager
    async def act_as(_viewer: object) -> AsyncIterator[MemoryKube]:
        yield kube

    async with browser(parts(act_as=act_as, why_no_wake=why_no_wake_with(frozenset(gates)))) as client:
        await client.get("/", params={"token": SECRET})
        body = {"action": "wake", "target": "dev", "hours": 2, "confirmed": True}
        answer = await client.post("/api/actions", json=body, headers={ACTION_HEADER: "1"})
    assert answer.status_code == status
    refusal = "the controller has the feature gate CapacitySchedule off, so this would have no effect"
    assert (answer.text == refusal) == (status == 409)
    annotations = (await kube.get(kinds.NODE_POOL, "dev")).metadata.annotations
    assert (labels.KEEP_AWAKE_UNTIL in annotations) == (status == 200)


async def test_the_page_gets_the_figures_of_the_cluster() -> None:
    """§9.2: active nodes, pending pods, CPU and memory, types; prices and budgets beside them."""
    async with browser(await ready(parts())) as client:
        await client.get("/", params={"token": SECRET})
        document = (await client.get("/api/view")).json()
    assert [(row["name"], row["type"], row["cpu"], row["price"]) for row in document["nodes"]] == [
        ("n", "m", 0.25, 2.0)
    ]
    assert document["pods"] == {"total": 2, "pending": 1, "running": 1, "bound": 1}
    assert document["fill"] == {"cpu": 0.25, "memory": 0.0}
    assert document["spending"]["instance type"] == [{"name": "m", "price": 2.0, "count": 1}]
    assert [budget["reason"] for budget in document["pools"][0]["budgets"]] == list(DisruptionReason)


async def test_before_the_first_objects_the_page_gets_an_answer_to_wait() -> None:
    options = planning_options.disruption_options(Settings())
    waiting = ConsoleParts(ConsoleFeeds(StagedSource(None), options), SecretLinkAccess(SECRET, "me"), explain)
    async with browser(waiting) as client:
        await client.get("/", params={"token": SECRET})
        assert (await client.get("/api/view")).status_code == 503


async def test_a_viewer_gets_the_present_document_and_then_the_one_with_reasons() -> None:
    shown = parts()
    news = shown.feeds.feed(COMPLETE).news()
    try:
        async with asyncio.timeout(60):
            while True:
                document = await anext(news)
                assert isinstance(document, bytes)
                (waiting,) = json.loads(document)["pending"]
                if waiting["reason"].startswith("unschedulable: "):
                    break
    finally:
        await shown.feeds.close()
        await news.aclose()  # type: ignore[attr-defined]


async def test_viewers_with_the_same_view_share_one_feed_which_ends_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = parts()
    feed = shown.feeds.feed(COMPLETE)
    assert shown.feeds.feed(COMPLETE) is feed
    monkeypatch.setattr("karpenter.webconsole.console_feed._IDLE_SECONDS", -1.0)
    async with asyncio.timeout(60):
        await shown.feeds._tasks[COMPLETE]
    await asyncio.sleep(0)
    assert shown.feeds.feed(COMPLETE) is not feed
    await shown.feeds.close()


async def test_questions_are_answered_and_bad_ones_refused() -> None:
    async with browser(await ready(parts())) as client:
        await client.get("/", params={"token": SECRET})
        drained = (await client.get("/api/what-if", params={"drain": "n"})).json()
        assert drained["removed"] == ["n"]
        added = (await client.get("/api/what-if", params={"pods": "3", "cpu": "1", "memory": "1Gi"})).json()
        assert [move["to"] for move in added["moves"]] == ["n", "n", "n"]
        for params in ({"drain": "gone"}, {"pods": "x"}, {"pods": "3", "cpu": "many"}, {"forbid": "none"}, {}):
            refused = await client.get("/api/what-if", params=params)
            assert refused.status_code == 400, params
            assert refused.text


async def test_the_history_is_served_where_one_is_kept(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history.db", HistoryBounds(timedelta(days=30), 2**30))
    node_of_then = NodeFacts("gone", "np", "l", "z1", "spot", 4.0, 7, 0.5)
    record = DecisionRecord(
        "cmd", NOW, "disruption", "Underutilized", "-1 node", "succeeded", saving_per_hour=2.0, before=(node_of_then,)
    )
    store.add_decisions([record])
    for minute, price in ((45, 4.0), (50, 2.0), (55, 2.0)):
        part = SpendingPart("namespace", "shop", price, 1)
        store.add_sample(ClusterSample(seconds(60 * minute), price, price, 1.0, 1, 0, 0.5, 0.5, (part,)))
    given = replace(console_input(*CLUSTER), now=seconds(3600))
    async with browser(await ready(parts(given, history=store))) as client:
        await client.get("/", params={"token": SECRET})
        told = (await client.get("/api/history", params={"hours": "2"})).json()
        assert told["samples"]["price"] == [4.0, 2.0, 2.0]
        ((spent,),) = told["spent"].values()
        assert (spent["name"], spent["usd"]) == ("shop", pytest.approx((4.0 + 2.0 + 2.0) * 5 / 60))
        assert [entry["id"] for entry in told["decisions"]] == ["cmd"]
        one = (await client.get("/api/decision", params={"id": "cmd"})).json()
        assert one["before"][0]["type"] == "l"
        assert (await client.get("/api/decision", params={"id": "other"})).status_code == 404
        assert (await client.get("/api/history", params={"hours": "-1"})).status_code == 400
        ledger = (await client.get("/api/ledger", params={"days": "1"})).json()
        assert ledger["spent"] == pytest.approx((4.0 + 2.0 + 2.0) * 5 / 60)
        assert [(part["by"], part["name"]) for part in ledger["parts"]] == [("namespace", "shop")]
        assert [(entry["id"], entry["realizedSavingPerHour"]) for entry in ledger["decisions"]] == [("cmd", 4.0)]
        for days in ("0", "91", "x"):
            assert (await client.get("/api/ledger", params={"days": days})).status_code == 400
    async with browser(parts()) as client:
        await client.get("/", params={"token": SECRET})
        assert (await client.get("/api/history")).status_code == 404
        assert (await client.get("/api/ledger")).status_code == 404


async def test_a_node_is_explained_and_anything_else_refused() -> None:
    async with browser(await ready(parts())) as client:
        await client.get("/", params={"token": SECRET})
        explained = await client.get("/api/explanation", params={"subject": "node/n"})
        assert explained.text.startswith("Node n ")
        assert explained.headers["content-type"].startswith("text/plain")
        assert (await client.get("/api/explanation", params={"subject": "secret/x"})).status_code == 400
        assert (await client.get("/api/explanation", params={"subject": "node/gone"})).text == "node gone is gone"


def test_the_page_makes_no_markup_of_what_it_gets() -> None:
    """Names, labels and messages come from other people's objects. Nothing is loaded from elsewhere either."""
    for source in WEB.rglob("*.ts*"):
        text = source.read_text()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert risky not in text, source
    page, style = ((ASSETS / name).read_text() for name in ("index.html", "console.css"))
    for text in (page, style):
        assert "http:" not in text
        assert "https:" not in text
    assert "style=" not in page
    assert "onclick" not in page


def test_the_committed_build_belongs_to_the_sources() -> None:
    """`make console-assets` builds it; whoever changes the sources or the build alone is told here."""
    spec = importlib.util.spec_from_file_location("console_assets", ROOT / "tools" / "console_assets.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    expected = f"sources {tool.source_hash()}\nbuild {tool.built_hash()}\n"
    assert (ASSETS / "SOURCES").read_text() == expected, "run make console-assets"


def test_the_pictures_of_the_guide_are_those_of_the_tool_at_three_widths() -> None:
    """`python tools/console_pictures.py` takes them from the demo; a PNG has its width in bytes 16 to 19."""
    tool = (ROOT / "tools" / "console_pictures.py").read_text()
    taken = {name: int(width) for name, width in re.findall(r'\("(console-[a-z-]+)", "[^"]+", (\d+), "', tool)}
    assert set(taken.values()) == {360, 800, 1280}
    guide = (ROOT / "docs" / "how-to" / "console.md").read_text()
    assert set(re.findall(r"pictures/(console-[a-z-]+)\.png", guide)) == set(taken)
    for name, width in taken.items():
        content = (ROOT / "docs" / "pictures" / f"{name}.png").read_bytes()
        assert int.from_bytes(content[16:20]) == width, name


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_bytes(kinds.NODE.encode(node("n", {"cpu": 4})))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(commands, ["console", "-f", str(file), "--port", port])
    assert done.exit_code == 2
    assert f"--port={port}: Address already in use; choose another, or 0 for a free one" in done.stderr


async def test_it_listens_on_loopback_and_stops_while_a_viewer_is_connected() -> None:
    shown = await ready(parts())
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(follow_redirects=True) as client,
        serving_on_loopback(console_app(shown)) as url,
    ):
        assert url.startswith("http://127.0.0.1:")
        await client.get(url, params={"token": SECRET})
        async with client.stream("GET", f"{url}/api/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            line = await anext(stream.aiter_lines())
            assert json.loads(line.removeprefix("data: "))["title"] == "a recording"
    await shown.feeds.close()
