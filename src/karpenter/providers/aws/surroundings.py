"""What AWS's own controllers need of the process they run in, besides AWS and the API server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire


class Observed(Protocol):
    """The cluster as watches last told it: no call, no copy. Objects are immutable."""

    def claims(self) -> Iterable[NodeClaim]:
        """All NodeClaims."""

    def pools(self) -> Iterable[NodePool]:
        """All NodePools."""

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim whose ``status.providerID`` names this instance (AWS-027)."""

    def node_of(self, instance_id: str) -> Node | None:
        """The Node whose ``spec.providerID`` names this instance (AWS-027)."""


class Herald(Protocol):
    """Publishes events. Equal ones in a row are one."""

    def normal(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""

    def warning(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""
