"""A recruiting site's pilot: a spot pool before an on-demand pool, switched off overnight by a CronJob (DIS §23.1)."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from karpenter.api import kinds
from karpenter.api.karpenter import NodePool
from support.report_pools import begin, converted_pool, is_running, nodes_of, pinned
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_SPOT, _ON_DEMAND = "spot-instance", "ondemand-instance"
_NIGHT_SECONDS = 3600.0


def _spot_pool() -> NodePool:
    """The spot NodePool with the limit that the CronJob replaces; the report's excerpt omits it."""
    pool = converted_pool("a01-beta-pool-without-template")
    return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, limits={"memory": "1000Gi"}))


async def _both_pools(cluster: VirtualCluster) -> None:
    cluster.simulated()
    await begin(cluster, _spot_pool(), converted_pool("a02-beta-pool-never-consolidated"))


async def _limit_memory(cluster: VirtualCluster, amount: str) -> None:
    """`kubectl patch nodepools.karpenter.sh spot-instance`: the path of the limit is that of v1beta1."""
    await cluster.kube.patch(kinds.NODE_POOL, _SPOT, {"spec": {"limits": {"memory": amount}}})


async def _has_no_node(cluster: VirtualCluster) -> bool:
    return not await nodes_of(cluster, _SPOT) and not await cluster.all(kinds.NODE_CLAIM)


@in_virtual_time
async def test_pods_without_constraints_run_in_the_pool_with_the_larger_weight(cluster: VirtualCluster) -> None:
    """API-A01, API-A02, DIS-466: weight 50 before weight 1."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 6, _SPOT))
    await until(lambda: is_running(cluster, "web", 6), 180)
    assert await nodes_of(cluster, _SPOT)
    assert not await nodes_of(cluster, _ON_DEMAND)


@in_virtual_time
async def test_the_cronjob_switches_the_pool_off_overnight_and_on_again(cluster: VirtualCluster) -> None:
    """API-A05, DIS-467: limit 0, then all nodes deleted; their instances terminate, and pods wait until the limit is restored."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 6, _SPOT))
    await until(lambda: is_running(cluster, "web", 6), 180)
    await _limit_memory(cluster, "0")
    await asyncio.sleep(10)
    for name in await nodes_of(cluster, _SPOT):
        await cluster.kube.delete(kinds.NODE, name)
    await until(lambda: _has_no_node(cluster), 300)
    await asyncio.sleep(_NIGHT_SECONDS)
    assert await _has_no_node(cluster)
    assert {pod.status.phase for pod in await cluster.all(kinds.POD)} == {"Pending"}
    await _limit_memory(cluster, "1000Gi")
    await until(lambda: is_running(cluster, "web", 6), 180)


@in_virtual_time
async def test_the_steps_of_a_node_removal_are_logged_in_order(cluster: VirtualCluster) -> None:
    """DIS-462, DIS-463: the NodeClaim is deleted after its Node."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 2, _SPOT))
    await until(lambda: is_running(cluster, "web", 2), 180)
    await _limit_memory(cluster, "0")
    for name in await nodes_of(cluster, _SPOT):
        await cluster.kube.delete(kinds.NODE, name)
    await until(lambda: _has_no_node(cluster), 300)
    stages = [line["message"] for line in cluster.lines() if line["message"] in ("deleted node", "deleted nodeclaim")]
    assert stages == ["deleted node", "deleted nodeclaim"]


@in_virtual_time
async def test_the_steps_of_a_node_creation_are_logged_in_order(cluster: VirtualCluster) -> None:
    """DIS-465: the report has the log lines of that release; these are the current ones."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 2, _SPOT))
    await until(lambda: is_running(cluster, "web", 2), 180)
    wanted = (
        "found provisionable pod(s)",
        "computed new nodeclaim(s) to fit pod(s)",
        "created nodeclaim",
        "launched nodeclaim",
        "registered nodeclaim",
        "initialized nodeclaim",
    )
    said = [str(line["message"]) for line in cluster.lines()]
    assert tuple(dict.fromkeys(message for message in said if message in wanted)) == wanted


@in_virtual_time
async def test_the_steps_of_a_disruption_are_logged_in_order(cluster: VirtualCluster) -> None:
    """DIS-460 to DIS-464: an empty node is tainted and deleted, then its NodeClaim."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 2, _SPOT))
    await until(lambda: is_running(cluster, "web", 2), 180)
    await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")
    await until(lambda: _has_no_node(cluster), 600)
    wanted = ("disrupting node(s)", "tainted node", "deleted node", "deleted nodeclaim")
    said = [str(line["message"]) for line in cluster.lines()]
    assert tuple(dict.fromkeys(message for message in said if message in wanted)) == wanted


@in_virtual_time
async def test_the_morning_load_is_not_placed_on_one_node(cluster: VirtualCluster) -> None:
    """DIS-468: the report got one large spot node at 07:00, and lost all pods with it."""
    await _both_pools(cluster)
    await _limit_memory(cluster, "0")
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", 40, _SPOT))
    await asyncio.sleep(_NIGHT_SECONDS)
    assert await _has_no_node(cluster)
    await _limit_memory(cluster, "1000Gi")
    await until(lambda: is_running(cluster, "web", 40), 180)
    nodes = Counter(pod.spec.node_name for pod in await cluster.all(kinds.POD))
    assert max(nodes.values()) <= 20, nodes


@in_virtual_time
async def test_the_on_demand_pool_keeps_its_empty_nodes(cluster: VirtualCluster) -> None:
    """DIS-466: `consolidateAfter: Never` applies to empty nodes too, contrary to what the report expects."""
    await _both_pools(cluster)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("db", 2, _ON_DEMAND))
    await until(lambda: is_running(cluster, "db", 2), 180)
    nodes = await nodes_of(cluster, _ON_DEMAND)
    await cluster.kube.patch(kinds.DEPLOYMENT, "db", {"spec": {"replicas": 0}}, "default")
    await asyncio.sleep(3 * 3600)
    assert await nodes_of(cluster, _ON_DEMAND) == nodes
