"""``karpenter console``: who is let in, what the page gets, and that it can do nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib import resources
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from karpenter.api import kinds
from karpenter.cli import planning_options
from karpenter.cli.console_server import ConsoleFeed, console_app
from karpenter.cli.main import app as commands
from karpenter.cli.top_source import RecordedSource
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.runtime.loopback_server import serving_on_loopback
from karpenter.settings import Settings
from support.builders import node, pod
from support.console_cases import console_input
from support.disruption_cases import pool, running

SECRET = "s3cret"
COOKIE = f"karpenter-console-{sha256(SECRET.encode()).hexdigest()[:8]}"
ADDRESS = "http://127.0.0.1:8080"
PATHS = ("/", "/console.js", "/console.css", "/api/view", "/api/stream", "/api/explanation?subject=node/n")
CLUSTER = (pool(), running("n", "m", 1), pod("huge", {"cpu": "100"}))


def feed(given: ConsoleInput | None = None) -> ConsoleFeed:
    source = RecordedSource("a recording", given or console_input(*CLUSTER))
    return ConsoleFeed(source, planning_options.disruption_options(Settings()))


@asynccontextmanager
async def browser(shown: ConsoleFeed, address: str = ADDRESS) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=console_app(shown, SECRET))
    async with httpx2.AsyncClient(transport=transport, base_url=address, follow_redirects=True) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_the_secret_nothing_is_shown(path: str, token: str) -> None:
    """Other users of the machine reach loopback, too."""
    shown = feed()
    await shown.refresh()
    async with browser(shown) as client:
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
    async with browser(feed(), "http://evil.example:8080") as client:
        assert (await client.get(path, params={"token": SECRET})).status_code == 421


async def test_the_printed_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    async with browser(feed()) as client:
        entered = await client.get("/", params={"token": SECRET}, follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        attributes = entered.headers["set-cookie"].lower()
        assert "httponly" in attributes
        assert "samesite=strict" in attributes
        page = await client.get("/")
        assert page.status_code == 200
        assert "karpenter console" in page.text


async def test_every_answer_confines_the_page_to_its_own_files() -> None:
    async with browser(feed()) as client:
        for answer in (await client.get("/"), await client.get("/", params={"token": SECRET})):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with browser(feed()) as client:
        await client.get("/", params={"token": SECRET})
        for path in PATHS:
            assert (await client.request(method, path)).status_code == 405


async def test_the_page_gets_the_figures_of_the_cluster() -> None:
    """§9.2: active nodes, pending pods, CPU and memory, types; prices and budgets beside them."""
    shown = feed()
    await shown.refresh()
    async with browser(shown) as client:
        await client.get("/", params={"token": SECRET})
        document = (await client.get("/api/view")).json()
    assert [(row["name"], row["type"], row["cpu"], row["price"]) for row in document["nodes"]] == [
        ("n", "m", 0.25, 2.0)
    ]
    assert document["pods"] == {"total": 2, "pending": 1, "running": 1, "bound": 1}
    assert document["fill"] == {"cpu": 0.25, "memory": 0.0}
    assert document["spending"]["instance type"] == [{"name": "m", "price": 2.0, "count": 1}]
    assert [budget["reason"] for budget in document["pools"][0]["budgets"]] == list(DisruptionReason)


async def test_before_the_first_objects_the_page_is_told_to_wait() -> None:
    async with browser(feed()) as client:
        await client.get("/", params={"token": SECRET})
        assert (await client.get("/api/view")).status_code == 503


async def test_a_viewer_gets_the_present_document_and_then_the_one_with_reasons() -> None:
    shown = feed()
    running_feed = asyncio.create_task(shown.run())
    documents = shown.documents()
    try:
        async with asyncio.timeout(60):
            while True:
                (waiting,) = json.loads(await anext(documents))["pending"]
                if waiting["reason"].startswith("unschedulable: "):
                    break
    finally:
        running_feed.cancel()
        await documents.aclose()  # type: ignore[attr-defined]


async def test_a_node_is_explained_and_anything_else_refused() -> None:
    shown = feed()
    await shown.refresh()
    async with browser(shown) as client:
        await client.get("/", params={"token": SECRET})
        explained = await client.get("/api/explanation", params={"subject": "node/n"})
        assert explained.text.startswith("Node n ")
        assert explained.headers["content-type"].startswith("text/plain")
        assert (await client.get("/api/explanation", params={"subject": "secret/x"})).status_code == 400
        assert (await client.get("/api/explanation", params={"subject": "node/gone"})).text == "node gone is gone"


def test_the_page_makes_no_markup_of_what_it_gets() -> None:
    """Names, labels and messages come from other people's objects. Loads nothing from elsewhere either."""
    files = resources.files("karpenter.cli") / "console_page"
    script, page = ((files / name).read_text() for name in ("console.js", "console.html"))
    for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert risky not in script
    for text in (script, page, (files / "console.css").read_text()):
        assert "http:" not in text
        assert "https:" not in text
    assert "style=" not in page
    assert "onclick" not in page


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


async def test_it_listens_on_loopback_and_ends_while_somebody_watches() -> None:
    shown = feed()
    await shown.refresh()
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(follow_redirects=True) as client,
        serving_on_loopback(console_app(shown, SECRET)) as url,
    ):
        assert url.startswith("http://127.0.0.1:")
        await client.get(url, params={"token": SECRET})
        async with client.stream("GET", f"{url}/api/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            line = await anext(stream.aiter_lines())
            assert json.loads(line.removeprefix("data: "))["title"] == "a recording"
