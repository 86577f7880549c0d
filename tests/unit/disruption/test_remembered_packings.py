"""Packings that one disruption decision caches for the next, observed in the decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Wire
from karpenter.api.scheduling_constraints import Taint
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.model.consolidation_thresholds import LEAN_CONSOLIDATION
from karpenter.scheduling.pass_context import PassContext
from karpenter.scheduling.scheduling_passes import SchedulingPasses
from karpenter.scheduling.whatif import rescheduling
from support.applied_commands import QUIET, USUAL, with_budget
from support.builders import indexes, node_pool, pod, pool_taint, snapshot
from support.disruption_cases import KINDS, ON_DEMAND, on, pool, replacement_types, running

_HASTY = replace(USUAL, consolidation=replace(LEAN_CONSOLIDATION, minimum_saving_ratio=0.01))


def alone(host: str, cpus: list[float]) -> list[Pod]:
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
        wires: list[Wire] = [pool(), *running("a", "l"), *pods_of("a", [1] * count)]
        problem = DisruptionProblem(snapshot(wires), QUIET)
        solution = decide_disruption(problem, types, memory)
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
        replacements.append(tuple(replacement_types(solution)))
    assert len(set(replacements)) > 1


def test_a_pod_that_requests_something_else_than_before_is_read_anew() -> None:
    """A pod is resized in place: its uid stays."""
    memory, types = DisruptionMemory(), indexes([pool()], KINDS)
    replacements = []
    for cpu in (1, 3, 1):
        problem = DisruptionProblem(snapshot(pool(), *running("a", "l"), *alone("a", [cpu])), QUIET)
        solution = decide_disruption(problem, types, memory)
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
        replacements += replacement_types(solution)
    assert replacements == ["s", "m", "s"]


def test_a_node_that_was_too_expensive_to_replace_is_replaced_once_it_has_fewer_pods_of_the_same_kind() -> None:
    """New nodes are known for so many pods, not for their kind."""
    memory, types, replacements = DisruptionMemory(), indexes([pool()], KINDS), []
    for count in (2, 1, 2):
        problem = DisruptionProblem(snapshot(pool(), *running("a", "m"), *alone("a", [1.5] * count)), QUIET, _HASTY)
        solution = decide_disruption(problem, types, memory)
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
        replacements.append(replacement_types(solution))
    assert replacements == [[], ["s"], []]


def test_a_soft_taint_that_comes_and_goes_is_tolerated_while_it_is_there() -> None:
    """The relaxation steps of a pod are kept for as long as they would be the same."""
    memory, types = DisruptionMemory(), indexes([pool()], KINDS)
    soft = node_pool("np", [ON_DEMAND], template={"taints": (pool_taint("soft", "PreferNoSchedule"),)})
    for own in (pool(), with_budget(soft), pool()):
        problem = DisruptionProblem(snapshot(own, *running("a", "l"), *alone("a", [1])), QUIET)
        solution = decide_disruption(problem, types, memory)
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
        assert replacement_types(solution) == ["s"]


def test_a_replacement_that_was_too_expensive_is_not_planned_again_when_room_elsewhere_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pods are the same, and so are the new nodes they need."""
    plans: list[object] = []

    def counted(context: PassContext) -> SchedulingPasses:
        plans.append(context)
        return SchedulingPasses(context)

    monkeypatch.setattr(rescheduling, "SchedulingPasses", counted)
    memory, types, made = DisruptionMemory(), indexes([pool()], KINDS), []
    for used in (5, 4, 6):
        kept = on("b", used, meta={"annotations": {"karpenter.sh/do-not-disrupt": "true"}})
        closed = Taint(key="own", value="", effect="NoSchedule")
        cluster = snapshot(pool(), *running("a", "m"), *alone("a", [1.5, 1.5]), *running("b", "l"), *kept)
        nodes = tuple(replace(node, taints=(closed,)) if node.name == "b" else node for node in cluster.nodes)
        problem = DisruptionProblem(replace(cluster, nodes=nodes), QUIET, _HASTY)
        plans.clear()
        solution = decide_disruption(problem, types, memory)
        made.append(len(plans))
        expected = disruption_solution_bytes(problem, decide_disruption(problem, types))
        assert disruption_solution_bytes(problem, solution) == expected
    assert made == [1, 0, 0]
