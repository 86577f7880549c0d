"""Spread constraints and pod (anti-)affinity in one form: a relation to pods that look so, within domains of a key (SCH §19).

Everything a term depends on is resolved when a pod class is made: ``matchLabelKeys`` become part of the selector, absent
namespaces become the pod's own. Equal terms of different classes are equal values, so that they share one count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from karpenter.api.core import PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.cluster.faces import Face
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.model.selectors import holds

Labels = Mapping[str, str]


class Relation(StrEnum):
    """What a pod wants of the pods a term selects."""

    SPREAD = "topology spread"
    AFFINITY = "pod affinity"
    ANTI_AFFINITY = "pod anti-affinity"


@dataclass(frozen=True, slots=True)
class Query:
    """A label selector whose order and repetitions are forgotten. Each test is a key, an operator and values; all must hold."""

    tests: frozenset[tuple[str, str, frozenset[str]]]

    def matches(self, values: Labels) -> bool:
        """Whether labels satisfy every test; an operator nobody knows is satisfied by nothing."""
        return all(holds(values.get(key), operator, wanted) for key, operator, wanted in self.tests)

    @property
    def named(self) -> tuple[str, frozenset[str]] | None:
        """A label and the values one of which is needed to be selected: where to look for what is selected. None: anywhere."""
        found = [(key, wanted) for key, operator, wanted in self.tests if operator == "In"]
        return min(found, key=lambda test: (len(test[1]), test[0]), default=None)

    def and_also(self, key: str, operator: str, values: Iterable[str]) -> Query:
        """The same query with one more test."""
        return Query(self.tests | {(key, operator, frozenset(values))})


def query_of(selector: LabelSelector | None) -> Query | None:
    """A selector as a query; an absent one stays absent and selects nobody."""
    if selector is None:
        return None
    named = [(key, "In", frozenset((value,))) for key, value in selector.match_labels.items()]
    return Query(frozenset([*named, *((e.key, e.operator, frozenset(e.values)) for e in selector.match_expressions)]))


@dataclass(frozen=True, slots=True)
class Whom:
    """The pods a term is about: those a query selects, in namespaces given by name or by a query over their labels (SCH-486)."""

    namespaces: frozenset[str]
    of_namespaces: Query | None
    pods: Query | None

    def means(self, face: Face, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods that look so are meant. ``namespaces`` maps the known ones to their labels."""
        if self.pods is None:
            return False
        inside = face.namespace in self.namespaces
        if not inside and self.of_namespaces is not None:
            # A namespace nobody has told us about still has the label every namespace is given.
            own = namespaces.get(face.namespace, {labels.NAMESPACE_NAME: face.namespace})
            inside = self.of_namespaces.matches(own)
        return inside and self.pods.matches(face.labels)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes whose pods a spread constraint counts (SCH-482). None: the policy says to ignore that side.

    ``keys``: topology keys of all the pod's required spread constraints; a node that lacks one of them is no domain of any of
    these, as in the scheduler.
    """

    alternatives: tuple[Requirements, ...] | None
    tolerations: tuple[Toleration, ...] | None
    keys: frozenset[str]


@dataclass(frozen=True)
class Term:
    """One constraint of a pod. ``max_skew``, ``min_domains`` and ``counted`` belong to topology spread only.

    ``also``: whom the pod's other required affinity terms are about; to the scheduler only a pod that all of them mean counts.
    """

    relation: Relation
    key: str
    whom: Whom
    max_skew: int = 0
    min_domains: int = 0
    counted: NodeFilter | None = None
    also: frozenset[Whom] = frozenset()

    @cached_property
    def _hash(self) -> int:
        own = (self.relation, self.key, self.whom, self.max_skew, self.min_domains, self.counted, self.also)
        return hash(own)

    def __hash__(self) -> int:
        return self._hash

    def means(self, face: Face, namespaces: Mapping[str, Labels]) -> bool:
        """Whether pods that look so are those it is about. ``namespaces`` maps the known ones to their labels."""
        return self.whom.means(face, namespaces) and all(other.means(face, namespaces) for other in self.also)

    @property
    def by_host(self) -> bool:
        """Whether every machine is a domain of its own."""
        return self.key == labels.HOSTNAME


@dataclass(frozen=True, slots=True)
class Wish:
    """A term that may be given up, the lightest pull last. Spread constraints weigh nothing and keep their order."""

    term: Term
    weight: int


@dataclass(frozen=True, slots=True)
class Terms:
    """All terms of a pod: those that must hold and those it wishes for (SCH-483)."""

    required: tuple[Term, ...] = ()
    wished: tuple[Wish, ...] = ()

    @property
    def repelling(self) -> tuple[Term, ...]:
        """The terms by which a bound pod keeps others away; what it merely prefers repels nobody (SCH-485)."""
        return tuple(term for term in self.required if term.relation is Relation.ANTI_AFFINITY)


NO_TERMS = Terms()


def has_terms(spec: PodSpec) -> bool:
    """Whether the pod says anything about other pods."""
    affinity = spec.affinity
    about_pods = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    return about_pods or bool(spec.topology_spread_constraints)


def labels_read(spec: PodSpec) -> Iterator[str]:
    """Keys of the pod's own labels that are part of its terms."""
    for spread in spec.topology_spread_constraints:
        yield from spread.match_label_keys
    for term in _all_terms(spec):
        yield from term.match_label_keys
        yield from term.mismatch_label_keys


def _all_terms(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    affinity = spec.affinity
    for found in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if found is not None:
            yield from found.required
            yield from (weighted.pod_affinity_term for weighted in found.preferred)


def terms_of(meta: ObjectMeta, spec: PodSpec, alternatives: tuple[Requirements, ...]) -> Terms:
    """The terms of a pod. ``alternatives`` are what it asks of nodes, one of which must hold."""
    if not has_terms(spec):
        return NO_TERMS
    required: list[Term] = []
    wished: list[Wish] = []
    affinity = spec.affinity
    sides = (
        (Relation.AFFINITY, affinity.pod_affinity if affinity else None),
        (Relation.ANTI_AFFINITY, affinity.pod_anti_affinity if affinity else None),
    )
    for relation, side in sides:
        if side is not None:
            required += _together([_related(relation, term, meta) for term in side.required])
            wished += [Wish(_related(relation, w.pod_affinity_term, meta), w.weight) for w in side.preferred]
    for constraint in spec.topology_spread_constraints:
        term = _spread(constraint, meta, spec, alternatives)
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            wished.append(Wish(term, 0))
        else:
            required.append(term)
    heard = tuple(replace(wish, term=_shared(wish.term)) for wish in wished)
    return Terms(tuple(map(_shared, dict.fromkeys(required))), heard)


@lru_cache(maxsize=4096)
def _shared(term: Term) -> Term:
    """One object for all equal terms: much is remembered by them, and looked up faster by an object that is known."""
    return term


def _together(terms: list[Term]) -> list[Term]:
    """Required affinity terms with each other's pods; anti-affinity terms stand for themselves."""
    if len(terms) < 2 or terms[0].relation is not Relation.AFFINITY:
        return terms
    return [replace(term, also=frozenset(other.whom for other in terms) - {term.whom}) for term in terms]


def _related(relation: Relation, term: PodAffinityTerm, meta: ObjectMeta) -> Term:
    query = query_of(term.label_selector)
    if query is not None:
        query = _with_own(query, term.match_label_keys, "In", meta.labels)
        query = _with_own(query, term.mismatch_label_keys, "NotIn", meta.labels)
    named = term.namespaces or (() if term.namespace_selector is not None else (meta.namespace,))
    whom = Whom(frozenset(named), query_of(term.namespace_selector), query)
    return Term(relation, labels.normalise(term.topology_key), whom)


def _with_own(query: Query, keys: Iterable[str], operator: str, own: Labels) -> Query:
    """The query with the pod's own values of some labels; those the pod lacks say nothing."""
    for key in keys:
        if key in own:
            query = query.and_also(key, operator, (own[key],))
    return query


def _spread(
    constraint: TopologySpreadConstraint, meta: ObjectMeta, spec: PodSpec, alternatives: tuple[Requirements, ...]
) -> Term:
    query = query_of(constraint.label_selector)
    if query is not None:
        query = _with_own(query, constraint.match_label_keys, "In", meta.labels)
    # A selector without a single test counts nobody in kube-scheduler, where anywhere else it selects everybody.
    counted = query if query is not None and query.tests else None
    return Term(
        Relation.SPREAD,
        labels.normalise(constraint.topology_key),
        Whom(frozenset((meta.namespace,)), None, counted),
        constraint.max_skew,
        constraint.min_domains or 0,
        NodeFilter(
            alternatives if constraint.node_affinity_policy != "Ignore" else None,
            spec.tolerations if constraint.node_taints_policy == "Honor" else None,
            _keys_beside(constraint, spec),
        ),
    )


def _keys_beside(constraint: TopologySpreadConstraint, spec: PodSpec) -> frozenset[str]:
    if constraint.when_unsatisfiable == "ScheduleAnyway":
        return frozenset((labels.normalise(constraint.topology_key),))
    required = (c for c in spec.topology_spread_constraints if c.when_unsatisfiable != "ScheduleAnyway")
    return frozenset(labels.normalise(other.topology_key) for other in required)
