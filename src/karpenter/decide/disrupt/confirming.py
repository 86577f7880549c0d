"""The second look: whether a command chosen a while ago is still what would be chosen (DIS §11).

The decision is made again on the cluster as it is now; a command that was not chosen again is refused, with the kind of change
that did it. Emptiness may shrink to what is still empty, everything else holds as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum

from karpenter.decide.disrupt.command import Command, DisruptionReason
from karpenter.decide.plan import PlannedClaim


class Refusal(StrEnum):
    """What came between (DIS-396): a machine is no candidate any more, budgets do, or its pods have to go elsewhere."""

    CHURN = "churn"
    BUDGET = "budget"
    SCHEDULING = "scheduling"


def confirmed(chosen: Command, again: Iterable[Command], blocked: Collection[str]) -> Command | Refusal:
    """The command as it may be carried out now, with its machines as they are now; or why it may not be.

    ``again`` are the commands chosen now, ``blocked`` the machines (by key) that are no candidates now.
    """
    alike = [command for command in again if command.reason is chosen.reason]
    if chosen.reason is DisruptionReason.EMPTY:
        return _shrunk(chosen, alike, blocked)
    keys = {candidate.key for candidate in chosen.candidates}
    for command in alike:
        if {candidate.key for candidate in command.candidates} == keys:
            return _reconciled(chosen, command)
    return Refusal.CHURN if keys & set(blocked) else Refusal.SCHEDULING


def _shrunk(chosen: Command, again: Iterable[Command], blocked: Collection[str]) -> Command | Refusal:
    """What of it is still empty and allowed (DIS-275)."""
    now = {candidate.key: candidate for command in again for candidate in command.candidates}
    kept = tuple(now[candidate.key] for candidate in chosen.candidates if candidate.key in now)
    if kept:
        return replace(chosen, candidates=kept)
    return Refusal.CHURN if any(candidate.key in blocked for candidate in chosen.candidates) else Refusal.BUDGET


def _reconciled(chosen: Command, now: Command) -> Command | Refusal:
    """Every machine that was to be bought must still be what would be bought (DIS-272); pods go where they would go now."""
    if len(chosen.replacements) != len(now.replacements):
        return Refusal.SCHEDULING
    left = list(now.replacements)
    for planned in chosen.replacements:
        match = next((item for item in left if _covers(item, planned)), None)
        if match is None:
            return Refusal.SCHEDULING
        left.remove(match)
    return now


def _covers(now: PlannedClaim, then: PlannedClaim) -> bool:
    return now.node_pool == then.node_pool and set(then.instance_types) <= set(now.instance_types)
