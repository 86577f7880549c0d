"""What AWS's own controllers need of the process they run in, besides AWS and the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire


class AwsClusterView(Protocol):
    """The cluster as watches last told it: no call, no copy. Objects are immutable."""

    def claims(self) -> Iterable[NodeClaim]:
        """All NodeClaims."""

    def pools(self) -> Iterable[NodePool]:
        """All NodePools."""

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim whose ``status.providerID`` names this instance (AWS-027)."""

    def node_of(self, instance_id: str) -> Node | None:
        """The Node whose ``spec.providerID`` names this instance (AWS-027)."""


class AwsEventRecorder(Protocol):
    """Publishes events. Equal ones in a row are one."""

    def normal(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""


class WarningRecorder(Protocol):
    """Publishes events."""

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""


NODE_CLAIM_KIND = cast("Kind[Wire]", kinds.NODE_CLAIM)
NODE_KIND = cast("Kind[Wire]", kinds.NODE)
NODE_POOL_KIND = cast("Kind[Wire]", kinds.NODE_POOL)


@dataclass(frozen=True)
class ClusterViewSources:
    """What is seen once the window is open. ``disrupted`` counts that we began the end of a claim, and why."""

    cluster_view: AwsClusterView
    events: AwsEventRecorder
    claim_named: Callable[[str], NodeClaim | None]
    node_class_named: Callable[[str], EC2NodeClass | None]
    node_classes: Callable[[], Iterable[EC2NodeClass]]
    count_disrupted: Callable[[NodeClaim, str], None]


class DeferredClusterView:
    """Implements ``Observed`` and ``Herald``. Nothing is seen, and nothing said, before it is opened."""

    def __init__(self) -> None:
        self._sources: ClusterViewSources | None = None
        self._claim_name_of: Callable[[str], str] = lambda instance_id: ""

    def bind(self, sources: ClusterViewSources) -> None:
        """From now on this is what is seen."""
        self._sources = sources

    def set_launch_lookup(self, claim_name_of: Callable[[str], str]) -> None:
        """From now on a machine is known by the claim it was bought for, too, until the claim names it itself."""
        self._claim_name_of = claim_name_of

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims."""
        return tuple(self._sources.cluster_view.claims()) if self._sources is not None else ()

    def pools(self) -> tuple[NodePool, ...]:
        """All NodePools."""
        return tuple(self._sources.cluster_view.pools()) if self._sources is not None else ()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim of an instance."""
        if self._sources is None:
            return None
        return self._sources.cluster_view.claim_of(instance_id) or self.claim_named(self._claim_name_of(instance_id))

    def node_of(self, instance_id: str) -> Node | None:
        """The Node of an instance."""
        return self._sources.cluster_view.node_of(instance_id) if self._sources is not None else None

    def claim_named(self, name: str) -> NodeClaim | None:
        """A NodeClaim by its name."""
        return self._sources.claim_named(name) if self._sources is not None else None

    def node_class_named(self, name: str) -> EC2NodeClass | None:
        """An EC2NodeClass by its name."""
        return self._sources.node_class_named(name) if self._sources is not None else None

    def node_classes(self) -> tuple[EC2NodeClass, ...]:
        """All EC2NodeClasses."""
        return tuple(self._sources.node_classes()) if self._sources is not None else ()

    def count_disrupted(self, claim: NodeClaim, reason: str) -> None:
        """We began the end of a claim."""
        if self._sources is not None:
            self._sources.count_disrupted(claim, reason)

    def normal(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""
        if self._sources is not None:
            self._sources.events.normal(kind, involved, reason, message)

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""
        if self._sources is not None:
            self._sources.events.warning(kind, involved, reason, message)
