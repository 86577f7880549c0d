"""Functions of the in-memory server beyond those of every API server (``tests/contract``)."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from karpenter.api import core
from karpenter.api.kinds import CONFIG_MAP, EVENT, KWOK_NODE_CLASS, NODE, POD
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import Conflict, Gone, Invalid, NotFound, ServerUnavailable
from karpenter.kube.protocol import WatchEventType
from karpenter.simulation.apiserver import (
    MemoryKube,
    MemoryServer,
    ObjectQuery,
    PageRequest,
    ServedResource,
    dependents,
)
from karpenter.simulation.apiserver.memory_server import BOOKMARK_EVERY

_START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class _Clock:
    def __init__(self) -> None:
        self.time = _START

    def now(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def server(clock: _Clock) -> MemoryServer:
    return MemoryServer(clock, history=100)


@pytest.fixture
def kube(server: MemoryServer) -> MemoryKube:
    return MemoryKube(server)


@pytest.fixture
def config_maps(server: MemoryServer) -> ServedResource:
    return server.resource("", "v1", "configmaps")


def _map(name: str, **data: str) -> core.ConfigMap:
    return core.ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


def test_unknown_fields_survive_a_change(server: MemoryServer) -> None:
    pods = server.resource("", "v1", "pods")
    server.create(pods, "default", {"metadata": {"name": "a"}, "spec": {"hostAliases": [{"ip": "10.0.0.1"}]}})
    server.update(pods, "default", "a", lambda body: {**body, "metadata": {**body["metadata"], "labels": {"x": "y"}}})
    body = server.get(pods, "default", "a").decoded()
    assert body["spec"]["hostAliases"] == [{"ip": "10.0.0.1"}]
    assert body["metadata"]["labels"] == {"x": "y"}


def test_time_comes_from_the_clock(server: MemoryServer, config_maps: ServedResource) -> None:
    made = server.create(config_maps, "default", {"metadata": {"name": "a"}}).decoded()
    assert made["metadata"]["creationTimestamp"] == "2030-01-02T03:04:05Z"


def test_two_servers_given_the_same_calls_are_equal(clock: _Clock) -> None:
    def run() -> bytes:
        server = MemoryServer(clock)
        maps = server.resource("", "v1", "configmaps")
        for _ in range(3):
            server.create(maps, "default", {"metadata": {"generateName": "x-"}})
        return b"".join(entry.data for entry in server.list(maps, ObjectQuery()).entries)

    assert run() == run()


def test_loaded_objects_keep_status_and_identity(server: MemoryServer) -> None:
    server.load_objects(
        [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "a",
                    "namespace": "shop",
                    "uid": "u-1",
                    "creationTimestamp": "2020-01-01T00:00:00Z",
                },
                "spec": {"nodeName": "n"},
                "status": {"phase": "Running"},
            }
        ]
    )
    body = server.get(server.resource("", "v1", "pods"), "shop", "a").decoded()
    assert (body["metadata"]["uid"], body["metadata"]["creationTimestamp"]) == ("u-1", "2020-01-01T00:00:00Z")
    assert body["status"] == {"phase": "Running"}
    assert "tolerations" not in body["spec"]


def test_loading_a_kind_that_is_not_served_names_it(server: MemoryServer) -> None:
    with pytest.raises(Invalid, match="Teapot"):
        server.load_objects([{"apiVersion": "v1", "kind": "Teapot", "metadata": {"name": "a"}}])


async def test_a_simulated_class_is_ready_from_the_start(kube: MemoryKube) -> None:
    """OPS-250, API-380: no controller has to report it."""
    made = await kube.create(KWOK_NODE_CLASS, KWOKNodeClass(metadata=ObjectMeta(name="default")))
    assert [(condition.type, condition.status) for condition in made.status.conditions] == [("Ready", "True")]


async def test_requests_default_to_limits(server: MemoryServer, kube: MemoryKube) -> None:
    container = core.Container(
        name="c", resources=core.ResourceRequirements(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "500m"})
    )
    pod = core.Pod(metadata=ObjectMeta(name="a", namespace="default"), spec=core.PodSpec(containers=(container,)))
    made = await kube.create(POD, pod)
    assert made.spec.containers[0].resources.requests == {"cpu": "500m", "memory": "1Gi"}


async def test_readers_share_one_decoded_object(kube: MemoryKube) -> None:
    await kube.create(CONFIG_MAP, _map("a"))
    assert await kube.get(CONFIG_MAP, "a", "default") is (await kube.list(CONFIG_MAP)).items[0]


async def test_an_injected_error_strikes_the_matching_call_and_no_other(server: MemoryServer, kube: MemoryKube) -> None:
    server.inject_fault(ServerUnavailable("down"), verb="create", plural="configmaps", times=2)
    assert (await kube.list(CONFIG_MAP)).items == ()
    for _ in range(2):
        with pytest.raises(ServerUnavailable, match="down"):
            await kube.create(CONFIG_MAP, _map("a"))
    assert (await kube.create(CONFIG_MAP, _map("a"))).metadata.name == "a"


async def test_an_injected_error_can_wait_for_one_object(server: MemoryServer, kube: MemoryKube) -> None:
    server.inject_fault(Conflict("changed"), verb="delete", name="b")
    for name in ("a", "b"):
        await kube.create(CONFIG_MAP, _map(name))
    await kube.delete(CONFIG_MAP, "a", "default")
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAP, "b", "default")


async def test_a_watch_ends_silently_when_the_server_closes_it(server: MemoryServer, kube: MemoryKube) -> None:
    seen: list[str] = []

    async def follow() -> None:
        seen.extend([event.type async for event in kube.watch(CONFIG_MAP, str(server.revision))])

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await kube.create(CONFIG_MAP, _map("a"))
    for _ in range(5):  # turns enough for the watch to read what was written
        await asyncio.sleep(0)
    server.close_watches()
    await asyncio.wait_for(task, 5)
    assert seen == ["BOOKMARK", "ADDED"]


async def test_a_quiet_watch_gets_bookmarks(server: MemoryServer, kube: MemoryKube) -> None:
    start = str(server.revision)
    for number in range(BOOKMARK_EVERY):
        await kube.create(NODE, core.Node(metadata=ObjectMeta(name=f"n-{number}")))
    async with aclosing(kube.watch(CONFIG_MAP, start)) as events:
        opened, event = await anext(events), await anext(events)
    assert opened.resource_version == start
    assert event.type is WatchEventType.BOOKMARK
    assert event.object is None
    assert event.resource_version == str(server.revision)


async def test_history_is_bounded(server: MemoryServer, kube: MemoryKube) -> None:
    start = str(server.revision)
    for number in range(300):
        await kube.create(CONFIG_MAP, _map(f"m-{number}"))
    with pytest.raises(Gone):
        await anext(kube.watch(CONFIG_MAP, start))


async def test_a_watch_that_falls_behind_the_history_gets_an_error(server: MemoryServer, kube: MemoryKube) -> None:
    events = kube.watch(CONFIG_MAP, str(server.revision))
    await kube.create(CONFIG_MAP, _map("first"))
    for _ in range(2):
        await anext(events)
    for number in range(300):
        await kube.create(CONFIG_MAP, _map(f"m-{number}"))
    with pytest.raises(Gone):
        await anext(events)


def test_pages_show_one_moment(server: MemoryServer, config_maps: ServedResource) -> None:
    for name in "abcde":
        server.create(config_maps, "default", {"metadata": {"name": name}})
    first = server.page(config_maps, ObjectQuery(), PageRequest(2))
    server.delete(config_maps, "default", "c")
    second = server.page(config_maps, ObjectQuery(), PageRequest(2, continue_token=first.continue_token))
    last = server.page(config_maps, ObjectQuery(), PageRequest(2, continue_token=second.continue_token))
    assert [entry.name for page in (first, second, last) for entry in page.entries] == list("abcde")
    assert (first.remaining_count, second.remaining_count, last.continue_token) == (3, 1, "")
    assert first.version == second.version == last.version


def test_a_list_whose_pages_are_evicted_is_rebuilt_from_the_history(
    server: MemoryServer, config_maps: ServedResource
) -> None:
    for name in "abcde":
        server.create(config_maps, "default", {"metadata": {"name": name}})
    first = server.page(config_maps, ObjectQuery(), PageRequest(2))
    server.delete(config_maps, "default", "c")
    server.create(config_maps, "default", {"metadata": {"name": "cc"}})
    for _ in range(40):  # more lists than are kept
        server.create(config_maps, "default", {"metadata": {"generateName": "x-"}})
        server.page(config_maps, ObjectQuery(), PageRequest(1))
    rest = server.page(config_maps, ObjectQuery(), PageRequest(continue_token=first.continue_token))
    assert [entry.name for entry in rest.entries] == list("cde")
    server.compact()
    with pytest.raises(Gone):
        server.page(config_maps, ObjectQuery(), PageRequest(continue_token=first.continue_token))


async def test_events_live_for_an_hour(server: MemoryServer, kube: MemoryKube, clock: _Clock) -> None:
    def event(name: str) -> core.Event:
        return core.Event(metadata=ObjectMeta(name=name, namespace="default"))

    await kube.create(EVENT, event("old"))
    clock.time += timedelta(minutes=59)
    await kube.create(EVENT, event("young"))
    clock.time += timedelta(minutes=1)
    await kube.create(EVENT, event("new"))
    assert [obj.metadata.name for obj in (await kube.list(EVENT)).items] == ["new", "young"]


async def test_a_terminating_namespace_waits_for_its_running_pods(server: MemoryServer, kube: MemoryKube) -> None:
    namespaces = server.resource("", "v1", "namespaces")
    server.create(namespaces, "", {"metadata": {"name": "shop"}})
    await kube.create(POD, core.Pod(metadata=ObjectMeta(name="a", namespace="shop")))
    await kube.bind("a", "shop", "n")
    server.delete(namespaces, "", "shop")
    assert server.get(namespaces, "", "shop").phase == "Terminating"
    await kube.delete(POD, "a", "shop", grace_period_seconds=0)
    with pytest.raises(NotFound):
        server.get(namespaces, "", "shop")


@pytest.mark.speed
async def test_ten_thousand_pods_are_written_and_listed_within_seconds(server: MemoryServer, kube: MemoryKube) -> None:
    """The server must not be what a simulation waits for: about 50 microseconds a pod, 500 allowed."""
    pods = server.resource("", "v1", "pods")
    started = time.process_time()
    for number in range(10_000):
        server.create(pods, "default", {"metadata": {"name": f"p-{number}"}, "spec": {"containers": [{"name": "c"}]}})
    assert len((await kube.list(POD)).items) == 10_000
    assert time.process_time() - started < 5


def _child(uid: str) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    return {"metadata": {"name": "child", "ownerReferences": [reference]}}


def test_an_owner_this_server_has_never_seen_counts_as_alive(server: MemoryServer, config_maps: ServedResource) -> None:
    """A real cluster would collect the object. What is loaded here may be a part of one."""
    server.create(config_maps, "default", _child("elsewhere"))
    assert server.get(config_maps, "default", "child").owner_uids == ("elsewhere",)


def test_the_dead_are_remembered_for_a_while_only(
    server: MemoryServer, config_maps: ServedResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependents, "_MAX_DELETED_OWNERS", 2)
    uids = [server.create(config_maps, "default", {"metadata": {"name": name}}).uid for name in "abc"]
    for name in "abc":
        server.delete(config_maps, "default", name)
    server.create(config_maps, "default", _child(uids[2]))
    with pytest.raises(NotFound):
        server.get(config_maps, "default", "child")
    server.create(config_maps, "default", _child(uids[0]))
    assert server.get(config_maps, "default", "child").owner_uids == (uids[0],)
