"""A roll-out that is stopped or failed delays no consolidation, whatever the state of its pods."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.apps import RolloutWorkload
from karpenter.api.meta import ObjectMeta
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.state import ClusterState
from support.applied_commands import QUIET
from support.builders import NOW, feed, flatten, indexes, owner
from support.disruption_cases import KINDS, gone, on, pool, running
from support.virtual_cluster import VirtualCluster, in_virtual_time

_KEY = ("default", "Deployment", "web")
_FAILED = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
_RUNS = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}


def _disrupted(key: tuple[str, str, str], minutes_ago: int, **workload: object) -> list[str]:
    """The nodes that go while two versions of a workload exist, the newer pod since so many minutes."""

    def version(number: str, ago: int) -> dict[str, object]:
        if key[1] == "StatefulSet":
            own = {"labels": {"controller-revision-hash": number}, "owner_references": (owner("StatefulSet", "web"),)}
        else:
            own = {"labels": {"pod-template-hash": number}, "owner_references": (owner("ReplicaSet", f"web-{number}"),)}
        return {**own, "creation_timestamp": NOW - timedelta(minutes=ago)}

    pods = (on("a", 1, meta=version("1", 60)), on("b", 7, meta=version("2", minutes_ago)))
    wires = flatten([pool(), running("a", "l"), running("b", "l"), *pods])
    state = feed(ClusterState(), wires)
    state.set_rollout(key, msgspec.convert(workload, RolloutWorkload))
    return gone(decide_disruption(DisruptionProblem(state.snapshot(), QUIET), indexes(wires, KINDS)))


@pytest.mark.parametrize(
    ("workload", "goes"),
    [
        ({"spec": {"paused": True}}, ["a"]),
        ({"status": {"conditions": [_FAILED]}}, ["a"]),
        ({"status": {"conditions": [_RUNS]}}, []),
        ({"spec": {"progressDeadlineSeconds": 60}}, ["a"]),
        ({}, []),
    ],
    ids=["paused", "failed", "runs", "short-deadline", "nothing-said"],
)
def test_a_deployment_says_that_its_rollout_is_stopped(workload: dict[str, object], goes: list[str]) -> None:
    """DIS-487: pods alone would hold the nodes for ten minutes."""
    assert _disrupted(_KEY, 5, **workload) == goes


def test_a_long_progress_deadline_counts_up_to_fifteen_minutes() -> None:
    spec = {"progressDeadlineSeconds": 2**31 - 1}
    assert [_disrupted(_KEY, minutes, spec=spec) for minutes in (14, 16)] == [[], ["a"]]


@pytest.mark.parametrize(
    ("strategy", "updated", "goes"),
    [
        ({"type": "OnDelete"}, 0, ["a"]),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}, 1, ["a"]),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, 1, []),
        ({"type": "RollingUpdate"}, 1, []),
    ],
)
def test_a_stateful_set_that_waits_for_a_user_counts_as_stopped(
    strategy: dict[str, object], updated: int, goes: list[str]
) -> None:
    """Three replicas: a partition of 2 lets one be replaced."""
    spec, status = {"replicas": 3, "updateStrategy": strategy}, {"updatedReplicas": updated}
    assert _disrupted(("default", "StatefulSet", "web"), 5, spec=spec, status=status) == goes


@pytest.mark.parametrize(("generation", "goes"), [(3, ["a"]), (4, [])], ids=["current", "outdated"])
@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        ("Deployment", {}, {"conditions": [_FAILED]}),
        (
            "StatefulSet",
            {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
            {"updatedReplicas": 1},
        ),
    ],
)
def test_a_status_says_nothing_about_a_rollout_that_its_controller_has_not_seen(
    kind: str, spec: dict[str, object], status: dict[str, object], generation: int, goes: list[str]
) -> None:
    """A changed specification raises ``metadata.generation``; until ``observedGeneration`` follows, the status is the old one."""
    metadata, observed = {"generation": generation}, {**status, "observedGeneration": 3}
    assert _disrupted(("default", kind, "web"), 5, metadata=metadata, spec=spec, status=observed) == goes


@pytest.mark.parametrize("spec", [{"paused": True}, {"updateStrategy": {"type": "OnDelete"}}])
def test_what_a_specification_says_counts_at_once(spec: dict[str, object]) -> None:
    """It needs no status."""
    kind = "Deployment" if "paused" in spec else "StatefulSet"
    assert _disrupted(("default", kind, "web"), 5, metadata={"generation": 2}, spec=spec) == ["a"]


@in_virtual_time
async def test_a_rollout_that_is_paused_or_resumed_leads_to_a_decision_at_once(cluster: VirtualCluster) -> None:
    """Without an informer it took up to ten minutes."""
    await cluster.start()
    metadata = ObjectMeta(namespace="default", name="web")
    await cluster.kube.create(kinds.ROLLOUT_DEPLOYMENT, RolloutWorkload(metadata=metadata))
    await asyncio.sleep(1)
    assert cluster.manager is not None
    state = cluster.manager.state
    revision = state.revision
    assert not state.snapshot().rollout_controls
    await cluster.kube.patch(kinds.ROLLOUT_DEPLOYMENT, "web", {"spec": {"paused": True}}, "default")
    await asyncio.sleep(1)
    assert state.snapshot().rollout_controls[_KEY].is_stopped
    assert state.revision > revision
    await cluster.kube.patch(kinds.ROLLOUT_DEPLOYMENT, "web", {"spec": {"paused": False}}, "default")
    await asyncio.sleep(1)
    assert not state.snapshot().rollout_controls
