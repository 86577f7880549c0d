"""A problem with its solution, written to a file and solved again from it."""

from __future__ import annotations

from karpenter.scheduling.problem import Problem
from karpenter.scheduling.problem_file import read_problem, solution_bytes, write_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve


def check_replay(problem: Problem, solution: Solution) -> None:
    """The file says the same when it is read and written again, and its problem has the same solution, byte for byte."""
    content = write_problem(problem, solution)
    recorded = read_problem(content)
    assert write_problem(recorded.problem, recorded.solution) == content
    assert solution_bytes(recorded.problem, solve(recorded.problem)) == recorded.solution_bytes
