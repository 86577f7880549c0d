"""Workload controllers: what is declared is what runs, after every change."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api import kinds
from karpenter.api.core import PodSpec
from karpenter.api.scheduling_constraints import Taint, Toleration
from karpenter.kube.errors import ServerUnavailable
from karpenter.simulation import workload_traces
from karpenter.simulation.workload_controllers import ReplicaSetSize, next_rollout_sizes
from support.stand_in_cluster import StandInCluster, deployment, node, run_with_stand_ins


async def _scale(cluster: StandInCluster, name: str, replicas: int) -> None:
    await cluster.kube.patch(kinds.DEPLOYMENT, name, {"spec": {"replicas": replicas}}, "default")


def test_a_deployment_gets_its_pods_through_a_replica_set() -> None:
    async def scenario(cluster: StandInCluster) -> None:
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 3))
        await asyncio.sleep(5)
        owner = (await cluster.kube.list(kinds.REPLICA_SET)).items
        pods = await cluster.pods()
        assert len(owner) == 1
        assert len(pods) == 3
        [replica_set] = owner
        label = replica_set.metadata.labels["pod-template-hash"]
        assert replica_set.metadata.name == f"web-{label}"
        assert replica_set.metadata.owner_references[0].kind == "Deployment"
        for each in pods:
            assert each.metadata.labels == {"app": "web", "pod-template-hash": label}
            assert each.metadata.owner_references[0].uid == replica_set.metadata.uid
            assert each.metadata.owner_references[0].controller

    run_with_stand_ins(scenario)


def test_scaling_changes_the_number_of_pods_and_status_follows() -> None:
    async def scenario(cluster: StandInCluster) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        await cluster.add_node(node("n1", "64"))
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 0))
        for replicas in (5, 40, 7, 0, 1):
            await _scale(cluster, "web", replicas)
            await cluster.settle(3)
            status = (await cluster.kube.get(kinds.DEPLOYMENT, "web", "default")).status
            seen.append((len(await cluster.pods()), status.ready_replicas))
        return seen

    assert run_with_stand_ins(scenario) == [(5, 5), (40, 40), (7, 7), (0, 0), (1, 1)]


def test_scaling_down_removes_pending_pods_before_running_ones() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[int, int]:
        await cluster.add_node(node("n1", "2"))
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 6))
        await cluster.settle(2)
        before = len(await cluster.bound())
        await _scale(cluster, "web", 4)
        await cluster.settle(2)
        return before, len(await cluster.bound())

    assert run_with_stand_ins(scenario) == (4, 4)


def test_scaling_down_removes_the_newest_first() -> None:
    async def scenario(cluster: StandInCluster) -> bool:
        await cluster.add_node(node("n1", "64"))
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 3))
        await cluster.settle(2)
        old = {each.metadata.name for each in await cluster.pods()}
        await _scale(cluster, "web", 6)
        await cluster.settle(2)
        await _scale(cluster, "web", 3)
        await cluster.settle(2)
        return {each.metadata.name for each in await cluster.pods()} == old

    assert run_with_stand_ins(scenario)


def test_a_pod_that_goes_is_replaced() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[str, list[str]]:
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 1))
        await asyncio.sleep(5)
        [first] = await cluster.pods()
        await cluster.kube.delete(kinds.POD, first.metadata.name, "default", grace_period_seconds=0)
        await asyncio.sleep(5)
        return first.metadata.name, [each.metadata.name for each in await cluster.pods()]

    first, after = run_with_stand_ins(scenario)
    assert len(after) == 1
    assert after != [first]


def test_a_refused_call_is_made_again() -> None:
    async def scenario(cluster: StandInCluster) -> int:
        cluster.server.inject_fault(ServerUnavailable("no answer"), verb="create", plural="pods", times=3)
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 4))
        await asyncio.sleep(30)
        return len(await cluster.pods())

    assert run_with_stand_ins(scenario) == 4


def test_a_changed_template_is_rolled_out_without_a_gap() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[int, int, Counter[str]]:
        await cluster.add_node(node("n1", "64"))
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 8))
        await cluster.settle(2)
        template = {"template": {"metadata": {"annotations": {"revision": "two"}}}}
        await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": template}, "default")
        fewest, most = 99, 0
        for _ in range(12):
            await cluster.settle()
            alive = [each for each in await cluster.pods() if each.metadata.deletion_timestamp is None]
            ready = sum(any(c.type == "Ready" for c in each.status.conditions) for each in alive)
            fewest, most = min(fewest, ready), max(most, len(alive))
        return fewest, most, Counter(each.metadata.annotations["revision"] for each in await cluster.pods())

    fewest, most, revisions = run_with_stand_ins(scenario)
    assert fewest >= 6
    assert most <= 10
    assert revisions == {"two": 8}


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_a_rollout_always_arrives(wanted: int, new: int, old: int) -> None:
    """Law: stepping until nothing changes, with all pods getting ready, ends with only the new revision."""
    sizes = (new, old)
    for _ in range(200):
        step = next_rollout_sizes(wanted, ReplicaSetSize(sizes[0], sizes[0]), [ReplicaSetSize(sizes[1], sizes[1])])
        if step == sizes:
            break
        sizes = (step[0], step[1])
    assert sizes == (wanted, 0)


class TestDaemonSets:
    def test_every_ready_node_gets_one_pod(self) -> None:
        async def scenario(cluster: StandInCluster) -> dict[str, str]:
            for daemon_set in workload_traces.daemon_sets()[:2]:
                await cluster.kube.create(kinds.DAEMON_SET, daemon_set)
            for name in ("n1", "n2", "n3"):
                await cluster.add_node(node(name))
            await cluster.settle(2)
            return await cluster.bound()

        bound = run_with_stand_ins(scenario)
        assert sorted(bound.values()) == ["n1", "n1", "n2", "n2", "n3", "n3"]
        assert len({(name.rsplit("-", 1)[0], where) for name, where in bound.items()}) == 6

    @pytest.mark.parametrize(
        ("spec", "nodes"),
        [
            (PodSpec(), ["plain"]),
            (PodSpec(tolerations=(Toleration(key="team", operator="Exists"),)), ["plain", "tainted"]),
            (PodSpec(node_selector={"disk": "ssd"}), []),
        ],
    )
    def test_selector_and_taints_are_respected(self, spec: PodSpec, nodes: list[str]) -> None:
        async def scenario(cluster: StandInCluster) -> list[str]:
            daemon_set = workload_traces.daemon_sets()[0]
            template = msgspec.structs.replace(
                daemon_set.spec.template,
                spec=msgspec.structs.replace(spec, containers=daemon_set.spec.template.spec.containers),
            )
            changed = msgspec.structs.replace(daemon_set.spec, template=template)
            await cluster.add_node(node("plain"))
            await cluster.add_node(node("tainted", taints=(Taint(key="team", effect="NoSchedule"),)))
            await cluster.kube.create(kinds.DAEMON_SET, msgspec.structs.replace(daemon_set, spec=changed))
            await cluster.settle(2)
            return sorted((await cluster.bound()).values())

        assert run_with_stand_ins(scenario) == nodes

    def test_agents_of_a_new_node_come_before_the_pods_that_wait_for_it(self) -> None:
        async def scenario(cluster: StandInCluster) -> int:
            for daemon_set in workload_traces.daemon_sets():
                await cluster.kube.create(kinds.DAEMON_SET, daemon_set)
            await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 50))
            await asyncio.sleep(30)
            await cluster.add_node(node("n1", "4"))
            await cluster.settle(2)
            return sum(not name.startswith("web-") for name in await cluster.bound())

        assert run_with_stand_ins(scenario) == len(workload_traces.daemon_sets())

    def test_pods_of_a_node_that_is_gone_go_too(self) -> None:
        async def scenario(cluster: StandInCluster) -> list[str]:
            await cluster.kube.create(kinds.DAEMON_SET, workload_traces.daemon_sets()[0])
            await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 2))
            await cluster.add_node(node("n1"))
            await cluster.settle(2)
            await cluster.kube.delete(kinds.NODE, "n1")
            await cluster.settle(2)
            return [each.spec.node_name for each in await cluster.pods()]

        assert run_with_stand_ins(scenario) == ["", ""]

    def test_a_deleted_daemon_set_is_not_kept_alive(self) -> None:
        async def scenario(cluster: StandInCluster) -> int:
            daemon_set = workload_traces.daemon_sets()[0]
            await cluster.kube.create(kinds.DAEMON_SET, daemon_set)
            await cluster.add_node(node("n1"))
            await cluster.settle(2)
            await cluster.kube.delete(kinds.DAEMON_SET, daemon_set.metadata.name, daemon_set.metadata.namespace)
            await cluster.settle(2)
            return len(await cluster.pods())

        assert run_with_stand_ins(scenario) == 0
