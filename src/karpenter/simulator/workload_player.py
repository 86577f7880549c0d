"""Plays a workload on a simulated cluster: pods arrive, leave, and come back when they were lost.

It stands for every workload controller: a pod that disappears before its time comes back at once under its name, as a ReplicaSet
or Job would replace it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from enum import IntEnum

from msgspec.structs import replace

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.kube.errors import Forbidden, Invalid, KubeError, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.providers.simulated.simulated_kubelet import START_DELAY_ANNOTATION
from karpenter.simulation.simulated_cluster import is_pod_ready
from karpenter.simulator.workload import PodLife, Workload, WorkloadError


class _Action(IntEnum):
    """What happens to a pod; what frees room comes first."""

    DELETE = 0
    CREATE = 1


class WorkloadPlayer:
    """Plays one workload through ``kube``, whose pods the informer ``pods`` follows. Pods that run from the start are there.

    ``start_delay`` draws how many seconds a pod needs to get ready once it is bound; ``on_lost`` gets each pod that disappeared
    before its time, as it was last seen.
    """

    def __init__(
        self,
        kube: Kube,
        pods: Informer[Pod],
        workload: Workload,
        start_delay: Callable[[], float],
        on_lost: Callable[[Pod], None],
    ) -> None:
        self._kube = kube
        self._start_delay = start_delay
        self._on_lost = on_lost
        self._start = asyncio.get_running_loop().time()
        self._wake = asyncio.Event()
        self._lives = {life.name: life for life in workload.pods}
        self._present: set[str] = set()
        self._present_by_owner: Counter[str] = Counter()
        self._started_jobs: set[str] = set()
        self._due: list[tuple[float, _Action, str]] = []
        for life in workload.pods:
            if life.running is not None:
                self._arrive(life)
            else:
                self._due.append((float(life.arrives_at_seconds), _Action.CREATE, life.name))
            if life.leaves_at_seconds is not None:
                self._due.append((float(life.leaves_at_seconds), _Action.DELETE, life.name))
        heapq.heapify(self._due)
        pods.subscribe(self._on_pod)

    @property
    def seconds(self) -> float:
        """Since the start of the study."""
        return asyncio.get_running_loop().time() - self._start

    async def run(self) -> None:
        """Play until cancelled. Raises ``WorkloadError`` for a pod that the API server refuses."""
        while True:
            while self._due and self._due[0][0] <= self.seconds:
                _, action, name = heapq.heappop(self._due)
                await self._act(action, self._lives[name])
            self._wake.clear()
            await self._wait()

    async def _wait(self) -> None:
        if not self._due:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(self._due[0][0] - self.seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _act(self, action: _Action, life: PodLife) -> None:
        if action is _Action.CREATE:
            self._arrive(life)
            await self._create(life)
            return
        if life.name in self._present:
            self._present.discard(life.name)
            self._count(life, -1)
        try:
            await self._kube.delete(kinds.POD, life.name, life.template.namespace)
        except NotFound:
            return

    def _arrive(self, life: PodLife) -> None:
        if life.name not in self._present:
            self._present.add(life.name)
            self._count(life, 1)

    def replicas_of(self, owner_uid: str) -> int | None:
        """How many pods a workload controller wants now; None where none of the workload's pods are of it."""
        return self._present_by_owner.get(owner_uid)

    def _count(self, life: PodLife, by: int) -> None:
        if life.template.owner is not None:
            self._present_by_owner[life.template.owner.uid] += by

    async def _create(self, life: PodLife) -> None:
        try:
            await self._kube.create(kinds.POD, self._pod(life))
        except (Invalid, Forbidden) as refusal:
            raise WorkloadError(f"pod {life.name} cannot be simulated: {refusal}") from None
        except KubeError:
            self._schedule(1.0, _Action.CREATE, life.name)

    def _pod(self, life: PodLife) -> Pod:
        pod = life.template.pod(life.name)
        delay = {START_DELAY_ANNOTATION: f"{round(self._start_delay() * 1000)}ms"}
        return replace(pod, metadata=replace(pod.metadata, annotations={**pod.metadata.annotations, **delay}))

    def _schedule(self, after_seconds: float, action: _Action, name: str) -> None:
        heapq.heappush(self._due, (self.seconds + after_seconds, action, name))
        self._wake.set()

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        if pod is None or pod.metadata.name not in self._present:
            return
        if after is None:
            self._lose(pod)
        elif is_pod_ready(after) and after.metadata.uid not in self._started_jobs:
            self._start_job(after)

    def _lose(self, pod: Pod) -> None:
        self._on_lost(pod)
        self._started_jobs.discard(pod.metadata.uid)
        self._schedule(0.0, _Action.CREATE, pod.metadata.name)

    def _start_job(self, pod: Pod) -> None:
        """A job that is ready ends after its run time. A pod that replaces it has another end: this one is looked at then."""
        life = self._lives[pod.metadata.name]
        if life.runs_for_seconds is None:
            return
        self._started_jobs.add(pod.metadata.uid)
        asyncio.get_running_loop().call_later(life.runs_for_seconds, self._end_job, pod.metadata.uid, life.name)

    def _end_job(self, uid: str, name: str) -> None:
        if uid in self._started_jobs:
            self._started_jobs.discard(uid)
            self._schedule(0.0, _Action.DELETE, name)
