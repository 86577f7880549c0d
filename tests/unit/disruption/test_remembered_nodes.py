"""Facts that a decision computes about nodes are kept for the next one until their inputs change."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from karpenter.api.meta import Wire
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import resources as res
from karpenter.scheduling import prepared_problem
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.existing_nodes import ExistingNode
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from support.applied_commands import QUIET
from support.builders import NOW, daemon_set, flatten, indexes, snapshot
from support.disruption_cases import KINDS, gone, on, pool, running
from support.volume_builders import csi_node, pv, pvc, using

_TYPES = indexes([pool()], KINDS)
_STAYS = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
_CLAIMS = [pvc("one", "v1"), pv("v1"), pvc("two", "v2"), pv("v2")]


def _cluster(*more: Wire) -> ClusterSnapshot:
    """The pods of ``a`` fit on ``b``, which stays. Each has a volume."""
    own = on("a", 1, 1, volumes=using("one")), on("b", 1, volumes=using("two"), meta=_STAYS)
    return snapshot(flatten([pool(), *running("a", "m"), *running("b", "m"), *own, *_CLAIMS, *more]))


def _gone_in_turn(*clusters: tuple[ClusterSnapshot, dict[str, TypeIndex]]) -> list[list[str]]:
    """The nodes that go, decision after decision with one memory; every decision is the same without it."""
    memory = DisruptionMemory()
    names: list[list[str]] = []
    for cluster, types in clusters:
        problem = DisruptionProblem(cluster, QUIET)
        solution = decide_disruption(problem, types, memory)
        alone = decide_disruption(problem, types)
        assert disruption_solution_bytes(problem, solution) == disruption_solution_bytes(problem, alone)
        names.append(gone(command for command in solution.commands if not command.replacements))
    return names


def test_a_daemon_set_that_comes_takes_its_room_on_nodes_that_are_known() -> None:
    roomy = _cluster()
    crowded = replace(roomy, daemonset_pods=snapshot(daemon_set("agent", {"cpu": "2"})).daemonset_pods)
    turns = [(cluster, _TYPES) for cluster in (roomy, crowded, roomy)]
    assert _gone_in_turn(*turns) == [["a"], [], ["a"]]


def test_a_limit_of_volumes_that_becomes_known_counts_on_nodes_that_are_known() -> None:
    unlimited = _cluster()
    limited = replace(unlimited, volumes=_cluster(csi_node("b", ebs=1)).volumes)
    turns = [(cluster, _TYPES) for cluster in (unlimited, limited, unlimited)]
    assert _gone_in_turn(*turns) == [["a"], [], ["a"]]


def test_a_node_that_changed_is_read_anew() -> None:
    roomy = _cluster()

    def full(node: StateNode) -> StateNode:
        return replace(node, pod_requests={**node.pod_requests, res.CPU: 3000}) if node.name == "b" else node

    used = replace(roomy, nodes=tuple(map(full, roomy.nodes)))
    assert _gone_in_turn((roomy, _TYPES), (used, _TYPES), (roomy, _TYPES)) == [["a"], [], ["a"]]


def test_nodes_that_did_not_change_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless their NodePool has other types: these decide what an in-flight node may become."""
    made: list[str] = []

    def counted(view: StateNode, *given: Any) -> ExistingNode:
        made.append(view.name)
        return ExistingNode(view, *given)

    monkeypatch.setattr(prepared_problem, "ExistingNode", counted)
    packings, full = DecisionMemory(), _cluster(*running("c", "m", 4), *on("a", 2, prefix="x"), *on("b", 2, prefix="y"))
    copied = replace(full, nodes=tuple(replace(node) if node.name == "c" else node for node in full.nodes))
    for cluster, types, anew in (
        (full, _TYPES, ["a", "b", "c"]),
        (full, _TYPES, []),
        (copied, _TYPES, ["c"]),
        (copied, indexes([pool()], KINDS), ["a", "b", "c"]),
    ):
        made.clear()
        decide_disruption(DisruptionProblem(cluster, QUIET), types, DisruptionMemory(packings))
        assert made == anew


def test_nodes_that_are_gone_are_forgotten_by_decisions_about_pending_pods() -> None:
    """The provisioner never asks what-if questions, and runs for months."""
    memory, seen = DecisionMemory(), []
    for turn in range(20):
        cluster = snapshot(flatten([pool(), *running(f"node-{turn}", "m"), on(f"node-{turn}", 1)]))
        seen.extend(map(weakref.ref, cluster.nodes))
        solve(build_problem(cluster, _TYPES, NOW), _TYPES, memory)
        del cluster
    gc.collect()
    alive = [node for node in (held() for held in seen) if node is not None]
    assert 0 < len(alive) < 10
