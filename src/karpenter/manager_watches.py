"""Handlers of watch events: a change of an object adds the keys of controllers that have to reconcile because of it.

They run after the cluster state has stored the change (``manager_informers``). A deleted object comes as ``(old, None)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodeClassReference, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.api.resource_claims import ResourceSlice
from karpenter.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from karpenter.disruption.disruption_controller import DisruptionController
from karpenter.disruption.successor_nominations import SuccessorNominations
from karpenter.kube.informer import Informer
from karpenter.model import conditions, labels, pods, taints
from karpenter.model.object_changes import is_rewritten
from karpenter.nodeclaim.consolidatable import PodEventTracker, is_pod_event
from karpenter.nodeclaim.lifecycle import NodeClaimLifecycle
from karpenter.nodeclaim.reboot import is_rebooting
from karpenter.nodepool.readiness import NodeClassState
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.reconciler import Reconciler
from karpenter.state import ClusterState
from karpenter.state.snapshot import PodKey, pod_key
from karpenter.state.untried_pods import UntriedPods
from karpenter.termination.node_termination import NodeTermination

#: Requests a scheduling pass because of the object with this uid.
Trigger = Callable[[str], None]


@dataclass(frozen=True)
class ControllerQueues:
    """The controllers that watch events add keys to. ``node_health`` is None while node repair is off."""

    claims: Reconciler[str]
    pod_events: Reconciler[str]
    terminations: Reconciler[str]
    pools: Reconciler[str]
    node_health: Reconciler[str] | None
    reboots: Reconciler[str]


@dataclass(frozen=True)
class PendingPodsTrigger:
    """Requests a scheduling pass for all pending pods: what can be launched has changed."""

    state: ClusterState
    trigger: Trigger

    def __call__(self) -> None:
        """Trigger for each of them."""
        for pod in self.state.pending_pods():
            self.trigger(pod.metadata.uid)


@dataclass(frozen=True)
class PendingPodChanges:
    """Requests a scheduling pass for pods that are pending, or differently pending, since a change."""

    untried: UntriedPods
    trigger: Trigger

    def on_pod(self, old: Pod | None, new: Pod) -> None:
        """A pod appeared or changed. With the first mark of its siblings, those that have none are pending, too."""
        key = pod_key(new)
        if self._is_news(key, old, new):
            self.trigger(new.metadata.uid)
            for sibling in self.untried.pending_because_of(key):
                self.trigger(sibling.metadata.uid)

    def _is_news(self, key: PodKey, old: Pod | None, new: Pod) -> bool:
        is_marked = pods.is_provisionable(new)
        if not is_marked and not self.untried.is_pending(key):
            return False
        if old is None:
            return True
        if pods.is_provisionable(old) == is_marked:
            return _changed_for_decisions(old, new)
        return not (is_marked and self.untried.was_pending(key, old))


@dataclass(frozen=True)
class TerminatingNodes:
    """Reconciles the termination of a Node whose drain may go on."""

    state: ClusterState
    queue: Reconciler[str]

    def add(self, node_name: str) -> None:
        """Something that the drain waits for has changed."""
        node = self.state.node(node_name)
        if node is not None and node.metadata.deletion_timestamp is not None:
            self.queue.add(node_name)

    def on_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """A VolumeAttachment."""
        for attachment in (old, new):
            if attachment is not None:
                self.add(attachment.spec.node_name)


@dataclass(frozen=True)
class PodWatchHandler:
    """Changes of pods."""

    informer: Informer[Pod]
    nominator: PodNominator
    successors: SuccessorNominations
    pod_events: PodEventTracker
    queues: ControllerQueues
    terminating_nodes: TerminatingNodes
    pending_pods: PendingPodChanges

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod."""
        if new is None:
            if old is not None:
                self.terminating_nodes.add(old.spec.node_name)
            return
        self.nominator.pod_updated(new)
        if old is None and self.informer.synced:
            self.successors.pod_added(new)
        self.pending_pods.on_pod(old, new)
        if (old is not None or self.informer.synced) and is_pod_event(old, new):
            claim = self.pod_events.record(new)
            if claim:
                self.queues.pod_events.add(claim)
        if new.metadata.deletion_timestamp is not None:
            self.terminating_nodes.add(new.spec.node_name)


def _changed_for_decisions(old: Pod, new: Pod) -> bool:
    """Whether a pending pod changed by more than its nomination, which this process writes and the scheduler takes away."""
    before, after = (msgspec.structs.replace(pod.status, nominated_node_name="") for pod in (old, new))
    return before != after or old.spec != new.spec or _what_users_set(old.metadata) != _what_users_set(new.metadata)


def _what_users_set(meta: ObjectMeta) -> tuple[object, ...]:
    return (meta.labels, meta.annotations, meta.owner_references)


@dataclass(frozen=True)
class NodeWatchHandler:
    """Changes of Nodes."""

    state: ClusterState
    drainer: NodeTermination
    queues: ControllerQueues
    trigger: Trigger

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node. Heartbeats trigger no pass: passes that depend on time are scheduled by themselves."""
        if old is not None and new is not None and is_rewritten(old, new):
            return
        if new is not None:
            self._on_present(old, new)
        elif old is not None:
            self.drainer.node_deleted(old)
            self.queues.terminations.add(old.metadata.name)
        for provider_id in {node.spec.provider_id for node in (old, new) if node is not None}:
            for claim in self.state.claims_by_provider_id(provider_id):
                self.queues.claims.add(claim.metadata.name)
                if is_rebooting(claim):
                    self.queues.reboots.add(claim.metadata.name)

    def _on_present(self, old: Node | None, new: Node) -> None:
        name = new.metadata.name
        if new.metadata.deletion_timestamp is not None:
            self.queues.terminations.add(name)
        if self.queues.node_health is not None and (old is None or old.status.conditions != new.status.conditions):
            self.queues.node_health.add(name)
        if _is_disrupted(new) and not (old is not None and _is_disrupted(old)):
            self.trigger(new.metadata.uid)


def _is_disrupted(node: Node) -> bool:
    return any(taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints)


@dataclass(frozen=True)
class NodeClaimWatchHandler:
    """Changes of NodeClaims."""

    state: ClusterState
    lifecycle: NodeClaimLifecycle
    disruption: DisruptionController
    queues: ControllerQueues
    trigger: Trigger

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim."""
        if new is None:
            if old is not None:
                self.lifecycle.forget(old.metadata.name)
                self.disruption.claim_deleted(old.metadata.name)
                self._trigger_planned_pods(old.metadata.name)
            return
        if new.metadata.deletion_timestamp is not None:
            self.disruption.claim_deleted(new.metadata.name)
        self.lifecycle.observe(new)
        self.queues.claims.add(new.metadata.name)
        if is_rebooting(new):
            self.queues.reboots.add(new.metadata.name)
        for node in self.state.nodes_by_provider_id(new.status.provider_id):
            if node.metadata.deletion_timestamp is not None:
                self.queues.terminations.add(node.metadata.name)

    def _trigger_planned_pods(self, claim_name: str) -> None:
        """A NodeClaim is gone: pods planned on it need a new plan without waiting for the next periodic pass."""
        planned = {uid for uid, key in self.state.planned_nodes.items() if key == claim_name}
        for pod in self.state.pending_pods() if planned else ():
            if pod.metadata.uid in planned:
                self.trigger(pod.metadata.uid)


@dataclass(frozen=True)
class NodePoolWatchHandler:
    """Changes of NodePools."""

    state: ClusterState
    queues: ControllerQueues
    trigger_pending_pods: PendingPodsTrigger

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool."""
        pool = new or old
        if pool is None:
            return
        self.queues.pools.add(pool.metadata.name)
        if new is not None and (old is None or _is_changed(old, new)):
            for claim in self.state.claims():
                if claim.metadata.labels.get(labels.NODE_POOL) == new.metadata.name:
                    self.queues.claims.add(claim.metadata.name)
            self.trigger_pending_pods()


def _is_changed(old: NodePool, new: NodePool) -> bool:
    """Whether the pool changed by more than its counters and the health of its registrations, which we write ourselves."""
    return (
        old.metadata.generation != new.metadata.generation
        or old.metadata.annotations != new.metadata.annotations
        or _decisive_conditions(old) != _decisive_conditions(new)
    )


def _decisive_conditions(pool: NodePool) -> dict[str, str]:
    return {
        condition.type: condition.status
        for condition in pool.status.conditions
        if condition.type != conditions.NODE_REGISTRATION_HEALTHY
    }


class NodeClassObject(Protocol):
    """What readiness reads of a node class of any kind."""

    metadata: ObjectMeta
    status: NodeClassObjectStatus


class NodeClassObjectStatus(Protocol):
    """The part of a node class's status that readiness reads."""

    conditions: tuple[Condition, ...]


class NodeClassStates:
    """The node classes of all kinds, as readiness reads them."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, str], NodeClassState] = {}

    def find(self, reference: NodeClassReference) -> NodeClassState | None:
        """The node class; None when it does not exist."""
        return self._states.get((reference.group, reference.kind, reference.name))

    def store(self, kind: Kind[Wire], node_class: NodeClassObject) -> None:
        """A node class appeared or changed."""
        meta = node_class.metadata
        self._states[kind.group, kind.name, meta.name] = NodeClassState(
            node_class.status.conditions, meta.deletion_timestamp is not None, meta.generation
        )

    def remove(self, kind: Kind[Wire], name: str) -> None:
        """A node class is gone."""
        self._states.pop((kind.group, kind.name, name), None)


@dataclass(frozen=True)
class NodeClassWatchHandler:
    """Changes of node classes of one kind. They concern all pools, and the claims of the class."""

    kind: Kind[Wire]
    state: ClusterState
    node_classes: NodeClassStates
    lifecycle: NodeClaimLifecycle
    queues: ControllerQueues

    def on_node_class(self, old: Wire | None, new: Wire | None) -> None:
        """A node class."""
        node_class = cast(NodeClassObject, new or old)
        name = node_class.metadata.name
        if new is None:
            self.node_classes.remove(self.kind, name)
        else:
            self.node_classes.store(self.kind, node_class)
        for pool in self.state.pools():
            self.queues.pools.add(pool.metadata.name)
        self.lifecycle.node_class_changed()
        reference = NodeClassReference(group=self.kind.group, kind=self.kind.name, name=name)
        for claim in self.state.claims():
            if claim.spec.node_class_ref == reference:
                self.queues.claims.add(claim.metadata.name)


@dataclass(frozen=True)
class DeviceWatchHandler:
    """Changes of device claims and slices: ``trigger`` receives the uid of each pending pod for which a plan may now be made."""

    state: ClusterState
    queues: ControllerQueues
    trigger: Trigger

    def on_change(self, _old: Wire | None, _new: Wire | None) -> None:
        """A claim, template or class."""
        for pod in self.state.pending_pods():
            if pod.spec.resource_claims and pods.is_provisionable(pod):
                self.trigger(pod.metadata.uid)

    def on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A slice: its Node may be initialized now."""
        self.on_change(old, new)
        node = self.state.node((new or old or ResourceSlice()).spec.node_name or "")
        for claim in self.state.claims_by_provider_id(node.spec.provider_id) if node is not None else ():
            self.queues.claims.add(claim.metadata.name)


@dataclass(frozen=True)
class VolumeWatchHandler:
    """Changes of volumes: ``trigger`` receives the uid of each pending pod for which a plan may now be made."""

    state: ClusterState
    trigger: Trigger

    def on_volume_claim(self, _old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A PersistentVolumeClaim."""
        if new is not None:
            self._trigger_pods(self.state.users_of_volume_claim((new.metadata.namespace, new.metadata.name)))

    def on_volume(self, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """A PersistentVolume."""
        claim = new.spec.claim_ref if new is not None else None
        if claim is not None:
            self._trigger_pods(self.state.users_of_volume_claim((claim.namespace, claim.name)))

    def on_storage_class(self, _old: StorageClass | None, new: StorageClass | None) -> None:
        """A StorageClass. No index says which claims are of it, because storage classes hardly ever change."""
        if new is not None:
            self._trigger_pods(pod for pod in self.state.pending_pods() if pods.volume_claim_names(pod))

    def _trigger_pods(self, users: Iterable[Pod]) -> None:
        for pod in users:
            if pods.is_provisionable(pod):
                self.trigger(pod.metadata.uid)
