"""Consolidation does not repeat a search without result, and searches again when anything that it reads changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide import disruption_decision
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.disruption.decide.scheduling_simulation import simulate
from karpenter.model import labels
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from support.applied_commands import QUIET, with_budget
from support.builders import NOW, indexes, pod, replaced, snapshot
from support.disruption_cases import KINDS, on, pool, running

_TYPES = indexes([pool()], KINDS)


class _Controller:
    """Decides with one memory, and counts the searches that the decisions make."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.searches = 0
        self._memory = DisruptionMemory()

        def counted(*args: object, **named: object) -> object:
            self.searches += 1
            return simulate(*args, **named)

        monkeypatch.setattr(disruption_decision, "simulate", counted)

    def decide(self, cluster: ClusterSnapshot, context: DisruptionContext = QUIET) -> DisruptionSolution:
        """A decision that is the same without the memory."""
        problem = DisruptionProblem(cluster, context)
        solution = decide_disruption(problem, _TYPES, self._memory)
        searches = self.searches
        alone = decide_disruption(problem, _TYPES)
        self.searches = searches
        assert disruption_solution_bytes(problem, solution) == disruption_solution_bytes(problem, alone)
        return solution


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> _Controller:
    """A controller that has decided nothing yet."""
    return _Controller(monkeypatch)


def _full(*more: Wire) -> list[Wire]:
    """Two nodes whose pods fit nowhere else and need what they have."""
    return [pool(), *running("a", "l"), *on("a", 7), *running("b", "l"), *on("b", 7), *more]


def _with_node(cluster: ClusterSnapshot, change: Callable[[StateNode], StateNode]) -> ClusterSnapshot:
    return replace(cluster, nodes=(change(cluster.nodes[0]), *cluster.nodes[1:]))


def _with_news_of_the_claim(node: StateNode) -> StateNode:
    assert node.claim is not None
    meta = replaced(node.claim.metadata, resource_version="77", annotations={"seen": "again"})
    status = replaced(
        node.claim.status, conditions=(*node.claim.status.conditions, Condition(type="Seen", status="True"))
    )
    return replace(node, claim=replaced(node.claim, metadata=meta, status=status))


def _with_a_smaller_node(node: StateNode) -> StateNode:
    return replace(node, allocatable={**node.allocatable, "memory": node.allocatable["memory"] - 1})


def test_a_cluster_that_stays_as_it_is_is_searched_once(controller: _Controller) -> None:
    cluster = snapshot(_full())
    first = controller.decide(cluster)
    for minutes in (1, 60):
        later = controller.decide(cluster, DisruptionContext(NOW + timedelta(minutes=minutes)))
        assert later.blocked_nodes == first.blocked_nodes
    assert controller.searches == 1
    assert {blocked.state_node.name for blocked in first.blocked_nodes} == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "searches"),
    [
        (lambda cluster: _with_node(cluster, _with_news_of_the_claim), 1),
        (lambda cluster: _with_node(cluster, _with_a_smaller_node), 2),
        (lambda cluster: snapshot(_full(pod("waiting", {"cpu": "1"}))), 2),
        (lambda cluster: snapshot(_full(*running("c", "l"), *on("c", 1))), 2),
        (lambda cluster: snapshot(_full(with_budget(pool(), Budget(nodes="1")))), 2),
    ],
    ids=[
        "a condition of a NodeClaim does not count",
        "a node that holds less counts",
        "a pending pod counts",
        "another node counts",
        "a budget below the candidates counts",
    ],
)
def test_only_what_consolidation_reads_makes_it_search_again(
    controller: _Controller, change: Callable[[ClusterSnapshot], ClusterSnapshot], searches: int
) -> None:
    cluster = snapshot(_full())
    controller.decide(cluster)
    controller.decide(change(cluster))
    assert controller.searches == searches


def test_an_empty_node_that_goes_does_not_make_consolidation_search_again(controller: _Controller) -> None:
    """Its deletion is decided in each pass until it is carried out."""
    cluster = snapshot(_full(*running("c", "s")))
    for _ in range(2):
        assert [command.reason for command in controller.decide(cluster).commands] == [DisruptionReason.EMPTY]
    assert controller.searches == 1
    controller.decide(snapshot(_full()))
    assert controller.searches == 2


def test_a_pod_whose_protection_ends_makes_consolidation_search_again(controller: _Controller) -> None:
    """Time changes nothing by itself: what it decides about pods is compared."""
    pods = on("c", 2, meta={"annotations": {labels.DO_NOT_DISRUPT: "10m"}})
    guarded = [replaced(pod, status=replaced(pod.status, start_time=NOW)) for pod in pods]
    cluster = snapshot(_full(*running("c", "l"), *guarded))
    before = controller.decide(cluster)
    after = controller.decide(cluster, DisruptionContext(NOW + timedelta(days=1)))
    assert (len(before.commands), len(after.commands)) == (0, 1)


def test_the_memory_goes_back_and_forth_between_states(controller: _Controller) -> None:
    """A node that pods are expected on is no candidate for a moment, and is one again."""
    cluster = snapshot(_full())
    for _ in range(3):
        controller.decide(cluster)
        controller.decide(cluster, DisruptionContext(NOW, nominated=frozenset({cluster.nodes[0].key})))
    assert controller.searches == 2
