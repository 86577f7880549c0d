"""The AWS provider without controllers: tests call it directly; the API server is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from controlplane.harness import Json
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.api.meta import ObjectMeta
from karpenter.kube.informer import Informer
from karpenter.metrics import Metrics
from karpenter.model import conditions
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.aws_context import AwsContext, WatchedClusterView
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, discover_cluster
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.runtime.events import ObjectKind
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.state import ClusterState

_CERTIFICATE = "Q0E="


class _NoEvents:
    """An event recorder that drops every event."""

    def normal(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None: ...

    def warning(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None: ...


@dataclass(frozen=True)
class StandaloneProvider:
    """The provider, with a ready EC2NodeClass."""

    cloud: AwsOperator
    server: MemoryServer
    kube: MemoryKube

    async def claims(self, *wanted: Json) -> tuple[NodeClaim, ...]:
        """Store NodeClaims and return them."""
        self.server.load_objects(wanted)
        return (await self.kube.list(NODE_CLAIM)).items


@asynccontextmanager
async def standalone_provider(cluster: str, *objects: Json) -> AsyncIterator[StandaloneProvider]:
    """The provider of the account that the environment configures, with objects. Waits until the EC2NodeClasses are ready."""
    clock, metrics = SystemClock(), Metrics()
    server = MemoryServer(clock)
    server.load_objects(objects)
    kube = MemoryKube(server)
    account = AwsSession(SdkMetrics(metrics))
    settings = AwsSettings(cluster_name=cluster, cluster_endpoint="https://nowhere", eks_control_plane=True)

    async def version() -> str:
        return "1.35"

    facts = await discover_cluster(account, settings, ApiServerAccess(kube, version, _CERTIFICATE))
    state = ClusterState()
    view = WatchedClusterView(state)
    cloud = AwsOperator(AwsContext(account.services, facts, settings, kube, clock, metrics, state, view, _NoEvents()))
    await cloud.hydrate()
    classes: Informer[EC2NodeClass] = Informer(kube, EC2_NODE_CLASS)
    classes.subscribe(view.on_node_class)
    classes.subscribe(cloud.on_node_class)
    running = [asyncio.create_task(work) for work in (classes.run(), _run(cloud, "nodeclass"))]
    try:
        await _until(lambda: all(_is_ready(node_class) for node_class in classes) and any(True for _ in classes))
        yield StandaloneProvider(cloud, server, kube)
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        account.close()


async def _run(cloud: AwsOperator, name: str) -> None:
    await next(controller for controller in cloud.controllers() if controller.name == name).run()


def _is_ready(node_class: EC2NodeClass) -> bool:
    return conditions.is_true(node_class.status.conditions, "Ready")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)
