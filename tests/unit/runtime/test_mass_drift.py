"""A whole NodePool drifts: while launches fail, and while office hours close its budgets."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import LaunchErrorRule, RegistrationRule
from support.drift_cases import all_running, drift, errors, is_renewed, launches, start_pool, watch_pods
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

PODS = 16
QUARTER = Budget(nodes="25%")
#: Closed from half past midnight to half past two; tests begin at midnight.
OFFICE_HOURS = Budget(nodes="0", schedule="30 0 * * *", duration="2h")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(launch_errors=(LaunchErrorRule(count=3),)), id="launches fail"),
        pytest.param(Faults(registration=(RegistrationRule(never=True, count=2),)), id="two never register"),
        pytest.param(Faults(registration=(RegistrationRule(delay="12m"),)), id="all are slow", marks=pytest.mark.soak),
    ],
)
@in_virtual_time
async def test_mass_drift_completes_in_spite_of_failed_launches_and_closed_budgets(
    cluster: VirtualCluster, faults: Faults
) -> None:
    """DIS-230, DIS-314: what fails is tried again, no pod leaves before its place is there, and budgets hold."""
    nodes = await start_pool(cluster, pods=PODS, disruption=Disruption(consolidate_after="30s", budgets=(QUARTER,)))
    fewest_ready, most_claims = [PODS], [0]
    cluster.also(watch_pods(cluster, fewest_ready, most_claims))
    cluster.simulated_provider.set_faults(faults)
    await drift(cluster)
    await until(lambda: is_renewed(cluster), 4 * 3600, 10)
    assert await all_running(cluster, PODS)
    # A percentage is of all nodes, replacements included; nodes whose instance terminates do not count as disrupted.
    at_once = 3
    assert fewest_ready[0] >= PODS - at_once * (PODS // nodes)
    assert most_claims[0] <= nodes + 2 * at_once
    assert launches(cluster) <= 2 * nodes + 3


@in_virtual_time
async def test_a_pool_that_drifts_in_office_hours_is_replaced_after_them(cluster: VirtualCluster) -> None:
    """DIS-140, DIS-147: nothing moves while the budget is closed; what has begun before comes to its end."""
    open_hours = Disruption(consolidate_after="30s", budgets=(QUARTER, OFFICE_HOURS))
    nodes = await start_pool(cluster, disruption=open_hours)
    before = {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}
    await asyncio.sleep(timedelta(minutes=31).total_seconds() - cluster.elapsed)
    await drift(cluster)
    await asyncio.sleep(timedelta(minutes=149).total_seconds() - cluster.elapsed)
    assert {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)} == before
    await until(lambda: is_renewed(cluster), 1800, 5)
    assert launches(cluster) == 2 * nodes
    assert errors(cluster) == []
