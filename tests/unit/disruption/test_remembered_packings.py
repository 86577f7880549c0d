"""What one disruption decision leaves for the next, seen in the decisions."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Wire
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from support.applied_commands import QUIET
from support.builders import indexes, pod, snapshot
from support.disruption_cases import KINDS, bought, on, pool, running


def alone(host: str, cpus: list[int]) -> list[Pod]:
    """Pods of no workload."""
    return [pod(f"{host}-{number}", {"cpu": str(cpu)}, node_name=host) for number, cpu in enumerate(cpus)]


@pytest.mark.parametrize("pods_of", [alone, lambda host, cpus: on(host, *cpus)], ids=["alone", "of a workload"])
def test_a_node_that_loses_pods_of_one_kind_is_replaced_by_what_the_others_need(
    pods_of: object,
) -> None:
    """The memory has packings of more and of fewer such pods: the number counts."""
    memory, types = DisruptionMemory(), indexes([pool()], KINDS)
    replacements = []
    for count in (3, 2, 1, 4, 3):
        wires: list[Wire] = [pool(), *running("a", "l"), *pods_of("a", [1] * count)]  # type: ignore[operator]
        problem = DisruptionProblem(snapshot(wires), QUIET)
        solution = decide_disruption(problem, types, memory)
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
        replacements.append(tuple(bought(solution)))
    assert len(set(replacements)) > 1
