"""Figures and events of whole stories: what a controller shows while it buys, runs and gives back machines."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.metrics.exposition import render_sync
from karpenter.settings import Settings
from support.builders import pod, pods
from support.metrics_scrape import Scrape
from support.world import World, story


def scrape(world: World) -> Scrape:
    assert world.manager is not None
    return Scrape(render_sync(world.manager.metrics.registry))


async def start_with_pool(world: World, settings: Settings | None = None) -> None:
    """A controller with a pool and a simulated cloud, and a scheduler."""
    world.simulated()
    world.scheduled()
    await world.node_class()
    await world.pool(limits={"cpu": "100"})
    await world.start(settings)


async def settled(world: World, count: int) -> None:
    """Wait until so many pods run."""
    for _ in range(300):
        result = [obj for obj in await world.all(kinds.POD) if obj.status.phase == "Running"]
        if len(result) == count:
            return
        await asyncio.sleep(1)
    raise AssertionError("pods do not run")


@story
async def test_a_node_is_counted_from_the_plan_to_its_end(world: World) -> None:
    """OPS-411 to OPS-420, OPS-440 to OPS-447, OPS-459, OPS-490"""
    await start_with_pool(world)
    waiting = pods(5, {"cpu": "500m"})
    await world.waiting(*waiting)
    await settled(world, 5)
    await asyncio.sleep(15)
    scraped = scrape(world)
    nodes = len(await world.all(kinds.NODE))
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
        await world.kube.delete(kinds.POD, listed_pod.metadata.name, "default")
    await asyncio.sleep(180)
    assert not await world.all(kinds.NODE)
    scraped = scrape(world)
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


@story
async def test_a_claims_conditions_are_told_as_they_turn(world: World) -> None:
    """OPS-E7, OPS-530, OPS-531"""
    await start_with_pool(world)
    await world.waiting(pod("p", {"cpu": "500m"}))
    await settled(world, 1)
    (claim,) = await world.all(kinds.NODE_CLAIM)
    events = {event.reason: event for event in await world.events(about=claim.metadata.name)}
    assert {"Launched", "Registered", "Initialized", "Ready"} <= events.keys()
    assert events["Launched"].type == "Normal"
    assert "Status: Unknown -> True" in events["Launched"].message
    await world.kube.delete(kinds.POD, "p", "default")
    await asyncio.sleep(180)
    ended = await world.events("Finalized", claim.metadata.name)
    assert [event.message for event in ended] == ["Finalized karpenter.sh/termination"]
    assert [event.involved_object.kind for event in ended] == ["NodeClaim"]


@story
async def test_a_restart_invents_no_samples_and_tells_nothing_again(world: World) -> None:
    """OPS-M7, OPS-447, OPS-487"""
    await start_with_pool(world)
    await world.waiting(pod("p", {"cpu": "500m"}))
    await settled(world, 1)
    await asyncio.sleep(30)
    await world.stop()
    before = {event.metadata.name for event in await world.events()}
    await world.start()
    await asyncio.sleep(30)
    scraped = scrape(world)
    assert scraped.value("karpenter_pods_startup_duration_seconds_count") == 0
    assert scraped.total("karpenter_pods_bound_duration_seconds_count") == 0
    assert len(scraped.series("karpenter_pods_state")) == 1
    assert scraped.series("operator_nodeclaim_status_condition_transition_seconds_count") == []
    new = [event for event in await world.events() if event.metadata.name not in before]
    # Why a machine stays is said every quarter of an hour anyway.
    assert {event.reason for event in new} <= {"Unconsolidatable"}


@story
async def test_pods_that_fit_nowhere_are_counted_and_those_that_wait_have_waited(world: World) -> None:
    """OPS-443, OPS-461"""
    await start_with_pool(world)
    await world.waiting(pod("big", {"cpu": "500"}))
    await asyncio.sleep(20)
    scraped = scrape(world)
    assert scraped.value("karpenter_scheduler_unschedulable_pods_count", controller="provisioner") == 1
    assert scraped.value("karpenter_pods_unbound_time_seconds", name="big", namespace="default") >= 20
    await world.kube.delete(kinds.POD, "big", "default")
    await asyncio.sleep(1)
    scraped = scrape(world)
    assert scraped.value("karpenter_scheduler_unschedulable_pods_count", controller="provisioner") == 0
    assert scraped.series("karpenter_pods_unbound_time_seconds") == []


@story
async def test_without_details_provisioning_works_and_single_objects_are_not_shown(world: World) -> None:
    """OPS-O11, OPS-320"""
    await start_with_pool(world, Settings(disable_cluster_state_observability=True))
    await world.waiting(pod("p", {"cpu": "500m"}))
    await settled(world, 1)
    scraped = scrape(world)
    for name in ("karpenter_nodes_allocatable", "karpenter_pods_state", "karpenter_nodepools_limit"):
        assert name not in scraped.types()
    assert not [name for name in scraped.types() if name.startswith("operator_")]
    assert scraped.value("karpenter_cluster_state_node_count") == 1
    assert not await world.events("Launched")


@story
async def test_every_line_of_a_pass_carries_its_identity(world: World) -> None:
    """OPS-385"""
    await start_with_pool(world)
    await world.waiting(pod("p", {"cpu": "500m"}))
    await settled(world, 1)
    (line,) = world.lines("registered nodeclaim")
    assert line["controller"] == "nodeclaim.lifecycle"
    assert line["controllerKind"] == "NodeClaim"
    assert line["NodeClaim"] == {"name": line["name"]}
    assert line["reconcileID"]
    (created,) = world.lines("created nodeclaim")
    assert created["controller"] == "provisioner"
    assert created["namespace"] == created["name"] == ""
    assert created["reconcileID"]
    started = {line["controller"] for line in world.lines("Starting workers")}
    assert {"nodeclaim.lifecycle", "node.termination", "nodepool.readiness", "provisioner", "disruption"} <= started
