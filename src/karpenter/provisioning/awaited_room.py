"""How long pods have been waiting for the room of pods that are being deleted (`scheduling.terminating_pods`).

Others may take such room first, again and again where pods come and go all the time. So each pod waits for it no longer than the
window. Once one has, a decision counts all pods as staying and plans missing nodes; from then on the clocks start anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot


class AwaitedRoom:
    """Since when which pods, by uid, have waited."""

    def __init__(self, options: SchedulingOptions) -> None:
        self._options = options
        self._waiting_since: dict[str, datetime] = {}

    def options_at(self, now: datetime, snapshot: ClusterSnapshot) -> SchedulingOptions:
        """The options of the next decision, which is about this snapshot."""
        window = self._options.terminating_pods_window
        overdue = {uid for uid, since in self._waiting_since.items() if now - since > window}
        # No decision follows the last pod that found its room, and the next one may be about others, hours later.
        is_overdue = bool(overdue) and any(pod.metadata.uid in overdue for pod in _waiting_pods(snapshot))
        return self._options.counting_terminating_pods() if is_overdue else self._options

    def note(self, plan: Solution, now: datetime) -> None:
        """A plan was made; pods for which it found another place no longer wait."""
        awaiting = (pod for placed in plan.awaiting_terminating_pods for pod in placed.pods)
        self._waiting_since = {pod.metadata.uid: self._waiting_since.get(pod.metadata.uid, now) for pod in awaiting}


def _waiting_pods(snapshot: ClusterSnapshot) -> Iterator[Pod]:
    """Pods that want a place: those without a node, and those whose node is on its way out."""
    for group in snapshot.pod_groups:
        yield from group.pods
    for view in snapshot.nodes:
        if view.marked_for_deletion:
            yield from view.pods
