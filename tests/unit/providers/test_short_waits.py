"""In virtual time a step that is due in a microsecond waits for it; it does not spin until then."""

from __future__ import annotations

from datetime import timedelta

from karpenter.providers.simulated import SimulatedNodes, SimulatedTiming
from karpenter.runtime import workqueue
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.observed_cluster import ManualClock


def test_what_is_due_in_a_microsecond_is_waited_for() -> None:
    clock = ManualClock()
    nodes = SimulatedNodes(MemoryKube(MemoryServer(clock)), clock, SimulatedTiming())
    seconds = nodes._seconds_until(clock.now() + timedelta(microseconds=1))
    assert seconds is not None
    assert seconds > workqueue._TIMER_SLACK_SECONDS
    assert nodes._seconds_until(clock.now()) == 0
