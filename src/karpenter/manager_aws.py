"""Builds the AWS provider for a controller process and subscribes it to the manager's informers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from karpenter.api.core import Pod
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.manager import Manager
from karpenter.manager_cloud import ProviderSetup, ProviderStartError
from karpenter.manager_watches import log_unusable_object
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
from karpenter.state import ClusterState


@dataclass(frozen=True)
class ClusterAccess:
    """The cluster: objects, the API server's version, and the certificates it is believed by (base64 of PEM)."""

    kube: Kube
    version: Callable[[], Awaitable[str]]
    ca_bundle: str


async def aws_setup(settings: Settings, cluster: ClusterAccess, clock: Clock, metrics: Metrics) -> ProviderSetup:
    """Build the provider and learn what AWS sells. Raises ``ProviderStartError``.

    Cluster state and event recorder are built here and go to the provider and, with the result, to the manager.
    """
    state = ClusterState(log_unusable_object)
    events = EventRecorder(cluster.kube, clock)
    cluster_view = WatchedClusterView(state)
    aws_settings = aws_settings_of(settings, settings.gates, settings.intervals)
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
    return ProviderSetup(
        cloud.provider,
        {controller.name: _drop_pod_argument(controller.run) for controller in cloud.controllers()},
        on_manager_built=partial(_subscribe, cloud, cluster_view),
        state=state,
        events=events,
    )


def _drop_pod_argument(loop: Callable[[], Awaitable[None]]) -> Callable[[Informer[Pod]], Awaitable[None]]:
    return lambda pods: loop()


def _subscribe(cloud: AwsOperator, cluster_view: WatchedClusterView, manager: Manager) -> None:
    """Subscribe the provider to the manager's informers; the view first, because the other handlers read it."""
    classes = cast(Informer[EC2NodeClass], manager.node_class_informers[EC2_NODE_CLASS.name])
    manager.claim_informer.subscribe(cluster_view.on_claim)
    manager.node_informer.subscribe(cluster_view.on_node)
    classes.subscribe(cluster_view.on_node_class)
    manager.claim_informer.subscribe(cloud.on_claim)
    manager.node_informer.subscribe(cloud.on_node)
    classes.subscribe(cloud.on_node_class)
