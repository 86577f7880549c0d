"""Orders in which a further scheduling pass takes the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from karpenter.scheduling.equivalence_groups import EquivalenceGroup, group_order
from karpenter.scheduling.pass_outcome import PassOutcome, PassPlan
from karpenter.scheduling.pass_result import DemandCaps
from karpenter.state.snapshot import pod_priority
from karpenter.state.topology_terms import TopologyType


def groups_first(
    unschedulable: Mapping[EquivalenceGroup, int], groups: Sequence[EquivalenceGroup]
) -> tuple[EquivalenceGroup, ...]:
    """First the groups to which unschedulable groups have affinity, then the unschedulable groups; virtual pods come last."""
    declared = (c for group in unschedulable for c in group.membership.declared.values())
    wanted = {c for c in declared if c.term.topology_type is TopologyType.AFFINITY}

    def is_wanted(group: EquivalenceGroup) -> bool:
        return any(c in wanted for c in group.membership.selected_by if c.term not in group.membership.declared)

    return tuple(sorted(groups, key=lambda group: (group.virtual, not is_wanted(group), group not in unschedulable)))


def group_last(chosen: EquivalenceGroup, outcome: PassOutcome) -> PassPlan:
    """One group after all others, and those held to what they have."""
    others = tuple(group for group in outcome.pass_plan.groups if group is not chosen)
    places = {place: count for place, count in outcome.served_by_demand.items() if place[0] is not chosen}
    totals = dict.fromkeys(((group, step) for group in others for step in range(len(group.relaxation_steps))), 0)
    for place, count in places.items():
        totals[place[:2]] += count
    return PassPlan((*others, chosen), DemandCaps(places, totals))


def groups_by_priority(groups: Sequence[EquivalenceGroup]) -> tuple[EquivalenceGroup, ...]:
    """Groups of one priority each, the most important first."""
    by_priority = [
        replace(group, pods=tuple(pod for pod in group.pods if pod_priority(pod) == level))
        for group in groups
        for level in {pod_priority(pod) for pod in group.pods}
    ]
    return tuple(sorted(by_priority, key=lambda each: (each.virtual, -pod_priority(each.pods[0]), group_order(each))))
