"""Where everybody goes: one round of the decision, kin by kin (SCH §9, §20).

A kin climbs down its ladder step by step. At each step its pods go to machines that exist, the rest becomes demand for new ones.
Kin that constraints wider than a host have to do with are sent pod by pod to cells, for each pod anew the least crowded that is
allowed; everything else goes in bulk. What is planned is written into the ledger at once, so that those who come later, or wait
for company, see it; who found no place tries again as long as anybody else did (SCH-233).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import Toleration
from karpenter.model.requirements import Requirements
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, GroupStep, StepConstraints, scheduling_order
from karpenter.scheduling.existing_nodes import UNDECIDED, ExistingNode, ExistingNodeIndex, NodeAllocation, NodeSet
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.purchase_options import PurchaseOption, PurchaseOptionIndex
from karpenter.scheduling.pass_result import (
    DemandCaps,
    DemandKey,
    KeyedDemand,
    NodePlacement,
    PassResult,
    PlannedPlacements,
    UnschedulableGroup,
)
from karpenter.scheduling.topology.domain_placement import (
    DomainNodes,
    DomainPlacement,
    OptionGroup,
    allows_combination,
    option_certainty,
)
from karpenter.scheduling.topology.host_limits import HostLimits, HostUsage, with_exposure_limit
from karpenter.scheduling.topology.topology import (
    DomainCombination,
    DomainConstraints,
    Topology,
    UnmetAffinity,
    combination_order,
)
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import (
    CountingCertainty,
    CountingGroups,
    TopologyGroup,
    counting_certainty,
    counting_groups,
)
from karpenter.scheduling.unschedulable_reasons import TopologyConfinement, TopologyUnsatisfiable
from karpenter.state.pod_signature import PodSignature
from karpenter.state.topology_terms import TopologyType

#: Combinations of values looked at for a kin that several topology keys have to do with.
MAX_DOMAIN_COMBINATIONS = 512
#: What options depend on: the class, what it asks and tolerates of nodes, and a value for each of some keys.
_OptionsKey = tuple[PodSignature, Requirements, tuple[Toleration, ...], tuple[str, ...], DomainCombination]


class SchedulingPass:
    """One pass. ``planned``: where an earlier decision placed pods, which stay there if they may."""

    def __init__(
        self,
        existing_nodes: ExistingNodeIndex,
        purchase_options: PurchaseOptionIndex,
        domains: TopologyDomains,
        planned: PlannedPlacements,
        caps: DemandCaps,
    ) -> None:
        self._existing_nodes = existing_nodes
        self._allocations: dict[ExistingNode, NodeAllocation] = {}
        self._purchase_options = purchase_options
        self._domains = domains
        self._planned = planned
        self._caps = caps
        self._topology = Topology(domains)
        self.unmet_affinity = UnmetAffinity(self._topology)
        self._requested: dict[DemandKey, list[Pod]] = {}
        #: How many pods of a kin ask for new machines at a step.
        self._requested_by_step: defaultdict[tuple[EquivalenceGroup, int], int] = defaultdict(int)
        self._options: dict[DemandKey, tuple[tuple[PurchaseOption, ...], HostLimits | None]] = {}
        #: Of each constraint by host, how many pods it means are asked of new machines.
        self._requested_by_group: defaultdict[TopologyGroup, int] = defaultdict(int)
        #: And in which cells.
        self._combinations_of: defaultdict[TopologyGroup, set[tuple[tuple[str, str | None], ...]]] = defaultdict(set)
        self._step_constraints = StepConstraints()
        self._steps: dict[tuple[EquivalenceGroup, int], GroupStep] = {}
        self._combinations_for: dict[
            tuple[DomainConstraints, Requirements, NodeSet], tuple[DomainCombination, ...]
        ] = {}
        self._options_for: dict[_OptionsKey, tuple[PurchaseOption, ...]] = {}
        self._requirements_by_combination: dict[tuple[tuple[str, ...], DomainCombination], Requirements] = {}
        self._option_groups: dict[
            tuple[DomainConstraints, DomainCombination, tuple[PurchaseOption, ...]], tuple[OptionGroup, ...]
        ] = {}
        self._certainties: dict[tuple[TopologyGroup, NodePoolTemplate, Requirements], CountingCertainty] = {}
        self._counting_cache: dict[tuple[DomainConstraints, NodePoolTemplate, Requirements], CountingGroups] = {}

    def run(self, groups: Sequence[EquivalenceGroup]) -> PassResult:
        """Find a place for everybody."""
        waiting = self._keep_planned_placements(groups)
        out: dict[EquivalenceGroup, list[Pod]] = {}
        version = -1
        while waiting and version != self._topology.version:
            version = self._topology.version
            still: dict[EquivalenceGroup, list[Pod]] = {}
            for kin, pods in waiting.items():
                left = self._place_group(kin, pods)
                if left and kin.membership.declared:
                    still[kin] = left
                elif left:
                    out[kin] = left
            waiting = still
        failed = [
            self._unschedulable(kin, left)
            for kin, left in self._place_ignoring_others_spread({**out, **waiting}).items()
        ]
        order = {kin: number for number, kin in enumerate(groups)}
        places = sorted(self._requested, key=lambda p: (order[p[0]], p[1], combination_order(p[2]), p[3]))
        near = {c for _, rules in self._options.values() if rules is not None for c, _ in rules.affinity}
        there = frozenset(
            c for c in near if c.pod_counts or self._topology.planned_count(c) > self._requested_by_group[c]
        )
        return PassResult(
            tuple(self._keyed_demand(place) for place in places), tuple(failed), tuple(self._placements()), there
        )

    def _placements(self) -> Iterator[NodePlacement]:
        for node, allocation in self._allocations.items():
            if allocation.pods:
                yield NodePlacement(node, tuple(allocation.pods), allocation.remaining)

    def count_fitting(self, step: GroupStep, node: ExistingNode, pods: Sequence[Pod]) -> int:
        """How many of the leading pods fit on a node beside those that this pass has placed there."""
        allocation = self._allocations.get(node)
        if allocation is None:
            allocation = self._allocations[node] = NodeAllocation(node)
        return allocation.count_fitting(step.fit_request, pods, self.unmet_affinity)

    def _place_ignoring_others_spread(
        self, left: Mapping[EquivalenceGroup, list[Pod]]
    ) -> dict[EquivalenceGroup, list[Pod]]:
        """Who has no place but one that is right in one order of binding only gets that: waiting would be no better."""
        still: dict[EquivalenceGroup, list[Pod]] = {}
        for kin, pods in left.items():
            steps = [self._group_step(kin, number) for number in range(len(kin.relaxation_steps))]
            relented = [step.ignore_others_spread() for step in steps]
            if any(relented):
                pods = self._place_group(kin, pods)
            if pods:
                still[kin] = pods
        return still

    def _keyed_demand(self, place: DemandKey) -> KeyedDemand:
        options, rules = self._options[place]
        rules = with_exposure_limit(rules, place[0].exposed_workload)
        return KeyedDemand(Demand(place[0].signature, tuple(self._requested[place]), options, rules), place)

    def _group_step(self, group: EquivalenceGroup, number: int) -> GroupStep:
        group_step = self._steps.get((group, number))
        if group_step is None:
            group_step = self._steps[group, number] = GroupStep(
                group, number, self._existing_nodes, self._step_constraints
            )
        return group_step

    # -- where the last pass planned them -------------------------------------------------------------------------------

    def _keep_planned_placements(self, groups: Sequence[EquivalenceGroup]) -> dict[EquivalenceGroup, list[Pod]]:
        """Pods the last pass planned on a machine stay planned there while it may have them; the rest is returned."""
        nodes = tuple(self._existing_nodes.nodes_in(self._planned.nodes))
        if not nodes:
            return {kin: list(kin.pods) for kin in groups}
        machine_of = {node.view.key: node for node in nodes}
        node_of = {node.node_name: node for node in nodes if node.node_name}
        hinted: dict[EquivalenceGroup, dict[ExistingNode, list[Pod]]] = {}
        left: dict[EquivalenceGroup, list[Pod]] = {}
        for kin in groups:
            stays = kin.keeps_placement and not kin.virtual
            left[kin] = [] if stays else list(kin.pods)
            for pod in kin.pods if stays else ():
                planned = machine_of.get(self._planned.node_by_uid.get(pod.metadata.uid, ""))
                machine = planned or node_of.get(pod.status.nominated_node_name)
                if machine is None:
                    left[kin].append(pod)
                else:
                    hinted.setdefault(kin, {}).setdefault(machine, []).append(pod)
        self._keep_until_stable(hinted)
        for kin, by_machine in hinted.items():
            rest = [pod for pods in by_machine.values() for pod in pods]
            left[kin] = sorted((*left[kin], *rest), key=scheduling_order) if rest else left[kin]
        return {kin: pods for kin, pods in left.items() if pods}

    def _keep_until_stable(self, hinted: Mapping[EquivalenceGroup, Mapping[ExistingNode, list[Pod]]]) -> None:
        """Again and again while somebody found a place: who goes where may hang on who went before."""
        version = -1
        while version != self._topology.version:
            version = self._topology.version
            for kin, by_machine in hinted.items():
                for number in range(len(kin.relaxation_steps)):
                    self._keep_step(self._group_step(kin, number), by_machine)

    def _keep_step(self, step: GroupStep, by_machine: Mapping[ExistingNode, list[Pod]]) -> None:
        if step.domain_constraints is None:
            for machine, pods in by_machine.items():
                self._fill_node(step, machine, pods)
            return
        asking = step.domain_constraints
        offered: defaultdict[DomainCombination, list[tuple[ExistingNode, list[Pod]]]] = defaultdict(list)
        for machine, pods in by_machine.items():
            cell = _combination_of_node(machine, asking) if pods else None
            if cell is not None:
                offered[cell].append((machine, pods))
        sources = {cell: DomainNodes(self, step, found) for cell, found in offered.items()}
        cells = DomainPlacement(self, step, asking, tuple(offered), sources)
        while cells.place_next(cells.allowed_combinations()):
            pass

    # -- one kin ----------------------------------------------------------------------------------------------------------

    def _place_group(self, group: EquivalenceGroup, pods: list[Pod]) -> list[Pod]:
        """The pods left when the whole ladder has been tried."""
        for number in range(len(group.relaxation_steps)):
            step = self._group_step(group, number)
            pods = (
                self._place_in_bulk(step, pods)
                if step.domain_constraints is None
                else self._place_by_domain(step, pods)
            )
            if not pods:
                break
        return pods

    def _place_in_bulk(self, step: GroupStep, pods: list[Pod]) -> list[Pod]:
        pods = list(pods)
        for machine in self._nodes_to_fill(step, step.candidates, pods):
            if not pods:
                return []
            self._fill_node(step, machine, pods)
        options = self._purchase_options.options(step.group.signature, step.relaxation_step) if pods else ()
        if options:
            self.request_nodes(step, OptionGroup((), options), pods, len(pods))
        return pods

    def _nodes_to_fill(self, step: GroupStep, candidates: NodeSet, pods: Sequence[Pod]) -> Iterable[ExistingNode]:
        """Machines to fill, in order; pods that must share one host with the first of them choose that with care."""
        existing_nodes = self._existing_nodes.nodes_in(candidates)
        rules = step.host_limits
        if rules is None or not any(itself and c in self.unmet_affinity for c, itself in rules.affinity):
            return existing_nodes
        rooms = [(self.count_fitting(step, node, pods), node) for node in existing_nodes]
        best, host = max(rooms, key=lambda item: item[0], default=(0, None))
        options = self._purchase_options.options(step.group.signature, step.relaxation_step)
        if host is None or best < min(len(pods), _max_on_one_node(step.group.signature, options)):
            return ()
        return (host,)

    def _fill_node(self, step: GroupStep, node: ExistingNode, pods: list[Pod]) -> None:
        """As many pods as fit from the list's front."""
        count = self.count_fitting(step, node, pods) if pods else 0
        if count:
            self.place_on_node(step, node, pods, count)

    def place_on_node(self, step: GroupStep, node: ExistingNode, pods: list[Pod], count: int) -> None:
        """Plan the first pods of the list on a machine that has room for them."""
        self._allocations[node].add_pods(step.fit_request, pods[:count])
        del pods[:count]
        self._topology.count_planned(step.group.membership, count)

    def request_nodes(self, step: GroupStep, option_group: OptionGroup, pods: list[Pod], wanted: int) -> int:
        """Ask for new machines for so many pods of the list's front, as far as allowed; for how many it was."""
        count = min(wanted, self.requestable_count(step, option_group))
        if count:
            place = (step.group, step.step_number, option_group.combination, option_group.number)
            self._requested.setdefault(place, []).extend(pods[:count])
            self._requested_by_step[step.group, step.step_number] += count
            self._options[place] = (option_group.options, step.host_limits)
            del pods[:count]
            self._topology.count_planned(step.group.membership, count)
            if step.host_limits is not None and step.host_limits.counted_by:
                self._count_requested(
                    step.host_limits.counted_by, _combination_items(step, option_group.combination), count
                )
        return count

    def _count_requested(
        self, met: Iterable[TopologyGroup], values: tuple[tuple[str, str | None], ...], count: int
    ) -> None:
        for constraint in met:
            self._requested_by_group[constraint] += count
            self._combinations_of[constraint].add(values)

    def _may_be_selected_there(
        self, constraint: TopologyGroup, step: GroupStep, combination: DomainCombination
    ) -> bool:
        """Whether somebody the constraint means may come to a machine of this cell."""
        own = dict(_combination_items(step, combination))
        return any(
            all(own.get(key, value) == value for key, value in there) for there in self._combinations_of[constraint]
        )

    def requestable_count(self, step: GroupStep, option_group: OptionGroup) -> int:
        """How many more may be asked of new machines there."""
        for constraint, itself in step.host_limits.affinity if step.host_limits is not None else ():
            if not self._may_be_selected_there(constraint, step, option_group.combination) and not (
                itself and constraint in self.unmet_affinity
            ):
                return 0
        if not self._caps:
            return len(step.group.pods)
        place = (step.group, step.step_number, option_group.combination, option_group.number)
        here = self._caps.per_demand.get(place, len(step.group.pods)) - len(self._requested.get(place, ()))
        total = self._caps.per_step.get((step.group, step.step_number))
        if total is not None:
            here = min(here, total - self._requested_by_step[step.group, step.step_number])
        return max(0, here)

    # -- cells ------------------------------------------------------------------------------------------------------------

    def _place_by_domain(self, step: GroupStep, pods: list[Pod]) -> list[Pod]:
        assert step.domain_constraints is not None
        asking, pods = step.domain_constraints, list(pods)
        combinations = self._combinations(step, asking)
        sources = {
            cell: DomainNodes(self, step, ((machine, pods) for machine in self._nodes_in(step, cell, pods)))
            for cell in (combinations if step.candidates else ())
        }
        cells = DomainPlacement(self, step, asking, combinations, sources)
        while pods:
            allowed = cells.allowed_combinations()
            if asking.affinity and len(allowed) > 1 and self._starts_affinity(asking):
                allowed = cells.best_for_affinity(pods, allowed)
            if not (cells.place_next(allowed) or cells.request_next(allowed, pods)):
                break
        return pods

    def _starts_affinity(self, constraints: DomainConstraints) -> bool:
        """Whether pods like these are to be kept together and none is anywhere yet."""
        return any(
            itself and c.term.topology_type is TopologyType.AFFINITY and c in self.unmet_affinity
            for c, itself in constraints.declared
        )

    def _combinations(self, step: GroupStep, constraints: DomainConstraints) -> tuple[DomainCombination, ...]:
        """Combinations of values the pods could go to, on machines that exist or could be bought."""
        key = (constraints, step.relaxation_step.requirements, step.candidates)
        combinations = self._combinations_for.get(key)
        if combinations is None:
            combinations = self._combinations_for[key] = tuple(self._build_combinations(step, constraints))
        return combinations

    def _build_combinations(self, step: GroupStep, constraints: DomainConstraints) -> Iterator[DomainCombination]:
        per_key: list[list[str | None]] = []
        for key in constraints.keys:
            asked = step.relaxation_step.requirements.requirement_for(key)
            there = {
                value for value, found in self._existing_nodes.by_label_value(key).items() if found & step.candidates
            }
            if self._domains.some_lack_label(key):
                there.add(None)
            if key in constraints.required_keys:
                there.discard(None)
            there = {value for value in there if value is None or asked.allows(value)} - {UNDECIDED}
            sold: set[str | None] = {value for value in self._domains.purchasable(key) if asked.allows(value)}
            per_key.append(sorted(there | sold, key=lambda value: value or ""))
        return islice(product(*per_key), MAX_DOMAIN_COMBINATIONS if len(per_key) > 1 else None)

    def _nodes_in(self, step: GroupStep, combination: DomainCombination, pods: Sequence[Pod]) -> Iterator[ExistingNode]:
        """Machines of a cell, in the order they are tried."""
        yield from self._nodes_to_fill(step, self._candidates_in(step, combination), pods)

    def _candidates_in(self, step: GroupStep, combination: DomainCombination) -> NodeSet:
        assert step.domain_constraints is not None
        candidates = step.candidates
        for key, value in zip(step.domain_constraints.keys, combination, strict=True):
            candidates &= self._existing_nodes.by_label_value(key).get(value, 0)
        return candidates

    def capacity_in(self, step: GroupStep, combination: DomainCombination, pods: Sequence[Pod]) -> int:
        """How many of the pods the machines of a cell hold."""
        room = 0
        for node in self._existing_nodes.nodes_in(self._candidates_in(step, combination)):
            room += self.count_fitting(step, node, pods[room:])
            if room >= len(pods):
                break
        return room

    def options_in(self, step: GroupStep, combination: DomainCombination) -> tuple[PurchaseOption, ...]:
        """Ways to buy in a cell; a label a machine has to lack is one its pool never gives."""
        assert step.domain_constraints is not None
        key = (
            step.group.signature,
            step.relaxation_step.requirements,
            step.relaxation_step.tolerations,
            step.domain_constraints.keys,
            combination,
        )
        known = self._options_for.get(key)
        if known is None:
            pinned = self._purchase_options.restricted_to(
                step.relaxation_step, self._combination_requirements(step.domain_constraints, combination)
            )
            options = self._purchase_options.options(step.group.signature, pinned)
            lacking = [
                key for key, value in zip(step.domain_constraints.keys, combination, strict=True) if value is None
            ]
            if lacking:
                found = (option for option in options if not any(option.template.label_values(key) for key in lacking))
                options = tuple(found)
            known = self._options_for[key] = options
        return known

    def _combination_requirements(self, constraints: DomainConstraints, combination: DomainCombination) -> Requirements:
        """The cell as requirements, one object for all who look at it."""
        key = (constraints.keys, combination)
        requirements = self._requirements_by_combination.get(key)
        if requirements is None:
            requirements = self._requirements_by_combination[key] = constraints.as_requirements(combination)
        return requirements

    def option_groups_in(self, step: GroupStep, combination: DomainCombination) -> tuple[OptionGroup, ...]:
        """The shops of a cell, those of the heaviest pools first."""
        assert step.domain_constraints is not None
        options = self.options_in(step, combination)
        key = (step.domain_constraints, combination, options)
        option_groups = self._option_groups.get(key)
        if option_groups is None:
            option_groups = self._option_groups[key] = self._group_options(
                step.domain_constraints, combination, options
            )
        return option_groups

    def _group_options(
        self, constraints: DomainConstraints, combination: DomainCombination, options: tuple[PurchaseOption, ...]
    ) -> tuple[OptionGroup, ...]:
        if len(options) == 1:
            return (OptionGroup(combination, options, self._groups_counting(constraints, options[0])),)
        found: dict[CountingGroups, list[PurchaseOption]] = {}
        for option in options:
            found.setdefault(self._groups_counting(constraints, option), []).append(option)
        each = enumerate(found.items())
        return tuple(OptionGroup(combination, tuple(alike), counting, number) for number, (counting, alike) in each)

    def _groups_counting(self, constraints: DomainConstraints, option: PurchaseOption) -> CountingGroups:
        """The constraints that will count pods on a machine bought so."""
        key = (constraints, option.template, option.pod_requirements)
        groups_counting = self._counting_cache.get(key)
        if groups_counting is None:
            groups_counting = self._counting_cache[key] = counting_groups(
                (c, self._counting_certainty(c, option)) for c in constraints.counted_by
            )
        return groups_counting

    def _counting_certainty(self, constraint: TopologyGroup, option: PurchaseOption) -> CountingCertainty:
        key = (constraint, option.template, option.pod_requirements)
        certainty = self._certainties.get(key)
        if certainty is None:
            pool, meets = option.template, partial(option_certainty, option)
            certainty = counting_certainty(constraint.term.node_filter, pool.taints, pool.label_values, meets)
            self._certainties[key] = certainty
        return certainty

    @property
    def topology(self) -> Topology:
        """Who is where by now."""
        return self._topology

    @property
    def purchase_options(self) -> PurchaseOptionIndex:
        """What can be bought."""
        return self._purchase_options

    # -- why not ----------------------------------------------------------------------------------------------------------

    def _unschedulable(self, group: EquivalenceGroup, pods: Sequence[Pod]) -> UnschedulableGroup:
        number = len(group.relaxation_steps) - 1
        step = self._group_step(group, number)
        capped = self._caps.apply_to(group)
        options = self._purchase_options.options(group.signature, step.relaxation_step)
        if options and capped and not any(option.template.pool.spec.limits for option in options):
            # Only limits and affinity by host leave pods out of a packing.
            near = [constraint for constraint, _ in step.host_limits.affinity] if step.host_limits is not None else []
            return (
                self._unschedulable_by(near[0], step, tuple(pods))
                if near
                else UnschedulableGroup(group, step.relaxation_step, tuple(pods))
            )
        if not options or capped:
            return UnschedulableGroup(group, step.relaxation_step, tuple(pods), limited=capped)
        return self._blocked_by_topology(step, tuple(pods))

    def _reachable_domains(self, constraints: DomainConstraints, key: str) -> set[str | None]:
        """What a label may be on a machine to be bought for the kin."""
        lacking = key not in constraints.required_keys and self._domains.some_lack_label(key)
        return {*self._domains.purchasable(key), *((None,) if lacking else ())}

    def _blocked_by_topology(self, step: GroupStep, pods: tuple[Pod, ...]) -> UnschedulableGroup:
        """Machines could be bought, so it is company that keeps the pods waiting."""
        kin, asking = step.group, step.domain_constraints
        if asking is not None:
            open_to, closed = self._topology.open_domains(asking), self._topology.closed_domains(asking)
            for constraint, _ in asking.declared:
                domains = open_to[asking.key_positions[constraint.topology_key]]
                if not domains & self._reachable_domains(asking, constraint.topology_key):
                    return self._unschedulable_by(constraint, step, pods, domains)
            allowed = [c for c in self._combinations(step, asking) if allows_combination(c, open_to, closed)]
            for cell in allowed:
                if not self.options_in(step, cell):
                    pinned = self._purchase_options.restricted_to(step.relaxation_step, asking.as_requirements(cell))
                    return UnschedulableGroup(kin, pinned, pods, confined=_confining_groups(asking, cell))
            for constraint in asking.repelled_by:
                if self._topology.owner_counts(constraint) and not allowed:
                    return self._unschedulable_by(constraint, step, pods)
        topology_group = (
            step.host_limits.blocking_group(HostUsage(), self.unmet_affinity) if step.host_limits is not None else None
        )
        return (
            self._unschedulable_by(topology_group, step, pods)
            if topology_group is not None
            else UnschedulableGroup(kin, step.relaxation_step, pods)
        )

    def _unschedulable_by(
        self, constraint: TopologyGroup, step: GroupStep, pods: tuple[Pod, ...], domains: Iterable[str | None] = ()
    ) -> UnschedulableGroup:
        """The constraint left no place but domains where nothing can be bought; as data, with where its pods are."""
        firm, own = step.relaxation_step.hard_requirements, constraint in step.group.membership.declared.values()
        if constraint.is_hostname:
            counts = constraint.pod_counts if own else constraint.owner_counts
        else:
            counts = self._topology.pod_counts(constraint) if own else self._topology.owner_counts(constraint)
        there = {domain: number for domain, number in sorted(counts.items()) if number}
        closed = tuple(sorted(domain for domain in domains if domain is not None))
        blocked = TopologyUnsatisfiable(
            constraint.term.topology_type,
            constraint.topology_key,
            own,
            firm.requirement_for(constraint.topology_key),
            self._topology.known_domains(constraint),
            there,
            closed,
        )
        return UnschedulableGroup(
            step.group,
            step.relaxation_step,
            pods,
            blocked=blocked,
        )


def _confining_groups(
    constraints: DomainConstraints, combination: DomainCombination
) -> tuple[TopologyConfinement, ...]:
    """The kin's own constraints with the values the cell has for them; of one that means it, where it states none."""
    stated = [constraint for constraint, _ in constraints.declared] or [*constraints.repelled_by]
    found = {
        (c.term.topology_type, c.topology_key): combination[constraints.key_positions[c.topology_key]] for c in stated
    }
    return tuple(
        TopologyConfinement(relation, key, domain) for (relation, key), domain in found.items() if domain is not None
    )


def _combination_items(step: GroupStep, combination: DomainCombination) -> tuple[tuple[str, str | None], ...]:
    """A cell's values with their keys."""
    return (
        tuple(zip(step.domain_constraints.keys, combination, strict=True))
        if step.domain_constraints is not None
        else ()
    )


def _combination_of_node(node: ExistingNode, constraints: DomainConstraints) -> DomainCombination | None:
    """The cell a machine is in; None while that is open, or where it lacks a label it would need."""
    cell = tuple(node.label_value(key) for key in constraints.keys)
    lacking = any(
        value is None and key in constraints.required_keys for key, value in zip(constraints.keys, cell, strict=True)
    )
    return None if lacking or UNDECIDED in cell else cell


def _max_on_one_node(signature: PodSignature, options: Sequence[PurchaseOption]) -> int:
    """How many pods of a class the largest machine to be had would hold."""
    most = 0
    for option in options:
        step = 1 << 16
        while step:
            requests = {name: amount * (most + step) for name, amount in signature.requests.items()}
            if option.types & option.template.types_fitting(requests):
                most += step
            else:
                step //= 2
    return most
