"""The cheapest cover of few pods by columns, with a proof: column generation with exact pricing, then an integer program.

1. The linear program over columns starts with one pod per node. Its duals say what a pod of each group is worth; columns whose
   pods are worth more than they cost are added until there is none. Then its optimum is a lower bound of every packing.
2. Rounding gives an upper bound: the column with the highest count is taken, and the linear program solved for the pods
   left, until none is left; a few times with another first column. If it meets the lower bound, it is the optimum.
3. Otherwise every column whose pods are worth its cost less the gap is enumerated. A column outside of them costs a packing more
   than the gap, so the integer program over them has the optimum.

Pricing and enumeration are one search: group by group, every partial content of every candidate node as rows of arrays, dropped
as soon as the pods that may still come cannot make up for the cost. What may still come is bounded by a fractional knapsack with
one surrogate constraint, the weighted sum of all resources, with the best of a few weights.

Alternatives: dynamic programming over sets of pods (`packing/exact_packing`) needs no bound, but doubles with every different
pod; an assignment program of pods to nodes is symmetric in equal nodes. Work grows with the number of contents that are nearly
worth their cost: few where pods narrow different labels, many where all pods fit all nodes. So it is bounded: partial contents
per group, columns of the integer program, and nodes of its search tree. Beyond these bounds nothing is proven, and the cheapest
cover so far is one packing among others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from karpenter.scheduling.search.distinct_rows import distinct_rows
from karpenter.scheduling.search.linear_program import (
    BoolArray,
    CoveringProgram,
    FloatArray,
    IntArray,
    IntegerProgram,
    LinearSolution,
    SparseColumns,
    solve_integer_program,
)

#: Rounds of pricing, new columns in a round, and how much of the last round's duals the next one keeps.
MAX_ROUNDS, MAX_NEW_COLUMNS, DUAL_SMOOTHING = 40, 64, 0.5
#: Partial contents in one step: of pricing, which then looks on at the most promising, and of the enumeration, which gives up.
MAX_PARTIAL_PRICED, MAX_PARTIAL_ENUMERATED = 2_000, 20_000
#: After this many rounds that could not enumerate all partial contents, no proof is attempted any more.
MAX_INCOMPLETE_ROUNDS = 8
#: Roundings of the linear program.
MAX_ROUNDINGS = 3
#: Columns of an integer program, and nodes of its search tree.
MAX_INTEGER_COLUMNS, MAX_TREE_NODES = 500, 100
#: Steps between the weights of surrogate constraints.
_WEIGHT_STEPS = 4
#: USD per hour that count as nothing: below every difference of prices, above what sums of floats miss.
TOLERANCE = 1e-8
#: More CPU than any node has, for baselines without end.
_MAX_CPU_UNITS = 1e15


@dataclass(frozen=True, eq=False)
class CoverProblem:
    """Pods by group and candidate nodes: ``requests`` and ``capacities`` have a column per resource and host limit.

    ``costs`` are USD per hour with all that the objective counts, CPU beyond the ``baselines`` aside, which costs ``cpu_prices``
    a unit. ``admits`` says which nodes could hold one pod of a group. ``pod_costs``: USD per hour that a pod of a group costs on
    a node beside that, where it is more than nothing.
    """

    counts: FloatArray
    requests: FloatArray
    capacities: FloatArray
    costs: FloatArray
    admits: BoolArray
    baselines: FloatArray
    cpu_prices: FloatArray
    cpu_column: int
    pod_costs: FloatArray | None = None

    def surpluses(self, nodes: IntArray, contents: IntArray) -> FloatArray:
        """USD per hour beside the cost of each node with its contents: for CPU beyond the baseline, and for the pods."""
        surpluses = np.zeros(len(nodes))
        if self.pod_costs is not None:
            surpluses += (self.pod_costs[nodes] * contents).sum(axis=1)
        if self.cpu_column < 0:
            return surpluses
        cpu = values_of_contents(contents, self.requests[:, self.cpu_column])
        surpluses += self.cpu_prices[nodes] * np.maximum(cpu - self.baselines[nodes], 0.0)
        return surpluses

    def least_costs(self) -> FloatArray:
        """For each node what its cost is at least before its pods' CPU is charged at the surplus price.

        On a burstable node that is less than its cost: the price of the baseline is taken off, and all CPU is charged.
        """
        return np.where(
            self.charges_cpu, self.costs - self.cpu_prices * np.minimum(self.baselines, _MAX_CPU_UNITS), self.costs
        )

    def values_on_nodes(self, values: FloatArray) -> FloatArray:
        """What a pod of each group is worth on each node, less what is charged for it and its CPU there."""
        on_nodes = np.repeat(values[None, :], len(self.costs), axis=0)
        if self.pod_costs is not None:
            on_nodes -= self.pod_costs
        charged = np.flatnonzero(self.charges_cpu)
        if len(charged):
            on_nodes[charged] -= self.cpu_prices[charged, None] * self.requests[None, :, self.cpu_column]
        return on_nodes

    @cached_property
    def charges_cpu(self) -> BoolArray:
        """Nodes that may hold more CPU than their baseline."""
        if self.cpu_column < 0:
            return np.zeros(len(self.costs), dtype=bool)
        return (self.cpu_prices > 0) & (self.capacities[:, self.cpu_column] > self.baselines)


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """Columns: how many pods of each group are on the candidate node in ``nodes``."""

    contents: IntArray
    nodes: IntArray
    costs: FloatArray

    def select(self, rows: IntArray | BoolArray) -> NodeColumns:
        """Some of the columns."""
        return NodeColumns(self.contents[rows], self.nodes[rows], self.costs[rows])

    def as_sparse(self) -> SparseColumns:
        """The contents for a linear program."""
        return SparseColumns.from_dense(self.contents.astype(np.float64))

    def with_more(self, other: NodeColumns) -> NodeColumns:
        """These and then the others."""
        return NodeColumns(
            np.concatenate([self.contents, other.contents]),
            np.concatenate([self.nodes, other.nodes]),
            np.concatenate([self.costs, other.costs]),
        )

    def at_lowest_cost(self) -> NodeColumns:
        """For each contents the cheapest column."""
        by_cost = self.select(np.argsort(self.costs, kind="stable"))
        first, _ = distinct_rows(by_cost.contents)
        return by_cost.select(np.sort(first))


@dataclass(frozen=True, eq=False)
class Cover:
    """Columns that together hold all pods, some of them perhaps twice; no cover costs less than ``bound``.

    ``is_final``: more work would prove no higher bound.
    """

    columns: NodeColumns
    cost: float
    bound: float
    is_final: bool = False


def cheapest_cover(problem: CoverProblem) -> Cover | None:
    """The cheapest cover, or a cheap one; None where some pod fits nowhere."""
    if not len(problem.counts) or not problem.admits.any(axis=0).all():
        return None
    generation = _ColumnPricing(problem)
    is_bound = generation.run()
    solution = generation.solution
    if solution is None:
        return None
    duals, cover = solution.duals, replace(generation.rounded_cover(), bound=solution.objective)
    gap = cover.cost - solution.objective
    if not is_bound:
        return replace(cover, bound=-inf)
    if gap <= TOLERANCE:
        return cover
    contents = _Contents(problem, duals).all_worth(gap + TOLERANCE, MAX_PARTIAL_ENUMERATED)
    better = _integer_cover(problem, contents.at_lowest_cost()) if contents is not None else None
    if better is None:
        return cover
    # No cover with another column costs less than the rounding.
    bound = min(better.bound, cover.cost)
    return replace(min(better, cover, key=lambda cover: cover.cost), bound=bound)


def promising_columns(problem: CoverProblem, values: FloatArray) -> NodeColumns:
    """For each contents the cheapest column, where a pod of each group is worth so much and all together more than it costs."""
    columns, _ = _Contents(problem, values).most_promising(MAX_PARTIAL_PRICED)
    return columns.select(values_of_contents(columns.contents, values) > columns.costs + TOLERANCE).at_lowest_cost()


def columns_nearly_worth(problem: CoverProblem, values: FloatArray, slack: float) -> NodeColumns | None:
    """All columns whose pods are worth the cost less ``slack``; None where there are too many partial ones on the way."""
    return _Contents(problem, values).all_worth(slack, MAX_PARTIAL_ENUMERATED)


def _integer_cover(problem: CoverProblem, columns: NodeColumns) -> Cover | None:
    """The cheapest cover by these columns, optimal among them at most; None where they are too many."""
    if len(columns.costs) > MAX_INTEGER_COLUMNS:
        return None
    matrix = columns.contents.astype(np.float64)
    rows = SparseColumns.from_dense(matrix)
    program = IntegerProgram(columns.costs, rows, problem.counts, np.full(len(problem.counts), np.inf))
    solution = solve_integer_program(program, MAX_TREE_NODES)
    if solution is None or (solution.values @ matrix < problem.counts).any():
        return None
    chosen = columns.select(np.repeat(np.arange(len(columns.costs)), solution.values.astype(np.intp)))
    return Cover(chosen, float(sum(chosen.costs.tolist())), solution.bound)


class _ColumnPricing:
    """Column generation: the linear program over columns, and the columns that it still lacks."""

    def __init__(self, problem: CoverProblem) -> None:
        self._problem = problem
        self._smoothed = _shares_of_cost(problem)
        self._program = CoveringProgram(problem.counts)
        self.columns = _single_pods(problem)
        self._program.add_columns(self.columns.costs, self.columns.as_sparse())
        self.solution: LinearSolution | None = self._program.solve()
        self._incomplete_rounds = 0

    def run(self) -> bool:
        """Add columns until none is missing; whether that came about, so that the program's optimum is a lower bound."""
        for _ in range(MAX_ROUNDS):
            if self.solution is None or self._incomplete_rounds >= MAX_INCOMPLETE_ROUNDS:
                return False
            duals = self.solution.duals
            self._smoothed = DUAL_SMOOTHING * self._smoothed + (1 - DUAL_SMOOTHING) * duals
            missing, _ = self._missing(self._smoothed, duals)
            if not len(missing.costs):
                missing, is_complete = self._missing(duals, duals)
                if not len(missing.costs):
                    return is_complete
            self._add(
                missing.select(np.argsort(-values_of_contents(missing.contents, duals) / missing.costs, kind="stable"))
            )
        return False

    def rounded_cover(self) -> Cover:
        """The cheapest of several roundings of the linear program, each with another first column."""
        covers = [self._rounded(first) for first in range(MAX_ROUNDINGS)]
        self._program.set_counts(self._problem.counts)
        return min(covers, key=lambda cover: cover.cost)

    def _rounded(self, rank: int) -> Cover:
        """Take the column with the highest count, at first the one of this rank, and solve for the pods left."""
        left, taken = self._problem.counts.copy(), []
        while left.any():
            self._program.set_counts(left)
            solution = self._program.solve()
            values = solution.values if solution is not None else np.ones(len(self.columns.costs))
            useful = np.minimum(self.columns.contents, left).sum(axis=1) > 0
            ranked = np.argsort(-np.where(useful, values, -1.0), kind="stable")
            column = int(ranked[min(rank, int(useful.sum()) - 1)])
            rank = 0
            taken.append(column)
            left = np.maximum(left - self.columns.contents[column], 0.0)
        chosen = self.columns.select(np.array(taken, dtype=np.intp))
        return Cover(chosen, float(sum(chosen.costs.tolist())), bound=-inf)

    def _missing(self, priced_by: FloatArray, duals: FloatArray) -> tuple[NodeColumns, bool]:
        """Columns that such values of pods show and the duals confirm, and whether all contents were enumerated."""
        columns, is_complete = _Contents(self._problem, priced_by).most_promising(MAX_PARTIAL_PRICED)
        self._incomplete_rounds += not is_complete
        values = values_of_contents(columns.contents, duals)
        return columns.select(values > columns.costs + TOLERANCE).at_lowest_cost(), is_complete

    def _add(self, ranked: NodeColumns) -> None:
        chosen = ranked.select(np.arange(min(len(ranked.costs), MAX_NEW_COLUMNS)))
        self.columns = self.columns.with_more(chosen)
        self._program.add_columns(chosen.costs, chosen.as_sparse())
        self.solution = self._program.solve()


class _Contents:
    """All contents of candidate nodes that are worth their cost, when a pod of each group is worth so much."""

    def __init__(self, problem: CoverProblem, values: FloatArray) -> None:
        self._problem = problem
        self.pod_values = values
        self.values = problem.values_on_nodes(values)
        self.least_costs = problem.least_costs()
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = np.where(
                problem.requests[None, :, :] > 0, problem.capacities[:, None, :] / problem.requests[None, :, :], np.inf
            ).min(axis=2)
        self.most = np.where(problem.admits, np.minimum(np.floor(fitting), problem.counts[None, :]), 0.0)
        self.prices, self.bounds = self._surrogate_prices()

    def _surrogate_prices(self) -> tuple[FloatArray, FloatArray]:
        """What each unit of each column is worth at most on each node, by the surrogate with the lowest bound; and that bound."""
        problem, values = self._problem, self.values
        capacities = np.maximum(problem.capacities, 1.0)
        best_prices = np.zeros_like(capacities)
        best = np.full(len(capacities), np.inf)
        rows = np.arange(len(capacities))
        for weights in _surrogate_weights(capacities.shape[1]):
            sizes = np.zeros_like(self.most)
            for column, weight in enumerate(weights):
                if weight:
                    sizes += weight * problem.requests[None, :, column] / capacities[:, None, column]
            ratio = np.maximum(values, 0.0) / np.maximum(sizes, 1e-12)
            order = np.argsort(-ratio, axis=1, kind="stable")
            used = np.cumsum(np.take_along_axis(sizes * self.most, order, axis=1), axis=1)
            critical = np.minimum((used <= 1.0).sum(axis=1), used.shape[1] - 1)
            rate = np.where(used[:, -1] <= 1.0, 0.0, ratio[rows, order[rows, critical]])
            prices = rate[:, None] * np.array(weights)[None, :] / capacities
            bound = rate + (np.maximum(values - rate[:, None] * sizes, 0.0) * self.most).sum(axis=1)
            better = bound < best
            best = np.where(better, bound, best)
            best_prices[better] = prices[better]
        return best_prices, best

    def all_worth(self, slack: float, max_partial: int) -> NodeColumns | None:
        """All columns whose pods are worth the cost less ``slack``; None where there are more partial contents in one step."""
        partial = _PartialContents(self._problem, self, slack)
        for step in range(len(self._problem.counts)):
            partial.extend(step)
            if len(partial.worth) > max_partial:
                return None
        return partial.columns()

    def most_promising(self, max_partial: int) -> tuple[NodeColumns, bool]:
        """Columns whose pods are worth more than the cost, and whether all contents were followed: else the most promising."""
        partial, is_complete = _PartialContents(self._problem, self, -TOLERANCE), True
        for step in range(len(self._problem.counts)):
            partial.extend(step)
            is_complete &= len(partial.worth) <= max_partial
            partial.keep_most_promising(max_partial)
        return partial.columns(), is_complete


class _PartialContents:
    """Contents of candidate nodes under way, a row each: in every step each is extended by one further group.

    A node's groups come in the order of what leaving them out, or taking them in, costs; so the bound falls early.
    """

    def __init__(self, problem: CoverProblem, contents: _Contents, slack: float) -> None:
        self._problem = problem
        self._slack, self._pod_values = slack, contents.pod_values
        self._nodes = np.flatnonzero(contents.bounds >= contents.least_costs - slack)
        self._values = contents.values[self._nodes]
        self._prices, self._most = contents.prices[self._nodes], contents.most[self._nodes]
        self._needed = contents.least_costs[self._nodes] - slack
        margin = self._values.copy()
        for column in range(self._prices.shape[1]):
            margin -= self._prices[:, None, column] * problem.requests[None, :, column]
        self._order = np.argsort(-np.abs(margin) * (self._most > 0), axis=1, kind="stable")
        gain = np.take_along_axis(np.maximum(margin, 0.0) * self._most, self._order, axis=1)
        self._later = np.zeros((len(self._nodes), len(problem.counts) + 1))
        self._later[:, :-1] = np.cumsum(gain[:, ::-1], axis=1)[:, ::-1]
        self._node = np.arange(len(self._nodes))
        self._free = problem.capacities[self._nodes].copy()
        self._numbers = np.zeros(self._most.shape, dtype=np.intp)
        self._reach = np.zeros(len(self._nodes))
        self.worth = np.zeros(len(self._nodes))

    def extend(self, step: int) -> None:
        """Every number of pods of the next group that fits, where the rest could still make up for the cost."""
        node, group = self._node, self._order[self._node, step]
        requests = self._problem.requests[group]
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(requests > 0, self._free / requests, np.inf).min(axis=1, initial=np.inf)
        choices = np.minimum(np.floor(room), self._most[node, group]).astype(np.intp) + 1
        parent = np.repeat(np.arange(len(node)), choices)
        added = np.arange(len(parent)) - np.repeat(np.cumsum(choices) - choices, choices)
        node, group = node[parent], group[parent]
        free = self._free[parent] - self._problem.requests[group] * added[:, None]
        worth = self.worth[parent] + self._values[node, group] * added
        reach = worth + self._later[node, step + 1]
        for column in range(free.shape[1]):
            reach += self._prices[node, column] * free[:, column]
        kept = np.flatnonzero(reach >= self._needed[node])
        self._numbers = self._numbers[parent[kept]]
        self._numbers[np.arange(len(kept)), group[kept]] = added[kept]
        self._node, self._free, self.worth, self._reach = node[kept], free[kept], worth[kept], reach[kept]

    def keep_most_promising(self, most: int) -> None:
        """Drop all but so many, those that could be worth most beyond the cost."""
        if len(self.worth) > most:
            kept = np.sort(np.argsort(self._needed[self._node] - self._reach, kind="stable")[:most])
            self._numbers, self._node, self._free = self._numbers[kept], self._node[kept], self._free[kept]
            self.worth, self._reach = self.worth[kept], self._reach[kept]

    def columns(self) -> NodeColumns:
        """Those that are worth what they cost less the slack, CPU beyond the baseline included."""
        enough = np.flatnonzero((self.worth >= self._needed[self._node]) & (self._numbers.sum(axis=1) > 0))
        contents, nodes = self._numbers[enough], self._nodes[self._node[enough]]
        costs = self._problem.costs[nodes] + self._problem.surpluses(nodes, contents)
        kept = values_of_contents(contents, self._pod_values) >= costs - self._slack
        return NodeColumns(contents[kept], nodes[kept], costs[kept])


def values_of_contents(contents: IntArray, values: FloatArray) -> FloatArray:
    """What the pods of each column are worth."""
    total = np.zeros(len(contents))
    for group, value in enumerate(values.tolist()):
        total += contents[:, group] * value
    return total


def _surrogate_weights(columns: int) -> list[tuple[float, ...]]:
    """Weights of the columns that add up to one: every column alone, and mixtures of two."""
    weights = [tuple(float(at == column) for at in range(columns)) for column in range(columns)]
    for first in range(columns):
        for second in range(first + 1, columns):
            for part in range(1, _WEIGHT_STEPS):
                mixed = [0.0] * columns
                mixed[first], mixed[second] = part / _WEIGHT_STEPS, 1 - part / _WEIGHT_STEPS
                weights.append(tuple(mixed))
    return weights


def _single_pods(problem: CoverProblem) -> NodeColumns:
    """For each group the cheapest node for one pod."""
    one, every = np.eye(len(problem.counts), dtype=np.intp), np.arange(len(problem.costs))
    costs = [problem.costs + problem.surpluses(every, np.repeat(pod[None, :], len(every), axis=0)) for pod in one]
    alone = np.where(problem.admits, np.array(costs).T, np.inf)
    nodes = alone.argmin(axis=0)
    return NodeColumns(one, nodes, alone[nodes, np.arange(len(one))])


def _shares_of_cost(problem: CoverProblem) -> FloatArray:
    """For one pod of each group the least share of a node's cost that it takes by its scarcest resource."""
    shares = (problem.requests[None, :, :] / np.maximum(problem.capacities, 1.0)[:, None, :]).max(axis=2)
    least: FloatArray = np.where(problem.admits, shares * problem.costs[:, None], np.inf).min(axis=0)
    return least
