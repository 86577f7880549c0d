"""What delays a consolidation, and capacity buffers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, NodeClaimResourceRequests
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.capacitybuffer.buffer_pods import build_virtual_pods
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command, pending_command
from karpenter.disruption.decide.consolidation_delays import time_driven_changes
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.model import labels
from karpenter.settings import resolve_settings
from karpenter.state.virtual_pods import VirtualPods
from support.applied_commands import QUIET
from support.builders import NOW, container, flatten, indexes, owner, replaced, snapshot
from support.disruption_cases import (
    KINDS,
    decide,
    gone,
    kind,
    on,
    pool,
    replacement_types,
    running,
    sold,
    why,
    with_annotation,
)


@pytest.mark.parametrize(("minutes", "goes"), [(4, []), (5, ["a"])])
def test_young_nodes_are_not_consolidated(minutes: int, goes: list[str]) -> None:
    """Issue 7, point 4: minimum node age."""
    host, behind, *pods = running("a", "l", 1)
    born = replaced(behind.metadata, creation_timestamp=NOW - timedelta(minutes=minutes))  # type: ignore[attr-defined]
    solution = decide(pool(), host, replaced(behind, metadata=born), pods)
    assert gone(solution) == goes


@pytest.mark.parametrize(
    ("cpu_launched_for", "annotation", "goes"),
    [(4, "", []), (5, "", ["a"]), (8, "", ["a"]), (8, "5m", [])],
)
def test_the_default_age_ends_for_a_node_that_lost_a_quarter_of_its_requests(
    cpu_launched_for: int, annotation: str, goes: list[str]
) -> None:
    """A cluster that lost half its pods soon after it was launched does not wait for the fifth minute. An annotation holds."""
    host, behind, *pods = running("a", "l", 3)
    born = replaced(behind.metadata, creation_timestamp=NOW - timedelta(minutes=2))  # type: ignore[attr-defined]
    planned = replaced(behind.spec, resources=NodeClaimResourceRequests(requests={"cpu": str(cpu_launched_for)}))  # type: ignore[attr-defined]
    own = with_annotation(pool(), labels.MINIMUM_NODE_AGE, annotation) if annotation else pool()
    solution = decide(own, host, replaced(behind, metadata=born, spec=planned), pods)
    assert gone(solution) == goes


def test_the_profile_karpenter_consolidates_at_any_age_and_for_any_saving() -> None:
    settings = resolve_settings({"profile": "karpenter"}, {})
    options = settings.disruption_options(settings.scheduling_options(), settings.gates)
    types = (kind("m", 4, sold(1.0)), kind("x", 4, sold(0.95)))
    host, behind, *pods = running("a", "m", 3)
    born = replaced(behind.metadata, creation_timestamp=NOW - timedelta(minutes=1))  # type: ignore[attr-defined]
    cluster = [pool(), host, replaced(behind, metadata=born), pods]
    assert gone(decide(cluster, types=types)) == []
    assert gone(decide(cluster, types=types, options=options)) == ["a"]


def test_a_roll_out_is_waited_for() -> None:
    """Issue 7, point 4: two versions of one Deployment are there at once."""

    def version(number: str) -> dict[str, object]:
        return {"labels": {"pod-template-hash": number}, "owner_references": (owner("ReplicaSet", f"web-{number}"),)}

    cluster = [pool(), running("a", "l"), running("b", "l"), on("a", 1, meta=version("1"))]
    assert gone(decide(cluster, on("b", 7, meta=version("1")))) == ["a"]
    solution = decide(cluster, on("b", 7, meta=version("2")))
    assert gone(solution) == []
    assert why(solution, "a") == "Deployment default/web is being rolled out"


def _web(name: str, number: str, minutes_ago: int, ready_minutes_ago: int | None = None) -> list[object]:
    """A pod of a version of the Deployment ``web`` on a node."""
    meta = {
        "labels": {"pod-template-hash": number},
        "owner_references": (owner("ReplicaSet", f"web-{number}"),),
        "creation_timestamp": NOW - timedelta(minutes=minutes_ago),
    }
    since = None if ready_minutes_ago is None else NOW - timedelta(minutes=ready_minutes_ago)
    ready = () if since is None else (Condition(type="Ready", status="True", last_transition_time=since),)
    return list(
        on(name, 1, prefix=f"{number}-{minutes_ago}", meta=meta, status={"phase": "Running", "conditions": ready})
    )


@pytest.mark.parametrize(
    ("pods_of_web", "waits"),
    [
        ([_web("a", "1", 60), _web("b", "2", 9)], True),
        ([_web("a", "1", 60), _web("b", "2", 11)], False),
        ([_web("a", "1", 60), _web("b", "2", 11, ready_minutes_ago=9)], True),
        ([_web("a", "1", 60), _web("a", "2", 600)], False),
        ([_web("a", "2", 60), _web("b", "1", 600), _web("b", "1", 3)], True),
        ([_web("a", "1", 60), _web("b", "2", 8), _web("b", "1", 5), _web("b", "1", 4), _web("b", "2", 2)], False),
        ([_web("a", "1", 60), _web("b", "2", 8), _web("b", "1", 5), _web("b", "2", 2)], True),
    ],
    ids=[
        "progress",
        "hangs",
        "becomes-ready",
        "on-delete",
        "rollback",
        "scaling-while-paused",
        "an-old-pod-comes-back",
    ],
)
def test_only_a_roll_out_that_makes_progress_delays_consolidation(pods_of_web: list[object], waits: bool) -> None:
    """Two versions that stay for ever (OnDelete, partition, a roll-out that hangs or is paused) must not keep nodes."""
    cluster = [pool(), running("a", "l"), running("b", "l"), pods_of_web]
    solution = decide(cluster)
    assert bool(gone(solution)) is not waits
    if waits:
        assert why(solution, "a") == "Deployment default/web is being rolled out"
        [blocker] = {each.blocker.until for each in solution.blocked_nodes if each.blocker.kind == "rollout"}
        assert blocker in set(time_driven_changes(snapshot(flatten(cluster)), NOW, 600))


def chosen(*commands: Command) -> DisruptionContext:
    return DisruptionContext(NOW, pending_commands=tuple(map(pending_command, commands)))


def test_what_was_chosen_before_is_chosen_again() -> None:
    """Of two equally good nodes the one that an earlier pass chose goes, so that validation finds it again (DIS-272)."""
    cluster = [pool("np", Budget(nodes="1")), running("a", "m", 1), running("b", "m", 1)]
    (first,) = decide(cluster).commands
    assert gone([first]) == ["a"]
    other = decide(pool("np", Budget(nodes="1")), running("b", "m", 1), running("c", "m", 3)).commands
    assert gone(other) == ["b"]
    assert gone(decide(cluster, circumstances=chosen(*other))) == ["b"]


def test_a_replacement_chosen_before_is_kept_while_it_holds_the_pods() -> None:
    """DIS-272: pods that are gone by now are no reason to choose anew; pods that do not fit any more are."""
    cluster = [pool(), running("a", "l", 1, 0.5)]
    (first,) = decide(cluster).commands
    (planned,) = first.replacements
    (again,) = decide(pool(), running("a", "l", 1), circumstances=chosen(first)).commands
    assert [(new_nodeclaim.name, len(new_nodeclaim.pods)) for new_nodeclaim in again.replacements] == [
        (planned.name, 1)
    ]
    (grown,) = decide(cluster, on("a", 2, prefix="late"), circumstances=chosen(first)).commands
    assert [new_nodeclaim.instance_types for new_nodeclaim in grown.replacements] == [("m",)]


def test_what_was_to_be_launched_is_for_its_own_pods_only() -> None:
    """No other pod is moved to a node that may never be launched."""
    (first,) = decide(pool(), running("a", "l", 1)).commands
    solution = decide(pool(), running("b", "s", 1), circumstances=chosen(first))
    assert gone(solution) == []


def test_a_move_says_what_it_saves_and_what_it_costs() -> None:
    """Issue 7, point 3"""
    (command,) = decide(pool(), running("a", "l", 1, 1)).commands
    assert command.saving_per_hour == 3.0
    assert command.pod_restarts == 2
    assert command.disruption_cost == 3.0
    assert command.payback_hours == pytest.approx(0.002)


# -- capacity buffers ----------------------------------------------------------------------------------------------------


def buffered(cluster: list[object], cpu: str, count: int) -> DisruptionSolution:
    """The decision for a cluster with a buffer of virtual pods."""
    wires = flatten(cluster)
    room = VirtualPods()
    buffer = CapacityBuffer(metadata=ObjectMeta(name="b", namespace="default", uid="b"), spec=CapacityBufferSpec())
    template = PodTemplateSpec(spec=PodSpec(containers=(container({"cpu": cpu}),)))
    room.set_pods("default/b", build_virtual_pods(buffer, template, count, NOW))
    return decide_disruption(DisruptionProblem(room.added_to(snapshot(wires)), QUIET), indexes(wires, KINDS))


def test_room_that_is_kept_free_moves_along() -> None:
    """DIS-S146"""
    solution = buffered([pool(), running("a", "l", 1)], "1", 1)
    (command,) = solution.commands
    assert replacement_types(solution) == ["s"]
    assert [len(new_nodeclaim.pods) for new_nodeclaim in command.replacements] == [1]
    assert replacement_types(buffered([pool(), running("a", "l", 1)], "3", 1)) == ["m"]


def test_a_node_goes_only_where_kept_room_fits_too() -> None:
    """DIS-S146"""
    cluster = [pool(), running("a", "m", 2), running("b", "m", 2)]
    assert replacement_types(decide(cluster)) == []
    assert replacement_types(buffered(cluster, "2", 1)) == ["s"]
