"""The history of a simulated cluster: instances launched and terminated, their cost, and when pods became ready.

It watches the simulated instances and the pods, and keeps every event as data, in order. ``karpenter demo`` makes the text.
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
from karpenter.providers.simulated.simulated_instances import SimulatedInstance, decode_instance
from karpenter.simulation.run_report import CostMeter, PodWaitTimes


@dataclass(frozen=True, slots=True)
class InstanceLaunched:
    """An instance was launched for this many pods (those planned on it, DaemonSets not counted)."""

    at: datetime
    record: SimulatedInstance
    pod_count: int


@dataclass(frozen=True, slots=True)
class InstanceEnded:
    """An instance was terminated; ``reason`` is the disruption reason (``Empty``...), empty where its NodeClaim has none."""

    at: datetime
    record: SimulatedInstance
    reason: str


InstanceNotice = InstanceLaunched | InstanceEnded


@dataclass(frozen=True, slots=True)
class InstanceRepriced:
    """A running instance costs this much in USD per hour from now on."""

    at: datetime
    node_name: str
    price_per_hour: float


class PlannedState(Protocol):
    """The part of the cluster state that the history reads."""

    planned_nodes: dict[str, str]

    def claim(self, name: str) -> NodeClaim | None:
        """The claim of this name."""


class RunHistory:
    """Launched and terminated instances, their cost, and the waiting times of pods that no DaemonSet owns."""

    def __init__(self, clock: Clock, state: PlannedState) -> None:
        self._clock = clock
        self._state = state
        self._listeners: list[Callable[[InstanceNotice], None]] = []
        self._billed_instances: dict[str, SimulatedInstance] = {}
        self.meter = CostMeter()
        self.pod_times = PodWaitTimes()
        self.notices: list[InstanceNotice] = []
        self.repricings: list[InstanceRepriced] = []

    def subscribe(self, listener: Callable[[InstanceNotice], None]) -> None:
        """Call the listener with every event from now on. It must not block."""
        self._listeners.append(listener)

    @property
    def billed_instances(self) -> Mapping[str, SimulatedInstance]:
        """The instances that cost money now, by node name."""
        return self._billed_instances

    def on_instance(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Handle a change of a simulated instance."""
        name = (new or old or ConfigMap()).metadata.name
        record = decode_instance(new) if new is not None else None
        if record is not None and not record.terminating:
            self._start_billing(record)
        elif name in self._billed_instances:
            self._stop_billing(self._billed_instances.pop(name))

    def _start_billing(self, record: SimulatedInstance) -> None:
        if record.node_name in self._billed_instances:
            return
        now = self._clock.now()
        self._billed_instances[record.node_name] = record
        self.meter.set_price(record.node_name, now, record.price_per_hour)
        pod_count = sum(1 for key in self._state.planned_nodes.values() if key == record.claim_name)
        self._notify(InstanceLaunched(now, record, pod_count))

    def reprice(self, price_of: Callable[[SimulatedInstance], float]) -> None:
        """Running instances cost from now on what this says, in USD per hour."""
        now = self._clock.now()
        for name, record in self._billed_instances.items():
            price = price_of(record)
            self.meter.set_price(name, now, price)
            self.repricings.append(InstanceRepriced(now, name, price))

    def _stop_billing(self, record: SimulatedInstance) -> None:
        now = self._clock.now()
        self.meter.stop(record.node_name, now)
        claim = self._state.claim(record.claim_name)
        cause = conditions.find_condition(claim.status.conditions, "DisruptionReason") if claim is not None else None
        self._notify(InstanceEnded(now, record, cause.reason if cause is not None else ""))

    def _notify(self, notice: InstanceNotice) -> None:
        self.notices.append(notice)
        for listener in self._listeners:
            listener(notice)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a pod."""
        if new is None:
            if old is not None:
                self.pod_times.remove(old)
        elif not pods.is_daemonset_pod(new):
            self.pod_times.observe(new, self._clock.now())
