"""``karpenter freeze`` and ``thaw``: what they write stops the controller, and what cannot be meant is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.api import kinds
from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import NodePool
from karpenter.cli import cluster_reader
from karpenter.cli.freeze_command import freeze_pools_or_cluster, thaw_pools_or_cluster
from karpenter.cli.main import app
from karpenter.model import freezes, labels
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from support.manifest_builders import pool

END = datetime(2999, 1, 1, tzinfo=UTC)


def cluster(*pools: str) -> MemoryKube:
    server = MemoryServer(SystemClock())
    server.load_objects([pool(name) for name in pools])
    return MemoryKube(server)


async def config_map(kube: MemoryKube) -> ConfigMap:
    return await kube.get(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)


async def frozen(kube: MemoryKube, name: str) -> str:
    nodepool: NodePool = await kube.get(kinds.NODE_POOL, name)
    return str(freezes.nodepool_freeze(nodepool))


async def test_the_cluster_is_frozen_by_its_config_map() -> None:
    kube = cluster("web")
    lines = await freeze_pools_or_cluster(kube, [], "audit", END)
    assert lines == ["the whole cluster is frozen until 2999-01-01T00:00:00Z"]
    freeze = freezes.cluster_freeze(await config_map(kube))
    assert (freeze.reason, freeze.until, freeze.findings) == ("audit", END, ())


async def test_a_new_freeze_takes_the_place_of_one_that_cannot_be_read() -> None:
    kube = cluster()
    await freeze_pools_or_cluster(kube, [], "audit", END)
    await kube.patch(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, {"data": {"untill": "x"}}, freezes.FREEZE_NAMESPACE)
    assert await freeze_pools_or_cluster(kube, [], "", None) == ["the whole cluster is frozen until it is thawed"]
    assert (await config_map(kube)).data == {}


async def test_pools_are_frozen_and_thawed_one_by_one() -> None:
    kube = cluster("web", "batch", "gpu")
    lines = await freeze_pools_or_cluster(kube, ["web", "batch"], "release", None)
    assert lines == ["NodePool web is frozen until it is thawed", "NodePool batch is frozen until it is thawed"]
    assert await frozen(kube, "web") == f"frozen by metadata.annotations[{labels.FREEZE}]: release"
    assert await frozen(kube, "gpu") == "None"
    await freeze_pools_or_cluster(kube, ["web"], "", END)
    assert "until 2999-01-01T00:00:00Z" in await frozen(kube, "web")
    assert await thaw_pools_or_cluster(kube, ["web"]) == ["NodePool web is thawed"]
    assert (await frozen(kube, "web"), await frozen(kube, "batch") != "None") == ("None", True)


@pytest.mark.parametrize("reason", ["false", "true", "", "release"])
async def test_whatever_the_reason_is_the_pool_is_frozen(reason: str) -> None:
    kube = cluster("web")
    await freeze_pools_or_cluster(kube, ["web"], reason, None)
    assert await frozen(kube, "web") != "None"


async def test_a_thaw_says_what_is_still_frozen() -> None:
    kube = cluster("web", "batch")
    await freeze_pools_or_cluster(kube, [], "audit", None)
    await freeze_pools_or_cluster(kube, ["web"], "", None)
    cluster_line = "the whole cluster stays as it is: frozen by ConfigMap kube-system/karpenter-freeze: audit"
    assert await thaw_pools_or_cluster(kube, ["batch"]) == ["NodePool batch is thawed", cluster_line]
    pool_line = f"NodePool web stays as it is: frozen by metadata.annotations[{labels.FREEZE}]"
    assert await thaw_pools_or_cluster(kube, []) == ["the cluster is thawed", pool_line]
    assert await thaw_pools_or_cluster(kube, []) == ["the cluster was not frozen", pool_line]


@pytest.fixture
def karpenter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line on a cluster with one NodePool, ``web``."""
    kube = cluster("web")

    def ask(_settings: object, _dry_run: str, question: Callable[[Any], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            return await question(kube)

        return asyncio.run(asked())

    monkeypatch.setattr(cluster_reader, "change_cluster", ask)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    return run


def test_a_freeze_can_be_given_a_length(karpenter: Callable[..., Result]) -> None:
    result = karpenter("freeze", "--pool", "web", "--reason", "release", "--for", "2h")
    assert (result.exit_code, result.stderr) == (0, "")
    text = result.stdout.strip().removeprefix("NodePool web is frozen until ")
    end = datetime.fromisoformat(text)
    assert timedelta(minutes=119) < end - datetime.now(UTC) <= timedelta(hours=2)
    assert karpenter("thaw", "--pool", "web").stdout == "NodePool web is thawed\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["freeze", "--for", "soon"], "--for: 'soon' is not a duration"),
        (["freeze", "--for", "-2h"], "--for: the end is in the past"),
        (["freeze", "--for", "0s"], "--for: the end is in the past"),
        (["freeze", "--until", "tomorrow"], "--until: 'tomorrow' is not a date and time"),
        (["freeze", "--until", "2020-01-01T00:00:00Z"], "--until: the end is in the past"),
        (["freeze", "--for", "2h", "--until", "2999-01-01T00:00:00Z"], "exclude each other"),
        (["freeze", "--pool", "wob"], "no NodePool wob in the cluster; choose web"),
        (["thaw", "--pool", "web", "--pool", "wob"], "no NodePool wob in the cluster; choose web"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    karpenter: Callable[..., Result], arguments: list[str], line: str
) -> None:
    result = karpenter(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def served_cluster(tmp_path: Path) -> Iterator[tuple[str, MemoryServer]]:
    """A server with the NodePool ``web`` on a port of its own, and the kubeconfig that leads to it."""
    server = MemoryServer(SystemClock())
    server.load_objects([pool("web")])
    ready, done = threading.Event(), threading.Event()
    file = tmp_path / "config"

    async def serve() -> None:
        async with serving(server) as url:
            file.write_text(kubeconfig_for(url), encoding="utf-8")
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield str(file), server
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("command", [("freeze",), ("freeze", "--pool", "web"), ("thaw", "--pool", "web"), ("thaw",)])
def test_a_dry_run_names_the_cluster_and_writes_nothing(
    served_cluster: tuple[str, MemoryServer], command: tuple[str, ...]
) -> None:
    file, server = served_cluster
    before = server.revision
    result = CliRunner().invoke(app, [*command, "--dry-run=server", "--kubeconfig", file], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].endswith("(server dry run)")
    assert result.stderr.startswith("cluster: context ")
    assert "server http://127.0.0.1:" in result.stderr
    assert server.revision == before
    CliRunner().invoke(app, [*command, "--kubeconfig", file], catch_exceptions=False)
    assert (server.revision > before) == (command != ("thaw",))


def test_a_wrong_value_of_an_option_is_reported_without_the_words_of_a_library() -> None:
    result = CliRunner().invoke(app, ["freeze", "--dry-run=client"])
    assert result.exit_code == 2
    assert "Invalid value for '--dry-run': 'client' is not one of 'none', 'server'." in result.stderr
