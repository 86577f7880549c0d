"""Rules about pods that may not be evicted: protections without end, PodDisruptionBudgets that allow nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import ceil

from karpenter.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.lint.lint_input import LintInput, PodSource
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.source_object import SourceObject
from karpenter.model import labels
from karpenter.model.selectors import selector_matches
from karpenter.model.structural_schema import child_path
from karpenter.model.texts import count_text

_SERVICES = Deployment | ReplicaSet | StatefulSet | DaemonSet | Pod
_PERCENT = 100


def _endless_protection(lint_input: LintInput) -> Iterator[Match]:
    for pod in lint_input.pod_specs():
        is_service = isinstance(pod.carrier, _SERVICES) and not pod.metadata.owner_references
        if is_service and pod.annotations.get(labels.DO_NOT_DISRUPT) == "true":
            path = child_path(f"{pod.metadata_path}.annotations", labels.DO_NOT_DISRUPT)
            text = (
                "keeps its node for as long as the pod runs, which has no end; write a duration such as 4h, or a budget"
            )
            yield Match(pod.where, path, text)


def _allows_nothing(lint_input: LintInput) -> Iterator[Match]:
    for where, budget in lint_input.of_type(PodDisruptionBudget):
        replicas = sum(pod.replicas for pod in _selected(budget, where, lint_input) if not isinstance(pod.carrier, Pod))
        spec = budget.spec
        if spec.max_unavailable is not None and _amount(spec.max_unavailable, replicas or _PERCENT) == 0:
            yield Match(where, "spec.maxUnavailable", "allows no eviction ever: nodes of these pods are never drained")
        elif spec.min_available is not None and _is_all(spec.min_available, replicas):
            of = f"of {count_text(replicas, 'replica')} " if replicas else ""
            text = f"keeps {spec.min_available} {of}available and allows no eviction: nodes of these pods are never drained"
            yield Match(where, "spec.minAvailable", text)


def _is_all(least: str | int, replicas: int) -> bool:
    if isinstance(least, str) and least.strip() == "100%":
        return True
    return replicas > 0 and _amount(least, replicas) >= replicas


def _amount(value: str | int, total: int) -> int:
    """A count, or a percentage of the total rounded up, as the controller of such budgets does."""
    if isinstance(value, int):
        return value
    number = value.strip().removesuffix("%")
    return ceil(int(number) * total / _PERCENT) if number.isdecimal() else 1


def _selects_nothing(lint_input: LintInput) -> Iterator[Match]:
    namespaces = {pod.where.namespace for pod in lint_input.pod_specs()}
    for where, budget in lint_input.of_type(PodDisruptionBudget):
        if where.namespace in namespaces and not _selected(budget, where, lint_input):
            yield Match(where, "spec.selector", "selects no pods of the input: it protects nothing")


def _several_budgets(lint_input: LintInput) -> Iterator[Match]:
    by_pods: defaultdict[int, list[str]] = defaultdict(list)
    for where, budget in lint_input.of_type(PodDisruptionBudget):
        for pod in _selected(budget, where, lint_input):
            names = by_pods[id(pod.where)]
            names.append(budget.metadata.name)
            if len(names) > 1:
                text = f"{pod.where.subject} is under {names[0]}, too: the Eviction API refuses pods with two budgets"
                yield Match(where, "spec.selector", text)


def _selected(budget: PodDisruptionBudget, where: SourceObject, lint_input: LintInput) -> list[PodSource]:
    return [
        pod
        for pod in lint_input.pod_specs()
        if pod.where.namespace == where.namespace and selector_matches(budget.spec.selector, pod.metadata.labels)
    ]


def _broken_pods_block(lint_input: LintInput) -> Iterator[Match]:
    for where, budget in lint_input.of_type(PodDisruptionBudget):
        if budget.spec.unhealthy_pod_eviction_policy is None:
            text = "pods that crash hold their nodes; write unhealthyPodEvictionPolicy: AlwaysAllow"
            yield Match(where, "spec", text)


RULES = (
    Rule(
        "KL420",
        "protection-without-end",
        Severity.WARNING,
        Topic.WORKLOADS,
        "`karpenter.sh/do-not-disrupt: true` on pods that run without end.",
        "Their nodes are never consolidated and never get a new image.",
        "Write a duration, or use a PodDisruptionBudget. Jobs end by themselves and may carry it.",
        _endless_protection,
    ),
    Rule(
        "KL421",
        "pdb-allows-nothing",
        Severity.WARNING,
        Topic.WORKLOADS,
        "A PodDisruptionBudget that never allows an eviction: `maxUnavailable: 0`, or `minAvailable` of all replicas.",
        "No node with such a pod is drained; drift waits, and expired nodes stay.",
        "Write `maxUnavailable: 1`, or add a replica.",
        _allows_nothing,
    ),
    Rule(
        "KL422",
        "pdb-selects-nothing",
        Severity.NOTE,
        Topic.WORKLOADS,
        "A PodDisruptionBudget that selects no pods of its namespace in the input.",
        "The pods it is meant for are evicted without limit.",
        "Let the selector name labels of the pod template.",
        _selects_nothing,
    ),
    Rule(
        "KL423",
        "several-pdbs",
        Severity.ERROR,
        Topic.WORKLOADS,
        "Pods under two PodDisruptionBudgets.",
        "The Eviction API refuses to evict them at all, so their nodes are never drained.",
        "Keep one.",
        _several_budgets,
    ),
    Rule(
        "KL424",
        "broken-pods-block-drains",
        Severity.NOTE,
        Topic.WORKLOADS,
        "A PodDisruptionBudget without `unhealthyPodEvictionPolicy`.",
        "Pods that are not ready count against the budget: a workload that crashes cannot be moved.",
        "Write `unhealthyPodEvictionPolicy: AlwaysAllow`.",
        _broken_pods_block,
    ),
)
