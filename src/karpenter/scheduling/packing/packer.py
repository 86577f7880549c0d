"""Which pods share a new node: the packings, and the one engine they are made of.

A packing opens one claim at a time, fills it with one pod group after another (in Karpenter's order, SCH-231) and closes
it. Filling is arithmetic on counts; when the filled pattern can be repeated it is repeated at once, so the work depends on the
number of different nodes, not of pods.

* ``classic``: a claim grows as long as any type holds its pods; the largest node that fills is taken.
* ``value``: for every type worth considering, fill it and ask what its pods would cost on nodes of their own; the type with
  the most worth per dollar is taken. Worth considering are types no other type beats on price and on every resource. Its work
  is bounded by ``MAX_FILL_STEPS``; what is still left then is packed the way of ``classic``.
* ``priced``: claims that the search proposes, as far as rules and limits agree to them; the rest goes the way of ``value``.
* ``exact``: the cheapest of all packings, for few pods (`exact_packing`), also under limits
  (`limited_packing`, `limited_columns`); ``covered`` where the proof was cut short.
* ``shared``: Karpenter's own order. All claims stay open, and a pod joins the one with the fewest pods, whatever its pool.

Pool weight is absolute: a pod group only joins claims of pools as heavy as the heaviest that can take it within what limits
leave; among equals price decides. ``shared`` and ``unweighted`` break it; they count only where every packing by weight leaves
more pods out.

Limits are reserved as claims close (SCH-384), a node counting as one (its Beyond). A claim reserves what its policy says
(`limit_reservations`). Pods that limits leave out are offered to the claims of the plan (`open_claims`); then claims are given as
many types as limits still allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

import numpy as np

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.scheduling.demand import Demand, Packing, PackingBounds, SchedulingNodeClaim, at_list_price
from karpenter.scheduling.node_filling import FillCache, NodeFill
from karpenter.scheduling.objective import LEAST_PRICE_PER_HOUR, Objective
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import relaxed_min_values
from karpenter.scheduling.packing.claim_growth import ClaimGrowth, claim_of_node, right_sized
from karpenter.scheduling.packing.cost_ceiling import CostCeiling
from karpenter.scheduling.packing.exact_packing import (
    NOTHING_PROVEN,
    PackingRules,
    ProvenPacking,
    are_few,
    cheapest_claims,
    least_cost,
    may_be_covered,
)
from karpenter.scheduling.packing.limit_reservations import ReservationPolicy, widened_claims
from karpenter.scheduling.packing.limited_columns import claim_within, patterns_within_limits
from karpenter.scheduling.packing.limited_packing import LimitedDemands, claims_within_limits, keeps_limits
from karpenter.scheduling.packing.open_claims import OpenClaims
from karpenter.scheduling.packing.packing_state import (
    PackingBasis,
    PackingState,
    pods_below_weight,
    template_equivalence,
)
from karpenter.scheduling.packing.pod_values import PodValues
from karpenter.scheduling.packing.target_types import TargetTypes
from karpenter.scheduling.search.candidate_nodes import BinType
from karpenter.scheduling.search.column_enumeration import Cover
from karpenter.scheduling.search.column_generation import PackingPattern, SearchStart, pods_of_pattern, search_patterns
from karpenter.scheduling.search.lower_bound import independent_parts
from karpenter.scheduling.search.packing_problem import GroupedCover, PackingRequest, cover_problem, packing_problem

_TINY = 1e-9

#: Chooses and fills a claim for the demand at a position, from one option and its affordable types.
_ClaimChoice = Callable[[int, LaunchOption, TypeSet, PackingState], SchedulingNodeClaim | None]


class Packer:
    """Packs one set of demands, in the order of SCH-231; calls are independent.

    ``relax_min_values``: policy BestEffort (SCH-364).
    """

    def __init__(
        self, demands: Sequence[Demand], bounds: PackingBounds, *, relax_min_values: bool, objective: Objective
    ) -> None:
        self._objective = objective
        self._demands = demands
        self._bounds = bounds
        self._relax = relax_min_values
        self._basis = PackingBasis(demands, bounds, relax_min_values=relax_min_values)
        self._fill_cache = FillCache(demands, bounds.devices)
        self._target_types = TargetTypes(demands, objective)
        self._pod_values = PodValues(demands, self._target_types, objective, self._empty_claim)
        self._template_numbers = template_equivalence(demands, self._basis.asked_labels)
        self._max_per_node = [demand.max_per_node for demand in demands]

    # -- the packings ---------------------------------------------------------------------------------------------------

    def classic(self) -> Packing:
        """Every claim grows while any type holds it."""
        return self._packed("classic", self._new_state(), [], self._grown_claim)

    def classic_below(self, searched: Packing) -> Packing | None:
        """The classic packing; None once it costs more than a search found, if pods that wait cost what the bound says."""
        state = self._new_state()
        ceiling = CostCeiling(searched, state.pods_left, self._objective)
        claims: list[SchedulingNodeClaim] = []
        unplaced: dict[int, int] = {}
        for added in self._claims_by_seed(state, self._grown_claim, unplaced):
            if ceiling.is_exceeded_with(added):
                return None
            claims += added
        return self._finished("classic", state, claims, unplaced)

    def best_value(self, policy: ReservationPolicy = ReservationPolicy.CHEAPEST) -> Packing:
        """Every claim is the one whose pods are worth most per dollar."""
        return self._packed("value", self._new_state(policy), [], self._most_valuable)

    def unweighted(self) -> Packing:
        """As `best_value`, but the weights of pools do not count."""
        return self._packed("unweighted", self._new_state(weights_bind=False), [], self._most_valuable)

    def shared(self) -> Packing:
        """Pods join the claim with the fewest pods, whatever the weight of its pool; a new claim reserves its largest type."""
        state = self._new_state(ReservationPolicy.LARGEST)
        opened = self._open_claims(state)
        unplaced: dict[int, int] = {}
        for position, demand in enumerate(self._demands):
            start = [self._empty_claim(option, option.types) for option in demand.options]
            left = opened.fill_fewest_first(position, len(demand.pods), start)
            if left:
                unplaced[position] = left
        return replace(self._finished("shared", state, opened.claims, unplaced), is_cut_short=opened.is_cut_short)

    def searched(self, start: SearchStart) -> Packing:
        """The nodes the search for cheap ones proposes; what it leaves goes the way of `value`.

        Reservations come first: what is paid for already is not searched for. Then come pods that must share a node with others,
        because the search knows no affinity by host.
        """
        run = self._new_state()
        claims = self._claims_from_reservations(run)
        claims += self._claims_for_connected_groups(run)
        within = run.types_within_by_pool()
        values: dict[int, float] = {}
        bounds: dict[int, float] = {}
        waiting = {at: [option for option, _ in run.allowed(at)] for at, count in enumerate(run.pods_left) if count}
        for part in independent_parts(waiting):
            problem = packing_problem(self._request(part, run, within))
            if problem is not None:
                found = search_patterns(problem, start)
                bounds |= problem.values_by_demand(problem.pod_values)
                values |= found.pod_values
                for each in found.patterns:
                    claims += self._claims_from_pattern(problem.groups, problem.bin_types[each.bin_type], each, run)
        packing = self._packed("priced", run, claims, self._most_valuable)
        return replace(packing, pod_values=values, bound_values=bounds)

    def exact(self, known_cost: float) -> ProvenPacking:
        """The cheapest packing of few pods or a cheap one, and what none costs less than.

        ``known_cost``: the objective of some packing of the same pods.
        """
        if not are_few(self._demands):
            return NOTHING_PROVEN
        state = self._new_state()
        if state.has_reserved_options:
            return NOTHING_PROVEN
        allowed = list(state.distinct_options(range(len(self._demands))).values())
        claims = cheapest_claims(self._demands, allowed, self._packing_rules)
        if claims is not None and (state.limits or not state.are_left(claims)):
            return self._limited_exact(claims, state)
        if claims is None:
            return (
                NOTHING_PROVEN if state.limits else self._covered(state, lambda cover: cover.cheapest_cover(known_cost))
            )
        packing = self._with_claims(claims, state)
        return ProvenPacking(packing, -inf if packing.unpacked else packing.objective_value)

    def exact_affinity(self) -> Packing | None:
        """The exact packing where pods must be on the host of others: nodes filled one by one may use up these."""
        return self.exact(inf).packing if self._basis.affinity_graph else None

    def exact_after_search(self, known_cost: float) -> ProvenPacking:
        """The same once a search found a packing of that objective: what was too much work may be less now."""
        if not are_few(self._demands):
            return NOTHING_PROVEN
        state = self._new_state()
        if state.has_reserved_options or state.limits:
            return NOTHING_PROVEN
        return self._covered(state, lambda cover: cover.cheapest_cover_after_search(known_cost))

    def within_limits(self) -> Packing | None:
        """The best packing that limits allow, whatever the weight of pools; None where the pods are too many."""
        state = self._new_state(weights_bind=False)
        options = list(state.distinct_options(range(len(self._demands))).values())
        limited = LimitedDemands(self._demands, options, state.limits, self._bounds.reservation_units)
        claims = claims_within_limits(limited, self._packing_rules)
        return self._packed_by_columns(state) if claims is None else self._with_claims(claims, state)

    def _packed_by_columns(self, state: PackingState) -> Packing | None:
        """The packing with generated columns, each limit a row; what rules refuse goes the way of `value`."""
        request = self._request(range(len(self._demands)), state, state.types_within_by_pool())
        units = self._bounds.reservation_units
        proposed = patterns_within_limits(replace(request, limits=self._bounds.limits, reservation_units=units))
        if proposed is None:
            return None
        claims: list[SchedulingNodeClaim] = []
        for each in proposed.patterns:
            contents = pods_of_pattern(proposed.groups, each.pattern, state.pods_left, self._max_per_node)
            claim = self._claim_from_pattern(contents, each.bin_type, state) if contents else None
            claim = None if claim is None else claim_within(claim, each.reserves)
            if claim is not None:
                claims += [claim] * state.commit(claim, 1)
        return self._packed("columns", state, claims, self._most_valuable)

    def _limited_exact(self, claims: Sequence[SchedulingNodeClaim], state: PackingState) -> ProvenPacking:
        """The packing with the cheapest claims, or with others where limits or stocks do not allow these."""
        narrowed = [state.limited_types(claim) for claim in claims]
        allowed = state.are_left(narrowed) and keeps_limits(narrowed, state.limits)
        packing = self._with_claims(narrowed, state) if allowed else self.within_limits()
        return ProvenPacking(packing, least_cost(claims, self._demands, self._objective))

    @property
    def _packing_rules(self) -> PackingRules:
        return PackingRules(self._fill_cache, self._objective, self._empty_claim, self._bounds.satisfied_affinity)

    def _with_claims(self, claims: Sequence[SchedulingNodeClaim], state: PackingState) -> Packing:
        """The packing with exactly these claims, which keep limits."""
        for claim in claims:
            state.commit(claim, 1)
        left = {at: count for at, count in enumerate(state.pods_left) if count}
        return self._finished("exact", state, list(claims), left)

    def _covered(self, state: PackingState, cheapest: Callable[[GroupedCover], Cover | None]) -> ProvenPacking:
        """The packing that a cheapest cover by nodes comes to, as far as rules allow it."""
        grouped = self._cover if may_be_covered(self._demands) else None
        cover = cheapest(grouped) if grouped is not None else None
        if grouped is None or cover is None:
            return NOTHING_PROVEN
        claims: list[SchedulingNodeClaim] = []
        for node, contents in zip(cover.columns.nodes.tolist(), cover.columns.contents, strict=True):
            groups = np.flatnonzero(contents).tolist()
            pattern = PackingPattern(node, tuple((group, int(contents[group])) for group in groups), 1)
            claims += self._claims_from_pattern(grouped.groups, grouped.bin_types[node], pattern, state)
        if not claims or any(state.pods_left):
            return ProvenPacking(None, cover.bound)
        return ProvenPacking(self._finished("covered", state, claims, {}), cover.bound)

    @cached_property
    def _cover(self) -> GroupedCover | None:
        """All pods as a cover problem."""
        return cover_problem(self._request(range(len(self._demands)), self._new_state(), {}))

    def _request(
        self, positions: Sequence[int], state: PackingState, types_within: Mapping[str, TypeSet | None]
    ) -> PackingRequest:
        return PackingRequest(
            self._demands,
            positions,
            state.pods_left,
            state.distinct_options(positions),
            types_within,
            self._fill_cache,
            self._objective,
            strict_min_values=not self._relax,
        )

    def _new_state(
        self, policy: ReservationPolicy = ReservationPolicy.CHEAPEST, *, weights_bind: bool = True
    ) -> PackingState:
        return PackingState(self._basis, policy, weights_bind=weights_bind)

    def _open_claims(self, state: PackingState) -> OpenClaims:
        return OpenClaims(self._demands, self._fill_cache, state, self._objective)

    def _packed(
        self, name: str, state: PackingState, claims: list[SchedulingNodeClaim], choose: _ClaimChoice
    ) -> Packing:
        """Claims for all pods that are left, beside those claimed already."""
        unplaced: dict[int, int] = {}
        for added in self._claims_by_seed(state, choose, unplaced):
            claims += added
        return self._finished(name, state, claims, unplaced)

    def _claims_by_seed(
        self, state: PackingState, choose: _ClaimChoice, unplaced: dict[int, int]
    ) -> Iterator[list[SchedulingNodeClaim]]:
        """Claims for all pods that are left, one demand after the other; pods that get none are added to ``unplaced``."""
        for seed in state.seeds():
            yield self._claims_for(seed, state, choose)
            if state.pods_left[seed] and state.can_be_first(seed):
                unplaced[seed] = state.give_up(seed)
        unplaced |= {position: count for position, count in enumerate(state.pods_left) if count}

    def _finished(
        self, name: str, state: PackingState, claims: list[SchedulingNodeClaim], unplaced: Mapping[int, int]
    ) -> Packing:
        """The packing once pods left out had a second chance, and claims have the types that limits still allow."""
        remaining: Mapping[str, Mapping[str, int]] = state.limits
        if state.limits and claims:
            opened = self._open_claims(state)
            opened.add(claims)
            offered = {position: opened.offer(position, unplaced[position]) for position in sorted(unplaced)}
            unplaced = {position: count for position, count in offered.items() if count}
            tight = {option.template.name for position in unplaced for option in self._demands[position].options}
            widened, remaining = widened_claims(opened.claims, state.limits, opened.possible_types, tight)
            claims = list(widened)
        claims = at_list_price(claims)
        return Packing(
            name,
            tuple(claims),
            unplaced,
            self._objective.total_cost(claims),
            remaining,
            pods_below_weight(self._demands, claims) if state.limits else 0,
        )

    def _claims_for(self, seed: int, state: PackingState, choose: _ClaimChoice) -> list[SchedulingNodeClaim]:
        """Claims for the pods of one demand, until no further claim is possible."""
        claims: list[SchedulingNodeClaim] = []
        while state.pods_left[seed] and state.can_be_first(seed):
            state.collect_joining()
            claim = self._next_claim(seed, state, choose)
            if claim is None:
                break
            claims += [claim] * state.commit(claim)
        return claims

    def _next_claim(self, seed: int, state: PackingState, choose: _ClaimChoice) -> SchedulingNodeClaim | None:
        """The next claim for the first waiting demand: from the heaviest pools that limits allow. Pools of equal weight compete.

        Of equal pools only the first is tried: the others would give the same claim.
        """
        chosen: list[SchedulingNodeClaim] = []
        tried: set[tuple[int, TypeSet | None, str | None]] = set()
        for option, types in state.allowed(seed):
            likeness = (
                self._template_numbers[option.template.name],
                state.types_within(option.template),
                option.reservation,
            )
            claim = choose(seed, option, types, state) if likeness not in tried else None
            tried.add(likeness)
            if claim is not None:
                chosen.append(state.limited_types(claim))
        if len(chosen) <= 1:
            return chosen[0] if chosen else None
        return min(
            chosen,
            key=lambda claim: (
                state.connected.stranded_pods(seed, dict(claim.contents)),
                self._objective.claim_cost(claim) / max(self._pod_values.of_contents(claim.contents), _TINY),
            ),
        )

    # -- what the search proposes -----------------------------------------------------------------------------------------

    def _claims_from_reservations(self, state: PackingState) -> list[SchedulingNodeClaim]:
        """Nodes from reservations, as long as they are the first option of a demand."""
        claims: list[SchedulingNodeClaim] = []
        for seed in range(len(self._demands)) if self._bounds.reservation_units else ():
            while state.pods_left[seed] and state.can_be_first(seed) and state.has_reserved_option(seed):
                state.collect_joining()
                claim = self._next_claim(seed, state, self._most_valuable)
                if claim is None or not claim.is_prepaid:
                    break
                claims += [claim] * state.commit(claim)
        return claims

    def _claims_for_connected_groups(self, state: PackingState) -> list[SchedulingNodeClaim]:
        """Claims for demands connected by affinity by host, each with the pods that fill it up best."""
        claims: list[SchedulingNodeClaim] = []
        state.collect_joining()
        for seed in state.connected.roots:
            while seed in state.connected.roots:
                claim = self._next_claim(seed, state, self._most_valuable)
                if claim is None:
                    break
                claims += [claim] * state.commit(claim)
                state.collect_joining()
        return claims

    def _claims_from_pattern(
        self, groups: Sequence[Sequence[int]], bin_type: BinType, pattern: PackingPattern, state: PackingState
    ) -> Iterator[SchedulingNodeClaim]:
        """The nodes of a pattern with pods of actual demands in them, as far as rules and limits agree."""
        times = pattern.times
        while times > 0:
            contents = pods_of_pattern(groups, pattern, state.pods_left, self._max_per_node)
            claim = self._claim_from_pattern(contents, bin_type, state) if contents else None
            claim = None if claim is None else state.limited_types(claim)
            differs_by_node = any(state.pods_left[at] > self._max_per_node[at] for at, _ in contents)
            taken = state.commit(claim, 1 if differs_by_node else times) if claim is not None else 0
            if claim is None or not taken:
                return
            times -= taken
            yield from [claim] * taken

    def _claim_from_pattern(
        self, contents: Sequence[tuple[int, int]], bin_type: BinType, state: PackingState
    ) -> SchedulingNodeClaim | None:
        """A node of this bin type with these pods, or those of them that may be there."""
        first = next(((o, types) for o, types in state.allowed(contents[0][0]) if o.channel == bin_type.channel), None)
        if first is None:
            return None
        start = self._empty_claim(*first)
        fill = NodeFill(
            self._fill_cache, start, bin_type.type_position, state.option_by_channel, state.unstarted_affinity
        )
        for position, count in contents:
            fill.add(position, count)
        if not fill.contents:
            return None
        claim = claim_of_node(start, fill, self._fill_cache)
        if not claim.types or not claim.template.index.satisfies_min_values(claim.requirements, claim.types):
            return None
        return claim

    # -- choosing a claim -------------------------------------------------------------------------------------------------

    def _empty_claim(self, option: LaunchOption, types: TypeSet) -> SchedulingNodeClaim:
        template = option.template
        requirements = option.requirements
        relaxed = self._relax and not template.index.satisfies_min_values(requirements, types)
        if relaxed:
            requirements = relaxed_min_values(requirements, template.index, types)
        return SchedulingNodeClaim(
            template, self._fill_cache.canonical(requirements), types, {}, (), relaxed, option.reservation
        )

    def _grown_claim(
        self, seed: int, option: LaunchOption, types: TypeSet, state: PackingState
    ) -> SchedulingNodeClaim | None:
        claim = self._empty_claim(option, types)
        growth = ClaimGrowth(claim, self._fill_cache, state.option_by_channel, state.unstarted_affinity)
        state.connected.begin(growth, seed)
        if not growth.contents:
            return None
        growth, _ = state.connected.add_others(growth, seed)
        growth.fill(state.fillers(seed), state.pods_left)
        return growth.claim

    def _most_valuable(
        self, seed: int, option: LaunchOption, types: TypeSet, state: PackingState
    ) -> SchedulingNodeClaim | None:
        if self._demands[seed].host_affinity:
            return self._grown_claim(seed, option, types, state)
        start = self._empty_claim(option, types)
        best: tuple[tuple[int, float], int, SchedulingNodeClaim] | None = None
        for target in state.target_types(self._target_types.of(start)):
            for claim in self._filled_claims(seed, start, target, state):
                stranded = state.connected.stranded_pods(seed, dict(claim.contents))
                score = (
                    -stranded,
                    self._pod_values.of_contents(claim.contents)
                    / max(
                        self._target_types.cost_as(claim, target, self._fill_cache.requests_of), LEAST_PRICE_PER_HOUR
                    ),
                )
                if best is None or score > best[0]:
                    best = (score, target, claim)
        if best is not None:
            state.times_chosen[best[1]] += 1
        chosen = right_sized(best[2], self._fill_cache) if best is not None else None
        if chosen is None or not chosen.template.index.satisfies_min_values(chosen.requirements, chosen.types):
            return self._grown_claim(seed, option, types, state)
        return chosen

    def _filled_claims(
        self, seed: int, start: SchedulingNodeClaim, target: int, state: PackingState
    ) -> Iterator[SchedulingNodeClaim]:
        """One node of the target type, filled up; of a burstable type also one filled within its baseline."""
        filled = self._filled_claim(seed, start, target, state)
        if filled is not None:
            yield filled
        surplus = start.template.cpu_surpluses.by_position.get(target)
        if (
            filled is None
            or surplus is None
            or not surplus.price_per_hour(self._fill_cache.requests_of(filled.contents))
        ):
            return
        filled = self._filled_claim(seed, start, target, state, max(0, surplus.pod_baseline_millis))
        if filled is not None:
            yield filled

    def _filled_claim(
        self, seed: int, start: SchedulingNodeClaim, target: int, state: PackingState, max_cpu_millis: int | None = None
    ) -> SchedulingNodeClaim | None:
        """One node of the target type, filled demand by demand; None when the first demand does not fit."""
        fill = NodeFill(self._fill_cache, start, target, state.option_by_channel, state.unstarted_affinity)
        if max_cpu_millis is not None:
            fill.limit_cpu(max_cpu_millis)
        state.connected.begin(fill, seed)
        if not fill.contents:
            return None
        fill, tried = state.connected.add_others(fill, seed)
        state.steps -= 1 + tried + fill.fill(state.fillers(seed), state.pods_left)
        contents = tuple(fill.contents.items())
        return replace(start, requirements=fill.requirements, types=fill.types, contents=contents)
