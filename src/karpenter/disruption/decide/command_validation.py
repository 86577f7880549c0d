"""Whether a command is still valid: every check between its decision and the moment its NodeClaims are deleted (DIS §11).

The checks, in the order in which a command meets them:

1. ``validate_command``: 15 s after a consolidation was chosen the whole decision is made again. The command must be part of it
   again. Making the decision anew, instead of checking the old one, needs no second set of rules. Consolidation evaluates due
   commands first (``MoveEvaluator.revalidate``), so that an equally good alternative does not displace them.
2. ``still_applicable``: a decision may take seconds in a thread. Commands are dropped whose nodes have changed meanwhile, or
   whose budgets are used up.
3. ``has_new_pods``: once a node is tainted, the API server is asked for its pods, since the watch may lag behind.
4. ``first_active_freeze``: while a command waits for replacements, a freeze stops it.

An emptiness command may shrink to the nodes that are still valid. Any other command holds as a whole or not at all.
All functions are pure and linear in the nodes of the commands, plus one pass over the nodes for the budgets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.model import pods
from karpenter.model.freezes import Freeze, active_freeze
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode


class ValidationFailure(StrEnum):
    """Why a command failed validation (DIS-396): a node is no candidate any more, budgets, or its pods fit elsewhere now."""

    CHURN = "churn"
    BUDGET = "budget"
    SCHEDULING = "scheduling"


# -- validation after a pause ---------------------------------------------------------------------------------------------


def validate_command(
    pending: Command, current_commands: Iterable[Command], blocked_keys: Collection[str]
) -> Command | ValidationFailure:
    """The command as it may be executed now, with its nodes as they are now; or why it may not.

    ``current_commands`` are those of the current decision. ``blocked_keys``: the nodes that are no candidates in it; for
    emptiness also those that are no longer empty, but not those that pods were nominated to meanwhile.
    """
    same_reason = [command for command in current_commands if command.reason is pending.reason]
    if pending.reason is DisruptionReason.EMPTY:
        return _still_empty(pending, same_reason, blocked_keys)
    keys = {candidate.key for candidate in pending.candidates}
    for command in same_reason:
        if {candidate.key for candidate in command.candidates} == keys:
            return _with_same_replacements(pending, command)
    return ValidationFailure.CHURN if keys & set(blocked_keys) else ValidationFailure.SCHEDULING


def _still_empty(
    pending: Command, current_commands: Iterable[Command], blocked_keys: Collection[str]
) -> Command | ValidationFailure:
    """The command reduced to the nodes that are still empty and within budgets (DIS-275)."""
    current = {candidate.key: candidate for command in current_commands for candidate in command.candidates}
    kept = tuple(current[candidate.key] for candidate in pending.candidates if candidate.key in current)
    if kept:
        return replace(pending, candidates=kept)
    is_churn = all(candidate.key in blocked_keys for candidate in pending.candidates)
    return ValidationFailure.CHURN if is_churn else ValidationFailure.BUDGET


def empty_validation_failures(
    pending: Command, validated: Command | ValidationFailure, churned_keys: Collection[str]
) -> int:
    """How many nodes of an emptiness command count as failed (DIS-275).

    Nodes that are no longer empty candidates count only if no other is left; nominated nodes and those over budget always do.
    """
    if validated is ValidationFailure.CHURN:
        return len(pending.candidates)
    kept = {candidate.key for candidate in validated.candidates} if isinstance(validated, Command) else set()
    return sum(candidate.key not in kept and candidate.key not in churned_keys for candidate in pending.candidates)


def _with_same_replacements(pending: Command, current: Command) -> Command | ValidationFailure:
    """The current command, if it launches the same replacements (DIS-272); pods go where the current decision places them."""
    if len(pending.replacements) != len(current.replacements):
        return ValidationFailure.SCHEDULING
    unmatched = list(current.replacements)
    for planned in pending.replacements:
        match = next((claim for claim in unmatched if _covers(claim, planned)), None)
        if match is None:
            return ValidationFailure.SCHEDULING
        unmatched.remove(match)
    return current


def _covers(current: NewNodeClaim, pending: NewNodeClaim) -> bool:
    return current.node_pool == pending.node_pool and set(pending.instance_types) <= set(current.instance_types)


# -- after a long decision ------------------------------------------------------------------------------------------------


def still_applicable(
    commands: Iterable[Command], current: ClusterSnapshot, nominated: Collection[str], now: datetime
) -> list[Command]:
    """The commands that still apply to the cluster as it is now: nodes unchanged, and budgets not exceeded.

    ``current`` needs nodes, pools and the freeze only. ``nominated``: keys of nodes that pods are expected on.
    """
    budgets = RemainingBudgets(current, now)
    # A node that is still starting is repaired although pods are nominated to it (K15-223).
    nodes = {node.key: node for node in current.nodes if node.key not in nominated or not node.initialized}
    applicable = (_applicable(command, nodes, budgets) for command in commands)
    return [command for command in applicable if command is not None]


def _applicable(command: Command, nodes: Mapping[str, StateNode], budgets: RemainingBudgets) -> Command | None:
    kept: list[Candidate] = []
    for candidate in command.candidates:
        node = nodes.get(candidate.key)
        if node is None or not _is_unchanged(candidate.state_node, node):
            continue
        if not node.initialized:
            kept.append(replace(candidate, state_node=node))  # it needs and uses no budget (K15-208)
        elif budgets.remaining(candidate.node_pool, command.reason):
            kept.append(replace(candidate, state_node=node))
            budgets.consume(candidate.node_pool)
    if len(kept) < len(command.candidates) and command.reason is not DisruptionReason.EMPTY:
        for candidate in kept:
            budgets.consume(candidate.node_pool, -candidate.state_node.initialized)
        return None
    return replace(command, candidates=tuple(kept)) if kept else None


def _is_unchanged(decided: StateNode, current: StateNode) -> bool:
    if current.marked_for_deletion or current.rebooting or (decided.initialized and not current.initialized):
        return False
    return current is decided or not has_new_pods(decided, current.pods)


# -- while the command is executed ----------------------------------------------------------------------------------------


def has_new_pods(decided: StateNode, current_pods: Iterable[Pod]) -> bool:
    """Whether pods that need rescheduling came to a node after the decision."""
    decided_uids = {pod.metadata.uid for pod in decided.pods}
    return any(pods.is_reschedulable(pod) and pod.metadata.uid not in decided_uids for pod in current_pods)


def first_active_freeze(pools: Iterable[NodePool], cluster_freeze: Freeze | None, now: datetime) -> Freeze | None:
    """The first freeze that is active on one of the NodePools, by their own setting or the cluster's."""
    freezes = (active_freeze(pool, cluster_freeze, now) for pool in pools)
    return next((freeze for freeze in freezes if freeze is not None), None)
