"""Spread constraints and pod (anti-)affinity in one form: a topology term with a pod selector and a topology key (SCH §19).

Terms are resolved when a pod signature is created: ``matchLabelKeys`` become part of the selector, absent namespaces become the
pod's own. Equal terms of different signatures are equal values, so that they share one topology group.
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
    """The kind of a topology term."""

    SPREAD = "topology spread"
    AFFINITY = "pod affinity"
    ANTI_AFFINITY = "pod anti-affinity"


@dataclass(frozen=True, slots=True)
class LabelQuery:
    """A label selector as a set of expressions (key, operator, values), all of which must hold; order and duplicates are lost."""

    expressions: frozenset[tuple[str, str, frozenset[str]]]

    def matches(self, values: Labels) -> bool:
        """Whether labels satisfy every expression; an unknown operator is never satisfied."""
        return all(
            satisfies_expression(values.get(key), operator, expected) for key, operator, expected in self.expressions
        )

    @property
    def narrowest_in_expression(self) -> tuple[str, frozenset[str]] | None:
        """The In expression with the fewest values, to look up matching pods by label; None if there is no In expression."""
        in_expressions = [(key, expected) for key, operator, expected in self.expressions if operator == "In"]
        return min(in_expressions, key=lambda expression: (len(expression[1]), expression[0]), default=None)

    def with_expression(self, key: str, operator: str, values: Iterable[str]) -> LabelQuery:
        """The same query with one more expression."""
        return LabelQuery(self.expressions | {(key, operator, frozenset(values))})


def label_query(selector: LabelSelector | None) -> LabelQuery | None:
    """A selector as a query; None, which selects no pod, for an absent selector."""
    if selector is None:
        return None
    match_labels = [(key, "In", frozenset((value,))) for key, value in selector.match_labels.items()]
    return LabelQuery(
        frozenset([*match_labels, *((e.key, e.operator, frozenset(e.values)) for e in selector.match_expressions)])
    )


@dataclass(frozen=True, slots=True)
class PodSelector:
    """The pods a term refers to: matched by a query, in namespaces given by name or by a query over their labels (SCH-486)."""

    namespaces: frozenset[str]
    namespace_query: LabelQuery | None
    pod_query: LabelQuery | None

    def matches(self, namespaced_labels: NamespacedLabels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods with these labels are selected. ``namespaces`` maps known namespaces to their labels."""
        if self.pod_query is None:
            return False
        is_in_namespace = namespaced_labels.namespace in self.namespaces
        if not is_in_namespace and self.namespace_query is not None:
            # A namespace that is not known yet has at least the name label that every namespace gets.
            namespace_labels = namespaces.get(
                namespaced_labels.namespace, {labels.NAMESPACE_NAME: namespaced_labels.namespace}
            )
            is_in_namespace = self.namespace_query.matches(namespace_labels)
        return is_in_namespace and self.pod_query.matches(namespaced_labels.labels)


@dataclass(frozen=True, slots=True)
class TopologyNodeFilter:
    """The nodes whose pods a spread constraint counts (SCH-482). None: the policy ignores affinity or taints.

    ``required_topology_keys``: topology keys of all the pod's required spread constraints; a node that lacks one of them is in no
    domain of any of these, as in kube-scheduler.
    """

    node_alternatives: tuple[Requirements, ...] | None
    tolerations: tuple[Toleration, ...] | None
    required_topology_keys: frozenset[str]


@dataclass(frozen=True)
class TopologyTerm:
    """One topology constraint of a pod. ``max_skew``, ``min_domains`` and ``node_filter`` apply to topology spread only.

    ``further_pod_selectors``: those of the pod's other required affinity terms; kube-scheduler counts a pod only if all match.
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
        fields = (
            self.topology_type,
            self.topology_key,
            self.pod_selector,
            self.max_skew,
            self.min_domains,
            self.node_filter,
            self.further_pod_selectors,
        )
        return hash(fields)

    def __hash__(self) -> int:
        return self._hash

    def matches(self, namespaced_labels: NamespacedLabels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods with these labels count for the term. ``namespaces`` maps known namespaces to their labels."""
        return self.pod_selector.matches(namespaced_labels, namespaces) and all(
            other.matches(namespaced_labels, namespaces) for other in self.further_pod_selectors
        )

    @property
    def is_hostname(self) -> bool:
        """Whether every node is a domain of its own."""
        return self.topology_key == labels.HOSTNAME


@dataclass(frozen=True, slots=True)
class PreferredTopologyTerm:
    """A preferred term with its weight. Preferred spread constraints have weight 0 and keep their order."""

    term: TopologyTerm
    weight: int


@dataclass(frozen=True, slots=True)
class TopologyTerms:
    """All required and preferred terms of a pod (SCH-483)."""

    required: tuple[TopologyTerm, ...] = ()
    preferred: tuple[PreferredTopologyTerm, ...] = ()

    @property
    def required_anti_affinity(self) -> tuple[TopologyTerm, ...]:
        """The terms by which a bound pod excludes others; preferred anti-affinity excludes no pod (SCH-485)."""
        return tuple(term for term in self.required if term.topology_type is TopologyType.ANTI_AFFINITY)


NO_TOPOLOGY_TERMS = TopologyTerms()


#: Stands for the use of a resource claim among a pod's labels; no label reads so.
_CLAIM_LABEL = "\0claim/"


def claim_affinity(key: tuple[str, str]) -> TopologyTerm:
    """The affinity by host of pods that share a resource claim, given by namespace and name."""
    query = LabelQuery(frozenset([(_CLAIM_LABEL + key[1], "Exists", frozenset[str]())]))
    return TopologyTerm(TopologyType.AFFINITY, labels.HOSTNAME, PodSelector(frozenset((key[0],)), None, query))


def with_claim_labels(own: NamespacedLabels, claims: Iterable[tuple[str, str]]) -> NamespacedLabels:
    """The labels of a pod that uses these claims, as their affinity selects it."""
    return NamespacedLabels(own.namespace, {**own.labels, **{_CLAIM_LABEL + name: "" for _, name in claims}})


def has_topology_terms(spec: PodSpec) -> bool:
    """Whether the pod has spread constraints or inter-pod affinity."""
    affinity = spec.affinity
    about_pods = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    return about_pods or bool(spec.topology_spread_constraints)


def label_keys_in_terms(spec: PodSpec) -> Iterator[str]:
    """Keys of the pod's own labels that its terms refer to."""
    for spread in spec.topology_spread_constraints:
        yield from spread.match_label_keys
    for term in _pod_affinity_terms(spec):
        yield from term.match_label_keys
        yield from term.mismatch_label_keys


def _pod_affinity_terms(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    affinity = spec.affinity
    for pod_affinity in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if pod_affinity is not None:
            yield from pod_affinity.required
            yield from (weighted.pod_affinity_term for weighted in pod_affinity.preferred)


def topology_terms_of(meta: ObjectMeta, spec: PodSpec, node_alternatives: tuple[Requirements, ...]) -> TopologyTerms:
    """The terms of a pod. ``node_alternatives`` are its node requirements, one of which must hold."""
    if not has_topology_terms(spec):
        return NO_TOPOLOGY_TERMS
    required: list[TopologyTerm] = []
    preferred: list[PreferredTopologyTerm] = []
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
            preferred += [
                PreferredTopologyTerm(
                    _pod_affinity_topology_term(relation, weighted_term.pod_affinity_term, meta), weighted_term.weight
                )
                for weighted_term in side.preferred
            ]
    for constraint in spec.topology_spread_constraints:
        term = _spread_topology_term(constraint, meta, spec, node_alternatives)
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            preferred.append(PreferredTopologyTerm(term, 0))
        else:
            required.append(term)
    interned_preferred = tuple(
        replace(preferred_term, term=_interned(preferred_term.term)) for preferred_term in preferred
    )
    return TopologyTerms(tuple(map(_interned, dict.fromkeys(required))), interned_preferred)


@lru_cache(maxsize=4096)
def _interned(term: TopologyTerm) -> TopologyTerm:
    """One object for all equal terms: dictionaries keyed by terms compare by identity first."""
    return term


def _with_further_pod_selectors(terms: list[TopologyTerm]) -> list[TopologyTerm]:
    """Required affinity terms with each other's pod selectors; anti-affinity terms unchanged."""
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
    namespaces = term.namespaces or (() if term.namespace_selector is not None else (meta.namespace,))
    pod_selector = PodSelector(frozenset(namespaces), label_query(term.namespace_selector), query)
    return TopologyTerm(relation, labels.normalise(term.topology_key), pod_selector)


def _with_pod_labels(query: LabelQuery, keys: Iterable[str], operator: str, pod_labels: Labels) -> LabelQuery:
    """The query with the pod's own values of some labels; labels that the pod lacks are ignored."""
    for key in keys:
        if key in pod_labels:
            query = query.with_expression(key, operator, (pod_labels[key],))
    return query


def _spread_topology_term(
    constraint: TopologySpreadConstraint, meta: ObjectMeta, spec: PodSpec, node_alternatives: tuple[Requirements, ...]
) -> TopologyTerm:
    query = label_query(constraint.label_selector)
    if query is not None:
        query = _with_pod_labels(query, constraint.match_label_keys, "In", meta.labels)
    # In a spread constraint kube-scheduler counts no pod for an empty selector, which elsewhere selects all pods.
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
