"""What the manager hands to a provider with controllers of its own: a view of the cluster state and an event recorder."""

from __future__ import annotations

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.runtime.events import NORMAL, WARNING, EventRecorder, InvolvedObject, ObjectEvent, ObjectKind
from karpenter.state import ClusterState


class InstanceClusterView:
    """The cluster state by instance id: providers know instances by id, the state by provider ID.

    Its handlers index every NodeClaim and Node by instance, since garbage collection asks for all of them; they must run after
    those that update the state.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._claim_names_by_instance: dict[str, set[str]] = {}
        self._node_names_by_instance: dict[str, set[str]] = {}

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a NodeClaim was added, updated or deleted."""
        before = (old.status.provider_id, old.metadata.name) if old is not None else _NO_INSTANCE
        _reindex(
            self._claim_names_by_instance,
            before,
            (new.status.provider_id, new.metadata.name) if new is not None else _NO_INSTANCE,
        )

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Informer handler: a Node was added, updated or deleted."""
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
        """The NodeClaim of this instance."""
        names = sorted(self._claim_names_by_instance.get(instance_id, ()))
        return next((nodeclaim for name in names if (nodeclaim := self._state.claim(name)) is not None), None)

    def node_of(self, instance_id: str) -> Node | None:
        """The Node of this instance, also where no NodeClaim has it."""
        names = sorted(self._node_names_by_instance.get(instance_id, ()))
        return next((node for name in names if (node := self._state.node(name)) is not None), None)


#: The provider ID and name of what is not there.
_NO_INSTANCE = ("", "")


def _reindex(by_instance: dict[str, set[str]], before: tuple[str, str], after: tuple[str, str]) -> None:
    """Move a name to the instance that its provider ID ends with."""
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
    """Publishes events on any object through the recorder. Events of one reason with different messages are different events."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def normal(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        """Publish an event of type Normal."""
        self._recorder.publish(ObjectEvent(InvolvedObject(kind, involved), NORMAL, reason, message, (message,)))

    def warning(self, kind: ObjectKind, involved: ObjectMeta, reason: str, message: str) -> None:
        """Publish an event of type Warning."""
        self._recorder.publish(ObjectEvent(InvolvedObject(kind, involved), WARNING, reason, message, (message,)))
