"""The second look: whether a command chosen a while ago is still what would be chosen (DIS §11).

The decision is made again on the cluster as it is now; a command that was not chosen again is refused, with the kind of change
that did it. Emptiness may shrink to what is still empty, everything else holds as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum

from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.scheduling.solution import NewNodeClaim


class ValidationFailure(StrEnum):
    """What came between (DIS-396): a machine is no candidate any more, budgets do, or its pods have to go elsewhere."""

    CHURN = "churn"
    BUDGET = "budget"
    SCHEDULING = "scheduling"


def validate_command(
    pending: Command, current_commands: Iterable[Command], blocked_keys: Collection[str]
) -> Command | ValidationFailure:
    """The command as it may be carried out now, with its machines as they are now; or why it may not be.

    ``again`` are the commands chosen now, ``blocked`` the machines (by key) that are no candidates now.
    """
    alike = [command for command in current_commands if command.reason is pending.reason]
    if pending.reason is DisruptionReason.EMPTY:
        return _still_empty(pending, alike, blocked_keys)
    keys = {candidate.key for candidate in pending.candidates}
    for command in alike:
        if {candidate.key for candidate in command.candidates} == keys:
            return _with_same_replacements(pending, command)
    return ValidationFailure.CHURN if keys & set(blocked_keys) else ValidationFailure.SCHEDULING


def _still_empty(
    pending: Command, current_commands: Iterable[Command], blocked: Collection[str]
) -> Command | ValidationFailure:
    """What of it is still empty and allowed (DIS-275)."""
    now = {candidate.key: candidate for command in current_commands for candidate in command.candidates}
    kept = tuple(now[candidate.key] for candidate in pending.candidates if candidate.key in now)
    if kept:
        return replace(pending, candidates=kept)
    return (
        ValidationFailure.CHURN
        if any(candidate.key in blocked for candidate in pending.candidates)
        else ValidationFailure.BUDGET
    )


def _with_same_replacements(pending: Command, current: Command) -> Command | ValidationFailure:
    """Every machine that was to be bought must still be what would be bought (DIS-272); pods go where they would go now."""
    if len(pending.replacements) != len(current.replacements):
        return ValidationFailure.SCHEDULING
    left = list(current.replacements)
    for planned in pending.replacements:
        match = next((item for item in left if _covers(item, planned)), None)
        if match is None:
            return ValidationFailure.SCHEDULING
        left.remove(match)
    return current


def _covers(current: NewNodeClaim, pending: NewNodeClaim) -> bool:
    return current.node_pool == pending.node_pool and set(pending.instance_types) <= set(current.instance_types)
