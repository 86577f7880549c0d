"""The constraints between pods that are in play in one decision, and what each group of pods has to do with them (SCH §19).

Equal terms of different signatures are one `TopologyGroup`, so that they count together. A pod group's `TopologyMembership` says
which topology groups it states and which select it: the former decide where it may go, the latter count it where it went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.scheduling.topology.bound_pod_counts import TopologyPodCounts, taints_count
from karpenter.state.pod_counts import NamespacedLabels
from karpenter.state.topology_terms import TopologyNodeFilter, TopologyTerm, TopologyType


class CountingCertainty(IntEnum):
    """Whether something will be true of a node yet to come."""

    NEVER = 0
    POSSIBLE = 1
    CERTAIN = 2


def counting_certainty(
    counted: TopologyNodeFilter | None,
    own_taints: Iterable[Taint],
    has: Callable[[str], object],
    meets: Callable[[Requirements], CountingCertainty],
) -> CountingCertainty:
    """Whether a constraint will count the pods of a node yet to come (with the allowance, SCH-541 Beyond).

    ``has`` says whether it will have a label, ``meets`` whether it will be what is asked.
    """
    if counted is None:
        return CountingCertainty.CERTAIN
    if not taints_count(counted, own_taints):
        return CountingCertainty.NEVER
    if not all(key == labels.HOSTNAME or has(key) for key in counted.required_topology_keys):
        return CountingCertainty.NEVER
    if counted.node_alternatives is None:
        return CountingCertainty.CERTAIN
    return max((meets(alternative) for alternative in counted.node_alternatives), default=CountingCertainty.NEVER)


class TopologyGroup:
    """One term in play. Compared by identity; ``required``: some pod cannot do without it."""

    def __init__(self, term: TopologyTerm, bound_pod_counts: TopologyPodCounts) -> None:
        self.term = term
        self.required = False
        self._bound_pod_counts = bound_pod_counts

    @property
    def topology_key(self) -> str:
        """The topology key."""
        return self.term.topology_key

    @property
    def is_hostname(self) -> bool:
        """Whether every node is a domain of its own."""
        return self.term.is_hostname

    @cached_property
    def pod_counts(self) -> Mapping[str, int]:
        """Bound pods it means, by domain."""
        return self._bound_pod_counts.pod_counts(self.term)

    @cached_property
    def owner_counts(self) -> Mapping[str, int]:
        """Bound pods that repel by it, by domain."""
        return self._bound_pod_counts.owner_counts(self.term)


@dataclass(frozen=True)
class CountingGroups:
    """The constraints that will count a pod, and those of which that hangs on what its node becomes."""

    certain: tuple[TopologyGroup, ...] = ()
    possible: tuple[TopologyGroup, ...] = ()


def counting_groups(certainties: Iterable[tuple[TopologyGroup, CountingCertainty]]) -> CountingGroups:
    """What the chances of constraints come to."""
    pairs = tuple(certainties)
    surely, perhaps = (
        tuple(c for c, own in pairs if own is chance)
        for chance in (CountingCertainty.CERTAIN, CountingCertainty.POSSIBLE)
    )
    return CountingGroups(surely, perhaps)


@dataclass(frozen=True, eq=False)
class TopologyMembership:
    """What a group has to do with the constraints in play. ``declared`` are its own, by term; ``selected_by`` those that mean it.

    ``required`` are those of its own that are no mere preference of this group, whatever others make of them.
    """

    declared: Mapping[TopologyTerm, TopologyGroup]
    selected_by: tuple[TopologyGroup, ...]
    required: frozenset[TopologyGroup] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.declared or self.selected_by)

    def selects_itself(self, constraint: TopologyGroup) -> bool:
        """Whether the group's own pods are among those a constraint means."""
        return constraint in self.selected_by

    @cached_property
    def inverse_anti_affinity(self) -> frozenset[TopologyGroup]:
        """Anti-affinity it insists on: where these pods are, those meant may not come."""
        return frozenset(c for c in self.required if c.term.topology_type is TopologyType.ANTI_AFFINITY)


class TopologyGroups:
    """The topology groups of a pass, and the pods that each of them concerns."""

    def __init__(self, bound_pod_counts: TopologyPodCounts) -> None:
        self._bound_pod_counts = bound_pod_counts
        self._groups: dict[TopologyTerm, TopologyGroup] = {}
        self._selecting: dict[NamespacedLabels, tuple[TopologyGroup, ...]] = {}
        self._memberships: dict[
            tuple[tuple[TopologyTerm, ...], tuple[TopologyTerm, ...], tuple[TopologyGroup, ...]], TopologyMembership
        ] = {}
        #: Where to look for those that mean a pod, each with its number: a namespace, there perhaps a label's value, or anywhere.
        self._by_selector: dict[tuple[str, ...], list[tuple[int, TopologyGroup]]] = {}
        for term in bound_pod_counts.anti_affinity_terms:
            self._add_term(term).required = True

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add_terms(self, required: Iterable[TopologyTerm], preferred: Iterable[TopologyTerm]) -> None:
        """Add the terms of a pod class. The terms of all classes are added before the first membership is computed."""
        for term in required:
            self._add_term(term).required = True
        for term in preferred:
            self._add_term(term)

    def _add_term(self, term: TopologyTerm) -> TopologyGroup:
        topology_group = self._groups.get(term)
        if topology_group is None:
            topology_group = self._groups[term] = TopologyGroup(term, self._bound_pod_counts)
            for place in _selector_index_keys(term):
                self._by_selector.setdefault(place, []).append((len(self._groups), topology_group))
        return topology_group

    def selecting(self, namespaced_labels: NamespacedLabels) -> tuple[TopologyGroup, ...]:
        """The topology groups that select pods with these labels."""
        topology_groups = self._selecting.get(namespaced_labels)
        if topology_groups is None:
            places = [
                (),
                (namespaced_labels.namespace,),
                *((namespaced_labels.namespace, *label) for label in namespaced_labels.labels.items()),
            ]
            nearby = sorted(candidate for place in places for candidate in self._by_selector.get(place, ()))
            topology_groups = self._selecting[namespaced_labels] = tuple(
                [c for _, c in nearby if self._bound_pod_counts.matches(c.term, namespaced_labels)]
            )
        return topology_groups

    def membership_of(
        self, required: Iterable[TopologyTerm], preferred: Iterable[TopologyTerm], namespaced_labels: NamespacedLabels
    ) -> TopologyMembership:
        """The membership of pods that state these terms and have these labels; one object for equal ones."""
        key = (tuple(required), tuple(preferred), self.selecting(namespaced_labels))
        membership = self._memberships.get(key)
        if membership is None:
            firm = {term: self._groups[term] for term in key[0]}
            stated = firm | {term: self._groups[term] for term in key[1]}
            membership = self._memberships[key] = TopologyMembership(stated, key[2], frozenset(firm.values()))
        return membership


def _selector_index_keys(term: TopologyTerm) -> list[tuple[str, ...]]:
    """Where a term is found by those it may mean, see `TopologyGroups`: of several places no pod is in two."""
    selector = term.pod_selector
    if selector.pod_query is None:
        return []
    if selector.namespace_query is not None:
        return [()]
    expression = selector.pod_query.narrowest_in_expression
    if expression is None:
        return [(namespace,) for namespace in selector.namespaces]
    return [(namespace, expression[0], value) for namespace in selector.namespaces for value in expression[1]]
