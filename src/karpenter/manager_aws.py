"""Builds the AWS provider for a controller process and subscribes it to the informers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, Kind
from karpenter.api.meta import Wire
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.manager_cloud import ProviderSetup, ProviderStartError
from karpenter.manager_informers import ClusterInformers, WatchedKinds
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_context import AwsContext, WatchedClusterView
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.aws_settings import aws_settings_of
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, AwsStartupError, discover_cluster
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import ProviderError
from karpenter.runtime.cluster_view import InvolvedObjectRecorder
from karpenter.runtime.events import EventRecorder
from karpenter.scheduling.scheduling_options import MinValuesPolicy
from karpenter.settings import Settings


@dataclass(frozen=True)
class ClusterAccess:
    """The cluster: objects, the API server's version, and the certificates that verify it (base64 of PEM)."""

    kube: Kube
    version: Callable[[], Awaitable[str]]
    ca_bundle: str


async def aws_setup(settings: Settings, cluster: ClusterAccess, clock: Clock, metrics: Metrics) -> ProviderSetup:
    """Build the provider, read what AWS sells and subscribe the provider to the informers. Raises ``ProviderStartError``."""
    informers = ClusterInformers(cluster.kube, WatchedKinds.of(settings, (cast(Kind[Wire], EC2_NODE_CLASS),)))
    state = informers.state
    events = EventRecorder(cluster.kube, clock)
    cluster_view = WatchedClusterView(state)
    aws_settings = aws_settings_of(
        settings,
        settings.gates,
        settings.intervals,
        legacy_node_repair=settings.legacy_node_repair,
        ignore_dra_requests=settings.ignore_dra_requests,
    )
    account = AwsSession(SdkMetrics(metrics))
    try:
        facts = await discover_cluster(
            account, aws_settings, ApiServerAccess(cluster.kube, cluster.version, cluster.ca_bundle)
        )
        ground = AwsContext(
            services=account.services,
            cluster=facts,
            settings=aws_settings,
            kube=cluster.kube,
            clock=clock,
            metrics=metrics,
            state=state,
            cluster_view=cluster_view,
            events=InvolvedObjectRecorder(events),
            strict_min_values=settings.min_values_policy is MinValuesPolicy.STRICT,
        )
        cloud = AwsOperator(ground)
        await cloud.hydrate()
    except (AwsStartupError, ProviderError) as error:
        account.close()
        raise ProviderStartError(str(error)) from error
    _subscribe(cloud, cluster_view, informers)
    controllers = {controller.name: controller.run for controller in cloud.controllers()}
    return ProviderSetup(cloud.provider, informers, controllers, events=events)


def _subscribe(cloud: AwsOperator, cluster_view: WatchedClusterView, informers: ClusterInformers) -> None:
    """Subscribe the provider to the informers; the view first, because the other handlers read it."""
    classes = cast(Informer[EC2NodeClass], informers.node_classes[EC2_NODE_CLASS.name])
    informers.subscribe_claims(cluster_view.on_claim, cloud.on_claim)
    informers.subscribe(informers.nodes, cluster_view.on_node, cloud.on_node)
    informers.subscribe(classes, cluster_view.on_node_class, cloud.on_node_class)
