"""The cheapest packing of a few pods, proven: every claim that rules allow is a column, and the best partition is computed.

For few pods no heuristic is needed: all sets of pods that may share a node are enumerated, with the checks that packings make,
so every constraint between pods and nodes counts. Dynamic programming over the sets of pods that are left finds the cheapest
partition into columns.

Work doubles with each pod that differs from the others, so it is done for up to `MAX_STATES` sets of at most `MAX_PODS` pods:
twelve different pods, or three groups of eighteen. Every launch channel enumerates the sets of the pods that may use it, so
these are bounded, too, by `MAX_COLUMNS`: five different NodePools for twelve different pods.

Alternatives: HiGHS with the same columns took 3 s for twelve pods where the linear relaxation is weak; a program that assigns
pods to nodes takes longer still, because equal nodes are symmetric. More pods that narrow different labels are covered by
columns with a bound (`search/column_enumeration`), which needs no enumeration of all sets.

Affinity by host is a rule about a whole column: some order of its pods must bring each after one that it must be beside. A pod
may be the first that its own affinity means only if no such pod is on another node. The order of binding is unknown, so a
column that begins an affinity has all pods that it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.scheduling.demand import Demand, Packing, SchedulingNodeClaim
from karpenter.scheduling.node_filling import FillCache, LaunchChannel
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.packing.affinity_groups import HostAffinityCheck
from karpenter.scheduling.search.linear_program import FloatArray, IntArray
from karpenter.scheduling.topology.host_limits import HostUsage
from karpenter.scheduling.topology.topology_groups import TopologyGroup
from karpenter.state.snapshot import pod_priority

#: Up to so many different sets of pods are tried; more pods are left to the search.
MAX_STATES = 7_000
#: Up to so many sets in all launch channels together, each of which may become a column; 10,000 take about 1 s.
MAX_COLUMNS = 21_000
#: Up to so many pods; of more equal pods the search loses next to nothing, and columns grow with the pods on a node.
MAX_PODS = 60
#: USD per hour for each node, so that of packings that cost the same the one with the fewest nodes is taken.
_FEWER_NODES = 1e-11

#: The options of each demand within its heaviest pools, with the types that may be launched.
AllowedOptions = Sequence[Sequence[tuple[LaunchOption, TypeSet]]]
EmptyClaim = Callable[[LaunchOption, TypeSet], SchedulingNodeClaim]


@dataclass(frozen=True)
class PackingRules:
    """What columns are made with: how pods join, what a node costs, how a claim begins, affinities that have begun elsewhere."""

    fill_cache: FillCache
    objective: Objective
    empty_claim: EmptyClaim
    satisfied_affinity: frozenset[TopologyGroup] = frozenset()


@dataclass(frozen=True)
class ProvenPacking:
    """A packing, if one was found, and USD per hour by the objective that no packing of the same pods costs less than."""

    packing: Packing | None
    bound: float


NOTHING_PROVEN = ProvenPacking(None, -inf)


def least_cost(claims: Sequence[SchedulingNodeClaim], demands: Sequence[Demand], objective: Objective) -> float:
    """What no packing costs less than, given the cheapest claims; claims that leave pods out prove nothing."""
    served = sum(claim.pod_count for claim in claims)
    return objective.total_cost(claims) if served == sum(len(demand.pods) for demand in demands) else -inf


def cheapest_claims(
    demands: Sequence[Demand], allowed: AllowedOptions, rules: PackingRules
) -> list[SchedulingNodeClaim] | None:
    """Claims for all pods that affinity by host lets have a node, at the least objective; None where the pods are too many."""
    counts = np.array([len(demand.pods) for demand in demands], dtype=np.intp)
    if not has_few_sets(demands, MAX_STATES) or _max_columns(demands, allowed) > MAX_COLUMNS:
        return None
    columns = possible_claims(demands, allowed, rules)
    costs = np.array([rules.objective.claim_cost(column) + _FEWER_NODES for column in columns])
    may_leave_out = any(demand.host_affinity for demand in demands)
    partitions = _CheapestPartitions(costs, contents_matrix(columns, len(demands)), counts, only_all=not may_leave_out)
    state = partitions.most_important(demands)
    return None if state is None else [columns[row] for row in partitions.rows_of(state)]


def has_few_sets(demands: Sequence[Demand], max_sets: int) -> bool:
    """Whether all sets of pods that may share a node can be tried."""
    return are_few(demands) and prod(len(demand.pods) + 1 for demand in demands) <= max_sets


def are_few(demands: Sequence[Demand]) -> bool:
    """Whether an exact packing of the pods is tried at all."""
    return 0 < sum(len(demand.pods) for demand in demands) <= MAX_PODS


def _max_columns(demands: Sequence[Demand], allowed: AllowedOptions) -> int:
    """How many sets of pods there are in all channels, each with the pods that may use it."""
    sets: dict[LaunchChannel, int] = {}
    for demand, options in zip(demands, allowed, strict=True):
        for channel in {option.channel for option, _ in options}:
            sets[channel] = sets.get(channel, 1) * (len(demand.pods) + 1)
    return sum(sets.values())


def possible_claims(
    demands: Sequence[Demand], allowed: AllowedOptions, rules: PackingRules
) -> list[SchedulingNodeClaim]:
    """A claim for every set of pods that may share a node of a NodePool."""
    return _Columns(demands, allowed, rules).enumerate()


def contents_matrix(claims: Sequence[SchedulingNodeClaim], demand_count: int) -> IntArray:
    """How many pods of each demand (columns) are on each claim (rows)."""
    matrix = np.zeros((len(claims), demand_count), dtype=np.intp)
    for row, claim in enumerate(claims):
        for position, count in claim.contents:
            matrix[row, position] = count
    return matrix


def may_be_covered(demands: Sequence[Demand]) -> bool:
    """Whether the pods are few enough to be covered by enumerated columns, and none has to be beside another."""
    return are_few(demands) and not any(demand.host_affinity for demand in demands)


class _CheapestPartitions:
    """For every set of the pods the rows of the matrix that add up to it at the least cost, by dynamic programming.

    The pods of a state are a number, a digit per demand. A column fits a state if no digit is larger; guard bits between the
    digits show that in one subtraction. The next column always holds the first pod left, so no partition is visited twice.

    ``only_all``: sets without the first pod matter only as what its column leaves.
    """

    def __init__(self, costs: FloatArray, matrix: IntArray, counts: IntArray, *, only_all: bool) -> None:
        self._counts = counts
        digits = [int(count).bit_length() + 1 for count in counts]
        strides = np.concatenate([np.ones(1, dtype=np.int64), np.cumprod(counts[:-1] + 1)])
        shifts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(digits)])
        guards = int(sum(1 << (int(shift) - 1) for shift in shifts[1:]))
        self._numbers, bits = matrix @ strides, matrix @ (1 << shifts[:-1])
        first = (matrix > 0).argmax(axis=1)
        by_first = [(rows, bits[rows]) for rows in (np.flatnonzero(first == at) for at in range(len(counts)))]
        total = int(np.prod(counts + 1))
        self._states = np.stack(np.unravel_index(np.arange(total), tuple(counts + 1), order="F"), axis=1)
        state_bits, state_first = self._states @ (1 << shifts[:-1]), (self._states > 0).argmax(axis=1)
        self._least, self._taken = np.full(total, np.inf), np.full(total, -1, dtype=np.intp)
        self._least[0] = 0.0
        for state in range(1, total):
            if only_all and counts[0] == 1 and state_first[state] == 0 and state != total - 1:
                continue  # the first pod leaves with the first column
            rows, row_bits = by_first[state_first[state]]
            rows = rows[((int(state_bits[state]) | guards) - row_bits) & guards == guards]
            if len(rows):
                totals = costs[rows] + self._least[state - self._numbers[rows]]
                best = int(totals.argmin())
                self._least[state], self._taken[state] = totals[best], rows[best]

    def most_important(self, demands: Sequence[Demand]) -> int | None:
        """The state whose pods can have nodes and that leaves out the fewest pods of the highest priority, then of the next.

        Only pods that must be beside others are left out, the last of each demand first. Among equals the
        cheapest state; None without any.
        """
        left_out = self._counts - self._states
        others = [at for at, demand in enumerate(demands) if not demand.host_affinity]
        states = np.flatnonzero(np.isfinite(self._least) & (left_out[:, others] == 0).all(axis=1))
        priorities = [[pod_priority(pod) for pod in reversed(demand.pods)] for demand in demands]
        for level in sorted({each for own in priorities for each in own}, reverse=True):
            lost = np.zeros(len(states), dtype=np.intp)
            for at, own in enumerate(priorities):
                lost_by_count = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(np.array(own) == level)])
                lost += lost_by_count[left_out[states, at]]
            states = states[lost == lost.min()] if len(states) else states
        return int(states[self._least[states].argmin()]) if len(states) else None

    def rows_of(self, state: int) -> list[int]:
        """The rows that add up to the state."""
        chosen: list[int] = []
        while state:
            chosen.append(int(self._taken[state]))
            state -= int(self._numbers[chosen[-1]])
        return chosen


class _Columns:
    """Enumerates the claims that some of the pods may share."""

    def __init__(self, demands: Sequence[Demand], allowed: AllowedOptions, rules: PackingRules) -> None:
        self._demands = demands
        self._rules = rules
        self._options: list[dict[LaunchChannel, tuple[LaunchOption, TypeSet]]] = [
            {option.channel: (option, types) for option, types in options} for options in allowed
        ]
        self._host_limits = [
            None if demand.host_limits is None else replace(demand.host_limits, affinity=()) for demand in demands
        ]
        self._host_limited = any(limits is not None for limits in self._host_limits)
        self._affinity = HostAffinityCheck(demands, rules.satisfied_affinity)

    def enumerate(self) -> list[SchedulingNodeClaim]:
        """All columns."""
        columns: list[SchedulingNodeClaim] = []
        for channel in dict.fromkeys(channel for options in self._options for channel in options):
            for first in range(len(self._demands)):
                if channel in self._options[first]:
                    option, types = self._options[first][channel]
                    empty = self._rules.empty_claim(option, types)
                    columns += self._grown(empty, first, channel)
        return columns

    def _grown(
        self, claim: SchedulingNodeClaim, position: int, channel: LaunchChannel
    ) -> Iterator[SchedulingNodeClaim]:
        """The claim with one more pod of the demand, and all that grow from it by this and later demands."""
        untried = [(claim, position)]
        while untried:
            base, added = untried.pop()
            grown = self._with_pod(base, added, channel)
            if grown is None:
                continue
            if self._affinity.holds_for(grown.contents):
                yield grown
            further = reversed(range(added, len(self._demands)))
            untried += [(grown, later) for later in further if channel in self._options[later]]

    def _with_pod(
        self, claim: SchedulingNodeClaim, position: int, channel: LaunchChannel
    ) -> SchedulingNodeClaim | None:
        demand, template = self._demands[position], claim.template
        count = dict(claim.contents).get(position, 0)
        if count == len(demand.pods):
            return None
        option, types = self._options[position][channel]
        requirements = claim.requirements
        if not count:
            joined = self._rules.fill_cache.joined(template, requirements, option)
            if joined is None:
                return None
            requirements, types = (
                joined[0],
                types & joined[1] & self._rules.fill_cache.possible_types(template, joined[0]),
            )
        requests = res.add(claim.requests, demand.requests)
        contents = claim.contents_with(position, 1)
        held = claim.types & types & self._rules.fill_cache.types_holding(template, requests, contents)
        if not held or not template.index.satisfies_min_values(requirements, held):
            return None
        if self._host_limited and not self._host_allows(claim, position):
            return None
        return replace(claim, requirements=requirements, types=held, requests=requests, contents=contents)

    def _host_allows(self, claim: SchedulingNodeClaim, position: int) -> bool:
        """Whether rules by host, affinity aside, let one more pod of the demand onto the node."""
        limits = self._host_limits[position]
        if limits is None:
            return True
        usage = HostUsage(pool=claim.template.name)
        for other, count in claim.contents:
            others = self._host_limits[other]
            if others is not None:
                others.record(usage, count)
        unmet: frozenset[TopologyGroup] = frozenset()
        return limits.count_allowed(usage, 1, unmet) > 0
