"""What every part of the provider stands on."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.aws.boto.start import ClusterFacts
from karpenter.providers.aws.ports import Services
from karpenter.providers.aws.settings import AwsSettings, Cluster
from karpenter.telemetry import Metrics


@dataclass(frozen=True)
class Ground:
    """What everything stands on."""

    services: Services
    cluster: ClusterFacts
    settings: AwsSettings
    kube: Kube
    clock: Clock
    metrics: Metrics
    strict_min_values: bool = True

    def now(self) -> Cluster:
        """The cluster as last seen."""
        return self.cluster.cluster
