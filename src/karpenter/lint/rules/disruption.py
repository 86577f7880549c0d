"""Rules about when nodes are disrupted: consolidation, expiry, grace, freezes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from karpenter.api.batch import CronJob, Job
from karpenter.api.karpenter import NodePool
from karpenter.lint.lint_input import LintInput, PodSource
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.model import durations, labels
from karpenter.model import resources as res
from karpenter.model.pods import template_requests
from karpenter.model.structural_schema import child_path

_CONSOLIDATE_AFTER = "spec.disruption.consolidateAfter"
_EXPIRE_AFTER = "spec.template.spec.expireAfter"
_GRACE = "spec.template.spec.terminationGracePeriod"
#: Thousandths of a core: such pods come and go without a node being worth it.
_TINY_CPU_MILLIS = 100
_SHORT_LIFE = timedelta(hours=1)


def _missing(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        if not where.has("spec.disruption") and pool.spec.replicas is None:
            text = (
                "says nothing about disruption: nodes are consolidated as soon as their pods change (consolidateAfter 0s), "
                "10% of them at once, at any time"
            )
            yield Match(where, "spec", text)


def _immediate(lint_input: LintInput) -> Iterator[Match]:
    restless = next((pod for pod in lint_input.pod_specs() if _is_restless(pod)), None)
    for where, pool in lint_input.of_type(NodePool):
        disruption = pool.spec.disruption
        is_immediate = durations.parse_duration_or_never(disruption.consolidate_after) == timedelta(0)
        moves_pods = disruption.consolidation_policy != "WhenEmpty"
        if restless is not None and is_immediate and moves_pods and where.has("spec.disruption"):
            text = (
                f"every small pod that comes or goes, such as those of {restless.where.subject}, leads to launches and "
                "consolidation; let nodes rest for some minutes"
            )
            yield Match(where, _CONSOLIDATE_AFTER, text)


def _is_restless(pod: PodSource) -> bool:
    """Whether such pods end by themselves, or are so small that they are moved for nothing."""
    cpu_millis = template_requests(pod.spec).get(res.CPU, 0)
    return isinstance(pod.carrier, Job | CronJob) or 0 < cpu_millis <= _TINY_CPU_MILLIS


def _never_expires(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        if pool.spec.template.spec.expire_after == durations.NEVER:
            yield Match(
                where, _EXPIRE_AFTER, "nodes never expire: only drift renews them, and only if something drifts"
            )


def _expires_first(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        lifetime = durations.parse_duration_or_never(pool.spec.template.spec.expire_after)
        rest = durations.parse_duration_or_never(pool.spec.disruption.consolidate_after)
        if lifetime is not None and rest is not None and lifetime <= rest:
            text = f"nodes expire after {durations.duration_text(lifetime)}, so none is ever consolidated"
            yield Match(where, _CONSOLIDATE_AFTER, text)


def _short_life(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        lifetime = durations.parse_duration_or_never(pool.spec.template.spec.expire_after)
        if lifetime is not None and lifetime < _SHORT_LIFE:
            text = f"every node is replaced after {durations.duration_text(lifetime)}; budgets do not limit expiry"
            yield Match(where, _EXPIRE_AFTER, text)


def _no_grace(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        spec = pool.spec.template.spec
        expires = where.has(_EXPIRE_AFTER) and spec.expire_after != durations.NEVER
        if expires and spec.termination_grace_period is None:
            text = (
                "an expired node waits for as long as a pod is protected (do-not-disrupt, a PodDisruptionBudget): "
                "without terminationGracePeriod there is no end to it"
            )
            yield Match(where, _EXPIRE_AFTER, text)


def _grace_cuts_pods(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        grace = _grace(pool)
        for pod in lint_input.pod_specs() if grace is not None else ():
            seconds = pod.spec.termination_grace_period_seconds
            if grace is not None and seconds is not None and timedelta(seconds=seconds) > grace:
                text = (
                    f"pods of {pod.where.subject} may take {seconds}s to end, and are killed after "
                    f"{durations.duration_text(grace)}"
                )
                yield Match(where, _GRACE, text)


def _grace_ends_protection(lint_input: LintInput) -> Iterator[Match]:
    protected = next((pod for pod in lint_input.pod_specs() if pod.annotations.get(labels.DO_NOT_DISRUPT)), None)
    for where, pool in lint_input.of_type(NodePool):
        if protected is not None and _grace(pool) is not None:
            text = (
                f"drift and expiry begin on nodes with protected pods, too, and {protected.where.subject} is killed when this "
                "time is over: do-not-disrupt does not hold beyond it"
            )
            yield Match(where, _GRACE, text)


def _grace(pool: NodePool) -> timedelta | None:
    text = pool.spec.template.spec.termination_grace_period
    return None if text is None else durations.parse_duration_or_never(text)


def _protected_nodes(lint_input: LintInput) -> Iterator[Match]:
    path = child_path("spec.template.metadata.annotations", labels.DO_NOT_DISRUPT)
    for where, pool in lint_input.of_type(NodePool):
        if pool.spec.template.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
            yield Match(where, path, "protects every node of the pool without end: none is consolidated or renewed")


def _endless_freeze(lint_input: LintInput) -> Iterator[Match]:
    for where, pool in lint_input.of_type(NodePool):
        annotations = pool.metadata.annotations
        if labels.FREEZE in annotations and labels.FREEZE_UNTIL not in annotations:
            path = child_path("metadata.annotations", labels.FREEZE)
            yield Match(where, path, f"the freeze has no end; add {labels.FREEZE_UNTIL}")


RULES = (
    Rule(
        "KL120",
        "disruption-settings-missing",
        Severity.NOTE,
        Topic.BUDGETS,
        "A NodePool without `spec.disruption`.",
        "The defaults are busy ones: consolidation at once, a tenth of the nodes at a time, around the clock.",
        "Write `consolidateAfter` and a budget.",
        _missing,
    ),
    Rule(
        "KL121",
        "immediate-consolidation",
        Severity.WARNING,
        Topic.BUDGETS,
        "`consolidateAfter: 0s` beside Jobs, CronJobs or pods of at most 100m CPU.",
        "Nodes are launched and removed with every wave of such pods, and other pods are moved for it.",
        "Write `consolidateAfter: 5m` or more, or the policy `WhenEmpty`.",
        _immediate,
    ),
    Rule(
        "KL122",
        "nodes-never-expire",
        Severity.NOTE,
        Topic.BUDGETS,
        "`expireAfter: Never`.",
        "A node whose image is pinned runs without patches for as long as it is needed.",
        "Write a lifetime, or renew the image in the node class regularly.",
        _never_expires,
    ),
    Rule(
        "KL123",
        "expiry-before-consolidation",
        Severity.WARNING,
        Topic.BUDGETS,
        "`expireAfter` is not longer than `consolidateAfter`.",
        "A node is gone before consolidation may look at it.",
        "Lengthen `expireAfter`, or shorten `consolidateAfter`.",
        _expires_first,
    ),
    Rule(
        "KL124",
        "short-lifetime",
        Severity.WARNING,
        Topic.BUDGETS,
        "`expireAfter` below one hour.",
        "All nodes are replaced all the time. Budgets do not limit expiry.",
        "Write a longer lifetime.",
        _short_life,
    ),
    Rule(
        "KL125",
        "expiry-without-grace",
        Severity.NOTE,
        Topic.BUDGETS,
        "`expireAfter` without `terminationGracePeriod`.",
        "A pod that may not be evicted holds an expired node for good, tainted and paid for.",
        "Write a `terminationGracePeriod`, such as 48h.",
        _no_grace,
    ),
    Rule(
        "KL126",
        "grace-cuts-pods-short",
        Severity.WARNING,
        Topic.BUDGETS,
        "`terminationGracePeriod` of a NodePool below `terminationGracePeriodSeconds` of pods.",
        "The pods are killed before the time they need to end.",
        "Lengthen the NodePool's grace.",
        _grace_cuts_pods,
    ),
    Rule(
        "KL127",
        "grace-ends-protection",
        Severity.NOTE,
        Topic.BUDGETS,
        "`terminationGracePeriod` beside pods with `karpenter.sh/do-not-disrupt`.",
        "With a grace, drift and expiry no longer wait for protected pods; they are killed when it is over.",
        "Choose a grace that is longer than the longest run of such pods.",
        _grace_ends_protection,
    ),
    Rule(
        "KL128",
        "protected-nodes",
        Severity.WARNING,
        Topic.BUDGETS,
        "`karpenter.sh/do-not-disrupt` in the template of a NodePool.",
        "No node of the pool is ever consolidated or renewed.",
        "Use a budget: it can have a schedule and reasons.",
        _protected_nodes,
    ),
    Rule(
        "KL129",
        "freeze-without-end",
        Severity.NOTE,
        Topic.BUDGETS,
        "A freeze without `karpenter.sh/freeze-until`.",
        "A freeze that is forgotten keeps nodes from being renewed.",
        "Add an end.",
        _endless_freeze,
    ),
)
