"""AWS as a process's cloud: found, asked who we are, and joined to the controllers' watches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_cluster_view import ClusterViewSources
from karpenter.providers.aws.aws_context import AwsContext
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, AwsStartupError, discover_cluster
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import ProviderError
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.cluster_view import InstanceClusterView, InvolvedObjectRecorder
from karpenter.runtime.settings import Settings
from karpenter.scheduling.scheduling_options import MinValuesPolicy


@dataclass(frozen=True)
class ClusterAccess:
    """The cluster: objects, the API server's version, and the certificates it is believed by (base64 of PEM)."""

    kube: Kube
    version: Callable[[], Awaitable[str]]
    ca_bundle: str


async def aws_setup(settings: Settings, cluster: ClusterAccess, clock: Clock, metrics: Metrics) -> ProviderSetup:
    """The cloud, ready to be asked what it sells. Raises ``CannotStart``."""
    account = AwsSession(SdkMetrics(metrics))
    try:
        facts = await discover_cluster(
            account, settings.aws, ApiServerAccess(cluster.kube, cluster.version, cluster.ca_bundle)
        )
        ground = AwsContext(
            services=account.services,
            cluster=facts,
            settings=settings.aws,
            kube=cluster.kube,
            clock=clock,
            metrics=metrics,
            strict_min_values=settings.min_values_policy is MinValuesPolicy.STRICT,
        )
        cloud = AwsOperator(ground)
        await cloud.hydrate()
    except (AwsStartupError, ProviderError) as error:
        account.close()
        raise ProviderStartError(str(error)) from error
    return ProviderSetup(
        cloud.provider, _without_pod_argument(cloud.loops()), on_manager_built=partial(_connect_to_manager, cloud)
    )


def _without_pod_argument(
    loops: Mapping[str, Callable[[], Awaitable[None]]],
) -> Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]]:
    return {name: _drop_pod_argument(loop) for name, loop in loops.items()}


def _drop_pod_argument(loop: Callable[[], Awaitable[None]]) -> Callable[[Informer[Pod]], Awaitable[None]]:
    return lambda pods: loop()


def _connect_to_manager(cloud: AwsOperator, manager: Manager) -> None:
    """Listen to what the controllers watch, and speak through their recorder."""
    classes = cast(Informer[EC2NodeClass], manager.node_class_informers[EC2_NODE_CLASS.name])
    observation = InstanceClusterView(manager.state)
    cloud.bind(
        ClusterViewSources(
            cluster_view=observation,
            events=InvolvedObjectRecorder(manager.context.events),
            claim_named=manager.state.claim,
            node_class_named=classes.get,
            node_classes=lambda: tuple(classes),
            count_disrupted=partial(nodeclaim_deletion.count_disrupted, manager.context),
        )
    )
    # Those who are told of claims and Nodes may ask for others, so these are filed first.
    manager.claim_informer.subscribe(observation.on_claim)
    manager.node_informer.subscribe(observation.on_node)
    classes.subscribe(cloud.on_node_class)
    manager.claim_informer.subscribe(cloud.on_claim)
    manager.node_informer.subscribe(cloud.on_node)
