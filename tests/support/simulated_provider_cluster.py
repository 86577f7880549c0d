"""A small cluster for tests of the simulated provider: an API server in memory, a class, a few types, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.core import Container, Node, Pod, PodSpec, ResourceRequirements
from karpenter.api.karpenter import (
    NodeClaimSpec,
    NodeClassReference,
    NodePoolTaint,
)
from karpenter.api.kinds import KWOK_NODE_CLASS, NODE, POD
from karpenter.api.kwok_node_class import KWOKNodeClass, KWOKNodeClassSpec
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import instance_type_file
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.providers.simulated import Faults, SimulatedNodes, SimulatedProvider, SimulatedTiming
from karpenter.providers.simulated.fault_rules import InsufficientCapacityRule
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import LoopClock
from support.stored_claims import StoredClaims, spec_of_claim

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
CLASS = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
BROKEN = {
    "type": "Ready",
    "status": "False",
    "reason": "Broken",
    "message": "",
    "lastTransitionTime": "2026-01-05T09:00:00Z",
}
SMALL = {"cpu": "100m", "memory": "128Mi", "pods": "1"}
ZONES = ("zone-a", "zone-b")

#: Most tests do not need heartbeats.
QUIET = SimulatedTiming(lease_renewal=None)

RequirementValues = Mapping[str, tuple[str, ...]]


def _described(cpu: int, price: float) -> str:
    offerings = ",".join(
        f'{{"price": {price * factor:.4f}, "requirements": ['
        f'{{"key": "{labels.ZONE}", "operator": "In", "values": ["{zone}"]}},'
        f'{{"key": "{labels.CAPACITY_TYPE}", "operator": "In", "values": ["{kind}"]}}]}}'
        for zone in ZONES
        for kind, factor in (("spot", 0.4), ("on-demand", 1.0))
    )
    return (
        f'{{"name": "m-{cpu}x", "architecture": "amd64", "operatingSystems": ["linux"], "offerings": [{offerings}],'
        f'"resources": {{"cpu": "{cpu}", "memory": "{4 * cpu}Gi"}}, "overhead": {{"cpu": "100m", "memory": "10Mi"}}}}'
    )


def types() -> tuple[InstanceType, ...]:
    return instance_type_file.parse_instance_types(
        f"[{','.join(_described(cpu, 0.05 * cpu) for cpu in (2, 4, 16))}]".encode()
    )


def claim_spec(
    requirements: RequirementValues, requests: Mapping[str, str], taints: tuple[NodePoolTaint, ...] = ()
) -> NodeClaimSpec:
    return spec_of_claim(CLASS, requirements, requests, taints)


@dataclass
class ProviderCluster(StoredClaims):
    """The API server, the providers and their faults that a test uses."""

    node_class = CLASS
    clock: LoopClock
    kube: MemoryKube
    faults: Faults = field(default_factory=Faults)
    providers: list[SimulatedProvider] = field(default_factory=list)
    timing: SimulatedTiming = QUIET
    simulated_nodes: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the simulated nodes, as a new process does."""
        self.simulated_nodes = asyncio.create_task(SimulatedNodes(self.kube, self.clock, self.timing).run())

    async def stop(self) -> None:
        """Stop the simulated nodes; raises their error."""
        running, self.simulated_nodes = self.simulated_nodes, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def provider(self) -> SimulatedProvider:
        self.providers.append(SimulatedProvider(self.kube, self.clock, types(), self.faults))
        return self.providers[-1]

    async def exhaust_capacity(self, requirements: RequirementValues) -> None:
        keys = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)
        rules = tuple(
            InsufficientCapacityRule(instance_type=name, zone=zone, capacity_type=kind)
            for name, zone, kind in itertools.product(*(requirements.get(key, ("*",)) for key in keys))
        )
        self.set_faults(Faults(insufficient_capacity=rules))

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        for provider in self.providers:
            provider.set_faults(faults)

    async def collect_garbage(self) -> None:
        await asyncio.sleep(60)
        for provider in self.providers:
            await provider.collect_garbage()

    async def make_class_not_ready(self) -> None:
        unready = {"status": {"conditions": [BROKEN]}}
        await self.kube.patch(KWOK_NODE_CLASS, CLASS.name, unready, subresource="status")

    async def delete_class(self) -> None:
        await self.kube.delete(KWOK_NODE_CLASS, CLASS.name)

    async def finish_pending_work(self) -> None:
        await asyncio.sleep(60)

    async def node(self) -> Node:
        """The only Node."""
        (node,) = (await self.kube.list(NODE)).items
        return node

    async def pod(
        self, name: str, node: str, annotations: Mapping[str, str] = {}, labels: Mapping[str, str] = {}
    ) -> None:
        """Create a pod and bind it."""
        container = Container(name="main", resources=ResourceRequirements(requests={"cpu": "100m"}))
        metadata = ObjectMeta(name=name, namespace="default", annotations=annotations, labels=labels)
        await self.kube.create(POD, Pod(metadata=metadata, spec=PodSpec(containers=(container,))))
        await self.kube.bind(name, "default", node)


ClusterTest = Callable[[ProviderCluster], Awaitable[None]]


def run_in_virtual_time(test_body: ClusterTest, *, timing: SimulatedTiming = QUIET, delay: str | None = None) -> None:
    """Run a test on a new cluster with simulated instances, in virtual time."""

    async def main(clock: LoopClock) -> None:
        kube = MemoryKube(MemoryServer(clock))
        spec = KWOKNodeClassSpec(node_registration_delay=delay)
        await kube.create(KWOK_NODE_CLASS, KWOKNodeClass(metadata=ObjectMeta(name=CLASS.name), spec=spec))
        cluster = ProviderCluster(clock, kube, timing=timing)
        cluster.start()
        try:
            await test_body(cluster)
        finally:
            await cluster.stop()

    virtual.run_virtual(main, START)
