"""Simulated workload controllers: Deployment, ReplicaSet, DaemonSet, disruption budgets, garbage collection of pods.

Each creates owned objects of the next level from a template: a Deployment one ReplicaSet per template (named after the
template's hash), a ReplicaSet pods, a DaemonSet one pod for every node that selector and taints allow. The API server cleans
up after a deleted owner.

One queue holds the objects to reconcile, one loop reconciles them in the order of kind and name. A reconcile is idempotent:
it compares the desired with the existing objects (``owned_objects`` counts them). A failed call is retried a second later.

Differences from the real ones: a rollout proceeds by a quarter of the replicas (25 % surge, 25 % unavailable) whatever the
strategy; empty old ReplicaSets are deleted, so there is no rollback; orphans are not adopted; a changed DaemonSet replaces
its pods on all nodes at once; taints evict no pods.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet, Deployment, ReplicaSet
from karpenter.api.core import Node, Pod, PodDisruptionBudget
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.informer import Informer, ObjectKey, key_of
from karpenter.kube.protocol import JsonObject
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.model.pdb_counts import ExpectedPodsUnknown
from karpenter.model.pods import controller_of
from karpenter.model.workload_pods import (
    REVISION_HASH_LABEL,
    desired_replicas,
    reference_to,
    replica_set_of,
    template_hash,
    with_labels,
)
from karpenter.simulation import daemonset_pods
from karpenter.simulation.owned_objects import OwnedObjects, PodFactory, WorkloadKube, watch_objects
from karpenter.simulation.pdb_controller import PdbController

_RETRY_SECONDS = 1.0
#: What to reconcile: kind, namespace and name, and for DaemonSets the node.
_QueueKey = tuple[str, ObjectKey, str]
_NODE, _DEPLOYMENT, _REPLICA_SET, _DAEMON_SET = "Node", "Deployment", "ReplicaSet", "DaemonSet"
_BUDGET = "PodDisruptionBudget"
#: Kinds whose objects have replicas, which disruption budgets ask for.
_WITH_REPLICAS = (_REPLICA_SET, _DEPLOYMENT, "StatefulSet", "ReplicationController")


class WorkloadControllers:
    """All the controllers. ``run`` it as a task."""

    def __init__(self, kube: WorkloadKube, clock: Clock) -> None:
        self._kube = kube
        #: Replicas that controllers of pods are set to which are not in the API server, by their uid.
        self.absent_controllers: Callable[[str], int | None] = lambda uid: None
        self._queue: set[_QueueKey] = set()
        self._wake = asyncio.Event()
        self._status_writer = _StatusWriter(kube)
        self._owned_replica_sets: OwnedObjects[ReplicaSet] = OwnedObjects(kube, kinds.REPLICA_SET, _owner_uid)
        self._owned_pods: OwnedObjects[Pod] = OwnedObjects(kube, kinds.POD, _pod_owner_key)
        self._pod_factory = PodFactory(self._owned_pods)
        self._pdb_controller = PdbController(kube, clock, self._replicas_of, lambda key: self._enqueue(_BUDGET, key))
        self._nodes: Informer[Node] = watch_objects(kube, kinds.NODE, self._on_node)
        self._pods: Informer[Pod] = watch_objects(kube, kinds.POD, self._on_pod)
        self._replica_sets: Informer[ReplicaSet] = watch_objects(kube, kinds.REPLICA_SET, self._on_replica_set)
        self._deployments: Informer[Deployment] = watch_objects(kube, kinds.DEPLOYMENT, self._on_deployment)
        self._daemon_sets: Informer[DaemonSet] = watch_objects(kube, kinds.DAEMON_SET, self._on_daemon_set)
        self._budget_informer: Informer[PodDisruptionBudget] = watch_objects(
            kube, kinds.POD_DISRUPTION_BUDGET, self._on_budget
        )
        self._reconcilers: dict[str, Callable[[ObjectKey, str], Coroutine[object, object, None]]] = {
            _NODE: self._reconcile_node,
            _DEPLOYMENT: self._reconcile_deployment,
            _REPLICA_SET: self._reconcile_replica_set,
            _DAEMON_SET: self._reconcile_daemon_set,
            _BUDGET: lambda key, _: self._pdb_controller.reconcile(key),
        }

    async def run(self) -> None:
        """Reconcile workloads until cancelled."""
        informers = (
            self._nodes,
            self._pods,
            self._replica_sets,
            self._deployments,
            self._daemon_sets,
            self._budget_informer,
        )
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run())
            for informer in informers:
                await informer.wait_synced()
            while True:
                await self._wake.wait()
                self._wake.clear()
                dirty, self._queue = sorted(self._queue), set()
                for kind, key, node in dirty:
                    await self._reconcile(kind, key, node)

    async def _reconcile(self, kind: str, key: ObjectKey, node: str) -> None:
        try:
            await self._reconcilers[kind](key, node)
        except KubeError:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._enqueue, kind, key, node)

    def _enqueue(self, kind: str, key: ObjectKey, node: str = "") -> None:
        self._queue.add((kind, key, node))
        self._wake.set()

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        node = after or before
        assert node is not None
        if before is not None and after is not None and daemonset_pods.is_same_for_daemon_sets(before, after):
            return
        name = node.metadata.name
        if after is None:
            self._enqueue(_NODE, ObjectKey("", name))
        for daemon_set in self._daemon_sets:
            self._enqueue(_DAEMON_SET, key_of(daemon_set.metadata), name)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        self._owned_pods.on_change(before, after)
        self._pdb_controller.on_pod(before, after)
        pod = after or before
        owner = controller_of(pod.metadata) if pod is not None else None
        if pod is None or owner is None:
            return
        if owner.kind == _DAEMON_SET:
            self._enqueue(_DAEMON_SET, ObjectKey(pod.metadata.namespace, owner.name), daemonset_pods.intended_node(pod))
        elif owner.kind == _REPLICA_SET:
            self._enqueue(_REPLICA_SET, ObjectKey(pod.metadata.namespace, owner.name))

    def _on_replica_set(self, before: ReplicaSet | None, after: ReplicaSet | None) -> None:
        self._owned_replica_sets.on_change(before, after)
        replica_set = after or before
        assert replica_set is not None
        if after is None:
            self._status_writer.forget(replica_set.metadata.uid)
        owner = controller_of(replica_set.metadata)
        if owner is not None and owner.kind == _DEPLOYMENT:
            self._enqueue(_DEPLOYMENT, ObjectKey(replica_set.metadata.namespace, owner.name))
        self._enqueue(_REPLICA_SET, key_of(replica_set.metadata))

    def _on_deployment(self, before: Deployment | None, after: Deployment | None) -> None:
        deployment = after or before
        assert deployment is not None
        if after is None:
            self._status_writer.forget(deployment.metadata.uid)
        self._enqueue(_DEPLOYMENT, key_of(deployment.metadata))

    def _on_daemon_set(self, before: DaemonSet | None, after: DaemonSet | None) -> None:
        if after is None or (before is not None and before.spec == after.spec):
            return
        for node in self._nodes:
            self._enqueue(_DAEMON_SET, key_of(after.metadata), node.metadata.name)

    def _on_budget(self, before: PodDisruptionBudget | None, after: PodDisruptionBudget | None) -> None:
        if after is not None:
            self._pdb_controller.on_budget(after, self._pods)
        elif before is not None:
            self._pdb_controller.forget(key_of(before.metadata))

    def _replicas_of(self, namespace: str, owner: OwnerReference) -> int | None:
        """Replicas the controller of a pod is set to: those of the Deployment above a ReplicaSet, where there is one.

        None when there is no such controller. Raises ``ExpectedPodsUnknown`` for a kind without replicas.
        """
        kind = kinds.KINDS.get((owner.api_version, owner.kind))
        if kind is None:
            raise ExpectedPodsUnknown(f'no matches for kind "{owner.kind}" in version "{owner.api_version}"')
        absent = self.absent_controllers(owner.uid) if owner.kind in _WITH_REPLICAS else None
        if absent is not None:
            return absent
        if owner.kind not in (_REPLICA_SET, _DEPLOYMENT):
            name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            raise ExpectedPodsUnknown(f"{name} does not implement the scale subresource")
        informer = self._replica_sets if owner.kind == _REPLICA_SET else self._deployments
        controller = informer.get(owner.name, namespace)
        if controller is None or controller.metadata.uid != owner.uid:
            return None
        above = controller_of(controller.metadata)
        deployment = self._deployments.get(above.name, namespace) if above is not None else None
        if deployment is not None and above is not None and deployment.metadata.uid == above.uid:
            controller = deployment
        return desired_replicas(controller.spec)

    async def _reconcile_node(self, key: ObjectKey, _: str) -> None:
        """Delete pods bound to a node that does not exist: no kubelet will terminate them."""
        if self._nodes.get(key.name) is not None:
            return
        lost = [pod for pod in self._pods if pod.spec.node_name == key.name]
        for pod in lost:
            metadata = pod.metadata
            try:
                await self._kube.delete(
                    kinds.POD, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=0
                )
            except NotFound:
                continue

    async def _reconcile_deployment(self, key: ObjectKey, _: str) -> None:
        deployment = self._deployments.get(key.name, key.namespace)
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return
        uid = deployment.metadata.uid
        name = f"{key.name}-{template_hash(deployment.spec.template)}"
        sets = self._owned_replica_sets.owned_by(uid)
        new = next((each for each in sets if each.metadata.name == name), None)
        old = [each for each in sets if each.metadata.name != name]
        moves = next_rollout_sizes(desired_replicas(deployment.spec), _size_of(new), [_size_of(each) for each in old])
        if new is None and not self._owned_replica_sets.pending_creations(uid):
            await self._owned_replica_sets.create(uid, replica_set_of(deployment, name, moves[0]))
        for each, replicas in zip([*([new] if new is not None else []), *old], moves[new is None :], strict=True):
            await self._scale(each, replicas)
        await self._status_writer.deployment(deployment, new, sets)
        for each in old:
            if not desired_replicas(each.spec) and not each.status.replicas:
                await self._owned_replica_sets.delete(uid, each)

    async def _scale(self, replica_set: ReplicaSet, replicas: int) -> None:
        if desired_replicas(replica_set.spec) != replicas:
            metadata = replica_set.metadata
            patch = {"spec": {"replicas": replicas}}
            await self._kube.patch(kinds.REPLICA_SET, metadata.name, patch, metadata.namespace)

    async def _reconcile_replica_set(self, key: ObjectKey, _: str) -> None:
        replica_set = self._replica_sets.get(key.name, key.namespace)
        if replica_set is None or replica_set.metadata.deletion_timestamp is not None:
            return
        uid = replica_set.metadata.uid
        alive = [pod for pod in self._owned_pods.owned_by(uid) if pods.is_active(pod)]
        wanted = desired_replicas(replica_set.spec)
        reference = reference_to(kinds.REPLICA_SET, replica_set.metadata)
        for _number in range(wanted - len(alive) - self._owned_pods.pending_creations(uid)):
            await self._pod_factory.create_pod(uid, replica_set.spec.template, reference, key.namespace)
        for pod in sorted(alive, key=_deletion_order)[: max(0, len(alive) - wanted)]:
            await self._owned_pods.delete(uid, pod)
        await self._status_writer.replica_set(replica_set, alive)

    async def _reconcile_daemon_set(self, key: ObjectKey, node_name: str) -> None:
        daemon_set = self._daemon_sets.get(key.name, key.namespace)
        if daemon_set is None or daemon_set.metadata.deletion_timestamp is not None:
            return
        owner = f"{daemon_set.metadata.uid}/{node_name}"
        here = self._owned_pods.owned_by(owner)
        node = self._nodes.get(node_name)
        revision = template_hash(daemon_set.spec.template)
        stays = node is not None and daemonset_pods.should_continue_on(daemon_set, node)
        fresh = [pod for pod in here if stays and pods.is_active(pod) and _revision_of(pod) == revision]
        for pod in here:
            if pod not in fresh[:1]:
                await self._owned_pods.delete(owner, pod)
        if (
            node is None
            or fresh
            or self._owned_pods.pending_creations(owner)
            or not daemonset_pods.should_run_on(daemon_set, node)
        ):
            return
        template = with_labels(daemonset_pods.template_for(daemon_set, node_name), {REVISION_HASH_LABEL: revision})
        await self._pod_factory.create_pod(
            owner, template, reference_to(kinds.DAEMON_SET, daemon_set.metadata), key.namespace
        )


@dataclass(frozen=True, slots=True)
class ReplicaSetSize:
    """A ReplicaSet in a rollout: its replicas, and how many are ready."""

    replicas: int = 0
    ready: int = 0


def next_rollout_sizes(desired: int, new: ReplicaSetSize, old: Sequence[ReplicaSetSize]) -> tuple[int, ...]:
    """The next sizes of the new and the old ReplicaSets.

    At most a quarter (rounded up) of the wanted pods exist above the wanted number, at most a quarter (rounded down) of
    them are missing.
    """
    total = new.replicas + sum(each.replicas for each in old)
    if total == new.replicas:
        return (desired, *(0 for _ in old))
    room = max(0, desired + math.ceil(desired / 4) - total)
    grown = min(desired, new.replicas + room)
    unready = max(0, new.replicas - new.ready)
    spare = max(0, total - (desired - desired // 4) - unready)
    shrunk = []
    for each in old:
        going = min(spare, each.replicas)
        spare -= going
        shrunk.append(each.replicas - going)
    return (grown, *shrunk)


class _StatusWriter:
    """Writes status, and only when it differs from what was written last."""

    def __init__(self, kube: WorkloadKube) -> None:
        self._kube = kube
        self._written: dict[str, Mapping[str, int]] = {}

    async def deployment(self, deployment: Deployment, new: ReplicaSet | None, sets: Sequence[ReplicaSet]) -> None:
        ready = sum(each.status.ready_replicas for each in sets)
        status = {
            **_status_counts(sum(each.status.replicas for each in sets), ready, deployment.metadata.generation),
            "updatedReplicas": new.status.replicas if new is not None else 0,
            "unavailableReplicas": max(0, desired_replicas(deployment.spec) - ready),
        }
        await self._write(kinds.DEPLOYMENT, deployment.metadata, status)

    async def replica_set(self, replica_set: ReplicaSet, alive: Sequence[Pod]) -> None:
        ready = sum(pods.is_ready(pod) for pod in alive)
        await self._write(
            kinds.REPLICA_SET, replica_set.metadata, _status_counts(len(alive), ready, replica_set.metadata.generation)
        )

    async def _write(
        self, kind: Kind[Deployment] | Kind[ReplicaSet], metadata: ObjectMeta, status: Mapping[str, int]
    ) -> None:
        if self._written.get(metadata.uid) == status:
            return
        patch: JsonObject = {"status": status}
        if kind is kinds.DEPLOYMENT:
            await self._kube.patch(kinds.DEPLOYMENT, metadata.name, patch, metadata.namespace, subresource="status")
        else:
            await self._kube.patch(kinds.REPLICA_SET, metadata.name, patch, metadata.namespace, subresource="status")
        self._written[metadata.uid] = status

    def forget(self, uid: str) -> None:
        """Forget a deleted object."""
        self._written.pop(uid, None)


def _status_counts(replicas: int, ready: int, observed: int) -> dict[str, int]:
    return {"replicas": replicas, "readyReplicas": ready, "availableReplicas": ready, "observedGeneration": observed}


def _size_of(replica_set: ReplicaSet | None) -> ReplicaSetSize:
    if replica_set is None:
        return ReplicaSetSize()
    return ReplicaSetSize(desired_replicas(replica_set.spec), replica_set.status.ready_replicas)


def _owner_uid(replica_set: ReplicaSet) -> str | None:
    owner = controller_of(replica_set.metadata)
    return owner.uid if owner is not None else None


def _pod_owner_key(pod: Pod) -> str | None:
    """The owner's uid; for a DaemonSet's pod together with the node it was made for."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return None
    return f"{owner.uid}/{daemonset_pods.intended_node(pod)}" if owner.kind == _DAEMON_SET else owner.uid


def _revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_HASH_LABEL, "")


def _deletion_order(pod: Pod) -> tuple[bool, bool, float, str]:
    """Pods without a node first, then those not ready, then the newest."""
    created = pod.metadata.creation_timestamp
    age = -created.timestamp() if created is not None else 0.0
    return (bool(pod.spec.node_name), pods.is_ready(pod), age, pod.metadata.name)
