"""Linear programmes, solved by HiGHS: the one place that knows the solver.

One thread, no clock, no randomness: the same programme gives the same answer wherever the same wheel runs. The solver is loaded
with the first programme; processes that plan load it beforehand (`load`), because that takes longer than most decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from highspy import Highs

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]


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
        """From a dense matrix with one row for each column of the programme."""
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
    import highspy

    solver = _new_solver()
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = len(costs), len(lower)
    programme.col_cost_ = costs
    programme.col_lower_, programme.col_upper_ = np.zeros(len(costs)), np.full(len(costs), np.inf)
    programme.row_lower_, programme.row_upper_ = lower, upper
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = columns.starts.astype(np.int32)
    programme.a_matrix_.index_ = columns.rows.astype(np.int32)
    programme.a_matrix_.value_ = columns.values
    solver.passModel(programme)
    return _run_solver(solver)


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

    def solve(self) -> LinearSolution | None:
        """The cheapest cover, from where the last one was; None where the columns cannot cover."""
        return _run_solver(self._solver)


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
