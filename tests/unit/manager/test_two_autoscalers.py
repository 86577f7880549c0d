"""Two autoscalers on one cluster: each acts on the NodeClaims of its own node classes, and does not see the others' (OPS-002)."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption, NodeClassReference
from karpenter.api.meta import ObjectMeta
from karpenter.manager import Manager, ManagerOptions
from karpenter.providers.decorators import TimeoutProvider
from karpenter.settings import Settings
from support.aws.process import node_class
from support.builders import ANY_CAPACITY, node_pool, pod, replaced
from support.fake_cloud import FakeCloud, Tapped
from support.world import World, story

OTHER_CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
NEVER = Disruption(consolidate_after="Never")


class OtherCloud(FakeCloud):
    """The cloud of the other autoscaler."""

    name = "other"
    node_class_kinds = (kinds.EC2_NODE_CLASS,)  # type: ignore[assignment]


async def other_pool(world: World, name: str) -> None:
    wanted = node_pool(name, (ANY_CAPACITY,), labels={"team": name}, disruption=NEVER)
    spec = replaced(wanted.spec.template.spec, node_class_ref=OTHER_CLASS)
    template = replaced(wanted.spec.template, spec=spec)
    await world.kube.create(
        kinds.NODE_POOL, replaced(wanted, metadata=ObjectMeta(name=name), spec=replaced(wanted.spec, template=template))
    )


async def wanted_by(world: World, team: str, name: str) -> None:
    await world.waiting(pod(name, {"cpu": "1"}, node_selector={"team": team}))


@story
async def test_each_launches_for_its_own_pools_and_keeps_the_others_out_of_its_state(world: World) -> None:
    await world.node_class()
    await world.pool("own", labels={"team": "own"}, disruption=NEVER)
    await other_class(world)
    await other_pool(world, "other")
    await world.start()
    cloud = OtherCloud(world.clock)
    options = ManagerOptions({}, {})
    other = Manager(Tapped(world.kube), TimeoutProvider(cloud), world.clock, Settings(), options)  # type: ignore[arg-type]
    world.also(other.run())
    await asyncio.sleep(1)
    await wanted_by(world, "own", "a")
    await wanted_by(world, "other", "b")
    await asyncio.sleep(30)
    claims = {
        claim.metadata.labels["karpenter.sh/nodepool"]: claim.metadata.name
        for claim in await world.all(kinds.NODE_CLAIM)
    }
    assert claims.keys() == {"own", "other"}
    assert world.manager is not None
    assert [claim.metadata.name for claim in world.manager.state.claims()] == [claims["own"]]
    assert [claim.metadata.name for claim in other.state.claims()] == [claims["other"]]
    assert [about for method, about in world.cloud.calls if method == "create"] == [claims["own"]]
    assert [about for method, about in cloud.calls if method == "create"] == [claims["other"]]


async def other_class(world: World) -> None:
    await world.kube.create(kinds.EC2_NODE_CLASS, node_class())
    await world.set_condition(kinds.EC2_NODE_CLASS, "default", "Ready", "True")


@story
async def test_no_pod_waits_for_the_claim_of_another_autoscaler(world: World) -> None:
    """A pod was nominated to one for an hour while nothing was bought."""
    await world.node_class()
    await world.pool(disruption=NEVER)
    await world.claim("foreign", pool="np", requests={"cpu": "4"}, node_class_ref=OTHER_CLASS)
    await world.start()
    await world.waiting(pod("a", {"cpu": "1"}))
    await asyncio.sleep(10)
    assert len(await world.all(kinds.NODE_CLAIM)) == 2
    assert world.manager is not None
    assert world.manager.state.claim("foreign") is None
    assert "foreign" not in world.manager.state.planned_nodes.values()


@story
async def test_no_pod_waits_for_a_claim_of_an_unknown_pool(world: World) -> None:
    """SCH-072: nor does it count as a node, until its NodePool exists."""
    await world.node_class()
    await world.pool(disruption=NEVER)
    await world.claim("stray", pool="gone", requests={"cpu": "4"})
    await world.start()
    await world.waiting(pod("a", {"cpu": "1"}))
    await asyncio.sleep(10)
    assert world.manager is not None
    state = world.manager.state
    assert "stray" not in state.planned_nodes.values()
    assert len(await world.all(kinds.NODE_CLAIM)) == 2
    assert "stray" not in {node.key for node in state.state_nodes()}
    await world.pool("gone", disruption=NEVER)
    await asyncio.sleep(1)
    assert "stray" in {node.key for node in state.state_nodes()}


@story
async def test_two_managers_of_one_process_share_no_metrics(world: World) -> None:
    kube, cloud = Tapped(world.kube), TimeoutProvider(OtherCloud(world.clock))
    first, second = (Manager(kube, cloud, world.clock, Settings()) for _ in range(2))  # type: ignore[arg-type]
    assert first.context.metrics is not second.context.metrics
