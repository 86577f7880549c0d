"""Repair, reboots and terminate-first as Karpenter's own suite tests them, in virtual time (K15-600 to K15-614)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from karpenter.api import kinds
from karpenter.api.core import Node, NodeStatus
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.disruption.repair_matches import RepairMatchLog
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.repair_policies import RepairPolicy, repair_policies
from karpenter.providers.contract import ProviderError
from karpenter.providers.simulated import SimulatedProvider
from karpenter.settings import Settings
from support.builders import NOW, pod
from support.instance_types import STD
from support.node_repair_cases import MINUTE, POLICIES, leaving, phase, rebooting, start_with_nodes
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

HELD = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}


async def _break(cluster: VirtualCluster, *nodes: str, condition: str = "DiskReady", status: str = "False") -> None:
    for node in nodes:
        await cluster.set_condition(kinds.NODE, node, condition, status)


async def _names(cluster: VirtualCluster) -> list[str]:
    return [one.metadata.name for one in await cluster.all(kinds.NODE_CLAIM)]


async def _replacement_joins(cluster: VirtualCluster, seconds: float = 700) -> str:
    """Wait for the NodeClaim that takes the place of another, and let its node join."""
    known = set(await _names(cluster))
    new: list[str] = []

    async def there() -> bool:
        new[:] = [name for name in await _names(cluster) if name not in known]
        return bool(new) and bool((await cluster.get_claim(new[0])).status.provider_id)

    await until(there, seconds)
    await cluster.join(new[0], new[0])
    return new[0]


async def _is_gone(cluster: VirtualCluster, name: str = "n0") -> bool:
    return name not in await _names(cluster)


@in_virtual_time
async def test_one_unhealthy_node_of_five_is_removed_and_the_pool_has_five_again(cluster: VirtualCluster) -> None:
    """K15-600"""
    await start_with_nodes(cluster)
    await _break(cluster, "n0")
    new = await _replacement_joins(cluster)
    await until(lambda: _is_gone(cluster), 300)
    assert sorted(await _names(cluster)) == sorted([new, "n1", "n2", "n3", "n4"])


@in_virtual_time
async def test_above_a_fifth_nothing_happens_and_below_it_again_the_node_is_repaired(cluster: VirtualCluster) -> None:
    """K15-602, K15-603"""
    await start_with_nodes(cluster)
    await _break(cluster, "n0", "n1")
    await asyncio.sleep(3600)
    assert await _names(cluster) == [f"n{number}" for number in range(5)]
    await _break(cluster, "n1", status="True")
    await _replacement_joins(cluster, 60)
    await until(lambda: _is_gone(cluster), 300)
    assert "n1" in await _names(cluster)


@in_virtual_time
async def test_a_pod_that_blocks_the_drain_holds_the_node_until_the_bound_of_the_policy(
    cluster: VirtualCluster,
) -> None:
    """K15-604: two minutes after the deletion."""
    await start_with_nodes(cluster)
    await cluster.kube.patch(kinds.POD, "p0", HELD, "default")
    await _break(cluster, "n0")
    await _replacement_joins(cluster)
    await until(lambda: _leaves(cluster), 60)
    began = cluster.elapsed
    assert (await cluster.kube.get(kinds.POD, "p0", "default")).metadata.deletion_timestamp is None
    await until(lambda: _is_deleted(cluster, "p0"), 300)
    assert 80 <= cluster.elapsed - began <= 130
    await until(lambda: _is_gone(cluster), 300)


async def _is_deleted(cluster: VirtualCluster, pod: str) -> bool:
    """Whether the pod is gone, or is given its grace period."""
    if not await cluster.has(kinds.POD, pod, "default"):
        return True
    return (await cluster.kube.get(kinds.POD, pod, "default")).metadata.deletion_timestamp is not None


async def _leaves(cluster: VirtualCluster) -> bool:
    return await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_a_node_with_the_veto_stays(cluster: VirtualCluster) -> None:
    """K15-605; K15-494: the event says what blocks it. Without the annotation the node is repaired."""
    await start_with_nodes(cluster)
    await cluster.edit(kinds.NODE, "n0", annotations={labels.DO_NOT_REPAIR: "true"})
    await _break(cluster, "n0")
    await asyncio.sleep(3600)
    assert len(await _names(cluster)) == 5
    texts = {event.message for event in await cluster.events("DisruptionBlocked")}
    assert any('"karpenter.sh/do-not-repair"' in text for text in texts)
    await cluster.edit(kinds.NODE, "n0", annotations={labels.DO_NOT_REPAIR: None})
    await _replacement_joins(cluster, 60)


@in_virtual_time
async def test_budgets_hold_repair_back_until_they_allow_it(cluster: VirtualCluster) -> None:
    """K15-606"""
    await start_with_nodes(cluster, disruption=Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),)))
    await _break(cluster, "n0")
    await asyncio.sleep(3600)
    assert len(await _names(cluster)) == 5
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"disruption": {"budgets": [{"nodes": "100%"}]}}})
    await _replacement_joins(cluster, 60)


@in_virtual_time
async def test_a_node_that_may_not_be_disrupted_is_repaired_anyway(cluster: VirtualCluster) -> None:
    """K15-607, K15-201: of the checks of nodes repair waives that annotation."""
    await start_with_nodes(cluster)
    await cluster.edit(kinds.NODE, "n0", annotations={labels.DO_NOT_DISRUPT: "true"})
    await _break(cluster, "n0")
    await _replacement_joins(cluster)
    await until(lambda: _is_gone(cluster), 300)


@pytest.mark.parametrize("status", ["False", "Unknown"])
@in_virtual_time
async def test_a_node_whose_kubelet_is_not_ready_is_replaced(cluster: VirtualCluster, status: str) -> None:
    """K15-608, K15-520: by the policies of the simulated provider, ten minutes later; its pods get no grace."""
    policies = SimulatedProvider(cluster.kube, cluster.clock, STD).repair_policies()
    await start_with_nodes(cluster, policies=policies)
    await cluster.kube.patch(kinds.POD, "p0", HELD, "default")
    await cluster.set_ready("n0", status)
    await asyncio.sleep(590)
    assert len(await _names(cluster)) == 5
    await _replacement_joins(cluster, 60)
    await until(lambda: _leaves(cluster), 60)
    await until(lambda: _is_deleted(cluster, "p0"), 5)


@in_virtual_time
async def test_a_fault_that_two_reboots_do_not_clear_leads_to_a_replacement(cluster: VirtualCluster) -> None:
    """K15-610: within a day."""
    await start_with_nodes(cluster)
    asked = rebooting(cluster)
    await cluster.kube.patch(kinds.POD, "p0", HELD, "default")
    await _break(cluster, "n0", condition="GpuReady")
    await _replacement_joins(cluster, 3600)
    assert len(asked) == 2
    await until(lambda: _is_gone(cluster), 300)


@in_virtual_time
async def test_a_budget_of_one_reboots_one_node_at_a_time(cluster: VirtualCluster) -> None:
    """K15-612: two of ten need it."""
    await start_with_nodes(
        cluster, count=10, disruption=Disruption(consolidate_after="Never", budgets=(Budget(nodes="1"),))
    )
    rebooting(cluster)
    await _break(cluster, "n0", "n1", condition="GpuReady")
    most = 0
    done: set[str] = set()
    for _ in range(2000):
        await asyncio.sleep(1)
        phases = {name: await phase(cluster, name) for name in ("n0", "n1")}
        most = max(most, [status for status, _ in phases.values()].count("True"))
        for name, (status, _) in phases.items():
            if status == "False" and name not in done:
                done.add(name)
                await _break(cluster, name, condition="GpuReady", status="True")
        if len(done) == 2:
            break
    assert (most, sorted(done)) == (1, ["n0", "n1"])
    assert len(await _names(cluster)) == 10


@pytest.mark.parametrize("is_repair", [True, False], ids=["K15-613-repair", "K15-614-drift"])
@in_virtual_time
async def test_a_static_pool_at_its_limit_lets_the_node_go_before_it_is_refilled(
    cluster: VirtualCluster, is_repair: bool
) -> None:
    """K15-613, K15-614: never more than its limit of nodes, and in the end as many as before."""
    gates = "NodeRepair=true,StaticCapacity=true,TerminateFirstDrift=true,TerminateFirstRepair=true"
    cluster.cloud.repair_policies = lambda: POLICIES
    await cluster.node_class()
    open_budget = Disruption(consolidate_after="Never", budgets=(Budget(nodes="100%"),))
    await cluster.pool(disruption=open_budget, replicas=5, limits={"nodes": "5"})
    await cluster.start(Settings(feature_gates=parse_feature_gates(gates)))
    await until(lambda: _has_joined(cluster, 5), 60)
    await asyncio.sleep(2)
    first, *_ = await cluster.all(kinds.NODE_CLAIM)
    name, uid = first.metadata.name, first.metadata.uid
    if is_repair:
        await _break(cluster, name)
    else:
        template = {"template": {"metadata": {"labels": {"team": "a"}}}}
        await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": template})
    most = 0
    for _ in range(900):
        await asyncio.sleep(1)
        known = await cluster.all(kinds.NODE_CLAIM)
        most = max(most, len(known))
        if uid not in {one.metadata.uid for one in known}:
            break
    assert uid not in {one.metadata.uid for one in await cluster.all(kinds.NODE_CLAIM)}
    await until(lambda: _has_joined(cluster, 5), 60)
    assert most == 5
    reason = "unhealthy" if is_repair else "drifted"
    described = {"nodepool": "np", "reason": reason, "terminate_first_reason": "static-at-limit"}
    assert cluster.counted("voluntary_disruption_terminate_first_decisions_total", **described) >= 1


async def _has_joined(cluster: VirtualCluster, count: int) -> bool:
    names = await _names(cluster)
    for name in names:
        if (await cluster.get_claim(name)).status.provider_id and not await cluster.has(kinds.NODE, name):
            await cluster.join(name, name)
    return len(names) == count


@in_virtual_time
async def test_a_repair_whose_replacement_never_comes_deletes_nothing_and_sets_no_deadline(
    cluster: VirtualCluster,
) -> None:
    """K15-232"""
    await start_with_nodes(cluster)
    await _break(cluster, "n0")
    await until(lambda: _has_six(cluster), 700)
    await asyncio.sleep(16 * 60)
    assert (
        cluster.counted(
            "voluntary_disruption_queue_failures_total", decision="replace", reason="unhealthy", consolidation_type=""
        )
        == 1
    )
    staying = await cluster.get_claim("n0")
    assert staying.metadata.deletion_timestamp is None
    assert labels.TERMINATION_TIMESTAMP not in staying.metadata.annotations


async def _has_six(cluster: VirtualCluster) -> bool:
    return len(await _names(cluster)) == 6


async def _reboot_requested(cluster: VirtualCluster) -> list[str]:
    """Wait until a reboot of n0 is requested, which a pod delays; the operations that the provider got."""
    await start_with_nodes(cluster)
    asked = rebooting(cluster)
    await cluster.kube.patch(kinds.POD, "p0", HELD, "default")
    await _break(cluster, "n0", condition="GpuReady")
    await until(lambda: _is_requested(cluster), 700)
    return asked


@in_virtual_time
async def test_a_reboot_whose_node_cannot_be_identified_is_given_up_after_five_minutes(cluster: VirtualCluster) -> None:
    """K15-293: while not exactly one Node has the instance's provider ID, until the deadline of the phase."""
    asked = await _reboot_requested(cluster)
    await cluster.join("n0", "twin", taints=())
    await asyncio.sleep(280)
    assert await phase(cluster) == ("True", "RebootRequested")
    await asyncio.sleep(60)
    assert asked == []
    assert cluster.counted("nodes_reboots_total", result="recovery_timeout") == 1
    assert await _is_gone(cluster) or await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_a_node_that_vanishes_before_its_reboot_takes_its_claim_along(cluster: VirtualCluster) -> None:
    """K15-293 waits for such a Node; here a NodeClaim whose Node was deleted goes at once, whatever is under way."""
    asked = await _reboot_requested(cluster)
    await cluster.kube.patch(kinds.NODE, "n0", {"metadata": {"finalizers": []}})
    await cluster.kube.delete(kinds.NODE, "n0")
    await until(lambda: _is_gone(cluster), 60)
    assert asked == []


async def _is_requested(cluster: VirtualCluster) -> bool:
    return await phase(cluster) == ("True", "RebootRequested")


@in_virtual_time
async def test_types_that_cannot_be_read_stop_the_drift_of_their_pool_only(cluster: VirtualCluster) -> None:
    """K15-213"""
    await cluster.node_class()
    open_budget = Disruption(consolidate_after="Never", budgets=(Budget(nodes="100%"),))
    for name in ("a", "b"):
        await cluster.pool(name, disruption=open_budget, replicas=1, limits={"nodes": "2"})
    await cluster.start(Settings(feature_gates=parse_feature_gates("StaticCapacity=true")))
    await until(lambda: _has_joined(cluster, 2), 60)
    await asyncio.sleep(2)
    read = cluster.cloud.instance_types

    async def refusing(pool: NodePool) -> tuple[InstanceType, ...]:
        if pool.metadata.name == "a":
            raise ProviderError("no instance types")
        return await read(pool)

    cluster.cloud.instance_types = refusing
    for name in ("a", "b"):
        template = {"template": {"metadata": {"labels": {"team": "a"}}}}
        await cluster.kube.patch(kinds.NODE_POOL, name, {"spec": template})
    await asyncio.sleep(30)
    pools = [one.metadata.labels[labels.NODE_POOL] for one in await cluster.all(kinds.NODE_CLAIM)]
    assert sorted(pools) == ["a", "b", "b"]


@in_virtual_time
async def test_policies_are_read_once_at_the_start(cluster: VirtualCluster) -> None:
    """K15-511: what the provider would say later changes nothing."""
    await start_with_nodes(cluster)
    cluster.cloud.repair_policies = lambda: (RepairPolicy("Ready", "False", MINUTE),)
    await cluster.set_ready("n0", "False")
    await asyncio.sleep(29 * 60)
    assert len(await _names(cluster)) == 5
    await _replacement_joins(cluster, 120)


@in_virtual_time
async def test_a_pass_that_started_a_command_is_followed_by_another_at_once(cluster: VirtualCluster) -> None:
    """DIS-S003, K15-229"""
    await start_with_nodes(cluster)
    assert cluster.manager is not None
    controller = cluster.manager.disruption
    passes: list[tuple[float, bool]] = []
    reconcile = controller.reconcile

    async def noted() -> bool:
        started = await reconcile()
        passes.append((cluster.elapsed, started))
        return started

    controller.reconcile = noted
    await _break(cluster, "n0")
    await until(lambda: _has_six(cluster), 700)
    await asyncio.sleep(30)
    (at,) = [number for number, (_, started) in enumerate(passes) if started]
    assert passes[at + 1][0] - passes[at][0] < 1
    assert passes[at + 2][0] - passes[at + 1][0] > 1


@in_virtual_time
async def test_a_pod_that_fits_on_a_replacement_under_way_gets_no_node_of_its_own(cluster: VirtualCluster) -> None:
    """DIS-S147"""
    await start_with_nodes(cluster)
    await cluster.gone("p0")
    await cluster.running("small", "n0", requests={"cpu": "500m"})
    for number in range(1, 5):
        await cluster.running(f"full{number}", f"n{number}", requests={"cpu": "800m"})
    await asyncio.sleep(1)
    await _break(cluster, "n0")
    await until(lambda: _has_six(cluster), 700)
    await cluster.waiting(pod("late", {"cpu": "500m"}))
    await asyncio.sleep(30)
    assert len(await _names(cluster)) == 6
    (new,) = set(await _names(cluster)) - {f"n{number}" for number in range(5)}
    assert [event.message for event in await cluster.events("Nominated", "late")] == [
        f"Pod should schedule on: nodeclaim/{new}"
    ]


def test_a_node_that_begins_and_ceases_to_match_a_policy_is_logged_once() -> None:
    """K15-501: debug, with each change of the Node that changes its matches."""
    log = RepairMatchLog(repair_policies(POLICIES))
    broken = Condition(type="GpuReady", status="False", reason="XID48", last_transition_time=NOW)
    reported_again = msgspec.structs.replace(broken, message="seen again")
    steps = [(), (broken,), (reported_again,), (), ()]
    nodes = [
        Node(metadata=ObjectMeta(name="n", labels={labels.NODE_POOL: "np"}), status=NodeStatus(conditions=each))
        for each in steps
    ]
    with capture_logs() as lines:
        for old, new in zip((None, *nodes), nodes, strict=False):
            log.on_node(old, new)
    first, last = lines
    assert (first["event"], last["event"]) == ("matched repair policy", "no longer matches any repair policy")
    assert (first["log_level"], first["Node"], last["Node"]) == ("debug", {"name": "n"}, {"name": "n"})
    assert {key: first[key] for key in ("condition", "status", "reason", "action", "fallback")} == {
        "condition": "GpuReady",
        "status": "False",
        "reason": "XID48",
        "action": "RebootNode",
        "fallback": False,
    }
    assert first["eligible-at"] == rfc3339(NOW + 10 * MINUTE)


def test_a_node_without_a_nodepool_is_never_repaired_and_not_logged() -> None:
    log = RepairMatchLog(repair_policies(POLICIES))
    broken = Condition(type="GpuReady", status="False", reason="XID48", last_transition_time=NOW)
    with capture_logs() as lines:
        log.on_node(None, Node(metadata=ObjectMeta(name="n"), status=NodeStatus(conditions=(broken,))))
    assert lines == []


@in_virtual_time
async def test_a_match_is_logged_before_anything_is_due(cluster: VirtualCluster) -> None:
    """K15-501, K15-221: the policy acts ten minutes later."""
    await start_with_nodes(cluster)
    await _break(cluster, "n0")
    await asyncio.sleep(1)
    (line,) = cluster.lines("matched repair policy")
    assert (line["Node"], line["condition"]) == ({"name": "n0"}, "DiskReady")
    assert cluster.lines("selected repair policy") == []
