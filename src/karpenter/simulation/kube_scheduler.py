"""A simulated kube-scheduler: it binds pending pods to nodes and sets ``PodScheduled=False`` where it cannot.

It watches pods, nodes and namespaces, keeps a ``SchedulerCache`` current, and tries pending pods after every change: highest
priority first, then oldest, then by name. A rejected pod gets the condition ``PodScheduled=False`` with reason
``Unschedulable`` once. It is tried again when the cache has changed for it; `scheduling_queue` has its backoff.
A gated pod gets reason ``SchedulingGated``. Nothing else is written.

Binding takes no virtual time: at one instant all pods that fit are bound. That instant is a tenth of a second after the
change, so that the DaemonSet controller can create its pods for a new node first. Nothing preempts for them here; they would
find the node full.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.meta import Condition
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer, ObjectKey, key_of
from karpenter.kube.protocol import PodSubresources, Reader, Writer
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.model.quantity import QuantityError
from karpenter.simulation.owned_objects import watch_objects
from karpenter.simulation.scheduler_cache import PodPlaced, SchedulerCache
from karpenter.simulation.scheduler_node_info import PodInfo, to_pod_info
from karpenter.simulation.scheduling_queue import QueuedPod, SchedulingQueue

SCHEDULER_NAME = "default-scheduler"
SCHEDULING_DELAY_SECONDS = 0.1

_UNSCHEDULABLE = "Unschedulable"
_GATED = "SchedulingGated"


class SchedulerKube(Reader, Writer, PodSubresources, Protocol):
    """What the scheduler needs of an API server."""


class KubeScheduler:
    """Binds pods of the default scheduler. ``run`` it as a task."""

    def __init__(self, kube: SchedulerKube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._cache = SchedulerCache()
        self._queue = SchedulingQueue(self._cache.change_count)
        self._binding: set[ObjectKey] = set()
        self._gated: dict[ObjectKey, Pod] = {}
        self._wake = asyncio.Event()
        self._nodes: Informer[Node] = watch_objects(kube, kinds.NODE, self._on_node)
        self._namespaces: Informer[Namespace] = watch_objects(kube, kinds.NAMESPACE, self._on_namespace)
        self._pods: Informer[Pod] = watch_objects(kube, kinds.POD, self._on_pod)

    async def run(self) -> None:
        """Schedule until cancelled."""
        informers = (self._nodes, self._namespaces, self._pods)
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run(), name=f"scheduler watches {informer.kind.plural}")
            for informer in informers:
                await informer.wait_synced()
            while True:
                await asyncio.sleep(SCHEDULING_DELAY_SECONDS)
                self._wake.clear()
                await self._mark_gated()
                await self._schedule_due()
                await self._wait_for_work()

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        node = after or before
        assert node is not None
        self._cache.set_node(node.metadata.name, after)
        self._wake.set()

    def _on_namespace(self, before: Namespace | None, after: Namespace | None) -> None:
        namespace = after or before
        assert namespace is not None
        self._cache.census.set_namespace(namespace.metadata.name, after)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        assert pod is not None
        key = key_of(pod.metadata)
        if after is None or pods.is_finished(after):
            self._forget(key)
        elif after.spec.node_name:
            self._on_bound(key, after)
        elif key not in self._binding:
            self._enqueue(key, after)
        self._wake.set()

    def _forget(self, key: ObjectKey) -> None:
        self._dequeue(key)
        self._cache.remove_pod(key)

    def _dequeue(self, key: ObjectKey) -> None:
        self._queue.remove(key)
        self._gated.pop(key, None)
        self._cache.remove_nomination(key)

    def _on_bound(self, key: ObjectKey, pod: Pod) -> None:
        self._queue.remove(key)
        self._gated.pop(key, None)
        pod_info = _pod_info_or_none(pod)
        if pod_info is not None:
            self._cache.add_pod(pod_info, pod.spec.node_name)

    def _enqueue(self, key: ObjectKey, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is not None or pod.spec.scheduler_name not in ("", SCHEDULER_NAME):
            self._dequeue(key)
            return
        if pod.spec.scheduling_gates:
            self._dequeue(key)
            self._gated[key] = pod
            return
        self._gated.pop(key, None)
        pod_info = _pod_info_or_none(pod)
        if pod_info is None:
            self._dequeue(key)
            return
        self._queue.put(pod_info)
        self._cache.nominate(pod_info)

    async def _mark_gated(self) -> None:
        for key, pod in sorted(self._gated.items()):
            self._gated.pop(key, None)
            await self._write_condition(pod, _GATED, "waits for its scheduling gates to be removed")

    async def _schedule_due(self) -> None:
        for key in self._queue.due(self._clock.now()):
            queued = self._queue.get(key)
            if queued is not None:
                await self._schedule_pod(key, queued)

    async def _schedule_pod(self, key: ObjectKey, queued: QueuedPod) -> None:
        decision = self._cache.schedule(queued.pod_info)
        if isinstance(decision, PodPlaced):
            await self._bind(key, queued, decision.node)
            return
        self._queue.reject(queued, self._clock.now())
        await self._write_condition(queued.pod_info.pod, _UNSCHEDULABLE, str(decision))

    async def _bind(self, key: ObjectKey, queued: QueuedPod, node: str) -> None:
        """Bind a pod. It occupies the node before the server answers, so that no other pod takes its place."""
        self._binding.add(key)
        self._queue.remove(key)
        self._cache.add_pod(queued.pod_info, node)
        try:
            await self._kube.bind(key.name, key.namespace, node)
        except KubeError:
            # The pod or its node has changed or gone: what the server has now decides what happens next.
            self._binding.discard(key)
            self._cache.remove_pod(key)
            self._retry_after_failed_bind(key, queued.attempts)
        finally:
            self._binding.discard(key)

    def _retry_after_failed_bind(self, key: ObjectKey, attempts: int) -> None:
        current = self._pods.get(key.name, key.namespace)
        if current is None:
            return
        self._on_pod(None, current)
        queued = self._queue.get(key)
        if queued is not None:
            self._queue.retry(replace(queued, attempts=attempts), self._clock.now())

    async def _write_condition(self, pod: Pod, reason: str, message: str) -> None:
        conditions = pod.status.conditions
        if any(each.type == "PodScheduled" and each.reason == reason for each in conditions):
            return
        scheduled = Condition(
            type="PodScheduled",
            status="False",
            reason=reason,
            message=message,
            last_transition_time=self._clock.now().replace(microsecond=0),
        )
        kept = [each for each in conditions if each.type != "PodScheduled"]
        patch = {"status": {"conditions": msgspec.to_builtins([*kept, scheduled])}}
        try:
            await self._kube.patch(kinds.POD, pod.metadata.name, patch, pod.metadata.namespace, subresource="status")
        except KubeError:
            return

    async def _wait_for_work(self) -> None:
        """Wait for a change, or for the end of a pod's backoff."""
        retry = self._queue.next_retry()
        if retry is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, (retry - self._clock.now()).total_seconds())):
                await self._wake.wait()
        except TimeoutError:
            return


def _pod_info_or_none(pod: Pod) -> PodInfo | None:
    """The pod for the cache; None if its requests are no quantities, which an API server would reject."""
    try:
        return to_pod_info(pod)
    except QuantityError:
        return None
