"""How long pods have been waiting for the room of pods that are being deleted (`scheduling.terminating_pods`).

Others may take such room first, again and again where pods come and go all the time. So each pod waits for it no longer than the
window. Once one has, a decision counts all pods as staying and buys what is missing; from then on the clocks start anew.
"""

from __future__ import annotations

from datetime import datetime

from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution


class AwaitedRoom:
    """Since when which pods, by uid, have waited."""

    def __init__(self, options: SchedulingOptions) -> None:
        self._options = options
        self._waiting_since: dict[str, datetime] = {}

    def options_at(self, now: datetime) -> SchedulingOptions:
        """The options of the next decision."""
        window = self._options.terminating_pods_window
        is_overdue = any(now - since > window for since in self._waiting_since.values())
        return self._options.counting_terminating_pods() if is_overdue else self._options

    def note(self, plan: Solution, now: datetime) -> None:
        """A plan was made; pods for which it found another place no longer wait."""
        awaiting = (pod for placed in plan.placed_on_existing if placed.awaits_terminating_pods for pod in placed.pods)
        self._waiting_since = {pod.metadata.uid: self._waiting_since.get(pod.metadata.uid, now) for pod in awaiting}
