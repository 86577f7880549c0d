"""Deletion of one particular object."""

from __future__ import annotations

import pytest

from karpenter.api.core import ConfigMap
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import ObjectMeta
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import NotFound
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver.memory_kube import MemoryKube
from karpenter.simulation.apiserver.memory_server import MemoryServer


async def test_an_object_is_deleted_once_and_its_successor_never() -> None:
    """A missing object and another object of its name both count as gone."""
    kube = MemoryKube(MemoryServer(SystemClock()))
    first = await kube.create(CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name="a", namespace="default")))
    assert await delete_if_present(kube, CONFIG_MAP, first.metadata)
    assert not await delete_if_present(kube, CONFIG_MAP, first.metadata)
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAP, "a", "default")
    second = await kube.create(CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name="a", namespace="default")))
    assert not await delete_if_present(kube, CONFIG_MAP, first.metadata)
    assert (await kube.get(CONFIG_MAP, "a", "default")).metadata.uid == second.metadata.uid
