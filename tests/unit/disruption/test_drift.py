"""Drifted nodes, and how they are replaced (DIS §9.2, §9.3, §14, scenarios 26.10, 26.11, 26.13)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.karpenter import Budget, NodeClaim, NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.meta import Condition
from karpenter.disruption.decide.command import Command, Decision, DisruptionReason
from karpenter.model import labels, nodepool_hash
from karpenter.nodeclaim.drift_rules import drift_reason
from support import builders
from support.applied_commands import CONSOLIDATABLE, QUIET
from support.builders import NOW, claim, node_pool, pool_taint, replaced, wanted
from support.disruption_cases import (
    KINDS,
    decide,
    drifted,
    gone,
    on,
    pool,
    replacement_types,
    running,
    why,
    with_annotation,
)
from support.instance_types import INTEGER, index_of

INDEX = index_of(KINDS)
LAUNCHED = (Condition(type="Launched", status="True"),)


def held(commands: list[Command]) -> list[str]:
    return [candidate.state_node.name for command in commands for candidate in command.candidates]


# -- 26.10 replacing what has drifted --------------------------------------------------------------------------------------


def test_a_drifted_node_is_replaced_first() -> None:
    """DIS-S190: at any price."""
    solution = decide(pool(), running("a", "l", 8, conditions=drifted()))
    (command,) = solution.commands
    assert (command.reason, command.decision) == (DisruptionReason.DRIFTED, Decision.REPLACE)
    assert replacement_types(solution) == ["l"]


def test_a_drifted_node_goes_without_replacement_where_its_pods_fit_elsewhere() -> None:
    """DIS-S191"""
    solution = decide(pool(), running("a", "m", 1, conditions=drifted()), running("b", "m", 1, conditions=()))
    assert gone(solution) == ["a"]
    assert replacement_types(solution) == []


def test_a_drifted_node_may_need_several_replacements() -> None:
    """DIS-S192"""
    solution = decide(pool(), running("a", "l", 2, 2, 2, conditions=drifted()), types=(*KINDS[:1],))
    assert [len(command.replacements) for command in solution.commands] == [3]


def test_a_node_that_cannot_be_replaced_delays_no_other() -> None:
    """DIS-S193"""
    stuck = running("old", "l", 150, conditions=drifted(NOW - timedelta(days=2)))
    solution = decide(pool(), stuck, running("new", "l", 8, conditions=drifted(NOW)))
    assert gone(solution) == ["new"]
    assert why(solution, "old").startswith("Pods can't be rescheduled: not all pods would schedule, default/old-0 => ")


def test_the_node_that_drifted_first_goes_first_but_empty_nodes_before_all() -> None:
    """DIS-S194, DIS-S195, DIS-118, DIS-122: the oldest transition first, nodes without reschedulable pods before them."""
    nodes = [
        running("second", "m", 4, conditions=drifted(NOW - timedelta(hours=1))),
        running("first", "m", 4, conditions=drifted(NOW - timedelta(hours=2))),
        running("empty", "m", conditions=drifted(NOW)),
    ]
    solution = decide(pool(consolidate_after="Never"), nodes)
    assert held(list(solution.commands)) == ["empty", "first", "second"]


def test_the_node_the_controller_runs_on_goes_last() -> None:
    """DIS-469"""
    nodes = [running(name, "m", 4, conditions=drifted(NOW - timedelta(hours=1))) for name in "abc"]
    solution = decide(pool(consolidate_after="Never"), nodes, circumstances=replace(QUIET, controller_node="a"))
    assert held(list(solution.commands)) == ["b", "c", "a"]


def test_drift_keeps_to_budgets_over_all_its_commands() -> None:
    """DIS-S196, DIS-S012"""
    nodes = [running(f"n{n}", "m", 1, conditions=drifted() if n < 5 else ()) for n in range(10)]
    solution = decide(pool("np", Budget(nodes="30%")), nodes)
    assert len(solution.commands) == 3
    assert replacement_types(solution) == []
    each_its_own = [running(f"n{n}", "m", 4, conditions=drifted()) for n in range(10)]
    assert len(decide(pool("np", Budget(nodes="3")), each_its_own).commands) == 3


def test_nodes_that_have_not_drifted_stay() -> None:
    """DIS-S197. DIS-107: only the condition Drifted makes a candidate."""
    refused = (Condition(type="Drifted", status="False"),)
    solution = decide(pool(), running("a", "m", 4, conditions=refused), running("b", "m", 4, conditions=()))
    assert gone(solution) == []


def test_pods_that_are_waited_for_are_not_provided_for_in_advance() -> None:
    """DIS-162: a drain waits for protected pods, so nothing is launched for them beforehand."""
    protected = on("a", 4, meta={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    host, behind = running("a", "m", conditions=drifted())
    behind = replaced(behind, spec=replaced(behind.spec, termination_grace_period="1h"))  # type: ignore[attr-defined]
    solution = decide(pool(), host, behind, protected)
    assert gone(solution) == ["a"]
    assert replacement_types(solution) == []


def test_commands_of_a_pass_do_not_count_on_the_same_room() -> None:
    """Two drifted nodes, room for the pods of one."""
    nodes = [running(name, "m", 3, conditions=drifted()) for name in "ab"]
    solution = decide(pool(), nodes, running("room", "m", 1, conditions=()))
    assert len(solution.commands) == 2
    assert len(replacement_types(solution)) == 1


def test_pods_do_not_move_to_nodes_whose_turn_comes_next() -> None:
    """Beyond of §9.3: or a roll through a pool would restart its pods again and again."""
    nodes = [running(f"n{n}", "m", 1, conditions=drifted()) for n in range(4)]
    one_by_one = pool("np", Budget(nodes="1"))
    solution = decide(one_by_one, nodes)
    assert [(len(command.replacements), command.placed_on_existing) for command in solution.commands] == [(1, ())]
    closed = pool("np", Budget(nodes="0", reasons=("Drifted",)))
    kept = [running(f"n{n}", "m", 1, conditions=(*drifted(), CONSOLIDATABLE)) for n in range(4)]
    assert gone(decide(closed, kept))


def test_limits_that_cannot_be_read_stop_their_pool_only() -> None:
    """API-033"""
    solution = decide(fixed(5, "100%", limits={"nodes": "many"}), five(), pool("other"), running("x", pool="other"))
    assert gone(solution) == ["x"]


# -- 26.11 static pools ----------------------------------------------------------------------------------------------------


def fixed(replicas: int, budget: str, **spec: object) -> NodePool:
    made = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")], replicas=replicas, **spec)
    return replaced(
        made, spec=replaced(made.spec, disruption=replaced(made.spec.disruption, budgets=(Budget(nodes=budget),)))
    )


def five(**fields: object) -> list[object]:
    return [running(f"n{n}", "m", 1, conditions=drifted(), **fields) for n in range(5)]


@pytest.mark.parametrize(
    ("replicas", "budget", "limits", "commands"),
    [
        (5, "2", {}, 2),  # DIS-S205
        (5, "20%", {}, 1),  # DIS-S206
        (5, "100%", {"nodes": "5"}, 0),  # DIS-S207
        (5, "100%", {"nodes": "6"}, 1),  # DIS-E2
        (5, "100%", {}, 5),  # DIS-S208
        (4, "100%", {}, 0),  # DIS-S209
        (0, "100%", {}, 0),  # DIS-S211
    ],
)
def test_nodes_of_a_static_pool_are_replaced_one_for_one(
    replicas: int, budget: str, limits: dict[str, str], commands: int
) -> None:
    """DIS-S205 to DIS-S209, DIS-S211. DIS-108: static NodePools have a method of their own."""
    solution = decide(fixed(replicas, budget, limits=limits), five())
    assert [len(command.replacements) for command in solution.commands] == [1] * commands
    names = [planned.name for command in solution.commands for planned in command.replacements]
    assert len(set(names)) == commands


def test_a_node_of_a_static_pool_may_ask_to_stay() -> None:
    """DIS-S210"""
    host, behind = running("a", "m", conditions=drifted())
    assert gone(decide(fixed(1, "100%"), with_annotation(host, labels.DO_NOT_DISRUPT, "true"), behind)) == []


# -- 26.13 what has drifted ------------------------------------------------------------------------------------------------


def launched_claim(own: dict[str, str] | None = None, age: timedelta = timedelta(0), **fields: object) -> NodeClaim:
    labelled = {labels.INSTANCE_TYPE: "m", labels.CAPACITY_TYPE: "on-demand", labels.ZONE: "z1", **(own or {})}
    made = claim("c", {"cpu": 4}, labels=labelled, conditions=LAUNCHED, **fields)
    return replaced(made, metadata=replaced(made.metadata, creation_timestamp=NOW - age))


def reason(nodeclaim: NodeClaim, asked: NodePool, of_provider: str = "") -> str:
    return drift_reason(nodeclaim, asked, INDEX, NOW, of_provider)


def asking(*requirements: NodeSelectorRequirementWithMinValues) -> NodePool:
    return node_pool("np", requirements)


@pytest.mark.parametrize(
    ("requirement", "own", "has_drifted"),
    [
        (wanted(labels.CAPACITY_TYPE, "In", "spot"), {}, True),  # DIS-S241
        (wanted("team", "In", "a"), {}, True),  # DIS-S242
        (wanted("team", "Exists"), {}, True),
        (wanted("team", "NotIn", "a"), {}, False),
        (wanted("team", "DoesNotExist"), {}, False),
        (wanted(labels.ZONE, "In", "z2"), {}, True),  # DIS-S243
        (wanted(labels.ZONE, "In", "z1", "z2", "z3"), {}, False),
        (wanted(labels.ZONE, "Exists"), {}, False),  # DIS-S244
        (wanted(labels.ZONE, "DoesNotExist"), {}, True),
        (wanted(INTEGER, "Gt", "10"), {INTEGER: "5"}, True),  # DIS-S245
        (wanted(INTEGER, "Lt", "1"), {INTEGER: "2"}, True),
        (wanted(INTEGER, "Gt", "2"), {INTEGER: "5"}, False),
    ],
)
def test_a_claim_has_drifted_when_its_labels_break_a_requirement(
    requirement: NodeSelectorRequirementWithMinValues, own: dict[str, str], has_drifted: bool
) -> None:
    """DIS-S241 to DIS-S245, API-S234, API-S235: the labels must meet every requirement of the pool."""
    assert reason(launched_claim(own), asking(requirement)) == ("RequirementsDrifted" if has_drifted else "")


def stamped(obj: object, of: NodePool, version: str = nodepool_hash.NODE_POOL_HASH_VERSION) -> object:
    wire = with_annotation(obj, labels.NODE_POOL_HASH, nodepool_hash.node_pool_hash(of))
    return with_annotation(wire, labels.NODE_POOL_HASH_VERSION, version)


TEMPLATE = {"expire_after": "720h"}


@pytest.mark.parametrize(
    "changed",
    [
        node_pool(labels={"x": "y"}),
        node_pool(template={"taints": (pool_taint("t"),)}),
        node_pool(template={"startup_taints": (pool_taint("t"),)}),
        node_pool(template={"expire_after": "1h"}),
        node_pool(template={"termination_grace_period": "1h"}),
    ],
)
def test_a_claim_has_drifted_when_the_template_was_changed(changed: NodePool) -> None:
    """DIS-S246"""
    old = stamped(launched_claim(), node_pool())
    assert reason(old, stamped(changed, changed)) == "NodePoolDrifted"


def test_what_concerns_the_pool_alone_is_no_drift() -> None:
    """DIS-S247"""
    changed = replaced(pool("np", consolidate_after="1h"), spec=replaced(pool().spec, weight=10, limits={"cpu": "1"}))
    old = stamped(launched_claim(), pool())
    assert reason(old, stamped(changed, changed)) == ""


def test_hashes_of_different_versions_say_nothing() -> None:
    """DIS-S248"""
    changed = node_pool(labels={"x": "y"})
    old = stamped(launched_claim(), node_pool(), "v0")
    assert reason(old, stamped(changed, changed)) == ""
    assert reason(launched_claim(), stamped(changed, changed)) == ""
    assert reason(stamped(launched_claim(), node_pool()), changed) == ""


def test_what_the_pool_says_counts_before_what_the_cloud_says() -> None:
    """DIS-S249"""
    changed = node_pool(labels={"x": "y"})
    old = stamped(launched_claim(), node_pool())
    assert reason(old, stamped(changed, changed), "AMIDrift") == "NodePoolDrifted"
    assert reason(launched_claim(), node_pool(), "AMIDrift") == "AMIDrift"


@pytest.mark.parametrize(("minutes", "expected"), [(59, ""), (61, "InstanceTypeNotFound")])
def test_a_type_that_is_not_sold_any_more_is_drift_after_an_hour(minutes: int, expected: str) -> None:
    """DIS-S250, DIS-033: a younger NodeClaim is not checked."""
    old = launched_claim({labels.INSTANCE_TYPE: "retired"}, timedelta(minutes=minutes))
    assert reason(old, node_pool()) == expected
    assert reason(launched_claim(age=timedelta(days=1)), node_pool()) == ""


def test_a_type_that_is_not_sold_in_its_zone_any_more_is_drift() -> None:
    """DIS-345"""
    assert reason(launched_claim({labels.ZONE: "z9"}, timedelta(hours=2)), node_pool()) == "InstanceTypeNotFound"


def test_a_reserved_node_may_have_become_an_on_demand_one() -> None:
    """DIS-345"""
    own = {labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: "r-1"}
    assert reason(launched_claim(own, timedelta(hours=2)), node_pool()) == ""


def test_what_has_not_launched_has_not_drifted() -> None:
    """DIS-S251"""
    waiting = builders.claim("c", labels={labels.ZONE: "z9"})
    assert reason(waiting, asking(wanted(labels.ZONE, "In", "z1"))) == ""
