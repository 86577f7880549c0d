"""The provider of AWS without controllers around it: machines are asked of it directly, on the in-memory API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from controlplane.harness import Json
from karpenter.api.core import Node
from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.informer import Informer
from karpenter.kube.memory import MemoryKube, MemoryServer
from karpenter.model import conditions
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.boto.account import Account
from karpenter.providers.aws.boto.start import ApiServer, discover
from karpenter.providers.aws.cloud import AwsCloud
from karpenter.providers.aws.ground import Ground
from karpenter.providers.aws.settings import AwsSettings
from karpenter.providers.aws.window import Outside
from karpenter.telemetry import Metrics
from karpenter.telemetry.aws import SdkMetrics

_CERTIFICATE = "Q0E="


class _Nothing:
    """Implements ``Observed`` and ``Herald`` for whoever looks after no machines."""

    def claims(self) -> Iterable[NodeClaim]:
        return ()

    def pools(self) -> Iterable[NodePool]:
        return ()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        return None

    def node_of(self, instance_id: str) -> Node | None:
        return None

    def normal(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None: ...

    def warning(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None: ...


@dataclass(frozen=True)
class ProviderAlone:
    """The provider, with its class ready."""

    cloud: AwsCloud
    server: MemoryServer
    kube: MemoryKube

    async def claims(self, *wanted: Json) -> tuple[NodeClaim, ...]:
        """NodeClaims that are stored now."""
        self.server.load(wanted)  # type: ignore[arg-type]
        return (await self.kube.list(NODE_CLAIM)).items


@asynccontextmanager
async def provider_alone(cluster: str, *objects: Json) -> AsyncIterator[ProviderAlone]:
    """The provider of an account that the environment leads to; it knows these objects, of which classes become ready."""
    clock, metrics = SystemClock(), Metrics()
    server = MemoryServer(clock)
    server.load(objects)  # type: ignore[arg-type]
    kube = MemoryKube(server)
    account = Account(SdkMetrics(metrics))
    settings = AwsSettings(cluster_name=cluster, cluster_endpoint="https://nowhere", eks_control_plane=True)

    async def version() -> str:
        return "1.35"

    facts = await discover(account, settings, ApiServer(kube, version, _CERTIFICATE))
    cloud = AwsCloud(Ground(account.services, facts, settings, kube, clock, metrics))
    await cloud.hydrate()
    classes: Informer[EC2NodeClass] = Informer(kube, EC2_NODE_CLASS)
    nothing = _Nothing()
    cloud.join(
        Outside(nothing, nothing, lambda name: None, classes.get, lambda: tuple(classes), lambda claim, reason: None)
    )
    classes.subscribe(cloud.node_class)
    running = [asyncio.create_task(work) for work in (classes.run(), _run(cloud, "nodeclass"))]
    try:
        await _until(lambda: all(_is_ready(item) for item in classes) and any(True for _ in classes))
        yield ProviderAlone(cloud, server, kube)
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        account.close()


async def _run(cloud: AwsCloud, name: str) -> None:
    await cloud.loops()[name]()


def _is_ready(node_class: EC2NodeClass) -> bool:
    return conditions.is_true(node_class.status.conditions, "Ready")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)
