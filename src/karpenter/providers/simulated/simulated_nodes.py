"""The stand-in for everything that runs on simulated instances: boot, kubelet, shutdown.

It reads the current state from the API server (instances, Nodes, pods), compares it with the state due by now, and writes the
difference, one step at a time. It keeps no other state, so it can be stopped and started at any moment. All Nodes share one watch
on pods and one timer queue. There is no loop per node, so hundreds of nodes with thousands of pods cost only the writes that a
real cluster would see too.

An instance is launched (``instances.Record``), registers after a delay, becomes ready, is deleted or interrupted, shuts down, and
is gone. A pod is bound, runs, perhaps succeeds, is deleted, and is gone. The scheduled faults of an instance (``faults``) are
part of its record.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from karpenter.api.core import ConfigMap, Node, Pod
from karpenter.api.kinds import CONFIG_MAP, NODE, NODE_CLAIM, POD, RESOURCE_SLICE
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from karpenter.kube.informer import Informer, WatchScope
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model.clock import Clock
from karpenter.providers.contract import InstanceNotFound
from karpenter.providers.simulated import simulated_kubelet
from karpenter.providers.simulated.node_leases import NodeLeases
from karpenter.providers.simulated.simulated_instances import (
    INSTANCE_NAMESPACE,
    INSTANCE_SELECTOR,
    NODE_NAME_PREFIX,
    SimulatedInstance,
    SimulatedInstanceStore,
    decode_instance,
)
from karpenter.providers.simulated.write_failures import WriteFailureLog
from karpenter.runtime.reconciler import Reconciler

_NODE_SELECTOR = "=".join(simulated_kubelet.FAKE_NODE)
_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SimulatedTiming:
    """How long things take. ``lease_renewal`` None: no heartbeats (nothing watches them in a simulation).

    ``pod_start`` lies between what a kubelet needs at best and the five seconds that are Kubernetes' own objective.
    """

    pod_start: timedelta = timedelta(seconds=3)
    pod_stop: timedelta = timedelta(seconds=2)
    shutdown: timedelta = timedelta(seconds=5)
    lease_renewal: timedelta | None = timedelta(seconds=10)
    writes_in_flight: int = 16


@dataclass(frozen=True, slots=True)
class NamedNodes:
    """Nodes that are there from the beginning under names of their own.

    ``instances``: of simulated instances; ``unmanaged``: of none. The latter stay, their Nodes are left alone, and pods run on
    them as on others.
    """

    instances: frozenset[str] = frozenset()
    unmanaged: frozenset[str] = frozenset()


class _ObjectKey(NamedTuple):
    """What to reconcile: a pod, or (with an empty namespace) an instance."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass
class _WatchedObjects:
    """The observed cluster, fed by watches."""

    instances: dict[str, SimulatedInstance] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, dict[_ObjectKey, Pod]] = field(default_factory=dict)
    node_of_pod: dict[_ObjectKey, str] = field(default_factory=dict)


_NO_NAMED_NODES = NamedNodes()


class SimulatedNodes:
    """Plays all simulated instances of a cluster while ``run`` runs."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        timing: SimulatedTiming = SimulatedTiming(),
        named_nodes: NamedNodes = _NO_NAMED_NODES,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._unmanaged = named_nodes.unmanaged
        self._named_nodes = named_nodes.instances | named_nodes.unmanaged
        self._timing = timing
        self._store = SimulatedInstanceStore(kube)
        self._failures = WriteFailureLog(clock)
        self._leases = NodeLeases(kube, clock, self._failures.record)
        self._watched = _WatchedObjects()
        self._pods: Informer[Pod] | None = None
        self._watches: tuple[Informer[ConfigMap] | Informer[Node] | Informer[Pod], ...] = ()
        self._queue: Reconciler[_ObjectKey] = Reconciler(
            "simulated.nodes",
            self._reconcile,
            timing.writes_in_flight,
            on_error=lambda key, error: self._failures.record(str(key), error),
        )

    def faults(self) -> list[KubeError]:
        """Why the watches deliver no events now; the faults of a shared informer are reported by its owner."""
        return [watch.fault for watch in self._watches if watch.fault is not None]

    async def run(self, shared: Informer[Pod] | None = None) -> None:
        """Run until cancelled. ``shared`` is an informer of pods that the caller runs, which saves a second one.

        May be run again after it ended; changes made in between are taken into account.
        """
        self._watched = _WatchedObjects()
        records = Informer(self._kube, CONFIG_MAP, WatchScope(INSTANCE_NAMESPACE, INSTANCE_SELECTOR))
        nodes = Informer(self._kube, NODE, WatchScope(label_selector=_NODE_SELECTOR))
        pods = shared if shared is not None else Informer(self._kube, POD)
        self._watches = (records, nodes) if shared is not None else (records, nodes, pods)
        records.subscribe(self._on_instance)
        nodes.subscribe(self._on_node)
        self._subscribe_to_pods(pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(records.run())
            group.create_task(nodes.run())
            if shared is None:
                group.create_task(pods.run())
            for informer in (records, nodes, pods):
                await informer.wait_synced()
            group.create_task(self._queue.run())
            group.create_task(self._renew_leases())

    def _subscribe_to_pods(self, pods: Informer[Pod]) -> None:
        """Handle every pod, beginning with the existing ones. A shared informer outlives a run: one subscription is enough."""
        if self._pods is pods:
            for pod in pods:
                self._on_shared_pod(None, pod)
        else:
            self._pods = pods
            pods.subscribe(self._on_shared_pod)

    # Watch handlers.

    def _on_instance(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        name = (new or old or ConfigMap()).metadata.name
        record = decode_instance(new) if new is not None else None
        if record is None:
            self._watched.instances.pop(name, None)
            self._queue.add(_ObjectKey("", name))
            return
        self._watched.instances[name] = record
        self._queue.add(_ObjectKey("", name))
        if old is None:
            for key in self._watched.pods.get(name, ()):
                self._queue.add(key)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = (new or old or Node()).metadata.name
        if new is None:
            self._watched.nodes.pop(name, None)
        else:
            self._watched.nodes[name] = new
        self._queue.add(_ObjectKey("", name))

    def _on_shared_pod(self, old: Pod | None, new: Pod | None) -> None:
        # The informer may be shared: an exception here would end it for its owner.
        try:
            self._on_pod(old, new)
        except Exception as error:
            metadata = (new or old or Pod()).metadata
            self._failures.record(f"{metadata.namespace}/{metadata.name}", error)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        metadata = (new or old or Pod()).metadata
        key = _ObjectKey(metadata.namespace, metadata.name)
        node_name = new.spec.node_name if new is not None else ""
        if new is not None and (node_name.startswith(NODE_NAME_PREFIX) or node_name in self._named_nodes):
            self._watched.pods.setdefault(node_name, {})[key] = new
            self._watched.node_of_pod[key] = node_name
            self._queue.add(key)
        elif key in self._watched.node_of_pod:
            self._forget_pod(key)

    def _forget_pod(self, key: _ObjectKey) -> None:
        node_name = self._watched.node_of_pod.pop(key)
        left = self._watched.pods[node_name]
        del left[key]
        if not left:
            del self._watched.pods[node_name]
        self._queue.queue.forget(key)

    # One reconcile: write what is due, answer when the next thing is.

    async def _reconcile(self, key: _ObjectKey) -> float | None:
        if not key.namespace:
            return await self._reconcile_instance(key.name)
        pod = self._watched.pods.get(self._watched.node_of_pod.get(key, ""), {}).get(key)
        if pod is None or not self._is_running(pod.spec.node_name):
            return None
        return await self._reconcile_pod(pod)

    def _is_running(self, node_name: str) -> bool:
        record = self._watched.instances.get(node_name)
        return node_name in self._unmanaged if record is None else not record.terminating

    async def _reconcile_instance(self, name: str) -> float | None:
        record = self._watched.instances.get(name)
        if record is None:
            await self._reconcile_orphaned_node(name)
            return None
        now = self._clock.now()
        if record.ending_at is not None:
            return await self._shut_down(record, record.ending_at + self._timing.shutdown)
        announced = record.time_after_launch(record.fate.interrupted_seconds)
        taken = _earliest(
            record.time_after_launch(record.fate.lost_seconds), _add_seconds(announced, record.fate.notice_seconds)
        )
        if taken is not None and taken <= now:
            await self._store.terminate(record, now)
            return None
        if announced is not None and announced <= now:
            await self._interrupt(record)
            announced = None
        registration = await self._bring_up_node(record)
        return self._seconds_until(_earliest(announced, taken, registration))

    async def _reconcile_orphaned_node(self, name: str) -> None:
        """Remove a Node of ours whose instance no longer has a record, with its pods."""
        node = self._watched.nodes.get(name)
        if node is None or not simulated_kubelet.is_simulated_node(node):
            return
        try:
            await self._store.get(name)
        except InstanceNotFound:
            await self._remove_node_and_pods(name)

    def _seconds_until(self, due: datetime | None) -> float | None:
        return None if due is None else (due - self._clock.now()).total_seconds()

    async def _interrupt(self, record: SimulatedInstance) -> None:
        """An interruption notice: the claim is given up, so that its pods move while the instance still runs."""
        try:
            await self._kube.delete(NODE_CLAIM, record.claim_name, uid=record.claim_uid)
        except (NotFound, Conflict):
            return

    async def _bring_up_node(self, record: SimulatedInstance) -> datetime | None:
        """Bring the Node one step closer to ready; answers when to register if that is still to come."""
        node, now = self._watched.nodes.get(record.node_name), self._clock.now()
        if node is None:
            due = record.time_after_launch(record.fate.registration_seconds)
            if due is None or due > now:
                return due
            return await self._register(record)
        if not simulated_kubelet.is_kept_ready(node):
            return None
        status = simulated_kubelet.node_status_patch(record, node, ready=True, now=now)
        if status is not None:
            await self._kube.patch(NODE, record.node_name, status, subresource="status")
        else:
            await self._patch_node(node, simulated_kubelet.remove_not_ready_taint_patch(node))
        return None

    async def _register(self, record: SimulatedInstance) -> datetime | None:
        now = self._clock.now()
        await self._publish_devices(record)
        try:
            await self._kube.create(NODE, simulated_kubelet.new_node(record, now))
        except AlreadyExists:
            # Our label was removed from the Node, or the watch has not delivered the Node yet.
            return now + timedelta(seconds=_RETRY_SECONDS)
        return None

    async def _publish_devices(self, record: SimulatedInstance) -> None:
        """Play the drivers of the instance's devices. Before the Node, so that a repeated registration finds them there."""
        for published in simulated_kubelet.device_slices(record):
            try:
                await self._kube.create(RESOURCE_SLICE, published)
            except AlreadyExists:
                continue

    async def _withdraw_devices(self, record: SimulatedInstance) -> None:
        for published in simulated_kubelet.device_slices(record):
            try:
                await self._kube.delete(RESOURCE_SLICE, published.metadata.name)
            except NotFound:
                continue

    async def _patch_node(self, node: Node, patch: JsonObject | None) -> None:
        if patch is not None:
            version = node.metadata.resource_version
            await self._kube.patch(NODE, node.metadata.name, patch, resource_version=version)

    async def _shut_down(self, record: SimulatedInstance, gone_at: datetime) -> float | None:
        node, now = self._watched.nodes.get(record.node_name), self._clock.now()
        if now < gone_at:
            patch = simulated_kubelet.node_status_patch(record, node, ready=False, now=now) if node else None
            if patch is not None:
                await self._mark_not_ready(record, patch)
            return self._seconds_until(gone_at)
        await self._remove_node_and_pods(record.node_name)
        await self._withdraw_devices(record)
        await self._remove_instance(record)
        return None

    async def _remove_node_and_pods(self, name: str) -> None:
        """What an instance leaves behind goes too: its pods, its Node (finalizers may hold it), its lease."""
        for pod in tuple(self._watched.pods.get(name, {}).values()):
            await delete_if_present(self._kube, POD, pod.metadata, 0)
        node = self._watched.nodes.get(name)
        if node is not None and node.metadata.deletion_timestamp is None:
            await delete_if_present(self._kube, NODE, node.metadata, 0)
        await self._leases.remove(name)

    async def _mark_not_ready(self, record: SimulatedInstance, patch: JsonObject) -> None:
        try:
            await self._kube.patch(NODE, record.node_name, patch, subresource="status")
        except NotFound:
            return

    async def _remove_instance(self, record: SimulatedInstance) -> None:
        try:
            await self._kube.delete(CONFIG_MAP, record.node_name, INSTANCE_NAMESPACE)
        except NotFound:
            return

    async def _reconcile_pod(self, pod: Pod) -> float | None:
        now = self._clock.now()
        if pod.metadata.deletion_timestamp is not None:
            return await self._stop_pod(pod, now)
        if pod.status.phase in ("", "Pending"):
            due: datetime | None = simulated_kubelet.start_due(pod, self._timing.pod_start, now)
            patch = simulated_kubelet.running_patch
        elif simulated_kubelet.has_ended(pod):
            return None
        else:
            due = simulated_kubelet.success_due(pod)
            patch = simulated_kubelet.succeeded_patch
        if due is not None and due <= now:
            await self._patch_pod(pod, patch(pod, now))
            return None
        return self._seconds_until(due)

    async def _stop_pod(self, pod: Pod, now: datetime) -> float | None:
        due = simulated_kubelet.stop_due(pod, self._timing.pod_stop, now)
        if due > now:
            return self._seconds_until(due)
        # After a deletion without grace only finalizers keep the object: not our business.
        if pod.metadata.deletion_grace_period_seconds != 0:
            await delete_if_present(self._kube, POD, pod.metadata, 0)
        return None

    async def _patch_pod(self, pod: Pod, patch: JsonObject) -> None:
        try:
            await self._kube.patch(POD, pod.metadata.name, patch, pod.metadata.namespace, subresource="status")
        except NotFound:
            return

    async def _renew_leases(self) -> None:
        if self._timing.lease_renewal is None:
            return
        while True:
            alive = [
                node
                for name, node in self._watched.nodes.items()
                if (record := self._watched.instances.get(name)) is not None and not record.terminating
            ]
            await self._leases.renew(alive)
            await asyncio.sleep(self._timing.lease_renewal.total_seconds())


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _add_seconds(moment: datetime | None, seconds: float) -> datetime | None:
    return None if moment is None else moment + timedelta(seconds=seconds)
