"""Gauges about Nodes and NodePools: current values, and removed with their objects."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.core import ResourceRequirements
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.api.meta import Condition
from karpenter.model import labels
from karpenter.providers.contract import ProviderError
from support.builders import NOW, claim, container, node, node_and_claim, node_pool, owner, pod, replaced
from support.observed_cluster import ObservedCluster

ZONED = {labels.ZONE: "z1", labels.REGION: "r", labels.ARCH: "amd64", labels.OS: "linux", labels.CAPACITY_TYPE: "spot"}
NODE_GAUGES = (
    "karpenter_nodes_allocatable",
    "karpenter_nodes_total_pod_requests",
    "karpenter_nodes_total_pod_limits",
    "karpenter_nodes_total_daemon_requests",
    "karpenter_nodes_total_daemon_limits",
    "karpenter_nodes_system_overhead",
)


def daemon_pod(name: str, **fields: object):
    return pod(name, meta={"owner_references": (owner("DaemonSet", "logs"),)}, **fields)


def test_what_a_node_offers_and_what_its_pods_ask_for() -> None:
    """OPS-M2, OPS-425, OPS-427"""
    seen = ObservedCluster()
    one, its_claim = node_and_claim("n", {"cpu": "4", "memory": "8Gi"}, labels=ZONED)
    seen.put(
        replaced(one, status=replaced(one.status, capacity={"cpu": "4200m", "memory": "9Gi", "pods": 110})),
        its_claim,
        daemon_pod("d", node_name="n", containers=(container({"cpu": "1"}, limits={"cpu": "1500m"}),)),
        pod("p", node_name="n", containers=(container({"cpu": "2"}, limits={"cpu": "3", "memory": "1Gi"}),)),
    )
    scrape = seen.scrape()
    cpu = {name: scrape.value(name, node_name="n", resource_type="cpu") for name in NODE_GAUGES}
    assert cpu == dict(zip(NODE_GAUGES, (4, 3, 4.5, 1, 1.5, 0.2), strict=True))
    assert scrape.value("karpenter_nodes_total_pod_limits", resource_type="memory") == 2**30
    assert scrape.value("karpenter_nodes_system_overhead", resource_type="memory") == 2**30
    assert scrape.value("karpenter_nodes_total_pod_requests", resource_type="pods") == 2
    assert scrape.value("karpenter_cluster_utilization_percent", resource_type="cpu") == 75


def test_finished_pods_ask_for_nothing() -> None:
    seen = ObservedCluster()
    seen.put(*node_and_claim("n", {"cpu": "4"}), pod("p", {"cpu": "2"}, node_name="n", status={"phase": "Succeeded"}))
    assert seen.scrape().series("karpenter_nodes_total_pod_requests", resource_type="cpu") == []


def test_resources_are_named_as_series_name_them() -> None:
    """OPS-404"""
    seen = ObservedCluster()
    seen.put(node("n", {"cpu": "1500m", "ephemeral-storage": "20Gi", "nvidia.com/GPU-2": 2}))
    assert seen.scrape().values("karpenter_nodes_allocatable", "resource_type") == {
        "cpu": 1.5,
        "ephemeral_storage": 20 * 2**30,
        "nvidia.com/gpu_2": 2,
        "pods": 110,
    }


def test_a_nodes_series_carry_its_well_known_labels() -> None:
    """OPS-428"""
    seen = ObservedCluster()
    declared = {"karpenter.kwok.sh/instance-size": "4xlarge", "karpenter.k8s.aws/instance-gpu-name": "t4"}
    seen.put(*node_and_claim("n", {"cpu": "4"}, labels={**ZONED, **declared, "team": "a", "example.com/zone": "no"}))
    (series_labels,) = seen.scrape().series("karpenter_nodes_allocatable", resource_type="cpu")
    assert series_labels == {
        "node_name": "n",
        "nodepool": "np",
        "phase": "",
        "managed": "true",
        "zone": "z1",
        "region": "r",
        "instance_type": "some",
        "arch": "amd64",
        "os": "linux",
        "capacity_type": "spot",
        "windows_build": "",
        "instance_size": "4xlarge",
        "instance_gpu_name": "t4",
        "resource_type": "cpu",
    }


def test_of_two_labels_of_one_name_always_the_same_counts() -> None:
    seen = ObservedCluster()
    both = {"karpenter.kwok.sh/instance-memory": "16Gi", "karpenter.k8s.aws/instance-memory": "16384"}
    seen.put(node("n", {"cpu": "1"}, labels=both), node("m", {"cpu": "1"}, labels=dict(reversed(both.items()))))
    series = seen.scrape().series("karpenter_nodes_allocatable", resource_type="cpu")
    assert {series_labels["instance_memory"] for series_labels in series} == {"16384"}


def test_series_of_an_earlier_label_value_are_gone() -> None:
    """OPS-M3, OPS-403"""
    seen = ObservedCluster()
    one, its_claim = node_and_claim("n", {"cpu": "4"}, labels=ZONED)
    seen.put(one, its_claim)
    moved = replaced(one, metadata=replaced(one.metadata, labels={**one.metadata.labels, labels.ZONE: "z2"}))
    seen.put(moved)
    scrape = seen.scrape()
    assert {series_labels["zone"] for series_labels in scrape.series("karpenter_nodes_allocatable")} == {"z2"}
    assert 'zone="z1"' not in scrape.text


def test_an_unmanaged_node_is_shown_as_such() -> None:
    """OPS-M4"""
    seen = ObservedCluster()
    seen.put(node("n", {"cpu": "4"}))
    (series_labels,) = seen.scrape().series("karpenter_nodes_allocatable", resource_type="cpu")
    assert (series_labels["managed"], series_labels["nodepool"]) == ("false", "")


def test_nothing_is_left_of_a_node_that_is_gone() -> None:
    """OPS-403"""
    seen = ObservedCluster()
    one, its_claim = node_and_claim("n", {"cpu": "4"})
    seen.put(one, its_claim)
    assert 'node_name="n"' in seen.scrape().text
    seen.gone(one, its_claim)
    assert '"n"' not in seen.scrape().text


def test_a_claim_without_a_node_has_no_series_of_a_node() -> None:
    seen = ObservedCluster()
    seen.put(node_pool(), claim("c", {"cpu": "4"}))
    scrape = seen.scrape()
    assert scrape.series("karpenter_nodes_allocatable") == []
    assert scrape.value("karpenter_cluster_state_node_count") == 1


def test_a_node_shows_its_age_and_counts_it_when_it_goes() -> None:
    """OPS-422, OPS-426"""
    seen = ObservedCluster()
    one, its_claim = node_and_claim("n", {"cpu": "4"})
    born = replaced(one, metadata=replaced(one.metadata, creation_timestamp=NOW - timedelta(hours=3)))
    seen.put(born, its_claim)
    assert seen.scrape().value("karpenter_nodes_current_lifetime_seconds", node_name="n") == 3 * 3600
    seen.passes(3600)
    seen.gone(born)
    scrape = seen.scrape()
    assert scrape.value("karpenter_nodes_lifetime_duration_seconds_sum", nodepool="np") == 4 * 3600
    assert scrape.value("karpenter_nodes_lifetime_duration_seconds_bucket", nodepool="np", le="7200.0") == 0
    assert scrape.value("karpenter_nodes_lifetime_duration_seconds_bucket", nodepool="np", le="14400.0") == 1


def test_the_age_of_a_node_without_a_nodeclaim_is_not_counted() -> None:
    seen = ObservedCluster()
    one = node("n", {"cpu": "4"})
    one = replaced(one, metadata=replaced(one.metadata, creation_timestamp=NOW))
    seen.put(one)
    seen.gone(one)
    assert seen.scrape().series("karpenter_nodes_lifetime_duration_seconds_count") == []


def test_limits_count_what_runs_together_and_init_containers_alone() -> None:
    """SCH-195 for limits"""
    seen = ObservedCluster()
    sidecar = container(limits={"cpu": "1"}, restart_policy="Always")
    heavy = container(limits={"cpu": "5"})
    own = (container(limits={"cpu": "2"}), container(limits={"cpu": "1"}))
    seen.put(
        node("n", {"cpu": "8"}),
        pod("p", node_name="n", init_containers=(sidecar, heavy), containers=own, overhead={"cpu": "1", "memory": "1"}),
    )
    scrape = seen.scrape().values("karpenter_nodes_total_pod_limits", "resource_type")
    assert scrape == {"cpu": 7, "pods": 1}


def test_pod_level_limits_replace_those_of_containers() -> None:
    seen = ObservedCluster()
    whole = ResourceRequirements(limits={"cpu": "3"})
    seen.put(
        node("n", {"cpu": "8"}),
        pod("p", node_name="n", containers=(container(limits={"cpu": "1"}),), resources=whole),
    )
    assert seen.scrape().value("karpenter_nodes_total_pod_limits", resource_type="cpu") == 3


def test_limits_that_cannot_be_read_count_for_nothing_and_spoil_nothing() -> None:
    seen = ObservedCluster()
    seen.put(
        node("n", {"cpu": "8"}),
        pod("p", node_name="n", containers=(container({"cpu": "1"}, limits={"cpu": "lots"}),)),
        pod("q", node_name="n", containers=(container({"cpu": "1"}, limits={"cpu": "2"}),)),
    )
    assert seen.scrape().value("karpenter_nodes_total_pod_limits", resource_type="cpu") == 2


# -- pools ----------------------------------------------------------------------------------------------------------------


def test_a_pool_shows_its_limits_and_what_it_uses() -> None:
    """OPS-M1, OPS-430"""
    seen = ObservedCluster()
    pool = node_pool(limits={"cpu": "10", "memory": "10Gi", "nvidia.com/gpu": 2})
    used: NodePool = replaced(pool, status=replaced(pool.status, resources={"cpu": "2500m", "nodes": "3"}))
    seen.put(used)
    scrape = seen.scrape()
    assert scrape.values("karpenter_nodepools_limit", "resource_type", nodepool="np") == {
        "cpu": 10,
        "memory": 10 * 2**30,
        "nvidia.com/gpu": 2,
    }
    assert scrape.values("karpenter_nodepools_usage", "resource_type", nodepool="np") == {"cpu": 2.5, "nodes": 3}
    seen.put(replaced(used, spec=replaced(used.spec, limits={"cpu": "20"})))
    assert seen.scrape().values("karpenter_nodepools_limit", "resource_type", nodepool="np") == {"cpu": 20}
    seen.gone(used)
    assert 'nodepool="np"' not in seen.scrape().text


def test_a_limit_that_cannot_be_read_is_left_out() -> None:
    seen = ObservedCluster()
    seen.put(node_pool(limits={"cpu": "many", "memory": "1Gi"}))
    assert seen.scrape().values("karpenter_nodepools_limit", "resource_type") == {"memory": 2**30}


def test_a_pool_shows_what_its_budgets_allow_and_what_they_are_spent_on() -> None:
    """K15-453: in lower case; K15-206: a node that is only down counts for all but repair.

    OPS-433, OPS-434, DIS-145, DIS-146, DIS-417; DIS-418, 148: both gauges are set for every reason."""
    seen = ObservedCluster()
    budgets = (Budget(nodes="50%"), Budget(nodes="1", reasons=("Drifted",)))
    seen.put(node_pool(disruption=Disruption(budgets=budgets)))
    for name in "abcd":
        seen.put(*node_and_claim(name, {"cpu": "4"}))
    seen.put(*node_and_claim("starting", {"cpu": "4"}, initialized=False))
    tired, its_claim = node_and_claim("e", {"cpu": "4"})
    down = replaced(tired.status, conditions=(Condition(type="Ready", status="Unknown"),))
    seen.put(replaced(tired, status=down), its_claim, *node_and_claim("f", {"cpu": "4"}, deleted=True))
    scrape = seen.scrape()
    assert scrape.values("karpenter_nodepools_allowed_disruptions", "reason", nodepool="np") == {
        "empty": 3,
        "underutilized": 3,
        "drifted": 1,
        "unhealthy": 3,
    }
    consuming = scrape.values("karpenter_nodepools_nodes_consuming_budgets", "reason", nodepool="np")
    assert consuming == {"empty": 2, "underutilized": 2, "drifted": 2, "unhealthy": 1}


SOLD = {labels.INSTANCE_TYPE: "small", labels.ZONE: "z1", labels.CAPACITY_TYPE: "spot"}
#: What fixture STD asks for two CPU and 2 GiB.
SMALL_PRICE = 0.2 + 0.1 * 2 * 2**30 / 1e9


async def test_a_pool_costs_what_its_nodes_cost() -> None:
    """OPS-122, OPS-431"""
    seen = ObservedCluster()
    seen.put(node_pool(), node_pool("idle"))
    for name in "ab":
        seen.put(claim(name, {"cpu": "2"}, labels=SOLD, provider_id=f"p://{name}"))
    seen.put(claim("in-flight", labels=SOLD))
    assert seen.scrape().series("karpenter_nodepools_cost_total") == []
    await seen.refresh()
    scrape = seen.scrape()
    assert scrape.value("karpenter_nodepools_cost_total", nodepool="np") == pytest.approx(2 * SMALL_PRICE, abs=1e-6)
    assert scrape.value("karpenter_nodepools_cost_total", nodepool="idle") == 0
    seen.gone(claim("a"))
    assert seen.scrape().value("karpenter_nodepools_cost_total", nodepool="np") == pytest.approx(SMALL_PRICE, abs=1e-6)
    assert scrape.series("karpenter_nodepools_cost_tracker_errors_total") == []


async def test_a_node_whose_offering_is_gone_is_counted_once() -> None:
    """OPS-432"""
    seen = ObservedCluster()
    strange = claim("c", labels={**SOLD, labels.ZONE: "moon"}, provider_id="p://c")
    seen.put(node_pool(), strange, claim("launching"))
    for _ in range(3):
        await seen.refresh()
    scrape = seen.scrape()
    assert scrape.value("karpenter_nodepools_cost_tracker_errors_total", nodepool="np") == 1
    assert scrape.value("karpenter_nodepools_cost_total", nodepool="np") == 0
    seen.gone(strange)
    seen.put(strange)
    await seen.refresh()
    assert seen.scrape().value("karpenter_nodepools_cost_tracker_errors_total", nodepool="np") == 2


async def test_a_cloud_that_fails_leaves_the_price_unknown_and_nothing_else() -> None:
    seen = ObservedCluster()
    seen.provider.error = ProviderError("out of order")
    seen.put(node_pool(limits={"cpu": "1"}), claim("c", labels=SOLD, provider_id="p://c"))
    await seen.refresh()
    scrape = seen.scrape()
    assert scrape.series("karpenter_nodepools_cost_total") == []
    assert scrape.series("karpenter_nodepools_cost_tracker_errors_total") == []
    assert scrape.value("karpenter_nodepools_limit", nodepool="np") == 1


def test_the_picture_says_how_many_nodes_it_has_and_whether_it_is_complete() -> None:
    """OPS-464"""
    seen = ObservedCluster()
    seen.put(node_pool("np"), *node_and_claim("n", {"cpu": "1"}), claim("c"), node("foreign", {"cpu": "1"}))
    scrape = seen.scrape()
    assert scrape.value("karpenter_cluster_state_node_count") == 3
    assert scrape.value("karpenter_cluster_state_synced") == 1
    assert scrape.value("karpenter_cluster_state_unsynced_time_seconds") == 0
    seen.lacking = "waiting for pods"
    assert seen.scrape().value("karpenter_cluster_state_synced") == 0
    seen.passes(40)
    assert seen.scrape().value("karpenter_cluster_state_unsynced_time_seconds") == 40
    seen.lacking = ""
    assert seen.scrape().value("karpenter_cluster_state_unsynced_time_seconds") == 0


def test_a_process_that_never_saw_everything_lacks_it_since_its_start() -> None:
    seen = ObservedCluster()
    seen.lacking = "waiting for pods"
    seen.passes(25)
    assert seen.scrape().value("karpenter_cluster_state_unsynced_time_seconds") == 25
    assert seen.clock.now() > NOW
