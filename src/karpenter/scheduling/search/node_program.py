"""The cheapest nodes for few pods that all fit the same nodes: an integer program over counts of nodes.

Its variables are how many nodes of each candidate to buy, and how many pods of each group go to nodes of each candidate. Equal
nodes are one variable, so they are not symmetric. The capacity of equal nodes counts as a sum, so the optimum is a lower bound of
every packing; it is the cost of a packing where the pods can be divided among the equal nodes, which a second program decides.

1. The linear relaxation says what each candidate costs beyond the value of its capacity. A candidate that costs more than the gap
   to the cheapest packing so far is in no cheaper packing, and is left out.
2. The integer program over those left has a bounded number of pairs of group and candidate, and at most
   `MAX_TREE_NODES` nodes of its search tree, fewer where there are many pairs. Most programs of 20 to 40 pods are solved in ten
   nodes, 0.05 to 0.3 s. Small ones are solved before the search, which they make needless; larger ones after it, when the gap
   is smaller.

Alternatives: dynamic programming (`packing/exact_packing`) needs few sets of pods; columns (`column_enumeration`) are too many to
prove anything where most pods fit most nodes; a variable for each node and pod is symmetric in equal
nodes, and took 1 to 3 s where the pods did not divide.
"""

from __future__ import annotations

from math import inf

import numpy as np

from karpenter.scheduling.search.column_enumeration import Cover, CoverProblem, NodeColumns
from karpenter.scheduling.search.linear_program import (
    FloatArray,
    IntArray,
    IntegerProgram,
    SparseColumns,
    solve_integer_program,
    solve_linear_program,
)

#: Pairs of group and candidate node: before the search, in its place, and after it.
FEW_ASSIGNMENTS, MAX_ASSIGNMENTS = 300, 1_400
#: Nodes of the search tree, and nodes times pairs.
MAX_TREE_NODES, MAX_WORK = 30, 10_000
#: USD per hour by which a candidate may exceed the gap: rounding errors of the linear program.
_TOLERANCE = 1e-7


def cheapest_nodes(problem: CoverProblem, known_cost: float, max_assignments: int) -> Cover | None:
    """The cheapest nodes; None where the program is too large or has no solution in its bounds.

    The cover has no columns where the pods do not divide among equal nodes.

    ``known_cost``: USD per hour of some packing of these pods.
    """
    if not problem.admits.any(axis=0).all():
        return None
    program = _NodeProgram(problem, np.arange(len(problem.costs)))
    relaxed = program.relaxed()
    if relaxed is None:
        return None
    cost, reduced_costs = relaxed
    program = _NodeProgram(problem, np.flatnonzero(reduced_costs <= known_cost - cost + _TOLERANCE))
    solution = program.solved() if 0 < program.assignment_count <= max_assignments else None
    if solution is None:
        return None
    counts, assigned, bound = solution
    contents = [
        divide_among_equal_nodes(problem, int(node), int(count), pods)
        for node, count, pods in zip(program.candidates, counts, assigned, strict=True)
    ]
    return _cover(problem, program.candidates, contents, min(bound, known_cost))


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
    amounts = problem.requests[groups]
    width = amounts.shape[1]
    at, group = np.divmod(np.arange(count * len(groups)), len(groups))
    variables, places = np.arange(len(at)), np.arange(width)
    rows = np.concatenate([group, (len(groups) + at[:, None] * width + places).ravel()])
    columns = np.concatenate([variables, np.repeat(variables, width)])
    units = resource_units(problem.requests)
    values = np.concatenate([np.ones(len(at)), (amounts / units)[group].ravel()])
    capacity = np.tile(np.floor(problem.capacities[node] / units), count)
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


class _NodeProgram:
    """The program over some of the candidate nodes.

    Columns: nodes of each candidate, pods of a group on a candidate, CPU beyond the baseline of a candidate. Rows: groups,
    resources of candidates, baselines.
    """

    def __init__(self, problem: CoverProblem, candidates: IntArray) -> None:
        self.candidates = candidates
        self._counts = problem.counts
        self._node, self._group = np.nonzero(problem.admits[candidates])
        units = resource_units(problem.requests)
        requests = problem.requests / units
        capacities = np.minimum(np.floor(problem.capacities[candidates] / units), problem.counts @ requests)
        baselines, cpu_prices = problem.baselines[candidates], problem.cpu_prices[candidates]
        cpu = problem.cpu_column
        surplus = np.flatnonzero(problem.charges_cpu[candidates])
        number, groups, width = len(candidates), len(problem.counts), requests.shape[1]
        pairs, places = np.arange(len(self._node)), np.arange(width)
        base = groups + number * width
        surplus_row = np.full(number, -1, dtype=np.intp)
        surplus_row[surplus] = base + np.arange(len(surplus))
        charged = np.flatnonzero(surplus_row[self._node] >= 0)
        cpu_requests = requests[:, cpu] if len(surplus) else np.zeros(groups)
        entries = [
            (np.repeat(np.arange(number), width), np.arange(groups, base), -capacities.ravel()),
            (number + pairs, self._group, np.ones(len(pairs))),
            (
                np.repeat(number + pairs, width),
                (groups + self._node[:, None] * width + places).ravel(),
                requests[self._group].ravel(),
            ),
            (surplus, surplus_row[surplus], -baselines[surplus] / (units[cpu] if len(surplus) else 1.0)),
            (number + charged, surplus_row[self._node[charged]], cpu_requests[self._group[charged]]),
            (number + len(pairs) + np.arange(len(surplus)), surplus_row[surplus], np.full(len(surplus), -1.0)),
        ]
        columns, rows, values = (np.concatenate([entry[part] for entry in entries]) for part in range(3))
        total = number + len(pairs) + len(surplus)
        surplus_unit = units[cpu] if len(surplus) else 1.0
        upper = np.zeros(base - groups + len(surplus))
        self._program = IntegerProgram(
            np.concatenate([problem.costs[candidates], np.zeros(len(pairs)), cpu_prices[surplus] * surplus_unit]),
            SparseColumns.from_entries(columns, rows, values, total),
            np.concatenate([problem.counts, np.full(len(upper), -np.inf)]),
            np.concatenate([problem.counts, upper]),
            continuous=len(surplus),
        )

    @property
    def assignment_count(self) -> int:
        """Pairs of group and candidate node."""
        return len(self._node)

    def relaxed(self) -> tuple[float, FloatArray] | None:
        """The optimum of the linear relaxation, and by how much each candidate costs more than its capacity is worth."""
        program = self._program
        solution = solve_linear_program(program.costs, program.columns, program.lower, program.upper)
        if solution is None:
            return None
        return solution.objective, solution.reduced_costs[: len(self.candidates)]

    def solved(self) -> tuple[IntArray, IntArray, float] | None:
        """Nodes of each candidate, the pods of each group on them, and what any such nodes cost at least."""
        nodes = min(MAX_TREE_NODES, MAX_WORK // self.assignment_count)
        solution = solve_integer_program(self._program, nodes)
        if solution is None:
            return None
        values = np.rint(solution.values[: len(self.candidates) + len(self._node)]).astype(np.intp)
        assigned = np.zeros((len(self.candidates), len(self._counts)), dtype=np.intp)
        assigned[self._node, self._group] = values[len(self.candidates) :]
        return values[: len(self.candidates)], assigned, solution.bound
