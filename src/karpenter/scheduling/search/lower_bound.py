"""The least that pods could cost: a linear program over parts of nodes, and what it says each pod is worth.

Nodes may be bought in parts, and pods split over the nodes they fit on, but all a pod requests comes from the same
candidate node; rules between pods play no part. No plan can be cheaper. The program has, for every candidate node, how
much of it to buy and how much CPU beyond its baseline, and for every item type how many pods go there; the prices of its rows
are what the search goes by: of a pod of each item type, and of each resource on each candidate node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpenter.scheduling.demand import Demand
from karpenter.scheduling.offerings.purchase_options import PurchaseOption
from karpenter.scheduling.search.linear_program import (
    BoolArray,
    FloatArray,
    IntArray,
    SparseColumns,
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
    admits = rows.accepts[:, np.array(item_types.signatures, dtype=np.intp)]
    admits &= fitting(item_types.requests, rows.capacities)
    dear = replace(rows, prices=rows.prices + fee)
    kept = undominated_per_dollar(dear, admits)
    dear, admits = dear.pick(kept), admits[kept]
    if not admits.any(axis=0).all():
        return None
    if max_pairs is not None and admits.sum() > max_pairs:
        thinned = _evenly_by_price(dear.prices, admits, max_pairs)
        dear, admits = dear.pick(thinned), admits[thinned]
    solution = _solve(item_types, dear, admits, reservation_units)
    if solution is None:
        return None
    cost, pod_values, weights = solution
    return FractionalBound(cost, pod_values, dear, admits, weights)


def _evenly_by_price(prices: FloatArray, admits: BoolArray, max_pairs: int) -> IntArray:
    """Rows from the cheapest to the dearest in even steps, and for each item type that none of them admits the cheapest row."""
    order = np.argsort(prices, kind="stable")
    number = max(2, min(len(order), max_pairs // admits.shape[1]))
    chosen = order[np.linspace(0, len(order) - 1, number).astype(np.intp)]
    missing = ~admits[chosen].any(axis=0)
    cheapest = order[admits[order][:, missing].argmax(axis=0)]
    return np.unique(np.concatenate([chosen, cheapest]))


def _solve(
    item_types: ItemTypes, rows: OfferingRows, admits: BoolArray, reservation_units: Mapping[int, int]
) -> tuple[float, FloatArray, FloatArray] | None:
    """Columns: pods of an item type in a node, nodes, CPU beyond the baseline of a node. Rows: item types, resources
    of nodes, reservations. Where there is such CPU, what the baseline covers is one more resource.
    """
    surplus_nodes = np.flatnonzero(rows.surplus.prices)
    if len(surplus_nodes):
        item_types, rows = _with_baseline_column(item_types, rows)
    number, nodes, resources = len(item_types.counts), len(rows.prices), item_types.requests.shape[1]
    scale = np.maximum(item_types.requests.max(axis=0), 1.0)
    node, item_type = np.nonzero(admits)
    places = np.arange(resources)
    inside = np.column_stack([item_type, number + node[:, None] * resources + places])
    amounts = np.column_stack([np.ones(len(node)), (item_types.requests / scale)[item_type]])
    marks = sorted(reservation_units)
    reserved = np.array(
        [marks.index(int(mark)) if mark in reservation_units else -1 for mark in rows.reservation], dtype=np.intp
    )
    base = number + nodes * resources
    node_rows = [number + np.arange(nodes)[:, None] * resources + places]
    node_values = [-rows.capacities / scale]
    if marks:
        node_rows.append(np.where(reserved >= 0, base + reserved, base)[:, None])
        node_values.append((reserved >= 0).astype(np.float64)[:, None])
    of_node, of_node_values = np.column_stack(node_rows), np.column_stack(node_values)
    width = of_node.shape[1]
    starts = np.concatenate(
        [
            np.arange(len(node)) * (resources + 1),
            len(node) * (resources + 1) + np.arange(nodes) * width,
            len(node) * (resources + 1) + nodes * width + np.arange(len(surplus_nodes) + 1),
        ]
    )
    columns = SparseColumns(
        starts,
        np.concatenate([inside.ravel(), of_node.ravel(), number + (surplus_nodes + 1) * resources - 1]),
        np.concatenate([amounts.ravel(), of_node_values.ravel(), np.full(len(surplus_nodes), -1.0)]),
    )
    least = np.full(nodes * resources + len(marks), -np.inf)
    most = np.concatenate([np.zeros(nodes * resources), np.array([float(reservation_units[mark]) for mark in marks])])
    linear_solution = solve_linear_program(
        np.concatenate([np.zeros(len(node)), rows.prices, rows.surplus.prices[surplus_nodes] * scale[-1]]),
        columns,
        np.concatenate([item_types.counts, least]),
        np.concatenate([np.full(number, np.inf), most]),
    )
    if linear_solution is None:
        return None
    weights = -linear_solution.duals[number:base].reshape(nodes, resources) / scale
    if len(surplus_nodes):
        weights[:, rows.cpu_column] += weights[:, -1]
        weights = weights[:, :-1]
    return linear_solution.objective, linear_solution.duals[:number], weights


def _with_baseline_column(item_types: ItemTypes, rows: OfferingRows) -> tuple[ItemTypes, OfferingRows]:
    """CPU once more as the last resource; of it nodes have what their price includes."""
    cpu = rows.cpu_column
    baselines = np.minimum(rows.surplus.baselines, rows.capacities[:, cpu])
    requests = np.column_stack([item_types.requests, item_types.requests[:, cpu]])
    return (
        ItemTypes(item_types.counts, requests, item_types.signatures),
        replace(rows, capacities=np.column_stack([rows.capacities, baselines])),
    )


def independent_parts(options: Mapping[int, Sequence[PurchaseOption]]) -> list[list[int]]:
    """Positions of demands in parts, each in order: those in different ones have no pool in common, not even by way of others."""
    leader: dict[str, str] = {}

    def find(pool: str) -> str:
        while leader.setdefault(pool, pool) != pool:
            leader[pool] = leader[leader[pool]]
            pool = leader[pool]
        return pool

    for own in options.values():
        for option in own[1:]:
            leader[find(option.template.name)] = find(own[0].template.name)
    parts: dict[str, list[int]] = {}
    for position, own in options.items():
        if own:
            parts.setdefault(find(own[0].template.name), []).append(position)
    return list(parts.values())


def lower_bound(
    demands: Sequence[Demand], left_out: Mapping[int, int], reservation_units: Mapping[str, int]
) -> float | None:
    """USD per hour below which no nodes for these pods can be had, whoever packs them.

    The weights of pools count for nothing here, nor do fees. ``left_out`` counts pods by demand that get no node,
    ``reservation_units`` what is left of each reservation. None where the linear program has no answer.
    """
    counts = {at: len(demand.pods) - left_out.get(at, 0) for at, demand in enumerate(demands)}
    return lower_bound_of_counts([(demands[at], count) for at, count in counts.items()], reservation_units)


def lower_bound_of_counts(
    counted_demands: Sequence[tuple[Demand, float]], reservation_units: Mapping[str, int]
) -> float | None:
    """Like ``lower_bound``, for so many pods of each demand; averages over time may be fractions."""
    counted = [(demand, count) for demand, count in counted_demands if count > 0]
    parts = independent_parts({at: demand.options for at, (demand, _) in enumerate(counted)})
    costs = [_bound_of_part([counted[at] for at in part], reservation_units) for part in parts]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def _bound_of_part(
    counted_demands: Sequence[tuple[Demand, float]], reservation_units: Mapping[str, int]
) -> float | None:
    demands = [demand for demand, _ in counted_demands]
    indexes = {id(o.template.index): o.template.index for demand in demands for o in demand.options}
    measures = ResourceUnits.for_requests([demand.requests for demand in demands], list(indexes.values()))
    signatures = OptionSignatures(measures)
    numbers = [signatures.add(demand.options) for demand in demands]
    needs = measures.request_rows([demand.requests for demand in demands])
    keys = np.column_stack([needs, np.array(numbers, dtype=np.float64)])
    rows, alike = np.unique(keys, axis=0, return_inverse=True)
    pods = np.bincount(alike.ravel(), weights=np.array([float(count) for _, count in counted_demands]))
    item_types = ItemTypes(pods.astype(np.float64), rows[:, :-1], [int(number) for number in rows[:, -1]])
    left = {number: reservation_units.get(name, 0) for number, name in enumerate(signatures.reservations)}
    bound = fractional_bound(item_types, signatures.rows(), 0.0, left)
    return bound.cost if bound is not None else None
