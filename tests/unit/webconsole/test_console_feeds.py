"""Feeds: what they cost the event loop, how many there may be, and what viewers are told while something fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from karpenter.cli import planning_options
from karpenter.cli.top_answers import explain
from karpenter.console.assessment import Assessment, assess
from karpenter.console.console_input import ConsoleInput
from karpenter.console.visible_objects import COMPLETE, Visibility, visible_input
from karpenter.runtime.decisions_in_progress import DecisionsInProgress
from karpenter.settings import Settings
from karpenter.webconsole import console_feed, feed_limits
from karpenter.webconsole.console_app import ConsoleParts, console_app
from karpenter.webconsole.console_document import console_document
from karpenter.webconsole.console_feed import ConsoleFeed, ConsoleFeeds, FeedFault
from karpenter.webconsole.feed_limits import StreamSlots, TooManyViewers
from karpenter.webconsole.viewer_access import SecretLinkAccess
from support.builders import pod
from support.console_cases import StagedSource, console_input
from support.disruption_cases import pool, running
from support.virtual_cluster import VirtualCluster, in_virtual_time

SECRET = "s3cret"
OPTIONS = planning_options.disruption_options(Settings())
CLUSTER = console_input(pool(), running("n", "m", 1), pod("huge", {"cpu": "100"}))
SHOP = Visibility(pod_namespaces=frozenset({"shop"}))


@dataclass
class Moving(StagedSource):
    """Another cluster every time it is taken."""

    given: ConsoleInput | None = field(default_factory=lambda: CLUSTER)

    def current(self) -> ConsoleInput | None:
        given = super().current()
        return given and replace(given, now=given.now + timedelta(seconds=self.takings))


@asynccontextmanager
async def feeds_of(source: StagedSource) -> AsyncIterator[ConsoleFeeds]:
    feeds = ConsoleFeeds(source, OPTIONS)
    try:
        yield feeds
    finally:
        await feeds.close()


async def first(feed: ConsoleFeed, wanted: type) -> Any:
    """The next news of a kind."""
    async with asyncio.timeout(60):
        async for news in feed.news():
            if isinstance(news, wanted):
                return news
    raise AssertionError("the feed ended")


async def test_restricted_views_are_built_in_a_thread_and_the_cluster_is_taken_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is that of the controllers: on it the cluster is only taken."""
    threads: list[bool] = []

    def visible(given: ConsoleInput, visibility: Visibility) -> ConsoleInput:
        threads.append(threading.current_thread() is threading.main_thread())
        return visible_input(given, visibility)

    monkeypatch.setattr(console_feed, "visible_input", visible)
    source = StagedSource(CLUSTER)
    async with feeds_of(source) as feeds:
        audiences = [Visibility(pod_namespaces=frozenset({str(number)})) for number in range(10)]
        await asyncio.gather(*(feeds.feed(audience).refresh() for audience in audiences))
        assert source.takings == 1
        assert len(threads) >= len(audiences)
        assert not any(threads)
        await feeds.input(SHOP)
        assert not any(threads)


async def test_equal_rights_share_one_feed_and_the_number_of_feeds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_feed, "MAX_FEEDS", 2)
    async with feeds_of(StagedSource(CLUSTER)) as feeds:
        namespace_feed = feeds.feed(Visibility(pod_namespaces=frozenset(("shop", "bar"))))
        assert feeds.feed(Visibility(pod_namespaces=frozenset(("bar", "shop")))) is namespace_feed
        feeds.feed(COMPLETE)
        with pytest.raises(TooManyViewers, match=r"2 groups of viewers .* try again in a minute"):
            feeds.feed(SHOP)
        assert feeds.feed(COMPLETE), "who looks already goes on"


async def test_no_document_begins_while_a_decision_is_computed() -> None:
    """Threads of one process take turns, so the decision would take longer."""
    source, decisions = StagedSource(CLUSTER), DecisionsInProgress()
    feeds = ConsoleFeeds(source, OPTIONS, decisions)
    with decisions.computing():
        viewer = asyncio.create_task(first(feeds.feed(COMPLETE), bytes))
        for _ in range(100):
            await asyncio.sleep(0)
        assert source.takings == 0
    assert await viewer
    await feeds.close()


async def test_decisions_without_a_pause_do_not_hold_documents_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_feed, "_LONGEST_WAIT_FOR_DECISIONS_SECONDS", 0.0)
    decisions = DecisionsInProgress()
    feeds = ConsoleFeeds(StagedSource(CLUSTER), OPTIONS, decisions)
    with decisions.computing():
        assert await first(feeds.feed(COMPLETE), bytes)
    await feeds.close()


def test_results_of_the_last_scheduling_pass_are_not_computed_again() -> None:
    """The controller's own console knows its last plan; a second one would cost as much as a decision."""
    said = {("default", "huge"): "as the controller said"}
    assert assess(replace(CLUSTER, placements=said), OPTIONS).placements is said
    assert assess(CLUSTER, OPTIONS).placements != said


@asynccontextmanager
async def page(parts: ConsoleParts) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=console_app(parts))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", follow_redirects=True) as client:
        await client.get("/", params={"token": SECRET})
        yield client
    await parts.feeds.close()


async def test_one_feed_too_many_is_answered_with_503_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_feed, "MAX_FEEDS", 0)
    parts = ConsoleParts(ConsoleFeeds(StagedSource(CLUSTER), OPTIONS), SecretLinkAccess(SECRET, "me"), explain)
    async with page(parts) as client:
        for path in ("/api/view", "/api/stream", "/api/budgets", "/api/what-if?drain=n"):
            refused = await client.get(path)
            assert refused.status_code == 503, path
            assert "try again in a minute" in refused.text


def test_streams_are_bounded_for_one_viewer_and_for_all_and_free_again_when_they_end() -> None:
    slots = StreamSlots()
    with ExitStack() as mine, ExitStack() as others:
        for _ in range(feed_limits.MAX_STREAMS_OF_ONE):
            mine.enter_context(slots.taken("me"))
        with pytest.raises(TooManyViewers, match=r"me has 20 pages open; close some of them"):
            slots.check("me")
        slots.check("you")
        for number in range(feed_limits.MAX_STREAMS - feed_limits.MAX_STREAMS_OF_ONE):
            others.enter_context(slots.taken(f"other-{number}"))
        with pytest.raises(TooManyViewers, match=r"200 pages are open"):
            slots.check("you")
        mine.close()
        slots.check("me")


async def test_a_stream_too_many_is_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_limits, "MAX_STREAMS_OF_ONE", 0)
    parts = ConsoleParts(ConsoleFeeds(StagedSource(CLUSTER), OPTIONS), SecretLinkAccess(SECRET, "me"), explain)
    async with page(parts) as client:
        refused = await client.get("/api/stream")
        assert (refused.status_code, refused.text) == (503, "me has 0 pages open; close some of them")


@in_virtual_time
async def test_a_document_that_cannot_be_built_is_retried_after_growing_pauses_and_the_page_shows_that(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, make = Moving(), console_document
    tries: list[float] = []
    loop = asyncio.get_running_loop()

    def broken(*_: object) -> dict[str, object]:
        tries.append(loop.time())
        raise KeyError("vault/secret")

    async with feeds_of(source) as feeds:
        feed = feeds.feed(COMPLETE)
        document = await first(feed, bytes)
        monkeypatch.setattr(console_feed, "console_document", broken)
        told = await first(feed, FeedFault)
        assert told.fault == "the document cannot be made (KeyError); the log says more"
        assert told.since, "the page says since when it is stale"
        assert feed.document == document, "the last document stays"
        for _ in range(30):
            feed.touch()
            await asyncio.sleep(10)
        pauses = [round(later - earlier) for earlier, later in pairwise(tries)]
        assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert "vault/secret" in cluster.log.getvalue()
        monkeypatch.setattr(console_feed, "console_document", make)
        async with asyncio.timeout(120):
            while feed.fault != FeedFault("", ""):
                feed.touch()
                await asyncio.sleep(1)
        assert feed.document != document, "it recovers by itself"


@in_virtual_time
async def test_an_assessment_that_fails_leaves_the_document_current_and_is_reported(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Assessment:
        raise ZeroDivisionError

    monkeypatch.setattr(console_feed, "assess", broken)
    async with feeds_of(Moving()) as feeds:
        feed = feeds.feed(COMPLETE)
        told = await first(feed, FeedFault)
        assert told.fault == "the assessment cannot be made (ZeroDivisionError); the log says more"
        document = feed.document
        await asyncio.sleep(3)
        assert feed.document != document
        monkeypatch.setattr(console_feed, "assess", lambda *_: Assessment())
        async with asyncio.timeout(120):
            while feed.fault.fault:
                feed.touch()
                await asyncio.sleep(1)


@in_virtual_time
async def test_while_the_cluster_cannot_be_read_the_page_says_since_when(cluster: VirtualCluster) -> None:
    source = Moving()
    async with feeds_of(source) as feeds:
        feed = feeds.feed(COMPLETE)
        await first(feed, bytes)
        source.given, source.said_fault = None, "pods: no route to host"
        told = await first(feed, FeedFault)
        assert told.fault == "pods: no route to host"
        assert told.since.startswith("20")
        source.given, source.said_fault = CLUSTER, ""
        async with asyncio.timeout(60):
            async for news in feed.news():
                if news == FeedFault("", ""):
                    break


@in_virtual_time
async def test_a_stream_ends_with_its_feed_so_that_the_page_connects_again(cluster: VirtualCluster) -> None:
    async with feeds_of(StagedSource(CLUSTER)) as feeds:
        feed = feeds.feed(COMPLETE)
        news = feed.news()
        assert isinstance(await anext(news), bytes)
        await feeds.close()
        with suppress(StopAsyncIteration):
            assert not isinstance(await anext(news), FeedFault)
            raise AssertionError("the stream goes on without a feed")
