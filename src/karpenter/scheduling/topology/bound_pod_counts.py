"""Counts of bound pods by domain, for topology groups: of a snapshot, after moves, and without the pods that move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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


class BoundPodCounts:
    """The bound pods as constraints see them, less those that are about to move (SCH-500)."""

    def __init__(self, snapshot: ClusterSnapshot, moving: Iterable[tuple[PodSignature, Iterable[Pod]]]) -> None:
        self._views = snapshot.nodes
        self._views_by_node = {view.node.metadata.name: view for view in snapshot.nodes if view.node is not None}
        self._namespaces = snapshot.namespaces
        self._excluded: dict[tuple[NamespacedLabels | TopologyTerm, str], int] = {}
        for pod_class, pods in moving:
            for pod in pods:
                self._exclude_pod(namespaced_labels(pod), pod.spec.node_name)
                for term in pod_class.topology_terms.required_anti_affinity:
                    self._exclude_pod(term, pod.spec.node_name)
        self._counts_by_labels = snapshot.pod_counts
        self._by_namespace: dict[str, list[NamespacedLabels]] = {}
        for face in snapshot.pod_counts:
            self._by_namespace.setdefault(face.namespace, []).append(face)
        self._by_label_value: dict[tuple[str, str], dict[str, list[NamespacedLabels]]] = {}
        self._counts_by_anti_affinity_term: dict[TopologyTerm, list[CountsByNode]] = {}
        for terms, counts in snapshot.anti_affinity_counts.items():
            for term in terms:
                self._counts_by_anti_affinity_term.setdefault(term, []).append(counts)

    def _exclude_pod(self, what: NamespacedLabels | TopologyTerm, node: str) -> None:
        self._excluded[what, node] = self._excluded.get((what, node), 0) + 1

    @property
    def anti_affinity_terms(self) -> Iterable[TopologyTerm]:
        """Terms by which bound pods keep others away."""
        return self._counts_by_anti_affinity_term

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """Whether a term is about pods that look so."""
        return term.matches(namespaced_labels, self._namespaces)

    def pod_counts(self, term: TopologyTerm) -> dict[str, int]:
        """How many pods the term means in each domain, by node name where every host is one (SCH-500)."""
        found: dict[str, int] = {}
        for face in self._candidate_labels(term):
            if self.matches(term, face):
                self._add_counts(term, face, self._counts_by_labels[face], found)
        return found

    def _candidate_labels(self, term: TopologyTerm) -> Iterable[NamespacedLabels]:
        """Looks among which are all those the term means."""
        whom = term.pod_selector
        if whom.pod_query is None:
            return ()
        if whom.namespace_query is not None:
            return self._counts_by_labels
        named = whom.pod_query.narrowest_in_expression
        if named is None:
            return [face for namespace in sorted(whom.namespaces) for face in self._by_namespace.get(namespace, ())]
        places = [
            (self._labels_by_label_value(namespace, named[0]), value)
            for namespace in whom.namespaces
            for value in named[1]
        ]
        return [face for faces, value in places for face in faces.get(value, ())]

    def _labels_by_label_value(self, namespace: str, key: str) -> Mapping[str, list[NamespacedLabels]]:
        """The looks in a namespace by their value of a label."""
        known = self._by_label_value.get((namespace, key))
        if known is None:
            known = self._by_label_value[namespace, key] = {}
            for face in self._by_namespace.get(namespace, ()):
                value = face.labels.get(key)
                if value is not None:
                    known.setdefault(value, []).append(face)
        return known

    def owner_counts(self, term: TopologyTerm) -> dict[str, int]:
        """How many bound pods repel by the term from each domain (SCH-485)."""
        found: dict[str, int] = {}
        for counts in self._counts_by_anti_affinity_term.get(term, ()):
            self._add_counts(term, term, counts, found)
        return found

    def _add_counts(
        self, term: TopologyTerm, what: NamespacedLabels | TopologyTerm, counts: CountsByNode, found: dict[str, int]
    ) -> None:
        for name, number in counts.items():
            view = self._views_by_node.get(name)
            domain = domain_of_node(term.topology_key, view) if view is not None else ""
            number -= self._excluded.get((what, name), 0)
            if view is not None and domain and number > 0 and node_counts(term.node_filter, view):
                found[domain] = found.get(domain, 0) + number

    def domains(self, key: str, counted: TopologyNodeFilter | None) -> frozenset[str]:
        """Values a label has on machines whose pods count, or is sure to get on those that are on their way."""
        there = (view for view in self._views if view.node is not None or not view.marked_for_deletion)
        return frozenset(filter(None, (domain_of_node(key, view) for view in there if node_counts(counted, view))))


def domain_of_node(key: str, view: StateNode) -> str:
    """The domain a machine is of: hosts are called by their Node's name. Empty where it has none, or none that is settled."""
    if key == labels.HOSTNAME:
        return view.node.metadata.name if view.node is not None else view.name
    held = view.requirements.get(key)
    return next(iter(held.values)) if held is not None and held.operator is Op.IN and len(held.values) == 1 else ""


def node_counts(counted: TopologyNodeFilter | None, view: StateNode) -> bool:
    """Whether a constraint counts the pods of a machine, by its labels and the taints that will stay (SCH-482)."""
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
    """Whether the taints of a machine leave its pods counted; what merely asks to stay away plays no part."""
    if counted.tolerations is None:
        return True
    hard = (taint for taint in own_taints if taint.effect != "PreferNoSchedule")
    return not taints.untolerated(hard, counted.tolerations)


class MutableBoundPodCounts(BoundPodCounts):
    """What bound pods mean to each other, kept up to date as pods move; answers are remembered."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        super().__init__(snapshot, ())
        self._own_counts_by_labels = {face: dict(counts) for face, counts in snapshot.pod_counts.items()}
        self._own_counts_by_term = {
            term: _summed_counts(found) for term, found in self._counts_by_anti_affinity_term.items()
        }
        self._counts_by_labels = self._own_counts_by_labels
        self._counts_by_anti_affinity_term = {term: [counts] for term, counts in self._own_counts_by_term.items()}
        self._matches_cache: dict[tuple[TopologyTerm, NamespacedLabels], bool] = {}
        self._pod_counts_cache: dict[TopologyTerm, dict[str, int]] = {}
        self._owner_counts_cache: dict[TopologyTerm, dict[str, int]] = {}
        self._anti_affinity_cache: dict[NamespacedLabels, tuple[TopologyTerm, ...]] = {}

    def add_planned_node(self, name: str, view: StateNode) -> None:
        """A machine is on its way: its pods count wherever it is sure to be."""
        self._views_by_node[name] = view

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """See ``Scene``."""
        known = self._matches_cache.get((term, namespaced_labels))
        if known is None:
            known = self._matches_cache[term, namespaced_labels] = super().matches(term, namespaced_labels)
        return known

    def pod_counts(self, term: TopologyTerm) -> dict[str, int]:
        """See ``Scene``; not to be changed."""
        known = self._pod_counts_cache.get(term)
        if known is None:
            known = self._pod_counts_cache[term] = super().pod_counts(term)
        return known

    def owner_counts(self, term: TopologyTerm) -> dict[str, int]:
        """See ``Scene``; not to be changed."""
        known = self._owner_counts_cache.get(term)
        if known is None:
            known = self._owner_counts_cache[term] = super().owner_counts(term)
        return known

    def anti_affinity_selecting(self, namespaced_labels: NamespacedLabels) -> tuple[TopologyTerm, ...]:
        """Terms by which bound pods keep away those that look so."""
        topology_terms = self._anti_affinity_cache.get(namespaced_labels)
        if topology_terms is None:
            topology_terms = self._anti_affinity_cache[namespaced_labels] = tuple(
                term for term in self._counts_by_anti_affinity_term if self.matches(term, namespaced_labels)
            )
        return topology_terms

    def counted_domain(self, term: TopologyTerm, node: str) -> str:
        """The domain in which a term counts the pods of a node; empty where it counts none."""
        view = self._views_by_node.get(node)
        return (
            domain_of_node(term.topology_key, view) if view is not None and node_counts(term.node_filter, view) else ""
        )

    def add_pods(self, signature: PodSignature, namespaced_labels: NamespacedLabels, node: str, number: int) -> None:
        """So many more, or fewer, pods of a kind on a node."""
        if namespaced_labels not in self._own_counts_by_labels:
            self._own_counts_by_labels[namespaced_labels] = {}
            self._by_namespace.setdefault(namespaced_labels.namespace, []).append(namespaced_labels)
            self._by_label_value.clear()
        _add_count(self._own_counts_by_labels[namespaced_labels], node, number)
        for term, numbers in self._pod_counts_cache.items():
            if self.matches(term, namespaced_labels):
                _add_count(numbers, self.counted_domain(term, node), number)
        for term in signature.topology_terms.required_anti_affinity:
            if term not in self._own_counts_by_term:
                counts = self._own_counts_by_term[term] = {}
                self._counts_by_anti_affinity_term[term] = [counts]
                self._anti_affinity_cache.clear()
            _add_count(self._own_counts_by_term[term], node, number)
            if term in self._owner_counts_cache:
                _add_count(self._owner_counts_cache[term], self.counted_domain(term, node), number)


def _summed_counts(found: Iterable[CountsByNode]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in found:
        for node, number in counts.items():
            total[node] = total.get(node, 0) + number
    return total


def _add_count(numbers: dict[str, int], domain: str, number: int) -> None:
    if domain:
        numbers[domain] = numbers.get(domain, 0) + number
        if numbers[domain] <= 0:
            del numbers[domain]


class BoundPodCountsWithoutMoving(BoundPodCounts):
    """The ground as pods see it that are about to move: without themselves, and only as far as it concerns them."""

    def __init__(
        self, context: MutableBoundPodCounts, moving: Sequence[tuple[PodSignature, NamespacedLabels, Sequence[Pod]]]
    ) -> None:
        self._bound_pod_counts = context
        faces = dict.fromkeys(face for _, face, _ in moving)
        self._terms = tuple(dict.fromkeys(term for face in faces for term in context.anti_affinity_selecting(face)))
        self._moving_pod_counts: defaultdict[NamespacedLabels, defaultdict[str, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        self._moving_owner_counts: defaultdict[TopologyTerm, defaultdict[str, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        for pod_class, face, pods in moving:
            for pod in pods:
                if counts_for_topology(pod):
                    self._moving_pod_counts[face][pod.spec.node_name] += 1
                for term in pod_class.topology_terms.required_anti_affinity:
                    self._moving_owner_counts[term][pod.spec.node_name] += 1

    @property
    def anti_affinity_terms(self) -> Iterable[TopologyTerm]:
        """Those that mean somebody who is moving."""
        return self._terms

    def matches(self, term: TopologyTerm, namespaced_labels: NamespacedLabels) -> bool:
        """See ``Scene``."""
        return self._bound_pod_counts.matches(term, namespaced_labels)

    def pod_counts(self, term: TopologyTerm) -> dict[str, int]:
        """See ``Scene``."""
        found = dict(self._bound_pod_counts.pod_counts(term))
        for face, nodes in self._moving_pod_counts.items():
            if self.matches(term, face):
                self._subtract(term, nodes, found)
        return found

    def owner_counts(self, term: TopologyTerm) -> dict[str, int]:
        """See ``Scene``."""
        found = dict(self._bound_pod_counts.owner_counts(term))
        self._subtract(term, self._moving_owner_counts.get(term, {}), found)
        return found

    def _subtract(self, term: TopologyTerm, nodes: CountsByNode, found: dict[str, int]) -> None:
        for node, number in nodes.items():
            _add_count(found, self._bound_pod_counts.counted_domain(term, node), -number)
