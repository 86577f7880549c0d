"""Who runs where, counted: what topology spread and pod affinity ask about the pods that already have a node.

A *pattern* selects pods (namespaces and labels); the census keeps, per pattern somebody has asked about, how many matching
pods each node holds. A counter is filled by one scan when its pattern is first seen and updated with every pod that
comes or goes, so a scheduling attempt costs a pass over the nodes and none over the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from karpenter.api.core import Namespace, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.kube.informer import Key
from karpenter.model import selectors
from karpenter.sim.following import key_of


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which pods count. Two patterns of the same ``text`` are the same."""

    text: bytes
    selector: LabelSelector | None = field(compare=False)
    namespaces: frozenset[str] = field(compare=False)
    namespace_selector: LabelSelector | None = field(compare=False)
    counts_terminating: bool = field(compare=False)


def of_constraint(pod: Pod, constraint: TopologySpreadConstraint) -> Pattern:
    """The pods a spread constraint of this pod counts: its own namespace, none that are terminating.

    An empty selector counts nobody here, like a missing one.
    """
    selector = _with_own_values(pod, constraint.label_selector, constraint.match_label_keys, "In")
    if selector == LabelSelector():
        selector = None
    return _pattern(selector, frozenset((pod.metadata.namespace,)), None, counts_terminating=False)


def of_term(pod: Pod, term: PodAffinityTerm) -> Pattern:
    """The pods an affinity or anti-affinity term of this pod is about."""
    selector = _with_own_values(pod, term.label_selector, term.match_label_keys, "In")
    selector = _with_own_values(pod, selector, term.mismatch_label_keys, "NotIn")
    named = frozenset(term.namespaces)
    if not named and term.namespace_selector is None:
        named = frozenset((pod.metadata.namespace,))
    return _pattern(selector, named, term.namespace_selector, counts_terminating=True)


def _with_own_values(
    pod: Pod, selector: LabelSelector | None, keys: tuple[str, ...], operator: str
) -> LabelSelector | None:
    if selector is None or not keys:
        return selector
    own = pod.metadata.labels
    added = tuple(
        LabelSelectorRequirement(key=key, operator=operator, values=(own[key],)) for key in keys if key in own
    )
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *added))


def _pattern(
    selector: LabelSelector | None,
    namespaces: frozenset[str],
    namespace_selector: LabelSelector | None,
    *,
    counts_terminating: bool,
) -> Pattern:
    text = msgspec.json.encode((selector, sorted(namespaces), namespace_selector, counts_terminating))
    return Pattern(text, selector, namespaces, namespace_selector, counts_terminating)


def required(affinity: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    """The terms that must hold."""
    return affinity.required if affinity is not None else ()


def required_anti_affinity(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    """The pod's own terms that keep others away."""
    return required(pod.spec.affinity.pod_anti_affinity) if pod.spec.affinity is not None else ()


class Census:
    """Pods with a node, and per pattern how many of them each node holds."""

    def __init__(self) -> None:
        self._placed: dict[Key, tuple[Pod, str]] = {}
        self._tallies: dict[Pattern, Counter[str]] = {}
        self._refusals: dict[tuple[Pattern, str], Counter[str]] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}

    def put(self, pod: Pod, node: str) -> None:
        """The pod runs on the node; what was known of it before is replaced."""
        self.drop(key_of(pod.metadata))
        self._placed[key_of(pod.metadata)] = (pod, node)
        self._count(pod, node, 1)

    def drop(self, key: Key) -> None:
        """The pod runs nowhere any more."""
        placed = self._placed.pop(key, None)
        if placed is not None:
            self._count(*placed, -1)

    def _count(self, pod: Pod, node: str, by: int) -> None:
        for pattern, tally in self._tallies.items():
            if self.matches(pattern, pod):
                _step(tally, node, by)
        for term in required_anti_affinity(pod):
            refusals = self._refusals.setdefault((of_term(pod, term), term.topology_key), Counter())
            _step(refusals, node, by)

    def set_namespace(self, name: str, namespace: Namespace | None) -> None:
        """Labels of a namespace, which namespace selectors read; counters that depend on them start afresh."""
        labels = namespace.metadata.labels if namespace is not None else {}
        if self._namespaces.get(name, {}) != labels:
            self._tallies = {
                pattern: tally for pattern, tally in self._tallies.items() if pattern.namespace_selector is None
            }
        self._namespaces[name] = labels

    def matches(self, pattern: Pattern, pod: Pod) -> bool:
        """Whether the pod counts for the pattern."""
        if not pattern.counts_terminating and pod.metadata.deletion_timestamp is not None:
            return False
        return selectors.matches(pattern.selector, pod.metadata.labels) and self._in_namespace(pattern, pod)

    def _in_namespace(self, pattern: Pattern, pod: Pod) -> bool:
        name = pod.metadata.namespace
        if name in pattern.namespaces:
            return True
        return selectors.matches(pattern.namespace_selector, self._namespaces.get(name, {}))

    def tally(self, pattern: Pattern) -> Mapping[str, int]:
        """Matching pods per node name."""
        known = self._tallies.get(pattern)
        if known is None:
            known = self._tallies[pattern] = Counter(
                node for pod, node in self._placed.values() if self.matches(pattern, pod)
            )
        return known

    def refusing(self, pod: Pod) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Anti-affinity of placed pods against this one: topology key, and how many such pods each node holds."""
        for (pattern, topology_key), tally in self._refusals.items():
            if tally and self.matches(pattern, pod):
                yield topology_key, tally


def _step(tally: Counter[str], node: str, by: int) -> None:
    tally[node] += by
    if not tally[node]:
        del tally[node]


def per_domain(
    tally: Mapping[str, int], topology_key: str, nodes: Iterable[tuple[str, Mapping[str, str]]]
) -> dict[str, int]:
    """Sum a tally over the domains of a topology key; domains without matching pods count 0."""
    totals: dict[str, int] = {}
    for name, labels in nodes:
        domain = labels.get(topology_key)
        if domain is not None:
            totals[domain] = totals.get(domain, 0) + tally.get(name, 0)
    return totals
