"""Caps on what pods may ask of new nodes, for another scheduling pass after limits of NodePools left some of them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.pass_outcome import PassOutcome, PassPlan
from karpenter.scheduling.pass_result import DemandCaps, KeyedDemand, PassResult


def with_demand_caps(caps: DemandCaps, left: Sequence[tuple[KeyedDemand, int]], closing: bool) -> DemandCaps:
    """With a cap wherever pods were left out: on what was served there, or on everything."""
    places = {keyed_demand.key: 0 if closing else len(keyed_demand.demand.pods) - count for keyed_demand, count in left}
    return replace(caps, per_demand={**caps.per_demand, **places})


def with_step_caps(
    caps: DemandCaps, result: PassResult, left: Sequence[tuple[KeyedDemand, int]], closing: bool
) -> DemandCaps:
    """With a cap on what group that were left out may ask for altogether at that step."""
    asked: Counter[tuple[EquivalenceGroup, int]] = Counter()
    for keyed_demand in result.demands:
        asked[keyed_demand.group, keyed_demand.step_number] += len(keyed_demand.demand.pods)
    for keyed_demand, count in left:
        asked[keyed_demand.group, keyed_demand.step_number] -= count
    places = [(keyed_demand.group, keyed_demand.step_number) for keyed_demand, _ in left]
    totals = {place: 0 if closing else asked[place] for place in places}
    return replace(caps, per_step={**caps.per_step, **totals})


def plans_with_other_caps(first: PassOutcome) -> Iterator[PassPlan]:
    """Other caps. One may have been set for the sake of pods that later gave way themselves: those are lifted once."""
    groups, caps = first.pass_plan.groups, first.caps
    lasting = {place: cap for place, cap in caps.per_demand.items() if place[0] not in first.unschedulable_by_group}
    if len(lasting) < len(caps.per_demand):
        yield PassPlan(groups, DemandCaps(lasting))
    if caps:
        yield PassPlan(groups, caps_in_total=True)


def closed_step_caps(groups: Iterable[EquivalenceGroup]) -> dict[tuple[EquivalenceGroup, int], int]:
    """New nodes for none of them; they may still come to existing nodes."""
    return {(group, step): 0 for group in groups for step in range(len(group.relaxation_steps))}
