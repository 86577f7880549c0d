"""Figures of a real controller on a real control plane, read as Prometheus reads them: over HTTP, while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane
from controlplane.objects import one_of, simulated_class, simulated_pool
from controlplane.process import Controller, controller
from karpenter.api import kinds
from karpenter.kube.client import KubeClient
from support.dashboards import (
    check_every_panel_shows_something,
    check_karpenters_panels_show_something,
    check_no_alert_fires,
    check_overview,
    check_timeline_of_disruptions,
    scrape_now,
)
from support.metrics_scrape import Scrape
from support.rollouts import settled, web

PODS = 24
_DEADLINE_SECONDS = 120.0
_POOL = simulated_pool(
    requirements=[
        one_of("karpenter.sh/capacity-type", "spot", "on-demand"),
        one_of("kubernetes.io/arch", "amd64"),
        one_of("karpenter.k8s.aws/instance-category", "c", "m", "r"),
        {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["9"]},
    ],
    limits={"cpu": "1000", "memory": "4000Gi"},
    disruption={"consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]},
)
_NODE_CLASS = simulated_class()


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(_NODE_CLASS, _POOL)
    return plane


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


def _scrape(running: Controller) -> Scrape:
    return Scrape.of(running.metrics())


def _limits(scrape: Scrape) -> dict[str, float]:
    return scrape.values("karpenter_nodepools_limit", "resource_type", nodepool="default")


async def _started(running: Controller) -> str:
    """All pods run, and the controller has seen it."""
    scraped = await asyncio.to_thread(_scrape, running)
    seen = len(scraped.series("karpenter_pods_state", namespace="default", phase="Running", ready="true"))
    return "" if seen == PODS else f"{seen} of {PODS} pods are seen running"


async def _gone(running: Controller) -> str:
    scraped = await asyncio.to_thread(_scrape, running)
    left = scraped.value("karpenter_cluster_state_node_count")
    return f"{left} nodes are left" if left else ""


async def _names(kube: KubeClient) -> set[str]:
    """Names and uids of every single object there is."""
    listed = [(await kube.list(kind)).items for kind in (kinds.POD, kinds.NODE, kinds.NODE_CLAIM)]
    metas = [obj.metadata for objects in listed for obj in objects]
    return {meta.name for meta in metas} | {meta.uid for meta in metas}


@pytest.mark.cluster
async def test_the_life_of_nodes_as_prometheus_sees_it(plane: ControlPlane, account: Account) -> None:
    """OPS §5 on a real cluster, OPS-M1, OPS-M2, OPS-M5, OPS-M14; the dashboards draw on it (OPS-V3)."""
    with controller(account.kubeconfig) as running:
        running.until(running.is_ready, "become ready")
        running.until(lambda: bool(_limits(_scrape(running))), "report the limits of the NodePool")
        first = _scrape(running)
        timeouts = "karpenter_voluntary_disruption_consolidation_timeouts_total"
        assert first.values(timeouts, "consolidation_type") == {"multi": 0, "single": 0}
        assert first.value("karpenter_cluster_state_synced") == 1
        assert _limits(first) == {
            "cpu": 1000,
            "memory": 4000 * 2**30,
        }
        async with plane.client() as kube:
            await asyncio.to_thread(plane.apply, web(PODS))
            await settled(lambda: _started(running), _DEADLINE_SECONDS)
            busy = await asyncio.to_thread(scrape_now, running)
            pods, nodes = (await kube.list(kinds.POD)).items, (await kube.list(kinds.NODE)).items
            await asyncio.to_thread(check_overview, busy, pods, nodes)
            names = await _names(kube)
            claims = (await kube.list(kinds.NODE_CLAIM)).items
            _check_running(await asyncio.to_thread(_scrape, running), len(claims))
            _check_bounded(await asyncio.to_thread(_scrape, running), names)
            reasons = {event.reason for event in (await kube.list(kinds.EVENT)).items}
            assert {"Launched", "Registered", "Initialized", "Nominated"} <= reasons
            await asyncio.to_thread(plane.apply, web(0))
            await settled(lambda: _gone(running), _DEADLINE_SECONDS)
            _check_over(await asyncio.to_thread(_scrape, running), len(claims))
            over = await asyncio.to_thread(scrape_now, running)
            await asyncio.to_thread(check_timeline_of_disruptions, over, len(claims))
            history = (busy, over, over.unchanged_after(seconds=15))
            await asyncio.to_thread(check_every_panel_shows_something, history)
            await asyncio.to_thread(check_karpenters_panels_show_something, history)
            await asyncio.to_thread(check_no_alert_fires, history)


def _check_running(scraped: Scrape, count: int) -> None:
    own = {"nodepool": "default"}
    assert scraped.total("karpenter_nodeclaims_created_total", reason="provisioned", **own) == count
    assert scraped.total("karpenter_nodes_created_total", **own) == count
    assert scraped.total("karpenter_nodes_total_pod_requests", resource_type="cpu", **own) == PODS / 2
    assert scraped.total("karpenter_nodes_allocatable", resource_type="cpu", **own) >= PODS / 2
    assert 0 < scraped.value("karpenter_cluster_utilization_percent", resource_type="cpu") <= 100
    assert scraped.value("karpenter_pods_startup_duration_seconds_count") == PODS
    assert scraped.value("karpenter_pods_startup_duration_seconds", quantile="0.5") > 0
    assert scraped.total("karpenter_pods_bound_duration_seconds_count") == PODS
    assert scraped.series("karpenter_pods_unbound_time_seconds") == []
    called = {"controller": "nodeclaim.lifecycle", "method": "Create"}
    assert scraped.value("karpenter_cloudprovider_duration_seconds_count", **called) >= count
    assert scraped.total("controller_runtime_reconcile_total", controller="nodeclaim.lifecycle") >= count
    assert scraped.total("controller_runtime_reconcile_panics_total") == 0
    assert scraped.value("workqueue_depth", name="nodeclaim.lifecycle") == 0
    assert scraped.total("client_go_request_total", method="POST", code="201") >= count
    assert scraped.value("process_resident_memory_bytes") > 10e6
    ready = {"type": "Ready", "status": "True"}
    assert len(scraped.series("operator_nodeclaim_status_condition_count", **ready)) == count
    assert len(scraped.series("operator_node_status_condition_count", **ready)) == count
    assert scraped.value("operator_status_condition_count", kind="NodePool", name="default", **ready) == 1


def _check_bounded(scraped: Scrape, names: set[str]) -> None:
    """Only gauges about single objects name any (docs/metrics.md marks them): whatever counts does not grow with them."""
    gauges = ("karpenter_nodes_", "karpenter_pods_", "operator_")
    for name, labels, value in scraped:
        if names & set(labels.values()):
            assert name.startswith(gauges), name
            assert not name.endswith(("_total", "_bucket", "_sum")), (name, value)


def _check_over(scraped: Scrape, count: int) -> None:
    """Everything that was launched has been given back, and no series of it is left."""
    own = {"nodepool": "default"}
    disrupted = {"reason": "empty", "termination_mode": "graceful", **own}
    assert scraped.total("karpenter_nodeclaims_disrupted_total", **disrupted) == count
    assert scraped.total("karpenter_nodeclaims_terminated_total", **own) == count
    assert scraped.total("karpenter_nodes_terminated_total", **own) == count
    assert scraped.total("karpenter_nodes_lifetime_duration_seconds_count", **own) == count
    assert scraped.value("karpenter_nodes_termination_duration_seconds_count", **own) == count
    for name in ("karpenter_nodes_allocatable", "operator_node_status_condition_count"):
        assert scraped.series(name, **own) == []
    assert scraped.value("karpenter_nodepools_usage", resource_type="nodes", **own) == 0
