"""AWS as a process's cloud: found, asked who we are, and joined to the controllers' watches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from karpenter.act import counting
from karpenter.api.core import Pod
from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.cli.clouds import CannotStart, Cloud
from karpenter.control.manager import Manager
from karpenter.control.settings import Settings
from karpenter.control.surroundings import Heralds, Observation
from karpenter.decide.provision import MinValuesPolicy
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws.boto.account import Account
from karpenter.providers.aws.boto.start import ApiServer, StartError, discover
from karpenter.providers.aws.cloud import AwsCloud
from karpenter.providers.aws.ground import Ground
from karpenter.providers.aws.window import Outside
from karpenter.providers.contract import ProviderError
from karpenter.telemetry import Metrics
from karpenter.telemetry.aws import SdkMetrics


@dataclass(frozen=True)
class ClusterAccess:
    """The cluster: objects, the API server's version, and the certificates it is believed by (base64 of PEM)."""

    kube: Kube
    version: Callable[[], Awaitable[str]]
    ca_bundle: str


async def opened(settings: Settings, cluster: ClusterAccess, clock: Clock, metrics: Metrics) -> Cloud:
    """The cloud, ready to be asked what it sells. Raises ``CannotStart``."""
    account = Account(SdkMetrics(metrics))
    try:
        facts = await discover(account, settings.aws, ApiServer(cluster.kube, cluster.version, cluster.ca_bundle))
        ground = Ground(
            services=account.services,
            cluster=facts,
            settings=settings.aws,
            kube=cluster.kube,
            clock=clock,
            metrics=metrics,
            strict_min_values=settings.min_values_policy is MinValuesPolicy.STRICT,
        )
        cloud = AwsCloud(ground)
        await cloud.hydrate()
    except (StartError, ProviderError) as error:
        account.close()
        raise CannotStart(str(error)) from error
    return Cloud(cloud.provider, _ignoring_pods(cloud.loops()), joined=partial(_join, cloud))


def _ignoring_pods(
    loops: Mapping[str, Callable[[], Awaitable[None]]],
) -> Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]]:
    return {name: _ignoring(loop) for name, loop in loops.items()}


def _ignoring(loop: Callable[[], Awaitable[None]]) -> Callable[[Informer[Pod]], Awaitable[None]]:
    return lambda pods: loop()


def _join(cloud: AwsCloud, manager: Manager) -> None:
    """Listen to what the controllers watch, and speak through their recorder."""
    classes = cast(Informer[EC2NodeClass], manager.watched_classes[EC2_NODE_CLASS.name])
    observation = Observation(manager.state)
    cloud.join(
        Outside(
            observed=observation,
            herald=Heralds(manager.world.events),
            claim_named=manager.state.claim,
            class_named=classes.get,
            classes=lambda: tuple(classes),
            disrupted=partial(counting.disrupted, manager.world),
        )
    )
    # Those who are told of claims and Nodes may ask for others, so these are filed first.
    manager.watched_claims.subscribe(observation.claim)
    manager.watched_nodes.subscribe(observation.node)
    classes.subscribe(cloud.node_class)
    manager.watched_claims.subscribe(cloud.claim)
    manager.watched_nodes.subscribe(cloud.node)
