"""Records what pods a cluster had as a trace that ``karpenter simulate`` replays: arrivals, lifetimes, requests.

Off unless a file is set. Names are replaced by keyed hashes; the key is random and never written, so a name cannot be guessed
from the file. The whole file is written anew every few minutes and at the end; a file of an earlier process is kept beside it.
Pods of DaemonSets and of the node itself are left out, as every node brings its own.

A pod that was disrupted (condition ``DisruptionTarget``: evicted, preempted) and the pod of its workload that replaces it are one
row: what a cluster's nodes did to its pods is no load, and a simulation evicts pods of its own.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from karpenter.api.core import Pod
from karpenter.model import conditions, pods
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.model.quantity import QuantityError

#: The most pods in a file; those that ended first are left out of it.
MAX_PODS = 200_000
_WRITE_SECONDS = 300.0
#: A pod of the workload that comes so long after a disruption replaces the disrupted one.
_REPLACEMENT_SECONDS = 300
_GPU = "nvidia.com/gpu"
_MEBIBYTE = 1 << 20
_COLUMNS = ("name", "creation_s", "deletion_s", "runtime_s", "cpu_milli", "memory_mib", "num_gpu", "workload")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _TracedPod:
    """One row. Times are seconds since the recorder's start; exactly one end is set once the pod is gone."""

    name: str
    workload: str
    arrived: int
    cpu_milli: int
    memory_mib: int
    gpus: int
    started: int | None = None
    left: int | None = None
    ran: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.left is not None or self.ran is not None

    def row(self) -> tuple[object, ...]:
        ends = ("" if self.left is None else self.left, "" if self.ran is None else self.ran)
        return (self.name, self.arrived, *ends, self.cpu_milli, self.memory_mib, self.gpus, self.workload)


class PodTraceRecorder:
    """Watches pods and keeps ``path`` up to date."""

    def __init__(self, path: Path, clock: Clock, max_pods: int = MAX_PODS) -> None:
        self._path = path
        self._clock = clock
        self._max_pods = max_pods
        self._start: datetime = clock.now()
        self._key = secrets.token_bytes(16)
        self._pods: dict[str, _TracedPod] = {}
        #: By workload (of a pod without one by its name), pods that were disrupted and not replaced yet, with the second of that.
        self._disrupted: dict[str, dict[str, int]] = {}
        #: Pods that are still there and whose row belongs to their replacement by now.
        self._replaced: set[str] = set()
        self._has_changed = False

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a pod."""
        pod = new or old
        if pod is None or pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod):
            return
        uid = pod.metadata.uid
        if uid in self._replaced:
            if new is None:
                self._replaced.discard(uid)
            return
        traced = self._pods.get(uid) or self._replacing(pod) or self._first_seen(pod)
        if traced is None or traced.has_ended:
            return
        if conditions.is_true(pod.status.conditions, "DisruptionTarget"):
            self._disrupted.setdefault(_origin(pod), {}).setdefault(uid, self._second(self._clock.now()))
        if new is None:
            traced = replace(traced, left=self._second(self._clock.now()))
        elif pods.is_finished(new):
            began = traced.started if traced.started is not None else traced.arrived
            traced = replace(traced, ran=max(1, self._second(self._clock.now()) - began))
        elif traced.started is None and new.status.phase == "Running":
            traced = replace(traced, started=self._second(self._clock.now()))
        if self._pods.get(uid) != traced:
            self._keep(uid, traced)

    def _keep(self, uid: str, traced: _TracedPod) -> None:
        """Store a row; what ended stands in the order of its end, so that the oldest goes first."""
        if traced.has_ended:
            self._pods.pop(uid, None)
        self._pods[uid] = traced
        self._has_changed = True
        if len(self._pods) > self._max_pods:
            del self._pods[next((key for key, each in self._pods.items() if each.has_ended), uid)]

    def _replacing(self, pod: Pod) -> _TracedPod | None:
        """The row of the disrupted pod of the same workload that this new one replaces; None where there is none."""
        origin = _origin(pod)
        self._forget_old_disruptions(origin)
        if origin not in self._disrupted:
            return None
        uid = next(iter(self._disrupted[origin]))
        del self._disrupted[origin][uid]
        row = self._pods.pop(uid)
        if row.left is None:
            self._replaced.add(uid)
        return replace(row, started=None, left=None)

    def _forget_old_disruptions(self, origin: str) -> None:
        """Pods that nothing replaces any more."""
        oldest = self._second(self._clock.now()) - _REPLACEMENT_SECONDS
        kept = {uid: at for uid, at in self._disrupted.pop(origin, {}).items() if at >= oldest and uid in self._pods}
        if kept:
            self._disrupted[origin] = kept

    def _first_seen(self, pod: Pod) -> _TracedPod | None:
        """None if the pod has already ended, or its requests do not parse: what it needs is then unknown."""
        if pods.is_finished(pod):
            return None
        try:
            requests = pods.pod_requests(pod)
        except QuantityError:
            return None
        created = pod.metadata.creation_timestamp or self._clock.now()
        owner = pods.workload_id(pod)
        name = self._hash(pod.metadata.uid)
        return _TracedPod(
            name=f"pod-{name}",
            workload=f"workload-{self._hash(owner)}" if owner else "",
            arrived=self._second(created),
            cpu_milli=requests.get(res.CPU, 0),
            memory_mib=-(-requests.get(res.MEMORY, 0) // (res.ONE_UNIT * _MEBIBYTE)),
            gpus=requests.get(_GPU, 0) // res.ONE_UNIT,
        )

    def _second(self, moment: datetime) -> int:
        return max(0, round((moment - self._start).total_seconds()))

    def _hash(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=8).hexdigest()

    # -- the file -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled, and once more then."""
        await asyncio.to_thread(self._keep_earlier_file)
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)
                await self.write()
        finally:
            self._write(tuple(self._pods.values()))

    async def write(self) -> None:
        """Write the file if something has changed since. A file that cannot be written is logged and tried again."""
        for origin in tuple(self._disrupted):
            self._forget_old_disruptions(origin)
        if self._has_changed:
            self._has_changed = False
            await asyncio.to_thread(self._write, tuple(self._pods.values()))

    def content(self) -> str:
        """The trace so far, as CSV in the order of arrival."""
        return _csv_text(self._pods.values())

    def _keep_earlier_file(self) -> None:
        if self._path.exists():
            os.replace(self._path, self._path.with_name(f"{self._path.name}.previous"))

    def _write(self, pods: Sequence[_TracedPod]) -> None:
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_text(_csv_text(pods), encoding="utf-8")
            os.replace(part, self._path)
        except OSError as error:
            _log.error("trace of pods cannot be written", path=str(self._path), error=error.strerror)


def _origin(pod: Pod) -> str:
    """What creates a new pod when this one is disrupted: its workload, or the creator of pods of this name."""
    return pods.workload_id(pod) or f"{pod.metadata.namespace}/{pod.metadata.name}"


def _csv_text(pods: Iterable[_TracedPod]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(traced.row() for traced in sorted(pods, key=lambda traced: (traced.arrived, traced.name)))
    return text.getvalue()
