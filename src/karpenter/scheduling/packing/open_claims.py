"""Claims that still take pods: for pods that limits leave out, and for Karpenter's own order of filling.

Packings close one claim before they open the next (`packer`), which is fast and needs no rule for weights of open claims.
Where limits leave pods out, that is not enough: a claim opened for others may have room, or could grow to a larger type within
the limits. `OpenClaims` keeps every claim of a plan open. A pod joins a claim of any pool; the claim's types follow its pods and
its reservation follows its types.

Work: each claim is tried once per demand, and once more for each pod that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.node_filling import FillCache, LaunchChannel
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.remaining_capacity import max_capacity, types_within_limits
from karpenter.scheduling.packing.limit_reservations import reserved_types
from karpenter.scheduling.packing.packing_state import PackingState
from karpenter.scheduling.topology.host_limits import HostUsage

#: A claim is tried at most so often in one packing; pods that are left then stay left.
MAX_TRIES = 100_000


@dataclass(slots=True)
class _OpenClaim:
    """A claim, the pods on its host by topology, and the types its pods allow whatever they request together.

    ``rank``: of claims with as many pods the least comes first.
    """

    claim: SchedulingNodeClaim
    usage: HostUsage
    allowed: TypeSet
    pod_count: int = 0
    rank: int = 0


class OpenClaims:
    """The claims of one packing, all of them open. ``state`` keeps what is left of limits."""

    def __init__(
        self, demands: Sequence[Demand], fill_cache: FillCache, state: PackingState, objective: Objective
    ) -> None:
        self._demands = demands
        self._fill_cache = fill_cache
        self._state = state
        self._objective = objective
        self._options: list[Mapping[LaunchChannel, LaunchOption]] = [
            {option.channel: option for option in demand.options} for demand in demands
        ]
        self._open: list[_OpenClaim] = []
        self._tries_left = MAX_TRIES
        self._least_rank = 0

    @property
    def is_cut_short(self) -> bool:
        """Whether claims are tried no more, so that pods may be left that some would take."""
        return self._tries_left <= 0

    @property
    def claims(self) -> list[SchedulingNodeClaim]:
        """The claims as they are now."""
        return [opened.claim for opened in self._open]

    def add(self, claims: Iterable[SchedulingNodeClaim]) -> None:
        """Open claims that other packings have filled, whose limits are reserved."""
        for claim in claims:
            usage = HostUsage(pool=claim.template.name)
            for position, count in claim.contents:
                rules = self._demands[position].host_limits
                if rules is not None:
                    rules.record(usage, count)
            pod_count = sum(count for _, count in claim.contents)
            self._open.append(_OpenClaim(claim, usage, self._allowed_types(claim), pod_count, len(self._open)))

    def possible_types(self, claim: SchedulingNodeClaim) -> TypeSet:
        """Every type that holds the claim's pods for the price of its offering, limits aside."""
        requirements = self._fill_cache.canonical(claim.requirements)
        possible = self._fill_cache.possible_types(claim.template, requirements)
        possible &= self._allowed_types(claim) & self._fill_cache.types_holding(
            claim.template, claim.requests, claim.contents
        )
        return claim.template.cpu_surpluses.types_at_list_price(possible, claim.requests)

    def offer(self, position: int, count: int) -> int:
        """Put so many pods of a demand into the claims whose price rises least; how many found no room."""
        ranked: list[tuple[float, int]] = []
        for at, opened in enumerate(self._open):
            joined = self._joined(opened, position)
            if joined is not None:
                ranked.append((self._price_rise(opened, joined[0]), at))
        heapify(ranked)
        while count and ranked:
            _, at = heappop(ranked)
            joined = self._joined(self._open[at], position)
            if joined is not None:
                self._join(self._open[at], position, *joined)
                count -= 1
                further = self._joined(self._open[at], position)
                if further is not None:
                    heappush(ranked, (self._price_rise(self._open[at], further[0]), at))
        return count

    def fill_fewest_first(self, position: int, count: int, start: Sequence[SchedulingNodeClaim]) -> int:
        """Put pods into the claims with the fewest pods, else into a new one (SCH-260); how many found no room.

        ``start``: empty claims to begin from, in the order of pools. Of claims with as many pods the one that grew last comes
        first, and new ones in the order in which they were opened: that is what it comes to when a list is sorted anew for each
        pod and equal ones keep their order.
        """
        ranked = [(opened.pod_count, opened.rank, at) for at, opened in enumerate(self._open)]
        heapify(ranked)
        for placed in range(count):
            at = self._fill_next(position, ranked)
            if at is None:
                at = self._opened_for(position, start)
            if at is None:
                return count - placed
            heappush(ranked, (self._open[at].pod_count, self._open[at].rank, at))
        return 0

    def _fill_next(self, position: int, ranked: list[tuple[int, int, int]]) -> int | None:
        """Put one pod into the first claim that takes it; those that do not are not tried again."""
        while ranked:
            _, _, at = heappop(ranked)
            joined = self._joined(self._open[at], position)
            if joined is not None:
                self._join(self._open[at], position, *joined)
                self._least_rank -= 1
                self._open[at].rank = self._least_rank
                return at
        return None

    def _opened_for(self, position: int, start: Sequence[SchedulingNodeClaim]) -> int | None:
        """Open the first claim that limits allow and that takes a pod of the demand."""
        if not self._state.can_be_first(position):
            return None
        for empty in start:
            opened = _OpenClaim(empty, HostUsage(pool=empty.template.name), empty.types)
            joined = self._joined(opened, position) if self._state.may_open(empty) else None
            if joined is not None:
                self._state.reserve_node(empty)
                self._join(opened, position, *joined)
                opened.rank = len(self._open)
                self._open.append(opened)
                return len(self._open) - 1
        return None

    def _joined(self, opened: _OpenClaim, position: int) -> tuple[SchedulingNodeClaim, TypeSet] | None:
        """The claim with one more pod and the types its pods allow then; None where the pod may not join."""
        claim, demand = opened.claim, self._demands[position]
        option = self._options[position].get(claim.channel)
        if option is None or self._tries_left <= 0:
            return None
        self._tries_left -= 1
        rules = demand.host_limits
        if rules is not None and not rules.count_allowed(opened.usage, 1, self._state.unstarted_affinity):
            return None
        requirements = self._fill_cache.canonical(claim.requirements)
        joined = self._fill_cache.joined(claim.template, requirements, option)
        if joined is None:
            return None
        narrowed, allowed = joined[0], opened.allowed & joined[1]
        requests = res.add(claim.requests, demand.requests)
        held = allowed & self._fill_cache.possible_types(claim.template, narrowed)
        contents = claim.contents_with(position, 1)
        held &= self._fill_cache.types_holding(claim.template, requests, contents) & self._types_within_budget(claim)
        if not held or not claim.template.index.satisfies_min_values(narrowed, held):
            return None
        grown = replace(claim, requirements=narrowed, types=held, requests=requests, contents=contents)
        limits = self._state.limits.get(claim.template.name)
        if limits is not None:
            grown = replace(grown, types=reserved_types(grown, limits, self._state.reservation_policy))
        return grown, allowed

    def _types_within_budget(self, claim: SchedulingNodeClaim) -> TypeSet:
        """Types that limits allow in place of what the claim has reserved."""
        limits = self._state.limits.get(claim.template.name)
        if limits is None:
            return claim.template.types
        reserved = self._reserved(claim)
        budget = {name: left + reserved.get(name, 0) for name, left in limits.items() if name != res.NODES}
        return types_within_limits(claim.template, budget)

    def _join(self, opened: _OpenClaim, position: int, claim: SchedulingNodeClaim, allowed: TypeSet) -> None:
        self._state.exchange_reservation(claim.template, self._reserved(opened.claim), self._reserved(claim))
        rules = self._demands[position].host_limits
        if rules is not None:
            rules.record(opened.usage, 1)
        self._state.unstarted_affinity.start_affinities([self._demands[position]])
        opened.claim, opened.allowed, opened.pod_count = claim, allowed, opened.pod_count + 1

    def _reserved(self, claim: SchedulingNodeClaim) -> Resources:
        """What a claim with pods reserves of limits; an empty one reserves nothing yet."""
        limited = claim.template.name in self._state.limits and claim.contents
        return max_capacity(claim.template, claim.types) if limited else {}

    def _allowed_types(self, claim: SchedulingNodeClaim) -> TypeSet:
        allowed = claim.template.types
        for position, _ in claim.contents:
            option = self._options[position].get(claim.channel)
            allowed &= option.types if option is not None else 0
        return allowed

    def _price_rise(self, opened: _OpenClaim, joined: SchedulingNodeClaim) -> float:
        return self._objective.claim_cost(joined) - self._objective.claim_cost(opened.claim)
