"""Watches over HTTP: their start, end and events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from karpenter.api.kinds import CONFIG_MAP, POD
from support.contract_builders import MERGE, Web, eventually

#: What every namespace has on a real cluster is not meant.
_OWN = {"fieldSelector": "metadata.name!=kube-root-ca.crt"}
_END = {"k8s.io/initial-events-end": "true"}


@pytest_asyncio.fixture(loop_scope="session")
async def maps(web: Web, web_namespace: str) -> str:
    """The path of a collection with one object, ``early``."""
    await web.made(CONFIG_MAP, {"metadata": {"name": "early"}}, web_namespace)
    path = CONFIG_MAP.path(web_namespace)
    await eventually(lambda: web.ask("GET", path), lambda seen: seen.names == ["early"])
    return path


async def _version(web: Web, path: str) -> str:
    return str((await web.ask("GET", path)).body["metadata"]["resourceVersion"])


async def _make(web: Web, path: str, name: str, **labels: str) -> None:
    assert (await web.ask("POST", path, {"metadata": {"name": name, "labels": labels}})).status == 201


def _told(events: list[Any]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


@pytest.mark.parametrize("begin", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}], ids=str)
async def test_a_watch_without_a_version_begins_with_the_existing_objects(
    web: Web, maps: str, begin: dict[str, str]
) -> None:
    events = await web.events(maps, 2, lambda: _make(web, maps, "late"), **begin, **_OWN)
    assert _told(events) == [("ADDED", "early"), ("ADDED", "late")]


async def test_a_watch_from_a_version_begins_after_it(web: Web, maps: str) -> None:
    version = await _version(web, maps)
    await _make(web, maps, "late")
    assert _told(await web.events(maps, 1, resourceVersion=version, **_OWN)) == [("ADDED", "late")]


async def test_a_watch_from_the_version_of_an_object_begins_after_that_object(web: Web, maps: str) -> None:
    version = (await web.ask("GET", f"{maps}/early")).body["metadata"]["resourceVersion"]
    await _make(web, maps, "late")
    assert _told(await web.events(maps, 1, resourceVersion=version, **_OWN)) == [("ADDED", "late")]


async def test_events_come_in_the_order_of_their_versions(web: Web, maps: str) -> None:
    version = await _version(web, maps)
    await asyncio.gather(*(_make(web, maps, f"cm-{number}") for number in range(20)))
    events = await web.events(maps, 20, resourceVersion=version, **_OWN)
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


async def test_a_watch_ends_when_its_time_is_up(web: Web, maps: str) -> None:
    version = await _version(web, maps)
    await _make(web, maps, "late")
    events = await web.all_events(maps, resourceVersion=version, **_OWN)
    assert _told(events) == [("ADDED", "late")]


async def test_a_watch_from_a_future_version_waits_for_it(web: Web, maps: str) -> None:
    far = int(await _version(web, maps)) + 1_000_000
    assert await web.all_events(maps, lambda: _make(web, maps, "late"), resourceVersion=far, **_OWN) == []


async def test_the_initial_events_end_with_a_bookmark(web: Web, maps: str) -> None:
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true", **_OWN}
    events = await web.events(maps, 3, lambda: _make(web, maps, "late"), **query)
    assert _told(events) == [("ADDED", "early"), ("BOOKMARK", ""), ("ADDED", "late")]
    assert events[1]["object"]["metadata"]["annotations"] == _END
    assert events[1]["object"]["kind"] == "ConfigMap"


async def test_initial_events_without_bookmarks_have_no_end_mark(web: Web, maps: str) -> None:
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", **_OWN}
    assert _told(await web.all_events(maps, **query)) == [("ADDED", "early")]


async def test_a_watch_can_begin_without_the_existing_objects(web: Web, maps: str) -> None:
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan", **_OWN}
    assert _told(await web.all_events(maps, lambda: _make(web, maps, "late"), **query)) == [("ADDED", "late")]


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"sendInitialEvents": "true"}, id="initial events of no version"),
        pytest.param({"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, id="a match of nothing"),
    ],
)
async def test_an_invalid_watch_request_is_refused(web: Web, maps: str, query: dict[str, str]) -> None:
    answer = await web.ask("GET", maps, watch="true", **query)
    assert answer.refusal == (422, "Invalid")


@pytest.mark.parametrize(("written", "watches"), [("1", True), ("True", True), ("0", False), ("false", False)])
async def test_boolean_parameters_are_true_unless_written_as_false(
    web: Web, maps: str, written: str, watches: bool
) -> None:
    answer = await web.ask("GET", maps, watch=written, timeoutSeconds=1, fieldSelector="metadata.name=none")
    assert ("items" not in answer.body) is watches


async def test_an_object_enters_and_leaves_a_watch_with_its_labels(web: Web, maps: str) -> None:
    version = await _version(web, maps)
    for value in ("in", "still-in", None, "in"):
        await web.ask("PATCH", f"{maps}/early", {"metadata": {"labels": {"seen": value}}}, MERGE)
    await web.ask("DELETE", f"{maps}/early")
    events = await web.events(maps, 5, resourceVersion=version, labelSelector="seen")
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    left = events[2]["object"]["metadata"]
    assert left["labels"] == {"seen": "still-in"}
    assert int(left["resourceVersion"]) > int(events[1]["object"]["metadata"]["resourceVersion"])


async def test_a_pod_enters_and_leaves_a_watch_with_its_phase(web: Web, web_namespace: str) -> None:
    path = POD.path(web_namespace)
    version = await _version(web, path)
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    await web.made(POD, {"metadata": {"name": "one"}, "spec": spec}, web_namespace)
    for phase in ("Running", "Succeeded"):
        await web.ask("PATCH", f"{path}/one/status", {"status": {"phase": phase}}, MERGE)
    events = await web.events(path, 2, resourceVersion=version, fieldSelector="status.phase=Running")
    assert [(event["type"], event["object"]["status"]["phase"]) for event in events] == [
        ("ADDED", "Running"),
        ("DELETED", "Running"),
    ]


async def test_a_deletion_with_finalizers_is_first_modified_and_then_deleted(web: Web, maps: str) -> None:
    version = await _version(web, maps)
    await web.ask("PATCH", f"{maps}/early", {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)
    await web.ask("DELETE", f"{maps}/early")
    await web.ask("PATCH", f"{maps}/early", {"metadata": {"finalizers": None}}, MERGE)
    events = await web.events(maps, 3, resourceVersion=version)
    assert [event["type"] for event in events] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert ["deletionTimestamp" in event["object"]["metadata"] for event in events] == [False, True, True]


async def test_the_deleted_event_has_the_last_stored_object(web: Web, maps: str) -> None:
    """The write that removes an object is not stored: an immediate deletion, or the removal of the last finalizer."""
    version = await _version(web, maps)
    await _make(web, maps, "held")
    await web.ask("PATCH", f"{maps}/held", {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)
    await web.ask("DELETE", f"{maps}/held")
    await web.ask("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, MERGE)
    await web.ask("DELETE", f"{maps}/early")
    held, early = [event for event in await web.events(maps, 5, resourceVersion=version) if event["type"] == "DELETED"]
    assert held["object"]["metadata"]["finalizers"] == ["example.com/hold"]
    assert "deletionTimestamp" not in early["object"]["metadata"]
