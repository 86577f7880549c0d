"""Metrics and events end to end: what a controller reports while it launches, runs and removes nodes."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.metrics.exposition import render_sync
from karpenter.settings import Settings
from support.builders import pod, pods
from support.metrics_scrape import Scrape
from support.virtual_cluster import VirtualCluster, in_virtual_time


def scrape(cluster: VirtualCluster) -> Scrape:
    assert cluster.manager is not None
    return Scrape(render_sync(cluster.manager.metrics.registry))


async def start_with_pool(cluster: VirtualCluster, settings: Settings | None = None) -> None:
    """A controller with a pool and a simulated cloud, and a scheduler."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class()
    await cluster.pool(limits={"cpu": "100"})
    await cluster.start(settings)


async def settled(cluster: VirtualCluster, count: int) -> None:
    """Wait until so many pods run."""
    for _ in range(300):
        result = [obj for obj in await cluster.all(kinds.POD) if obj.status.phase == "Running"]
        if len(result) == count:
            return
        await asyncio.sleep(1)
    raise AssertionError("pods do not run")


@in_virtual_time
async def test_a_node_is_counted_from_the_plan_to_its_end(cluster: VirtualCluster) -> None:
    """OPS-411 to OPS-420, OPS-440 to OPS-447, OPS-459, OPS-490"""
    await start_with_pool(cluster)
    waiting = pods(5, {"cpu": "500m"})
    await cluster.waiting(*waiting)
    await settled(cluster, 5)
    await asyncio.sleep(15)
    scraped = scrape(cluster)
    nodes = len(await cluster.all(kinds.NODE))
    assert nodes
    own = {"nodepool": "np"}
    assert scraped.total("karpenter_nodeclaims_created_total", reason="provisioned", **own) == nodes
    assert scraped.total("karpenter_nodes_created_total", **own) == nodes
    assert scraped.value("karpenter_cluster_state_node_count") == nodes
    assert scraped.value("karpenter_cluster_state_synced") == 1
    assert scraped.value("karpenter_scheduler_scheduling_duration_seconds_count", controller="provisioner") >= 1
    assert scraped.value("karpenter_scheduler_unschedulable_pods_count", controller="provisioner") == 0
    assert len(scraped.series("karpenter_pods_state", phase="Running", managed="true", ready="true", **own)) == 5
    assert scraped.value("karpenter_pods_startup_duration_seconds_count") == 5
    assert scraped.total("karpenter_pods_bound_duration_seconds_count") == 5
    assert scraped.value("karpenter_pods_scheduling_decision_duration_seconds_count") == 5
    assert len(scraped.series("karpenter_nodes_current_lifetime_seconds", managed="true")) == nodes
    assert scraped.total("karpenter_nodes_total_pod_requests", resource_type="cpu") == 2.5
    assert scraped.value("karpenter_nodepools_limit", resource_type="cpu", **own) == 100
    assert scraped.value("karpenter_nodepools_usage", resource_type="nodes", **own) == nodes
    assert scraped.value("karpenter_nodepools_cost_total", **own) > 0
    assert scraped.total("controller_runtime_reconcile_total", controller="nodeclaim.lifecycle") >= nodes
    assert scraped.value("controller_runtime_reconcile_total", controller="provisioner", result="success") > 0
    assert scraped.total("controller_runtime_reconcile_panics_total") == 0
    ready = {"type": "Ready", "status": "True", "karpenter_sh_nodepool": "np"}
    assert len(scraped.series("operator_nodeclaim_status_condition_count", **ready)) == nodes
    assert scraped.total("operator_nodeclaim_status_condition_transitions_total", **ready) == nodes

    for listed_pod in waiting:
        await cluster.kube.delete(kinds.POD, listed_pod.metadata.name, "default")
    await asyncio.sleep(180)
    assert not await cluster.all(kinds.NODE)
    scraped = scrape(cluster)
    for name in (
        "karpenter_nodes_current_lifetime_seconds",
        "operator_node_status_condition_count",
        "karpenter_pods_state",
    ):
        assert scraped.series(name) == [], name
    assert scraped.value("karpenter_cluster_state_node_count") == 0
    assert scraped.value("karpenter_nodepools_cost_total", **own) == 0
    assert scraped.total("karpenter_nodes_lifetime_duration_seconds_count", **own) == nodes
    assert scraped.total("operator_nodeclaim_termination_duration_seconds_count", karpenter_sh_nodepool="np") == nodes


@in_virtual_time
async def test_condition_changes_of_a_claim_are_reported_as_events(cluster: VirtualCluster) -> None:
    """OPS-E7, OPS-530, OPS-531"""
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "500m"}))
    await settled(cluster, 1)
    (claim,) = await cluster.all(kinds.NODE_CLAIM)
    events = {event.reason: event for event in await cluster.events(about=claim.metadata.name)}
    assert {"Launched", "Registered", "Initialized", "Ready"} <= events.keys()
    assert events["Launched"].type == "Normal"
    assert "Status: Unknown -> True" in events["Launched"].message
    await cluster.kube.delete(kinds.POD, "p", "default")
    await asyncio.sleep(180)
    ended = await cluster.events("Finalized", claim.metadata.name)
    assert [event.message for event in ended] == ["Finalized karpenter.sh/termination"]
    assert [event.involved_object.kind for event in ended] == ["NodeClaim"]


@in_virtual_time
async def test_a_restart_adds_no_samples_and_repeats_no_events(cluster: VirtualCluster) -> None:
    """OPS-M7, OPS-447, OPS-487"""
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "500m"}))
    await settled(cluster, 1)
    await asyncio.sleep(30)
    await cluster.stop()
    before = {event.metadata.name for event in await cluster.events()}
    await cluster.start()
    await asyncio.sleep(30)
    scraped = scrape(cluster)
    assert scraped.value("karpenter_pods_startup_duration_seconds_count") == 0
    assert scraped.total("karpenter_pods_bound_duration_seconds_count") == 0
    assert len(scraped.series("karpenter_pods_state")) == 1
    assert scraped.series("operator_nodeclaim_status_condition_transition_seconds_count") == []
    new = [event for event in await cluster.events() if event.metadata.name not in before]
    # The reason why a node stays is repeated every quarter of an hour anyway.
    assert {event.reason for event in new} <= {"Unconsolidatable"}


@in_virtual_time
async def test_pods_that_fit_nowhere_are_counted_and_those_that_wait_have_waited(cluster: VirtualCluster) -> None:
    """OPS-443, OPS-461"""
    await start_with_pool(cluster)
    await cluster.waiting(pod("big", {"cpu": "500"}))
    await asyncio.sleep(20)
    scraped = scrape(cluster)
    assert scraped.value("karpenter_scheduler_unschedulable_pods_count", controller="provisioner") == 1
    assert scraped.value("karpenter_pods_unbound_time_seconds", name="big", namespace="default") >= 20
    await cluster.kube.delete(kinds.POD, "big", "default")
    await asyncio.sleep(1)
    scraped = scrape(cluster)
    assert scraped.value("karpenter_scheduler_unschedulable_pods_count", controller="provisioner") == 0
    assert scraped.series("karpenter_pods_unbound_time_seconds") == []


@in_virtual_time
async def test_without_details_provisioning_works_and_single_objects_are_not_shown(cluster: VirtualCluster) -> None:
    """OPS-O11, OPS-320"""
    await start_with_pool(cluster, Settings(disable_cluster_state_observability=True))
    await cluster.waiting(pod("p", {"cpu": "500m"}))
    await settled(cluster, 1)
    scraped = scrape(cluster)
    for name in ("karpenter_nodes_allocatable", "karpenter_pods_state", "karpenter_nodepools_limit"):
        assert name not in scraped.types()
    assert not [name for name in scraped.types() if name.startswith("operator_")]
    assert scraped.value("karpenter_cluster_state_node_count") == 1
    assert not await cluster.events("Launched")


@in_virtual_time
async def test_every_line_of_a_pass_carries_its_identity(cluster: VirtualCluster) -> None:
    """OPS-385"""
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "500m"}))
    await settled(cluster, 1)
    (line,) = cluster.lines("registered nodeclaim")
    assert line["controller"] == "nodeclaim.lifecycle"
    assert line["controllerKind"] == "NodeClaim"
    assert line["NodeClaim"] == {"name": line["name"]}
    assert line["reconcileID"]
    (created,) = cluster.lines("created nodeclaim")
    assert created["controller"] == "provisioner"
    assert created["namespace"] == created["name"] == ""
    assert created["reconcileID"]
    started = {line["controller"] for line in cluster.lines("Starting workers")}
    assert {"nodeclaim.lifecycle", "node.termination", "nodepool.readiness", "provisioner", "disruption"} <= started
