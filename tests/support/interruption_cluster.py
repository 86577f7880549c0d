"""A cluster for tests of interruptions and other changes by AWS: NodeClaims and Nodes in an API server in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from support.manual_clock import ManualClock
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


@dataclass
class RecordedEvents:
    """Events, as (type, kind, name, reason)."""

    events: list[tuple[str, str, str, str]] = field(default_factory=list)

    def normal(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        assert message
        self.events.append(("Normal", kind.name, involved.name, reason))

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        assert message
        self.events.append(("Warning", kind.name, involved.name, reason))


class FakeAwsCluster:
    """Stored objects, and the cluster view of them, which ``sync`` updates."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.server = MemoryServer(self.clock)
        self.kube = MemoryKube(self.server)
        self.recorder = RecordedEvents()
        self.metrics = Metrics()
        self.interruptions = InterruptionMetrics(self.metrics)
        self.unavailable: list[tuple[str, str]] = []
        self.interrupted: list[ReservedOffering] = []
        self.disrupted: list[tuple[str, str]] = []
        effects = InterruptionEffects(
            lambda name, zone: self.unavailable.append((name, zone)),
            self.interrupted.append,
            lambda claim, reason: self.disrupted.append((claim.metadata.name, reason)),
        )
        self.handler = InterruptionHandler(self, self.kube, self.recorder, self.clock, effects)
        self._claims: tuple[NodeClaim, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._pools: tuple[NodePool, ...] = ()

    # -- cluster view -------------------------------------------------------------------------------------------------------

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

    async def sync(self) -> None:
        self._claims = (await self.kube.list(NODE_CLAIM)).items
        self._nodes = (await self.kube.list(NODE)).items
        self._pools = (await self.kube.list(NODE_POOL)).items

    # -- objects ------------------------------------------------------------------------------------------------------------

    async def pool(self, **notes: str) -> None:
        await self.kube.create(NODE_POOL, annotated(node_pool("np"), notes))
        await self.sync()

    async def add_instance(
        self,
        name: str,
        instance: str,
        own: Mapping[str, str] = SPOT,
        *,
        joined: bool = True,
        registered: bool = True,
        termination_grace_period: str | None = None,
    ) -> None:
        """Create a NodeClaim with an instance and a finalizer, and its Node if it has joined."""
        meta = ObjectMeta(name=name, labels=dict(own), finalizers=(labels.TERMINATION_FINALIZER,))
        spec = NodeClaimSpec(requirements=(), node_class_ref=CLASS, termination_grace_period=termination_grace_period)
        await self.kube.create(NODE_CLAIM, NodeClaim(metadata=meta, spec=spec))
        status = {"status": {"providerID": provider_id(instance)}}
        await self.kube.patch(NODE_CLAIM, name, status, subresource="status")
        if joined:
            await self.join(name, instance, own, registered=registered)
        await self.sync()

    async def join(self, name: str, instance: str, own: Mapping[str, str] = SPOT, *, registered: bool = True) -> None:
        mark = {labels.REGISTERED: "true"} if registered else {}
        meta = ObjectMeta(name=f"node-{name}", labels={**own, **mark}, finalizers=(labels.TERMINATION_FINALIZER,))
        taint = Taint(key="own", effect="NoSchedule", value="x")
        spec = NodeSpec(provider_id=provider_id(instance), taints=(taint,))
        await self.kube.create(NODE, Node(metadata=meta, spec=spec))
        await self.sync()

    # -- results ------------------------------------------------------------------------------------------------------------

    async def claim(self, name: str) -> NodeClaim:
        return await self.kube.get(NODE_CLAIM, name)

    async def node(self, name: str) -> Node:
        return await self.kube.get(NODE, f"node-{name}")

    async def deleted_claims(self) -> list[str]:
        """Names of NodeClaims with a deletion timestamp."""
        await self.sync()
        return [
            nodeclaim.metadata.name for nodeclaim in self._claims if nodeclaim.metadata.deletion_timestamp is not None
        ]

    async def is_tainted(self, name: str) -> bool:
        return labels.DISRUPTED_TAINT in (await self.node(name)).spec.taints

    def count(self, name: str, **own: str) -> float:
        return counted(self.metrics.registry, name, own) or 0.0
