"""A small cluster for what AWS does to instances: claims and Nodes in an API server in memory, and whoever is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from karpenter.api.core import Node, NodeSpec
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClassReference, NodePool
from karpenter.api.kinds import NODE, NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.api.scheduling_constraints import Taint
from karpenter.metrics import Metrics
from karpenter.model import labels
from karpenter.providers.aws.aws_metrics import InterruptionMetrics
from karpenter.providers.aws.interruption.interruption_handling import (
    InterruptionEffects,
    InterruptionHandler,
    ReservedOffering,
)
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import NOW, annotated, node_pool
from support.metrics_scrape import counted

CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
SPOT = {
    labels.NODE_POOL: "np",
    labels.CAPACITY_TYPE: labels.SPOT,
    labels.INSTANCE_TYPE: "m5.large",
    labels.ZONE: "us-west-2a",
}


def provider_id(instance: str) -> str:
    return f"aws:///us-west-2a/{instance}"


class HandClock:
    """A clock that stands until somebody moves it."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def forward(self, **by: float) -> None:
        self.time += timedelta(**by)


@dataclass
class Told:
    """Events, as (type, kind, name, reason)."""

    events: list[tuple[str, str, str, str]] = field(default_factory=list)

    def normal(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        assert message
        self.events.append(("Normal", kind.name, involved.name, reason))

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        assert message
        self.events.append(("Warning", kind.name, involved.name, reason))


class Cluster:
    """Objects, and the picture watches would give of them, renewed by ``see``."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.server = MemoryServer(self.clock)
        self.kube = MemoryKube(self.server)
        self.recorder = Told()
        self.metrics = Metrics()
        self.interruptions = InterruptionMetrics(self.metrics)
        self.sold_out: list[tuple[str, str]] = []
        self.interrupted: list[ReservedOffering] = []
        self.disrupted: list[tuple[str, str]] = []
        effects = InterruptionEffects(
            lambda name, zone: self.sold_out.append((name, zone)),
            self.interrupted.append,
            lambda claim, reason: self.disrupted.append((claim.metadata.name, reason)),
        )
        self.responder = InterruptionHandler(self, self.kube, self.recorder, self.clock, effects)
        self._claims: tuple[NodeClaim, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._pools: tuple[NodePool, ...] = ()

    # -- what is observed ---------------------------------------------------------------------------------------------------

    def claims(self) -> tuple[NodeClaim, ...]:
        return self._claims

    def pools(self) -> tuple[NodePool, ...]:
        return self._pools

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return next(
            (nodeclaim for nodeclaim in self._claims if nodeclaim.status.provider_id.endswith("/" + instance_id)), None
        )

    def node_of(self, instance_id: str) -> Node | None:
        return next((node for node in self._nodes if node.spec.provider_id.endswith("/" + instance_id)), None)

    async def see(self) -> None:
        self._claims = (await self.kube.list(NODE_CLAIM)).items
        self._nodes = (await self.kube.list(NODE)).items
        self._pools = (await self.kube.list(NODE_POOL)).items

    # -- what there is ------------------------------------------------------------------------------------------------------

    async def pool(self, **notes: str) -> None:
        await self.kube.create(NODE_POOL, annotated(node_pool("np"), notes))
        await self.see()

    async def machine(
        self,
        name: str,
        instance: str,
        own: Mapping[str, str] = SPOT,
        *,
        joined: bool = True,
        registered: bool = True,
        termination_grace_period: str | None = None,
    ) -> None:
        """A claim with an instance, held back by its finalizer, and its Node if it has joined."""
        meta = ObjectMeta(name=name, labels=dict(own), finalizers=(labels.TERMINATION_FINALIZER,))
        spec = NodeClaimSpec(requirements=(), node_class_ref=CLASS, termination_grace_period=termination_grace_period)
        await self.kube.create(NODE_CLAIM, NodeClaim(metadata=meta, spec=spec))
        status = {"status": {"providerID": provider_id(instance)}}
        await self.kube.patch(NODE_CLAIM, name, status, subresource="status")
        if joined:
            await self.join(name, instance, own, registered=registered)
        await self.see()

    async def join(self, name: str, instance: str, own: Mapping[str, str] = SPOT, *, registered: bool = True) -> None:
        mark = {labels.REGISTERED: "true"} if registered else {}
        meta = ObjectMeta(name=f"node-{name}", labels={**own, **mark}, finalizers=(labels.TERMINATION_FINALIZER,))
        taint = Taint(key="own", effect="NoSchedule", value="x")
        spec = NodeSpec(provider_id=provider_id(instance), taints=(taint,))
        await self.kube.create(NODE, Node(metadata=meta, spec=spec))
        await self.see()

    # -- what came of it ----------------------------------------------------------------------------------------------------

    async def claim(self, name: str) -> NodeClaim:
        return await self.kube.get(NODE_CLAIM, name)

    async def node(self, name: str) -> Node:
        return await self.kube.get(NODE, f"node-{name}")

    async def ending(self) -> list[str]:
        """Names of claims that are gone or going."""
        await self.see()
        return [
            nodeclaim.metadata.name for nodeclaim in self._claims if nodeclaim.metadata.deletion_timestamp is not None
        ]

    async def is_tainted(self, name: str) -> bool:
        return labels.DISRUPTED_TAINT in (await self.node(name)).spec.taints

    def count(self, name: str, **own: str) -> float:
        return counted(self.metrics.registry, name, own) or 0.0
