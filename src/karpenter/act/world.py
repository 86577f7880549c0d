"""What every action needs: the API server, the cloud, the picture of the cluster, the clock, who is told and what is noted."""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.act.events import Recorder
from karpenter.act.registrations import Registrations
from karpenter.api.karpenter import NodeClaim, NodeClassReference, NodePool
from karpenter.cluster import ClusterState
from karpenter.cluster.virtual import VirtualPods
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.contract import CloudProvider
from karpenter.telemetry import Metrics


@dataclass(frozen=True)
class World:
    """Handed to every action; holds no state of its own.

    ``bursts`` is a connection for what comes in bursts and waits behind nothing else (None: there is only the common one).
    """

    kube: Kube
    provider: CloudProvider
    state: ClusterState
    clock: Clock
    events: Recorder
    metrics: Metrics
    registrations: Registrations = field(default_factory=Registrations)
    virtual: VirtualPods = field(default_factory=VirtualPods)
    bursts: Kube | None = None

    @property
    def prompt(self) -> Kube:
        """The connection for what must not wait behind other requests."""
        return self.bursts or self.kube

    def serves(self, reference: NodeClassReference) -> bool:
        """Whether the running provider supports this node class (OPS-002)."""
        return any(
            kind.group == reference.group and kind.name == reference.kind for kind in self.provider.node_class_kinds
        )

    def manages(self, obj: NodeClaim | NodePool) -> bool:
        """Whether a claim or pool is ours to act on."""
        reference = obj.spec.node_class_ref if isinstance(obj, NodeClaim) else obj.spec.template.spec.node_class_ref
        return self.serves(reference)
