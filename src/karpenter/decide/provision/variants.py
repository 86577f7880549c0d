"""From all a pod wishes to the least it needs: the ladder a class climbs down until something fits (SCH §9.2).

The order is the reference's (preferred pod affinity, preferred anti-affinity and preferred node affinity, each from the
heaviest on, then soft spread, then tolerating soft taints) with one difference, asked for by SCH-250's Beyond: every OR-term
of the required affinity is tried at every level, so that a wish never costs a term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress

from karpenter.api.core import Toleration
from karpenter.cluster.classes import PodClass
from karpenter.cluster.terms import Relation, Term, Wish
from karpenter.decide.provision.eligible import usable_terms
from karpenter.decide.provision.templates import TOLERATE_PREFERENCES
from karpenter.model.requirements import Op, Requirement, Requirements


class PreferencePolicy(StrEnum):
    """Whether preferences are honoured while they can be (OPS-328)."""

    RESPECT = "Respect"
    IGNORE = "Ignore"


@dataclass(frozen=True)
class Variant:
    """One step of the ladder: what nodes must offer, which taints are tolerated, and which terms about other pods are kept.

    ``firm`` is the part of ``requirements`` that is no preference.
    """

    requirements: Requirements
    tolerations: tuple[Toleration, ...]
    firm: Requirements = field(default_factory=Requirements)
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """How classes climb down. ``soft_taints``: some node or pool has a PreferNoSchedule taint (SCH-123)."""

    policy: PreferencePolicy
    soft_taints: bool
    well_known: frozenset[str]

    def wished(self, pod_class: PodClass) -> tuple[Wish, ...]:
        """The wishes about other pods that are heard at all (SCH-252)."""
        return pod_class.terms.wished if self.policy is PreferencePolicy.RESPECT else ()

    def of(self, pod_class: PodClass, places: tuple[Requirements, ...] = ()) -> tuple[Variant, ...]:
        """Variants of a class in the order they are tried. ``places``: where its volumes are, one of which must hold (SCH-440).

        Those bind the node only; they are no part of what the pods themselves insist on (SCH-442).
        """
        own = pod_class.spec.tolerations
        alternatives = _usable(pod_class, self.well_known)
        preferences = pod_class.preferences if self.policy is PreferencePolicy.RESPECT else ()
        required = pod_class.terms.required
        levels = [
            (preference, (*required, *terms)) for preference, terms in _levels(preferences, self.wished(pod_class))
        ]
        where = [(alternative, place) for alternative in alternatives for place in _merged(places)]
        strict = tuple(
            Variant(alternative.intersect(preference).intersect(place), own, alternative, terms)
            for preference, terms in levels
            for alternative, place in where
        )
        if not self.soft_taints or TOLERATE_PREFERENCES in own:
            return strict
        tolerant = (*own, TOLERATE_PREFERENCES)
        return (
            *strict,
            *(Variant(alternative.intersect(place), tolerant, alternative, required) for alternative, place in where),
        )


def _merged(places: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    """The places as few alternatives: values of one and the same label are one, so that price may choose (SCH-291 Beyond)."""
    if not places:
        return (Requirements(),)
    keys = {tuple(place) for place in places}
    items = [item for place in places for item in place.values()]
    if len(keys) > 1 or len(items) != len(places) or any(item.operator is not Op.IN for item in items):
        return places
    together = frozenset(value for item in items for value in item.values)
    return (Requirements((Requirement(items[0].key, False, together),)),)


def _usable(pod_class: PodClass, well_known: frozenset[str]) -> list[Requirements]:
    """The alternatives whose affinity term may be tried."""
    tried = usable_terms(pod_class.spec, well_known)
    return list(compress(pod_class.alternatives, tried)) if tried else list(pod_class.alternatives)


def _levels(
    preferences: Sequence[Requirements], wished: Sequence[Wish]
) -> Iterator[tuple[Requirements, tuple[Term, ...]]]:
    """The wishes still held at each step of relaxation (SCH-250 b to e): one node preference, and terms about other pods."""
    near = _falling(wish for wish in wished if wish.term.relation is Relation.AFFINITY)
    apart = _falling(wish for wish in wished if wish.term.relation is Relation.ANTI_AFFINITY)
    spread = [wish.term for wish in wished if wish.term.relation is Relation.SPREAD]
    nodes = [*preferences, Requirements()]
    while True:
        yield nodes[0], (*near, *apart, *spread)
        if near:
            near = near[1:]
        elif apart:
            apart = apart[1:]
        elif len(nodes) > 1:
            nodes = nodes[1:]
        elif spread:
            spread = [spread[-1], *spread[1:-1]] if len(spread) > 1 else []
        else:
            return


def _falling(wishes: Iterable[Wish]) -> list[Term]:
    return [wish.term for wish in sorted(wishes, key=lambda wish: -wish.weight)]
