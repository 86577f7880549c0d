"""The process vanishes in the middle of a step, and a new one goes on: no machine twice, none left over, every pod running.

The controller is cut off right after one of its writes, before it hears the answer, and does not even get to say goodbye. The API
server and the machines live on. The new process knows nothing but what they tell it.
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
from support.world import World, story, until

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


async def begin(world: World, faults: Faults | None = None) -> None:
    world.simulated(faults=faults)
    world.scheduled()
    await world.node_class(node_registration_delay="2s")
    await world.pool(disruption=Disruption(consolidate_after="20s", budgets=(Budget(nodes="100%"),)))
    await world.kube.create(kinds.DEPLOYMENT, deployment("web", REPLICAS))


async def all_running(world: World) -> bool:
    pods = await world.all(kinds.POD)
    return len(pods) == REPLICAS and all(pod.status.phase == "Running" for pod in pods)


async def empty(world: World) -> bool:
    machines = await world.all(kinds.CONFIG_MAP)
    return not machines and not await world.all(kinds.NODE) and not await world.all(kinds.NODE_CLAIM)


async def check_one_machine_per_claim(world: World) -> None:
    claims, nodes = await world.all(kinds.NODE_CLAIM), await world.all(kinds.NODE)
    machines = await world.all(kinds.CONFIG_MAP)
    ids = Counter(claim.status.provider_id for claim in claims)
    assert set(ids.values()) <= {1}
    assert len(machines) == len(claims) == len(nodes)
    assert {node.spec.provider_id for node in nodes} == set(ids)
    for node in nodes:
        assert node.metadata.labels[labels.INITIALIZED] == "true"
        assert labels.TERMINATION_FINALIZER in node.metadata.finalizers


async def grow_and_shrink(world: World, *crashes: int) -> None:
    """Come up, crash after so many writes each time, come to rest; then the same on the way down."""
    await world.start()
    for count in crashes:
        await _crash(world, count)
    await until(lambda: all_running(world), 180)
    await asyncio.sleep(10)
    await check_one_machine_per_claim(world)
    bought = len(await world.all(kinds.CONFIG_MAP))
    assert bought <= REPLICAS // 2
    await world.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")
    for count in crashes:
        await _crash(world, count)
    await until(lambda: empty(world), 400)


async def _crash(world: World, count: int) -> None:
    crashed = world.crash_after(count)
    with suppress(TimeoutError):
        await asyncio.wait_for(crashed.wait(), 60)
    await world.crash()
    await asyncio.sleep(3)
    await world.start()


@pytest.mark.parametrize("count", FEW)
@story
async def test_a_crash_after_any_write_costs_only_time(world: World, count: int) -> None:
    """OPS-012, OPS-123, OPS-211"""
    await begin(world)
    await grow_and_shrink(world, count)


@pytest.mark.soak
@pytest.mark.parametrize("count", range(1, 61))
@story
async def test_a_crash_after_each_of_sixty_writes(world: World, count: int) -> None:
    await begin(world)
    await grow_and_shrink(world, count)


@pytest.mark.parametrize("seed", series([1, 2], 1))
@story
async def test_crash_upon_crash(world: World, seed: int) -> None:
    await begin(world)
    numbers = random.Random(seed)
    await grow_and_shrink(world, *(numbers.randint(1, 30) for _ in range(5)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
@story
async def test_crash_upon_crash_many_times(world: World, seed: int) -> None:
    await begin(world)
    numbers = random.Random(seed)
    await grow_and_shrink(world, *(numbers.randint(1, 60) for _ in range(8)))


@pytest.mark.parametrize("seed", series([1, 2, 3], 3))
@story
async def test_a_bad_day_of_the_api_server_costs_only_time(world: World, seed: int) -> None:
    """Every third write of the controller fails, some of them after they were done."""
    await begin(world)
    await _weather(world, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
@story
async def test_many_bad_days_of_the_api_server(world: World, seed: int) -> None:
    await begin(world)
    await _weather(world, seed)


async def _weather(world: World, seed: int) -> None:
    numbers = random.Random(seed)
    errors: tuple[type[KubeError], ...] = (Conflict, ServerUnavailable, TooManyRequests)

    def maybe(_: Write) -> None:
        if numbers.random() < 1 / 6:
            raise numbers.choice(errors)("bad weather")

    await world.start()
    world.wire.refuse = maybe
    world.wire.after = maybe
    await asyncio.sleep(120)
    world.wire.refuse = world.wire.after = lambda write: None
    await until(lambda: all_running(world), 180)
    await asyncio.sleep(90)
    await check_one_machine_per_claim(world)
    world.wire.refuse = world.wire.after = maybe
    await world.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")
    await asyncio.sleep(120)
    world.wire.refuse = world.wire.after = lambda write: None
    await until(lambda: empty(world), 600)


@story
async def test_a_cloud_short_of_everything_cheap_and_nodes_that_never_join(world: World) -> None:
    """Faults of the cloud, on top of a crash: all pods run in the end."""
    faults = Faults(
        insufficient_capacity=(InsufficientCapacityRule(capacity_type="spot", count=4),),
        registration=(RegistrationRule(never=True, count=1),),
    )
    await begin(world, faults)
    await world.start()
    await _crash(world, 9)
    await until(lambda: all_running(world), 2500, 5)
    await asyncio.sleep(1000)
    await check_one_machine_per_claim(world)


@story
async def test_a_fresh_start_on_a_quiet_cluster_writes_nothing(world: World) -> None:
    """What is right already is left alone: a restart is no event."""
    await begin(world)
    await world.start()
    await until(lambda: all_running(world), 120)
    await asyncio.sleep(60)
    await world.stop()
    await world.start()
    await asyncio.sleep(120)
    assert world.writes() == []
