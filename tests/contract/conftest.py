"""The backends every behaviour of the suite holds for, and the few words its tests are written in.

A test takes ``kube`` and ``namespace`` and never asks which backend it got. Names are unique, so that one server serves all.

"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract_words import Backend

from karpenter.api import core, crds
from karpenter.api.kinds import NAMESPACE
from karpenter.api.meta import ObjectMeta
from karpenter.kube import config
from karpenter.kube.memory import MemoryKube, MemoryServer
from karpenter.kube.protocol import Kube
from karpenter.kube.serve import kubeconfig, serving
from karpenter.model.clock import SystemClock

_NUMBERS = itertools.count(1)


@pytest.fixture(params=["memory", "http", pytest.param("real", marks=pytest.mark.cluster)])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "real":
        control_plane = request.getfixturevalue("control_plane_with_crds")
        async with control_plane.client() as client:
            yield Backend(client, lambda: None)
        return
    server = MemoryServer(SystemClock())
    if request.param == "memory":
        yield Backend(MemoryKube(server), server.compact)
        return

    async with serving(server) as url:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(url))
        async with config.connect(config.load(str(path))) as client:
            yield Backend(client, server.compact)


@pytest.fixture(scope="session")
def control_plane_with_crds(request: pytest.FixtureRequest) -> object:
    control_plane = request.getfixturevalue("working_control_plane")
    control_plane.apply(*crds.crds())
    return control_plane


@pytest.fixture
def kube(backend: Backend) -> Kube:
    return backend.kube


@pytest.fixture
def unique() -> str:
    """A name nobody else uses."""
    return f"contract-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
async def namespace(kube: Kube, unique: str) -> str:
    await kube.create(NAMESPACE, core.Namespace(metadata=ObjectMeta(name=unique)))
    return unique
