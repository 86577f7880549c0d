"""Simulates pods on the double's Nodes: a bound pod runs and a deleted pod is removed after a delay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.informer import Informer, ObjectKey
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model.clock import Clock
from karpenter.providers.simulated import simulated_kubelet
from karpenter.runtime.reconciler import OnReconcileError, Reconciler

_WORKERS = 16


class SimulatedPods:
    """Simulates the containers of pods that are bound to Nodes for which ``runs`` is true."""

    def __init__(
        self, kube: Kube, clock: Clock, runs: Callable[[str], bool], on_fault: OnReconcileError[ObjectKey]
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._runs = runs
        self._informer = Informer(kube, POD)
        self._informer.subscribe(self._on_pod)
        self._queue: Reconciler[ObjectKey] = Reconciler("pods", self._reconcile, _WORKERS, on_error=on_fault)
        self.start = timedelta(0)
        self.stop = timedelta(0)

    def parts(self) -> tuple[Informer[Pod], Reconciler[ObjectKey]]:
        """Informer and reconciler, which the caller must run."""
        return self._informer, self._queue

    def on(self, node: str) -> list[Pod]:
        """Pods bound to a Node."""
        return [pod for pod in self._informer if pod.spec.node_name == node]

    def reconcile_pods_of(self, node: str) -> None:
        """Reconcile the pods of a Node that started."""
        for pod in self.on(node):
            self._queue.add(ObjectKey(pod.metadata.namespace, pod.metadata.name))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._runs(new.spec.node_name):
            self._queue.add(ObjectKey(new.metadata.namespace, new.metadata.name))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        pod = self._informer.get(key.name, key.namespace)
        if pod is None or not self._runs(pod.spec.node_name):
            return None
        now = self._clock.now()
        if pod.metadata.deletion_timestamp is not None:
            due = simulated_kubelet.stop_due(pod, self.stop, now)
            if due <= now:
                await self.remove(pod)
                return None
            return (due - now).total_seconds()
        if pod.status.phase not in ("", "Pending"):
            return None
        due = simulated_kubelet.start_due(pod, self.start, now)
        if due > now:
            return (due - now).total_seconds()
        await self._patch(pod, simulated_kubelet.running_patch(pod, now))
        return None

    async def _patch(self, pod: Pod, patch: JsonObject) -> None:
        try:
            await self._kube.patch(POD, pod.metadata.name, patch, pod.metadata.namespace, subresource="status")
        except NotFound:
            return

    async def remove(self, pod: Pod) -> None:
        """Delete a pod without a grace period. Finalizers are kept."""
        metadata = pod.metadata
        try:
            await self._kube.delete(POD, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=0)
        except (NotFound, Conflict):
            return
