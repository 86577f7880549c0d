"""What one pass has placed so far: pods on existing nodes, demand for new nodes, and the topology counts that follow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from karpenter.api.core import Pod
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, GroupStep
from karpenter.scheduling.existing_nodes import ExistingNode, NodeAllocation
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.pass_result import DemandCaps, DemandKey, DomainOrder, KeyedDemand, NodePlacement
from karpenter.scheduling.topology.domain_options import OptionGroup
from karpenter.scheduling.topology.host_limits import HostLimits, with_exposure_limit
from karpenter.scheduling.topology.topology import DomainCombination, Topology, UnmetAffinity, combination_order
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import TopologyGroup


class PassState:
    """The placements of one pass. ``caps`` bound how many pods may ask for new nodes; ``domain_order`` says where first."""

    def __init__(self, domains: TopologyDomains, caps: DemandCaps, domain_order: DomainOrder) -> None:
        self.domain_order = domain_order
        self.topology = Topology(domains)
        self.unmet_affinity = UnmetAffinity(self.topology)
        self._caps = caps
        self._has_caps = bool(caps)
        self._allocations: dict[ExistingNode, NodeAllocation] = {}
        self._requested: dict[DemandKey, list[Pod]] = {}
        self._requested_by_step: defaultdict[tuple[EquivalenceGroup, int], int] = defaultdict(int)
        #: How many pods ask for new nodes in each domain, by topology key and value.
        self._requested_in: Counter[tuple[str, str | None]] = Counter()
        #: Domains for which new nodes are requested, by topology key.
        self._requested_domains: set[tuple[tuple[str, str | None], ...]] = set()
        self._options: dict[DemandKey, tuple[tuple[LaunchOption, ...], HostLimits | None]] = {}
        #: By topology group by host: how many pods it selects ask for new nodes, and in which domains, by topology key.
        self._requested_by_group: defaultdict[TopologyGroup, int] = defaultdict(int)
        #: Whether some pod had a choice of domains that do not cost the same.
        self.domain_prices_differ = False
        self._domains_by_group: defaultdict[TopologyGroup, set[tuple[tuple[str, str | None], ...]]] = defaultdict(set)

    # -- existing nodes -----------------------------------------------------------------------------------------------------

    def count_fitting(self, step: GroupStep, node: ExistingNode, pods: Sequence[Pod]) -> int:
        """How many of the leading pods fit on a node beside those that this pass has placed there."""
        allocation = self._allocations.get(node)
        if allocation is None:
            allocation = self._allocations[node] = NodeAllocation(node)
        return allocation.count_fitting(step.fit_request, pods, self.unmet_affinity)

    def fill_node(self, step: GroupStep, node: ExistingNode, pods: list[Pod]) -> None:
        """Place as many pods as fit from the front of the list, and remove them from it."""
        count = self.count_fitting(step, node, pods) if pods else 0
        if count:
            self.place_on_node(step, node, pods, count)

    def place_on_node(self, step: GroupStep, node: ExistingNode, pods: list[Pod], count: int) -> None:
        """Place the first pods of the list on a node that has room for them."""
        self._allocations[node].add_pods(step.fit_request, pods[:count])
        del pods[:count]
        self.topology.count_planned(step.group.membership, count)

    def placements(self) -> Iterator[NodePlacement]:
        """What this pass placed on existing nodes."""
        for node, allocation in self._allocations.items():
            if allocation.pods:
                yield NodePlacement(node, tuple(allocation.pods), allocation.remaining)

    # -- new nodes ------------------------------------------------------------------------------------------------------------

    def requested_in(self, step: GroupStep, combination: DomainCombination) -> int:
        """How many pods ask for new nodes in the domains of a combination so far, where domains are balanced; else 0."""
        if self.domain_order is not DomainOrder.BALANCED:
            return 0
        return sum(self._requested_in[domain] for domain in _domains_by_key(step, combination))

    def request_nodes(self, step: GroupStep, option_group: OptionGroup, pods: list[Pod], wanted: int) -> int:
        """Request new nodes for so many pods from the front of the list, as far as allowed; for how many it was."""
        count = wanted if self.is_unlimited(step) else min(wanted, self.requestable_count(step, option_group))
        if count:
            key = (step.group, step.step_number, option_group.combination, option_group.number)
            self._requested.setdefault(key, []).extend(pods[:count])
            self._requested_by_step[step.group, step.step_number] += count
            self._options[key] = (option_group.options, step.host_limits)
            del pods[:count]
            domains = _domains_by_key(step, option_group.combination)
            self._requested_domains.add(domains)
            if self.domain_order is DomainOrder.BALANCED:
                self._requested_in.update(dict.fromkeys(domains, count))
            self.topology.count_planned(step.group.membership, count)
            if step.host_limits is not None and step.host_limits.counted_by:
                self._count_requested(step.host_limits.counted_by, domains, count)
        return count

    def is_unlimited(self, step: GroupStep) -> bool:
        """Whether new nodes may be requested for all pods of the group, wherever some are sold."""
        return not self._has_caps and (step.host_limits is None or not step.host_limits.affinity)

    def is_requested(self, step: GroupStep, combination: DomainCombination) -> bool:
        """Whether new nodes of the combination are requested already."""
        return _domains_by_key(step, combination) in self._requested_domains

    def _count_requested(
        self, counted_by: Iterable[TopologyGroup], domains: tuple[tuple[str, str | None], ...], count: int
    ) -> None:
        for topology_group in counted_by:
            self._requested_by_group[topology_group] += count
            self._domains_by_group[topology_group].add(domains)

    def requestable_count(self, step: GroupStep, option_group: OptionGroup) -> int:
        """For how many more pods new nodes may be requested there."""
        for topology_group, itself in step.host_limits.affinity if step.host_limits is not None else ():
            starts = itself and topology_group in self.unmet_affinity
            if not starts and not self._may_share_node(topology_group, step, option_group.combination):
                return 0
        if not self._caps:
            return len(step.group.pods)
        key = (step.group, step.step_number, option_group.combination, option_group.number)
        count = self._caps.per_demand.get(key, len(step.group.pods)) - len(self._requested.get(key, ()))
        step_cap = self._caps.per_step.get((step.group, step.step_number))
        if step_cap is not None:
            count = min(count, step_cap - self._requested_by_step[step.group, step.step_number])
        return max(0, count)

    def _may_share_node(self, topology_group: TopologyGroup, step: GroupStep, combination: DomainCombination) -> bool:
        """Whether a new node of this combination may also get pods that the topology group selects."""
        own = dict(_domains_by_key(step, combination))
        return any(
            all(own.get(key, value) == value for key, value in domains)
            for domains in self._domains_by_group[topology_group]
        )

    def demands(self, groups: Sequence[EquivalenceGroup]) -> Iterator[KeyedDemand]:
        """The demand for new nodes, in the order of the groups."""
        order = {group: number for number, group in enumerate(groups)}
        keys = sorted(self._requested, key=lambda key: (order[key[0]], key[1], combination_order(key[2]), key[3]))
        for key in keys:
            options, host_limits = self._options[key]
            host_limits = with_exposure_limit(host_limits, key[0].exposed_workload)
            yield KeyedDemand(Demand(key[0].signature, tuple(self._requested[key]), options, host_limits), key)

    def satisfied_affinity(self) -> frozenset[TopologyGroup]:
        """Affinity by host, stated by pods that need new nodes, that a pod on an existing node satisfies."""
        stated = {group for _, limits in self._options.values() if limits is not None for group, _ in limits.affinity}
        return frozenset(
            group
            for group in stated
            if group.pod_counts or self.topology.planned_count(group) > self._requested_by_group[group]
        )


def _domains_by_key(step: GroupStep, combination: DomainCombination) -> tuple[tuple[str, str | None], ...]:
    """The values of a combination with their topology keys."""
    constraints = step.domain_constraints
    return tuple(zip(constraints.keys, combination, strict=True)) if constraints is not None else ()
