"""Two log lines about pods whose preferences can block consolidation (SCH-672)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from karpenter.scheduling.scheduling_options import PreferencePolicy
from karpenter.settings import Settings
from support.topology_builders import affinity_term, app_pods, pod_anti_affinity_to, spread_over
from support.virtual_cluster import RARE, VirtualCluster, in_virtual_time

APART = "pod(s) have a preferred Anti-Affinity which can prevent consolidation"
SPREAD = "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation"
#: What no pool offers, so that the pods wait on.
NOWHERE = {"node_selector": {"kubernetes.io/arch": "none"}}


def logged_pods(cluster: VirtualCluster, text: str) -> list[str]:
    return [line["pods"] for line in cluster.lines(text)]


async def begin(cluster: VirtualCluster, settings: Settings | None = None) -> None:
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(settings)


@in_virtual_time
async def test_each_pod_is_mentioned_once_a_day(cluster: VirtualCluster) -> None:
    """SCH-672. DIS-438: for each of the two preferences."""
    await begin(cluster, Settings(intervals=RARE))
    await cluster.waiting(*app_pods(1, spread=[spread_over(soft=True)], **NOWHERE))
    await asyncio.sleep(4 * RARE.provisioning_retry.total_seconds())
    assert logged_pods(cluster, SPREAD) == ["default/web-000"]
    await cluster.waiting(*app_pods(1, prefix="late", spread=[spread_over(soft=True)], **NOWHERE))
    await asyncio.sleep(60)
    assert logged_pods(cluster, SPREAD) == ["default/web-000", "default/late-000"]
    await asyncio.sleep((timedelta(days=1) + 2 * RARE.provisioning_retry).total_seconds())
    assert sorted(logged_pods(cluster, SPREAD)) == sorted(["default/web-000", "default/late-000"] * 2)
    assert logged_pods(cluster, APART) == []


@in_virtual_time
async def test_ten_pods_are_named_and_the_others_counted(cluster: VirtualCluster) -> None:
    await begin(cluster)
    await cluster.waiting(*app_pods(12, affinity=pod_anti_affinity_to(preferred=[affinity_term()]), **NOWHERE))
    await asyncio.sleep(5)
    (line,) = logged_pods(cluster, APART)
    assert (line.count("default/"), line.rpartition(" and ")[2]) == (10, "2 other(s)")


@in_virtual_time
async def test_preferences_that_the_policy_ignores_are_not_logged(cluster: VirtualCluster) -> None:
    """SCH-672, policy Ignore"""
    await begin(cluster, Settings(preference_policy=PreferencePolicy.IGNORE))
    await cluster.waiting(
        *app_pods(1, affinity=pod_anti_affinity_to(preferred=[affinity_term()]), spread=[spread_over(soft=True)])
    )
    await asyncio.sleep(5)
    assert (logged_pods(cluster, APART), logged_pods(cluster, SPREAD)) == ([], [])


@in_virtual_time
async def test_requirements_are_not_logged_as_preferences(cluster: VirtualCluster) -> None:
    await begin(cluster)
    await cluster.waiting(*app_pods(1, affinity=pod_anti_affinity_to(affinity_term()), spread=[spread_over()]))
    await asyncio.sleep(5)
    assert (logged_pods(cluster, APART), logged_pods(cluster, SPREAD)) == ([], [])
