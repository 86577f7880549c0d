"""One scheduling pass: places every pod group once, group by group (SCH §9, §20).

A group relaxes its preferences one step at a time. At each step its pods go to existing nodes; the rest becomes demand for new
nodes. A group with topology constraints wider than a host is placed pod by pod, each into the least occupied domain combination
that is allowed; every other group is placed in bulk. Topology counts change at once, so later groups see them. Groups left over
are tried again as long as a try placed any pod (SCH-233).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from karpenter.api.core import Pod
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, GroupStep, StepConstraints
from karpenter.scheduling.existing_nodes import UNDECIDED, ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.explain.topology_diagnosis import TopologyDiagnosis
from karpenter.scheduling.offerings.launch_options import LaunchOption, LaunchOptionIndex
from karpenter.scheduling.pass_result import DemandCaps, DomainOrder, PassResult, PlannedPlacements, UnschedulableGroup
from karpenter.scheduling.pass_state import PassState
from karpenter.scheduling.topology.domain_options import DomainOptions, OptionGroup
from karpenter.scheduling.topology.domain_placement import DomainNodes, DomainPlacement
from karpenter.scheduling.topology.topology import DomainCombination, DomainConstraints
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import scheduling_order
from karpenter.state.topology_terms import TopologyType


class SchedulingPass:
    """One pass. ``planned``: where an earlier pass placed pods, which stay there if they may."""

    def __init__(
        self,
        existing_nodes: ExistingNodeIndex,
        launch_options: LaunchOptionIndex,
        domains: TopologyDomains,
        planned: PlannedPlacements,
        caps: DemandCaps,
        domain_order: DomainOrder = DomainOrder.LEAST_OCCUPIED,
    ) -> None:
        self._existing_nodes = existing_nodes
        self._launch_options = launch_options
        self._planned = planned
        self._caps = caps
        self._state = PassState(domains, caps, domain_order)
        self._domain_options = DomainOptions(existing_nodes, launch_options, domains)
        self._step_constraints = StepConstraints()
        self._steps: dict[tuple[EquivalenceGroup, int], GroupStep] = {}

    def run(self, groups: Sequence[EquivalenceGroup]) -> PassResult:
        """Place all groups."""
        waiting = self._keep_planned_placements(groups)
        left_out: dict[EquivalenceGroup, list[Pod]] = {}
        version = -1
        while waiting and version != self._state.topology.version:
            version = self._state.topology.version
            still_waiting: dict[EquivalenceGroup, list[Pod]] = {}
            for group, pods in waiting.items():
                left = self._place_group(group, pods)
                if left and group.membership.declared:
                    still_waiting[group] = left
                elif left:
                    left_out[group] = left
            waiting = still_waiting
        left_out = self._place_ignoring_others_spread({**left_out, **waiting})
        return PassResult(
            tuple(self._state.demands(groups)),
            tuple(self._unschedulable(group, pods) for group, pods in left_out.items()),
            tuple(self._state.placements()),
            self._state.satisfied_affinity(),
            self._state.domain_prices_differ,
        )

    def _unschedulable(self, group: EquivalenceGroup, pods: Sequence[Pod]) -> UnschedulableGroup:
        diagnosis = TopologyDiagnosis(self._state, self._domain_options, self._launch_options)
        return diagnosis.unschedulable(self._step_to_explain(group), pods, capped=self._caps.apply_to(group))

    def _step_to_explain(self, group: EquivalenceGroup) -> GroupStep:
        """The last step for which a node could be launched at all: limits or topology failed it. If there is none, the last step.

        Of several OR-terms the last one may be met by no NodePool; that says less than why another term failed.
        """
        steps = group.relaxation_steps
        numbers = (n for n in reversed(range(len(steps))) if self._launch_options.options(group.signature, steps[n]))
        return self._group_step(group, next(numbers, len(steps) - 1))

    def _place_ignoring_others_spread(
        self, left_out: Mapping[EquivalenceGroup, list[Pod]]
    ) -> dict[EquivalenceGroup, list[Pod]]:
        """Give pods left over a place that keeps other pods' spread in one order of binding only: a pod left out is no better."""
        still_left_out: dict[EquivalenceGroup, list[Pod]] = {}
        for group, pods in left_out.items():
            steps = [self._group_step(group, number) for number in range(len(group.relaxation_steps))]
            differs = [step.ignore_others_spread() for step in steps]
            left = self._place_group(group, pods) if any(differs) else pods
            if left:
                still_left_out[group] = left
        return still_left_out

    def _group_step(self, group: EquivalenceGroup, number: int) -> GroupStep:
        group_step = self._steps.get((group, number))
        if group_step is None:
            group_step = self._steps[group, number] = GroupStep(
                group, number, self._existing_nodes, self._step_constraints
            )
        return group_step

    # -- placements of an earlier pass --------------------------------------------------------------------------------------

    def _keep_planned_placements(self, groups: Sequence[EquivalenceGroup]) -> dict[EquivalenceGroup, list[Pod]]:
        """Pods that the last pass planned on a node stay planned there while it may have them; the others are returned."""
        nodes = tuple(self._existing_nodes.nodes_in(self._planned.nodes))
        if not nodes:
            return {group: list(group.pods) for group in groups}
        node_by_key = {node.view.key: node for node in nodes}
        node_by_name = {node.node_name: node for node in nodes if node.node_name}
        planned: dict[EquivalenceGroup, dict[ExistingNode, list[Pod]]] = {}
        left: dict[EquivalenceGroup, list[Pod]] = {}
        for group in groups:
            stays = group.keeps_placement and not group.virtual
            left[group] = [] if stays else list(group.pods)
            for pod in group.pods if stays else ():
                node = node_by_key.get(self._planned.node_by_uid.get(pod.metadata.uid, ""))
                node = node or node_by_name.get(pod.status.nominated_node_name)
                if node is None:
                    left[group].append(pod)
                else:
                    planned.setdefault(group, {}).setdefault(node, []).append(pod)
        self._keep_until_stable(planned)
        for group, pods_by_node in planned.items():
            rest = [pod for pods in pods_by_node.values() for pod in pods]
            left[group] = sorted((*left[group], *rest), key=scheduling_order) if rest else left[group]
        return {group: pods for group, pods in left.items() if pods}

    def _keep_until_stable(self, planned: Mapping[EquivalenceGroup, Mapping[ExistingNode, list[Pod]]]) -> None:
        """Repeat while a pod was placed: where a pod may go can depend on pods placed before it."""
        version = -1
        while version != self._state.topology.version:
            version = self._state.topology.version
            for group, pods_by_node in planned.items():
                for number in range(len(group.relaxation_steps)):
                    self._keep_step(self._group_step(group, number), pods_by_node)

    def _keep_step(self, step: GroupStep, pods_by_node: Mapping[ExistingNode, list[Pod]]) -> None:
        constraints = step.domain_constraints
        if constraints is None:
            for node, pods in pods_by_node.items():
                self._state.fill_node(step, node, pods)
            return
        candidates: defaultdict[DomainCombination, list[tuple[ExistingNode, list[Pod]]]] = defaultdict(list)
        for node, pods in pods_by_node.items():
            combination = _combination_of_node(node, constraints) if pods else None
            if combination is not None:
                candidates[combination].append((node, pods))
        nodes = {combination: DomainNodes(self._state, step, offered) for combination, offered in candidates.items()}
        placement = DomainPlacement(self._state, self._domain_options, step, constraints, tuple(candidates), nodes)
        while placement.place_next(placement.allowed_combinations()):
            pass

    # -- one group ----------------------------------------------------------------------------------------------------------

    def _place_group(self, group: EquivalenceGroup, pods: list[Pod]) -> list[Pod]:
        """The pods left after all relaxation steps."""
        for number in range(len(group.relaxation_steps)):
            step = self._group_step(group, number)
            pods = (
                self._place_in_bulk(step, pods)
                if step.domain_constraints is None
                else self._place_by_domain(step, step.domain_constraints, pods)
            )
            if not pods:
                break
        return pods

    def _place_in_bulk(self, step: GroupStep, pods: list[Pod]) -> list[Pod]:
        pods = list(pods)
        for node in self._nodes_to_fill(step, step.candidates, pods):
            if not pods:
                return []
            self._state.fill_node(step, node, pods)
        options = self._options(step) if pods else ()
        if options:
            self._state.request_nodes(step, OptionGroup((), options), pods, len(pods))
        return pods

    def _options(self, step: GroupStep) -> tuple[LaunchOption, ...]:
        return self._launch_options.options(step.group.signature, step.relaxation_step)

    def _nodes_to_fill(self, step: GroupStep, candidates: NodeSet, pods: Sequence[Pod]) -> Iterable[ExistingNode]:
        """Existing nodes in the order they are filled. Pods that must share one host get the one that holds most of them.

        They get none where a new node would hold more.
        """
        nodes = self._existing_nodes.nodes_in(candidates)
        unmet = self._state.unmet_affinity
        affinity = step.host_limits.affinity if step.host_limits is not None else ()
        if not any(itself and group in unmet for group, itself in affinity):
            return nodes
        rooms = [(self._state.count_fitting(step, node, pods), node) for node in nodes]
        most, host = max(rooms, key=lambda room: room[0], default=(0, None))
        if host is None or most < min(len(pods), _max_on_one_node(step.group.signature, self._options(step))):
            return ()
        return (host,)

    def _place_by_domain(self, step: GroupStep, constraints: DomainConstraints, pods: list[Pod]) -> list[Pod]:
        pods = list(pods)
        combinations = self._domain_options.combinations(step, constraints)
        offered = combinations if step.candidates else ()
        nodes = {combination: self._domain_nodes(step, combination, pods) for combination in offered}
        placement = DomainPlacement(self._state, self._domain_options, step, constraints, combinations, nodes)
        while pods:
            allowed = placement.allowed_combinations()
            if constraints.affinity and len(allowed) > 1 and self._starts_affinity(constraints):
                allowed = placement.best_for_affinity(pods, allowed, self._existing_nodes)
            if not (placement.place_next(allowed) or placement.request_next(allowed, pods)):
                break
        return pods

    def _domain_nodes(self, step: GroupStep, combination: DomainCombination, pods: list[Pod]) -> DomainNodes:
        """Existing nodes of a combination. The first use computes their order: pods may have been placed until then."""

        def candidates() -> Iterable[tuple[ExistingNode, list[Pod]]]:
            for node in self._nodes_to_fill(step, self._domain_options.candidates_in(step, combination), pods):
                yield node, pods

        return DomainNodes(self._state, step, candidates())

    def _starts_affinity(self, constraints: DomainConstraints) -> bool:
        """Whether the pods must be together and none of them is placed yet."""
        return any(
            itself and group.term.topology_type is TopologyType.AFFINITY and group in self._state.unmet_affinity
            for group, itself in constraints.declared
        )


def _combination_of_node(node: ExistingNode, constraints: DomainConstraints) -> DomainCombination | None:
    """The combination of a node; None while a value is undecided or where it lacks a required label."""
    combination = constraints.combination_of(node.label_value)
    return None if combination is None or UNDECIDED in combination else combination


def _max_on_one_node(signature: PodSignature, options: Sequence[LaunchOption]) -> int:
    """How many such pods the largest node for sale would hold."""
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
