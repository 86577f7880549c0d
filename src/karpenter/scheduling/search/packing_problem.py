"""The packing problem as arrays: groups of pods, bin types (nodes they may be put into), and first prices for both.

Demands are one group if filling a node cannot tell them apart: equal requests, one option signature, equal use of host limits. A
host limit is counted like a resource of the node: a pod that must be alone of its sort takes all of it, one that others only
keep away from takes one unit. Rules that one sum cannot express are left out; packings check all of them again.

Candidate nodes come from `candidate_nodes`. Those that promise the most value per dollar are tried, in all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.node_filling import FillCache, LaunchChannel
from karpenter.scheduling.objective import LEAST_PRICE_PER_HOUR, Objective
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.search.candidate_nodes import BinType, CandidateNodes, CandidateRequest
from karpenter.scheduling.search.column_enumeration import Cover, CoverProblem, cheapest_cover
from karpenter.scheduling.search.distinct_rows import distinct_numbers, distinct_rows
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.lower_bound import FractionalBound, ItemTypes, fractional_bound
from karpenter.scheduling.search.node_program import (
    FEW_ASSIGNMENTS,
    MAX_ASSIGNMENTS,
    NodeRelaxation,
    cheapest_nodes,
    relaxed_nodes,
)
from karpenter.scheduling.search.offering_rows import (
    CpuSurplusRows,
    OptionSignatures,
    ResourceUnits,
    fitting,
    option_signature,
)
from karpenter.scheduling.topology.host_limits import HostLimits

#: Bin types tried at most; the rest are worse by value and price.
MAX_BIN_TYPES = 128
#: After a search larger programs are solved for so many pods: for more the work ends before anything is proven.
MAX_PODS_AFTER_SEARCH = 32
#: Pairs of nodes and item types in the linear program of first prices at most: it takes seconds beyond.
MAX_PAIRS = 10_000
#: Groups are diverse if at most so many have one option signature on average.
MAX_GROUPS_PER_SIGNATURE = 3
#: Host limits that have a column, those of most pods first.
MAX_HOST_LIMIT_COLUMNS = 16
#: Units of a host limit on one node: a pod that keeps others away takes all, one that is kept away takes one.
HOST_LIMIT_CAPACITY = 1 << 20


@dataclass(frozen=True, eq=False)
class PackingProblem:
    """Pods and bin types as arrays.

    ``groups`` are positions of demands; ``requests`` and ``capacities`` have resources, then host limits, in columns.

    ``admits`` says which bin types could hold one pod of a group, ``accepts`` which would have pods of a signature at all,
    ``signatures`` the signature of each group. ``prices`` are USD per hour with the fee of a node and all CPU beyond the
    baseline that it may hold (``surplus``): a burstable type is there twice, with its baseline for capacity and with all of its
    CPU. ``pod_values`` say what a pod of each group is worth, ``resource_values`` what one unit of each column is worth on each
    bin type: how much of a node's price a pod deserves there.
    """

    groups: tuple[tuple[int, ...], ...]
    counts: FloatArray
    requests: FloatArray
    bin_types: tuple[BinType, ...]
    capacities: FloatArray
    prices: FloatArray
    admits: BoolArray
    signatures: IntArray
    accepts: BoolArray
    pod_values: FloatArray
    resource_values: FloatArray
    #: So many of the columns are resources.
    resource_columns: int
    #: How many pods of each group one node should take at most, so that no workload is too exposed.
    max_per_node: FloatArray
    surplus: CpuSurplusRows
    cpu_column: int
    #: USD per hour with fees that all pods cost at least; nearly that where the linear program leaves nodes out.
    lower_bound: float

    def prices_with(self, requests: FloatArray) -> FloatArray:
        """USD per hour of every node if pods request so much on it, a row for each row of requests."""
        burstable = np.flatnonzero(self.surplus.prices)
        prices = np.repeat(self.prices[None, :], len(requests), axis=0)
        if len(burstable):
            unused = self.capacities[None, burstable, self.cpu_column] - np.maximum(
                requests[:, self.cpu_column, None], self.surplus.baselines[None, burstable]
            )
            prices[:, burstable] -= self.surplus.prices[burstable] * np.maximum(unused, 0.0)
        return prices

    def values_by_demand(self, pod_values: FloatArray) -> dict[int, float]:
        """Values of groups as values of the demands in them, by position."""
        return {at: value for group, value in zip(self.groups, pod_values.tolist(), strict=True) for at in group}

    def values_of_groups(self, by_demand: Mapping[int, float]) -> FloatArray | None:
        """The same for each group; None where one has no value."""
        if any(group[0] not in by_demand for group in self.groups):
            return None
        return np.array([by_demand[group[0]] for group in self.groups])

    def subset(self, groups: IntArray) -> PackingProblem:
        """The same problem for some of the groups. A bound for all of them holds for none fewer, so there is none then."""
        return replace(
            self,
            lower_bound=self.lower_bound if len(groups) == len(self.groups) else 0.0,
            groups=tuple(self.groups[at] for at in groups.tolist()),
            counts=self.counts[groups],
            requests=self.requests[groups],
            admits=self.admits[:, groups],
            signatures=self.signatures[groups],
            pod_values=self.pod_values[groups],
            max_per_node=self.max_per_node[groups],
        )


@dataclass(frozen=True, eq=False)
class PackingRequest:
    """What is to be packed: the demands at ``positions``, with the pods ``left`` of each and its options now.

    ``types_within`` says which types limits leave of each NodePool (None: all), ``strict_min_values`` whether minValues hold.
    Equal channels in ``allowed`` would bring the same candidate nodes more than once. ``limits``: what is left of limits by
    NodePool, where types that take less of them matter. ``reservation_units``: what is left of reservations and stocks, where the
    nodes of reservations are candidates like others.
    """

    demands: Sequence[Demand]
    positions: Sequence[int]
    left: Sequence[int]
    allowed: Mapping[int, tuple[tuple[LaunchOption, TypeSet], ...]]
    types_within: Mapping[str, TypeSet | None]
    fill_cache: FillCache
    objective: Objective
    strict_min_values: bool
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reservation_units: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class GroupedCover:
    """A cover problem, the positions of the demands of each group, and what its candidate nodes are.

    ``is_diverse``: few groups accept the same nodes. Else the columns that are nearly worth their cost are too many.
    """

    problem: CoverProblem
    groups: tuple[tuple[int, ...], ...]
    bin_types: tuple[BinType, ...]
    is_diverse: bool
    #: Whether a program was solved to its end. After the search it has the same optimum, and pods that did not divide.
    _is_solved: bool = field(default=False, init=False)

    def cheapest_cover(self, known_cost: float) -> Cover | None:
        """The cheapest cover as far as it is found; ``known_cost``: that of some packing, in USD per hour."""
        if self.is_diverse:
            return cheapest_cover(self.problem)
        return self._cheapest_nodes(known_cost, FEW_ASSIGNMENTS)

    def cheapest_cover_after_search(self, known_cost: float) -> Cover | None:
        """The same with more work, where that may find more."""
        if self.is_diverse or self._is_solved:
            return None
        few_pods = self.problem.counts.sum() <= MAX_PODS_AFTER_SEARCH
        return self._cheapest_nodes(known_cost, MAX_ASSIGNMENTS if few_pods else FEW_ASSIGNMENTS)

    def _cheapest_nodes(self, known_cost: float, max_assignments: int) -> Cover | None:
        relaxation = self._relaxation
        cover = None if relaxation is None else cheapest_nodes(self.problem, relaxation, known_cost, max_assignments)
        self._is_solved |= cover is not None and cover.is_final
        return cover

    @cached_property
    def _relaxation(self) -> NodeRelaxation | None:
        return relaxed_nodes(self.problem)


def cover_problem(request: PackingRequest) -> GroupedCover | None:
    """Few pods and all nodes worth launching for them; None where a pod has no option.

    The problem allows at least what rules allow: rules by host that one sum cannot
    express, and minValues, are left out.
    """
    signatures = {option_signature([o for o, _ in request.allowed[at]]) for at in request.positions}
    grouped = _GroupedDemands(replace(request, strict_min_values=False), _own_host_limit_usage)
    if len(grouped.positions) < len(request.positions):
        return None
    candidates, first = grouped.candidates, grouped.first
    columns = grouped.usage.shape[1]
    problem = CoverProblem(
        grouped.counts,
        np.hstack([grouped.requests[first], grouped.usage[first]]),
        np.hstack([candidates.capacities, np.full((len(candidates.costs), columns), float(HOST_LIMIT_CAPACITY))]),
        candidates.list_costs,
        grouped.admits,
        candidates.surplus.baselines,
        candidates.surplus.prices,
        grouped.cpu_column,
    )
    is_diverse = len(signatures) * MAX_GROUPS_PER_SIGNATURE >= len(request.positions)
    return GroupedCover(problem, grouped.groups, tuple(candidates.bin_types), is_diverse)


def packing_problem(request: PackingRequest) -> PackingProblem | None:
    """The problem of all demands that can be launched freely; None where there is none, or some pod fits nowhere.

    Pods that have to be beside others, and reservations, are no part of it: whatever it leaves has to be packed otherwise.
    """
    grouped = _GroupedDemands(request, _host_limit_usage)
    if not grouped.positions:
        return None
    fee = request.objective.node_fee_per_hour
    relaxation = fractional_bound(grouped.item_types, grouped.signatures.rows(), fee, {}, MAX_PAIRS)
    if relaxation is None:
        return None
    rows, first, usage = grouped.candidates, grouped.first, grouped.usage[grouped.first]
    item_type = grouped.type_of[first]
    resource_values, promise = _resource_values(rows.capacities, rows.costs, grouped.admits, relaxation, item_type)
    sensible = _max_sensible_price(grouped.counts, usage, relaxation.cost)
    kept = _promising_bin_types(promise, rows.costs, grouped.admits, sensible)
    columns = usage.shape[1]
    if not kept:
        return None
    problem = PackingProblem(
        grouped.groups,
        grouped.counts,
        np.hstack([grouped.requests[first], usage]),
        tuple(grouped.candidates.bin_types[row] for row in kept),
        np.hstack([rows.capacities[kept], np.full((len(kept), columns), float(HOST_LIMIT_CAPACITY))]),
        rows.costs[kept],
        grouped.admits[kept],
        grouped.signature_of[first],
        rows.accepts[kept],
        relaxation.pod_values[item_type],
        np.hstack([resource_values[kept], np.zeros((len(kept), columns))]),
        grouped.requests.shape[1],
        np.array([float(sum(request.demands[at].max_per_node for at in group)) for group in grouped.groups]),
        rows.surplus.pick(np.array(kept, dtype=np.intp)),
        grouped.cpu_column,
        relaxation.cost,
    )
    return problem.subset(np.flatnonzero(problem.admits.any(axis=0)))


class _GroupedDemands:
    """Demands that can be launched freely, those that fill nodes alike in one group, and the candidate nodes for all.

    ``first`` is the place of each group's first demand in arrays with a row per demand, ``admits`` says which candidate nodes
    could hold one pod of a group. ``usage`` of host limits comes from the given function.
    """

    def __init__(self, request: PackingRequest, host_limit_usage: Callable[[HostLimits], Mapping[object, int]]) -> None:
        able = [at for at in request.positions if not request.demands[at].host_affinity]
        prepaid = bool(request.reservation_units)
        options = {at: tuple(o for o, _ in request.allowed[at] if prepaid or not o.is_prepaid) for at in able}
        self.positions = [at for at in able if options[at]]
        if not self.positions:
            return
        demands = [request.demands[at] for at in self.positions]
        indexes = {id(o.template.index): o.template.index for at in self.positions for o in options[at]}
        units = ResourceUnits.for_requests([demand.requests for demand in demands], list(indexes.values()))
        self.signatures = OptionSignatures(units, request.objective.interruption_cost)
        self.signature_of = np.array([self.signatures.add(options[at]) for at in self.positions], dtype=np.intp)
        self.requests = units.request_rows([demand.requests for demand in demands])
        left = np.array([float(request.left[at]) for at in self.positions])
        self.type_of, self.item_types = _item_types(self.requests, self.signature_of, left)
        limits = [demand.host_limits for demand in demands]
        self.usage = _host_limit_columns([{} if rules is None else host_limit_usage(rules) for rules in limits], left)
        weights: FloatArray = np.bincount(self.signature_of, weights=left).astype(np.float64)
        by_channel: dict[LaunchChannel, dict[int, LaunchOption]] = {}
        for at, number in zip(self.positions, self.signature_of.tolist(), strict=True):
            for option in options[at]:
                by_channel.setdefault(option.channel, {}).setdefault(number, option)
        wanted = CandidateRequest(
            request.objective.offering_cost,
            request.types_within,
            request.fill_cache,
            request.strict_min_values,
            request.limits,
        )
        self.candidates = CandidateNodes(wanted, units, by_channel, weights)
        self.cpu_column = units.cpu_column
        merged = _merged_groups(self.type_of, self.usage)
        self.groups = tuple(tuple(self.positions[at] for at in places) for places in merged)
        self.first = [places[0] for places in merged]
        self.counts = np.array([left[list(places)].sum() for places in merged])
        rows = self.candidates
        fits = fitting(self.requests[self.first], rows.capacities)
        self.admits: BoolArray = rows.accepts[:, self.signature_of[self.first]] & fits


def _item_types(requests: FloatArray, signature_of: IntArray, left: FloatArray) -> tuple[IntArray, ItemTypes]:
    """Demands with equal requests and one option signature; which item type each is of."""
    first, type_of = distinct_rows(np.column_stack([requests, signature_of.astype(np.float64)]))
    counts: FloatArray = np.bincount(type_of, weights=left).astype(np.float64)
    return type_of, ItemTypes(counts, requests[first], signature_of[first].tolist())


def _merged_groups(type_of: IntArray, usage: FloatArray) -> list[list[int]]:
    """Places of demands that one group stands for, in the order of demands."""
    merged: dict[tuple[int, bytes], list[int]] = {}
    for at, item_type in enumerate(type_of.tolist()):
        merged.setdefault((item_type, usage[at].tobytes()), []).append(at)
    return list(merged.values())


def _host_limit_columns(taken: Sequence[Mapping[object, int]], left: FloatArray) -> FloatArray:
    """What each demand takes of every host limit that is counted. ``taken``: by demand, what a pod takes of each."""
    weights: dict[object, float] = {}
    for mapping, count in zip(taken, left.tolist(), strict=True):
        for rule, amount in mapping.items():
            weights[rule] = weights.get(rule, 0.0) + (count if amount > 1 else 0.0)
    weighted = (rule for rule, weight in weights.items() if weight)
    ranked = sorted(weighted, key=lambda rule: -weights[rule])[:MAX_HOST_LIMIT_COLUMNS]
    column = {rule: at for at, rule in enumerate(ranked)}
    zeros = np.zeros((len(taken), len(ranked)))
    for at, mapping in enumerate(taken):
        for rule, amount in mapping.items():
            if rule in column:
                zeros[at, column[rule]] = amount
    return zeros


def _host_limit_usage(host_limits: HostLimits) -> dict[object, int]:
    """How many units of each host limit of a node one pod takes."""
    usage: dict[object, int] = dict.fromkeys(host_limits.repelled_by, 1)
    for constraint in host_limits.others_spread:
        usage[constraint] = HOST_LIMIT_CAPACITY // max(1, constraint.term.max_skew)
    for constraint, itself in host_limits.spread:
        if itself:
            usage[constraint] = HOST_LIMIT_CAPACITY // max(1, constraint.term.max_skew)
    for constraint, itself in host_limits.anti_affinity:
        if itself:
            usage[constraint] = HOST_LIMIT_CAPACITY
    usage.update(dict.fromkeys(host_limits.ports, HOST_LIMIT_CAPACITY))
    return usage


def _own_host_limit_usage(host_limits: HostLimits) -> dict[object, int]:
    """The same without what could forbid a legal node: spreads of others bind only beside pods that spread so."""
    usage = _host_limit_usage(host_limits)
    own = {constraint for constraint, _ in host_limits.spread}
    for constraint in host_limits.others_spread:
        if constraint not in own:
            usage.pop(constraint, None)
    exposed = host_limits.exposed_workload
    if exposed is not None and not exposed.max_per_node_by_pool:
        usage[exposed] = HOST_LIMIT_CAPACITY // max(1, exposed.max_per_node)
    return usage


def _resource_values(
    capacities: FloatArray, prices: FloatArray, admits: BoolArray, relaxation: FractionalBound, waiting: IntArray
) -> tuple[FloatArray, FloatArray]:
    """For each bin type what its columns are worth, and the most value per dollar it can promise.

    What the linear program says of one bin type holds of any other that admits no more item types: the least such promise
    counts.
    """
    admitted = relaxation.admits[:, waiting]
    admits_unknown = admits.astype(np.float32) @ (~admitted).astype(np.float32).T > 0
    value = np.zeros((len(prices), len(admitted)))
    for column in range(capacities.shape[1]):
        value += capacities[:, column, None] * relaxation.resource_values[None, :, column]
    promise = np.where(admits_unknown, np.inf, value / np.maximum(prices, LEAST_PRICE_PER_HOUR)[:, None])
    best = promise.argmin(axis=1)
    plain = prices[:, None] / np.maximum(capacities, 1.0) / capacities.shape[1]
    unknown = ~np.isfinite(promise.min(axis=1, initial=np.inf))
    chosen = np.where(unknown[:, None], plain, relaxation.resource_values[best] + _PLAIN_VALUE_SHARE * plain)
    return chosen, np.where(unknown, 1.0, promise.min(axis=1, initial=np.inf))


def _promising_bin_types(promise: FloatArray, prices: FloatArray, admits: BoolArray, sensible: float) -> list[int]:
    """Bin types worth trying: all sizes of those with good and not too expensive offers, small sizes closer together.

    For every group at least a few it may use are among them.
    """
    if not len(promise):
        return []
    ranked = np.argsort(-promise, kind="stable")
    good = np.flatnonzero((prices <= sensible) & (promise >= (_MIN_PROMISE if len(promise) > MAX_BIN_TYPES else 0.0)))
    chosen = _spread_by_price(good, prices)
    is_chosen: BoolArray = np.zeros(len(promise), dtype=bool)
    is_chosen[chosen] = True
    for group in np.flatnonzero(~admits[is_chosen].any(axis=0)).tolist():
        usable = ranked[admits[ranked, group]]
        if not is_chosen[usable].any():
            is_chosen[usable[np.argsort(prices[usable], kind="stable")][:3]] = True
            is_chosen[usable[:3]] = True
    chosen = np.flatnonzero(is_chosen).tolist()
    return sorted(chosen, key=lambda row: (-promise[row], row))


def _spread_by_price(rows: IntArray, prices: FloatArray) -> list[int]:
    """At most `MAX_BIN_TYPES` of the rows, their prices in steps of about equal ratio."""
    ordered = rows[np.argsort(prices[rows], kind="stable")]
    if len(ordered) <= MAX_BIN_TYPES:
        return [int(row) for row in ordered]
    logs = np.log(np.maximum(prices[ordered], LEAST_PRICE_PER_HOUR))
    marks = np.linspace(logs[0], logs[-1], MAX_BIN_TYPES)
    unique = distinct_numbers(np.searchsorted(logs, marks - 1e-12))
    return [int(row) for row in ordered[np.minimum(unique, len(ordered) - 1)]]


def _max_sensible_price(counts: FloatArray, usage: FloatArray, cost: float) -> float:
    """USD per hour above which a node is too large: rules by host ask for so many nodes that they must be small."""
    nodes = float((counts @ usage).max(initial=0.0)) / HOST_LIMIT_CAPACITY
    return _MAX_TIMES_AVERAGE_PRICE * cost / nodes if nodes >= 1 else np.inf


#: Bin types that promise so much of their price are tried, smaller ones before others.
_MIN_PROMISE = 0.8
#: Where rules by host ask for many nodes: as many times the average price a node may cost.
_MAX_TIMES_AVERAGE_PRICE = 4.0
#: How much of a plain share is mixed into what resources are worth, so that none is worth nothing.
_PLAIN_VALUE_SHARE = 1e-3
