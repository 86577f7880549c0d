"""Moves that were undone: pods were moved together to save a machine, and soon after a machine was bought for pods of the same
owner.

Whoever is to blame (a scheduler that put them elsewhere, a workload that grows and shrinks by the minute), moving them once
more for money would only begin the same again. So their owner is remembered with the other regrets: for a while, longer each
time, no machine its pods are on is consolidated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import structlog

from karpenter.act.regrets import Regrets
from karpenter.api.core import Pod
from karpenter.decide.disrupt.command import Command, DisruptionReason
from karpenter.decide.plan import Plan

#: How long after a move a machine bought for its pods' owner undoes it.
_SOON_SECONDS = 900.0
_KEPT = 10_000
_log = structlog.get_logger()


class Undone:
    """Remembers whose pods were moved, and notices when that was for nothing. ``now`` gives seconds that never go back."""

    def __init__(self, regrets: Regrets, now: Callable[[], float]) -> None:
        self._regrets = regrets
        self._now = now
        self._moved: OrderedDict[str, float] = OrderedDict()

    def moved(self, command: Command) -> None:
        """A command was carried out."""
        if command.reason is not DisruptionReason.UNDERUTILIZED:
            return
        now = self._now()
        for name in owner_names(pod for candidate in command.candidates for pod in candidate.pods):
            self._moved[name] = now
            self._moved.move_to_end(name)
        while len(self._moved) > _KEPT:
            self._moved.popitem(last=False)

    def planned(self, plan: Plan) -> None:
        """Machines are being bought for pods that wait."""
        if not self._moved:
            return
        soonest = self._now() - _SOON_SECONDS
        waiting = (pod for claim in plan.claims for pod in claim.pods if not pod.spec.node_name)
        for name in sorted(set(owner_names(waiting))):
            if self._moved.pop(name, soonest) > soonest:
                cause = "a machine was bought for pods of an owner whose pods had been moved just before"
                self._regrets.note(DisruptionReason.UNDERUTILIZED, (name,), cause)
                _log.info("consolidation was undone", owner=name, error=cause)


def owner_names(pods: Iterable[Pod]) -> Iterator[str]:
    """Under which names regrets remember the owners of pods."""
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.controller:
                yield f"{owner.kind}/{pod.metadata.namespace}/{owner.name}"
