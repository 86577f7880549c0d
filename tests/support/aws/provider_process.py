"""The AWS provider with its controllers, wired as in a controller process, on the double and an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    EC2NodeClass,
    EC2NodeClassSpec,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimResourceRequests,
    NodeClaimSpec,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from karpenter.api.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import ObjectMeta
from karpenter.kube.informer import Informer
from karpenter.metrics import Metrics
from karpenter.model import conditions, labels
from karpenter.model.clock import Clock, SystemClock
from karpenter.providers.aws.aws_apis import AwsApis, Ec2Api
from karpenter.providers.aws.aws_context import AwsContext, WatchedClusterView
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, DiscoveredCluster, discover_cluster
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import Instance
from karpenter.runtime.events import ObjectKind
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.state import ClusterState
from support.aws.double import Double
from support.builders import wanted
from support.ec2_instance_types import FakeRegion, product, spot

NAME = "prod"
CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
DISCOVERED = {"karpenter.sh/discovery": "test"}
_DEADLINE_SECONDS = 20.0


def node_class(**spec: Any) -> EC2NodeClass:
    """An EC2NodeClass that selects the double's network."""
    defaults: dict[str, Any] = {
        "subnet_selector_terms": (SubnetSelectorTerm(tags=DISCOVERED),),
        "security_group_selector_terms": (SecurityGroupSelectorTerm(tags=DISCOVERED),),
        "ami_selector_terms": (AMISelectorTerm(alias="al2023@latest"),),
        "role": "node",
    }
    return EC2NodeClass(metadata=ObjectMeta(name="default"), spec=EC2NodeClassSpec(**{**defaults, **spec}))


def pool() -> NodePool:
    """The NodePool ``default`` of that class."""
    template = NodeClaimTemplate(spec=NodeClaimTemplateSpec(node_class_ref=CLASS, requirements=()))
    return NodePool(metadata=ObjectMeta(name="default"), spec=NodePoolSpec(template=template))


def claim(name: str, *types: str) -> NodeClaim:
    """An on-demand NodeClaim of the pool for one of these types."""
    return NodeClaim(
        metadata=ObjectMeta(name=name, labels={labels.NODE_POOL: "default", "team": "a"}),
        spec=NodeClaimSpec(
            node_class_ref=CLASS,
            requirements=(
                wanted(labels.INSTANCE_TYPE, "In", *types),
                wanted(labels.CAPACITY_TYPE, "In", labels.ON_DEMAND),
            ),
            resources=NodeClaimResourceRequests(requests={"cpu": "1"}),
        ),
    )


@dataclass
class RecordedEvents:
    """Recorded events: event type, object name and reason."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def normal(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Normal", involved.name, reason))

    def warning(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        self.events.append(("Warning", involved.name, reason))


class Ec2WithFewTypes:
    """EC2 of the double, but with few instance types: reading all types takes seconds."""

    def __init__(self, ec2: Ec2Api, region: FakeRegion) -> None:
        self._ec2 = ec2
        self.describe_instance_types = region.describe_instance_types
        self.describe_instance_type_offerings = region.describe_instance_type_offerings
        self.describe_spot_price_history = region.describe_spot_price_history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ec2, name)


def region(double: Double) -> FakeRegion:
    """Few types, offered in every zone of the double. ``r5.large`` has an on-demand price only."""
    zones = [f"{double.region_name}{letter}" for letter in "abc"]
    names = ("c5.large", "m5.large", "m5.xlarge", "m6g.large", "r5.large")
    return FakeRegion(
        names=names,
        offered_in=dict.fromkeys(names, zones),
        spot=[spot(name, zone, 0.03) for name in names if name != "r5.large" for zone in zones],
        products={"Shared": (product("m5.large", 0.096),), "Dedicated": (product("m5.metal", 4.608),)},
    )


class ProviderProcess:
    """A provider with its cluster view. A test starts the controllers it needs."""

    def __init__(self, double: Double, fake_region: FakeRegion, context: AwsContext, kube: MemoryKube) -> None:
        cloud = AwsOperator(context)
        self.double = double
        self.fake_region = fake_region
        self.controllers = {controller.name: controller for controller in cloud.controllers()}
        self.cloud = cloud
        self.kube = kube
        self.metrics = context.metrics
        self.events: Any = context.events
        self.state = context.state
        self.view: Any = context.cluster_view
        self.classes: Informer[EC2NodeClass] = Informer(kube, EC2_NODE_CLASS)
        self.tasks: list[asyncio.Future[None]] = []

    async def watch(self) -> None:
        """Start the informers, as a process does."""
        claims, nodes, pools = (
            Informer(self.kube, NODE_CLAIM),
            Informer(self.kube, NODE),
            Informer(self.kube, NODE_POOL),
        )
        claims.subscribe(lambda old, new: self._put(self.state.set_claim, self.state.remove_claim, old, new))
        nodes.subscribe(lambda old, new: self._put(self.state.set_node, self.state.remove_node, old, new))
        pools.subscribe(lambda old, new: self._put(self.state.set_pool, self.state.remove_pool, old, new))
        claims.subscribe(self.view.on_claim)
        nodes.subscribe(self.view.on_node)
        self.classes.subscribe(self.view.on_node_class)
        self.classes.subscribe(self.cloud.on_node_class)
        claims.subscribe(self.cloud.on_claim)
        nodes.subscribe(self.cloud.on_node)
        for informer in (self.classes, claims, nodes, pools):
            self.tasks.append(asyncio.create_task(informer.run()))
            await informer.wait_synced()

    def _put(self, put: Callable[[Any], None], remove: Callable[[str], None], old: Any, new: Any) -> None:
        if new is None:
            remove(old.metadata.name)
        else:
            put(new)

    def start(self, *controllers: str) -> None:
        """Run controllers by their names."""
        for name in controllers:
            self.tasks.append(asyncio.ensure_future(self.controllers[name].run()))

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Wait for a condition; fail at the deadline."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _DEADLINE_SECONDS
        while not (await result if isinstance(result := holds(), Awaitable) else result):
            assert loop.time() < end, f"{what} does not come true"
            await asyncio.sleep(0.02)

    async def ready_class(self, **spec: Any) -> EC2NodeClass:
        """Create the class ``default`` and wait until it is ready."""
        await self.kube.create(EC2_NODE_CLASS, node_class(**spec))
        self.start("nodeclass")
        await self.until(lambda: self._is_ready(), "the class being ready")
        ready_class = self.classes.get("default")
        assert ready_class is not None
        return ready_class

    def _is_ready(self) -> bool:
        node_class = self.classes.get("default")
        return node_class is not None and conditions.is_true(node_class.status.conditions, "Ready")

    def carried_out(self, *operations: str) -> int:
        """The number of successful calls of these operations."""
        return sum(len(self.double.calls.carried_out(operation)) for operation in operations)


def context(
    services: AwsApis,
    cluster: DiscoveredCluster,
    settings: AwsSettings,
    kube: MemoryKube,
    clock: Clock,
    metrics: Metrics,
) -> AwsContext:
    """The context that the manager would pass: the view of an empty cluster, and a recorder that keeps events."""
    state = ClusterState()
    return AwsContext(
        services, cluster, settings, kube, clock, metrics, state, WatchedClusterView(state), RecordedEvents()
    )


@asynccontextmanager
async def provider_process(double: Double, account: AwsSession, **settings: Any) -> AsyncIterator[ProviderProcess]:
    """A process that has hydrated and runs its informers."""
    made = await unhydrated(double, account, **settings)
    await made.cloud.hydrate()
    await made.watch()
    try:
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


async def unhydrated(double: Double, account: AwsSession, **settings: Any) -> ProviderProcess:
    """A process before it has read instance types and prices."""
    clock, metrics = SystemClock(), Metrics()
    kube = MemoryKube(MemoryServer(clock))

    async def version() -> str:
        return "1.35"

    own = AwsSettings(
        **{"cluster_name": NAME, "cluster_endpoint": "https://prod.example", "service_cidr": "10.96.0.0/12", **settings}
    )
    facts = await discover_cluster(account, own, ApiServerAccess(kube, version, "Q0E="))
    fake_region = region(double)
    few: Any = Ec2WithFewTypes(account.services.ec2, fake_region)
    services = account.services._replace(ec2=few, pricing=fake_region)
    return ProviderProcess(double, fake_region, context(services, facts, own, kube, clock, metrics), kube)


async def launched(process: ProviderProcess, name: str = "one", *types: str) -> tuple[NodeClaim, Instance]:
    """A NodeClaim with a launched instance, and the instance. The NodeClaim's status has the instance."""
    asked = await process.kube.create(NODE_CLAIM, claim(name, *(types or ("m5.large",))))
    instance = await process.cloud.provider.create(asked)
    status = {"providerID": instance.provider_id, "imageID": instance.image_id, "nodeName": f"node-{name}"}
    notes = {"metadata": {"annotations": instance.annotations}}
    await process.kube.patch(NODE_CLAIM, name, notes)
    shown = await process.kube.patch(NODE_CLAIM, name, {"status": status}, subresource="status")
    await process.until(lambda: _shows_instance(process, name), "the claim showing its instance")
    return shown, instance


def _shows_instance(process: ProviderProcess, name: str) -> bool:
    nodeclaim = process.state.claim(name)
    return nodeclaim is not None and bool(nodeclaim.status.provider_id)
