"""A problem with its solution, written to a file and solved again from it."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.disruption_problem_file import (
    disruption_solution_bytes,
    read_disruption_problem,
    write_disruption_problem,
)
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.problem import Problem, instance_types_of, type_indexes_of
from karpenter.scheduling.problem_file import read_problem, solution_bytes, write_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve


def check_replay(problem: Problem, solution: Solution) -> None:
    """The file says the same when it is read and written again, and its problem has the same solution, byte for byte."""
    content = write_problem(problem, solution)
    recorded = read_problem(content)
    assert write_problem(recorded.problem, recorded.solution) == content
    assert solution_bytes(recorded.problem, solve(recorded.problem)) == recorded.solution_bytes


def check_disruption_replay(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], solution: DisruptionSolution
) -> None:
    """The same for a disruption problem; its commands have the same IDs."""
    content = write_disruption_problem(problem, instance_types_of(indexes), solution)
    recorded = read_disruption_problem(content)
    assert write_disruption_problem(recorded.problem, recorded.instance_types, recorded.solution) == content
    decided = decide_disruption(recorded.problem, type_indexes_of(recorded.instance_types))
    assert disruption_solution_bytes(recorded.problem, decided) == recorded.solution_bytes
    assert [command.command_id for command in decided.commands] == [each.command_id for each in solution.commands]
