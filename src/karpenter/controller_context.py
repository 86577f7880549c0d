"""What controllers share: the API server, the cloud, the cluster state, the clock, the event recorder and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.api.karpenter import NodeClaim, NodeClassReference, NodePool
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock, ServerClockOffset
from karpenter.providers.contract import CloudProvider
from karpenter.runtime.decisions_in_progress import DecisionsInProgress
from karpenter.runtime.events import EventRecorder
from karpenter.runtime.intervals import Intervals
from karpenter.state import ClusterState
from karpenter.state.nodepool_health import NodePoolHealth


@dataclass(frozen=True)
class ControllerContext:
    """Handed to every controller; holds no state of its own.

    ``separate_kube`` is a connection for requests that come in bursts and wait behind nothing else (None: the common one).
    """

    kube: Kube
    provider: CloudProvider
    state: ClusterState
    clock: Clock
    events: EventRecorder
    metrics: Metrics
    nodepool_health: NodePoolHealth = field(default_factory=NodePoolHealth)
    separate_kube: Kube | None = None
    intervals: Intervals = field(default_factory=Intervals)
    server_clock: ServerClockOffset = field(default_factory=ServerClockOffset)
    decisions: DecisionsInProgress = field(default_factory=DecisionsInProgress)

    @property
    def priority_kube(self) -> Kube:
        """The connection for what must not wait behind other requests."""
        return self.separate_kube or self.kube

    def supports_node_class(self, reference: NodeClassReference) -> bool:
        """Whether the running provider supports this node class (OPS-002)."""
        return any(
            kind.group == reference.group and kind.name == reference.kind for kind in self.provider.node_class_kinds
        )

    def is_managed(self, obj: NodeClaim | NodePool) -> bool:
        """Whether a claim or pool is ours to act on."""
        reference = obj.spec.node_class_ref if isinstance(obj, NodeClaim) else obj.spec.template.spec.node_class_ref
        return self.supports_node_class(reference)
