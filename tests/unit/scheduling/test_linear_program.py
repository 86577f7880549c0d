"""The linear programs of the search: small ones and those with so many rows that another method solves them."""

from __future__ import annotations

import numpy as np
import pytest

from karpenter.scheduling.search.linear_program import (
    BackgroundCosts,
    LinearProgram,
    SparseColumns,
    solve_for_cost,
    solve_linear_program,
)

NO_LIMIT = np.inf


@pytest.mark.parametrize("rows", [3, 1500])
def test_the_cheapest_of_two_columns_covers_each_row(rows: int) -> None:
    """Row n needs n; a column of its own costs 3 per unit, one that also covers the next row costs 4."""
    costs = np.concatenate([np.full(rows, 3.0), np.full(rows // 2, 4.0)])
    pairs = [np.array([2 * pair, 2 * pair + 1]) for pair in range(rows // 2)]
    matrix = np.zeros((len(costs), rows))
    matrix[np.arange(rows), np.arange(rows)] = 1.0
    for at, pair in enumerate(pairs):
        matrix[rows + at, pair] = 1.0
    needed = np.arange(rows, dtype=np.float64)
    solution = solve_linear_program(costs, SparseColumns.from_dense(matrix), needed, np.full(rows, NO_LIMIT))
    assert solution is not None
    alone = [needed[rows - 1]] if rows % 2 else []
    expected = sum(4.0 * needed[pair].min() + 3.0 * (needed[pair].max() - needed[pair].min()) for pair in pairs)
    assert solution.objective == pytest.approx(expected + 3.0 * sum(alone))
    assert solution.duals @ needed == pytest.approx(solution.objective), "what rows are worth adds up to the cost"


@pytest.mark.parametrize("rows", [3, 1500])
def test_a_row_that_nothing_covers_leaves_no_solution(rows: int) -> None:
    matrix = np.zeros((1, rows))
    matrix[0, 0] = 1.0
    needed = np.ones(rows)
    assert solve_linear_program(np.ones(1), SparseColumns.from_dense(matrix), needed, np.full(rows, NO_LIMIT)) is None


def test_costs_in_the_background_are_those_of_programs_solved_at_once() -> None:
    """One of the programs has no solution, the others are so large that a thread solves them."""
    draw = np.random.default_rng(3)
    programs = []
    for columns in (900, 1200, 40):
        matrix = np.where(draw.random((columns, 20)) < 0.3, draw.random((columns, 20)), 0.0)
        matrix[:, 0] *= columns != 40
        arrays = draw.random(columns) + 0.5, SparseColumns.from_dense(matrix), np.full(20, 7.0), np.full(20, NO_LIMIT)
        programs.append(LinearProgram(*arrays))
    at_once = [solve_for_cost(each.costs, each.columns, each.lower, each.upper) for each in programs]
    for chosen in (programs, programs[2:]):
        solved = at_once[len(at_once) - len(chosen) :]
        assert BackgroundCosts(chosen).wait() == [None if each is None else each.objective for each in solved]
    assert [each is None for each in at_once] == [False, False, True]
