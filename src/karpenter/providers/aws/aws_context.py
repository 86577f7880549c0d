"""What the manager hands to the AWS provider when it is built: APIs, settings, a view of the cluster, an event recorder.

The manager builds cluster state and event recorder first, then the provider with a view of both, then the informers that feed
both. So nothing is bound late: before the informers sync, the view is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from karpenter.api.core import Node
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.cluster_discovery import DiscoveredCluster
from karpenter.runtime.cluster_view import InstanceClusterView
from karpenter.runtime.events import ObjectKind
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


class AwsClusterView(Protocol):
    """The cluster as the informers last saw it: no API call, no copy. Objects are immutable."""

    def claims(self) -> Iterable[NodeClaim]:
        """All NodeClaims."""

    def pools(self) -> Iterable[NodePool]:
        """All NodePools."""

    def node_classes(self) -> Iterable[EC2NodeClass]:
        """All EC2NodeClasses."""

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim whose ``status.providerID`` names this instance (AWS-027)."""

    def node_of(self, instance_id: str) -> Node | None:
        """The Node whose ``spec.providerID`` names this instance (AWS-027)."""

    def claim_named(self, name: str) -> NodeClaim | None:
        """A NodeClaim by its name."""

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        """An EC2NodeClass by its name."""


class AwsEventRecorder(Protocol):
    """Publishes events on objects. Equal events in a row are published once."""

    def normal(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        """Publish an event of type Normal."""

    def warning(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        """Publish an event of type Warning."""


class WatchedClusterView(InstanceClusterView):
    """Implements ``AwsClusterView`` on the cluster state, and keeps the EC2NodeClasses. Its handlers subscribe to informers."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self._node_classes: dict[str, EC2NodeClass] = {}

    def on_node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """Informer handler: an EC2NodeClass was added, updated or deleted."""
        if new is not None:
            self._node_classes[new.metadata.name] = new
        elif old is not None:
            self._node_classes.pop(old.metadata.name, None)

    def node_classes(self) -> tuple[EC2NodeClass, ...]:
        """All EC2NodeClasses."""
        return tuple(self._node_classes.values())

    def claim_named(self, name: str) -> NodeClaim | None:
        """A NodeClaim by its name."""
        return self._state.claim(name)

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        """An EC2NodeClass by its name."""
        return self._node_classes.get(name)


class LaunchAwareClusterView:
    """Implements ``AwsClusterView``; knows the NodeClaim of an instance just launched before its status names the instance."""

    def __init__(self, cluster_view: AwsClusterView, launched_claim_name: Callable[[str], str]) -> None:
        self._launched_claim_name = launched_claim_name
        self._cluster_view = cluster_view
        self.claims = cluster_view.claims
        self.pools = cluster_view.pools
        self.node_classes = cluster_view.node_classes
        self.node_of = cluster_view.node_of
        self.claim_named = cluster_view.claim_named
        self.node_class_named = cluster_view.node_class_named

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim of an instance, by its status or else by the launch."""
        claim = self._cluster_view.claim_of(instance_id)
        return claim or self._cluster_view.claim_named(self._launched_claim_name(instance_id))
