"""What a provider's own controllers see of the process they run in: the cluster as watches last told it, and events."""

from __future__ import annotations

from karpenter.act.events import NORMAL, WARNING, About, Happening, Recorder
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.cluster import ClusterState


class Observation:
    """The cluster state, as a provider may look at it. Providers know instances by id, the state by provider ID."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims."""
        return self._state.claims()

    def pools(self) -> tuple[NodePool, ...]:
        """All NodePools."""
        return self._state.pools()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim whose machine has this id. Looks through all: it is asked when something happens to a machine."""
        tail = f"/{instance_id}"
        return next((claim for claim in self._state.claims() if claim.status.provider_id.endswith(tail)), None)

    def node_of(self, instance_id: str) -> Node | None:
        """The Node whose machine has this id."""
        claim = self.claim_of(instance_id)
        nodes = self._state.nodes_of(claim.status.provider_id) if claim is not None else ()
        return nodes[0] if nodes else None


class Heralds:
    """Events about any object, through the recorder. The text tells two of one reason apart."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def normal(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""
        self._recorder.publish(Happening(About(kind, about), NORMAL, reason, message, (message,)))

    def warning(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""
        self._recorder.publish(Happening(About(kind, about), WARNING, reason, message, (message,)))
