"""The least that pods could cost: a linear program over parts of nodes, and what it says each pod is worth.

Nodes may be taken in parts, and pods split over the nodes they fit on, but all a pod requests comes from the same
candidate node; rules between pods play no part. No plan can be cheaper. The program has, for every candidate node, how much of it
to take and how much CPU beyond its baseline, and for every item type how many pods go there. The search uses the dual prices of
its rows: of a pod of each item type, and of each resource on each candidate node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from karpenter.model.connected_groups import connected_groups
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.search.distinct_rows import distinct_numbers, distinct_rows
from karpenter.scheduling.search.linear_program import (
    BackgroundCosts,
    BoolArray,
    FloatArray,
    IntArray,
    LinearProgram,
    SparseColumns,
    solve_for_cost,
    solve_linear_program,
)
from karpenter.scheduling.search.offering_rows import (
    OfferingRows,
    OptionSignatures,
    ResourceUnits,
    fitting,
    undominated_per_dollar,
)


@dataclass(frozen=True, eq=False)
class ItemTypes:
    """Pods by what they request and their option signature: how many, what each requests, and the number of the signature."""

    counts: FloatArray
    requests: FloatArray
    signatures: Sequence[int]


@dataclass(frozen=True, eq=False)
class FractionalBound:
    """The outcome: USD per hour at least, what a pod of each item type is worth, and each resource on ``rows``."""

    cost: float
    pod_values: FloatArray
    rows: OfferingRows
    admits: BoolArray
    resource_values: FloatArray


def fractional_bound(
    item_types: ItemTypes,
    rows: OfferingRows,
    fee: float,
    reservation_units: Mapping[int, int],
    max_pairs: int | None = None,
) -> FractionalBound | None:
    """The least cost, each node costing a fee beside its price; None where some pod fits nowhere.

    ``reservation_units``: what is left of each numbered reservation. With ``max_pairs`` some of the nodes are left out where
    nodes and item types make more pairs than that; then the cost is no bound, but what pods are worth is nearly the same.
    """
    candidates = _candidates(item_types, rows, fee)
    if candidates is None:
        return None
    dear, admits = candidates
    if max_pairs is not None and admits.sum() > max_pairs:
        thinned = _evenly_by_price(dear.prices, admits, max_pairs)
        dear, admits = dear.pick(thinned), admits[thinned]
    program = _bound_program(item_types, dear, admits, reservation_units)
    solution = solve_linear_program(program.prices(), program.columns(), *program.row_bounds())
    if solution is None:
        return None
    pod_values, weights = solution.duals[: program.number_of_item_types], program.resource_values(solution.duals)
    if program.has_baseline_column:
        weights[:, dear.cpu_column] += weights[:, -1]
        weights = weights[:, :-1]
    return FractionalBound(solution.objective, pod_values, dear, admits, weights)


@dataclass(frozen=True, eq=False)
class BoundWithValues:
    """The least cost, and USD per hour of a unit of each resource on each of the rows; ``baseline_values`` of CPU within the
    baseline, beside that."""

    cost: float
    resource_values: FloatArray
    baseline_values: FloatArray


def bound_with_values(item_types: ItemTypes, rows: OfferingRows, admits: BoolArray) -> BoundWithValues | None:
    """The least cost of these rows, and what resources are worth on each, by any of the best solutions."""
    program = _bound_program(item_types, rows, admits, {})
    solution = solve_for_cost(program.prices(), program.columns(), *program.row_bounds())
    if solution is None:
        return None
    values = np.maximum(program.resource_values(solution.duals), 0.0)
    if program.has_baseline_column:
        return BoundWithValues(solution.objective, values[:, :-1], values[:, -1])
    return BoundWithValues(solution.objective, values, np.zeros(len(values)))


def _cost_program(
    item_types: ItemTypes, rows: OfferingRows, reservation_units: Mapping[int, int]
) -> LinearProgram | None:
    """The program of ``fractional_bound`` without fees, for its cost alone; None where some pod fits nowhere."""
    candidates = _candidates(item_types, rows, 0.0)
    if candidates is None:
        return None
    program = _bound_program(item_types, *candidates, reservation_units)
    return LinearProgram(program.prices(), program.columns(), *program.row_bounds())


def _candidates(item_types: ItemTypes, rows: OfferingRows, fee: float) -> tuple[OfferingRows, BoolArray] | None:
    """Nodes that may be worth their price, the fee in their prices, and which item types each takes; None if one fits nowhere."""
    admits = rows.accepts[:, np.array(item_types.signatures, dtype=np.intp)]
    admits &= fitting(item_types.requests, rows.capacities)
    dear = replace(rows, prices=rows.prices + fee)
    kept = undominated_per_dollar(dear, admits)
    dear, admits = dear.pick(kept), admits[kept]
    return (dear, admits) if admits.any(axis=0).all() else None


def _evenly_by_price(prices: FloatArray, admits: BoolArray, max_pairs: int) -> IntArray:
    """Rows from the cheapest to the dearest in even steps, and for each item type that none of them admits the cheapest row."""
    order = np.argsort(prices, kind="stable")
    number = max(2, min(len(order), max_pairs // admits.shape[1]))
    chosen = order[np.linspace(0, len(order) - 1, number).astype(np.intp)]
    missing = ~admits[chosen].any(axis=0)
    cheapest = order[admits[order][:, missing].argmax(axis=0)]
    return distinct_numbers(np.concatenate([chosen, cheapest]))


def _bound_program(
    item_types: ItemTypes, rows: OfferingRows, admits: BoolArray, reservation_units: Mapping[int, int]
) -> _BoundProgram:
    """The program; where there is CPU beyond a baseline, what the baseline covers is one more resource, the last."""
    surplus_nodes = np.flatnonzero(rows.surplus.prices)
    if len(surplus_nodes):
        item_types, rows = _with_baseline_column(item_types, rows)
    return _BoundProgram(item_types, rows, admits, reservation_units, surplus_nodes)


class _BoundProgram:
    """The linear program. Columns: pods of an item type in a node, nodes, CPU beyond the baseline of a node. Rows: item
    types, resources of nodes, reservations.
    """

    def __init__(
        self,
        item_types: ItemTypes,
        rows: OfferingRows,
        admits: BoolArray,
        reservation_units: Mapping[int, int],
        surplus_nodes: IntArray,
    ) -> None:
        self.number_of_item_types, self._nodes, self._resources = (
            len(item_types.counts),
            len(rows.prices),
            rows.capacities.shape[1],
        )
        self._counts, self._requests, self._rows = item_types.counts, item_types.requests, rows
        #: Requests are divided by the largest of their resource, so that the numbers of a program are alike.
        self._scale = np.maximum(item_types.requests.max(axis=0), 1.0)
        self._node, self._item_type = np.nonzero(admits)
        self._reservation_units, self._surplus_nodes = reservation_units, surplus_nodes
        #: Whether the last resource is CPU within a baseline.
        self.has_baseline_column = len(surplus_nodes) > 0
        #: The first row of reservations.
        self._reservation_row = self.number_of_item_types + self._nodes * self._resources

    def prices(self) -> FloatArray:
        """USD per hour of each column."""
        surplus = self._rows.surplus.prices[self._surplus_nodes] * self._scale[-1]
        return np.concatenate([np.zeros(len(self._node)), self._rows.prices, surplus])

    def row_bounds(self) -> tuple[FloatArray, FloatArray]:
        """The least and the most of each row: all pods somewhere, no node overfull, no reservation exceeded."""
        places = self._nodes * self._resources
        units = [float(self._reservation_units[mark]) for mark in sorted(self._reservation_units)]
        least = np.concatenate([self._counts, np.full(places + len(units), -np.inf)])
        most = np.concatenate([np.full(self.number_of_item_types, np.inf), np.zeros(places), np.array(units)])
        return least, most

    def columns(self) -> SparseColumns:
        """What each column adds to which rows."""
        resources = np.arange(self._resources)
        pods = np.column_stack(
            [self._item_type, self.number_of_item_types + self._node[:, None] * self._resources + resources],
        )
        amounts = np.column_stack([np.ones(len(self._node)), (self._requests / self._scale)[self._item_type]])
        nodes, of_nodes = self._node_entries()
        surplus = self.number_of_item_types + (self._surplus_nodes + 1) * self._resources - 1
        lengths = np.repeat(
            [self._resources + 1, nodes.shape[1], 1], [len(self._node), self._nodes, len(self._surplus_nodes)]
        )
        return SparseColumns(
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate([pods.ravel(), nodes.ravel(), surplus]),
            np.concatenate([amounts.ravel(), of_nodes.ravel(), np.full(len(surplus), -1.0)]),
        )

    def _node_entries(self) -> tuple[IntArray, FloatArray]:
        """For each node the rows it adds to, and how much: its capacities, and one unit of its reservation."""
        rows = (
            self.number_of_item_types + np.arange(self._nodes)[:, None] * self._resources + np.arange(self._resources)
        )
        amounts = -self._rows.capacities / self._scale
        if not self._reservation_units:
            return rows, amounts
        places = {mark: place for place, mark in enumerate(sorted(self._reservation_units))}
        reserved = np.array([places.get(int(mark), -1) for mark in self._rows.reservation], dtype=np.intp)
        is_reserved = reserved >= 0
        row = np.where(is_reserved, self._reservation_row + reserved, self._reservation_row)
        return np.column_stack([rows, row]), np.column_stack([amounts, is_reserved.astype(np.float64)])

    def resource_values(self, duals: FloatArray) -> FloatArray:
        """USD per unit of each resource on each node, from the prices of its rows."""
        of_nodes: FloatArray = duals[self.number_of_item_types : self._reservation_row].reshape(
            self._nodes, self._resources
        )
        return np.asarray(-of_nodes / self._scale, dtype=np.float64)


def _with_baseline_column(item_types: ItemTypes, rows: OfferingRows) -> tuple[ItemTypes, OfferingRows]:
    """CPU once more as the last resource; of it nodes have what their price includes."""
    cpu = rows.cpu_column
    baselines = np.minimum(rows.surplus.baselines, rows.capacities[:, cpu])
    requests = np.column_stack([item_types.requests, item_types.requests[:, cpu]])
    return (
        ItemTypes(item_types.counts, requests, item_types.signatures),
        replace(rows, capacities=np.column_stack([rows.capacities, baselines])),
    )


def independent_parts(options: Mapping[int, Sequence[LaunchOption]]) -> list[list[int]]:
    """Positions of demands in parts, each in order: those in different ones have no pool in common, not even by way of others."""
    pools = ((at, option.template.name) for at, own in options.items() for option in own)
    return connected_groups([at for at, own in options.items() if own], pools)


class LowerBound:
    """A lower bound on the cost of nodes for these pods, in USD per hour. It is computed in the background.

    Neither pool weights nor fees are included. ``left_out`` counts pods by demand that get no node, ``reservation_units`` what is
    left of each reservation.
    """

    def __init__(
        self, demands: Sequence[Demand], left_out: Mapping[int, int], reservation_units: Mapping[str, int]
    ) -> None:
        counted = [(demand, len(demand.pods) - left_out.get(at, 0)) for at, demand in enumerate(demands)]
        programs = _programs_of_counts(counted, reservation_units)
        self._costs = None if programs is None else BackgroundCosts(programs)

    @cached_property
    def per_hour(self) -> float | None:
        """The bound, once it is worked out; None where the linear program has no answer."""
        return None if self._costs is None else _sum_of_costs(self._costs.wait())


class LowerBounds:
    """The lower bounds of one decision, each begun where it is first asked for."""

    def __init__(self, reservation_units: Mapping[str, int]) -> None:
        self._reservation_units = reservation_units
        self._bounds: dict[tuple[tuple[Demand, ...], tuple[tuple[int, int], ...]], LowerBound] = {}

    def of(self, demands: Sequence[Demand], left_out: Mapping[int, int]) -> LowerBound:
        """The bound of these demands, without pods that get no node."""
        key = (tuple(demands), tuple(left_out.items()))
        if key not in self._bounds:
            self._bounds[key] = LowerBound(demands, left_out, self._reservation_units)
        return self._bounds[key]


def lower_bound_of_counts(
    counted_demands: Sequence[tuple[Demand, float]], reservation_units: Mapping[str, int]
) -> float | None:
    """Like ``LowerBound``, for so many pods of each demand; averages over time may be fractions."""
    programs = _programs_of_counts(counted_demands, reservation_units)
    if programs is None:
        return None
    solutions = [solve_for_cost(each.costs, each.columns, each.lower, each.upper) for each in programs]
    return _sum_of_costs([None if solution is None else solution.objective for solution in solutions])


def _sum_of_costs(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _programs_of_counts(
    counted_demands: Sequence[tuple[Demand, float]], reservation_units: Mapping[str, int]
) -> list[LinearProgram] | None:
    """A program for each part of the demands; None where some pod fits nowhere."""
    counted = [(demand, count) for demand, count in counted_demands if count > 0]
    parts = independent_parts({at: demand.options for at, (demand, _) in enumerate(counted)})
    made = [_program_of_part([counted[at] for at in part], reservation_units) for part in parts]
    programs = [program for program in made if program is not None]
    return programs if len(programs) == len(made) else None


def _program_of_part(
    counted_demands: Sequence[tuple[Demand, float]], reservation_units: Mapping[str, int]
) -> LinearProgram | None:
    demands = [demand for demand, _ in counted_demands]
    indexes = {id(o.template.index): o.template.index for demand in demands for o in demand.options}
    measures = ResourceUnits.for_requests([demand.requests for demand in demands], list(indexes.values()))
    signatures = OptionSignatures(measures)
    numbers = [signatures.add(demand.options) for demand in demands]
    needs = measures.request_rows([demand.requests for demand in demands])
    keys = np.column_stack([needs, np.array(numbers, dtype=np.float64)])
    first, alike = distinct_rows(keys)
    rows = keys[first]
    pods = np.bincount(alike, weights=np.array([float(count) for _, count in counted_demands]))
    item_types = ItemTypes(pods.astype(np.float64), rows[:, :-1], [int(number) for number in rows[:, -1]])
    left = {number: reservation_units.get(name, 0) for number, name in enumerate(signatures.reservations)}
    return _cost_program(item_types, signatures.rows(), left)
