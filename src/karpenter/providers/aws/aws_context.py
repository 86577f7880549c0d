"""What every part of the provider stands on."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.cluster_discovery import DiscoveredCluster


@dataclass(frozen=True)
class AwsContext:
    """What everything stands on."""

    services: AwsApis
    cluster: DiscoveredCluster
    settings: AwsSettings
    kube: Kube
    clock: Clock
    metrics: Metrics
    strict_min_values: bool = True

    def current_cluster(self) -> AwsClusterInfo:
        """The cluster as last seen."""
        return self.cluster.cluster
