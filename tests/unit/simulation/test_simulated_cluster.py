"""The simulated cluster: production controllers, stand-ins for the rest of Kubernetes, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment
from karpenter.api.karpenter import (
    Budget,
    Disruption,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from karpenter.api.kwok_node_class import KWOKNodeClass, KWOKNodeClassSpec
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_packaged_types
from karpenter.kube.errors import NotFound
from karpenter.settings import Settings
from karpenter.simulation import (
    InstanceEnded,
    InstanceLaunched,
    LoopClock,
    SimulatedCluster,
    SimulationConfig,
    run_virtual,
    running_cluster,
    workload_traces,
)

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings()
NODE_CLASS = KWOKNodeClass(metadata=ObjectMeta(name="default"), spec=KWOKNodeClassSpec(node_registration_delay="20s"))
POOL = NodePool(
    metadata=ObjectMeta(name="default"),
    spec=NodePoolSpec(
        template=NodeClaimTemplate(
            spec=NodeClaimTemplateSpec(
                requirements=(),
                node_class_ref=NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default"),
            )
        ),
        disruption=Disruption(consolidate_after="30s", budgets=(Budget(nodes="100%"),)),
    ),
)


def run_in_virtual_time(
    scenario: Callable[[SimulatedCluster], Coroutine[object, object, T]], settings: Settings = SETTINGS
) -> T:
    """Run a scenario on a simulated cluster in virtual time."""

    async def main(clock: LoopClock) -> T:
        async with running_cluster(
            clock, SimulationConfig(ec2_packaged_types.packaged_instance_types(), settings)
        ) as cluster:
            return await scenario(cluster)

    return run_virtual(main, START)


def services(pod_count: int, seed: int = 1) -> tuple[Deployment, ...]:
    """Services without spread over zones, which has tests of its own."""
    return tuple(_anywhere(deployment) for deployment in workload_traces.microservices(seed, pod_count))


def _anywhere(deployment: Deployment) -> Deployment:
    template = deployment.spec.template
    spec = msgspec.structs.replace(template.spec, topology_spread_constraints=())
    template = msgspec.structs.replace(template, spec=spec)
    return msgspec.structs.replace(deployment, spec=msgspec.structs.replace(deployment.spec, template=template))


async def rise(cluster: SimulatedCluster, pod_count: int) -> tuple[Deployment, ...]:
    """Pools, agents and services; until every pod runs."""
    wanted = services(pod_count)
    await cluster.create(NODE_CLASS, POOL, *workload_traces.daemon_sets(), *wanted)
    assert await cluster.wait_until(lambda: cluster.counts().pods == pod_count and cluster.counts().all_ready, 600)
    return wanted


@pytest.mark.parametrize("nominate", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_three_hundred_pods_run_and_when_they_leave_nothing_is_left_that_costs_money(nominate: bool) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        wanted = await rise(cluster, 300)
        pods = (await cluster.kube.list(kinds.POD, "default")).items
        assert [pod.status.phase for pod in pods] == ["Running"] * 300
        for deployment in wanted:
            await cluster.scale(deployment.metadata.name, 0)
        assert await cluster.wait_until(lambda: cluster.counts().is_empty, 600)
        await asyncio.sleep(60)
        for kind in (kinds.POD, kinds.NODE, kinds.NODE_CLAIM):
            assert (await cluster.kube.list(kind)).items == ()
        assert await cluster.cloud.list() == ()

    run_in_virtual_time(scenario, replace(SETTINGS, nominate_pods=nominate))


def test_the_same_seed_launches_the_same_instances_and_binds_the_same_pods() -> None:
    async def scenario(cluster: SimulatedCluster) -> tuple[object, ...]:
        await rise(cluster, 120)
        claims = (await cluster.kube.list(kinds.NODE_CLAIM)).items
        pods = (await cluster.kube.list(kinds.POD)).items
        bound = {pod.metadata.name: pod.spec.node_name for pod in pods}
        return [msgspec.json.encode(claim) for claim in claims], bound, cluster.history.notices

    assert run_in_virtual_time(scenario) == run_in_virtual_time(scenario)


def test_the_history_has_every_instance_with_its_node_and_its_price() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        wanted = await rise(cluster, 60)
        rate = cluster.history.meter.rate_usd_per_hour(cluster.clock.now())
        assert rate == pytest.approx(sum(record.price_per_hour for record in cluster.history.billed_instances.values()))
        assert {record.node_name for record in cluster.history.billed_instances.values()} == {
            node.metadata.name for node in (await cluster.kube.list(kinds.NODE)).items
        }
        for deployment in wanted:
            await cluster.scale(deployment.metadata.name, 0)
        assert await cluster.wait_until(lambda: cluster.counts().is_empty, 600)
        launched = [notice for notice in cluster.history.notices if isinstance(notice, InstanceLaunched)]
        ended = [notice for notice in cluster.history.notices if isinstance(notice, InstanceEnded)]
        assert sum(instance_launched.pod_count for instance_launched in launched) == 60
        assert {instance_launched.record.node_name for instance_launched in launched} == {
            instance_ended.record.node_name for instance_ended in ended
        }
        assert {instance_ended.reason for instance_ended in ended} == {"Empty"}
        hours = [
            (last.at - first.at).total_seconds() / 3600 * first.record.price_per_hour
            for first in launched
            for last in ended
            if first.record.node_name == last.record.node_name
        ]
        assert cluster.history.meter.cost_usd(START, cluster.clock.now()) == pytest.approx(sum(hours))
        assert cluster.history.pod_times.time_to_ready().count == 60
        assert cluster.history.pod_times.never_ready() == ()

    run_in_virtual_time(scenario)


def test_waiting_for_what_never_comes_ends_in_time() -> None:
    async def scenario(cluster: SimulatedCluster) -> float:
        before = cluster.clock.now()
        assert not await cluster.wait_until(lambda: cluster.counts().nodes > 0, 90)
        return (cluster.clock.now() - before).total_seconds()

    assert 90 <= run_in_virtual_time(scenario) <= 91


def test_an_error_in_a_test_is_raised_unchanged() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.scale("nobody", 1)

    with pytest.raises(NotFound, match="nobody"):
        run_in_virtual_time(scenario)


def test_a_cluster_that_lost_half_its_pods_early_gives_nodes_back_before_their_fifth_minute() -> None:
    """In the profile lean, with ``consolidateAfter: 10s``: nodes with pods, which the default minimum age does not hold."""
    pool = msgspec.structs.replace(
        POOL,
        spec=msgspec.structs.replace(
            POOL.spec, disruption=Disruption(consolidate_after="10s", budgets=(Budget(nodes="100%"),))
        ),
    )

    async def scenario(cluster: SimulatedCluster) -> list[str]:
        wanted = services(80)
        await cluster.create(NODE_CLASS, pool, *wanted)
        assert await cluster.wait_until(lambda: cluster.counts().pods == 80 and cluster.counts().all_ready, 600)
        await asyncio.sleep(120)
        for deployment in wanted:
            await cluster.scale(deployment.metadata.name, (deployment.spec.replicas or 0) // 2)
        await asyncio.sleep(90)
        return [notice.reason for notice in cluster.history.notices if isinstance(notice, InstanceEnded)]

    assert "Underutilized" in run_in_virtual_time(scenario)
