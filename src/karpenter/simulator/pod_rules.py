"""What pods of a scenario ask of other pods: to spread over zones or hosts, to be beside pods of a workload, or apart from them.

    topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone}]
    podAntiAffinity: [{topologyKey: kubernetes.io/hostname}]
    podAffinity: [{topologyKey: topology.kubernetes.io/zone, workload: cache, weight: 50}]

Selectors are the label of a workload of the scenario, by default the one that the rule stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from karpenter.api.karpenter import QUALIFIED_NAME_PATTERN
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.simulator.workload import workload_labels

_TopologyKey = Annotated[str, Meta(min_length=1, max_length=316, pattern=QUALIFIED_NAME_PATTERN)]


class SpreadRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Pods of the workload spread over the domains of a label of nodes."""

    topology_key: _TopologyKey
    max_skew: Annotated[int, Meta(ge=1)] = 1
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"

    def constraint(self, workload: str) -> TopologySpreadConstraint:
        """The constraint of pods of this workload."""
        return TopologySpreadConstraint(
            max_skew=self.max_skew,
            topology_key=self.topology_key,
            when_unsatisfiable=self.when_unsatisfiable,
            label_selector=LabelSelector(match_labels=workload_labels(workload)),
        )


class NeighbourRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Pods beside those of a workload, or apart from them. ``workload`` empty: their own. ``weight`` None: required."""

    topology_key: _TopologyKey
    workload: str = ""
    weight: Annotated[int, Meta(ge=1, le=100)] | None = None

    def term(self, workload: str) -> PodAffinityTerm:
        """The term of pods of this workload."""
        selector = LabelSelector(match_labels=workload_labels(self.workload or workload))
        return PodAffinityTerm(topology_key=self.topology_key, label_selector=selector)


def pod_affinity(workload: str, beside: Sequence[NeighbourRule], apart: Sequence[NeighbourRule]) -> Affinity | None:
    """The affinity of pods of a workload; None without rules."""
    if not beside and not apart:
        return None
    return Affinity(pod_affinity=_terms(workload, beside), pod_anti_affinity=_terms(workload, apart))


def _terms(workload: str, rules: Sequence[NeighbourRule]) -> PodAffinity | None:
    if not rules:
        return None
    return PodAffinity(
        required=tuple(rule.term(workload) for rule in rules if rule.weight is None),
        preferred=tuple(
            WeightedPodAffinityTerm(weight=rule.weight, pod_affinity_term=rule.term(workload))
            for rule in rules
            if rule.weight is not None
        ),
    )
