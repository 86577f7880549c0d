"""Simulated instances and kubelets, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import CONFIG_MAP, LEASE, NODE, NODE_CLAIM, POD
from karpenter.kube.errors import Conflict, NotFound, ServerUnavailable
from karpenter.model import conditions
from karpenter.providers.contract import Instance
from karpenter.providers.simulated import Faults, SimulatedTiming, fault_rules, simulated_kubelet
from support.simulated_provider_cluster import SMALL, START, ProviderCluster, run_in_virtual_time

DEADLINE_SECONDS = 600


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """Wait for a condition; return the seconds that it took."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not await condition():
        assert loop.time() < start + DEADLINE_SECONDS, "waited ten minutes in vain"
        await asyncio.sleep(0.5)
    return loop.time() - start


async def launched(cluster: ProviderCluster) -> tuple[Instance, str]:
    """Launch an instance and wait until its Node is ready; return the instance and the Node's name."""
    provider = await cluster.provider()
    instance = await provider.create(await cluster.claim("one", {}, SMALL))
    await until(lambda: is_up(cluster))
    return instance, instance.provider_id.removeprefix("kwok://")


async def is_up(cluster: ProviderCluster) -> bool:
    nodes = (await cluster.kube.list(NODE)).items
    return bool(nodes) and all(
        conditions.is_true(node.status.conditions, "Ready")
        and not any(taint.key == "node.kubernetes.io/not-ready" for taint in node.spec.taints)
        for node in nodes
    )


async def exists(cluster: ProviderCluster, name: str) -> bool:
    with suppress(NotFound):
        await cluster.kube.get(NODE, name)
        return True
    return False


async def pod(cluster: ProviderCluster, name: str) -> Pod | None:
    with suppress(NotFound):
        return await cluster.kube.get(POD, name, "default")
    return None


def phase_is(cluster: ProviderCluster, name: str, phase: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        stored_pod = await pod(cluster, name)
        return stored_pod is not None and stored_pod.status.phase == phase

    return holds


def pod_is_gone(cluster: ProviderCluster, name: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return await pod(cluster, name) is None

    return holds


def test_a_node_appears_after_the_registration_delay() -> None:
    """OPS-257, API-380."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        await provider.create(await cluster.claim("one", {}, SMALL))
        await asyncio.sleep(89)
        assert (await cluster.kube.list(NODE)).items == ()
        await asyncio.sleep(2)
        node = await cluster.node()
        assert [(taint.key, taint.effect) for taint in node.spec.taints] == [("karpenter.sh/unregistered", "NoExecute")]
        assert conditions.is_true(node.status.conditions, "Ready")

    run_in_virtual_time(scenario, delay="1m30s")


def test_bound_pods_run_and_are_ready() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.pod("web", node)
        await until(phase_is(cluster, "web", "Running"))
        stored_pod = await pod(cluster, "web")
        assert stored_pod is not None
        assert stored_pod.status.start_time is not None
        assert stored_pod.status.start_time.astimezone(UTC) > START
        holds = {condition.type for condition in stored_pod.status.conditions if condition.status == "True"}
        assert holds == {"PodScheduled", "Initialized", "Ready", "ContainersReady"}

    run_in_virtual_time(scenario)


def test_pods_of_other_nodes_are_unchanged() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        await launched(cluster)
        await cluster.pod("web", "kwok-somebody-elses")
        await asyncio.sleep(60)
        stored_pod = await pod(cluster, "web")
        assert stored_pod is not None
        assert stored_pod.status.phase == "Pending"

    run_in_virtual_time(scenario)


def test_a_pod_with_a_run_time_succeeds() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.pod("job", node, {"karpenter.kwok.sh/run-seconds": "90"})
        await until(phase_is(cluster, "job", "Running"))
        took = await until(phase_is(cluster, "job", "Succeeded"))
        assert 88 < took < 92

    run_in_virtual_time(scenario)


@pytest.mark.parametrize(("grace", "expected"), [(30, 2.0), (1, 1.0), (0, 0.0)])
def test_a_deleted_pod_stops_within_its_grace_period(grace: int, expected: float) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.pod("web", node)
        await until(phase_is(cluster, "web", "Running"))
        await cluster.kube.delete(POD, "web", "default", grace_period_seconds=grace)
        assert abs(await until(pod_is_gone(cluster, "web")) - expected) <= 1

    run_in_virtual_time(scenario)


def test_the_node_pods_and_lease_of_a_terminated_instance_are_deleted() -> None:
    """OPS-212: first not ready, then deleted. OPS-P8."""

    async def scenario(cluster: ProviderCluster) -> None:
        instance, node = await launched(cluster)
        await cluster.pod("web", node)
        await until(phase_is(cluster, "web", "Running"))
        await asyncio.sleep(10)
        assert [lease.metadata.name for lease in (await cluster.kube.list(LEASE, "kube-node-lease")).items] == [node]
        await cluster.providers[0].delete(instance.provider_id)
        await asyncio.sleep(1)
        assert not conditions.is_true((await cluster.node()).status.conditions, "Ready")
        await asyncio.sleep(10)
        assert not await exists(cluster, node)
        assert await pod(cluster, "web") is None
        assert (await cluster.kube.list(CONFIG_MAP, "kube-system")).items == ()
        assert (await cluster.kube.list(LEASE, "kube-node-lease")).items == ()

    run_in_virtual_time(scenario, timing=SimulatedTiming())


def test_a_finalizer_on_the_node_does_not_block_the_termination_of_the_instance() -> None:
    """OPS-212: the instance terminates; the Node stays until its finalizer is removed."""

    async def scenario(cluster: ProviderCluster) -> None:
        instance, node = await launched(cluster)
        await cluster.kube.patch(NODE, node, {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
        await cluster.providers[0].delete(instance.provider_id)
        await cluster.finish_pending_work()
        assert await cluster.providers[0].list() == ()
        assert (await cluster.node()).metadata.deletion_timestamp is not None

    run_in_virtual_time(scenario)


def test_heartbeats_are_renewed() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await asyncio.sleep(15)
        first = (await cluster.kube.get(LEASE, node, "kube-node-lease")).spec.renew_time
        await asyncio.sleep(15)
        second = (await cluster.kube.get(LEASE, node, "kube-node-lease")).spec.renew_time
        assert first is not None
        assert second is not None
        assert second > first

    run_in_virtual_time(scenario, timing=SimulatedTiming(lease_renewal=timedelta(seconds=10)))


def test_a_configured_fault_keeps_an_instance_without_a_node() -> None:
    """OPS-269."""

    async def scenario(cluster: ProviderCluster) -> None:
        cluster.set_faults(Faults(registration=(fault_rules.RegistrationRule(never=True),)))
        provider = await cluster.provider()
        await provider.create(await cluster.claim("one", {}, SMALL))
        await asyncio.sleep(3600)
        assert (await cluster.kube.list(NODE)).items == ()
        assert len(await provider.list()) == 1

    run_in_virtual_time(scenario)


def test_a_lost_instance_disappears_without_a_warning() -> None:
    """OPS-269."""

    async def scenario(cluster: ProviderCluster) -> None:
        cluster.set_faults(Faults(lost=(fault_rules.LostRule(after="10m"),)))
        _, node = await launched(cluster)
        await asyncio.sleep(590)
        assert await exists(cluster, node)
        await asyncio.sleep(30)
        assert not await exists(cluster, node)
        assert await cluster.providers[0].list() == ()
        assert await cluster.kube.get(NODE_CLAIM, "one")

    run_in_virtual_time(scenario)


def test_an_interruption_deletes_the_claim_and_terminates_the_instance_after_the_notice() -> None:
    """OPS-269."""

    async def scenario(cluster: ProviderCluster) -> None:
        cluster.set_faults(Faults(interruptions=(fault_rules.InterruptionRule(after="5m", notice="2m"),)))
        _, node = await launched(cluster)
        await cluster.kube.patch(NODE_CLAIM, "one", {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
        await asyncio.sleep(310)
        assert (await cluster.kube.get(NODE_CLAIM, "one")).metadata.deletion_timestamp is not None
        assert await exists(cluster, node)
        await asyncio.sleep(120)
        assert not await exists(cluster, node)

    run_in_virtual_time(scenario)


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_the_status_of_a_node_with_the_unhealthy_label_is_not_changed(status: str) -> None:
    """K15-522: the label stops writes of Node conditions, so that tests can set them; without it the Node gets ready."""

    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        long_ago = "2025-01-01T00:00:00Z"
        await cluster.kube.patch(NODE, node, {"metadata": {"labels": {"kwok.x-k8s.io/stage": "unhealthy"}}})
        await asyncio.sleep(1)
        assert conditions.is_true((await cluster.node()).status.conditions, "Ready"), "nobody wrote anything yet"
        written = [{"type": "Ready", "status": status, "lastTransitionTime": long_ago}]
        await cluster.kube.patch(NODE, node, {"status": {"conditions": written}}, subresource="status")
        await asyncio.sleep(60)
        kept = conditions.find_condition((await cluster.node()).status.conditions, "Ready")
        assert kept is not None
        assert (kept.status, kept.last_transition_time) == (status, datetime.fromisoformat(long_ago))
        await cluster.kube.patch(NODE, node, {"metadata": {"labels": {"kwok.x-k8s.io/stage": None}}})
        await asyncio.sleep(1)
        assert conditions.is_true((await cluster.node()).status.conditions, "Ready")

    run_in_virtual_time(scenario)


def test_an_unhealthy_pod_runs_in_an_unknown_phase_and_is_never_ready() -> None:
    """OPS-261: the label of the pod, as in the KWOK stages of Karpenter's tests."""

    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.pod("sick", node, labels={"kwok.x-k8s.io/stage": "unhealthy"})
        await until(phase_is(cluster, "sick", "Unknown"))
        sick = await pod(cluster, "sick")
        assert sick is not None
        assert conditions.is_false(sick.status.conditions, "Ready")

    run_in_virtual_time(scenario)


@pytest.mark.parametrize(("delay", "expected"), [("60s", 60.0), ("soon", 2.0)])
def test_a_deleted_pod_stops_after_the_delay_in_its_annotation(delay: str, expected: float) -> None:
    """OPS-261: text that is no duration counts as no delay."""

    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.pod("web", node, {simulated_kubelet.STOP_DELAY_ANNOTATION: delay})
        await until(phase_is(cluster, "web", "Running"))
        await cluster.kube.delete(POD, "web", "default", grace_period_seconds=300)
        assert abs(await until(pod_is_gone(cluster, "web")) - expected) <= 1

    run_in_virtual_time(scenario)


def test_conditions_of_other_writers_are_kept() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        other = {"type": "NetworkingReady", "status": "True"}
        await cluster.kube.patch(NODE, node, {"status": {"conditions": [other]}}, subresource="status")
        await asyncio.sleep(1)
        actual = (await cluster.node()).status.conditions
        assert [(condition.type, condition.status) for condition in actual] == [
            ("NetworkingReady", "True"),
            ("Ready", "True"),
        ]

    run_in_virtual_time(scenario)


def test_an_instance_removed_from_the_records_leaves_no_objects() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        _, node = await launched(cluster)
        await cluster.kube.delete(CONFIG_MAP, node, "kube-system")
        await asyncio.sleep(5)
        assert not await exists(cluster, node)

    run_in_virtual_time(scenario)


def test_faults_of_the_api_server_only_delay_the_simulation() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        server = cluster.kube.server
        server.inject_fault(ServerUnavailable("down"), verb="create", plural="nodes", times=3)
        server.inject_fault(Conflict("changed"), verb="patch", plural="nodes", times=2)
        _, node = await launched(cluster)
        server.inject_fault(ServerUnavailable("down"), verb="patch", plural="pods", times=2)
        await cluster.pod("web", node)
        await until(phase_is(cluster, "web", "Running"))

    run_in_virtual_time(scenario)


def test_a_restart_continues_boot_pod_start_and_shutdown() -> None:
    """Boot, pod start and shutdown continue after a restart."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        instance = await provider.create(await cluster.claim("one", {}, SMALL))
        await asyncio.sleep(20)
        await cluster.stop()
        await asyncio.sleep(60)
        assert (await cluster.kube.list(NODE)).items == ()
        cluster.start()
        await until(lambda: is_up(cluster))
        node = instance.provider_id.removeprefix("kwok://")
        await cluster.stop()
        await cluster.pod("web", node)
        cluster.start()
        await until(phase_is(cluster, "web", "Running"))
        await cluster.stop()
        await provider.delete(instance.provider_id)
        await asyncio.sleep(60)
        cluster.start()
        await asyncio.sleep(1)
        assert not await exists(cluster, node)
        assert await provider.list() == ()

    run_in_virtual_time(scenario, delay="30s")
