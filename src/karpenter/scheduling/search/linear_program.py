"""Linear programs, solved by HiGHS: the only module that uses the solver.

One thread for a program, no clock, no randomness: the same program gives the same answer wherever the same wheel runs. The
solver does not hold the interpreter's lock, so it may run beside other work (`BackgroundCosts`). It is loaded
with the first program; processes that plan load it beforehand (`load`), because that takes longer than most decisions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from karpenter.scheduling.search.second_core import has_second_core

if TYPE_CHECKING:
    from highspy import Highs, HighsLp

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]
IndexArray = NDArray[np.intp] | NDArray[np.int32]


#: Programs with so many rows are solved by the primal simplex method. They have hundreds of types that cost the same
#: per pod: the dual method repairs their rows one after the other and takes ten times as long. Smaller ones it solves as fast.
_PRIMAL_FROM_ROWS = 1000
#: So are those with so many columns where only the least cost is asked for: of types that cost the same per pod many solutions
#: are as good, and which of them comes out differs.
_PRIMAL_FROM_COLUMNS = 3000
#: Programs with so many columns take more than a millisecond, and may be solved in a thread beside other work.
_BACKGROUND_FROM_COLUMNS = 1000
#: What HiGHS calls the primal simplex method.
_PRIMAL_SIMPLEX = 4
#: USD per hour by which an integer solution may miss the optimum: prices differ by more.
_MIP_GAP = 1e-8
#: So many integer programs are remembered, some ten kilobytes each.
_REMEMBERED_PROGRAMS = 16


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """A minimum: its value, the variables, what one unit more on the right of each row would cost, and what one unit of each
    variable costs beyond its worth to the rows."""

    objective: float
    values: FloatArray
    duals: FloatArray
    reduced_costs: FloatArray


@dataclass(frozen=True, eq=False)
class SparseColumns:
    """A matrix by columns: column ``i`` has ``values[starts[i]:starts[i + 1]]`` in those ``rows``."""

    starts: IndexArray
    rows: IndexArray
    values: FloatArray

    @staticmethod
    def from_dense(matrix: FloatArray) -> SparseColumns:
        """From a dense matrix with one row for each column of the program."""
        columns, rows = np.nonzero(matrix)
        return SparseColumns.from_entries(columns, rows, matrix[columns, rows], len(matrix))

    @staticmethod
    def from_entries(columns: IntArray, rows: IntArray, values: FloatArray, number: int) -> SparseColumns:
        """From the entries of so many columns, in any order; zeros are left out."""
        kept = np.flatnonzero(values)
        order = kept[np.lexsort((rows[kept], columns[kept]))]
        starts = np.searchsorted(columns[order], np.arange(number + 1))
        return SparseColumns(starts, rows[order], values[order])


def load_solver() -> None:
    """Load the solver."""
    import highspy as highspy


def solve_linear_program(
    costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray
) -> LinearSolution | None:
    """Non-negative variables of least cost with every row between ``lower`` and ``upper``; None where there are none."""
    return _run_solver(_loaded_solver(costs, columns, lower, upper))


def solve_for_cost(
    costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray
) -> LinearSolution | None:
    """The same where only the least cost is asked for: any of equally good solutions, whichever is found first."""
    return _run_solver(_solver_for_cost(costs, columns, lower, upper))


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Non-negative variables of least cost with every row between ``lower`` and ``upper``."""

    costs: FloatArray
    columns: SparseColumns
    lower: FloatArray
    upper: FloatArray


class BackgroundCosts:
    """The least costs of programs, as `solve_for_cost` finds them, in a thread while the caller does something else.

    Small programs are solved at once.
    """

    def __init__(self, programs: Sequence[LinearProgram]) -> None:
        self._solvers = [_solver_for_cost(each.costs, each.columns, each.lower, each.upper) for each in programs]
        self._error: BaseException | None = None
        columns = sum(len(each.costs) for each in programs)
        is_worth_it = columns >= _BACKGROUND_FROM_COLUMNS and has_second_core()
        self._thread = self._started_thread() if is_worth_it else None
        if self._thread is None:
            self._run()

    def _started_thread(self) -> threading.Thread | None:
        """None where there is no room for one more. Python waits for it in the end: inside the solver it cannot be ended."""
        thread = threading.Thread(target=self._run, name="linear-program")
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _run(self) -> None:
        try:
            for solver in self._solvers:
                solver.run()
        except BaseException as error:
            self._error = error

    def wait(self) -> list[float | None]:
        """The costs, once all programs are solved; None for one without a solution. Raises what the solver raised."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        solutions = [_solution_of(solver) for solver in self._solvers]
        return [None if solution is None else solution.objective for solution in solutions]


def _solver_for_cost(costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray) -> Highs:
    solver = _loaded_solver(costs, columns, lower, upper)
    solver.setOptionValue("presolve", "off")
    if len(costs) >= _PRIMAL_FROM_COLUMNS:
        solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
    return solver


def _loaded_solver(costs: FloatArray, columns: SparseColumns, lower: FloatArray, upper: FloatArray) -> Highs:
    """A solver that has the program."""
    solver = _new_solver()
    if len(lower) >= _PRIMAL_FROM_ROWS:
        solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
    solver.passModel(_program(costs, columns, lower, upper))
    return solver


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


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """Non-negative variables of least cost with every row between ``lower`` and ``upper``: whole numbers, but for the last ones.

    ``continuous``: how many of the last variables may have any value.
    """

    costs: FloatArray
    columns: SparseColumns
    lower: FloatArray
    upper: FloatArray
    continuous: int = 0


@dataclass(frozen=True, eq=False)
class IntegerSolution:
    """Variables that keep to all rows, and the least that any such variables cost as far as is proven."""

    values: FloatArray
    bound: float
    is_optimal: bool


def solve_integer_program(program: IntegerProgram, max_nodes: int, max_cost: float = inf) -> IntegerSolution | None:
    """The best of so many nodes of the search tree; None where none was found.

    ``max_cost``: solutions that cost more are of no use, so parts of the tree without cheaper ones are left out. The latest
    programs are remembered: orders of domains that differ only in names ask for the same nodes.
    """
    columns = program.columns
    arrays = (program.costs, columns.values, program.lower, program.upper)
    places = (columns.starts.astype(np.int32).tobytes(), columns.rows.astype(np.int32).tobytes())
    numbers = tuple(array.astype(np.float64).tobytes() for array in arrays)
    return _solved_integer_program(numbers, places, program.continuous, max_nodes, max_cost)


@lru_cache(maxsize=_REMEMBERED_PROGRAMS)
def _solved_integer_program(
    numbers: tuple[bytes, ...], places: tuple[bytes, ...], continuous: int, max_nodes: int, max_cost: float
) -> IntegerSolution | None:
    import highspy

    costs, values, lower, upper = (np.frombuffer(each, dtype=np.float64) for each in numbers)
    starts, rows = (np.frombuffer(each, dtype=np.int32) for each in places)
    solver = _new_solver()
    model = _program(costs, SparseColumns(starts, rows, values), lower, upper)
    whole = len(costs) - continuous
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger] * whole + [kinds.kContinuous] * continuous
    solver.passModel(model)
    solver.setOptionValue("mip_max_nodes", max_nodes)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", _MIP_GAP)
    solver.setOptionValue("mip_allow_restart", False)
    if max_cost < inf:
        solver.setOptionValue("objective_bound", max_cost)
    solver.run()
    information = solver.getInfo()
    if information.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    solution = np.array(solver.getSolution().col_value, dtype=np.float64)
    solution[:whole] = np.rint(solution[:whole])
    is_optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return IntegerSolution(solution, float(information.mip_dual_bound), is_optimal)


class CoveringProgram:
    """The least cost to cover counts by columns taken any number of times, parts of times too; columns may be added."""

    def __init__(self, counts: FloatArray) -> None:
        self._solver = _new_solver()
        self._solver.setOptionValue("presolve", "off")
        if len(counts) >= _PRIMAL_FROM_ROWS:
            # The last solution stays one when columns come: the dual method would begin anew.
            self._solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        no_entries = np.zeros(0, dtype=np.int32)
        for count in counts:
            self._solver.addRow(float(count), float("inf"), 0, no_entries, np.zeros(0))

    def add_columns(self, costs: FloatArray, columns: SparseColumns) -> None:
        """More columns: what each costs, and how many it covers."""
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


def _new_solver() -> Highs:
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    return solver


def _run_solver(solver: Highs) -> LinearSolution | None:
    solver.run()
    return _solution_of(solver)


def _solution_of(solver: Highs) -> LinearSolution | None:
    import highspy

    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    return LinearSolution(
        float(solver.getInfo().objective_function_value),
        np.array(solution.col_value, dtype=np.float64),
        np.array(solution.row_dual, dtype=np.float64),
        np.array(solution.col_dual, dtype=np.float64),
    )
