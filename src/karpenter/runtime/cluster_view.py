"""What a provider's own controllers see of the process they run in: the cluster as watches last told it, and events."""

from __future__ import annotations

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.runtime.events import NORMAL, WARNING, EventRecorder, InvolvedObject, ObjectEvent
from karpenter.state import ClusterState


class InstanceClusterView:
    """The cluster state, as a provider may look at it. Providers know instances by id, the state by provider ID.

    To be told of every claim and Node after the state was, to find them by instance: collectors ask for all of them.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._claim_names_by_instance: dict[str, set[str]] = {}
        self._node_names_by_instance: dict[str, set[str]] = {}

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim came, changed or went."""
        before = (old.status.provider_id, old.metadata.name) if old is not None else _NO_INSTANCE
        _reindex(
            self._claim_names_by_instance,
            before,
            (new.status.provider_id, new.metadata.name) if new is not None else _NO_INSTANCE,
        )

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node came, changed or went."""
        before = (old.spec.provider_id, old.metadata.name) if old is not None else _NO_INSTANCE
        _reindex(
            self._node_names_by_instance,
            before,
            (new.spec.provider_id, new.metadata.name) if new is not None else _NO_INSTANCE,
        )

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims."""
        return self._state.claims()

    def pools(self) -> tuple[NodePool, ...]:
        """All NodePools."""
        return self._state.pools()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim whose machine has this id."""
        names = sorted(self._claim_names_by_instance.get(instance_id, ()))
        return next((found for name in names if (found := self._state.claim(name)) is not None), None)

    def node_of(self, instance_id: str) -> Node | None:
        """The Node whose machine has this id, also where no claim does."""
        names = sorted(self._node_names_by_instance.get(instance_id, ()))
        return next((found for name in names if (found := self._state.node(name)) is not None), None)


#: The provider ID and name of what is not there.
_NO_INSTANCE = ("", "")


def _reindex(by_instance: dict[str, set[str]], before: tuple[str, str], after: tuple[str, str]) -> None:
    """File a name under the instance at the end of its provider ID."""
    if before == after:
        return
    provider_id, name = before
    names = by_instance.get(_instance_id(provider_id), set())
    names.discard(name)
    if not names:
        by_instance.pop(_instance_id(provider_id), None)
    provider_id, name = after
    if provider_id:
        by_instance.setdefault(_instance_id(provider_id), set()).add(name)


def _instance_id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]


class InvolvedObjectRecorder:
    """Events about any object, through the recorder. The text tells two of one reason apart."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def normal(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""
        self._recorder.publish(ObjectEvent(InvolvedObject(kind, involved), NORMAL, reason, message, (message,)))

    def warning(self, kind: Kind[Wire], involved: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""
        self._recorder.publish(ObjectEvent(InvolvedObject(kind, involved), WARNING, reason, message, (message,)))
