"""PodDisruptionBudgets as far as they speak about one pod (DIS-083, DIS-084). Budgets of NodePools are in ``budgets``."""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.model import conditions, selectors


def over(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> list[PodDisruptionBudget]:
    """The budgets that select the pod; evictions of a pod with several are refused."""
    return [
        budget
        for budget in budgets
        if budget.metadata.namespace == pod.metadata.namespace
        and selectors.matches(budget.spec.selector, pod.metadata.labels)
    ]


def yields_to(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether the budget lets the pod go whatever it counts, because the pod is not ready (DIS-084)."""
    always = budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
    return always and conditions.is_false(pod.status.conditions, "Ready")


def preventing(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> list[PodDisruptionBudget]:
    """The budgets that keep the pod from being evicted now (DIS-080, DIS-081): of several all, whatever they allow."""
    found = over(pod, budgets)
    if len(found) > 1:
        return found
    return [budget for budget in found if not budget.status.disruptions_allowed and not yields_to(budget, pod)]
