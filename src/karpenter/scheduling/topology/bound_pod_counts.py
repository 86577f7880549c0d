"""Counts of bound pods by domain, for topology groups: of a snapshot, after moves, and without the pods that move.

`BoundPodCounts` is a value: moves give another one. What a term counts in the snapshot is derived once and shared by all of
them; each has only the changes since. So a move costs what its own pods and the terms asked for so far do, whatever the size of
the cluster. Copying the counts of the whole snapshot for each move was considered: a pass of hundreds of moves then takes longer
than its what-if questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import Taint
from karpenter.model import labels, taints
from karpenter.model.requirements import Op, compatible
from karpenter.state.pod_counts import CountsByNode, NamespacedLabels, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from karpenter.state.topology_terms import TopologyNodeFilter, TopologyTerm

_STRICT: frozenset[str] = frozenset()
_Key = TypeVar("_Key", NamespacedLabels, TopologyTerm)

#: Numbers of pods by domain.
CountsByDomain = Mapping[str, int]


class TopologyPodCounts(Protocol):
    """What a scheduling pass asks about bound pods. Results are shared and must not be changed."""

    @property
    def anti_affinity_terms(self) -> Iterable[TopologyTerm]:
        """Terms of bound pods that keep other pods away."""

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """Whether a term selects pods with these labels."""

    def pod_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many bound pods the term selects in each domain (SCH-500)."""

    def owner_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many bound pods with this anti-affinity term are in each domain (SCH-485)."""


@dataclass
class PodCountChanges:
    """Numbers of pods that come to nodes, negative where they leave: by their labels and by their anti-affinity terms."""

    by_labels: dict[NamespacedLabels, dict[str, int]] = field(default_factory=dict)
    by_term: dict[TopologyTerm, dict[str, int]] = field(default_factory=dict)

    def arrive(self, signature: PodSignature, namespaced_labels: NamespacedLabels, node: str) -> None:
        """A pod comes to a node."""
        _add_count(self.by_labels.setdefault(namespaced_labels, {}), node, 1)
        self._count_terms(signature, node, 1)

    def leave(self, signature: PodSignature, namespaced_labels: NamespacedLabels, pod: Pod) -> None:
        """A bound pod leaves its node. One that was not counted there is not subtracted."""
        if counts_for_topology(pod):
            _add_count(self.by_labels.setdefault(namespaced_labels, {}), pod.spec.node_name, -1)
        self._count_terms(signature, pod.spec.node_name, -1)

    def _count_terms(self, signature: PodSignature, node: str, number: int) -> None:
        for term in signature.topology_terms.required_anti_affinity:
            _add_count(self.by_term.setdefault(term, {}), node, number)


class BoundPodCounts:
    """The bound pods of a snapshot, and of what has changed since, as topology terms count them."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._in_snapshot = _SnapshotPodCounts(snapshot)
        #: In the order of the snapshot, then as they came.
        self._anti_affinity_terms = dict.fromkeys(self._in_snapshot.anti_affinity_terms)
        self._planned_nodes: Mapping[str, StateNode] = {}
        self._changes_by_labels: Mapping[NamespacedLabels, CountsByNode] = {}
        self._changes_by_term: Mapping[TopologyTerm, CountsByNode] = {}
        self._pod_counts_cache: dict[TopologyTerm, CountsByDomain] = {}
        self._owner_counts_cache: dict[TopologyTerm, CountsByDomain] = {}
        self._selecting_cache: dict[NamespacedLabels, tuple[TopologyTerm, ...]] = {}

    # -- questions --------------------------------------------------------------------------------------------------------

    @property
    def anti_affinity_terms(self) -> Iterable[TopologyTerm]:
        """Terms of bound pods that keep other pods away."""
        return self._anti_affinity_terms.keys()

    def anti_affinity_selecting(self, namespaced_labels: NamespacedLabels) -> tuple[TopologyTerm, ...]:
        """Terms of bound pods that keep away pods with these labels."""
        terms = self._selecting_cache.get(namespaced_labels)
        if terms is None:
            terms = self._selecting_cache[namespaced_labels] = tuple(
                term for term in self.anti_affinity_terms if self.matches(term, namespaced_labels)
            )
        return terms

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """Whether a term selects pods with these labels."""
        return self._in_snapshot.matches(term, namespaced_labels)

    def pod_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many bound pods the term selects in each domain, by node name where every host is one (SCH-500)."""
        counts = self._pod_counts_cache.get(term)
        if counts is None:
            changes = self._selected_changes(term, self._changes_by_labels)
            counts = self._changed_counts(term, self._in_snapshot.pod_counts(term), changes)
            self._pod_counts_cache[term] = counts
        return counts

    def owner_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many bound pods with this anti-affinity term are in each domain (SCH-485)."""
        counts = self._owner_counts_cache.get(term)
        if counts is None:
            changes = self._changes_by_term.get(term)
            before = self._in_snapshot.owner_counts(term)
            counts = self._changed_counts(term, before, () if changes is None else (changes,))
            self._owner_counts_cache[term] = counts
        return counts

    def domains(self, key: str, counted: TopologyNodeFilter | None) -> frozenset[str]:
        """Values a label has on nodes whose pods count, or is sure to get on nodes that are in flight."""
        return self._in_snapshot.domains(key, counted)

    # -- other counts -------------------------------------------------------------------------------------------------------

    def after(self, changes: PodCountChanges, planned_nodes: Mapping[str, StateNode]) -> BoundPodCounts:
        """The counts after these changes. ``planned_nodes`` (by name) are in flight from then on."""
        other = copy(self)
        other._planned_nodes = {**self._planned_nodes, **planned_nodes}
        other._changes_by_labels = _merged_changes(self._changes_by_labels, changes.by_labels)
        other._changes_by_term = _merged_changes(self._changes_by_term, changes.by_term)
        other._pod_counts_cache = {
            term: other._changed_counts(term, counts, self._selected_changes(term, changes.by_labels))
            for term, counts in self._pod_counts_cache.items()
        }
        other._owner_counts_cache = dict(self._owner_counts_cache)
        for term in changes.by_term.keys() & self._owner_counts_cache.keys():
            before = self._owner_counts_cache[term]
            other._owner_counts_cache[term] = other._changed_counts(term, before, (changes.by_term[term],))
        if not changes.by_term.keys() <= self._anti_affinity_terms.keys():
            other._anti_affinity_terms = self._anti_affinity_terms | dict.fromkeys(changes.by_term)
            other._selecting_cache = {}
        return other

    def without(
        self, leaving: PodCountChanges, anti_affinity_terms: Iterable[TopologyTerm] | None = None
    ) -> TopologyPodCounts:
        """The counts without pods that are about to move. ``anti_affinity_terms``: the only terms that matter to the question."""
        terms = self.anti_affinity_terms if anti_affinity_terms is None else anti_affinity_terms
        return _PodCountsWithoutMoving(self, leaving, tuple(terms))

    def _selected_changes(
        self, term: TopologyTerm, changes: Mapping[NamespacedLabels, CountsByNode]
    ) -> list[CountsByNode]:
        return [by_node for labels_of_pods, by_node in changes.items() if self.matches(term, labels_of_pods)]

    def _changed_counts(
        self, term: TopologyTerm, counts: CountsByDomain, changes: Iterable[CountsByNode]
    ) -> CountsByDomain:
        """The counts of a term after changes by node; the same object where nothing changes."""
        changed: dict[str, int] | None = None
        for by_node in changes:
            for node, number in by_node.items():
                changed = dict(counts) if changed is None else changed
                _add_count(changed, self._counted_domain(term, node), number)
        return counts if changed is None else {domain: number for domain, number in changed.items() if number > 0}

    def _counted_domain(self, term: TopologyTerm, node: str) -> str:
        """The domain in which a term counts the pods of a node; empty where it counts none."""
        planned = self._planned_nodes.get(node)
        return self._in_snapshot.counted_domain(term, node) if planned is None else _counted_domain(term, planned)


@dataclass(frozen=True, eq=False)
class _PodCountsWithoutMoving:
    """Counts without the pods that a question is about."""

    _counts: BoundPodCounts
    _leaving: PodCountChanges
    anti_affinity_terms: tuple[TopologyTerm, ...]

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        return self._counts.matches(term, namespaced_labels)

    def pod_counts(self, term: TopologyTerm) -> CountsByDomain:
        changes = self._counts._selected_changes(term, self._leaving.by_labels)
        return self._counts._changed_counts(term, self._counts.pod_counts(term), changes)

    def owner_counts(self, term: TopologyTerm) -> CountsByDomain:
        leaving = self._leaving.by_term.get(term)
        return self._counts._changed_counts(
            term, self._counts.owner_counts(term), () if leaving is None else (leaving,)
        )


class _SnapshotPodCounts:
    """The counts of a snapshot; answers are kept."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._nodes = snapshot.nodes
        self._node_by_name = {view.node.metadata.name: view for view in snapshot.nodes if view.node is not None}
        self._namespaces = snapshot.namespaces
        self._counts_by_labels = snapshot.pod_counts
        self._labels_by_namespace: dict[str, list[NamespacedLabels]] = {}
        for counted_labels in snapshot.pod_counts:
            self._labels_by_namespace.setdefault(counted_labels.namespace, []).append(counted_labels)
        self._labels_by_value_cache: dict[tuple[str, str], dict[str, list[NamespacedLabels]]] = {}
        self._counts_by_term: dict[TopologyTerm, list[CountsByNode]] = {}
        for terms, counts in snapshot.anti_affinity_counts.items():
            for term in terms:
                self._counts_by_term.setdefault(term, []).append(counts)
        self._matches_cache: dict[tuple[TopologyTerm, NamespacedLabels], bool] = {}
        self._pod_counts_cache: dict[TopologyTerm, CountsByDomain] = {}

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """Whether a term selects pods with these labels."""
        selected = self._matches_cache.get((term, namespaced_labels))
        if selected is None:
            selected = term.matches(namespaced_labels, self._namespaces)
            self._matches_cache[term, namespaced_labels] = selected
        return selected

    @property
    def anti_affinity_terms(self) -> Iterable[TopologyTerm]:
        """Terms of bound pods that keep other pods away."""
        return self._counts_by_term.keys()

    def pod_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many pods the term selects in each domain."""
        counts = self._pod_counts_cache.get(term)
        if counts is None:
            selected = (each for each in self._candidate_labels(term) if self.matches(term, each))
            counts = self._by_domain(term, (self._counts_by_labels[each] for each in selected))
            self._pod_counts_cache[term] = counts
        return counts

    def owner_counts(self, term: TopologyTerm) -> CountsByDomain:
        """How many pods with this anti-affinity term are in each domain."""
        return self._by_domain(term, self._counts_by_term.get(term, ()))

    def _by_domain(self, term: TopologyTerm, counts: Iterable[CountsByNode]) -> CountsByDomain:
        by_domain: dict[str, int] = {}
        for by_node in counts:
            for node, number in by_node.items():
                _add_count(by_domain, self.counted_domain(term, node), number)
        return by_domain

    def _candidate_labels(self, term: TopologyTerm) -> Iterable[NamespacedLabels]:
        """Labels of pods among which are all those the term selects."""
        selector = term.pod_selector
        if selector.pod_query is None:
            return ()
        if selector.namespace_query is not None:
            return self._counts_by_labels
        expression = selector.pod_query.narrowest_in_expression
        if expression is None:
            return [each for name in sorted(selector.namespaces) for each in self._labels_by_namespace.get(name, ())]
        key, values = expression
        by_value = [self._labels_by_value(namespace, key) for namespace in selector.namespaces]
        return [each for of_namespace in by_value for value in values for each in of_namespace.get(value, ())]

    def _labels_by_value(self, namespace: str, key: str) -> Mapping[str, list[NamespacedLabels]]:
        """The labels of pods in a namespace by the value of one of them."""
        by_value = self._labels_by_value_cache.get((namespace, key))
        if by_value is None:
            by_value = self._labels_by_value_cache[namespace, key] = {}
            for labels_of_pods in self._labels_by_namespace.get(namespace, ()):
                value = labels_of_pods.labels.get(key)
                if value is not None:
                    by_value.setdefault(value, []).append(labels_of_pods)
        return by_value

    def counted_domain(self, term: TopologyTerm, node: str) -> str:
        """The domain in which a term counts the pods of a node; empty where it counts none."""
        view = self._node_by_name.get(node)
        return _counted_domain(term, view) if view is not None else ""

    def domains(self, key: str, counted: TopologyNodeFilter | None) -> frozenset[str]:
        """Values a label has on nodes whose pods count, or is sure to get on nodes that are in flight."""
        there = (view for view in self._nodes if view.node is not None or not view.marked_for_deletion)
        return frozenset(filter(None, (domain_of_node(key, view) for view in there if node_counts(counted, view))))


def leaving_pods(groups: Iterable[tuple[PodSignature, Iterable[Pod]]]) -> PodCountChanges:
    """The changes when these pods leave their nodes."""
    changes = PodCountChanges()
    for signature, pods in groups:
        for pod in pods:
            changes.leave(signature, namespaced_labels(pod), pod)
    return changes


def domain_of_node(key: str, view: StateNode) -> str:
    """The domain of a node: its Node's name for hosts. Empty where the node has none, or none that is settled."""
    if key == labels.HOSTNAME:
        return view.node.metadata.name if view.node is not None else view.name
    requirement = view.requirements.get(key)
    is_settled = requirement is not None and requirement.operator is Op.IN and len(requirement.values) == 1
    return next(iter(requirement.values)) if requirement is not None and is_settled else ""


def node_counts(counted: TopologyNodeFilter | None, view: StateNode) -> bool:
    """Whether a constraint counts the pods of a node, by its labels and the taints that will stay (SCH-482)."""
    if counted is None:
        return True
    if any(not domain_of_node(key, view) for key in counted.required_topology_keys) or not taints_count(
        counted, view.taints
    ):
        return False
    if counted.node_alternatives is None or any(not alternative for alternative in counted.node_alternatives):
        return True
    return any(compatible(view.requirements, alternative, _STRICT) for alternative in counted.node_alternatives)


def taints_count(counted: TopologyNodeFilter, own_taints: Iterable[Taint]) -> bool:
    """Whether the pods of a node with these taints count. PreferNoSchedule plays no part."""
    if counted.tolerations is None:
        return True
    hard = (taint for taint in own_taints if taint.effect != "PreferNoSchedule")
    return not taints.untolerated(hard, counted.tolerations)


def _counted_domain(term: TopologyTerm, view: StateNode) -> str:
    return domain_of_node(term.topology_key, view) if node_counts(term.node_filter, view) else ""


def _merged_changes(
    before: Mapping[_Key, CountsByNode], changes: Mapping[_Key, CountsByNode]
) -> Mapping[_Key, CountsByNode]:
    merged = dict(before)
    for key, by_node in changes.items():
        numbers = dict(merged.get(key, {}))
        for node, number in by_node.items():
            _add_count(numbers, node, number)
        merged[key] = numbers
    return merged


def _add_count(numbers: dict[str, int], domain: str, number: int) -> None:
    if domain:
        numbers[domain] = numbers.get(domain, 0) + number
