"""Pods the scheduler has not tried yet count as pending with the first of their siblings that it found no place for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from karpenter.api.core import Pod, PodSchedulingGate
from karpenter.api.meta import Condition, LabelSelector, OwnerReference
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.api.storage import Volume
from karpenter.manager_watches import PendingPodChanges
from karpenter.state import ClusterState
from karpenter.state.snapshot import pod_key
from support.builders import feed, pod

_OWNER = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
_BOUND_ELSEWHERE = "node-7"


def untried(
    name: str, *, meta: Mapping[str, object] = {}, conditions: tuple[Condition, ...] = (), **spec: object
) -> Pod:
    """A replica of which the scheduler has said nothing."""
    own = {"owner_references": (_OWNER,), "labels": {"app": "web"}, **meta}
    return pod(name, {"cpu": "1"}, meta=own, status={"conditions": conditions}, **spec)


def marked(replica: Pod) -> Pod:
    """The replica after the scheduler found no place for it."""
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    return msgspec.structs.replace(replica, status=msgspec.structs.replace(replica.status, conditions=(condition,)))


def nominated(replica: Pod) -> Pod:
    status = msgspec.structs.replace(replica.status, nominated_node_name="node-1")
    return msgspec.structs.replace(replica, status=status)


def bound(replica: Pod) -> Pod:
    return msgspec.structs.replace(replica, spec=msgspec.structs.replace(replica.spec, node_name=_BOUND_ELSEWHERE))


def cluster(*replicas: Pod) -> ClusterState:
    state = ClusterState()
    state.untried_pods.enable()
    return feed(state, replicas)


def pending(state: ClusterState) -> list[str]:
    """Names of the pods in the next plan; ``pending_pods`` has the same."""
    names = sorted(each.metadata.name for group in state.snapshot().pod_groups for each in group.pods)
    assert names == sorted(each.metadata.name for each in state.pending_pods())
    return names


def test_untried_siblings_of_a_marked_pod_are_pending_and_in_one_group_with_it() -> None:
    """SCH-040a, Beyond of SCH-005: one decision plans nodes for all of them before the scheduler has tried each one."""
    state = cluster(marked(untried("a")), untried("b"), untried("c"))
    assert pending(state) == ["a", "b", "c"]
    assert len(state.snapshot().pod_groups) == 1


def test_no_pod_is_pending_before_the_scheduler_has_marked_one() -> None:
    assert pending(cluster(untried("a"), untried("b"))) == []


def test_only_marked_pods_are_pending_where_it_is_not_enabled() -> None:
    """SCH-040a as Karpenter has it."""
    assert pending(feed(ClusterState(), (marked(untried("a")), untried("b")))) == ["a"]


def test_siblings_stay_pending_until_they_are_tried_although_the_marked_one_found_a_place() -> None:
    first = untried("a")
    state = cluster(marked(first), untried("b"), untried("c"))
    state.set_pod(bound(first))
    assert pending(state) == ["b", "c"]
    state.set_pod(bound(untried("b")))
    state.remove_pod(pod_key(untried("c")))
    assert pending(state) == []
    state.set_pod(untried("d"))
    assert pending(state) == []


def test_a_pod_that_comes_after_all_siblings_were_bound_is_left_to_the_scheduler() -> None:
    """The pending pods may not have been read since."""
    first = untried("a")
    state = cluster(marked(first))
    state.set_pod(bound(first))
    state.set_pod(untried("b"))
    assert pending(state) == []


def test_siblings_of_a_pod_that_the_scheduler_makes_room_for_are_left_to_it() -> None:
    """It may preempt for each of them. A nomination of ours comes after the mark, and changes nothing."""
    first, second = untried("a"), untried("b")
    state = cluster(nominated(marked(first)), second, untried("c"))
    assert pending(state) == ["a"]
    state.set_pod(marked(second))
    state.set_pod(nominated(marked(second)))
    assert pending(state) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "other",
    [
        untried("b", priority=1000),
        untried("b", scheduler_name="batch"),
        untried("b", node_selector={"disk": "ssd"}),
        untried("b", scheduling_gates=(PodSchedulingGate(name="quota"),)),
        untried("b", volumes=(msgspec.convert({"name": "d", "persistentVolumeClaim": {"claimName": "d"}}, Volume),)),
        untried("b", meta={"owner_references": (msgspec.structs.replace(_OWNER, uid="web-2"),)}),
        untried("b", meta={"owner_references": ()}),
        untried("b", meta={"labels": {"app": "web", "shard": "2"}}),
        untried("b", conditions=(Condition(type="PodScheduled", status="False", reason="SchedulerError"),)),
    ],
    ids=[
        "other priority",
        "other scheduler",
        "other class",
        "gated",
        "volume claim",
        "other workload",
        "no controller",
        "other labels",
        "the scheduler said something else",
    ],
)
def test_pods_that_the_scheduler_distinguishes_are_no_siblings(other: Pod) -> None:
    assert pending(cluster(marked(untried("a")), other)) == ["a"]


# -- which changes ask for a pass ---------------------------------------------------------------------------------------


class Watched:
    """A cluster whose pod events reach the handler, and the pods it asked a pass for."""

    def __init__(self) -> None:
        self.state = cluster()
        self.asked: list[str] = []
        self.handler = PendingPodChanges(self.state.untried_pods, self.asked.append)

    def change(self, old: Pod | None, new: Pod) -> list[str]:
        """UIDs of the pods that this change asks a pass for."""
        self.asked.clear()
        self.state.set_pod(new)
        self.handler.on_pod(old, new)
        return list(self.asked)


def test_the_first_mark_makes_all_siblings_pending_and_later_marks_none() -> None:
    """SCH-001, SCH-006: each of them extends the batch once, when it becomes pending."""
    watched = Watched()
    first, second, third = untried("a"), untried("b"), untried("c")
    assert [watched.change(None, each) for each in (first, second, third)] == [[], [], []]
    assert watched.change(first, marked(first)) == ["uid-a", "uid-b", "uid-c"]
    assert watched.change(second, marked(second)) == []
    assert watched.change(None, untried("d")) == ["uid-d"]


def test_a_mark_triggers_a_pass_for_a_pod_that_was_not_pending_before() -> None:
    watched = Watched()
    first, gated = untried("a"), untried("b", scheduling_gates=(PodSchedulingGate(name="quota"),))
    watched.change(None, gated)
    watched.change(None, marked(first))
    freed = marked(untried("b"))
    assert watched.change(gated, freed) == ["uid-b"]


def test_a_nomination_of_an_untried_sibling_triggers_no_pass_and_a_new_label_does() -> None:
    watched = Watched()
    watched.change(None, marked(untried("a")))
    second = untried("b")
    watched.change(None, second)
    given = nominated(second)
    assert watched.change(second, given) == []
    annotated = msgspec.structs.replace(
        given, metadata=msgspec.structs.replace(given.metadata, annotations={"team": "a"})
    )
    assert watched.change(given, annotated) == ["uid-b"]


def test_a_mark_triggers_no_pass_for_a_pod_that_a_meanwhile_bound_sibling_made_pending() -> None:
    watched = Watched()
    first, second = untried("a"), untried("b")
    for each in (first, second, untried("c")):
        watched.change(None, each)
    watched.change(first, marked(first))
    watched.change(marked(first), bound(first))
    assert watched.change(second, marked(second)) == []


def test_each_mark_triggers_a_pass_while_the_scheduler_preempts() -> None:
    watched = Watched()
    first, second = untried("a"), untried("b")
    for each in (first, second, untried("c")):
        watched.change(None, each)
    assert watched.change(first, nominated(marked(first))) == ["uid-a"]
    assert watched.change(nominated(marked(first)), marked(first)) == []
    assert watched.change(second, marked(second)) == ["uid-b", "uid-c"]


@pytest.mark.parametrize(
    "label",
    ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"],
)
def test_pods_of_one_workload_that_differ_only_in_an_index_are_siblings(label: str) -> None:
    """SCH-040a: what the scheduler says of one pod of an indexed Job holds for the others; each keeps its own labels."""
    first, second = (untried(name, meta={"labels": {"app": "web", label: name}}) for name in ("a", "b"))
    state = cluster(marked(first), second, untried("c", meta={"labels": {"app": "other", label: "c"}}))
    assert pending(state) == ["a", "b"]
    assert {group.namespaced_labels.labels[label] for group in state.snapshot().pod_groups} == {"a", "b"}
    state.set_pod(bound(second))
    assert pending(state) == ["a"]


def test_pods_whose_constraint_counts_by_their_number_are_no_siblings() -> None:
    label = "batch.kubernetes.io/job-completion-index"
    numbered = [
        untried(
            name,
            meta={"labels": {"app": "web", label: name}},
            topology_spread_constraints=(
                TopologySpreadConstraint(
                    max_skew=1,
                    topology_key="kubernetes.io/hostname",
                    when_unsatisfiable="DoNotSchedule",
                    label_selector=LabelSelector(match_labels={label: name}),
                ),
            ),
        )
        for name in ("a", "b")
    ]
    assert pending(cluster(marked(numbered[0]), numbered[1])) == ["a"]
