"""Moves do not use room that the provisioner reserves for pods that wait until others have ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from support.builders import NOW, flatten, indexes, pod, snapshot
from support.disruption_cases import QUIET, USUAL, gone, kind, pool, running, sold

TYPES = (kind("m", 4, sold(1.0)),)


@pytest.mark.parametrize(
    ("promised", "expected"),
    [("claim-x", []), ("claim-gone", ["y"]), ("", ["y"])],
    ids=["promised", "node gone", "not promised"],
)
def test_nothing_moves_where_a_pod_waits_for_the_room_of_one_that_is_being_deleted(
    promised: str, expected: list[str]
) -> None:
    """SCH-089 Beyond: the pod from y would take the last half core that the waiting one needs."""
    ending = pod("old", {"cpu": "2"}, node_name="x", meta={"deletion_timestamp": NOW + timedelta(seconds=20)})
    waiting = pod("w", {"cpu": "3.5"})
    wires = flatten([pool(), running("x", "m", 0.25, 0.25), running("y", "m", 1), ending, waiting])
    seen = replace(snapshot(wires), planned_nodes={waiting.metadata.uid: promised} if promised else {})
    options = replace(USUAL, provisioning=replace(USUAL.provisioning, terminating_pods_window=timedelta(seconds=30)))
    problem = DisruptionProblem(seen, replace(QUIET, nominated=frozenset({"claim-x"})), options)
    assert gone(decide_disruption(problem, indexes(wires, TYPES))) == expected
