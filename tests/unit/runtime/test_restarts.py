"""The process vanishes in the middle of a step, and a new one goes on: no instance twice, none left over, every pod running.

The controller is cut off right after one of its writes, before it hears the answer, and does not even get to say goodbye. The API
server and the instances live on. The new process knows nothing but what they tell it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.kube.errors import Conflict, KubeError, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import InsufficientCapacityRule, RegistrationRule
from support.builders import container
from support.examples import series
from support.fake_cloud import Write
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

FEW = (1, 2, 5, 8, 11, 17, 25)
REPLICAS = 12


def deployment(name: str, replicas: int) -> Deployment:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}),
        spec=PodSpec(containers=(container({"cpu": "1500m", "memory": "512Mi"}),)),
    )
    selector = LabelSelector(match_labels={"app": name})
    return Deployment(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ReplicatedSpec(replicas=replicas, selector=selector, template=template),
    )


async def begin(cluster: VirtualCluster, faults: Faults | None = None) -> None:
    cluster.simulated(faults=faults)
    cluster.scheduled()
    await cluster.node_class(node_registration_delay="2s")
    await cluster.pool(disruption=Disruption(consolidate_after="20s", budgets=(Budget(nodes="100%"),)))
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", REPLICAS))


async def all_running(cluster: VirtualCluster) -> bool:
    pods = await cluster.all(kinds.POD)
    return len(pods) == REPLICAS and all(pod.status.phase == "Running" for pod in pods)


async def empty(cluster: VirtualCluster) -> bool:
    instances = await cluster.all(kinds.CONFIG_MAP)
    return not instances and not await cluster.all(kinds.NODE) and not await cluster.all(kinds.NODE_CLAIM)


async def check_one_instance_per_claim(cluster: VirtualCluster) -> None:
    claims, nodes = await cluster.all(kinds.NODE_CLAIM), await cluster.all(kinds.NODE)
    instances = await cluster.all(kinds.CONFIG_MAP)
    ids = Counter(claim.status.provider_id for claim in claims)
    assert set(ids.values()) <= {1}
    assert len(instances) == len(claims) == len(nodes)
    assert {node.spec.provider_id for node in nodes} == set(ids)
    for node in nodes:
        assert node.metadata.labels[labels.INITIALIZED] == "true"
        assert labels.TERMINATION_FINALIZER in node.metadata.finalizers


async def grow_and_shrink(cluster: VirtualCluster, *crashes: int) -> None:
    """Come up, crash after so many writes each time, come to rest; then the same on the way down."""
    await cluster.start()
    for count in crashes:
        await _crash(cluster, count)
    await until(lambda: all_running(cluster), 180)
    await asyncio.sleep(10)
    await check_one_instance_per_claim(cluster)
    launched = len(await cluster.all(kinds.CONFIG_MAP))
    assert launched <= REPLICAS // 2
    await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")
    for count in crashes:
        await _crash(cluster, count)
    await until(lambda: empty(cluster), 400)


async def _crash(cluster: VirtualCluster, count: int) -> None:
    crashed = cluster.crash_after(count)
    with suppress(TimeoutError):
        await asyncio.wait_for(crashed.wait(), 60)
    await cluster.crash()
    await asyncio.sleep(3)
    await cluster.start()


@pytest.mark.parametrize("count", FEW)
@in_virtual_time
async def test_a_crash_after_any_write_costs_only_time(cluster: VirtualCluster, count: int) -> None:
    """OPS-012, OPS-123, OPS-211"""
    await begin(cluster)
    await grow_and_shrink(cluster, count)


@pytest.mark.soak
@pytest.mark.parametrize("count", range(1, 61))
@in_virtual_time
async def test_a_crash_after_each_of_sixty_writes(cluster: VirtualCluster, count: int) -> None:
    await begin(cluster)
    await grow_and_shrink(cluster, count)


@pytest.mark.parametrize("seed", series([1, 2], 1))
@in_virtual_time
async def test_crash_upon_crash(cluster: VirtualCluster, seed: int) -> None:
    await begin(cluster)
    numbers = random.Random(seed)
    await grow_and_shrink(cluster, *(numbers.randint(1, 30) for _ in range(5)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
@in_virtual_time
async def test_crash_upon_crash_many_times(cluster: VirtualCluster, seed: int) -> None:
    await begin(cluster)
    numbers = random.Random(seed)
    await grow_and_shrink(cluster, *(numbers.randint(1, 60) for _ in range(8)))


@pytest.mark.parametrize("seed", series([1, 2, 3], 3))
@in_virtual_time
async def test_a_bad_day_of_the_api_server_costs_only_time(cluster: VirtualCluster, seed: int) -> None:
    """Every third write of the controller fails, some of them after they were done."""
    await begin(cluster)
    await _weather(cluster, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
@in_virtual_time
async def test_many_bad_days_of_the_api_server(cluster: VirtualCluster, seed: int) -> None:
    await begin(cluster)
    await _weather(cluster, seed)


async def _weather(cluster: VirtualCluster, seed: int) -> None:
    numbers = random.Random(seed)
    errors: tuple[type[KubeError], ...] = (Conflict, ServerUnavailable, TooManyRequests)

    def maybe(_: Write) -> None:
        if numbers.random() < 1 / 6:
            raise numbers.choice(errors)("bad weather")

    await cluster.start()
    cluster.connection.refuse = maybe
    cluster.connection.after = maybe
    await asyncio.sleep(120)
    cluster.connection.refuse = cluster.connection.after = lambda write: None
    await until(lambda: all_running(cluster), 180)
    await asyncio.sleep(90)
    await check_one_instance_per_claim(cluster)
    cluster.connection.refuse = cluster.connection.after = maybe
    await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")
    await asyncio.sleep(120)
    cluster.connection.refuse = cluster.connection.after = lambda write: None
    await until(lambda: empty(cluster), 600)


@in_virtual_time
async def test_a_cloud_short_of_everything_cheap_and_nodes_that_never_join(cluster: VirtualCluster) -> None:
    """Faults of the cloud, on top of a crash: all pods run in the end."""
    faults = Faults(
        insufficient_capacity=(InsufficientCapacityRule(capacity_type="spot", count=4),),
        registration=(RegistrationRule(never=True, count=1),),
    )
    await begin(cluster, faults)
    await cluster.start()
    await _crash(cluster, 9)
    await until(lambda: all_running(cluster), 2500, 5)
    await asyncio.sleep(1000)
    await check_one_instance_per_claim(cluster)


@in_virtual_time
async def test_a_fresh_start_on_a_quiet_cluster_writes_nothing(cluster: VirtualCluster) -> None:
    """What is right already is left alone: a restart is no event."""
    await begin(cluster)
    await cluster.start()
    await until(lambda: all_running(cluster), 120)
    await asyncio.sleep(60)
    await cluster.stop()
    await cluster.start()
    await asyncio.sleep(120)
    assert cluster.writes() == []
