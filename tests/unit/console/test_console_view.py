"""The console view beside its nodes: pods, spending, NodePools, decisions, events, and the price bound."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from karpenter.api.karpenter import Budget
from karpenter.console.console_view import ConsoleView
from karpenter.console.decision_rows import DecisionKind
from karpenter.console.pending_pods import pod_placements
from karpenter.console.price_bound import price_bound_per_hour
from karpenter.console.spending import HOURS_PER_MONTH, UNREQUESTED, SpendDimension
from karpenter.model import labels
from support.builders import NOW, annotated, claim, node, plan, pod, pods, seconds
from support.console_cases import console_input, event, view_of
from support.disruption_cases import KINDS, drifted, on, pool, running, with_annotation


def test_finished_and_deleting_pods_do_not_count() -> None:
    """OPS-801."""
    counts = view_of(
        pool(),
        running("n", "m", 1),
        pod("waits", {"cpu": "1"}),
        pod("starts", {"cpu": "1"}, node_name="n", status={"phase": "Pending"}),
        pod("done", {"cpu": "1"}, node_name="n", status={"phase": "Succeeded"}),
        pod("goes", {"cpu": "1"}, node_name="n", meta={"deletion_timestamp": NOW}),
    ).pods
    assert (counts.total, counts.pending, counts.running, counts.bound) == (3, 2, 1, 2)


def test_a_pending_pod_gives_the_nearest_fit_of_a_computed_pass() -> None:
    """OPS-805: pending pods with the reason."""
    objects = [pool(), pod("huge", {"cpu": "100"}), pod("small", {"cpu": "1"})]
    given = replace(console_input(*objects), placements=pod_placements(plan(*objects, types=KINDS)))
    huge, small = ConsoleView(given).pending
    assert (huge.full_name, small.full_name) == ("default/huge", "default/small")
    assert huge.reason.startswith("unschedulable: ")
    assert "cpu" in huge.reason.lower()
    assert small.reason.startswith("new node: s of NodePool np, $1.0000 per hour")


def test_without_a_computed_pass_a_pending_pod_shows_the_last_event_or_else_the_schedulers_reason() -> None:
    failed = event("FailedScheduling", "Pod", "first", "no node is large enough", namespace="default")
    first, second, third = view_of(
        pool(),
        pod("first", {"cpu": "1"}),
        pod("second", {"cpu": "1"}),
        pod("third", {"cpu": "1"}, status={"conditions": ()}),
        events=[failed],
    ).pending
    assert first.reason == "no node is large enough"
    assert second.reason == "Unschedulable"
    assert third.reason == "the scheduler has not looked at it yet"


def test_pods_that_wait_longest_come_first() -> None:
    late = pod("a", {"cpu": "1"}, meta={"creation_timestamp": seconds(60)})
    assert [row.name for row in view_of(pool(), late, pod("b", {"cpu": "1"})).pending] == ["b", "a"]


def test_every_split_of_the_spending_adds_up_to_the_whole() -> None:
    """OPS-800: a month has 730 hours. 2 $/h on demand and 2 $/h spot; the pods request half of the CPU of the first."""
    first = running("n1", "m"), on("n1", 2, meta={"namespace": "shop"})
    second = running("n2", "l", capacity_type="spot", pool="other")
    spending = view_of(pool(), pool("other"), first, second, node("foreign", {"cpu": 4})).spending
    assert (spending.price_per_hour, spending.unpriced_nodes) == (4.0, 1)
    assert spending.price_per_month == 4.0 * HOURS_PER_MONTH
    for rows in spending.rows.values():
        assert sum(row.price_per_hour for row in rows) == pytest.approx(4.0)
    assert {row.name: row.price_per_hour for row in spending.rows[SpendDimension.NODE_POOL]} == {"np": 2, "other": 2}
    by_namespace = {row.name: row.price_per_hour for row in spending.rows[SpendDimension.NAMESPACE]}
    # half of the CPU, none of the memory, of 2 $/h
    assert by_namespace == {"shop": pytest.approx(0.5), UNREQUESTED: pytest.approx(3.5)}


def test_pods_of_an_overfull_node_share_its_price_and_no_more() -> None:
    rows = view_of(pool(), running("n", "s", 2, 2, 2)).spending.rows[SpendDimension.NAMESPACE]
    assert sum(row.price_per_hour for row in rows) == pytest.approx(1.0)


def test_a_nodepool_says_what_its_budgets_allow_now_and_when_they_allow_more() -> None:
    """OPS-805: the pool's budget. The budget is closed for twelve hours from midnight, which is now."""
    closed = Budget(nodes="0", schedule="0 0 * * *", duration="12h")
    (row,) = view_of(pool("np", closed), running("n")).pools
    assert {budget.remaining for budget in row.budgets} == {0}
    assert row.next_opening == seconds(12 * 3600)


def test_a_frozen_nodepool_names_the_freeze() -> None:
    frozen = annotated(pool(), {labels.FREEZE: "release week"})
    (row,) = view_of(frozen, running("n")).pools
    assert "release week" in row.freeze


def test_a_nodepool_sums_its_nodes_and_what_counts_against_its_limits() -> None:
    limited = pool()
    limited = msgspec.structs.replace(
        limited, spec=msgspec.structs.replace(limited.spec, limits={"cpu": 10, "nodes": 3})
    )
    (row,) = view_of(limited, running("a", "m", 1), running("b", "m", conditions=drifted(NOW))).pools
    assert (row.nodes, row.drifted, row.price_per_hour) == (2, 1, 4.0)
    assert row.used == {"cpu": 8000, "nodes": 2000}
    assert row.fill("cpu") == pytest.approx(1 / 8)


def test_nodes_launched_in_one_second_are_one_decision() -> None:
    """§9.2: entries such as "+2 nodes (t3.large)"."""
    own = {labels.INSTANCE_TYPE: "m"}
    born = [
        msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=at))
        for made, at in (
            (claim("a", labels=own), NOW),
            (claim("b", labels=own), NOW),
            (claim("c", labels=own), seconds(30)),
        )
    ]
    later, first = view_of(pool(), born).decisions
    assert (later.text, later.nodes) == ("+1 node (m)", ("c",))
    assert (first.text, first.nodes, first.kind) == ("+2 nodes (m)", ("a", "b"), DecisionKind.LAUNCH)


@pytest.mark.parametrize("message", ["Disrupting Node: Underutilized", "Disrupting NodeClaim: Underutilized/Delete"])
def test_nodes_disrupted_in_one_second_are_one_decision_with_its_reason(message: str) -> None:
    """§9.2: entries such as "-1 node (consolidation)"; DIS-394, in our words and in those of Karpenter."""
    events = [event("DisruptionTerminating", kind, name, message) for kind in ("Node", "NodeClaim") for name in "ab"]
    (row,) = view_of(pool(), events=events).decisions
    assert (row.kind, row.reason, row.text) == (DecisionKind.DISRUPTION, "Underutilized", "-2 nodes (underutilized)")
    assert row.nodes == ("a", "b")


def test_a_replacement_says_what_it_saves_once_however_many_nodes_announce_it() -> None:
    """DIS-395: every node of a command has an event with the saving of the whole command."""
    announced = "replace: [a, b] -> [1 replacement(s)], savings: $0.25"
    events = [
        replaced_event
        for name in "ab"
        for replaced_event in (
            event("ConsolidationCandidate", "NodeClaim", name, announced),
            event("DisruptionTerminating", "NodeClaim", name, "Disrupting Node: Underutilized"),
        )
    ]
    (row,) = view_of(pool(), events=events).decisions
    assert row.saving_per_hour == 0.25
    (silent,) = view_of(pool(), events=events[1::2]).decisions
    assert silent.saving_per_hour is None


def test_a_disruption_names_its_replacement_and_leaves_restarts_to_a_history() -> None:
    """Replacements name what they replace; only a history counts the pods that had to move."""
    new = claim("new")
    born = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, creation_timestamp=NOW))
    replacing = with_annotation(born, labels.DISRUPTION_REPLACES, "a, b")
    events = [event("DisruptionTerminating", "NodeClaim", name, "Disrupting Node: Underutilized") for name in "ab"]
    rows = {row.kind: row for row in view_of(pool(), replacing, events=events).decisions}
    assert rows[DecisionKind.DISRUPTION].replaced_by == ("new",)
    assert rows[DecisionKind.DISRUPTION].restarts is None
    assert rows[DecisionKind.LAUNCH].replaces == ("a", "b")


def test_interruptions_are_among_the_decisions_and_by_themselves() -> None:
    view = view_of(pool(), events=[event("SpotInterrupted", "NodeClaim", "a", "EC2 takes it back")])
    assert view.interruptions == view.decisions
    assert view.interruptions[0].kind is DecisionKind.INTERRUPTION


def test_events_of_other_controllers_about_pods_are_left_out() -> None:
    foreign = msgspec.structs.replace(event("Pulled", "Pod", "web"), source=type(event("a", "b", "c").source)())
    view = view_of(pool(), events=[foreign, event("Nominated", "Pod", "web", namespace="shop")])
    assert [(row.reason, row.name) for row in view.events] == [("Nominated", "shop/web")]


def test_the_price_bound_is_what_a_perfect_fleet_for_the_pods_costs() -> None:
    """Three pods of 1 CPU need 3 CPUs; a CPU costs 0.5 $/h on demand, whatever the type. Pods that wait cost nothing yet."""
    given = console_input(pool(), running("n", "l", 1, 1, 1), pods(2, {"cpu": "1"}))
    assert price_bound_per_hour(given) == pytest.approx(1.5)


def test_without_pods_nothing_has_to_be_paid() -> None:
    assert price_bound_per_hour(console_input(pool(), running("n"))) == 0.0
