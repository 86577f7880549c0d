"""From all a pod wishes to the least it needs: the ladder a class climbs down until something fits (SCH §9.2).

The order is the reference's (preferred node affinity from the heaviest on, then tolerating soft taints) with one difference,
asked for by SCH-250's Beyond: every OR-term of the required affinity is tried at every level, so that a wish never costs a term.
Preferences nothing here can honour yet (preferred pod affinity, ScheduleAnyway) are dropped before the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress

from karpenter.api.core import Toleration
from karpenter.cluster.classes import PodClass
from karpenter.decide.provision.eligible import usable_terms
from karpenter.decide.provision.templates import TOLERATE_PREFERENCES
from karpenter.model.requirements import Requirements


class PreferencePolicy(StrEnum):
    """Whether preferences are honoured while they can be (OPS-328)."""

    RESPECT = "Respect"
    IGNORE = "Ignore"


@dataclass(frozen=True)
class Variant:
    """One step of the ladder: what nodes must offer and which taints are tolerated."""

    requirements: Requirements
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True)
class Ladder:
    """How classes climb down. ``soft_taints``: some node or pool has a PreferNoSchedule taint (SCH-123)."""

    policy: PreferencePolicy
    soft_taints: bool
    well_known: frozenset[str]

    def of(self, pod_class: PodClass) -> tuple[Variant, ...]:
        """Variants of a class in the order they are tried."""
        own = pod_class.spec.tolerations
        alternatives = _usable(pod_class, self.well_known)
        preferences = pod_class.preferences if self.policy is PreferencePolicy.RESPECT else ()
        strict = tuple(Variant(requirements, own) for requirements in _levels(alternatives, preferences))
        if not self.soft_taints or TOLERATE_PREFERENCES in own:
            return strict
        tolerant = (*own, TOLERATE_PREFERENCES)
        return (*strict, *(Variant(requirements, tolerant) for requirements in alternatives))


def _usable(pod_class: PodClass, well_known: frozenset[str]) -> list[Requirements]:
    """The alternatives whose affinity term may be tried."""
    tried = usable_terms(pod_class.spec, well_known)
    return list(compress(pod_class.alternatives, tried)) if tried else list(pod_class.alternatives)


def _levels(alternatives: Sequence[Requirements], preferences: Sequence[Requirements]) -> Iterator[Requirements]:
    for preference in (*preferences, Requirements()):
        for alternative in alternatives:
            yield alternative.intersect(preference)
