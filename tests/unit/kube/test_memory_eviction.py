"""The arithmetic of disruption budgets, computed from the pods as they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api.core import Pod, PodDisruptionBudget, PodDisruptionBudgetSpec, PodStatus
from karpenter.api.kinds import POD_DISRUPTION_BUDGET
from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from karpenter.kube.memory import MemoryKube, MemoryServer
from karpenter.kube.memory.eviction import headroom, permits
from karpenter.kube.memory.pods import headroom as headroom_now
from karpenter.model.clock import SystemClock

_LABELS = {"app": "web"}


def _budget(**spec: Any) -> PodDisruptionBudget:
    selector = LabelSelector(match_labels=_LABELS)
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="b", namespace="default"), spec=PodDisruptionBudgetSpec(selector=selector, **spec)
    )


def _pod(*, ready: bool = True, owner: str = "", phase: str = "Running", leaving: bool = False) -> Pod:
    owners = (OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=owner, uid=owner, controller=True),)
    return Pod(
        metadata=ObjectMeta(
            labels=_LABELS,
            owner_references=owners if owner else (),
            deletion_timestamp=datetime(2030, 1, 1, tzinfo=UTC) if leaving else None,
        ),
        status=PodStatus(phase=phase, conditions=(Condition(type="Ready", status="True" if ready else "False"),)),
    )


def _no_scale(namespace: str, owner: OwnerReference) -> int | None:
    return None


def _five(namespace: str, owner: OwnerReference) -> int | None:
    return 5


@pytest.mark.parametrize(
    ("spec", "pods", "allowed"),
    [
        pytest.param({"min_available": 2}, [_pod()] * 3, 1, id="a count that must stay"),
        pytest.param({"min_available": 5}, [_pod()] * 3, 0, id="more must stay than there are"),
        pytest.param({"min_available": "50%"}, [_pod()] * 3, 1, id="a share that must stay, rounded up"),
        pytest.param({"max_unavailable": 1}, [_pod()] * 3, 1, id="a count that may go"),
        pytest.param({"max_unavailable": "34%"}, [_pod()] * 3, 2, id="a share that may go, rounded up"),
        pytest.param({"max_unavailable": 0}, [_pod()] * 3, 0, id="nothing may go"),
        pytest.param({"max_unavailable": 1}, [_pod(), _pod(ready=False)], 0, id="one is down already"),
        pytest.param({"max_unavailable": 1}, [_pod(), _pod(leaving=True)], 0, id="one is leaving already"),
        pytest.param({"min_available": 1}, [_pod(), _pod(phase="Succeeded")], 0, id="finished pods do not count"),
        pytest.param({"min_available": 0}, [], 0, id="no pods"),
    ],
)
def test_a_budget_allows(spec: dict[str, Any], pods: list[Pod], allowed: int) -> None:
    assert headroom(_budget(**spec), pods, _no_scale).disruptions_allowed == allowed


def test_a_controller_says_how_many_pods_are_expected() -> None:
    pods = [_pod(owner="rs")] * 4
    assert headroom(_budget(max_unavailable=1), pods, _five).disruptions_allowed == 0
    assert headroom(_budget(max_unavailable=2), pods, _five).disruptions_allowed == 1


def test_a_controller_that_cannot_be_asked_expects_the_pods_there_are() -> None:
    pods = [_pod(owner="job")] * 4 + [_pod()]
    assert headroom(_budget(max_unavailable=1), pods, _no_scale).expected == 5


def test_a_pod_that_is_not_ready_may_go_past_an_exhausted_budget_if_the_policy_says_so() -> None:
    down = _pod(ready=False)
    pods = [down, _pod()]
    always = _budget(min_available=2, unhealthy_pod_eviction_policy="AlwaysAllow")
    usual = _budget(min_available=2)
    assert permits(always, down, headroom(always, pods, _no_scale))
    assert not permits(usual, down, headroom(usual, pods, _no_scale))


def test_a_pod_that_is_not_ready_may_go_while_enough_others_are() -> None:
    down = _pod(ready=False)
    budget = _budget(min_available=1)
    room = headroom(budget, [down, _pod()], _no_scale)
    assert room.disruptions_allowed == 0
    assert permits(budget, down, room)


@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 40))
def test_a_share_that_must_stay_is_never_undercut(percent: int, total: int, down: int) -> None:
    pods = [_pod(ready=number >= down) for number in range(total)]
    room = headroom(_budget(min_available=f"{percent}%"), pods, _no_scale)
    remaining = room.healthy - room.disruptions_allowed
    assert remaining * 100 >= percent * total or room.disruptions_allowed == 0


async def test_the_replicas_of_the_deployment_above_count() -> None:
    server = MemoryServer(SystemClock())
    kube = MemoryKube(server)
    owner = {"apiVersion": "apps/v1", "controller": True}
    server.load(
        [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web", "uid": "d"},
                "spec": {"replicas": 3},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {
                    "name": "web-1",
                    "uid": "r",
                    "ownerReferences": [{**owner, "kind": "Deployment", "name": "web", "uid": "d"}],
                },
                "spec": {"replicas": 1},
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "web-1-a",
                    "labels": _LABELS,
                    "ownerReferences": [{**owner, "kind": "ReplicaSet", "name": "web-1", "uid": "r"}],
                },
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            },
        ]
    )
    budget = await kube.create(POD_DISRUPTION_BUDGET, _budget(max_unavailable=2))
    room = headroom_now(server, budget)
    assert (room.expected, room.healthy, room.desired) == (3, 1, 1)
