"""Room of terminating pods: pods that will fit there get no new node, and wait for it no longer than the window."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.core import Container, ContainerPort, Pod
from karpenter.provisioning.awaited_room import AwaitedRoom
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from support.builders import (
    NOW,
    UNSCHEDULABLE,
    existing,
    new_types,
    node,
    node_and_claim,
    node_pool,
    owner,
    plan,
    pod,
    snapshot,
)

WINDOW = SchedulingOptions(terminating_pods_window=timedelta(seconds=30))
NODE = node("n", {"cpu": "2"})


def ending(seconds: float, cpu: str = "2", **changes: object) -> Pod:
    """A pod of the node that was deleted, and whose grace period ends in so many seconds."""
    meta = {"deletion_timestamp": NOW + timedelta(seconds=seconds)}
    return pod("old", {"cpu": cpu}, node_name="n", **{"meta": meta, **changes})


def outcome(result: Solution) -> tuple[int, dict[str, int]]:
    """How many nodes are launched, and how many pods go to each node that exists."""
    return len(new_types(result)), existing(result)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, (0, {"n": 1})), (30, (0, {"n": 1})), (31, (1, {})), (-5, (0, {"n": 1})), (-6, (1, {}))],
    ids=["now", "within the window", "after it", "still settling", "outstays its grace period"],
)
def test_no_node_is_launched_for_what_fits_once_a_pod_has_ended(
    seconds: float, expected: tuple[int, dict[str, int]]
) -> None:
    """SCH-089 Beyond: kube-scheduler counts the pod until it is gone, and a new node takes longer than that."""
    result = plan(node_pool(), NODE, ending(seconds), pod("new", {"cpu": "1"}), options=WINDOW)
    assert outcome(result) == expected
    assert all(placed.awaits_terminating_pods for placed in result.placed_on_existing)


def test_without_a_window_pods_count_until_they_are_gone() -> None:
    """As Karpenter, and in decisions about disruption."""
    for options in (SchedulingOptions(), WINDOW.counting_terminating_pods()):
        assert outcome(plan(node_pool(), NODE, ending(5), pod("new", {"cpu": "1"}), options=options)) == (1, {})


def test_what_does_not_fit_even_then_gets_a_new_node() -> None:
    waiting = [pod("a", {"cpu": "1500m"}), pod("b", {"cpu": "1500m"})]
    assert outcome(plan(node_pool(), NODE, ending(5), waiting, options=WINDOW)) == (1, {"n": 1})


def test_pods_that_fit_beside_those_that_end_do_not_wait_for_them() -> None:
    result = plan(node_pool(), NODE, ending(5, "1"), pod("new", {"cpu": "1"}), options=WINDOW)
    assert existing(result) == {"n": 1}
    assert not result.placed_on_existing[0].awaits_terminating_pods


def test_pods_go_to_a_node_with_room_now_rather_than_wait_for_room_elsewhere() -> None:
    """SCH-270 Beyond: kube-scheduler binds them at once, whichever node comes first by name; what does not fit there waits."""
    waiting = [pod("a", {"cpu": "1"}), pod("b", {"cpu": "1"})]
    result = plan(node_pool(), NODE, node("z", {"cpu": "1"}), ending(5), waiting, options=WINDOW)
    assert {placed.node_name: placed.awaits_terminating_pods for placed in result.placed_on_existing} == {
        "z": False,
        "n": True,
    }
    assert outcome(result) == (0, {"n": 1, "z": 1})


def test_room_that_ending_pods_leave_is_preferred_to_a_node_that_is_starting() -> None:
    starting = node_and_claim("a", {"cpu": "2"}, initialized=False)
    result = plan(node_pool(), NODE, *starting, ending(5), pod("new", {"cpu": "1"}), options=WINDOW)
    assert outcome(result) == (0, {"n": 1})


def test_a_host_port_is_free_once_its_pod_has_ended() -> None:
    port = (Container(name="c", ports=(ContainerPort(container_port=80, host_port=80),)),)
    result = plan(node_pool(), NODE, ending(5, "0", containers=port), pod("new", containers=port), options=WINDOW)
    assert outcome(result) == (0, {"n": 1})
    assert result.placed_on_existing[0].awaits_terminating_pods


def test_daemonset_pods_keep_their_room_because_they_come_back() -> None:
    meta = {"deletion_timestamp": NOW, "owner_references": (owner("DaemonSet"),)}
    result = plan(node_pool(), NODE, ending(0, meta=meta), pod("new", {"cpu": "1"}), options=WINDOW)
    assert outcome(result) == (1, {})


def test_room_made_by_preemption_is_not_given_to_other_pods() -> None:
    """SCH-040c: the pod that it is made for is left out, and its room with it."""
    status = {"conditions": (UNSCHEDULABLE,), "nominated_node_name": "n"}
    preemptor = pod("urgent", {"cpu": "2"}, status=status, priority=10)
    result = plan(node_pool(), NODE, ending(5, priority=1), preemptor, pod("new", {"cpu": "1"}), options=WINDOW)
    assert [claim.pods[0].metadata.name for claim in result.new_claims] == ["new"]
    assert existing(result) == {}


def test_a_pod_waits_for_such_room_no_longer_than_the_window() -> None:
    """Others may take it first, again and again; then a decision counts all pods as staying, and the clocks start anew."""
    room, waiting = AwaitedRoom(WINDOW), snapshot(pod("new", {"cpu": "1"}))
    assert room.options_at(NOW, waiting) == WINDOW
    awaiting = plan(node_pool(), NODE, ending(5), pod("new", {"cpu": "1"}), options=WINDOW)
    for seconds in (0, 10, 20, 30):
        assert room.options_at(NOW + timedelta(seconds=seconds), waiting) == WINDOW
        room.note(awaiting, NOW + timedelta(seconds=seconds))
    late = NOW + timedelta(seconds=31)
    assert room.options_at(late, waiting) == SchedulingOptions()
    room.note(plan(node_pool(), NODE, ending(5), pod("new", {"cpu": "1"})), late)
    assert room.options_at(late, waiting) == WINDOW


def test_a_pod_that_found_another_place_is_no_longer_counted() -> None:
    room = AwaitedRoom(WINDOW)
    room.note(plan(node_pool(), NODE, ending(5), pod("new", {"cpu": "1"}), options=WINDOW), NOW)
    room.note(Solution(), NOW + timedelta(seconds=20))
    assert room.options_at(NOW + timedelta(seconds=60), snapshot(pod("new", {"cpu": "1"}))) == WINDOW


def test_a_pod_that_no_longer_waits_makes_no_decision_about_others_overdue() -> None:
    """The next decision may be about the next roll-out. Pods of a node that goes wait, too."""
    room = AwaitedRoom(WINDOW)
    room.note(plan(node_pool(), NODE, ending(5), pod("new", {"cpu": "1"}), options=WINDOW), NOW)
    late = NOW + timedelta(hours=1)
    assert room.options_at(late, snapshot(pod("another", {"cpu": "1"}))) == WINDOW
    bound = pod("new", {"cpu": "1"}, node_name="n")
    assert room.options_at(late, snapshot(NODE, bound)) == WINDOW
    going = node("n", {"cpu": "2"}, deleted=True)
    assert room.options_at(late, snapshot(going, bound)) == SchedulingOptions()


def test_a_pod_whose_requests_cannot_be_read_spoils_no_decision_while_it_ends() -> None:
    """It counts as one pod on its node, and no more."""
    result = plan(node_pool(), NODE, ending(5, "much"), pod("new", {"cpu": "1"}), options=WINDOW)
    assert outcome(result) == (0, {"n": 1})
