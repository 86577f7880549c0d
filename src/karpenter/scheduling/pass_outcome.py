"""What scheduling passes come to, and how their outcomes are compared: pods left out first, then the packing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.scheduling.demand import Packing
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.pass_result import DemandCaps, DemandKey, PassResult
from karpenter.scheduling.topology.topology import DomainCombination
from karpenter.state.snapshot import pod_priority

#: Pods that fill so many nodes in every domain save next to nothing in fewer domains.
MIN_NODES_IN_DOMAIN = 16


@dataclass(frozen=True, eq=False)
class PassPlan:
    """An order of groups and the caps to begin with. ``caps_in_total``: limits cap all that a group asks for, not each demand."""

    groups: tuple[EquivalenceGroup, ...]
    caps: DemandCaps = field(default_factory=DemandCaps)
    caps_in_total: bool = False


@dataclass(frozen=True, eq=False)
class PassOutcome:
    """Where all pods of a plan went: the result of its last pass and the packing of the demand for new nodes."""

    pass_plan: PassPlan
    result: PassResult
    packing: Packing
    caps: DemandCaps

    @cached_property
    def unschedulable_by_group(self) -> Counter[EquivalenceGroup]:
        """How many pods of each group found no place."""
        group_counts: Counter[EquivalenceGroup] = Counter()
        for failed in self.result.unschedulable:
            group_counts[failed.group] += len(failed.pods)
        return group_counts

    @cached_property
    def unschedulable_by_priority(self) -> Counter[int]:
        """How many pods of each priority found no place."""
        return Counter(pod_priority(pod) for failed in self.result.unschedulable for pod in failed.pods)

    @cached_property
    def served_by_demand(self) -> Counter[DemandKey]:
        """Number of pods placed on new nodes, by demand."""
        left = self.packing.unpacked
        return Counter(
            {keyed.key: len(keyed.demand.pods) - left.get(at, 0) for at, keyed in enumerate(self.result.demands)}
        )


def may_be_cheaper_in_fewer_domains(outcome: PassOutcome) -> bool:
    """Whether the same pods in fewer domains could cost clearly less.

    Not where their domains cost the same and each has many nodes: at most one node of a domain is partly empty for its sake.
    """
    combinations = {keyed.combination for keyed in outcome.result.demands}
    many_nodes = len(outcome.packing.claims) >= MIN_NODES_IN_DOMAIN * len(combinations)
    return len(combinations) > 1 and (outcome.result.domain_prices_differ or not many_nodes)


def has_many_nodes_in_domains(outcome: PassOutcome) -> bool:
    """Whether there are new nodes in several domains, and many in each: which of them gets a few more matters little then."""
    nodes: Counter[DomainCombination] = Counter()
    for claim in outcome.packing.claims:
        nodes.update({outcome.result.demands[position].combination for position, _ in claim.contents})
    return _are_many_in_each_domain(nodes)


def may_have_many_nodes_in_domains(result: PassResult) -> bool:
    """Whether nodes for the result may be as many: there are enough pods in each domain."""
    pods: Counter[DomainCombination] = Counter()
    for keyed_demand in result.demands:
        pods[keyed_demand.combination] += len(keyed_demand.demand.pods)
    return _are_many_in_each_domain(pods)


def _are_many_in_each_domain(counts: Counter[DomainCombination]) -> bool:
    del counts[()]  # of pods that may be anywhere
    return len(counts) > 1 and min(counts.values()) >= MIN_NODES_IN_DOMAIN


def outcome_order(outcome: PassOutcome) -> tuple[list[tuple[int, int]], tuple[int, int, float, int]]:
    """Pods without a place by priority, then what the packing is worth: smaller is better."""
    return sorted(outcome.unschedulable_by_priority.items(), reverse=True), outcome.packing.sort_key


def unpacked_by_priority(packing: Packing, result: PassResult) -> list[tuple[int, int]]:
    """Pods a packing leaves out, by priority: smaller is better."""
    if not packing.unpacked:
        return []
    counts = Counter(
        pod_priority(pod) for at, count in packing.unpacked.items() for pod in result.demands[at].last_pods(count)
    )
    return sorted(counts.items(), reverse=True)


def places_lost(outcome: PassOutcome) -> tuple[int, int]:
    """Pods without a place, then pods in a lighter pool than could take them: smaller is better."""
    return outcome.unschedulable_by_group.total(), outcome.packing.pods_below_weight


def bypassed_priority(outcome: PassOutcome) -> int | None:
    """The highest priority of which pods were left out while pods of a lower one got a place; None without such pods."""
    left_out = outcome.unschedulable_by_priority
    all_pods = Counter(pod_priority(pod) for group in outcome.pass_plan.groups for pod in group.pods)
    placed = [level for level, count in all_pods.items() if count > left_out[level]]
    return max((level for level in left_out if any(lower < level for lower in placed)), default=None)


def fewer_important_left(outcome: PassOutcome, best: PassOutcome, lowest: int) -> bool:
    """Whether an outcome leaves out fewer pods of this priority or a higher one than the best so far, the highest first."""
    counted = (outcome.unschedulable_by_priority, best.unschedulable_by_priority)
    levels = sorted({level for counts in counted for level in counts if level >= lowest}, reverse=True)
    fewer, most = ([counts[level] for level in levels] for counts in counted)
    return fewer < most
