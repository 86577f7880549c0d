"""Which nodes lose their pods first when workloads scale down (K15 §9)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Wire
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.model import labels, pod_disruption
from karpenter.poddeletioncost.deletion_cost_ranking import (
    LEAST_COST,
    CostChange,
    ExhaustedBudget,
    NodeRanking,
    cost_changes,
    deletion_costs,
    rank_nodes,
)
from support.applied_commands import CONSOLIDATABLE
from support.builders import NOW, budget, flatten, indexes, owner, pod, replaced, snapshot
from support.disruption_cases import KINDS, drifted, on, pool, running, with_annotation

ALL = Budget(nodes="100%")
DRIFTED = (*drifted(NOW), CONSOLIDATABLE)


def ranking(*objects: object, nominated: frozenset[str] = frozenset()) -> NodeRanking:
    wires = flatten(objects)
    return rank_nodes(snapshot(wires), indexes(wires, KINDS), NOW, nominated)


def costs(*objects: object) -> dict[str, int | None]:
    """The cost of each node's pods; None for none."""
    result = ranking(*objects)
    return {node.state_node.name: node.cost for node in (*result.leaving, *result.ranked, *result.cleaned)}


def three(**fields: object) -> list[list[Wire]]:
    return [running(name, "m", 1, **fields) for name in "abc"]


def test_equal_nodes_are_ranked_by_name_as_far_as_the_budget_goes() -> None:
    """K15-348, K15-S20"""
    assert costs(pool("np", ALL), three()) == {"a": -3, "b": -2, "c": -1}
    assert costs(pool("np", Budget(nodes="1")), three()) == {"a": -1, "b": None, "c": None}


def test_the_node_that_saves_most_per_disruption_goes_first() -> None:
    """K15-348: by savings ratio; so a node with more pods comes later, and a dear one before it."""
    assert costs(pool("np", ALL), running("a", "m", 1, 1), running("b", "m", 1), running("c", "l", 1)) == {
        "c": -3,
        "b": -2,
        "a": -1,
    }


def test_nodes_on_their_way_out_have_the_least_cost_whatever_budgets_say() -> None:
    """K15-347"""
    objects = [
        pool("np", Budget(nodes="0")),
        running("a", "m", 1, deleted=True),
        running("b", "m", 1, taints=(labels.DISRUPTED_TAINT,)),
        running("c", "m", 1),
    ]
    assert costs(*objects) == {"a": LEAST_COST, "b": LEAST_COST, "c": None}
    assert LEAST_COST == -2147483648


def test_drifted_nodes_come_before_others_each_within_the_budget_of_its_reason() -> None:
    """K15-348: B before C; budgets of Drifted and Underutilized are apart."""
    budgets = (Budget(nodes="1", reasons=("Drifted",)), Budget(nodes="2", reasons=("Underutilized",)))
    objects = [pool("np", *budgets), three(), [running(name, "m", 1, conditions=DRIFTED) for name in "xy"]]
    assert costs(*objects) == {"x": -3, "a": -2, "b": -1, "c": None, "y": None}


def test_a_budget_that_is_used_up_leaves_nothing_and_is_reported() -> None:
    """K15-348, K15-503"""
    objects = [pool("np", Budget(nodes="0")), three(), running("d", "m", 1, deleted=True)]
    result = ranking(*objects)
    assert result.ranked == ()
    assert result.exhausted == (ExhaustedBudget("np", DisruptionReason.UNDERUTILIZED, 0, 1),)


def test_drifted_nodes_of_a_static_pool_count_among_the_others() -> None:
    """K15-348"""
    static = pool("np", Budget(nodes="0", reasons=("Drifted",)))
    static = replaced(static, spec=replaced(static.spec, replicas=1))
    assert costs(static, running("a", "m", 1, conditions=DRIFTED)) == {"a": -1}


def protected(name: str) -> list[Wire]:
    meta = {"annotations": {labels.DO_NOT_DISRUPT: "true"}, "owner_references": (owner("ReplicaSet", "rs"),)}
    return [*running(name, "m"), *on(name, 1, meta=meta)]


def with_pod(name: str, *owners: object, namespace: str = "default") -> list[Wire]:
    meta = {"owner_references": owners, "namespace": namespace}
    return [*running(name, "m", 1), pod(f"{name}-x", {"cpu": "1"}, meta=meta, node_name=name)]


@pytest.mark.parametrize(
    "node",
    [
        running("n", "m", 1, initialized=False),
        protected("n"),
        [with_annotation(wire, labels.DO_NOT_DISRUPT, "true") for wire in running("n", "m", 1)],
        [*running("n", "m"), *on("n", 1, meta={"labels": {"app": "a"}}), budget("b", {"app": "a"})],
        with_pod("n"),
        with_pod("n", owner("StatefulSet")),
        with_pod("n", owner("Job", api_version="example.com/v1")),
        running("n", "unknown", 1),
    ],
    ids=["starting", "do-not-disrupt pod", "do-not-disrupt node", "pdb", "bare", "stateful", "other job", "type"],
)
def test_pods_of_a_node_that_something_keeps_have_no_cost(node: list[Wire]) -> None:
    """K15-349: it takes none of the budget either."""
    assert costs(pool("np", Budget(nodes="1")), node, running("z", "m", 1)) == {"n": None, "z": -1}


@pytest.mark.parametrize(
    "node",
    [
        with_pod("n", owner("DaemonSet")),
        with_pod("n", owner("Job", api_version="batch/v1")),
        with_pod("n", namespace="kube-system"),
    ],
    ids=["daemon", "job", "system"],
)
def test_pods_that_pin_no_node_let_it_be_ranked(node: list[Wire]) -> None:
    """K15-349"""
    assert costs(pool("np", ALL), node) == {"n": -1}


def test_where_nothing_is_ever_consolidated_only_drifted_nodes_are_ranked() -> None:
    """K15-349"""
    never = pool("np", ALL, consolidate_after="Never")
    assert costs(never, running("a", "m", 1), running("b", "m", 1, conditions=DRIFTED)) == {"b": -1, "a": None}


def test_a_nominated_node_keeps_its_pods() -> None:
    """K15-349, DIS-075"""
    result = ranking(pool("np", ALL), three(), nominated=frozenset({"claim-a"}))
    assert [node.state_node.name for node in result.cleaned] == ["a"]


# -- what is written ------------------------------------------------------------------------------------------------------


def changes(current: Mapping[tuple[str, str], str], *objects: object, most: int = 50) -> tuple[list[CostChange], bool]:
    return cost_changes(ranking(*objects), current, most)


def test_only_pods_of_replica_sets_are_written() -> None:
    """K15-346"""
    others = [
        pod("d", {"cpu": "1"}, meta={"owner_references": (owner("DaemonSet"),)}, node_name="a"),
        pod("o", {"cpu": "1"}, meta={"owner_references": (owner("ReplicaSet", api_version="x/v1"),)}, node_name="a"),
    ]
    written, has_more = changes({}, pool("np", ALL), running("a", "m", 1, 1), others)
    assert [(change.key, change.value) for change in written] == [
        (("default", "a-0"), "-1"),
        (("default", "a-1"), "-1"),
    ]
    assert not has_more


def test_values_of_users_are_overwritten_and_taken_away() -> None:
    """K15-346, K15-349"""
    current = {("default", "a-0"): "100", ("default", "b-0"): "7", ("default", "c-0"): "-1"}
    written, _ = changes(current, pool("np", Budget(nodes="1")), three())
    assert [(change.node, change.value) for change in written] == [("a", "-1"), ("b", None), ("c", None)]


def test_nodes_whose_pods_are_right_do_not_count_against_the_most_of_a_pass() -> None:
    """K15-350: B and C before D; what is left is told."""
    objects = [pool("np", Budget(nodes="2")), three(), running("d", "m", 1)]
    current = {("default", "a-0"): "-2", ("default", "c-0"): "1", ("default", "d-0"): "1"}
    written, has_more = changes(current, *objects, most=2)
    assert [change.node for change in written] == ["b", "c"]
    assert has_more
    assert changes(current, *objects, most=3)[1] is False


def test_nodes_on_their_way_out_are_written_beyond_the_most_of_a_pass() -> None:
    """K15-347, K15-350"""
    gone = [running(name, "m", 1, deleted=True) for name in "xyz"]
    written, has_more = changes({}, pool("np", ALL), gone, running("a", "m", 1), most=1)
    assert [change.node for change in written] == ["x", "y", "z", "a"]
    assert not has_more


def test_deletion_costs_are_read_from_the_pods() -> None:
    noted = pod("a", meta={"annotations": {pod_disruption.DELETION_COST_ANNOTATION: "5"}})
    assert deletion_costs([noted, pod("b")]) == {("default", "a"): "5"}
    assert pod_disruption.without_deletion_cost(noted).metadata.annotations == {}
    unnoted = pod("b", meta={"annotations": {"other": "1"}})
    assert pod_disruption.without_deletion_cost(unnoted) is unnoted
