"""What-if questions: a node drained, pods added, a family forbidden; and budgets over the coming days."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.karpenter import Budget
from karpenter.console.budget_calendar import budget_calendar
from karpenter.console.cluster_questions import (
    AddedPods,
    ClusterAnswer,
    ClusterQuestion,
    DrainedNode,
    ForbiddenFamily,
    UnanswerableQuestion,
    answer_question,
)
from karpenter.console.console_input import ConsoleInput
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.scheduling.scheduling_options import SchedulingOptions
from support.builders import NOW, budget, pod
from support.console_cases import console_input
from support.disruption_cases import on, pool, running

GIB = 2**30


def asked(given: ConsoleInput, question: ClusterQuestion) -> ClusterAnswer:
    return answer_question(given, question, SchedulingOptions())


def test_a_drained_node_whose_pods_fit_elsewhere_saves_its_price() -> None:
    given = console_input(pool(), running("a", "m", 1), running("b", "m", 1))
    answer = asked(given, DrainedNode("a"))
    assert (answer.price_before, answer.price_after, answer.difference_per_hour) == (4.0, 2.0, -2.0)
    assert [(move.pod, move.from_node, move.to_node) for move in answer.moves] == [("default/a-0", "a", "b")]
    assert (answer.removed, answer.new_nodes, answer.stranded) == (("a",), (), ())


def test_a_drained_node_is_replaced_where_nothing_else_has_room() -> None:
    given = console_input(pool(), running("a", "m", 2))
    answer = asked(given, DrainedNode("a"))
    (launched,) = answer.new_nodes
    assert (launched.instance_type, launched.price_per_hour, launched.pods) == ("s", 1.0, 1)
    assert answer.difference_per_hour == -1.0


def test_pods_that_may_not_be_evicted_hold_a_drained_node_and_are_named() -> None:
    """SCH-060, SCH-062: the scheduling pass plans no place for them."""
    kept = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    guarded = {"labels": {"app": "db"}}
    given = console_input(
        pool(),
        running("a", "m", 1),
        on("a", 1, prefix="kept", meta=kept),
        on("a", 1, prefix="guarded", meta=guarded),
        running("b", "m"),
        budget("db", {"app": "db"}, max_unavailable=0),
    )
    answer = asked(given, DrainedNode("a"))
    assert (answer.moved, answer.waiting, answer.held) == (1, 0, 2)
    assert [(row.pod, row.node, row.reason) for row in answer.holding] == [
        ("default/guarded-0", "a", "PDB prevents pod evictions (PodDisruptionBudget=[default/db])"),
        ("default/kept-0", "a", 'Pod has "karpenter.sh/do-not-disrupt" annotation'),
    ]
    assert asked(given, DrainedNode("b")).held == 0


def test_a_pod_that_several_budgets_select_holds_a_drained_node_for_that_reason() -> None:
    given = console_input(
        pool(),
        running("a", "m"),
        on("a", 1, prefix="guarded", meta={"labels": {"app": "db"}}),
        budget("first", {"app": "db"}),
        budget("second", {"app": "db"}),
    )
    (held,) = asked(given, DrainedNode("a")).holding
    assert held.reason == (
        "Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[default/first default/second])"
    )


def test_pods_that_wait_already_are_no_consequence() -> None:
    given = console_input(pool(), running("a", "m", 1), pod("huge", {"cpu": "100"}), pod("small", {"cpu": "7"}))
    answer = asked(given, AddedPods(1, 1000, GIB))
    assert answer.waiting == 0
    assert answer.difference_per_hour == 0.0
    assert [(move.pod, move.from_node) for move in answer.moves if move.pod.startswith("what-if")] == [
        ("what-if/added-0001", "")
    ]


def test_added_pods_beyond_what_is_free_cost_new_nodes_and_what_fits_nowhere_waits() -> None:
    given = console_input(pool(), running("a", "s", 2))
    answer = asked(given, AddedPods(8, 1000, 0))
    assert sum(node.pods for node in answer.new_nodes) == 8
    assert answer.difference_per_hour == 4.0
    answer = asked(given, AddedPods(2, 1_000_000, 0))
    assert (answer.waiting, answer.difference_per_hour) == (2, 0.0)
    assert all(row.reason for row in answer.stranded)


def test_a_forbidden_family_goes_and_is_not_launched_again() -> None:
    given = console_input(pool(), running("a", "m", 3), running("b", "l", 1, 7))
    answer = asked(given, ForbiddenFamily("m"))
    assert answer.removed == ("a",)
    assert [node.instance_type for node in answer.new_nodes] == ["l"]
    assert answer.difference_per_hour == 2.0


@pytest.mark.parametrize(
    "question",
    [DrainedNode("gone"), ForbiddenFamily("none"), AddedPods(0, 1, 1), AddedPods(10**6, 1, 1), AddedPods(1, -1, 1)],
)
def test_what_is_not_there_cannot_be_asked_about(question: ClusterQuestion) -> None:
    with pytest.raises(UnanswerableQuestion):
        asked(console_input(pool(), running("a", "m", 1)), question)


def test_nothing_of_the_cluster_changes_by_asking() -> None:
    given = console_input(pool(), running("a", "m", 1), running("b", "m", 1))
    first = asked(given, DrainedNode("a"))
    asked(given, ForbiddenFamily("m"))
    assert asked(given, DrainedNode("a")) == first


def test_the_budget_calendar_has_every_change_at_its_minute() -> None:
    nightly = Budget(nodes="0", schedule="30 22 * * *", duration="8h")
    given = console_input(pool("np", Budget(nodes="1"), nightly), running("a", "m", 1))
    noon = NOW.replace(hour=12, minute=7, second=0, microsecond=0)
    spans = [
        span for span in budget_calendar(replace(given, now=noon), 1) if span.reason is DisruptionReason.UNDERUTILIZED
    ]
    assert [span.allowed for span in spans] == [1, 0, 1]
    closes, opens = noon.replace(hour=22, minute=30), (noon + timedelta(days=1)).replace(hour=6, minute=30)
    assert [(span.begins, span.ends) for span in spans] == [
        (noon, closes),
        (closes, opens),
        (opens, noon + timedelta(days=1)),
    ]
