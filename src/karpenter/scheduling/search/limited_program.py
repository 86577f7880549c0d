"""Nodes for as many pods as limits of NodePools allow: column generation with each limit as a row, then an integer program.

A column is a node with pods in it, as in `column_enumeration`. It takes a part of each limit, so a limit that binds has a price,
and columns are priced with it: a type that takes less of a scarce limit may be worth more than a cheaper one. A pod that is not
served costs more than any node, so the optimum serves as many pods as limits allow, and of such nodes the cheapest.

1. The linear program over columns, until no column is missing. Its optimum says how many pods can be served at most.
2. The integer program over the columns, each also as every other node that holds the same pods and no node beats: what a column
   takes of one limit another may take of another one.
3. While that serves fewer: of a few pods the program over nodes (`limited_nodes`), which is exact. Of more pods every column that
   a better solution could have, if they are few enough to enumerate; then dives. Columns that the linear program selects in whole
   are taken, else the one of highest count, and the program with what is left of pods and limits brings the columns it lacks;
   then the integer program over all columns again.

Work is bounded by rounds of pricing, columns and nodes of the search tree, so equal input has equal plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from karpenter.scheduling.search.column_enumeration import (
    DUAL_SMOOTHING,
    TOLERANCE,
    CoverProblem,
    NodeColumns,
    columns_nearly_worth,
    promising_columns,
    values_of_contents,
)
from karpenter.scheduling.search.distinct_rows import distinct_rows
from karpenter.scheduling.search.limited_nodes import nodes_serving_most
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
from karpenter.scheduling.search.offering_rows import fitting

#: Rounds of pricing at first and after each step of a dive, and new columns in a round.
MAX_ROUNDS, MAX_ROUNDS_IN_DIVE, MAX_NEW_COLUMNS = 40, 4, 48
#: Dives, each with another first column, and steps of a dive.
MAX_DIVES, MAX_DIVE_STEPS = 4, 60
#: Columns of an integer program, and nodes of its search tree.
MAX_INTEGER_COLUMNS, MAX_TREE_NODES = 1_500, 60
_TINY = 1e-6


@dataclass(frozen=True, eq=False)
class LimitedCoverProblem:
    """Pods and nodes, what each node takes of each limit as a part of what is left of it, and what an unserved pod costs.

    ``unserved_cost`` is in USD per hour, above what serving one may cost.
    """

    cover: CoverProblem
    limit_shares: FloatArray
    unserved_cost: float


def nodes_within_limits(problem: LimitedCoverProblem) -> NodeColumns | None:
    """A node for each column, as many as serve the most pods; None where the linear program has no solution."""
    program = _LimitedProgram(problem)
    program.generate(MAX_ROUNDS)
    root = program.solution
    if root is None:
        return None
    most = int(program.served_at_most(root))
    best = program.integer_columns()
    if best is None or program.served(best) >= most:
        return best
    exact = nodes_serving_most(problem.cover, problem.limit_shares, problem.unserved_cost)
    if exact is not None:
        best = max((best, exact.columns), key=program.served)
        if exact.is_most or program.served(best) >= most:
            return best
    return _improved(program, best, most)


def _improved(program: _LimitedProgram, best: NodeColumns, most: float) -> NodeColumns:
    """Nodes that serve more pods, by columns that the program still lacks; no more than ``most`` pods can be served."""
    column_count = len(program.columns.costs)
    is_complete = program.add_nearly_worth(most - program.served(best))
    for dives in range(MAX_DIVES + 1):
        if dives:
            program.dive(dives - 1)
        if len(program.columns.costs) > column_count:
            column_count = len(program.columns.costs)
            best = max((best, program.integer_columns() or best), key=program.served)
        if is_complete or program.served(best) >= most:
            break
    return best


class _LimitedProgram:
    """The linear program over columns, one for each unserved pod among them. Its rows are groups, then limits."""

    def __init__(self, problem: LimitedCoverProblem) -> None:
        self._problem = problem
        self._cover = problem.cover
        self._counts = problem.cover.counts
        self._groups = len(self._counts)
        self._limits = problem.limit_shares.shape[1]
        self._program = CoveringProgram(np.concatenate([self._counts, -np.ones(self._limits)]))
        unserved = np.hstack([np.eye(self._groups), np.zeros((self._groups, self._limits))])
        costs = np.full(self._groups, problem.unserved_cost)
        self._program.add_columns(costs, SparseColumns.from_dense(unserved))
        nothing = np.zeros((0, self._groups), dtype=np.intp)
        self.columns = NodeColumns(nothing, np.zeros(0, dtype=np.intp), np.zeros(0))
        self._names: set[bytes] = set()
        self.solution: LinearSolution | None = self._program.solve()
        self._smoothed = np.zeros(self._groups + self._limits) if self.solution is None else self.solution.duals

    def generate(self, rounds: int) -> None:
        """Add columns until none is missing, or so many rounds were made."""
        for _ in range(rounds):
            if self.solution is None:
                return
            duals = np.maximum(self.solution.duals, 0.0)
            self._smoothed = DUAL_SMOOTHING * self._smoothed + (1 - DUAL_SMOOTHING) * duals
            if not self._add(self._missing(self._smoothed), duals) and not self._add(self._missing(duals), duals):
                return
            self.solution = self._program.solve()

    def add_nearly_worth(self, pods: float) -> bool:
        """Add columns that some solution with up to so many pods more may have; whether these are all such columns."""
        if self.solution is None:
            return False
        duals = np.maximum(self.solution.duals, 0.0)
        worth = duals[: self._groups]
        columns = columns_nearly_worth(self._priced(duals), worth, pods * self._problem.unserved_cost)
        if columns is None:
            return False
        ranked = np.argsort(columns.costs - values_of_contents(columns.contents, worth), kind="stable")
        self._extend(
            self._columns(columns.contents, columns.nodes).select(ranked[:MAX_INTEGER_COLUMNS]), MAX_INTEGER_COLUMNS
        )
        self.solution = self._program.solve()
        return len(columns.costs) + len(self.columns.costs) <= MAX_INTEGER_COLUMNS

    def _missing(self, duals: FloatArray) -> NodeColumns:
        """Columns whose pods are worth more than the node and what it takes of limits; with the costs of the problem."""
        columns = promising_columns(self._priced(duals), duals[: self._groups])
        return self._columns(columns.contents, columns.nodes)

    def _priced(self, duals: FloatArray) -> CoverProblem:
        """The problem without limits in which nodes cost what they take of limits, too."""
        return replace(self._cover, costs=self._cover.costs + self._problem.limit_shares @ duals[self._groups :])

    def _columns(self, contents: IntArray, nodes: IntArray) -> NodeColumns:
        """Columns with the costs of the problem."""
        return NodeColumns(contents, nodes, self._cover.costs[nodes] + self._cover.surpluses(nodes, contents))

    def _add(self, columns: NodeColumns, duals: FloatArray) -> int:
        """Add the new ones that the duals confirm, the best first; how many."""
        worth = values_of_contents(columns.contents, duals[: self._groups])
        gains = worth - columns.costs - self._problem.limit_shares[columns.nodes] @ duals[self._groups :]
        ranked = np.argsort(-gains, kind="stable")
        return self._extend(columns.select(ranked[gains[ranked] > TOLERANCE]), MAX_NEW_COLUMNS)

    def _extend(self, columns: NodeColumns, most: int) -> int:
        """Add the first of the columns that are new, at most so many; how many."""
        new: list[int] = []
        for row in range(len(columns.costs)):
            name = columns.nodes[row].tobytes() + columns.contents[row].tobytes()
            if name not in self._names and len(new) < most:
                self._names.add(name)
                new.append(row)
        chosen = columns.select(np.array(new, dtype=np.intp))
        if new:
            self.columns = self.columns.with_more(chosen)
            self._program.add_columns(chosen.costs, SparseColumns.from_dense(self._rows(chosen)))
        return len(new)

    def _rows(self, columns: NodeColumns) -> FloatArray:
        return np.hstack([columns.contents.astype(np.float64), -self._problem.limit_shares[columns.nodes]])

    def served_at_most(self, solution: LinearSolution) -> float:
        """The pods that a solution of the linear program serves, rounded down."""
        return float(np.floor(self._counts.sum() - solution.values[: self._groups].sum() + _TINY))

    def served(self, columns: NodeColumns) -> float:
        """The pods that the nodes serve."""
        return float(np.minimum(columns.contents.sum(axis=0), self._counts).sum())

    def integer_columns(self) -> NodeColumns | None:
        """The best whole nodes of the columns so far, those that are most promising by the linear program."""
        self._add_equivalents()
        kept = self._most_promising()
        rows = np.vstack([np.eye(self._groups, self._groups + self._limits), self._rows(kept)])
        costs = np.concatenate([np.full(self._groups, self._problem.unserved_cost), kept.costs])
        lower = np.concatenate([self._counts, -np.ones(self._limits)])
        program = IntegerProgram(costs, SparseColumns.from_dense(rows), lower, np.full(len(lower), np.inf))
        solution = solve_integer_program(program, MAX_TREE_NODES)
        if solution is None:
            return None
        times = solution.values[self._groups :].astype(np.intp)
        return kept.select(np.repeat(np.arange(len(kept.costs)), times))

    def _add_equivalents(self) -> None:
        """Add the contents of all columns as every other node that may hold them, but for nodes that others beat."""
        cover = self._cover
        contents = self.columns.contents[distinct_rows(self.columns.contents)[0]]
        holds = fitting(contents @ cover.requests, cover.capacities).T
        holds &= ((contents > 0).astype(np.float32) @ (~cover.admits).astype(np.float32).T) == 0
        beaten = (holds.astype(np.float32) @ self._beats.astype(np.float32)) > 0
        rows, nodes = np.nonzero(holds & ~beaten)
        self._extend(self._columns(contents[rows], nodes), len(rows))
        self.solution = self._program.solve()

    @cached_property
    def _beats(self) -> BoolArray:
        """For each pair of nodes whether the first costs no more and takes no more of any limit, but for equal later ones."""
        cover = self._cover
        merits = np.column_stack([cover.costs, self._problem.limit_shares, cover.cpu_prices, -cover.baselines])
        if cover.pod_costs is not None:
            merits = np.hstack([merits, cover.pod_costs])
        no_worse = fitting(merits, merits).T
        beats: BoolArray = no_worse & ~(no_worse.T & np.tri(len(merits), dtype=bool))
        return beats

    def _most_promising(self) -> NodeColumns:
        if self.solution is None or len(self.columns.costs) <= MAX_INTEGER_COLUMNS:
            return self.columns
        reduced = self.solution.reduced_costs[self._groups :]
        return self.columns.select(np.sort(np.argsort(reduced, kind="stable")[:MAX_INTEGER_COLUMNS]))

    def dive(self, rank: int) -> None:
        """Take columns and generate for what is left, until nothing more can be taken; at first the column of this rank."""
        left, free = self._counts.copy(), np.ones(self._limits)
        for step in range(MAX_DIVE_STEPS):
            taken = self._taken(left, free, rank if not step else 0)
            if not len(taken):
                break
            for column in taken.tolist():
                left = np.maximum(left - self.columns.contents[column], 0.0)
                free -= self._problem.limit_shares[self.columns.nodes[column]]
            self._set_rows(left, free)
            self.solution = self._program.solve()
            self.generate(MAX_ROUNDS_IN_DIVE)
        self._set_rows(self._counts, np.ones(self._limits))
        self.solution = self._program.solve()

    def _set_rows(self, left: FloatArray, free: FloatArray) -> None:
        self._program.set_counts(np.concatenate([left, -np.maximum(free, 0.0)]))

    def _taken(self, left: FloatArray, free: FloatArray, rank: int) -> IntArray:
        """Columns to take: those selected in whole, else of those that limits allow the one with the highest count."""
        none = np.zeros(0, dtype=np.intp)
        if self.solution is None or not left.any():
            return none
        values = self.solution.values[self._groups :]
        shares = self._problem.limit_shares[self.columns.nodes]
        useful = np.minimum(self.columns.contents, left).sum(axis=1) > 0
        allowed = useful & (shares <= free + TOLERANCE).all(axis=1) & (values > _TINY)
        if not allowed.any():
            return none
        whole = np.floor(values + _TINY).astype(np.intp) * allowed
        if whole.any() and not rank:
            return np.repeat(np.arange(len(values)), whole)
        ranked = np.argsort(-np.where(allowed, values, -1.0), kind="stable")
        return ranked[[min(rank, int(allowed.sum()) - 1)]]
