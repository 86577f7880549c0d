"""Where pods fit is cached between decisions until the room on other nodes changes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from karpenter.api.meta import Wire
from karpenter.api.scheduling_constraints import Taint
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.model import resources as res
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.whatif import room_facts
from karpenter.scheduling.whatif.counted_pass import count_pass
from karpenter.scheduling.whatif.movers import Movers
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from support.applied_commands import QUIET
from support.builders import indexes, replaced, snapshot
from support.disruption_cases import KINDS, on, pool, running

_TYPES = indexes([pool()], KINDS)


class _Controller:
    """Decides with one memory; every decision is the same without it."""

    def __init__(self) -> None:
        self.memory = DisruptionMemory()

    def decide(self, cluster: ClusterSnapshot) -> DisruptionSolution:
        problem = DisruptionProblem(cluster, QUIET)
        solution = decide_disruption(problem, _TYPES, self.memory)
        alone = decide_disruption(problem, _TYPES)
        assert disruption_solution_bytes(problem, solution) == disruption_solution_bytes(problem, alone)
        return solution

    def deletes(self, cluster: ClusterSnapshot) -> list[str]:
        """The nodes that go without replacement."""
        commands = self.decide(cluster).commands
        return [each.state_node.name for command in commands if not command.replacements for each in command.candidates]


def _two_nodes(used: int, *more: Wire) -> ClusterSnapshot:
    """``a`` is full of what would fit on no smaller node; ``b``, which may not be disrupted, has so much CPU of eight in use."""
    kept = on("b", used, meta={"annotations": {"karpenter.sh/do-not-disrupt": "true"}})
    return snapshot(pool(), *running("a", "m"), *on("a", 1, 1, 1), *running("b", "l"), *kept, *more)


def _with_b(cluster: ClusterSnapshot, change: Callable[[StateNode], StateNode]) -> ClusterSnapshot:
    return replace(cluster, nodes=tuple(change(node) if node.name == "b" else node for node in cluster.nodes))


def test_a_node_goes_when_another_one_gets_room_and_stays_when_that_is_used_again() -> None:
    controller = _Controller()
    deleted = [controller.deletes(_two_nodes(used)) for used in (7, 6, 5, 6, 4, 7, 5)]
    assert deleted == [[], [], ["a"], [], ["a"], [], ["a"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: replace(node, taints=(Taint(key="own", value="", effect="NoSchedule"),)),
        lambda node: replace(node, initialized=False),
        lambda node: replace(node, marked_for_deletion=True),
        lambda node: replace(node, allocatable={**node.allocatable, "pods": 2 * res.ONE_UNIT}),
    ],
    ids=["tainted", "not initialized", "on its way out", "no room for more pods"],
)
def test_room_on_a_node_that_changed_otherwise_is_looked_at_again(change: Callable[[StateNode], StateNode]) -> None:
    controller, roomy = _Controller(), _two_nodes(5)
    deleted = [
        controller.deletes(cluster) for cluster in (roomy, _with_b(roomy, change), roomy, _with_b(roomy, change))
    ]
    assert deleted == [["a"], [], ["a"], []]


def test_a_new_node_with_room_counts_at_once() -> None:
    controller = _Controller()
    roomy = running("c", "l"), on("c", 4, meta={"annotations": {"karpenter.sh/do-not-disrupt": "true"}})
    wires = [wire for group in roomy for wire in group]
    deleted = [controller.deletes(_two_nodes(7, *more)) for more in ((), wires, (), wires)]
    assert deleted == [[], ["a"], [], ["a"]]


def test_pods_of_a_kind_that_were_asked_about_on_one_node_are_not_placed_again_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor in the next decision, where nothing changed on nodes with room."""
    passes: list[object] = []

    def counted(*asked: Any) -> object:
        passes.append(asked)
        return count_pass(*asked)

    controller = _Controller()
    nodes = [wire for name in "cdefgh" for wire in running(name, "m", 2, 2)]
    cluster = _two_nodes(8, *nodes)
    monkeypatch.setattr(room_facts, "count_pass", counted)
    decide_disruption(DisruptionProblem(cluster, QUIET), _TYPES, controller.memory)
    assert len(passes) == 3, "one for a, one for the six that are alike, and one with the room on others"
    renamed = replace(cluster, nodes=tuple(_with_news(node) for node in cluster.nodes))
    decide_disruption(DisruptionProblem(renamed, QUIET), _TYPES, controller.memory)
    assert len(passes) == 3


@pytest.mark.parametrize(("limits", "most"), [({}, 20), ({"cpu": "1000"}, 0)])
def test_cached_entries_go_when_no_decision_uses_them_any_more(limits: dict[str, str], most: int) -> None:
    """What is left of limits is another amount each time, so nothing is kept about it."""
    controller = _Controller()
    nodes = [wire for name in "cdefgh" for wire in running(name, "m", 2, 2)]
    for used in (*range(1, 8), *range(1, 8), *range(1, 8)):
        cluster = _two_nodes(used, *nodes)
        (own,) = cluster.pools
        controller.decide(replace(cluster, pools=(replaced(own, spec=replaced(own.spec, limits=limits)),)))
        assert min(most, 14) <= len(controller.memory.packings.pass_facts) <= most


def test_cached_entries_of_deleted_pods_go() -> None:
    """Of single nodes and of sets of nodes that were asked about together."""
    controller = _Controller()
    for turn in range(20):
        names = [f"n{turn}-{number}" for number in range(4)]
        nodes = [wire for name in names for wire in running(name, "m", 1.5, 1.5 + turn / 100)]
        controller.decide(snapshot(pool(), *nodes))
    gc.collect()
    assert 0 < sum(isinstance(one, Movers) for one in gc.get_objects()) < 40
    assert 0 < len(controller.memory.packings._keys_of_sequences) < 40


def _with_news(node: StateNode) -> StateNode:
    """The node with a heartbeat, and nothing that decisions read."""
    assert node.node is not None
    meta = replaced(node.node.metadata, resource_version="77", labels={**node.node.metadata.labels, "seen": "again"})
    return replace(node, node=replaced(node.node, metadata=meta))


def test_nothing_is_remembered_of_pods_that_have_room_on_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare what is free on all of them would take longer than to find a place."""
    sizes: list[int] = []
    real = DecisionMemory.room_number

    def counted(self: DecisionMemory, node_numbers: tuple[int, ...]) -> int:
        sizes.append(len(node_numbers))
        return real(self, node_numbers)

    monkeypatch.setattr(DecisionMemory, "room_number", counted)
    cluster = snapshot(pool(), *(wire for number in range(140) for wire in running(f"n{number}", "m", 1)))
    assert len(_Controller().deletes(cluster)) > 70
    assert max(sizes, default=0) <= 128
