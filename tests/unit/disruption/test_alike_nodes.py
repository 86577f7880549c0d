"""Nodes that are equal for a decision are evaluated once, and each gets its own correct message."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Wire
from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation
from karpenter.model import labels
from karpenter.scheduling.whatif.questions import ReschedulingResult
from karpenter.state.snapshot import ClusterSnapshot
from support.applied_commands import QUIET
from support.builders import flatten, indexes, owner, replaced, snapshot
from support.disruption_cases import ANY, KINDS, gone, kind, on, pool, running, sold, why
from support.volume_builders import pvc, using, zonal

_POOLS = pool(), pool("other")
#: Two types that cost a little more than they are worth, so that a replacement would save too little.
_DEAR, _DEARER = (kind(name, 4, sold(price, spot=price - 0.01)) for name, price in (("x", 2.05), ("y", 2.1)))
_TYPES = indexes(_POOLS, (*KINDS, _DEAR, _DEARER))
_COSTLY = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "90"}}


def _full(name: str, of: str = "x", *cpus: float, **fields: object) -> list[Wire]:
    return running(name, of, *(cpus or (2, 2)), **fields)


def _cluster(*nodes: list[Wire]) -> ClusterSnapshot:
    return snapshot(flatten([*_POOLS, *nodes]))


def _decided(cluster: ClusterSnapshot) -> tuple[bytes, list[str], list[str]]:
    """What is decided, and said of each node."""
    problem = DisruptionProblem(cluster, QUIET)
    solution = decide_disruption(problem, _TYPES)
    reasons = [why(solution, node.name) for node in cluster.nodes]
    return disruption_solution_bytes(problem, solution), reasons, gone(solution)


@pytest.mark.parametrize(
    "other",
    [
        _full("a", "y"),
        _full("a", "x", 2, 1, 1),
        _full("a", "x", 1, 2.5),
        _full("a", "x", 3.5),
        _full("a", "x", 3),
        _full("a", capacity_type="spot"),
        _full("a", pool="other"),
        [*running("a", "x", 2), *on("a", 2, prefix="costly", meta=_COSTLY)],
        [*running("a", "x"), *on("a", 2, 2, node_selector={labels.ZONE: "z2"})],
    ],
    ids=[
        "dearer",
        "more pods",
        "smaller pods",
        "little room",
        "room for a pod",
        "spot",
        "another pool",
        "costly",
        "other zone",
    ],
)
def test_a_node_that_differs_is_evaluated_separately(other: list[Wire]) -> None:
    cluster = _cluster(*(_full(f"n{number}") for number in range(3)), other, running("host", "l", 7))
    known = _decided(cluster)
    assert "n0" not in known[2]
    with patch.object(SchedulingSimulation, "kind_of", lambda *_: None):
        assert _decided(cluster) == known


def test_a_node_that_has_room_itself_is_none_of_those_without() -> None:
    """Nothing has room for the pod of ``a`` but ``a`` itself, which is where the same pod of ``b`` goes."""
    daemon = on("b", 3, prefix="daemon", meta={"owner_references": (owner("DaemonSet", "daemon"),)})
    bound = {labels.INSTANCE_TYPE: "x"}
    pods = [pod for name in "ab" for pod in on(name, 1, node_selector=bound)]
    nodes = [*running("a", "x"), *running("b", "x"), *pods, *daemon]
    # With room for one node in the budget no set of nodes is tried, which would find the move, too.
    solution = decide_disruption(DisruptionProblem(snapshot(pool("np", Budget(nodes="1")), nodes), QUIET), _TYPES)
    assert gone(solution) == ["b"]


def test_of_equal_nodes_only_one_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    place = SchedulingSimulation.place_on_existing

    def counted(self: SchedulingSimulation, candidates: list[Candidate]) -> ReschedulingResult | None:
        asked.extend(candidate.key for candidate in candidates)
        return place(self, candidates)

    monkeypatch.setattr(SchedulingSimulation, "place_on_existing", counted)
    _decided(_cluster(*(_full(f"n{number}") for number in range(5)), _full("a", "x", 3.5)))
    assert len(asked) == 2, "one of those that are alike, and the other one"


def test_a_spot_node_that_may_not_become_another_one_says_nothing_of_a_node_on_demand_at_its_price() -> None:
    """DIS-200"""
    types = indexes(_POOLS, (*KINDS, kind("x", 4, sold(2.05, spot=2.05))))
    nodes = [*_full("a", capacity_type="spot"), *_full("b")]
    # With room for one node in the budget no set of nodes is tried, for which the rule does not hold.
    cluster = snapshot(pool("np", Budget(nodes="1"), requirements=(ANY,)), nodes)
    assert gone(decide_disruption(DisruptionProblem(cluster, QUIET), types)) == ["b"]


def test_what_a_node_leaves_of_limits_is_its_own() -> None:
    """DIS-160: without ``b`` there is room for the large cheap type, without ``a`` there is not."""
    types = indexes(_POOLS, (kind("x", 4, sold(2.05)), kind("l", 8, sold(2.05)), kind("cheap", 6, sold(1.0))))
    daemon = on("b", 4, prefix="daemon", meta={"owner_references": (owner("DaemonSet", "daemon"),)})
    own = pool("np", Budget(nodes="1"))
    own = replaced(own, spec=replaced(own.spec, limits={"cpu": "12"}))
    cluster = snapshot(own, _full("a"), _full("b", "l"), daemon)
    assert gone(decide_disruption(DisruptionProblem(cluster, QUIET), types)) == ["b"]


def test_a_volume_that_keeps_the_pods_of_one_node_in_their_zone_does_not_keep_those_of_another() -> None:
    """Pods with volumes look alike, whatever these are."""
    volumes = [pvc("near", "near"), zonal("near", "z1"), pvc("far", "far"), zonal("far", "z2")]
    nodes = [
        wire
        for name, volume in (("a", "near"), ("b", "far"))
        for wire in (*running(name, "x"), *on(name, 2, 2, volumes=using(volume)))
    ]
    kept = on("host", 4, meta={"annotations": {"karpenter.sh/do-not-disrupt": "true"}})
    cluster = snapshot(pool("np", Budget(nodes="1")), nodes, volumes, running("host", "l", zone="z2"), kept)
    assert gone(decide_disruption(DisruptionProblem(cluster, QUIET), _TYPES)) == ["b"]
