"""What the manager hands to the AWS provider when it is built."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_cluster_view import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.cluster_discovery import DiscoveredCluster
from karpenter.state import ClusterState


@dataclass(frozen=True)
class AwsContext:
    """The APIs, the cluster, its view and the event recorder; every part of the provider takes what it needs from here.

    ``state`` is only for counting disruptions as all controllers count them.
    """

    services: AwsApis
    cluster: DiscoveredCluster
    settings: AwsSettings
    kube: Kube
    clock: Clock
    metrics: Metrics
    state: ClusterState
    cluster_view: AwsClusterView
    events: AwsEventRecorder
    strict_min_values: bool = True

    def current_cluster(self) -> AwsClusterInfo:
        """The cluster as last discovered."""
        return self.cluster.cluster
