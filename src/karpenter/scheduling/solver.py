"""The provisioning decision: from a problem to a solution (SCH §2).

In order: prepare the problem; find the eligible pods, those that wait and those that must leave their nodes; place them group by
group (`scheduling_pass`), existing nodes first, the rest as demand for new nodes; repeat the pass where another one could place
more pods (`scheduling_passes`); pack the demand in several ways and take the cheapest packing.

Growth: linear in pods, and in pod groups times candidates for the rest: a group visits only nodes that could hold it, found by
bit sets, and fills new ones by arithmetic. `make bench growth` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import resources as res
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.arrival_forecast import (
    MAX_EXPECTED_PODS,
    RecentArrivals,
    SpareRoomValue,
    is_expected,
    recent_arrivals,
    value_of_spare_room,
    without_expected_pods,
)
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.demand import Demand, Packing, SchedulingNodeClaim
from karpenter.scheduling.effective_zones import effective_zones
from karpenter.scheduling.explain.unschedulable_diagnosis import (
    DiagnosisContext,
    RemainingCapacity,
    UnschedulableDiagnosis,
)
from karpenter.scheduling.gangs.gang_admission import solve_with_gangs
from karpenter.scheduling.node_share import NodeShares, node_share_violations, node_shares
from karpenter.scheduling.pass_outcome import PassOutcome
from karpenter.scheduling.pass_result import NodePlacement, PassResult, PlannedPlacements
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.prepared_problem import Eligibility, PreparedProblem
from karpenter.scheduling.problem import Problem, build_type_indexes
from karpenter.scheduling.scheduling_options import ArrivalForecast, PackingMode
from karpenter.scheduling.scheduling_passes import SchedulingPasses
from karpenter.scheduling.search.lower_bound import LowerBounds
from karpenter.scheduling.solution import (
    ExposureViolation,
    NewNodeClaim,
    PlacedPods,
    Solution,
    UnschedulablePod,
    ViolationCause,
)
from karpenter.scheduling.spot_spread import spread_spot_claims
from karpenter.scheduling.terminating_pods import fit_beside, without_terminating_pods
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts, leaving_pods
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.workload_exposure import exposure_violations
from karpenter.state.snapshot import ClusterSnapshot, PodGroup


def solve(
    problem: Problem, indexes: Mapping[str, TypeIndex] | None = None, memory: DecisionMemory | None = None
) -> Solution:
    """Plan nodes for the waiting pods: the same problem gives the same solution.

    ``indexes``: type indexes by NodePool, where the caller keeps them; they only save time, as does
    ``memory``.
    """
    indexes = build_type_indexes(problem) if indexes is None else indexes
    if problem.snapshot.gangs:
        memory = memory or DecisionMemory()
        return solve_with_gangs(problem, partial(_solve_pods, indexes=indexes, memory=memory))
    return _solve_pods(problem, indexes, memory)


def _solve_pods(problem: Problem, indexes: Mapping[str, TypeIndex], memory: DecisionMemory | None) -> Solution:
    """The plan of a problem in which no pod depends on others having a place."""
    window = problem.options.terminating_pods_window
    snapshot, awaited = without_terminating_pods(problem.snapshot, problem.now, window)
    return _Solver(PreparedProblem(replace(problem, snapshot=snapshot), indexes, memory, awaited)).solve()


class _Solver:
    """One decision while it is made."""

    def __init__(self, prepared: PreparedProblem) -> None:
        self._prepared = prepared
        self._problem = prepared.problem
        self._lower_bounds = LowerBounds(prepared.reservation_units)

    def solve(self) -> Solution:
        """The plan for all pods that wait or must move."""
        prepared, snapshot = self._prepared, self._problem.snapshot
        moving = self._eligible(prepared.default_spread.apply_to(prepared.leaving_groups), bound=True)
        waiting = self._eligible(prepared.default_spread.apply_to(_pending_groups(snapshot)), bound=False)
        bound = BoundPodCounts(snapshot)
        counts = bound.without(leaving_pods((group.signature, group.pods) for group in prepared.leaving_groups))
        groups = prepared.equivalence_groups((*waiting.groups, *moving.groups), counts)
        domains = TopologyDomains(bound, prepared.templates, prepared.existing_nodes)
        planned = PlannedPlacements(snapshot.planned_nodes, prepared.existing_nodes.all_nodes)
        context = prepared.pass_context(prepared.existing_nodes, domains, planned)
        shares = node_shares(snapshot.pools, self._problem.options.objective.exposure)
        passes = SchedulingPasses(context, shares=shares, lower_bounds=self._lower_bounds)
        outcome = passes.best_outcome(groups)
        recent = self._recent_arrivals(outcome)
        expected = self._eligible(recent.expected_pods(outcome.result.pods_needing_nodes), bound=True)
        if expected.groups:
            groups = prepared.equivalence_groups((*waiting.groups, *moving.groups, *expected.groups), counts)
            outcome = passes.best_outcome(groups)
        outcome = passes.with_better_domains(outcome, groups)
        packing = passes.cheapest_packing(outcome, self._spare_room_value(outcome, recent))
        ineligible = chain(moving.ineligible, waiting.ineligible, expected.ineligible)
        unreadable = (UnschedulablePod(pod, (reason,)) for pod, reason in prepared.unreadable_pods)
        unschedulable = [*unreadable, *ineligible, *self._unschedulable(outcome.result, packing)]
        demands = [keyed_demand.demand for keyed_demand in outcome.result.demands]
        lower_bound = self._lower_bounds.of(_without_expected_demands(demands), packing.unpacked)
        spread = spread_spot_claims(
            without_expected_pods(packing.claims, demands),
            prepared.existing_spot_counts,
            prepared.exposed_workloads.max_spot_in_one_pool,
        )
        devices = None if prepared.devices is None else prepared.devices.types
        claims = planned_claims(spread.claims, demands, {view.key for view in snapshot.nodes}, devices)
        zone_bound = effective_zones(groups, domains)
        return Solution(
            new_claims=claims,
            placed_on_existing=tuple(self._placed_on_existing(outcome.result.placements)),
            unschedulable=tuple(sorted(unschedulable, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))),
            skipped_pools=prepared.skipped_pools,
            packing_heuristic=packing.name if demands else "",
            lower_bound_per_hour=lower_bound.per_hour,
            zone_bound=zone_bound,
            exposure_violations=(
                *exposure_violations(claims, prepared.exposed_workloads),
                *self._node_share_violations(claims, packing, shares),
                *spread.violations,
            ),
            unreadable_annotations=(*prepared.exposed_workloads.unreadable, *shares.unreadable),
            node_share_cost_per_hour=packing.node_share_cost,
            node_share_saving_per_hour=packing.node_share_saving,
            packing_fallback=packing.fallback if demands else None,
            is_optimal=_is_optimal(outcome.result, packing, spread.claims),
        )

    def _eligible(self, groups: Iterable[PodGroup], *, bound: bool) -> Eligibility:
        return self._prepared.eligible_groups(groups, self._prepared.exposed_workloads, bound=bound)

    def _unschedulable(self, result: PassResult, packing: Packing) -> Iterator[UnschedulablePod]:
        """The pods no pass could place, each with its reasons: limits count as they were when the pod failed."""
        prepared = self._prepared
        diagnosis = UnschedulableDiagnosis(
            DiagnosisContext(
                self._problem.snapshot,
                prepared.indexes,
                prepared.templates,
                prepared.skipped_pools,
                prepared.daemons,
                prepared.existing_nodes,
                prepared.strict_min_values,
                {placement.node: placement.remaining for placement in result.placements},
                None if prepared.devices is None else prepared.devices.types,
            )
        )
        drawn = Counter(claim.reservation for claim in packing.claims if claim.reservation is not None)
        units = {reservation: left - drawn[reservation] for reservation, left in prepared.reservation_units.items()}
        before = RemainingCapacity(prepared.remaining_limits, prepared.reservation_units)
        after = RemainingCapacity(packing.remaining_limits, units)
        for failed in result.unschedulable:
            if not is_expected(failed.pods[0]):
                yield from diagnosis.for_pods(failed, after if failed.limited else before)

    def _node_share_violations(
        self, claims: Sequence[NewNodeClaim], packing: Packing, shares: NodeShares
    ) -> Iterator[ExposureViolation]:
        if self._problem.options.packing_mode is PackingMode.CHEAPEST:
            plan_pods = sum(claim.pod_count for claim in packing.claims)
            cause = ViolationCause.PRICE if packing.node_share_saving > 0 else ViolationCause.LIMITS
            yield from node_share_violations(claims, plan_pods, shares, cause)

    def _recent_arrivals(self, outcome: PassOutcome) -> RecentArrivals:
        """The pods that came lately, where that matters: a few need new nodes, and nothing keeps any pod from one."""
        options = self._problem.options
        reckoned_with = (
            options.packing_mode is PackingMode.CHEAPEST and options.arrival_forecast is not ArrivalForecast.NONE
        )
        few = 0 < outcome.result.pods_needing_nodes <= MAX_EXPECTED_PODS
        if not reckoned_with or not few or outcome.unschedulable_by_group or self._prepared.remaining_limits:
            return RecentArrivals()
        return recent_arrivals(self._problem.snapshot, self._problem.now)

    def _spare_room_value(self, outcome: PassOutcome, recent: RecentArrivals) -> SpareRoomValue | None:
        """What room for expected pods is worth; None where none are expected."""
        demands = [keyed_demand.demand for keyed_demand in outcome.result.demands]
        is_wanted = demands and recent.expected_count
        per_hour = self._lower_bounds.of(demands, outcome.packing.unpacked).per_hour if is_wanted else None
        return value_of_spare_room(demands, per_hour, recent.expected_count) if per_hour else None

    def _placed_on_existing(self, placements: Sequence[NodePlacement]) -> Iterator[PlacedPods]:
        """Pods by existing node, in the order nodes are tried."""
        pods_by_node = {placement.node: placement.pods for placement in placements}
        for node in self._prepared.existing_nodes.nodes if pods_by_node else ():
            pods = tuple(pod for pod in pods_by_node.get(node, ()) if not is_expected(pod))
            if pods:
                awaited = self._prepared.awaited_room.get(node.view.key)
                awaits = awaited is not None and not fit_beside(pods, res.subtract(node.free, awaited))
                yield PlacedPods(node.view.key, node.view.name, pods, awaits)


def _pending_groups(snapshot: ClusterSnapshot) -> Iterator[PodGroup]:
    """Waiting pods, without those for which the scheduler is preempting others (SCH-040c)."""
    by_node = {view.node.metadata.name: view for view in snapshot.nodes if view.node is not None}
    for group in snapshot.pod_groups:
        if any(pod.status.nominated_node_name for pod in group.pods):
            staying = tuple(pod for pod in group.pods if not pod_eligibility.awaits_preemption(pod, by_node))
            group = PodGroup(group.signature, group.namespaced_labels, staying)
        if group.pods:
            yield group


def _is_optimal(result: PassResult, packing: Packing, claims: Sequence[SchedulingNodeClaim]) -> bool:
    """Whether no plan for these pods is cheaper: the packing is proven, nothing was chosen before or changed after."""
    chosen_before = any(
        keyed_demand.combination or is_expected(keyed_demand.demand.pods[0]) for keyed_demand in result.demands
    )
    changed_after = any(
        claim.price_per_hour > planned.price_per_hour for claim, planned in zip(claims, packing.claims, strict=False)
    )
    return packing.is_optimal and not chosen_before and not changed_after


def _without_expected_demands(demands: Sequence[Demand]) -> list[Demand]:
    """Those of pods that exist, which come first."""
    return [demand for demand in demands if not is_expected(demand.pods[0])]
