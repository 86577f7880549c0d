"""The books of a stage: which machines were bought for whom, what they cost, and when pods were ready.

Fed by watches on the simulated machines and on pods. Everything notable is kept as data, in the order it happened; wording
is the business of those who show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from karpenter.api.core import ConfigMap, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, pods
from karpenter.model.clock import Clock
from karpenter.providers.simulated.instances import Record, read
from karpenter.sim.report import Meter, PodTimes


@dataclass(frozen=True, slots=True)
class Bought:
    """A machine was bought for this many pods (those the latest plan means for it, DaemonSets not counted)."""

    at: datetime
    record: Record
    pod_count: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine was given back, or lost; ``reason`` is the disruption's (``Empty``...), empty where its claim names none."""

    at: datetime
    record: Record
    reason: str


Notice = Bought | Ended


class PlannedWorld(Protocol):
    """What the books read of the controllers' own view of the cluster."""

    planned: dict[str, str]

    def claim(self, name: str) -> NodeClaim | None:
        """The claim of this name."""


class Ledger:
    """Bought and ended machines, their bill and the waiting times of pods that no DaemonSet owns."""

    def __init__(self, clock: Clock, world: PlannedWorld) -> None:
        self._clock = clock
        self._world = world
        self._listeners: list[Callable[[Notice], None]] = []
        self._paid: dict[str, Record] = {}
        self.meter = Meter()
        self.times = PodTimes()
        self.notices: list[Notice] = []

    def subscribe(self, listener: Callable[[Notice], None]) -> None:
        """Be told of everything notable from now on. Must not block."""
        self._listeners.append(listener)

    @property
    def paid(self) -> Mapping[str, Record]:
        """The machines that cost money now, by node name."""
        return self._paid

    def on_machine(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take a change of a simulated machine from the watch."""
        name = (new or old or ConfigMap()).metadata.name
        record = read(new) if new is not None else None
        if record is not None and not record.terminating:
            self._start(record)
        elif name in self._paid:
            self._stop(self._paid.pop(name))

    def _start(self, record: Record) -> None:
        if record.node_name in self._paid:
            return
        now = self._clock.now()
        self._paid[record.node_name] = record
        self.meter.price(record.node_name, now, record.price_per_hour)
        meant = sum(1 for key in self._world.planned.values() if key == record.claim_name)
        self._tell(Bought(now, record, meant))

    def _stop(self, record: Record) -> None:
        now = self._clock.now()
        self.meter.stop(record.node_name, now)
        claim = self._world.claim(record.claim_name)
        cause = conditions.find(claim.status.conditions, "DisruptionReason") if claim is not None else None
        self._tell(Ended(now, record, cause.reason if cause is not None else ""))

    def _tell(self, notice: Notice) -> None:
        self.notices.append(notice)
        for listener in self._listeners:
            listener(notice)

    def on_pod(self, _old: Pod | None, new: Pod | None) -> None:
        """Take a change of a pod from the watch."""
        if new is not None and not pods.is_daemon(new):
            self.times.see(new, self._clock.now())
