"""Nodes, pods, and a small cluster with the stand-ins for scheduler and workload controllers, for tests of the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import (
    Container,
    ContainerPort,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    PodTemplateSpec,
    ResourceRequirements,
)
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
)
from karpenter.simulation import KubeScheduler, LoopClock, WorkloadControllers
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual

T = TypeVar("T")
START = datetime(2026, 3, 1, tzinfo=UTC)
HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def node(
    name: str,
    cpu: str = "4",
    *,
    memory: str = "16Gi",
    pods: int = 110,
    zone: str = "a",
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    unschedulable: bool = False,
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, uid=name, labels={HOST: name, ZONE: zone, **(labels or {})}),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": memory, "pods": pods}),
    )


def pod(
    name: str,
    cpu: str = "1",
    *,
    memory: str = "1Gi",
    labels: Mapping[str, str] | None = None,
    priority: int | None = None,
    nominated: str = "",
    host_port: int = 0,
    spec: PodSpec | None = None,
) -> Pod:
    ports = (ContainerPort(container_port=host_port, host_port=host_port),) if host_port else ()
    container = Container(
        name="main", resources=ResourceRequirements(requests={"cpu": cpu, "memory": memory}), ports=ports
    )
    given = spec or PodSpec()
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, labels=labels or {}),
        spec=_replaced(given, containers=(container,), priority=priority),
        status=PodStatus(nominated_node_name=nominated),
    )


def _replaced(spec: PodSpec, containers: tuple[Container, ...], priority: int | None) -> PodSpec:
    return msgspec.structs.replace(spec, containers=containers, priority=priority)


def term(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key=key, operator=operator, values=values),))


def field_term(name: str) -> NodeSelectorTerm:
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
    return NodeSelectorTerm(match_fields=(field,))


def requiring(*terms: NodeSelectorTerm) -> PodSpec:
    return PodSpec(affinity=Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=terms))))


def deployment(name: str, replicas: int, cpu: str = "500m", revision: str = "one") -> Deployment:
    container = Container(name="main", resources=ResourceRequirements(requests={"cpu": cpu, "memory": "64Mi"}))
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}, annotations={"revision": revision}),
        spec=PodSpec(containers=(container,)),
    )
    return Deployment(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ReplicatedSpec(replicas=replicas, selector=LabelSelector(match_labels={"app": name}), template=template),
    )


class StandInCluster:
    """An API server in memory with the stand-ins running, in virtual time."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.server = MemoryServer(clock)
        self.kube = MemoryKube(self.server)
        self.scheduler = KubeScheduler(self.kube, clock)
        self.workloads = WorkloadControllers(self.kube, self.clock)

    async def add_node(self, element: Node) -> None:
        """A node that is ready: without the taint every new node gets."""
        await self.kube.create(kinds.NODE, element)
        taints = msgspec.to_builtins(element.spec.taints)
        await self.kube.patch(kinds.NODE, element.metadata.name, {"spec": {"taints": taints}})

    async def pods(self) -> list[Pod]:
        """All pods, by name."""
        listing = await self.kube.list(kinds.POD)
        return sorted(listing.items, key=lambda element: element.metadata.name)

    async def bound(self) -> dict[str, str]:
        """Node of each pod that has one."""
        return {
            listed_pod.metadata.name: listed_pod.spec.node_name
            for listed_pod in await self.pods()
            if listed_pod.spec.node_name
        }

    async def run_pods(self) -> None:
        """Play the kubelet for a moment: every bound pod gets ready, every terminating one ends."""
        for listed_pod in await self.pods():
            metadata = listed_pod.metadata
            if metadata.deletion_timestamp is not None:
                await self.kube.delete(kinds.POD, metadata.name, metadata.namespace, grace_period_seconds=0)
            elif listed_pod.spec.node_name:
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                await self.kube.patch(
                    kinds.POD, metadata.name, {"status": status}, metadata.namespace, subresource="status"
                )

    async def settle(self, rounds: int = 1) -> None:
        """Let everything react, the kubelet included, ``rounds`` times."""
        for _ in range(rounds):
            await asyncio.sleep(20)
            await self.run_pods()
        await asyncio.sleep(20)


def run_with_stand_ins(scenario: Callable[[StandInCluster], Coroutine[object, object, T]]) -> T:
    """Run a test in virtual time with the stand-ins for scheduler and workload controllers."""

    async def main(clock: LoopClock) -> T:
        cluster = StandInCluster(clock)
        at_work = [asyncio.create_task(cluster.scheduler.run()), asyncio.create_task(cluster.workloads.run())]
        try:
            return await scenario(cluster)
        finally:
            for task in at_work:
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)

    return run_virtual(main, START)
