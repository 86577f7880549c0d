"""The constraints between pods that are in play in one decision, and what each kin of pods has to do with them (SCH §19).

Equal terms of different classes are one `Constraint`, so that they count together. A kin's `Company` says which constraints it
states itself and which mean it: the former decide where it may go, the latter have to know where it went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from karpenter.api.core import Pod, Taint
from karpenter.cluster.classes import PodClass
from karpenter.cluster.faces import Counts, Face, face_of
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.cluster.terms import NodeFilter, Relation, Term
from karpenter.model import labels, taints
from karpenter.model.requirements import Op, Requirements, compatible

_STRICT: frozenset[str] = frozenset()


class Scene:
    """The bound pods as constraints see them, less those that are about to move (SCH-487)."""

    def __init__(self, snapshot: Snapshot, moving: Iterable[tuple[PodClass, Iterable[Pod]]]) -> None:
        self._views = snapshot.nodes
        self._nodes = {view.node.metadata.name: view for view in snapshot.nodes if view.node is not None}
        self._namespaces = snapshot.namespaces
        self._away: dict[tuple[Face | Term, str], int] = {}
        for pod_class, pods in moving:
            for pod in pods:
                self._leaves(face_of(pod), pod.spec.node_name)
                for term in pod_class.terms.repelling:
                    self._leaves(term, pod.spec.node_name)
        self._census = snapshot.census
        self._by_namespace: dict[str, list[Face]] = {}
        for face in snapshot.census:
            self._by_namespace.setdefault(face.namespace, []).append(face)
        self._repelling: dict[Term, list[Counts]] = {}
        for terms, counts in snapshot.repelling.items():
            for term in terms:
                self._repelling.setdefault(term, []).append(counts)

    def _leaves(self, what: Face | Term, node: str) -> None:
        self._away[what, node] = self._away.get((what, node), 0) + 1

    @property
    def repelling(self) -> Iterable[Term]:
        """Terms by which bound pods keep others away."""
        return self._repelling

    def means(self, term: Term, face: Face) -> bool:
        """Whether a term is about pods that look so."""
        return term.means(face, self._namespaces)

    def numbers(self, term: Term) -> dict[str, int]:
        """How many pods the term means in each domain, by node name where every host is one (SCH-500)."""
        found: dict[str, int] = {}
        for face in self._faces(term):
            if self.means(term, face):
                self._gather(term, face, self._census[face], found)
        return found

    def _faces(self, term: Term) -> Iterable[Face]:
        if term.whom.of_namespaces is not None:
            return self._census
        return [face for namespace in sorted(term.whom.namespaces) for face in self._by_namespace.get(namespace, ())]

    def owners(self, term: Term) -> dict[str, int]:
        """How many bound pods repel by the term from each domain (SCH-485)."""
        found: dict[str, int] = {}
        for counts in self._repelling.get(term, ()):
            self._gather(term, term, counts, found)
        return found

    def _gather(self, term: Term, what: Face | Term, counts: Counts, found: dict[str, int]) -> None:
        for name, number in counts.items():
            view = self._nodes.get(name)
            domain = domain_of(term.key, view) if view is not None else ""
            number -= self._away.get((what, name), 0)
            if view is not None and domain and number > 0 and counts_on(term.counted, view):
                found[domain] = found.get(domain, 0) + number

    def values(self, key: str, counted: NodeFilter | None) -> frozenset[str]:
        """Values a label has on machines whose pods count, or is sure to get on those that are on their way."""
        there = (view for view in self._views if view.node is not None or not view.leaving)
        return frozenset(filter(None, (domain_of(key, view) for view in there if counts_on(counted, view))))


def domain_of(key: str, view: NodeView) -> str:
    """The domain a machine is of: hosts are called by their Node's name. Empty where it has none, or none that is settled."""
    if key == labels.HOSTNAME:
        return view.node.metadata.name if view.node is not None else view.name
    held = view.offers.get(key)
    return next(iter(held.values)) if held is not None and held.operator is Op.IN and len(held.values) == 1 else ""


def counts_on(counted: NodeFilter | None, view: NodeView) -> bool:
    """Whether a constraint counts the pods of a machine, by its labels and the taints that will stay (SCH-482)."""
    if counted is None:
        return True
    if any(not domain_of(key, view) for key in counted.keys) or not tolerated(counted, view.taints):
        return False
    if counted.alternatives is None or any(not alternative for alternative in counted.alternatives):
        return True
    return any(compatible(view.offers, alternative, _STRICT) for alternative in counted.alternatives)


def tolerated(counted: NodeFilter, own_taints: Iterable[Taint]) -> bool:
    """Whether the taints of a machine leave its pods counted; what merely asks to stay away plays no part."""
    if counted.tolerations is None:
        return True
    hard = (taint for taint in own_taints if taint.effect != "PreferNoSchedule")
    return not taints.untolerated(hard, counted.tolerations)


def counts_to_come(
    counted: NodeFilter | None, offered: Requirements, own_taints: Iterable[Taint], has: Callable[[str], object]
) -> bool:
    """Whether a constraint counts the pods of a machine yet to come that offers this (with the allowance, SCH-541 Beyond).

    ``has`` says whether it will have a label.
    """
    if counted is None:
        return True
    if not tolerated(counted, own_taints):
        return False
    if not all(key == labels.HOSTNAME or has(key) for key in counted.keys):
        return False
    return counted.alternatives is None or any(
        compatible(offered, alternative, labels.WELL_KNOWN) for alternative in counted.alternatives
    )


class Constraint:
    """One term in play. Compared by identity; ``required``: some pod cannot do without it."""

    def __init__(self, term: Term, scene: Scene) -> None:
        self.term = term
        self.required = False
        self._scene = scene

    @property
    def key(self) -> str:
        """The topology key."""
        return self.term.key

    @property
    def by_host(self) -> bool:
        """Whether every machine is a domain of its own."""
        return self.term.by_host

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Bound pods it means, by domain."""
        return self._scene.numbers(self.term)

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Bound pods that repel by it, by domain."""
        return self._scene.owners(self.term)


@dataclass(frozen=True, eq=False)
class Company:
    """What a kin has to do with the constraints in play. ``stated`` are its own, by term; ``meant_by`` those that mean it."""

    stated: Mapping[Term, Constraint]
    meant_by: tuple[Constraint, ...]

    def __bool__(self) -> bool:
        return bool(self.stated or self.meant_by)

    def means_itself(self, constraint: Constraint) -> bool:
        """Whether the kin's own pods are among those a constraint means."""
        return constraint in self.meant_by

    @cached_property
    def owned(self) -> frozenset[Constraint]:
        """Anti-affinity it insists on: where these pods are, those meant may not come."""
        return frozenset(c for c in self.stated.values() if c.required and c.term.relation is Relation.ANTI_AFFINITY)


class Companies:
    """The constraints in play and who has to do with them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._constraints: dict[Term, Constraint] = {}
        self._meaning: dict[Face, tuple[Constraint, ...]] = {}
        self._by_namespace: dict[str, list[Constraint]] = {}
        self._anywhere: list[Constraint] = []
        for term in scene.repelling:
            self._enter(term).required = True

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def enter(self, required: Iterable[Term], wished: Iterable[Term]) -> None:
        """Bring the terms of a class into play. All classes do so before anybody is asked about."""
        for term in required:
            self._enter(term).required = True
        for term in wished:
            self._enter(term)

    def _enter(self, term: Term) -> Constraint:
        known = self._constraints.get(term)
        if known is None:
            known = self._constraints[term] = Constraint(term, self._scene)
            if term.whom.of_namespaces is not None:
                self._anywhere.append(known)
            else:
                for namespace in term.whom.namespaces:
                    self._by_namespace.setdefault(namespace, []).append(known)
        return known

    def meaning(self, face: Face) -> tuple[Constraint, ...]:
        """The constraints that mean pods that look so."""
        known = self._meaning.get(face)
        if known is None:
            nearby = (*self._by_namespace.get(face.namespace, ()), *self._anywhere)
            known = self._meaning[face] = tuple(c for c in nearby if self._scene.means(c.term, face))
        return known

    def of(self, terms: Iterable[Term], face: Face) -> Company:
        """The company of pods that state these terms and look so."""
        return Company({term: self._constraints[term] for term in terms}, self.meaning(face))
