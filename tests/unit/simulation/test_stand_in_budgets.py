"""The stand-in for the disruption controller: its arithmetic on its own, and what takes virtual time to see.

That it agrees with the real controller is shown in ``tests/contract/test_budget_counts.py``.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api import kinds
from karpenter.api.core import Pod, PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus, PodStatus
from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from karpenter.kube.errors import KubeError
from karpenter.model.pdb_counts import ExpectedPodsUnknown, PdbCount, count_pods
from karpenter.simulation.pdb_controller import GRANTED_EVICTION_SECONDS
from support.stand_in_cluster import StandInCluster, deployment, node, run_with_stand_ins


def _pod(name: str, owner: str = "rs", *, ready: bool = True, leaving: bool = False) -> Pod:
    reference = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=owner, uid=owner, controller=True)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            owner_references=(reference,) if owner else (),
            deletion_timestamp=datetime(2030, 1, 1, tzinfo=UTC) if leaving else None,
        ),
        status=PodStatus(phase="Running", conditions=(Condition(type="Ready", status="True" if ready else "False"),)),
    )


def _sized(**replicas: int) -> Any:
    return lambda namespace, owner: replicas.get(owner.name)


def _counted(pods: list[Pod], scale: Any, granted: tuple[str, ...] = (), **spec: Any) -> PdbCount:
    return count_pods(PodDisruptionBudgetSpec(**spec), pods, granted, scale)


def test_what_the_owners_want_counts_and_not_what_there_is() -> None:
    pods = [_pod("a"), _pod("b")]
    assert _counted(pods, _sized(rs=5), max_unavailable=2) == PdbCount(expected=5, healthy=2, desired=3)
    assert _counted(pods, _sized(rs=5), min_available="50%") == PdbCount(expected=5, healthy=2, desired=3)
    assert _counted(pods, _sized(rs=5), min_available=1) == PdbCount(expected=2, healthy=2, desired=1)


def test_every_owner_counts_once() -> None:
    pods = [_pod("a", "one"), _pod("b", "one"), _pod("c", "two"), _pod("d", "")]
    assert _counted(pods, _sized(one=2, two=3), max_unavailable=1) == PdbCount(expected=5, healthy=4, desired=4)


def test_a_granted_eviction_counts_as_gone() -> None:
    pods = [_pod("a"), _pod("b"), _pod("c", leaving=True), _pod("d", ready=False)]
    assert _counted(pods, _sized(rs=4), granted=("a",), max_unavailable=1).healthy == 1


def test_a_budget_that_says_nothing_allows_nothing() -> None:
    assert _counted([_pod("a")], _sized(rs=1)).allowed == 0


def test_an_owner_that_is_not_there_is_named_with_its_pod() -> None:
    with pytest.raises(ExpectedPodsUnknown, match='found no controllers for pod "a"'):
        _counted([_pod("a", "gone")], _sized(), max_unavailable=1)


@pytest.mark.parametrize("value", ["half", "5", "%", "-5%"])
def test_a_share_that_is_none_closes_the_budget(value: str) -> None:
    with pytest.raises(ExpectedPodsUnknown, match="not a percentage"):
        _counted([_pod("a")], _sized(rs=1), max_unavailable=value)


@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 40))
def test_a_share_that_must_stay_is_never_undercut(percent: int, total: int, down: int) -> None:
    pods = [_pod(f"p-{number}", ready=number >= down) for number in range(total)]
    pdb_count = _counted(pods, _sized(rs=total), min_available=f"{percent}%")
    assert (pdb_count.healthy - pdb_count.allowed) * 100 >= percent * total or pdb_count.allowed == 0


@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 40))
def test_a_share_that_may_be_missing_is_rounded_up_and_no_further(percent: int, total: int, down: int) -> None:
    pods = [_pod(f"p-{number}", ready=number >= down) for number in range(total)]
    pdb_count = _counted(pods, _sized(rs=total), max_unavailable=f"{percent}%")
    missing = total - pdb_count.healthy + pdb_count.allowed
    assert pdb_count.allowed == 0 or (missing - 1) * 100 < percent * total


def _budget(**spec: Any) -> PodDisruptionBudget:
    selector = LabelSelector(match_labels={"app": "web"})
    meta = ObjectMeta(name="budget", namespace="default")
    return PodDisruptionBudget(metadata=meta, spec=PodDisruptionBudgetSpec(selector=selector, **spec))


async def _status(cluster: StandInCluster) -> PodDisruptionBudgetStatus:
    return (await cluster.kube.get(kinds.POD_DISRUPTION_BUDGET, "budget", "default")).status


async def _web(cluster: StandInCluster, replicas: int) -> list[str]:
    await cluster.add_node(node("n1", "64"))
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", replicas))
    await cluster.settle(2)
    return [pod.metadata.name for pod in await cluster.pods()]


def test_an_eviction_without_effect_is_forgotten_after_two_minutes() -> None:
    async def scenario(cluster: StandInCluster) -> list[tuple[int, int]]:
        names = await _web(cluster, 3)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(max_unavailable=1))
        await asyncio.sleep(1)
        seen = [await _status(cluster)]
        with pytest.raises(KubeError):
            await cluster.kube.evict(names[0], "default", uid="of an earlier pod")
        await asyncio.sleep(1)
        seen.append(await _status(cluster))
        await asyncio.sleep(GRANTED_EVICTION_SECONDS - 3)
        seen.append(await _status(cluster))
        await asyncio.sleep(5)
        seen.append(await _status(cluster))
        return [(each.disruptions_allowed, len(each.disrupted_pods)) for each in seen]

    assert run_with_stand_ins(scenario) == [(1, 0), (0, 1), (0, 1), (1, 0)]


def test_one_after_another_all_pods_can_be_replaced() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[set[str], set[str], int]:
        before = await _web(cluster, 3)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(max_unavailable=1))
        await asyncio.sleep(1)
        fewest = 3
        for name in before:
            await cluster.kube.evict(name, "default")
            await asyncio.sleep(1)
            fewest = min(fewest, (await _status(cluster)).current_healthy)
            await cluster.settle(2)
        return set(before), {pod.metadata.name for pod in await cluster.pods()}, fewest

    before, after, fewest = run_with_stand_ins(scenario)
    assert not before & after
    assert (len(after), fewest) == (3, 2)


def test_a_status_that_is_right_is_not_written_again() -> None:
    async def scenario(cluster: StandInCluster) -> bool:
        names = await _web(cluster, 2)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(min_available=1))
        await asyncio.sleep(1)
        before = await cluster.kube.get(kinds.POD_DISRUPTION_BUDGET, "budget", "default")
        await cluster.kube.patch(kinds.POD, names[0], {"metadata": {"labels": {"more": "x"}}}, "default")
        await asyncio.sleep(1)
        return before == await cluster.kube.get(kinds.POD_DISRUPTION_BUDGET, "budget", "default")

    assert run_with_stand_ins(scenario)


def test_a_pdb_whose_status_is_overwritten_is_counted_again() -> None:
    async def scenario(cluster: StandInCluster) -> int:
        await _web(cluster, 2)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(min_available=1))
        await asyncio.sleep(1)
        forged = {"status": {"disruptionsAllowed": 77}}
        await cluster.kube.patch(kinds.POD_DISRUPTION_BUDGET, "budget", forged, "default", subresource="status")
        await asyncio.sleep(1)
        return (await _status(cluster)).disruptions_allowed

    assert run_with_stand_ins(scenario) == 1


def test_a_budget_that_comes_back_is_counted_from_the_start() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[int, int]:
        await _web(cluster, 3)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(max_unavailable=0))
        await asyncio.sleep(1)
        before = await _status(cluster)
        await cluster.kube.delete(kinds.POD_DISRUPTION_BUDGET, "budget", "default")
        await asyncio.sleep(1)
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _budget(max_unavailable=2))
        await asyncio.sleep(1)
        return before.disruptions_allowed, (await _status(cluster)).disruptions_allowed

    assert run_with_stand_ins(scenario) == (0, 2)
