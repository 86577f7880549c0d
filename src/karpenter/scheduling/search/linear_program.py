"""Linear programs, solved by HiGHS: the one place that knows the solver.

One thread, no clock, no randomness: the same program gives the same answer wherever the same wheel runs. The solver is loaded
with the first program; processes that plan load it beforehand (`load`), because that takes longer than most decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from highspy import Highs, HighsLp

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]


#: USD per hour by which an integer solution may miss the optimum: prices differ by more.
_MIP_GAP = 1e-8


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """A minimum: its value, the variables, and what one unit more on the right of each row would cost."""

    objective: float
    values: FloatArray
    duals: FloatArray


@dataclass(frozen=True, eq=False)
class SparseColumns:
    """A matrix by columns: column ``i`` has ``values[starts[i]:starts[i + 1]]`` in those ``rows``."""

    starts: IntArray
    rows: IntArray
    values: FloatArray

    @staticmethod
    def from_dense(matrix: FloatArray) -> SparseColumns:
        """From a dense matrix with one row for each column of the program."""
        columns, rows = np.nonzero(matrix)
        starts = np.searchsorted(columns, np.arange(len(matrix) + 1))
        return SparseColumns(starts, rows, matrix[columns, rows])


def load_solver() -> None:
    """Load the solver."""
    import highspy as highspy


def solve_linear_program(
    costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray
) -> LinearSolution | None:
    """Non-negative variables of least cost with every row between ``lower`` and ``upper``; None where there are none."""
    solver = _new_solver()
    solver.passModel(_program(costs, columns, lower, upper))
    return _run_solver(solver)


def _program(costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray) -> HighsLp:
    import highspy

    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(costs), len(lower)
    program.col_cost_ = costs
    program.col_lower_, program.col_upper_ = np.zeros(len(costs)), np.full(len(costs), np.inf)
    program.row_lower_, program.row_upper_ = lower, upper
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = columns.starts.astype(np.int32)
    program.a_matrix_.index_ = columns.rows.astype(np.int32)
    program.a_matrix_.value_ = columns.values
    return program


def solve_integer_program(
    costs: FloatArray, columns: SparseColumns, upper: FloatArray, max_nodes: int
) -> FloatArray | None:
    """Non-negative integers of least cost with no row above ``upper``; None where they are not found in so many nodes of the
    search tree."""
    import highspy

    solver = _new_solver()
    program = _program(costs, columns, np.full(len(upper), -np.inf), upper)
    program.integrality_ = [highspy.HighsVarType.kInteger] * len(costs)
    solver.passModel(program)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_max_nodes", max_nodes)
    solution = _run_solver(solver)
    return None if solution is None else np.rint(solution.values)


class CoveringProgram:
    """The least cost to cover counts by columns taken any number of times, parts of times too; columns may be added."""

    def __init__(self, counts: FloatArray) -> None:
        self._solver = _new_solver()
        self._solver.setOptionValue("presolve", "off")
        no_entries = np.zeros(0, dtype=np.int32)
        for count in counts:
            self._solver.addRow(float(count), float("inf"), 0, no_entries, np.zeros(0))

    def add_columns(self, costs: FloatArray, matrix: FloatArray) -> None:
        """More columns: what each costs and, a row each, how many it covers."""
        columns = SparseColumns.from_dense(matrix)
        number = len(costs)
        self._solver.addCols(
            number,
            costs,
            np.zeros(number),
            np.full(number, np.inf),
            len(columns.values),
            columns.starts[:-1].astype(np.int32),
            columns.rows.astype(np.int32),
            columns.values,
        )

    def set_counts(self, counts: FloatArray) -> None:
        """Other counts to cover."""
        for row, count in enumerate(counts.tolist()):
            self._solver.changeRowBounds(row, count, float("inf"))

    def solve(self) -> LinearSolution | None:
        """The cheapest cover, from where the last one was; None where the columns cannot cover."""
        return _run_solver(self._solver)


@dataclass(frozen=True, eq=False)
class IntegerCover:
    """How often each column is taken, and whether no cover is cheaper."""

    times: IntArray
    is_optimal: bool


def cheapest_integer_cover(
    costs: FloatArray, matrix: FloatArray, counts: FloatArray, max_nodes: int
) -> IntegerCover | None:
    """The cheapest cover of counts by whole columns, a row of the matrix each; the best of so many nodes of its search tree."""
    import highspy

    columns, number = SparseColumns.from_dense(matrix), len(costs)
    solver = _new_solver()
    solver.setOptionValue("mip_max_nodes", max_nodes)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", _MIP_GAP)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = number, len(counts)
    program.col_cost_ = costs
    program.col_lower_, program.col_upper_ = np.zeros(number), np.full(number, counts.max(initial=0.0))
    program.row_lower_, program.row_upper_ = counts, np.full(len(counts), np.inf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = columns.starts.astype(np.int32)
    program.a_matrix_.index_ = columns.rows.astype(np.int32)
    program.a_matrix_.value_ = columns.values
    program.integrality_ = [highspy.HighsVarType.kInteger] * number
    solver.passModel(program)
    solver.run()
    values = np.rint(np.array(solver.getSolution().col_value, dtype=np.float64))
    if len(values) != number or (values @ matrix < counts).any():
        return None
    return IntegerCover(values.astype(np.intp), solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


def _new_solver() -> Highs:
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    return solver


def _run_solver(solver: Highs) -> LinearSolution | None:
    import highspy

    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    return LinearSolution(
        float(solver.getInfo().objective_function_value),
        np.array(solution.col_value, dtype=np.float64),
        np.array(solution.row_dual, dtype=np.float64),
    )
