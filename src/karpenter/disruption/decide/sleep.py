"""Sleep: nodes of a NodePool whose grace period is over are deleted, as far as budgets of the reason Sleep allow.

What a node costs to disrupt decides the order, not what it saves: all of them go, and the cheapest comes first. Nothing
is launched for their pods beforehand. Pods that fit into another NodePool are planned there as those of any deleted node are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import BlockedNode
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, saving_per_hour
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.emptiness import take_within_budgets
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.model import pods


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


def delete_asleep(
    prepared: PreparedDisruption, candidates: list[Candidate], budgets: RemainingBudgets
) -> Command | None:
    """One command for all candidates that budgets of NodePools and pods allow; None if they allow none."""
    allowances = _PodAllowances(prepared)
    evictable = [candidate for candidate in candidates if allowances.take(candidate)]
    taken = take_within_budgets(evictable, budgets, DisruptionReason.SLEEP)
    if not taken:
        return None
    return Command(DisruptionReason.SLEEP, taken, saving_per_hour=saving_per_hour(taken))


class _PodAllowances:
    """How many pods PodDisruptionBudgets still let go in this pass: a node whose drain would only wait stays as it is."""

    def __init__(self, prepared: PreparedDisruption) -> None:
        self._prepared = prepared
        leaving = (
            pod
            for node in prepared.snapshot.nodes
            if node.marked_for_deletion
            for pod in node.pods
            if pod.metadata.deletion_timestamp is None and pods.is_reschedulable(pod)
        )
        self._taken = Counter(budget for budget, _ in self._limits(leaving))

    def take(self, candidate: Candidate) -> bool:
        """Whether all pods of a node may go beside those taken before; then they count as taken.

        A node alone may need more than its budget allows at once: its pods leave one after the other.
        """
        sleep = self._prepared.snapshot.sleeping_pools[candidate.node_pool]
        if sleep.ignores_disruption_budgets:
            return True
        needed: Counter[tuple[str, str]] = Counter()
        for budget, allowed in self._limits(candidate.reschedulable_pods):
            needed[budget] += 1
            if self._taken[budget] and self._taken[budget] + needed[budget] > allowed:
                return False
        self._taken += needed
        return True

    def _limits(self, leaving: Iterable[Pod]) -> Iterator[tuple[tuple[str, str], int]]:
        for pod in leaving:
            for budget in self._prepared.checks.pod_disruption_budgets.selecting(pod):
                key = (budget.metadata.namespace, budget.metadata.name)
                yield key, budget.status.disruptions_allowed
