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
from karpenter.providers.simulated.simulated_instances import SimulatedInstance, decode_instance
from karpenter.simulation.run_report import CostMeter, PodWaitTimes


@dataclass(frozen=True, slots=True)
class InstanceLaunched:
    """A machine was bought for this many pods (those the latest plan means for it, DaemonSets not counted)."""

    at: datetime
    record: SimulatedInstance
    pod_count: int


@dataclass(frozen=True, slots=True)
class InstanceEnded:
    """A machine was given back, or lost; ``reason`` is the disruption's (``Empty``...), empty where its claim names none."""

    at: datetime
    record: SimulatedInstance
    reason: str


InstanceNotice = InstanceLaunched | InstanceEnded


class PlannedState(Protocol):
    """What the books read of the controllers' own view of the cluster."""

    planned_nodes: dict[str, str]

    def claim(self, name: str) -> NodeClaim | None:
        """The claim of this name."""


class RunHistory:
    """Bought and ended machines, their bill and the waiting times of pods that no DaemonSet owns."""

    def __init__(self, clock: Clock, state: PlannedState) -> None:
        self._clock = clock
        self._state = state
        self._listeners: list[Callable[[InstanceNotice], None]] = []
        self._billed_instances: dict[str, SimulatedInstance] = {}
        self.meter = CostMeter()
        self.pod_times = PodWaitTimes()
        self.notices: list[InstanceNotice] = []

    def subscribe(self, listener: Callable[[InstanceNotice], None]) -> None:
        """Be told of everything notable from now on. Must not block."""
        self._listeners.append(listener)

    @property
    def billed_instances(self) -> Mapping[str, SimulatedInstance]:
        """The machines that cost money now, by node name."""
        return self._billed_instances

    def on_instance(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take a change of a simulated machine from the watch."""
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
        meant = sum(1 for key in self._state.planned_nodes.values() if key == record.claim_name)
        self._notify(InstanceLaunched(now, record, meant))

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

    def on_pod(self, _old: Pod | None, new: Pod | None) -> None:
        """Take a change of a pod from the watch."""
        if new is not None and not pods.is_daemonset_pod(new):
            self.pod_times.observe(new, self._clock.now())
