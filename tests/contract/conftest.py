"""The API servers on which the contract tests run.

Three of them have the product's interface (``kube``): the in-memory server itself, the same over HTTP with the product's client,
and a real kube-apiserver. Requests that command lines send and the product does not are plain HTTP (``web``), where the in-memory
server has one frontend only. A test does not depend on the server it gets.

``kube`` runs with the controllers of a cluster: the real ones, or simulated ones. ``still`` runs without controllers.

Servers, clients and the event loop live as long as the run, because a connection takes longer than most tests. Only the bare
in-memory server is new for every test. Names are unique, so that tests do not affect each other.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import pytest_asyncio

from karpenter.api import core, crds
from karpenter.api.kinds import NAMESPACE
from karpenter.api.meta import ObjectMeta
from karpenter.kube import config
from karpenter.kube.protocol import Kube
from karpenter.model.clock import SystemClock
from karpenter.simulation import WorkloadControllers
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from support.contract_builders import Backend, Web, connected

if TYPE_CHECKING:
    from controlplane.harness import ControlPlane

_NUMBERS = itertools.count(1)
_REAL = pytest.param("real", marks=pytest.mark.cluster)
_THREE = ["memory", "http", _REAL]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for obj in items:
        if here in obj.path.parents:
            obj.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def _for_the_run(make):
    return pytest_asyncio.fixture(scope="session", loop_scope="session")(make)


@_for_the_run
async def http_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    server = MemoryServer(SystemClock())
    async with _stand_ins(server), _served(server, tmp_path_factory.mktemp("http")) as backend:
        yield backend


@_for_the_run
async def still_http_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with _served(MemoryServer(SystemClock()), tmp_path_factory.mktemp("still")) as backend:
        yield backend


@_for_the_run
async def real_server(working_control_plane: ControlPlane) -> AsyncIterator[Backend]:
    working_control_plane.apply(*crds.custom_resource_definitions())
    async with _connected(Path(working_control_plane.kubeconfig)) as (kube, http):
        forget = working_control_plane.forget_history
        yield Backend(kube, forget, Web(http, forget))


@_for_the_run
async def still_real_server(control_plane: ControlPlane) -> AsyncIterator[Backend]:
    async with _connected(Path(control_plane.kubeconfig)) as (kube, http):
        yield Backend(kube, control_plane.forget_history, Web(http, control_plane.forget_history))


@asynccontextmanager
async def _served(server: MemoryServer, folder: Path) -> AsyncIterator[Backend]:
    path = folder / "kubeconfig"
    async with serving(server) as url:
        path.write_text(kubeconfig_for(url))
        async with _connected(path) as (kube, http):
            yield Backend(kube, server.compact, Web(http, server.compact))


@asynccontextmanager
async def _connected(path: Path) -> AsyncIterator[tuple[Kube, httpx2.AsyncClient]]:
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(config.connect(config.load(str(path))))
        yield kube, await stack.enter_async_context(connected(path))


@pytest_asyncio.fixture(loop_scope="session")
async def memory_server() -> AsyncIterator[Backend]:
    server = MemoryServer(SystemClock())
    async with _stand_ins(server):
        yield Backend(MemoryKube(server), server.compact)


@pytest.fixture(params=_THREE)
def backend(request: pytest.FixtureRequest) -> Backend:
    getfixturevalue: Backend = request.getfixturevalue(f"{request.param}_server")
    return getfixturevalue


@pytest.fixture(params=_THREE)
def still(request: pytest.FixtureRequest) -> Kube:
    """A server without controllers."""
    if request.param == "memory":
        return MemoryKube(MemoryServer(SystemClock()))
    getfixturevalue: Backend = request.getfixturevalue(f"still_{request.param}_server")
    return getfixturevalue.kube


@pytest.fixture(params=["http", _REAL])
def web(request: pytest.FixtureRequest) -> Web:
    """A server over plain HTTP."""
    result: Web = request.getfixturevalue(f"{request.param}_server").web
    return result


@asynccontextmanager
async def _stand_ins(server: MemoryServer) -> AsyncIterator[None]:
    task = asyncio.create_task(WorkloadControllers(MemoryKube(server), server.clock).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def kube(backend: Backend) -> Kube:
    return backend.kube


@pytest.fixture
def unique() -> str:
    """A unique name."""
    return f"contract-{os.getpid()}-{next(_NUMBERS)}"


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(kube: Kube, unique: str) -> str:
    return await _new_namespace(kube, unique)


@pytest_asyncio.fixture(loop_scope="session")
async def still_namespace(still: Kube, unique: str) -> str:
    return await _new_namespace(still, unique)


@pytest_asyncio.fixture(loop_scope="session")
async def web_namespace(web: Web, unique: str) -> str:
    await web.made(NAMESPACE, {"metadata": {"name": unique}})
    return unique


async def _new_namespace(kube: Kube, name: str) -> str:
    await kube.create(NAMESPACE, core.Namespace(metadata=ObjectMeta(name=name)))
    return name
