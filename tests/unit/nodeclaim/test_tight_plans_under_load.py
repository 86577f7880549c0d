"""A tight plan on a busy control plane: the pods are bound where they were planned, and no second node is launched for them.

On a busy computer everything comes late: answers to writes, what watches tell, and bindings. The scheduler of these tests gets
events of pods and of nodes at different times, binds one pod after the other, and takes the nomination from a pod that finds no
place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import Disruption
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import RegistrationRule
from karpenter.settings import Settings
from karpenter.simulation import KubeScheduler
from karpenter.simulation.apiserver import MemoryKube
from karpenter.simulation.kube_scheduler import SchedulerKube
from support.builders import pods
from support.instance_types import offering, shape
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

PODS = 1_000
#: Of a thousand pods so many may get another node.
STRAYS_PER_THOUSAND = 1
_TYPES = tuple(
    shape(f"c{cpu}", {"cpu": cpu, "memory": f"{4 * cpu}Gi", "pods": 110}, [offering("on-demand", "z1", 0.05 * cpu)])
    for cpu in (4, 8)
)


class SlowKube:
    """A server whose answers to writes take their time."""

    def __init__(self, inner: MemoryKube, random: Random, longest_seconds: float) -> None:
        self._inner = inner
        self._random = random
        self._longest = longest_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, *args: Any, **more: Any) -> Any:
        await self._wait()
        return await self._inner.create(*args, **more)

    async def patch(self, *args: Any, **more: Any) -> Any:
        await self._wait()
        answer = await self._inner.patch(*args, **more)
        await self._wait()
        return answer

    async def bind(self, *args: Any, **more: Any) -> Any:
        await self._wait()
        return await self._inner.bind(*args, **more)

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._longest))


class LateScheduler(KubeScheduler):
    """Hears late, of pods and of nodes on ways of their own, and takes nominations away from pods that find no place."""

    def __init__(self, kube: SchedulerKube, cluster: VirtualCluster, random: Random, longest_seconds: float) -> None:
        super().__init__(kube, cluster.clock)
        self._server = kube
        self._random = random
        self._longest = longest_seconds
        self._heard = {"nodes": 0.0, "pods": 0.0}

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        self._later("nodes", super()._on_node, before, after)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        self._later("pods", super()._on_pod, before, after)

    def _later(self, way: str, tell: Callable[..., None], *news: object) -> None:
        """Events of one watch keep their order."""
        loop = asyncio.get_running_loop()
        self._heard[way] = max(self._heard[way], loop.time() + self._random.uniform(0, self._longest))
        loop.call_at(self._heard[way], tell, *news)

    async def _write_condition(self, pod: Pod, reason: str, message: str) -> None:
        await super()._write_condition(pod, reason, message)
        if pod.status.nominated_node_name:
            taken = {"status": {"nominatedNodeName": None}}
            await self._server.patch(kinds.POD, pod.metadata.name, taken, pod.metadata.namespace, subresource="status")


async def misplaced_pods(
    cluster: VirtualCluster, seed: int, longest_seconds: float, settings: Settings | None = None
) -> tuple[int, int]:
    """A thousand pods of five sizes come at once: how many are not bound where they were planned, and get another node."""
    random = Random(seed)
    delays = [RegistrationRule(delay=f"{random.randint(2, 20)}s", count=1) for _ in range(400)]
    cluster.simulated(_TYPES, Faults(registration=tuple(delays)))
    cluster.kube = SlowKube(cluster.kube, random, longest_seconds)
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    sizes = [{"cpu": f"{100 + 150 * size}m", "memory": "512Mi"} for size in range(5)]
    alike = [pods(PODS // len(sizes), requests, prefix=f"s{size}") for size, requests in enumerate(sizes)]
    await cluster.waiting(*(pod for pods_ in alike for pod in pods_))
    cluster.also(LateScheduler(cluster.kube, cluster, random, longest_seconds).run())
    await cluster.start(settings)
    await until(lambda: _is_planned(cluster), 60, 0.1)
    assert cluster.manager is not None
    planned = dict(cluster.manager.state.planned_nodes)
    await until(lambda: _all_bound(cluster), 600, 1)
    claims = {claim.metadata.name: claim.status.node_name for claim in await cluster.all(kinds.NODE_CLAIM)}
    bound = {pod.metadata.uid: pod.spec.node_name for pod in await cluster.all(kinds.POD)}
    elsewhere = sum(bound[uid] != claims[claim] for uid, claim in planned.items())
    planned_again = sum(int(str(line["pods"])) for line in cluster.lines("computed new nodeclaim(s) to fit pod(s)"))
    return elsewhere, planned_again - PODS


async def _is_planned(cluster: VirtualCluster) -> bool:
    assert cluster.manager is not None
    return len(cluster.manager.state.planned_nodes) == PODS


async def _all_bound(cluster: VirtualCluster) -> bool:
    return all(pod.spec.node_name for pod in await cluster.all(kinds.POD))


@in_virtual_time
async def test_on_a_busy_control_plane_one_pod_in_a_thousand_gets_another_node_at_most(
    cluster: VirtualCluster,
) -> None:
    """Pods without a nomination use what is left over on open nodes, which may be what another one needed."""
    elsewhere, planned_again = await misplaced_pods(cluster, 0, 0.01)
    assert planned_again <= PODS * STRAYS_PER_THOUSAND / 1_000
    assert elsewhere <= PODS / 10


@in_virtual_time
async def test_without_nominations_many_are(cluster: VirtualCluster) -> None:
    """What the figure above is worth."""
    _, planned_again = await misplaced_pods(cluster, 0, 0.01, Settings(nominate_pods=False))
    assert planned_again > 10 * PODS * STRAYS_PER_THOUSAND / 1_000


@pytest.mark.soak
@pytest.mark.parametrize("longest_seconds", [0.01, 0.05, 0.3])
def test_nor_are_more_in_a_series(longest_seconds: float) -> None:
    """Ten times a thousand pods, on control planes that are slower and slower."""
    found: list[int] = []

    @in_virtual_time
    async def once(cluster: VirtualCluster, seed: int) -> None:
        found.append((await misplaced_pods(cluster, seed, longest_seconds))[1])

    for seed in range(10):
        once(seed=seed)
    assert sum(found) <= len(found) * PODS * STRAYS_PER_THOUSAND / 1_000
