"""A pass in which nothing has changed costs next to nothing, and one in which something has is made (DIS §8.4 Beyond)."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from typing import Any, cast

import msgspec
import pytest

from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import Condition
from karpenter.manager import Manager
from karpenter.manager_watches import ControllerQueues, NodeWatchHandler
from karpenter.model import labels
from karpenter.model.freezes import Freeze
from karpenter.runtime.reconciler import Reconciler
from support.builders import node_and_claim, node_pool, pod
from support.metrics_scrape import counted
from support.virtual_cluster import VirtualCluster, in_virtual_time

_NODES = 300


async def filled(cluster: VirtualCluster) -> Manager:
    """A controller with some hundred nodes and pods in its cluster state, without any loop running."""
    await cluster.start()
    await cluster.stop()
    manager = cluster.manager
    assert manager is not None
    manager.state.set_pool(node_pool(disruption=Disruption(budgets=(Budget(nodes="0"),))))
    own = {labels.ZONE: "test-zone-1", labels.CAPACITY_TYPE: "on-demand", labels.INSTANCE_TYPE: "t7"}
    quiet = (Condition(type="Consolidatable", status="True"),)
    for number in range(_NODES):
        node, claim = node_and_claim(f"n{number}", {"cpu": "8", "memory": "16Gi"}, labels=own, conditions=quiet)
        manager.state.set_node(node)
        manager.state.set_claim(claim)
        manager.state.set_pod(pod(f"p{number}", {"cpu": "1"}, node_name=f"n{number}"))
    await manager.disruption.reconcile()
    return manager


def evaluated(manager: Manager) -> float:
    """How many passes were made."""
    described = {"reason": "underutilized", "consolidation_type": "multi"}
    name = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count"
    return counted(manager.metrics.registry, name, described) or 0.0


@pytest.mark.speed
@in_virtual_time
async def test_a_pass_without_changes_takes_no_time_and_no_memory(cluster: VirtualCluster) -> None:
    """Less than ten milliseconds and a hundred kilobytes; here far less, so that a slow machine does not matter."""
    manager = await filled(cluster)
    before = evaluated(manager)
    started = time.perf_counter()
    for _ in range(10):
        assert not await manager.disruption.reconcile()
    assert (time.perf_counter() - started) / 10 < 0.01
    tracemalloc.start()
    await manager.disruption.reconcile()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert evaluated(manager) == before == 1


@pytest.mark.parametrize("change", ["pod", "freeze", "time"])
@in_virtual_time
async def test_a_pass_with_changes_is_made(cluster: VirtualCluster, change: str) -> None:
    manager = await filled(cluster)
    if change == "pod":
        manager.state.remove_pod(("default", "p3"))
    elif change == "freeze":
        manager.state.freeze = Freeze("test", "a reason")
    else:
        await asyncio.sleep(301)
    await manager.disruption.reconcile()
    assert evaluated(manager) == 2


@in_virtual_time
async def test_heartbeats_of_nodes_reconcile_no_claim(cluster: VirtualCluster) -> None:
    """A kubelet that writes what it wrote before costs one event; a condition of its Node that changes costs a pass."""
    manager = await filled(cluster)
    node = manager.state.node("n1")
    assert node is not None
    watched = Watched()
    handler = NodeWatchHandler(manager.state, cast(Any, None), watched.queues(), lambda _uid: None)
    beat = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resource_version="later"))
    handler.on_node(node, beat)
    assert watched.added == []
    unready = msgspec.structs.replace(beat, status=msgspec.structs.replace(beat.status, conditions=()))
    handler.on_node(beat, unready)
    assert watched.added == ["claim-n1"]


class Watched:
    """Queues that note the keys they are given."""

    def __init__(self) -> None:
        self.added: list[str] = []

    def add(self, key: str) -> None:
        self.added.append(key)

    def queues(self) -> ControllerQueues:
        own = cast("Reconciler[str]", self)
        return ControllerQueues(own, own, own, own, None, own)
