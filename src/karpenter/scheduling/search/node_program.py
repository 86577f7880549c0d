"""The cheapest nodes for few pods that all fit the same nodes: an integer program over counts of nodes.

Its variables are how many nodes of each candidate to take, and how many pods of each group go to nodes of each candidate. Equal
nodes are one variable, so they are not symmetric. The capacity of equal nodes counts as a sum, so the optimum is a lower bound of
every packing; it is the cost of a packing where the pods can be divided among the equal nodes, which a second program decides.

1. The linear relaxation says what each candidate costs beyond the value of what it could hold. A candidate that costs more than
   the gap to the cheapest packing so far is in no cheaper packing, and is left out.
2. The integer program over those left has a bounded number of pairs of group and candidate, and at most
   `MAX_TREE_NODES` nodes of its search tree, fewer where there are many pairs. Most programs of 20 to 40 pods are solved in ten
   nodes, 0.02 to 0.5 s. Small ones are solved before the search, which they make needless; larger ones after it, when the gap
   is smaller.

Alternatives: dynamic programming (`packing/exact_packing`) needs few sets of pods; columns (`column_enumeration`) are too many to
prove anything where most pods fit most nodes; a variable for each node and pod is symmetric in equal
nodes, and took 1 to 3 s where the pods did not divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from karpenter.scheduling.search.column_enumeration import Cover, CoverProblem, NodeColumns
from karpenter.scheduling.search.linear_program import (
    FloatArray,
    IntArray,
    IntegerProgram,
    SparseColumns,
    solve_integer_program,
)
from karpenter.scheduling.search.lower_bound import ItemTypes, bound_with_values
from karpenter.scheduling.search.offering_rows import CpuSurplusRows, OfferingRows, undominated_per_dollar

#: Pairs of group and candidate node: before the search, in its place, and after it.
FEW_ASSIGNMENTS, MAX_ASSIGNMENTS = 300, 1_400
#: Nodes of the search tree, and nodes times pairs.
MAX_TREE_NODES, MAX_WORK = 30, 10_000
#: USD per hour by which a candidate may exceed the gap: rounding errors of the linear program.
_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class NodeRelaxation:
    """The optimum of the linear relaxation, and by how much each candidate costs more than what it could hold is worth.

    A packing with a candidate costs at least the optimum and what the candidate costs beyond its worth.
    """

    cost: float
    reduced_costs: FloatArray


def relaxed_nodes(problem: CoverProblem) -> NodeRelaxation | None:
    """The relaxation over all candidates; None where some pod fits nowhere.

    It is solved over those that no other beats per dollar: parts of nodes of the others are never cheaper. What a unit of each
    resource is worth on one candidate holds of every other that admits no more groups, at most: the least such worth counts.
    """
    if not problem.admits.any(axis=0).all():
        return None
    units = resource_units(problem.requests)
    requests = problem.requests / units
    held = problem.admits.astype(np.float64) @ (requests * problem.counts[:, None])
    capacities = np.minimum(np.floor(problem.capacities / units), held)
    cpu = problem.cpu_column
    cpu_unit = units[cpu] if cpu >= 0 else 1.0
    cpu_prices = np.where(problem.charges_cpu, problem.cpu_prices * cpu_unit, 0.0)
    baselines = np.where(problem.charges_cpu, problem.baselines / cpu_unit, np.inf)
    surplus = CpuSurplusRows(baselines, cpu_prices, np.zeros(len(problem.costs)))
    free = np.full(len(problem.costs), -1.0)
    rows = OfferingRows(capacities, problem.costs, problem.admits, free, surplus, cpu)
    kept = np.flatnonzero(undominated_per_dollar(rows, problem.admits))
    item_types = ItemTypes(problem.counts, requests, range(len(problem.counts)))
    found = bound_with_values(item_types, rows.pick(kept), problem.admits[kept])
    if found is None:
        return None
    worth = np.full(len(problem.costs), np.inf)
    for at, values, of_baseline in zip(
        kept.tolist(), found.resource_values, found.baseline_values.tolist(), strict=True
    ):
        total = capacities @ values
        if cpu >= 0:
            # CPU within the baseline is worth no more than what CPU beyond it costs: the rest is worth of all CPU.
            of_all = np.maximum(of_baseline - cpu_prices, 0.0)
            total += of_all * capacities[:, cpu]
            within = np.minimum(baselines, capacities[:, cpu])
            total += (of_baseline - of_all) * within
        is_no_broader = ~(problem.admits & ~problem.admits[at]).any(axis=1)
        worth = np.where(is_no_broader, np.minimum(worth, total), worth)
    return NodeRelaxation(found.cost, problem.costs - worth)


def cheapest_nodes(
    problem: CoverProblem, relaxation: NodeRelaxation, known_cost: float, max_assignments: int
) -> Cover | None:
    """The cheapest nodes; None where the program is too large or has no solution in its bounds.

    The cover has no columns where the pods do not divide among equal nodes.

    ``known_cost``: USD per hour of some packing of these pods.
    """
    most = known_cost - relaxation.cost + _TOLERANCE
    program = _NodeProgram(problem, np.flatnonzero(relaxation.reduced_costs <= most))
    solution = program.solved(known_cost) if 0 < program.assignment_count <= max_assignments else None
    if solution is None:
        return None
    counts, assigned, bound, is_optimal = solution
    contents = [
        divide_among_equal_nodes(problem, int(node), int(count), pods)
        for node, count, pods in zip(program.candidates, counts, assigned, strict=True)
    ]
    return replace(_cover(problem, program.candidates, contents, min(bound, known_cost)), is_final=is_optimal)


def _cover(problem: CoverProblem, candidates: IntArray, contents: list[IntArray | None], bound: float) -> Cover:
    """The nodes with these contents; a cover without columns where some are not known."""
    solved = [nodes for nodes in contents if nodes is not None]
    if len(solved) < len(contents):
        none = NodeColumns(np.zeros((0, len(problem.counts)), dtype=np.intp), candidates[:0], np.zeros(0))
        return Cover(none, inf, bound)
    rows, nodes = np.concatenate(solved), np.repeat(candidates, [len(each) for each in solved])
    columns = NodeColumns(rows, nodes, problem.costs[nodes] + problem.surpluses(nodes, rows))
    return Cover(columns, float(columns.costs.sum()), bound)


def divide_among_equal_nodes(problem: CoverProblem, node: int, count: int, pods: IntArray) -> IntArray | None:
    """The pods of each group on each of so many equal nodes, a row each; None where they do not fit."""
    if count < 2:
        return np.repeat(pods[None, :], count, axis=0)
    groups = np.flatnonzero(pods)
    requests, capacities = whole_amounts(problem, np.array([node]), pods)
    amounts = requests[groups]
    width = amounts.shape[1]
    at, group = np.divmod(np.arange(count * len(groups)), len(groups))
    variables, places = np.arange(len(at)), np.arange(width)
    rows = np.concatenate([group, (len(groups) + at[:, None] * width + places).ravel()])
    columns = np.concatenate([variables, np.repeat(variables, width)])
    values = np.concatenate([np.ones(len(at)), amounts[group].ravel()])
    capacity = np.tile(capacities[0], count)
    solution = solve_integer_program(
        IntegerProgram(
            np.zeros(len(at)),
            SparseColumns.from_entries(columns, rows, values, len(at)),
            np.concatenate([pods[groups].astype(np.float64), np.full(len(capacity), -np.inf)]),
            np.concatenate([pods[groups].astype(np.float64), capacity]),
        ),
        MAX_TREE_NODES,
    )
    if solution is None:
        return None
    divided = np.zeros((count, len(pods)), dtype=np.intp)
    divided[at, groups[group]] = np.rint(solution.values).astype(np.intp)
    return divided


def resource_units(requests: FloatArray) -> FloatArray:
    """The greatest common divisor of each column: capacities are used up to a multiple of it."""
    units: FloatArray = np.maximum(np.gcd.reduce(requests.astype(np.int64), axis=0), 1).astype(np.float64)
    return units


def whole_amounts(
    problem: CoverProblem, candidates: IntArray, counts: FloatArray | IntArray
) -> tuple[FloatArray, FloatArray]:
    """Requests of the groups and capacities of the candidates, in units of which all are whole numbers.

    A pod that takes all of every node, as one that is alone on its host, takes as much as all other pods together instead: that
    shuts out the others as well. Beside 2^20 in a row, the solver's tolerance for whole numbers comes to a pod that takes 1, and
    it proved optima that were none.
    """
    units = resource_units(problem.requests)
    requests = problem.requests / units
    capacities = np.minimum(np.floor(problem.capacities[candidates] / units), counts @ requests)
    takes_all = (requests > 0) & (requests >= capacities.max(axis=0, initial=0.0))
    others = counts @ np.where(takes_all, 0.0, requests)
    is_reducible = takes_all.any(axis=0) & (others > 0)
    return (
        np.where(is_reducible & takes_all, np.minimum(requests, others), requests),
        np.where(is_reducible, np.minimum(capacities, others), capacities),
    )


#: Columns, rows and values of entries of a matrix.
MatrixEntries = tuple[IntArray, IntArray, FloatArray]


class NodeVariables:
    """What every program over candidate nodes has: how many nodes of each to take, and how many pods of each group are on them.

    Columns: nodes of each candidate, pods of a group on a candidate. Rows: groups (all their pods are somewhere), resources of
    candidates (pods take no more than the nodes have). ``node`` and ``group`` say of each pair what it is.
    """

    def __init__(self, problem: CoverProblem, candidates: IntArray) -> None:
        self.node, self.group = np.nonzero(problem.admits[candidates])
        self._requests, self._capacities = whole_amounts(problem, candidates, problem.counts)
        self.number, self.group_count = len(candidates), len(problem.counts)
        self._width = len(self._requests[0])
        self._counts = problem.counts

    @property
    def pair_columns(self) -> IntArray:
        """The columns of pods on candidates."""
        return self.number + np.arange(len(self.node))

    @property
    def column_count(self) -> int:
        """Where the columns of a program itself begin."""
        return self.number + len(self.node)

    @property
    def row_count(self) -> int:
        """Where the rows of a program itself begin."""
        return self.group_count + self.number * self._width

    def entries(self) -> list[MatrixEntries]:
        """The entries of these columns in these rows."""
        width = self._width
        resources = (self.group_count + self.node[:, None] * width + np.arange(width)).ravel()
        return [
            (
                np.repeat(np.arange(self.number), width),
                np.arange(self.group_count, self.row_count),
                -self._capacities.ravel(),
            ),
            (self.pair_columns, self.group, np.ones(len(self.node))),
            (np.repeat(self.pair_columns, width), resources, self._requests[self.group].ravel()),
        ]

    def bounds(self, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds of these rows and of those after them, which have these upper bounds and no lower ones."""
        resources = np.zeros(self.row_count - self.group_count)
        unbounded = np.full(len(resources) + len(upper), -np.inf)
        return np.concatenate([self._counts, unbounded]), np.concatenate([self._counts, resources, upper])

    def contents(self, values: FloatArray) -> tuple[IntArray, IntArray]:
        """A solution as nodes of each candidate, and the pods of each group on them."""
        whole = np.rint(values[: self.column_count]).astype(np.intp)
        assigned = np.zeros((self.number, self.group_count), dtype=np.intp)
        assigned[self.node, self.group] = whole[self.number :]
        return whole[: self.number], assigned


def sparse_columns(entries: Sequence[MatrixEntries], number: int) -> SparseColumns:
    """The matrix of so many columns with all these entries."""
    columns, rows, values = (np.concatenate([entry[part] for entry in entries]) for part in range(3))
    return SparseColumns.from_entries(columns, rows, values, number)


class _NodeProgram:
    """The program over some of the candidate nodes.

    Columns: those of ``NodeVariables``, CPU beyond the baseline of a candidate. Rows: its rows, baselines.
    """

    def __init__(self, problem: CoverProblem, candidates: IntArray) -> None:
        self.candidates = candidates
        self._variables = variables = NodeVariables(problem, candidates)
        baselines, cpu_prices = problem.baselines[candidates], problem.cpu_prices[candidates]
        cpu = problem.cpu_column
        surplus = np.flatnonzero(problem.charges_cpu[candidates])
        surplus_row = np.full(variables.number, -1, dtype=np.intp)
        surplus_row[surplus] = variables.row_count + np.arange(len(surplus))
        charged = np.flatnonzero(surplus_row[variables.node] >= 0)
        surplus_unit = resource_units(problem.requests)[cpu] if len(surplus) else 1.0
        cpu_requests = problem.requests[:, cpu] / surplus_unit if len(surplus) else np.zeros(variables.group_count)
        entries = [
            *variables.entries(),
            (surplus, surplus_row[surplus], -baselines[surplus] / surplus_unit),
            (
                variables.pair_columns[charged],
                surplus_row[variables.node[charged]],
                cpu_requests[variables.group[charged]],
            ),
            (
                variables.column_count + np.arange(len(surplus)),
                surplus_row[surplus],
                np.full(len(surplus), -1.0),
            ),
        ]
        no_pair_costs = np.zeros(len(variables.node))
        self._program = IntegerProgram(
            np.concatenate([problem.costs[candidates], no_pair_costs, cpu_prices[surplus] * surplus_unit]),
            sparse_columns(entries, variables.column_count + len(surplus)),
            *variables.bounds(np.zeros(len(surplus))),
            continuous=len(surplus),
        )

    @property
    def assignment_count(self) -> int:
        """Pairs of group and candidate node."""
        return len(self._variables.node)

    def solved(self, known_cost: float) -> tuple[IntArray, IntArray, float, bool] | None:
        """Nodes of each candidate, the pods of each group on them, what any such nodes cost at least, and whether these do.

        Only nodes that cost no more than the known packing are looked for.
        """
        nodes = min(MAX_TREE_NODES, MAX_WORK // self.assignment_count)
        solution = solve_integer_program(self._program, nodes, known_cost + _TOLERANCE)
        if solution is None:
            return None
        return *self._variables.contents(solution.values), solution.bound, solution.is_optimal
