"""Counts of placed pods per node, for topology spread and pod affinity.

A *filter* selects pods (namespaces and labels). The census keeps, for every filter that was used, how many matching pods
each node holds. One scan fills a counter when its filter is first used; every pod that is added or removed updates it. So a
scheduling attempt costs a pass over the nodes and none over the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from karpenter.api.core import Namespace, Pod
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.api.scheduling_constraints import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.model import selectors


@dataclass(frozen=True, slots=True)
class PodFilter:
    """Which pods count. Two filters with the same ``text`` are equal."""

    text: bytes
    selector: LabelSelector | None = field(compare=False)
    namespaces: frozenset[str] = field(compare=False)
    namespace_selector: LabelSelector | None = field(compare=False)
    counts_terminating: bool = field(compare=False)


def filter_of_constraint(pod: Pod, constraint: TopologySpreadConstraint) -> PodFilter:
    """The pods a spread constraint of this pod counts: its own namespace, none that are terminating.

    An empty selector selects no pods here, like a missing one.
    """
    selector = _with_match_label_keys(pod, constraint.label_selector, constraint.match_label_keys, "In")
    if selector == LabelSelector():
        selector = None
    return _pod_filter(selector, frozenset((pod.metadata.namespace,)), None, counts_terminating=False)


def filter_of_term(pod: Pod, term: PodAffinityTerm) -> PodFilter:
    """The pods that an affinity or anti-affinity term of this pod selects."""
    selector = _with_match_label_keys(pod, term.label_selector, term.match_label_keys, "In")
    selector = _with_match_label_keys(pod, selector, term.mismatch_label_keys, "NotIn")
    named = frozenset(term.namespaces)
    if not named and term.namespace_selector is None:
        named = frozenset((pod.metadata.namespace,))
    return _pod_filter(selector, named, term.namespace_selector, counts_terminating=True)


def _with_match_label_keys(
    pod: Pod, selector: LabelSelector | None, keys: tuple[str, ...], operator: str
) -> LabelSelector | None:
    if selector is None or not keys:
        return selector
    own = pod.metadata.labels
    added = tuple(
        LabelSelectorRequirement(key=key, operator=operator, values=(own[key],)) for key in keys if key in own
    )
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *added))


def _pod_filter(
    selector: LabelSelector | None,
    namespaces: frozenset[str],
    namespace_selector: LabelSelector | None,
    *,
    counts_terminating: bool,
) -> PodFilter:
    text = msgspec.json.encode((selector, sorted(namespaces), namespace_selector, counts_terminating))
    return PodFilter(text, selector, namespaces, namespace_selector, counts_terminating)


def required_terms(affinity: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    """The required terms."""
    return affinity.required if affinity is not None else ()


def required_anti_affinity(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    """The pod's required anti-affinity terms."""
    return required_terms(pod.spec.affinity.pod_anti_affinity) if pod.spec.affinity is not None else ()


class PodCensus:
    """Placed pods, and per filter how many of them each node holds."""

    def __init__(self) -> None:
        self._placed: dict[ObjectKey, tuple[Pod, str]] = {}
        self._counts: dict[PodFilter, Counter[str]] = {}
        self._anti_affinity_counts: dict[tuple[PodFilter, str], Counter[str]] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}

    def add(self, pod: Pod, node: str) -> None:
        """Add a pod on its node, or replace it."""
        self.remove(key_of(pod.metadata))
        self._placed[key_of(pod.metadata)] = (pod, node)
        self._count(pod, node, 1)

    def remove(self, key: ObjectKey) -> None:
        """Remove a pod."""
        placed = self._placed.pop(key, None)
        if placed is not None:
            self._count(*placed, -1)

    def _count(self, pod: Pod, node: str, by: int) -> None:
        for pattern, tally in self._counts.items():
            if self.matches(pattern, pod):
                _add_count(tally, node, by)
        for term in required_anti_affinity(pod):
            refusals = self._anti_affinity_counts.setdefault((filter_of_term(pod, term), term.topology_key), Counter())
            _add_count(refusals, node, by)

    def set_namespace(self, name: str, namespace: Namespace | None) -> None:
        """Labels of a namespace, which namespace selectors read; counters that depend on them are computed again."""
        labels = namespace.metadata.labels if namespace is not None else {}
        if self._namespaces.get(name, {}) != labels:
            self._counts = {
                pattern: tally for pattern, tally in self._counts.items() if pattern.namespace_selector is None
            }
        self._namespaces[name] = labels

    def matches(self, pod_filter: PodFilter, pod: Pod) -> bool:
        """Whether the filter selects the pod."""
        if not pod_filter.counts_terminating and pod.metadata.deletion_timestamp is not None:
            return False
        return selectors.selector_matches(pod_filter.selector, pod.metadata.labels) and self._in_namespace(
            pod_filter, pod
        )

    def _in_namespace(self, pod_filter: PodFilter, pod: Pod) -> bool:
        name = pod.metadata.namespace
        if name in pod_filter.namespaces:
            return True
        return selectors.selector_matches(pod_filter.namespace_selector, self._namespaces.get(name, {}))

    def counts_by_node(self, pod_filter: PodFilter) -> Mapping[str, int]:
        """Matching pods per node name."""
        count = self._counts.get(pod_filter)
        if count is None:
            count = self._counts[pod_filter] = Counter(
                node for pod, node in self._placed.values() if self.matches(pod_filter, pod)
            )
        return count

    def anti_affinity_against(self, pod: Pod) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Anti-affinity of placed pods against this one: topology key, and how many such pods each node holds."""
        for (pattern, topology_key), tally in self._anti_affinity_counts.items():
            if tally and self.matches(pattern, pod):
                yield topology_key, tally


def _add_count(tally: Counter[str], node: str, by: int) -> None:
    tally[node] += by
    if not tally[node]:
        del tally[node]


def domain_counts(
    counts: Mapping[str, int], topology_key: str, nodes: Iterable[tuple[str, Mapping[str, str]]]
) -> dict[str, int]:
    """Sum counts over the domains of a topology key; domains without matching pods count 0."""
    totals: dict[str, int] = {}
    for name, labels in nodes:
        domain = labels.get(topology_key)
        if domain is not None:
            totals[domain] = totals.get(domain, 0) + counts.get(name, 0)
    return totals
