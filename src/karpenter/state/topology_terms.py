"""Spread constraints and pod (anti-)affinity in one form: a relation to pods that look so, within domains of a key (SCH §19).

Everything a term depends on is resolved when a pod class is made: ``matchLabelKeys`` become part of the selector, absent
namespaces become the pod's own. Equal terms of different classes are equal values, so that they share one count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from karpenter.api.core import PodSpec
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import PodAffinityTerm, Toleration, TopologySpreadConstraint
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.model.selectors import satisfies_expression
from karpenter.state.pod_counts import NamespacedLabels

Labels = Mapping[str, str]


class TopologyType(StrEnum):
    """What a pod wants of the pods a term selects."""

    SPREAD = "topology spread"
    AFFINITY = "pod affinity"
    ANTI_AFFINITY = "pod anti-affinity"


@dataclass(frozen=True, slots=True)
class LabelQuery:
    """A label selector whose order and repetitions are forgotten. Each test is a key, an operator and values; all must hold."""

    expressions: frozenset[tuple[str, str, frozenset[str]]]

    def matches(self, values: Labels) -> bool:
        """Whether labels satisfy every test; an operator nobody knows is satisfied by nothing."""
        return all(
            satisfies_expression(values.get(key), operator, wanted) for key, operator, wanted in self.expressions
        )

    @property
    def narrowest_in_expression(self) -> tuple[str, frozenset[str]] | None:
        """A label and the values one of which is needed to be selected: where to look for what is selected. None: anywhere."""
        found = [(key, wanted) for key, operator, wanted in self.expressions if operator == "In"]
        return min(found, key=lambda test: (len(test[1]), test[0]), default=None)

    def with_expression(self, key: str, operator: str, values: Iterable[str]) -> LabelQuery:
        """The same query with one more test."""
        return LabelQuery(self.expressions | {(key, operator, frozenset(values))})


def label_query(selector: LabelSelector | None) -> LabelQuery | None:
    """A selector as a query; an absent one stays absent and selects nobody."""
    if selector is None:
        return None
    named = [(key, "In", frozenset((value,))) for key, value in selector.match_labels.items()]
    return LabelQuery(
        frozenset([*named, *((e.key, e.operator, frozenset(e.values)) for e in selector.match_expressions)])
    )


@dataclass(frozen=True, slots=True)
class PodSelector:
    """The pods a term is about: those a query selects, in namespaces given by name or by a query over their labels (SCH-486)."""

    namespaces: frozenset[str]
    namespace_query: LabelQuery | None
    pod_query: LabelQuery | None

    def matches(self, namespaced_labels: NamespacedLabels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods that look so are meant. ``namespaces`` maps the known ones to their labels."""
        if self.pod_query is None:
            return False
        inside = namespaced_labels.namespace in self.namespaces
        if not inside and self.namespace_query is not None:
            # A namespace nobody has told us about still has the label every namespace is given.
            own = namespaces.get(namespaced_labels.namespace, {labels.NAMESPACE_NAME: namespaced_labels.namespace})
            inside = self.namespace_query.matches(own)
        return inside and self.pod_query.matches(namespaced_labels.labels)


@dataclass(frozen=True, slots=True)
class TopologyNodeFilter:
    """The nodes whose pods a spread constraint counts (SCH-482). None: the policy says to ignore that side.

    ``keys``: topology keys of all the pod's required spread constraints; a node that lacks one of them is no domain of any of
    these, as in the scheduler.
    """

    node_alternatives: tuple[Requirements, ...] | None
    tolerations: tuple[Toleration, ...] | None
    required_topology_keys: frozenset[str]


@dataclass(frozen=True)
class TopologyTerm:
    """One constraint of a pod. ``max_skew``, ``min_domains`` and ``counted`` belong to topology spread only.

    ``also``: whom the pod's other required affinity terms are about; to the scheduler only a pod that all of them mean counts.
    """

    topology_type: TopologyType
    topology_key: str
    pod_selector: PodSelector
    max_skew: int = 0
    min_domains: int = 0
    node_filter: TopologyNodeFilter | None = None
    further_pod_selectors: frozenset[PodSelector] = frozenset()

    @cached_property
    def _hash(self) -> int:
        own = (
            self.topology_type,
            self.topology_key,
            self.pod_selector,
            self.max_skew,
            self.min_domains,
            self.node_filter,
            self.further_pod_selectors,
        )
        return hash(own)

    def __hash__(self) -> int:
        return self._hash

    def matches(self, namespaced_labels: NamespacedLabels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods that look so are those it is about. ``namespaces`` maps the known ones to their labels."""
        return self.pod_selector.matches(namespaced_labels, namespaces) and all(
            other.matches(namespaced_labels, namespaces) for other in self.further_pod_selectors
        )

    @property
    def is_hostname(self) -> bool:
        """Whether every machine is a domain of its own."""
        return self.topology_key == labels.HOSTNAME


@dataclass(frozen=True, slots=True)
class PreferredTopologyTerm:
    """A term that may be given up, the lightest pull last. Spread constraints weigh nothing and keep their order."""

    term: TopologyTerm
    weight: int


@dataclass(frozen=True, slots=True)
class TopologyTerms:
    """All terms of a pod: those that must hold and those it wishes for (SCH-483)."""

    required: tuple[TopologyTerm, ...] = ()
    preferred: tuple[PreferredTopologyTerm, ...] = ()

    @property
    def required_anti_affinity(self) -> tuple[TopologyTerm, ...]:
        """The terms by which a bound pod keeps others away; what it merely prefers repels nobody (SCH-485)."""
        return tuple(term for term in self.required if term.topology_type is TopologyType.ANTI_AFFINITY)


NO_TOPOLOGY_TERMS = TopologyTerms()


def has_topology_terms(spec: PodSpec) -> bool:
    """Whether the pod says anything about other pods."""
    affinity = spec.affinity
    about_pods = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    return about_pods or bool(spec.topology_spread_constraints)


def label_keys_in_terms(spec: PodSpec) -> Iterator[str]:
    """Keys of the pod's own labels that are part of its terms."""
    for spread in spec.topology_spread_constraints:
        yield from spread.match_label_keys
    for term in _pod_affinity_terms(spec):
        yield from term.match_label_keys
        yield from term.mismatch_label_keys


def _pod_affinity_terms(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    affinity = spec.affinity
    for found in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if found is not None:
            yield from found.required
            yield from (weighted.pod_affinity_term for weighted in found.preferred)


def topology_terms_of(meta: ObjectMeta, spec: PodSpec, node_alternatives: tuple[Requirements, ...]) -> TopologyTerms:
    """The terms of a pod. ``alternatives`` are what it asks of nodes, one of which must hold."""
    if not has_topology_terms(spec):
        return NO_TOPOLOGY_TERMS
    required: list[TopologyTerm] = []
    wished: list[PreferredTopologyTerm] = []
    affinity = spec.affinity
    sides = (
        (TopologyType.AFFINITY, affinity.pod_affinity if affinity else None),
        (TopologyType.ANTI_AFFINITY, affinity.pod_anti_affinity if affinity else None),
    )
    for relation, side in sides:
        if side is not None:
            required += _with_further_pod_selectors(
                [_pod_affinity_topology_term(relation, term, meta) for term in side.required]
            )
            wished += [
                PreferredTopologyTerm(_pod_affinity_topology_term(relation, w.pod_affinity_term, meta), w.weight)
                for w in side.preferred
            ]
    for constraint in spec.topology_spread_constraints:
        term = _spread_topology_term(constraint, meta, spec, node_alternatives)
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            wished.append(PreferredTopologyTerm(term, 0))
        else:
            required.append(term)
    heard = tuple(replace(wish, term=_interned(wish.term)) for wish in wished)
    return TopologyTerms(tuple(map(_interned, dict.fromkeys(required))), heard)


@lru_cache(maxsize=4096)
def _interned(term: TopologyTerm) -> TopologyTerm:
    """One object for all equal terms: much is remembered by them, and looked up faster by an object that is known."""
    return term


def _with_further_pod_selectors(terms: list[TopologyTerm]) -> list[TopologyTerm]:
    """Required affinity terms with each other's pods; anti-affinity terms stand for themselves."""
    if len(terms) < 2 or terms[0].topology_type is not TopologyType.AFFINITY:
        return terms
    return [
        replace(term, further_pod_selectors=frozenset(other.pod_selector for other in terms) - {term.pod_selector})
        for term in terms
    ]


def _pod_affinity_topology_term(relation: TopologyType, term: PodAffinityTerm, meta: ObjectMeta) -> TopologyTerm:
    query = label_query(term.label_selector)
    if query is not None:
        query = _with_pod_labels(query, term.match_label_keys, "In", meta.labels)
        query = _with_pod_labels(query, term.mismatch_label_keys, "NotIn", meta.labels)
    named = term.namespaces or (() if term.namespace_selector is not None else (meta.namespace,))
    whom = PodSelector(frozenset(named), label_query(term.namespace_selector), query)
    return TopologyTerm(relation, labels.normalise(term.topology_key), whom)


def _with_pod_labels(query: LabelQuery, keys: Iterable[str], operator: str, own: Labels) -> LabelQuery:
    """The query with the pod's own values of some labels; those the pod lacks say nothing."""
    for key in keys:
        if key in own:
            query = query.with_expression(key, operator, (own[key],))
    return query


def _spread_topology_term(
    constraint: TopologySpreadConstraint, meta: ObjectMeta, spec: PodSpec, node_alternatives: tuple[Requirements, ...]
) -> TopologyTerm:
    query = label_query(constraint.label_selector)
    if query is not None:
        query = _with_pod_labels(query, constraint.match_label_keys, "In", meta.labels)
    # A selector without a single test counts nobody in kube-scheduler, where anywhere else it selects everybody.
    counted = query if query is not None and query.expressions else None
    return TopologyTerm(
        TopologyType.SPREAD,
        labels.normalise(constraint.topology_key),
        PodSelector(frozenset((meta.namespace,)), None, counted),
        constraint.max_skew,
        constraint.min_domains or 0,
        TopologyNodeFilter(
            node_alternatives if constraint.node_affinity_policy != "Ignore" else None,
            spec.tolerations if constraint.node_taints_policy == "Honor" else None,
            _required_spread_keys(constraint, spec),
        ),
    )


def _required_spread_keys(constraint: TopologySpreadConstraint, spec: PodSpec) -> frozenset[str]:
    if constraint.when_unsatisfiable == "ScheduleAnyway":
        return frozenset((labels.normalise(constraint.topology_key),))
    required = (c for c in spec.topology_spread_constraints if c.when_unsatisfiable != "ScheduleAnyway")
    return frozenset(labels.normalise(other.topology_key) for other in required)
