"""How often groups are scheduled: until no pod is left out that another pass could serve (SCH §9.1, §15).

Where limits leave pods out of a packing, the pass is repeated with a cap on what may be asked of new nodes there: those pods take
their next relaxation step. Other caps and orders are tried while pods are left out: first the groups left out, and before them
those they must be near. The outcome that leaves out the fewest pods counts; pod priority decides only where limits bind.
Exposure limits give way where limits of NodePools would leave a pod out, or send it to a lighter pool, for their sake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from karpenter.scheduling.arrival_forecast import SpareRoomValue
from karpenter.scheduling.demand import Demand, Packing, PackingBounds, is_about_as_cheap, sum_of_prices
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, without_exposure
from karpenter.scheduling.group_orders import group_last, groups_by_priority, groups_first
from karpenter.scheduling.node_share import MAX_SHARE_COST, USUAL_EXTRA_COST, CappedDemands, NodeShares
from karpenter.scheduling.packing.exact_packing import ProvenPacking
from karpenter.scheduling.packing.limit_reservations import ReservationPolicy
from karpenter.scheduling.packing.packer import Packer
from karpenter.scheduling.pass_caps import closed_step_caps, plans_with_other_caps, with_demand_caps, with_step_caps
from karpenter.scheduling.pass_context import PassContext
from karpenter.scheduling.pass_outcome import (
    PassOutcome,
    PassPlan,
    bypassed_priority,
    fewer_important_left,
    has_many_nodes_in_domains,
    may_be_cheaper_in_fewer_domains,
    may_have_many_nodes_in_domains,
    outcome_order,
    places_lost,
    unpacked_by_priority,
)
from karpenter.scheduling.pass_result import (
    DemandCaps,
    DomainOrder,
    KeyedDemand,
    PassResult,
    is_same,
    may_stay_left,
    with_limited,
)
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.scheduling_pass import SchedulingPass
from karpenter.scheduling.search.column_enumeration import TOLERANCE
from karpenter.scheduling.search.column_generation import FULL_SEARCH, SearchStart
from karpenter.scheduling.search.lower_bound import LowerBounds
from karpenter.scheduling.solution import PackingFallback
from karpenter.scheduling.topology.host_limits import ExposedWorkload
from karpenter.state.snapshot import pod_priority

#: So often pods that limits leave out take a step down by themselves; after that, places that limits bind are closed altogether.
MAX_CAPPED_PASSES = 8
#: So often those left out are put before all others, and so many group of theirs are tried to be added to the rest.
MAX_REORDERINGS = 3
MAX_ADDITIONS = 8
#: New nodes for so many pods are left to the search alone.
SEARCH_ONLY_FROM = 100
#: Searches for plans that node shares divide end this near to their lower bound: two of three are for fewer pods on a node.
GAP_OF_DIVIDED_PLANS = 0.003
#: Domains are dealt in other orders for the price of so many pods, and another order counts if it saves this share of it.
MAX_PODS_DEALT_AGAIN = 500
MIN_SAVING_BY_DOMAINS = 0.01
#: Another way is begun as long as no more than so many pods, each as often as it was settled, have been settled for the others.
MAX_PODS_RESCHEDULED = 20_000


class SchedulingPasses:
    """The rounds of one decision. ``shares``: those of the cheapest packing, where one is asked for in the end.

    ``lower_bounds``: of the decision; the one that the plan will report is begun once nothing but the packing is open.
    """

    def __init__(
        self,
        context: PassContext,
        packings: dict[int, tuple[PassOutcome, Packing]] | None = None,
        shares: NodeShares | None = None,
        lower_bounds: LowerBounds | None = None,
    ) -> None:
        self._context = context
        self._lower_bounds = lower_bounds
        self._shares = shares
        #: The cheapest packings of outcomes, by the identity of these: orders of domains are compared by them.
        self._packings = {} if packings is None else packings
        #: The same for the best packings without a search.
        self._simplest: dict[int, tuple[PassOutcome, Packing]] = {}
        self._pods_left_to_reschedule = MAX_PODS_RESCHEDULED
        self._last_packer: tuple[Sequence[KeyedDemand] | None, Packer | None] = (None, None)
        #: Whether some round was packed otherwise than the classic way, so that the rounds after it may have gone otherwise, too.
        self._departed_from_classic = False

    def best_outcome(self, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        """The placement of all groups, with a packing that leaves out no pod that other pods depend on.

        Rounds that each leave out fewer pods can leave out more in total. Then all is repeated with classic packing, and the
        better outcome counts.
        """
        best = self._best_relaxing_exposure(groups)
        if best.unschedulable_by_group and self._departed_from_classic:
            classic = SchedulingPasses(replace(self._context, packing_mode=PackingMode.CLASSIC))
            best = min(best, classic._best_relaxing_exposure(groups), key=outcome_order)
        return best

    def _best_within_limits(self, best: PassOutcome) -> PassOutcome:
        """The outcome with the best packing that limits allow, if that leaves out fewer pods: for few pods it is known."""
        packer = self._packer_for(best.result) if self._context.packing_mode is PackingMode.CHEAPEST else None
        packing = packer.within_limits() if packer is not None else None
        unpacked = unpacked_by_priority(best.packing, best.result)
        if packing is None or unpacked_by_priority(packing, best.result) >= unpacked:
            return best
        left = [(best.result.demands[at], count) for at, count in packing.unpacked.items()]
        if not may_stay_left(left):
            return best
        asking = {id(pod) for keyed_demand in best.result.demands for pod in keyed_demand.demand.pods}
        others = tuple(failed for failed in best.result.unschedulable if id(failed.pods[0]) not in asking)
        result = with_limited(replace(best.result, unschedulable=others), left)
        return PassOutcome(best.pass_plan, result, packing, best.caps)

    def with_better_domains(self, outcome: PassOutcome, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        """The outcome, or one with pods in other domains that their spreads allow: with fewer pods left out, or clearly cheaper.

        Whether a domain leads into a dead end, and what nodes cost, is known only at the end of a pass, so domains are dealt in
        several orders. Only few pods can be cheaper by it: many fill nodes in every domain.
        """
        pod_count = sum(len(group.pods) for group in groups)
        if self._context.packing_mode is not PackingMode.CHEAPEST or pod_count > MAX_PODS_RESCHEDULED:
            return outcome
        if any(failed.blocked is not None or failed.confined for failed in outcome.result.unschedulable):
            reordered = self._with_orders(DomainOrder.SCARCEST, DomainOrder.FEWEST)
            others = [passes.best_outcome(groups) for passes in reordered]
            return min((outcome, *others), key=outcome_order)
        if pod_count > MAX_PODS_DEALT_AGAIN:
            return outcome
        best = self._with_cheapest_domains(outcome, groups) if may_be_cheaper_in_fewer_domains(outcome) else outcome
        is_even = outcome.result.pods_needing_nodes >= SEARCH_ONLY_FROM and has_many_nodes_in_domains(outcome)
        may_balance = best is outcome and outcome.result.is_in_domains and not is_even
        return self._with_balanced_domains(outcome, groups) if may_balance else best

    def _with_cheapest_domains(self, outcome: PassOutcome, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        best, lowest = outcome, self.simplest_packing(outcome).objective_value * (1 - MIN_SAVING_BY_DOMAINS)
        tried: list[PassOutcome] = []
        for passes in self._with_orders(DomainOrder.FEWEST, DomainOrder.CHEAPEST):
            if any(not earlier.result.domain_prices_differ for earlier in tried):
                break  # domains cost the same: this order chooses as the one before
            other = passes._run_plan(PassPlan(tuple(groups)), tried)
            if other in tried:
                continue
            tried.append(other)
            packing = passes.simplest_packing(other)
            legal = other.unschedulable_by_group == outcome.unschedulable_by_group and not packing.pods_below_weight
            if legal and packing.objective_value < lowest:
                best, lowest = other, packing.objective_value
        return best

    def _with_balanced_domains(self, outcome: PassOutcome, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        """The outcome, or one with pods in other zones that cost the same: where zones cost the same, the first gets no more."""
        (passes,) = self._with_orders(DomainOrder.BALANCED)
        balanced = passes._run_plan(PassPlan(tuple(groups)))
        if balanced.unschedulable_by_group != outcome.unschedulable_by_group:
            return outcome
        before, after = self._comparable_packing(outcome), passes._comparable_packing(balanced)
        # Compared as packings are: price, then the number of nodes.
        return balanced if after.sort_key <= before.sort_key else outcome

    def _comparable_packing(self, outcome: PassOutcome) -> Packing:
        """The packing that a few pods get; of more pods one without a search."""
        if outcome.result.pods_needing_nodes < SEARCH_ONLY_FROM:
            return self._cheapest_packing(outcome, None, None)
        return self.simplest_packing(outcome)

    def _with_orders(self, *orders: DomainOrder) -> Iterator[SchedulingPasses]:
        contexts = (replace(self._context, domain_order=order) for order in orders)
        return (SchedulingPasses(context, self._packings) for context in contexts)

    def _best_relaxing_exposure(self, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        """The outcome with the fewest pods left out, then the most in the heaviest pools; exposure limits give way to both."""
        best = self._best_for_groups(groups)
        for exposed in self._exposures_to_relax(best, groups):
            pass_outcome = self._best_for_groups(without_exposure(groups, exposed))
            best = min(best, pass_outcome, key=places_lost)
        return best

    def _exposures_to_relax(
        self, best: PassOutcome, groups: Sequence[EquivalenceGroup]
    ) -> list[frozenset[ExposedWorkload]]:
        """Workloads whose exposure limits may cost a pod its place or its pool: those of the pods left out, then all.

        Limits of NodePools make exposure cost that. Without them it can only be the order of groups, because exposure
        divides groups by workload.
        """
        exposed = _exposed_workloads(groups)
        if not exposed or not (best.unschedulable_by_group or best.packing.pods_below_weight):
            return []
        limited = best.caps or any(failed.limited for failed in best.result.unschedulable)
        if limited or best.packing.pods_below_weight:
            own = _exposed_workloads(best.unschedulable_by_group)
            return [workloads for workloads in (own, exposed) if workloads]
        return (
            [exposed] if len(without_exposure(groups, exposed)) < len(groups) and self._schedulable_alone(best) else []
        )

    def _best_for_groups(self, groups: Sequence[EquivalenceGroup]) -> PassOutcome:
        """The way that leaves out the fewest."""
        pass_outcome = self._run_plan(PassPlan(tuple(groups)))
        self._pods_left_to_reschedule = MAX_PODS_RESCHEDULED
        if not pass_outcome.unschedulable_by_group:
            return pass_outcome
        best = self._improved(pass_outcome)
        return self._best_within_limits(best) if best.packing.unpacked else best

    def simplest_packing(self, best: PassOutcome) -> Packing:
        """The best packing without a search."""
        if self._context.packing_mode is not PackingMode.CHEAPEST:
            return best.packing
        if id(best) not in self._simplest:
            packer = self._packer_for(best.result)
            first = packer.classic() if best.packing.is_searched else best.packing
            simplest = min(first, packer.best_value(), key=lambda packing: packing.sort_key)
            self._simplest[id(best)] = (best, simplest)
        return self._simplest[id(best)][1]

    def cheapest_packing(self, best: PassOutcome, room: SpareRoomValue | None) -> Packing:
        """The packing a search for cheap nodes comes to, if it leaves the same pods out and is cheaper.

        Where ``room`` for pods to come is worth something, it counts: for `MAX_EXPECTED_PODS` at most, so the classic packing is
        always among the choices. For few pods it is cheaper than the simplest, too.
        """
        if self._context.packing_mode is not PackingMode.CHEAPEST:
            return best.packing
        cheapest = self._cheapest_packing(best, room, _search_gap(best.result, self._shares))
        return cheapest if self._shares is None else self._within_node_shares(best, cheapest, self._shares)

    def _cheapest_packing(self, best: PassOutcome, room: SpareRoomValue | None, gap: float | None) -> Packing:
        if room is not None:
            return self._newly_packed(best, room, gap)
        if id(best) not in self._packings:
            self._packings[id(best)] = (best, self._newly_packed(best, None, gap))
        return self._packings[id(best)][1]

    def _newly_packed(self, best: PassOutcome, room: SpareRoomValue | None, gap: float | None) -> Packing:
        packings = [best.packing]
        if best.result.pods_needing_nodes < SEARCH_ONLY_FROM:
            packings.append(self.simplest_packing(best))
        packer, start = self._packer_for(best.result), SearchStart(gap=gap)
        if room is not None:
            alike = _leaving_the_same([*packings, packer.searched(start)], best)
            return min(alike, key=lambda packing: packing.objective_value - room.of_packing(packing))
        cheapest, bound = min(_leaving_the_same(packings, best), key=lambda packing: packing.sort_key), -inf

        def search(_: float) -> ProvenPacking:
            return ProvenPacking(packer.searched(start), -inf)

        for attempt in (search,) if best.packing.unpacked else (packer.exact, search, packer.exact_after_search):
            proven = attempt(cheapest.objective_value)
            alike = _leaving_the_same([] if proven.packing is None else [proven.packing], best)
            cheapest = min((cheapest, *alike), key=lambda packing: packing.sort_key)
            bound = max(bound, proven.bound)
            if cheapest.objective_value <= bound + TOLERANCE:
                return replace(cheapest, is_optimal=True)
        return cheapest

    def _within_node_shares(self, best: PassOutcome, cheapest: Packing, shares: NodeShares) -> Packing:
        """The cheapest packing without a node that has more than its share of the pods, if that leaves out no further pod.

        Without the share that no NodePool asks for, where it costs too much. One with no more than the usual number of pods on
        any node, if that costs about the same.
        """
        plan_pods = sum(claim.pod_count for claim in cheapest.claims)
        gap = _search_gap(best.result, shares)
        start = FULL_SEARCH if gap is None else SearchStart(cheapest.pod_values, gap)
        within = self._capped(best, cheapest, partial(shares.max_pods_in, plan_pods=plan_pods), start) or cheapest
        kept, chosen = shares, within
        without = shares.without_default()
        pools = {claim.template.name for claim in (*cheapest.claims, *within.claims)}
        is_other = any(without.max_pods_in(pool, plan_pods) > shares.max_pods_in(pool, plan_pods) for pool in pools)
        if is_other and not is_about_as_cheap(within, cheapest, MAX_SHARE_COST):
            relaxed = self._capped(best, cheapest, partial(without.max_pods_in, plan_pods=plan_pods), start)
            if relaxed is not None and not is_about_as_cheap(within, relaxed, MAX_SHARE_COST):
                kept, chosen = without, relaxed
        usual = self._capped(best, chosen, partial(kept.usual_pods_in, plan_pods=plan_pods), start)
        if usual is not None and is_about_as_cheap(usual, chosen, USUAL_EXTRA_COST):
            chosen = usual
        price = sum_of_prices(chosen.claims)
        saving = 0.0 if kept is shares else sum_of_prices(within.claims) - price
        return replace(
            chosen,
            node_share_cost=max(0.0, price - sum_of_prices(cheapest.claims)),
            node_share_saving=saving,
        )

    def _capped(
        self, best: PassOutcome, cheapest: Packing, max_pods_in: Callable[[str], int], start: SearchStart
    ) -> Packing | None:
        """The cheapest packing with so many pods at most on a node of a NodePool; None where that leaves out further pods."""
        most = {pool: max_pods_in(pool) for pool in {claim.template.name for claim in cheapest.claims}}
        if all(claim.pod_count <= most[claim.template.name] for claim in cheapest.claims):
            return cheapest
        capped = CappedDemands([keyed_demand.demand for keyed_demand in best.result.demands], max_pods_in)
        packer = self._new_packer(capped.demands, best.result)
        searched = packer.searched(start)
        is_large = best.result.pods_needing_nodes >= SEARCH_ONLY_FROM
        other = packer.classic_below(searched) if is_large else packer.best_value()
        alike = _no_worse_placed([searched] if other is None else [searched, other], cheapest)
        if not alike and is_large:
            alike = _no_worse_placed([packer.best_value()], cheapest)
        if not alike:
            return None
        chosen = min(alike, key=lambda packing: packing.sort_key)
        return replace(chosen, claims=capped.with_own_templates(chosen.claims))

    def _improved(self, first: PassOutcome) -> PassOutcome:
        """The best that other ways make of an outcome that leaves pods out."""
        best = first
        for way in plans_with_other_caps(first):
            best = self._better_of(way, best)
        if self._schedulable_alone(best):
            best = self._with_groups_added(self._with_unschedulable_first(best))
        return self._best_by_priority(best)

    def _schedulable_alone(self, outcome: PassOutcome) -> bool:
        """Whether those left out, limits aside, would fare better were they alone."""
        unschedulable = outcome.result.unschedulable
        groups = {failed.group for failed in unschedulable if failed.group.membership or not failed.limited}
        alone = tuple(
            group for group in groups_first(outcome.unschedulable_by_group, outcome.pass_plan.groups) if group in groups
        )
        if not alone:
            return False
        missed = self._run_plan(PassPlan(alone)).unschedulable_by_group
        return any(missed[group] < outcome.unschedulable_by_group[group] for group in alone)

    def _with_unschedulable_first(self, best: PassOutcome) -> PassOutcome:
        """Place the groups with unschedulable pods first, if that helps; repeat with the groups that this leaves out."""
        for _ in range(MAX_REORDERINGS):
            pass_outcome = self._better_of(
                PassPlan(groups_first(best.unschedulable_by_group, best.pass_plan.groups)), best
            )
            if pass_outcome is best:
                break
            best = pass_outcome
        return best

    def _with_groups_added(self, best: PassOutcome) -> PassOutcome:
        """Place unschedulable groups last, one by one, where there is room beside all others, which get no more than before."""
        for group in [*best.unschedulable_by_group][:MAX_ADDITIONS]:
            pass_outcome = self._better_of(group_last(group, best), best)
            best = pass_outcome if pass_outcome.unschedulable_by_priority <= best.unschedulable_by_priority else best
        return best

    def _better_of(self, pass_plan: PassPlan, best: PassOutcome) -> PassOutcome:
        """What comes of the way if that leaves out fewer, else the best so far; also where there was work enough."""
        if self._pods_left_to_reschedule <= 0 or not best.unschedulable_by_group:
            return best
        other = self._run_plan(pass_plan)
        return other if other.unschedulable_by_group.total() < best.unschedulable_by_group.total() else best

    # -- the more important first ---------------------------------------------------------------------------------------

    def _best_by_priority(self, best: PassOutcome) -> PassOutcome:
        """As before, unless pods are left out that are more important than some that have a place, and could have had one."""
        top = bypassed_priority(best)
        if top is None:
            return best
        ranked = groups_by_priority(best.pass_plan.groups)
        important = self._run_plan(PassPlan(tuple(group for group in ranked if pod_priority(group.pods[0]) >= top)))
        if important.unschedulable_by_group:
            important = self._with_unschedulable_first(important)
        if not fewer_important_left(important, best, top):
            return best
        others = tuple(replace(group, keeps_placement=False) for group in ranked if pod_priority(group.pods[0]) < top)
        groups = (*important.pass_plan.groups, *others)
        for caps in (DemandCaps(), DemandCaps(per_step=closed_step_caps(others))):
            pass_outcome = self._run_plan(PassPlan(groups, caps))
            if fewer_important_left(pass_outcome, best, top):
                best = self._with_groups_added(pass_outcome) if caps else pass_outcome
        return best

    # -- one way --------------------------------------------------------------------------------------------------------

    def _run_plan(self, pass_plan: PassPlan, earlier: Sequence[PassOutcome] = ()) -> PassOutcome:
        """Repeat passes, with caps where limits left pods out, until they leave out no pod on which others may depend.

        Returns one of the ``earlier`` outcomes if the first round places the pods as that did.
        """
        caps = pass_plan.caps
        attempt = 0
        while True:
            settled = self._run_pass(pass_plan.groups, caps)
            same = next((each for each in earlier if not each.caps and is_same(each.result, settled)), None)
            if same is not None:
                return same
            self._pods_left_to_reschedule -= sum(len(group.pods) for group in pass_plan.groups)
            packing = self._pack(settled)
            left = [(settled.demands[at], count) for at, count in packing.unpacked.items()]
            if may_stay_left(left):
                return PassOutcome(pass_plan, with_limited(settled, left), packing, caps)
            attempt += 1
            closing = attempt >= MAX_CAPPED_PASSES
            caps = (
                with_step_caps(caps, settled, left, closing)
                if pass_plan.caps_in_total
                else with_demand_caps(caps, left, closing)
            )

    def _run_pass(self, groups: Sequence[EquivalenceGroup], caps: DemandCaps) -> PassResult:
        ground = self._context
        known = None if caps else ground.known_result(groups)
        if known is not None:
            return known
        return SchedulingPass(
            ground.existing_nodes, ground.launch_options, ground.domains, ground.planned, caps, ground.domain_order
        ).run(groups)

    def _pack(self, result: PassResult) -> Packing:
        packer = self._packer_for(result)
        if self._is_search_enough(result):
            searched = packer.searched(SearchStart(gap=_search_gap(result, self._shares)))
            if not searched.unpacked:
                if self._lower_bounds is not None:
                    self._lower_bounds.of([keyed_demand.demand for keyed_demand in result.demands], {})
                cheaper = packer.classic_below(searched)
                return searched if cheaper is None else min(cheaper, searched, key=lambda packing: packing.sort_key)
        classic = packer.classic()
        if self._context.packing_mode is PackingMode.FEWEST_PODS:
            shared = packer.shared()
            if unpacked_by_priority(shared, result) <= unpacked_by_priority(classic, result):
                return shared
            cause = PackingFallback.TOO_MUCH_WORK if shared.is_cut_short else PackingFallback.PODS_LEFT_OUT
            return replace(classic, fallback=cause)
        if self._context.packing_mode is not PackingMode.CHEAPEST or not classic.unpacked:
            return classic
        packings = [packer.best_value(), classic, packer.best_value(ReservationPolicy.SMALLEST)]
        exact = packer.exact_affinity() if all(packing.unpacked for packing in packings) else None
        pack = min(
            (*packings, *([] if exact is None else [exact])),
            key=lambda packing: (unpacked_by_priority(packing, result), packing.sort_key),
        )
        for repack in (packer.unweighted, packer.shared):
            other = repack() if pack.unpacked and self._context.limits else pack
            if unpacked_by_priority(other, result) < unpacked_by_priority(pack, result):
                pack = other
        self._departed_from_classic |= pack is not classic
        return pack

    def _is_search_enough(self, result: PassResult) -> bool:
        """Whether a search is made for the result in any case: then the classic packing is made only as far as it may be cheaper.

        Not where domains will be dealt again, so that the result may be given up.
        """
        context, pods = self._context, result.pods_needing_nodes
        cheapest = self._shares is not None and context.packing_mode is PackingMode.CHEAPEST
        is_last = pods > MAX_PODS_DEALT_AGAIN or not result.is_in_domains or may_have_many_nodes_in_domains(result)
        return cheapest and pods >= SEARCH_ONLY_FROM and is_last and not (context.limits or context.reservation_units)

    def _packer_for(self, result: PassResult) -> Packer:
        """The packer of these demands; asked for again it is the same, which remembers what it worked out."""
        keyed_demands, packer = self._last_packer
        if keyed_demands is not result.demands or packer is None:
            packer = self._new_packer([keyed_demand.demand for keyed_demand in result.demands], result)
            self._last_packer = (result.demands, packer)
        return packer

    def _new_packer(self, demands: Sequence[Demand], result: PassResult) -> Packer:
        context = self._context
        bounds = PackingBounds(context.limits, result.satisfied_affinity, context.reservation_units, context.devices)
        strict = context.strict_min_values
        return context.memory.packer(demands, bounds, relax_min_values=not strict, objective=context.objective)


def _no_worse_placed(packings: Iterable[Packing], cheapest: Packing) -> list[Packing]:
    """The packings that leave out the same pods, and have no more pods in lighter NodePools."""
    return [
        packing
        for packing in packings
        if packing.unpacked == cheapest.unpacked and packing.pods_below_weight <= cheapest.pods_below_weight
    ]


def _search_gap(result: PassResult, shares: NodeShares | None) -> float | None:
    """How near to the lower bound a search for the result ends; None: it makes all its rounds."""
    divided = shares is not None and shares.divide(result.pods_needing_nodes)
    return GAP_OF_DIVIDED_PLANS if divided else None


def _leaving_the_same(packings: Iterable[Packing], best: PassOutcome) -> list[Packing]:
    """The packings that leave out the same pods as the outcome."""
    return [packing for packing in packings if packing.unpacked == best.packing.unpacked]


def _exposed_workloads(groups: Iterable[EquivalenceGroup]) -> frozenset[ExposedWorkload]:
    """Workloads of the groups that should not be on one new node as a whole."""
    return frozenset(group.exposed_workload for group in groups if group.exposed_workload is not None)
