"""Pages on the metrics port: metrics, profiles, and the state of the process (OPS-365, OPS-366, OPS-372, OPS-O10)."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from http import HTTPStatus

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.manager_debug import DebugSources, debug_state
from karpenter.metrics import BuildInfo, Metrics
from karpenter.runtime import debug_pages
from karpenter.runtime.http_server import HttpRequest, HttpResponse, HttpServer, ListenAddress, PageHandler
from support.builders import pod
from support.commands import carry_out, command
from support.virtual_cluster import VirtualCluster, in_virtual_time

NOWHERE = ListenAddress(0, "--metrics-port", "metrics cannot be served")
PROFILES = ("cmdline", "profile", "heap", "allocs", "goroutine", "threadcreate")


async def asked(pages: dict[str, PageHandler], path: str, **query: str) -> HttpResponse:
    return await HttpServer(NOWHERE, pages).respond(HttpRequest(path, query))


def inner() -> dict[str, PageHandler]:
    return debug_pages.debug_pages(lambda: {"leader": True})


async def test_figures_are_served_in_prometheus_text_format() -> None:
    """OPS-365"""
    answer = await asked(debug_pages.metrics_pages(Metrics(BuildInfo(commit="1a2b3c4")).registry), "/metrics")
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8")
    assert b'karpenter_build_info{commit="1a2b3c4"' in answer.body
    assert b"process_resident_memory_bytes " in answer.body


@pytest.mark.parametrize("path", ["/debug/pprof/", "/debug/pprof/heap", "/debug/state"])
async def test_without_profiling_there_are_no_inner_pages(path: str) -> None:
    """OPS-O10"""
    assert (await asked(debug_pages.metrics_pages(Metrics().registry), path)).status == HTTPStatus.NOT_FOUND


async def test_the_index_names_what_there_is() -> None:
    """OPS-366"""
    for path in ("/debug/pprof/", "/debug/pprof"):
        assert tuple((await asked(inner(), path)).body.decode().split()) == PROFILES


@pytest.mark.parametrize("name", ["symbol", "trace", "block"])
async def test_what_has_no_equivalent_says_so(name: str) -> None:
    answer = await asked(inner(), f"/debug/pprof/{name}")
    assert answer.status == HTTPStatus.NOT_FOUND
    assert b"no equivalent" in answer.body


async def test_a_profile_shows_where_time_goes() -> None:
    """OPS-366"""
    answer = await asked(inner(), "/debug/pprof/profile", seconds="0.1")
    stacks = [line.rpartition(" ") for line in answer.body.decode().splitlines()]
    assert sum(int(count) for _, _, count in stacks) >= 1
    assert any(stack.startswith("MainThread;") and "BaseEventLoop.run_forever" in stack for stack, _, _ in stacks)
    assert not any("_sampled" in stack for stack, _, _ in stacks)


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "301", "nan"])
async def test_a_profile_of_no_sensible_length_is_refused(seconds: str) -> None:
    assert (await asked(inner(), "/debug/pprof/profile", seconds=seconds)).status == HTTPStatus.BAD_REQUEST


async def test_the_heap_is_summed_up_by_type() -> None:
    tracemalloc.stop()
    body = (await asked(inner(), "/debug/pprof/heap")).body.decode()
    assert body.startswith("resident memory: ")
    assert "builtins.dict" in body
    assert "PYTHONTRACEMALLOC=1" in body


async def test_the_heap_is_summed_up_by_line_where_that_is_traced() -> None:
    tracemalloc.start()
    try:
        kept = [bytes(10_000) for _ in range(100)]
        body = (await asked(inner(), "/debug/pprof/heap")).body.decode()
    finally:
        tracemalloc.stop()
    assert len(kept) == 100
    assert f"{__file__.rpartition('/')[2]}:" in body


async def test_tasks_are_listed_with_what_they_wait_for() -> None:
    async def waiting_for_the_end() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waiting_for_the_end(), name="patient")
    await asyncio.sleep(0)
    body = (await asked(inner(), "/debug/pprof/goroutine")).body.decode()
    task.cancel()
    assert "task patient:" in body
    assert "in waiting_for_the_end" in body
    assert "thread MainThread:" in body
    assert "thread MainThread:" in (await asked(inner(), "/debug/pprof/threadcreate")).body.decode()


async def test_the_state_is_json() -> None:
    answer = await asked(inner(), "/debug/state")
    assert (answer.content_type, json.loads(answer.body)) == ("application/json", {"leader": True})


@in_virtual_time
async def test_the_state_shows_nodes_pods_and_why_they_wait(cluster: VirtualCluster) -> None:
    """OPS-372"""
    await cluster.pool()
    await cluster.node_class()
    await cluster.start()
    manager = cluster.manager
    assert manager is not None
    await cluster.waiting(pod("fits", {"cpu": "1"}), pod("never", {"cpu": "100000"}))
    await asyncio.sleep(15)
    sources = DebugSources(manager.state, manager.provisioner.last_plan, True, manager.informers.unready())
    shown = json.loads(json.dumps(debug_state(sources, cluster.clock.now())))
    assert (shown["leader"], shown["unsynced"]) == (True, "")
    assert [(one["name"], one["ready"]) for one in shown["nodePools"]] == [("np", "True")]
    (shown_node,) = shown["nodes"]
    assert shown_node["nodeClaim"].startswith("np-")
    assert (shown_node["nodePool"], shown_node["nominated"], shown_node["leaving"]) == ("np", True, False)
    waiting = {one["name"]: one for one in shown["pendingPods"]}
    assert waiting["default/fits"]["plannedOn"] == shown_node["nodeClaim"]
    assert "has enough resources" in waiting["default/never"]["why"]
    assert shown["time"] == "2026-01-01T00:00:15Z"


@in_virtual_time
async def test_the_state_shows_what_was_decided_about_disruption(cluster: VirtualCluster) -> None:
    """A finished command shows the node that was removed, the reason, its replacement and the outcome."""
    await cluster.pool(disruption=Disruption(consolidate_after="Never", budgets=(Budget(nodes="100%"),)))
    await cluster.node_class()
    await cluster.start()
    await cluster.claim("n0", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("n0", "n0")
    await asyncio.sleep(1)
    await carry_out(cluster, command(cluster, "n0", launched=("r0",)))
    await cluster.kube.delete(kinds.NODE_CLAIM, "r0")
    await asyncio.sleep(3)
    manager = cluster.manager
    assert manager is not None
    sources = DebugSources(
        manager.state, manager.provisioner.last_plan, True, "", manager.command_history.journal.entries()
    )
    (shown,) = json.loads(json.dumps(debug_state(sources, cluster.clock.now())))["disruptions"]
    assert (shown["reason"], shown["decision"], shown["nodePools"]) == ("Drifted", "replace", ["np"])
    assert shown["nodes"] == [{"node": "n0", "nodeClaim": "n0"}]
    assert (shown["replacements"], shown["outcome"]) == (["r0"], "failed")
    assert shown["cause"] == "replacement nodeclaim r0 is gone"
