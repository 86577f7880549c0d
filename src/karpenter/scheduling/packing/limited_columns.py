"""Packings of up to a few hundred pods under limits: what `limited_packing` does for a few, by columns that are generated.

A node of a limited NodePool is a type and the amounts it reserves: the claim keeps the types that hold its pods and are no larger
than these amounts. Without minValues they are the capacity of the type. With minValues they are as much as enough types need,
and pods must fit all of these: the smallest of several types counts, and the largest is reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product

import numpy as np

from karpenter.instancetypes.type_sets import TypeSet, members, type_set
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.node_filling import LaunchChannel
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.packing.limit_reservations import limit_share
from karpenter.scheduling.search.candidate_nodes import BinType, has_min_values, type_set_of
from karpenter.scheduling.search.column_enumeration import CoverProblem
from karpenter.scheduling.search.column_generation import PackingPattern
from karpenter.scheduling.search.limited_program import LimitedCoverProblem, nodes_within_limits
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray
from karpenter.scheduling.search.offering_rows import ResourceUnits, fitting
from karpenter.scheduling.search.packing_problem import GroupedCover, PackingRequest, cover_problem

#: Pods and groups of the program at most, and groups times candidate nodes.
MAX_PODS, MAX_GROUPS, MAX_PAIRS = 400, 16, 6_000
#: Candidate nodes of a NodePool with minValues that are paired, other types that they are paired with, and amounts to reserve
#: that are tried for each node.
MAX_PAIRED_ROWS, MAX_OTHER_TYPES, MAX_RESERVATIONS = 24, 8, 4
#: By how much a pod below the weight it could have counts, and one that is not served, in the dearest node.
_COST_BELOW_WEIGHT = 10.0


@dataclass(frozen=True)
class LimitedPattern:
    """A node with pods in it, by group, and what it reserves of the limits of its NodePool; None where that has none."""

    bin_type: BinType
    pattern: PackingPattern
    reserves: Resources | None


@dataclass(frozen=True)
class LimitedPatterns:
    """Patterns, and the positions of the demands of each of their groups."""

    groups: tuple[tuple[int, ...], ...]
    patterns: tuple[LimitedPattern, ...]


def patterns_within_limits(request: PackingRequest) -> LimitedPatterns | None:
    """Nodes for as many pods as limits allow; None where pods or nodes are too many, or pods need each other on their host."""
    if sum(request.left[at] for at in request.positions) > MAX_PODS:
        return None
    grouped = cover_problem(request)
    if grouped is None or len(grouped.groups) > MAX_GROUPS or grouped.problem.admits.size > MAX_PAIRS:
        return None
    rows = _ReservingRows(request, grouped).all()
    problem = _limited_problem(request, grouped, rows)
    columns = nodes_within_limits(problem)
    if columns is None:
        return None
    patterns = []
    for node, contents in zip(columns.nodes.tolist(), columns.contents, strict=True):
        row = rows[node]
        held = tuple((group, int(contents[group])) for group in np.flatnonzero(contents).tolist())
        patterns.append(LimitedPattern(grouped.bin_types[row.at], PackingPattern(row.at, held, 1), row.reserves))
    return LimitedPatterns(grouped.groups, tuple(patterns))


def claim_within(claim: SchedulingNodeClaim, reserves: Resources | None) -> SchedulingNodeClaim | None:
    """The claim with the types that are within what it reserves; None where these are too few for minValues."""
    if not reserves:
        return claim
    types = claim.types & claim.template.index.within_limits(reserves)
    if not types or not claim.template.index.satisfies_min_values(claim.requirements, types):
        return None
    return replace(claim, types=types)


@dataclass(frozen=True, eq=False)
class _ReservingRow:
    """A candidate node by its place, with the capacity that all types it keeps have, and what it reserves."""

    at: int
    capacity: FloatArray
    reserves: Resources | None


class _ReservingRows:
    """The candidate nodes with what each may reserve."""

    def __init__(self, request: PackingRequest, grouped: GroupedCover) -> None:
        self._request = request
        self._grouped = grouped
        demands = [request.demands[at] for at in request.positions]
        indexes = {id(o.template.index): o.template.index for at in request.positions for o, _ in request.allowed[at]}
        self._units = ResourceUnits.for_requests([demand.requests for demand in demands], list(indexes.values()))
        self._holding: dict[str, FloatArray] = {}

    def all(self) -> list[_ReservingRow]:
        """A row for each candidate node and each of the amounts that it may reserve."""
        rows: list[_ReservingRow] = []
        with_min_values: dict[tuple[LaunchChannel, bytes], list[int]] = {}
        for at, bin_type in enumerate(self._grouped.bin_types):
            option = self._option(at)
            if option is None:
                continue
            limits = self._request.limits.get(option.template.name)
            if limits is None or not res.limited_resources(limits):
                rows.append(_ReservingRow(at, self._grouped.problem.capacities[at], None if limits is None else {}))
            elif self._request.strict_min_values and has_min_values(option.requirements):
                admits = self._grouped.problem.admits[at].tobytes()
                with_min_values.setdefault((bin_type.channel, admits), []).append(at)
            else:
                amounts = _capacity(option.template, bin_type.type_position, limits)
                rows.append(_ReservingRow(at, self._grouped.problem.capacities[at], amounts))
        for alike in with_min_values.values():
            rows += self._shared_rows(alike)
        return rows

    def _option(self, at: int) -> LaunchOption | None:
        """The launch option of the first group that the node admits."""
        channel = self._grouped.bin_types[at].channel
        for group in np.flatnonzero(self._grouped.problem.admits[at]).tolist():
            for option, _ in self._request.allowed[self._grouped.groups[group][0]]:
                if option.channel == channel:
                    return option
        return None

    def _shared_rows(self, alike: Sequence[int]) -> Iterator[_ReservingRow]:
        """Rows for what a candidate node and another type both hold, with amounts that leave as many types as minValues asks for.

        The other type is another candidate, or one that a candidate beats: with it there may be enough types.
        """
        problem = self._grouped.problem
        cheapest = sorted(alike, key=lambda at: (problem.costs[at], at))[:MAX_PAIRED_ROWS]
        option = self._option(cheapest[0])
        if option is None:
            return
        possible = self._possible_types(cheapest[0], option)
        capacities = self._type_capacities(option.template)
        seen: set[bytes] = set()
        reservations: dict[TypeSet, list[Resources]] = {}
        for first, other in self._pairs(option, possible, cheapest):
            capacity = np.minimum(problem.capacities[first], other)
            if capacity.tobytes() in seen:
                continue
            seen.add(capacity.tobytes())
            held: BoolArray = fitting(capacity[None, : capacities.shape[1]], capacities)[:, 0]
            holders = type_set_of(held) & possible
            if holders not in reservations:
                reservations[holders] = self._reservations(option, holders)
            for reserves in reservations[holders]:
                yield _ReservingRow(first, capacity, reserves)

    def _pairs(
        self, option: LaunchOption, possible: TypeSet, candidates: Sequence[int]
    ) -> Iterator[tuple[int, FloatArray]]:
        """Each candidate with what another one holds, then with what other types hold."""
        for first, second in combinations_with_replacement(candidates, 2):
            yield first, self._grouped.problem.capacities[second]
        yield from product(candidates, self._other_capacities(option, possible, candidates))

    def _other_capacities(
        self, option: LaunchOption, possible: TypeSet, candidates: Sequence[int]
    ) -> Iterator[FloatArray]:
        """What the cheapest types that are no candidates hold; host limits hold on all nodes."""
        own = type_set([self._grouped.bin_types[at].type_position for at in candidates])
        prices = option.template.index.prices(option.requirements)
        others = prices.cheapest_first(possible & ~own)[:MAX_OTHER_TYPES]
        capacities = self._type_capacities(option.template)[others]
        width = self._grouped.problem.capacities.shape[1] - len(self._units.names)
        yield from np.hstack([capacities, np.full((len(others), width), np.inf)])

    def _type_capacities(self, template: NodePoolTemplate) -> FloatArray:
        if template.name not in self._holding:
            self._holding[template.name] = self._units.capacity_rows(template)
        return self._holding[template.name]

    def _possible_types(self, at: int, option: LaunchOption) -> TypeSet:
        """The types that limits leave, and that all groups accept which the candidate node admits."""
        cache = self._request.fill_cache
        within = self._request.types_within.get(option.template.name)
        possible = option.template.index.all_types if within is None else within
        for group in np.flatnonzero(self._grouped.problem.admits[at]).tolist():
            for own, _ in self._request.allowed[self._grouped.groups[group][0]]:
                if own.channel == option.channel:
                    possible &= cache.possible_types(own.template, cache.canonical(own.requirements))
        return possible

    def _reservations(self, option: LaunchOption, holders: TypeSet) -> list[Resources]:
        """The least amounts within which enough of these types are."""
        template, index = option.template, option.template.index
        limits = self._request.limits[template.name]
        capacities = {tuple(sorted(_capacity(template, at, limits).items())) for at in members(holders)}
        least: list[Resources] = []
        for amounts in sorted(_maxima([dict(each) for each in capacities]), key=lambda each: limit_share(each, limits)):
            larger = any(all(less[name] <= amount for name, amount in amounts.items()) for less in least)
            if not larger and index.satisfies_min_values(option.requirements, _within(holders, template, amounts)):
                least.append(amounts)
            if len(least) == MAX_RESERVATIONS:
                break
        return least


def _maxima(amounts: Sequence[Resources]) -> list[Resources]:
    """The most of any two of the amounts, or of one."""
    if not amounts or len(amounts[0]) == 1:
        return list(amounts)
    return [res.maximum(pair) for pair in combinations_with_replacement(amounts, 2)]


def _within(types: TypeSet, template: NodePoolTemplate, amounts: Resources) -> TypeSet:
    return types & template.index.within_limits(amounts)


def _capacity(template: NodePoolTemplate, position: int, limits: Mapping[str, int]) -> Resources:
    capacity = template.index.types[position].capacity
    return {name: capacity.get(name, 0) for name in res.limited_resources(limits)}


def _limited_problem(
    request: PackingRequest, grouped: GroupedCover, rows: Sequence[_ReservingRow]
) -> LimitedCoverProblem:
    """The rows as a problem: pods below the weight they could have, and pods that are not served, cost more than nodes."""
    cover = grouped.problem
    at = np.array([row.at for row in rows], dtype=np.intp)
    dearest = float(cover.costs.max(initial=1.0))
    heaviest = [_heaviest(request.demands[group[0]]) for group in grouped.groups]
    weights = np.array([_weight(request, grouped.bin_types[row.at].channel) for row in rows])
    below: BoolArray = weights[:, None] < np.array(heaviest)[None, :]
    limited = CoverProblem(
        cover.counts,
        cover.requests,
        np.array([row.capacity for row in rows]).reshape(len(rows), cover.requests.shape[1]),
        cover.costs[at],
        cover.admits[at],
        cover.baselines[at],
        cover.cpu_prices[at],
        cover.cpu_column,
        below.astype(np.float64) * (dearest * _COST_BELOW_WEIGHT) if below.any() else None,
    )
    unserved = dearest * (_COST_BELOW_WEIGHT * float(cover.counts.sum()) if below.any() else 2.0)
    return LimitedCoverProblem(limited, _limit_shares(request, grouped, rows), unserved)


def _limit_shares(request: PackingRequest, grouped: GroupedCover, rows: Sequence[_ReservingRow]) -> FloatArray:
    """What each row takes of each limit, reservation and stock, as a part of what is left of it."""
    names = [(pool, name, left) for pool, amounts in request.limits.items() for name, left in amounts.items()]
    units = list(request.reservation_units.items())
    shares = np.zeros((len(rows), len(names) + len(units)))
    for number, row in enumerate(rows):
        channel = grouped.bin_types[row.at].channel
        for column, (pool, name, left) in enumerate(names):
            if channel[0] == pool and row.reserves is not None:
                shares[number, column] = res.taken_of_limit(name, row.reserves) / max(left, 1)
        for column, (reservation, left) in enumerate(units, len(names)):
            if channel[1] == reservation:
                shares[number, column] = 1.0 / max(left, 1)
    return shares


def _heaviest(demand: Demand) -> int:
    return demand.options[0].template.weight


def _weight(request: PackingRequest, channel: LaunchChannel) -> int:
    return next(
        option.template.weight
        for at in request.positions
        for option, _ in request.allowed[at]
        if option.channel == channel
    )
