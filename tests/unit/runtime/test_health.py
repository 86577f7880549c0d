"""Probes: alive while the process runs, ready when nothing keeps it from doing its part (OPS-364, OPS-O9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from karpenter.kube.errors import Forbidden, KubeError, ServerUnavailable, kind_not_served
from karpenter.runtime import healthz
from karpenter.runtime.healthz import CrdReadiness, ReadinessChecks
from karpenter.runtime.http_server import HttpRequest
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual

START = datetime(2026, 1, 1, tzinfo=UTC)


async def ready(checks: ReadinessChecks, **query: str) -> tuple[HTTPStatus, list[str]]:
    answer = await healthz.health_pages(checks)["/readyz"](HttpRequest("/readyz", query))
    return answer.status, answer.body.decode().splitlines()


def well() -> str:
    return ""


async def test_a_process_that_runs_is_alive_whatever_is_wrong() -> None:
    answer = await healthz.health_pages({"manager": lambda: "broken"})["/healthz"](HttpRequest("/healthz"))
    assert (answer.status, answer.body) == (HTTPStatus.OK, b"ok\n")


async def test_a_healthy_process_answers_ok_and_gives_details_on_request() -> None:
    checks = {"manager": well, "crd": well, "ping": well}
    assert await ready(checks) == (HTTPStatus.OK, ["ok"])
    listed = ["[+]manager ok", "[+]crd ok", "[+]ping ok", "readyz check passed"]
    assert await ready(checks, verbose="") == (HTTPStatus.OK, listed)


async def test_a_check_that_fails_is_named_with_what_is_wrong() -> None:
    status, lines = await ready({"manager": lambda: "waiting for nodes", "ping": well})
    assert status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert lines == ["[-]manager failed: waiting for nodes", "[+]ping ok", "readyz check failed"]


# -- whether the API knows our kinds --------------------------------------------------------------------------------------


class Api:
    """An API server, and a process that asks it."""

    def __init__(self, clock: LoopClock) -> None:
        self.server = MemoryServer(clock)
        self.kube = MemoryKube(self.server)
        self.kinds = CrdReadiness(self.kube)
        self.task = asyncio.create_task(SingletonReconciler("crd", self.kinds.reconcile).run())

    def refuse(self, fault: KubeError, plural: str, times: int) -> None:
        self.server.inject_fault(fault, verb="get", plural=plural, times=times)


def in_virtual_time(test: Callable[[Api], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def main(clock: LoopClock) -> None:
            await test(Api(clock))

        run_virtual(main, START)

    wrapped.__name__ = test.__name__
    return wrapped


@in_virtual_time
async def test_before_anybody_was_asked_nothing_is_known(api: Api) -> None:
    assert api.kinds.unready() == "the API server has not been asked yet"
    await asyncio.sleep(0.1)
    assert api.kinds.unready() == ""


@in_virtual_time
async def test_a_kind_the_api_does_not_know_is_named_until_it_does(api: Api) -> None:
    """OPS-O9: asked every two seconds."""
    api.refuse(kind_not_served("nodepools", "karpenter.sh/v1"), "nodepools", 2)
    api.refuse(kind_not_served("nodeclaims", "karpenter.sh/v1"), "nodeclaims", 3)
    await asyncio.sleep(1)
    missing = "the server does not serve nodepools of karpenter.sh/v1"
    assert api.kinds.unready() == f"{missing}; {missing.replace('nodepools', 'nodeclaims')}"
    await asyncio.sleep(4)
    assert api.kinds.unready() == missing.replace("nodepools", "nodeclaims")
    await asyncio.sleep(2)
    assert api.kinds.unready() == ""


@in_virtual_time
async def test_an_api_that_cannot_be_asked_is_not_ready_for_that_reason(api: Api) -> None:
    api.refuse(Forbidden("nobody may get nodepools", status=403), "nodepools", 1)
    await asyncio.sleep(1)
    assert api.kinds.unready() == "nobody may get nodepools"
    await asyncio.sleep(2)
    assert api.kinds.unready() == ""


@in_virtual_time
async def test_what_was_known_counts_while_the_api_is_away_but_not_once_it_is_gone(api: Api) -> None:
    await asyncio.sleep(1)
    api.refuse(ServerUnavailable("connection refused"), "nodepools", 1)
    await asyncio.sleep(60)
    assert api.kinds.unready() == ""
    api.refuse(kind_not_served("nodepools", "karpenter.sh/v1"), "nodepools", 1)
    await asyncio.sleep(60)
    assert "nodepools" in api.kinds.unready()
    await asyncio.sleep(3)
    assert api.kinds.unready() == ""
