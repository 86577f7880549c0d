"""Bound pods that keep others away: their required anti-affinity, asked once per set of labels.

Replicas repel alike and are repelled alike. So equal terms are one term with all the nodes it closes, and an answer holds for
every pod of the namespace with the same values of the labels that terms read at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from karpenter.api.core import Pod, PodAffinityTerm
from karpenter.api.meta import LabelSelector
from karpenter.decide.reasons import Category, Reason
from karpenter.model import labels, selectors

#: Namespace, and the labels that matter with their values.
_Face = tuple[str, frozenset[tuple[str, str]]]
#: Nodes that are closed, and reasons that bar a pod altogether.
Answer = tuple[frozenset[str], tuple[Reason, ...]]


@dataclass
class _Term:
    """Whom a term keeps away: pods of these namespaces (None: of all) that the selector matches, from these nodes."""

    namespaces: frozenset[str] | None
    selector: LabelSelector | None
    key: str
    owner: str
    nodes: set[str] = field(default_factory=set)

    def selects(self, pod: Pod) -> bool:
        meta = pod.metadata
        inside = self.namespaces is None or meta.namespace in self.namespaces
        return inside and selectors.matches(self.selector, meta.labels)


class Repelling:
    """The required anti-affinity of bound pods, each given with the name of its node."""

    def __init__(self, bound: Iterable[tuple[Pod, str]]) -> None:
        terms: dict[object, _Term] = {}
        for pod, node in bound:
            affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
            for term in affinity.required if affinity else ():
                namespaces = _namespaces(term, pod)
                key = (namespaces, repr(term.label_selector), term.topology_key)
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                known = terms.setdefault(key, _Term(namespaces, term.label_selector, term.topology_key, name))
                known.nodes.add(node)
        self._terms = tuple(terms.values())
        self._read = frozenset(key for term in self._terms for key in _keys(term.selector))
        self._answers: dict[_Face, Answer] = {}

    def __bool__(self) -> bool:
        return bool(self._terms)

    def against(self, pod: Pod) -> Answer:
        """Nodes the pod may not join, and reasons that bar it altogether.

        A term over host names closes one node. A wider term would close whole domains, which topology support will decide; until
        then the pod waits with that reason rather than being sent where the scheduler refuses it.
        """
        own = pod.metadata.labels
        face = (pod.metadata.namespace, frozenset((key, own[key]) for key in self._read if key in own))
        known = self._answers.get(face)
        if known is None:
            known = self._answers[face] = self._answer(pod)
        return known

    def _answer(self, pod: Pod) -> Answer:
        closed: set[str] = set()
        reasons: list[Reason] = []
        for term in self._terms:
            if term.selects(pod):
                if term.key == labels.HOSTNAME:
                    closed |= term.nodes
                else:
                    text = f"anti-affinity of pod {term.owner} by {term.key} is not supported yet"
                    reasons.append(Reason(Category.TOPOLOGY, detail=text))
        return frozenset(closed), tuple(reasons[:1])


def _namespaces(term: PodAffinityTerm, owner: Pod) -> frozenset[str] | None:
    """Namespaces a term is about. The labels of namespaces are not watched yet: a selector counts as matching every one."""
    if term.namespace_selector is not None:
        return None
    return frozenset(term.namespaces or (owner.metadata.namespace,))


def _keys(selector: LabelSelector | None) -> Iterable[str]:
    if selector is None:
        return ()
    return (*selector.match_labels, *(expression.key for expression in selector.match_expressions))
