"""From all that a pod prefers to the least it requires: the relaxation steps tried until something fits (SCH §9.2).

The order is Karpenter's (preferred pod affinity, preferred anti-affinity and preferred node affinity, each from the
heaviest on, then soft spread, then tolerating soft taints) with one difference, asked for by SCH-250's Beyond: every OR-term
of the required affinity is tried at every level, so that a preference never costs a term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from weakref import WeakKeyDictionary

from karpenter.api.scheduling_constraints import Toleration
from karpenter.model.requirements import Op, Requirement, Requirements
from karpenter.scheduling.offerings.nodepool_templates import TOLERATE_PREFER_NO_SCHEDULE
from karpenter.scheduling.pod_eligibility import usable_terms
from karpenter.scheduling.scheduling_options import PreferencePolicy
from karpenter.state.pod_signature import PodSignature
from karpenter.state.topology_terms import PreferredTopologyTerm, TopologyTerm, TopologyType


@dataclass(frozen=True)
class RelaxationStep:
    """What nodes must offer at this step, which taints are tolerated, and which terms about other pods are kept.

    ``hard_requirements`` is the part of ``requirements`` that is no preference.
    """

    requirements: Requirements
    tolerations: tuple[Toleration, ...]
    hard_requirements: Requirements = field(default_factory=Requirements)
    terms: tuple[TopologyTerm, ...] = ()


@dataclass(frozen=True)
class Preferences:
    """The relaxation steps of pod groups. ``soft_taints``: some node or pool has a PreferNoSchedule taint (SCH-123).

    Steps without places are remembered as long as their signature is in use; volumes of one host each make too many.
    """

    policy: PreferencePolicy
    soft_taints: bool
    well_known: frozenset[str]
    _steps: WeakKeyDictionary[PodSignature, tuple[RelaxationStep, ...]] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def preferred_terms(self, signature: PodSignature) -> tuple[PreferredTopologyTerm, ...]:
        """The preferences about other pods that are considered at all (SCH-252)."""
        return signature.topology_terms.preferred if self.policy is PreferencePolicy.RESPECT else ()

    def relaxation_steps(
        self, signature: PodSignature, places: tuple[Requirements, ...] = ()
    ) -> tuple[RelaxationStep, ...]:
        """The steps of a pod group in the order they are tried (SCH-440). ``places``: where its volumes are; one must hold.

        Those bind the node only; they are no part of what the pods themselves insist on (SCH-442).
        """
        if places:
            return self._new_steps(signature, places)
        steps = self._steps.get(signature)
        if steps is None:
            steps = self._steps[signature] = self._new_steps(signature, places)
        return steps

    def _new_steps(self, signature: PodSignature, places: tuple[Requirements, ...]) -> tuple[RelaxationStep, ...]:
        own = signature.spec.tolerations
        alternatives = _usable_alternatives(signature, self.well_known)
        preferences = signature.preferred_node_affinity if self.policy is PreferencePolicy.RESPECT else ()
        required = signature.topology_terms.required
        levels = [
            (preference, (*required, *terms))
            for preference, terms in _relaxation_levels(preferences, self.preferred_terms(signature))
        ]
        where = [(alternative, place) for alternative in alternatives for place in _merged_locations(places)]
        strict = tuple(
            RelaxationStep(alternative.intersect(preference).intersect(place), own, alternative, terms)
            for preference, terms in levels
            for alternative, place in where
        )
        if not self.soft_taints or TOLERATE_PREFER_NO_SCHEDULE in own:
            return strict
        tolerant = (*own, TOLERATE_PREFER_NO_SCHEDULE)
        return (
            *strict,
            *(
                RelaxationStep(alternative.intersect(place), tolerant, alternative, required)
                for alternative, place in where
            ),
        )


def _merged_locations(places: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    """The places as few alternatives: values of one and the same label are one, so that price may choose (SCH-291 Beyond)."""
    if not places:
        return (Requirements(),)
    keys = {tuple(place) for place in places}
    requirements = [requirement for place in places for requirement in place.values()]
    if (
        len(keys) > 1
        or len(requirements) != len(places)
        or any(requirement.operator is not Op.IN for requirement in requirements)
    ):
        return places
    together = frozenset(value for requirement in requirements for value in requirement.values)
    return (Requirements((Requirement(requirements[0].key, False, together),)),)


def _usable_alternatives(signature: PodSignature, well_known: frozenset[str]) -> list[Requirements]:
    """The alternatives whose affinity term may be tried."""
    tried = usable_terms(signature.spec, well_known)
    return list(compress(signature.node_alternatives, tried)) if tried else list(signature.node_alternatives)


def _relaxation_levels(
    preferences: Sequence[Requirements], preferred: Sequence[PreferredTopologyTerm]
) -> Iterator[tuple[Requirements, tuple[TopologyTerm, ...]]]:
    """The preferences still held at each step of relaxation (SCH-250 b to e): one node preference, and terms about other pods."""
    affinity = _by_weight(
        preference for preference in preferred if preference.term.topology_type is TopologyType.AFFINITY
    )
    anti_affinity = _by_weight(
        preference for preference in preferred if preference.term.topology_type is TopologyType.ANTI_AFFINITY
    )
    spread = [preference.term for preference in preferred if preference.term.topology_type is TopologyType.SPREAD]
    nodes = [*preferences, Requirements()]
    while True:
        yield nodes[0], (*affinity, *anti_affinity, *spread)
        if affinity:
            affinity = affinity[1:]
        elif anti_affinity:
            anti_affinity = anti_affinity[1:]
        elif len(nodes) > 1:
            nodes = nodes[1:]
        elif spread:
            spread = [spread[-1], *spread[1:-1]] if len(spread) > 1 else []
        else:
            return


def _by_weight(preferred: Iterable[PreferredTopologyTerm]) -> list[TopologyTerm]:
    return [preference.term for preference in sorted(preferred, key=lambda preference: -preference.weight)]
