"""Sleep: nodes of a NodePool whose grace period is over are deleted, as far as budgets of the reason Sleep allow.

What a node costs to disrupt decides the order, not what it saves: all of them go, and the cheapest comes first. Nothing
is launched for their pods beforehand. Pods that fit into another NodePool are planned there as those of any deleted node are.
"""

from __future__ import annotations

from karpenter.disruption.decide.candidates import BlockedNode
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, saving_per_hour
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.emptiness import take_within_budgets
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets


def sleep_candidates(prepared: PreparedDisruption) -> tuple[list[Candidate], list[BlockedNode]]:
    """Nodes of draining NodePools, the cheapest disruption first, and those that something blocks."""
    candidates: list[Candidate] = []
    blocked: list[BlockedNode] = []
    for node in prepared.snapshot.nodes:
        sleep = prepared.snapshot.sleeping_pools.get(node.pool)
        if sleep is None or not sleep.is_draining or not prepared.checks.is_considered(node):
            continue
        candidate = prepared.checks.candidate_or_blocker(node, DisruptionReason.SLEEP)
        if isinstance(candidate, BlockedNode):
            blocked.append(candidate)
        elif not prepared.checks.hosts_controller(candidate):
            candidates.append(candidate)
    return sorted(candidates, key=_cheapest_first), blocked


def _cheapest_first(candidate: Candidate) -> tuple[float, float, str]:
    return (candidate.disruption_cost, -(candidate.price_per_hour or 0.0), candidate.state_node.name)


def delete_asleep(candidates: list[Candidate], budgets: RemainingBudgets) -> Command | None:
    """One command for all candidates that budgets allow; None if they allow none."""
    taken = take_within_budgets(candidates, budgets, DisruptionReason.SLEEP)
    if not taken:
        return None
    return Command(DisruptionReason.SLEEP, taken, saving_per_hour=saving_per_hour(taken))
