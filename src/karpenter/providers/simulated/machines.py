"""The stand-in for everything that runs on simulated machines: boot, kubelet, shutdown.

It looks at what the API server says (machines, Nodes, pods), compares with what should be by now, and writes the
difference, one step at a time. Nothing else is remembered, so it can be stopped and started at any moment and a machine goes
on where it was. All Nodes share one watch on pods and one timer queue; there is no loop per node, so hundreds of nodes with
thousands of pods cost only the writes a real cluster would see too.

A machine's life: bought (``instances.Record``), registered after its delay, ready, told to go or taken away, down, gone. A
pod's: bound, running, perhaps succeeded, told to go, gone. What a script (``faults``) has in store for a machine is part of
its record.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from karpenter.api.core import ConfigMap, Node, Pod
from karpenter.api.kinds import CONFIG_MAP, NODE, NODE_CLAIM, POD
from karpenter.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from karpenter.kube.informer import Informer, Scope
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.kube.workqueue import Queue
from karpenter.model.clock import Clock
from karpenter.providers.contract import InstanceNotFound
from karpenter.providers.simulated import kubelet
from karpenter.providers.simulated.complaints import Complaints
from karpenter.providers.simulated.instances import NAMESPACE, PREFIX, SELECTOR, Record, Store, read
from karpenter.providers.simulated.leases import Leases

_NODE_SELECTOR = "=".join(kubelet.FAKE_NODE)
_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take. ``lease_renewal`` None: no heartbeats (nothing watches them in a simulation).

    ``pod_start`` lies between what a kubelet needs at best and the five seconds that are Kubernetes' own objective.
    """

    pod_start: timedelta = timedelta(seconds=3)
    pod_stop: timedelta = timedelta(seconds=2)
    shutdown: timedelta = timedelta(seconds=5)
    lease_renewal: timedelta | None = timedelta(seconds=10)
    writes_in_flight: int = 16


class _Key(NamedTuple):
    """What to look at: a pod, or (with an empty namespace) a machine."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass
class _View:
    """What is known of the world; fed by watches."""

    records: dict[str, Record] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, dict[_Key, Pod]] = field(default_factory=dict)
    node_of_pod: dict[_Key, str] = field(default_factory=dict)


class Machines:
    """Plays all simulated machines of a cluster while ``run`` runs."""

    def __init__(self, kube: Kube, clock: Clock, timing: Timing = Timing()) -> None:
        self._kube = kube
        self._clock = clock
        self._timing = timing
        self._store = Store(kube)
        self._complaints = Complaints(clock)
        self._leases = Leases(kube, clock, self._complaints.hear)
        self._view = _View()
        self._pods: Informer[Pod] | None = None
        self._watches: tuple[Informer[ConfigMap] | Informer[Node] | Informer[Pod], ...] = ()
        self._queue: Queue[_Key] = Queue(
            self._look, timing.writes_in_flight, lambda key, error: self._complaints.hear(str(key), error)
        )

    def faults(self) -> list[KubeError]:
        """Why the watches bring no news now; those of a shared informer are its owner's."""
        return [watch.fault for watch in self._watches if watch.fault is not None]

    async def run(self, shared: Informer[Pod] | None = None) -> None:
        """Play until cancelled. ``shared`` is an informer of pods that somebody else runs, to save a second one.

        May be run again after it ended, with what happened in between taken into account.
        """
        self._view = _View()
        records = Informer(self._kube, CONFIG_MAP, Scope(NAMESPACE, SELECTOR))
        nodes = Informer(self._kube, NODE, Scope(label_selector=_NODE_SELECTOR))
        pods = shared if shared is not None else Informer(self._kube, POD)
        self._watches = (records, nodes) if shared is not None else (records, nodes, pods)
        records.subscribe(self._on_record)
        nodes.subscribe(self._on_node)
        self._follow(pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(records.run())
            group.create_task(nodes.run())
            if shared is None:
                group.create_task(pods.run())
            for informer in (records, nodes, pods):
                await informer.wait_synced()
            group.create_task(self._queue.run())
            group.create_task(self._beat())

    def _follow(self, pods: Informer[Pod]) -> None:
        """Hear of every pod, beginning with those that are here. A shared informer outlives a run: one subscription is enough."""
        if self._pods is pods:
            for pod in pods:
                self._hear_of_pod(None, pod)
        else:
            self._pods = pods
            pods.subscribe(self._hear_of_pod)

    # What watches tell.

    def _on_record(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        name = (new or old or ConfigMap()).metadata.name
        record = read(new) if new is not None else None
        if record is None:
            self._view.records.pop(name, None)
            self._queue.add(_Key("", name))
            return
        self._view.records[name] = record
        self._queue.add(_Key("", name))
        if old is None:
            for key in self._view.pods.get(name, ()):
                self._queue.add(key)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = (new or old or Node()).metadata.name
        if new is None:
            self._view.nodes.pop(name, None)
        else:
            self._view.nodes[name] = new
        self._queue.add(_Key("", name))

    def _hear_of_pod(self, old: Pod | None, new: Pod | None) -> None:
        # The informer may be somebody else's, who would lose it over a mistake made here.
        try:
            self._on_pod(old, new)
        except Exception as error:
            metadata = (new or old or Pod()).metadata
            self._complaints.hear(f"{metadata.namespace}/{metadata.name}", error)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        metadata = (new or old or Pod()).metadata
        key = _Key(metadata.namespace, metadata.name)
        node_name = new.spec.node_name if new is not None else ""
        if new is not None and node_name.startswith(PREFIX):
            self._view.pods.setdefault(node_name, {})[key] = new
            self._view.node_of_pod[key] = node_name
            self._queue.add(key)
        elif key in self._view.node_of_pod:
            self._forget_pod(key)

    def _forget_pod(self, key: _Key) -> None:
        node_name = self._view.node_of_pod.pop(key)
        left = self._view.pods[node_name]
        del left[key]
        if not left:
            del self._view.pods[node_name]
        self._queue.drop(key)

    # Looking at one thing: write what is due, answer when the next thing is.

    async def _look(self, key: _Key) -> float | None:
        if not key.namespace:
            return await self._look_at_machine(key.name)
        pod = self._view.pods.get(self._view.node_of_pod.get(key, ""), {}).get(key)
        record = self._view.records.get(pod.spec.node_name) if pod is not None else None
        if pod is None or record is None or record.terminating:
            return None
        return await self._look_at_pod(pod)

    async def _look_at_machine(self, name: str) -> float | None:
        record = self._view.records.get(name)
        if record is None:
            await self._look_at_leftover(name)
            return None
        now = self._clock.now()
        if record.ending_at is not None:
            return await self._shut_down(record, record.ending_at + self._timing.shutdown)
        announced = record.due(record.fate.interrupted_seconds)
        taken = _first(record.due(record.fate.lost_seconds), _plus(announced, record.fate.notice_seconds))
        if taken is not None and taken <= now:
            await self._store.end(record, now)
            return None
        if announced is not None and announced <= now:
            await self._give_notice(record)
            announced = None
        registration = await self._be_up(record)
        return self._until(_first(announced, taken, registration))

    async def _look_at_leftover(self, name: str) -> None:
        """A Node of ours whose machine somebody removed from the books."""
        node = self._view.nodes.get(name)
        if node is None or not kubelet.is_ours(node):
            return
        try:
            await self._store.get(name)
        except InstanceNotFound:
            await self._vanish(name)

    def _until(self, due: datetime | None) -> float | None:
        return None if due is None else (due - self._clock.now()).total_seconds()

    async def _give_notice(self, record: Record) -> None:
        """An interruption notice: the claim is given up, so that its pods move while the machine still runs."""
        try:
            await self._kube.delete(NODE_CLAIM, record.claim_name, uid=record.claim_uid)
        except (NotFound, Conflict):
            return

    async def _be_up(self, record: Record) -> datetime | None:
        """Bring the Node one step closer to ready; answers when to register if that is still to come."""
        node, now = self._view.nodes.get(record.node_name), self._clock.now()
        if node is None:
            due = record.due(record.fate.registration_seconds)
            if due is None or due > now:
                return due
            return await self._register(record)
        ready = kubelet.should_be_ready(node)
        status = kubelet.node_status_patch(record, node, ready=ready, now=now)
        if status is not None:
            await self._kube.patch(NODE, record.node_name, status, subresource="status")
        elif ready:
            await self._patch_node(node, kubelet.lift_not_ready_patch(node))
        return None

    async def _register(self, record: Record) -> datetime | None:
        now = self._clock.now()
        try:
            await self._kube.create(NODE, kubelet.new_node(record, now))
        except AlreadyExists:
            # Somebody took our label off the Node, or it is on its way to us.
            return now + timedelta(seconds=_RETRY_SECONDS)
        return None

    async def _patch_node(self, node: Node, patch: JsonObject | None) -> None:
        if patch is not None:
            version = node.metadata.resource_version
            await self._kube.patch(NODE, node.metadata.name, patch, resource_version=version)

    async def _shut_down(self, record: Record, gone_at: datetime) -> float | None:
        node, now = self._view.nodes.get(record.node_name), self._clock.now()
        if now < gone_at:
            patch = kubelet.node_status_patch(record, node, ready=False, now=now) if node else None
            if patch is not None:
                await self._write_last_words(record, patch)
            return self._until(gone_at)
        await self._vanish(record.node_name)
        await self._remove_record(record)
        return None

    async def _vanish(self, name: str) -> None:
        """What a machine leaves behind goes too: its pods, its Node (finalizers may hold it), its lease."""
        for pod in tuple(self._view.pods.get(name, {}).values()):
            await self._end_pod(pod)
        node = self._view.nodes.get(name)
        if node is not None and node.metadata.deletion_timestamp is None:
            await self._remove_node(node)
        await self._leases.remove(name)

    async def _write_last_words(self, record: Record, patch: JsonObject) -> None:
        try:
            await self._kube.patch(NODE, record.node_name, patch, subresource="status")
        except NotFound:
            return

    async def _remove_node(self, node: Node) -> None:
        try:
            await self._kube.delete(NODE, node.metadata.name, uid=node.metadata.uid, grace_period_seconds=0)
        except (NotFound, Conflict):
            return

    async def _remove_record(self, record: Record) -> None:
        try:
            await self._kube.delete(CONFIG_MAP, record.node_name, NAMESPACE)
        except NotFound:
            return

    async def _look_at_pod(self, pod: Pod) -> float | None:
        now = self._clock.now()
        if pod.metadata.deletion_timestamp is not None:
            return await self._stop(pod, now)
        if pod.status.phase in ("", "Pending"):
            due: datetime | None = kubelet.start_due(pod, self._timing.pod_start, now)
            patch = kubelet.running_patch
        elif kubelet.has_ended(pod):
            return None
        else:
            due = kubelet.success_due(pod)
            patch = kubelet.succeeded_patch
        if due is not None and due <= now:
            await self._patch_pod(pod, patch(pod, now))
            return None
        return self._until(due)

    async def _stop(self, pod: Pod, now: datetime) -> float | None:
        due = kubelet.stop_due(pod, self._timing.pod_stop, now)
        if due > now:
            return self._until(due)
        # After a deletion without grace only finalizers keep the object: not our business.
        if pod.metadata.deletion_grace_period_seconds != 0:
            await self._end_pod(pod)
        return None

    async def _patch_pod(self, pod: Pod, patch: JsonObject) -> None:
        try:
            await self._kube.patch(POD, pod.metadata.name, patch, pod.metadata.namespace, subresource="status")
        except NotFound:
            return

    async def _end_pod(self, pod: Pod) -> None:
        metadata = pod.metadata
        try:
            await self._kube.delete(POD, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=0)
        except (NotFound, Conflict):
            return

    async def _beat(self) -> None:
        if self._timing.lease_renewal is None:
            return
        while True:
            alive = [
                node
                for name, node in self._view.nodes.items()
                if (record := self._view.records.get(name)) is not None and not record.terminating
            ]
            await self._leases.renew(alive)
            await asyncio.sleep(self._timing.lease_renewal.total_seconds())


def _first(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _plus(moment: datetime | None, seconds: float) -> datetime | None:
    return None if moment is None else moment + timedelta(seconds=seconds)
