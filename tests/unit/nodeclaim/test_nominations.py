"""Nominations and a scheduler that takes them back (the journey of a pending pod, step 5).

A pod that is tried while the node it is nominated to is closed loses the nomination, and nobody keeps its room free any more.
"""

from __future__ import annotations

import asyncio

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Pod, PodStatus
from karpenter.api.meta import OwnerReference
from karpenter.model import labels
from support.builders import pods
from support.fake_cloud import Write
from support.world import World, story

_TAKEN = {"status": {"nominatedNodeName": None}}


async def two_claims(world: World) -> dict[str, str]:
    """Two pods planned for a claim each, whose instances are launched and have not joined: claims by pod."""
    world.cloud.capacity = {"cpu": "8", "memory": "16Gi", "pods": "40"}
    await world.node_class()
    await world.pool()
    await world.start()
    await world.waiting(*pods(2, {"cpu": "5"}))
    await asyncio.sleep(1.5)
    assert world.manager is not None
    planned = world.manager.state.planned_nodes
    two_claims = {pod.metadata.name: planned[pod.metadata.uid] for pod in await world.all(kinds.POD)}
    assert len({*two_claims.values()}) == 2
    return two_claims


def bare(pod: Pod) -> Pod:
    """The pod as it is created: nobody has said anything of it."""
    meta = msgspec.structs.replace(pod.metadata, uid="", creation_timestamp=None)
    return msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase="Pending"))


async def one_of_two_siblings_tried(world: World, registration_delay: str) -> Pod:
    """Two pods of one workload, planned for a simulated instance; the second, which the scheduler has not tried."""
    world.simulated()
    await world.node_class(node_registration_delay=registration_delay)
    await world.pool()
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
    tried, untried = pods(2, {"cpu": "1"}, meta={"owner_references": (owner,)})
    await world.kube.create(kinds.POD, bare(untried))
    await world.start()
    await world.waiting(tried)
    return untried


async def take(world: World, name: str) -> None:
    """The scheduler finds no place for the pod, and takes its nomination away."""
    await world.kube.patch(kinds.POD, name, _TAKEN, "default", subresource="status")


async def nominated(world: World, name: str) -> str:
    return (await world.kube.get(kinds.POD, name, "default")).status.nominated_node_name


async def is_open(world: World, name: str) -> bool:
    taints = (await world.get_node(name)).spec.taints
    return all(taint.key != labels.UNREGISTERED_TAINT.key for taint in taints)


@story
async def test_nodes_of_one_plan_that_join_within_moments_open_together(world: World) -> None:
    claims = await two_claims(world)
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(0.8)
    assert await nominated(world, "pod-000") == "node-0"
    assert not await is_open(world, "node-0")
    await world.join(claims["pod-001"], "node-1")
    await asyncio.sleep(0.1)  # nobody is to come after it
    assert await is_open(world, "node-0")
    assert await is_open(world, "node-1")


@story
async def test_while_its_node_starts_a_pod_is_nominated_once_the_scheduler_has_tried_it(world: World) -> None:
    """The scheduler takes nominations from pods it tries before their node opens: one written earlier would be lost."""
    untried = await one_of_two_siblings_tried(world, "60s")
    await asyncio.sleep(5)
    node = await nominated(world, "pod-000")
    assert node
    assert await nominated(world, "pod-001") == ""
    mark = {"status": msgspec.to_builtins(untried.status)}
    await world.kube.patch(kinds.POD, "pod-001", mark, "default", subresource="status")
    await asyncio.sleep(0.1)
    assert await nominated(world, "pod-001") == node


@story
async def test_a_nomination_that_is_lost_while_its_node_starts_is_not_written_again_with_each_try(world: World) -> None:
    """The next try would take it again, and nominations to closed nodes make tries expensive."""
    await one_of_two_siblings_tried(world, "60s")
    await asyncio.sleep(5)
    assert await nominated(world, "pod-000")
    before = len(world.wire.writes)
    for number in range(4):
        message = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/{number} nodes"}
        failed = {"status": {"nominatedNodeName": None, "conditions": [message]}}
        await world.kube.patch(kinds.POD, "pod-000", failed, "default", subresource="status")
        await asyncio.sleep(0.1)
    assert [str(write) for write in world.wire.writes[before:] if write.kind == "Pod"] == []
    await asyncio.sleep(60)
    (node,) = await world.all(kinds.NODE)
    assert await nominated(world, "pod-000") == node.metadata.name
    assert await is_open(world, node.metadata.name)


@story
async def test_nodes_that_no_pod_was_planned_for_do_not_keep_others_closed(world: World) -> None:
    claims = await two_claims(world)
    for number in range(4):
        await world.claim(f"spare-{number}", pool="np")
    await asyncio.sleep(2)
    await world.join(claims["pod-000"], "node-0")
    for number in range(4):
        await asyncio.sleep(0.4)
        await world.join(f"spare-{number}")
    assert await is_open(world, "node-0")
    assert await is_open(world, "node-spare-0")


@story
async def test_an_untried_pod_is_nominated_before_its_node_opens(world: World) -> None:
    await one_of_two_siblings_tried(world, "5s")
    await asyncio.sleep(10)
    first = await nominated(world, "pod-000")
    assert first
    assert await nominated(world, "pod-001") == first
    assert await is_open(world, first)
    written = [(write.kind, write.name) for write in world.wire.writes]
    opened = max(number for number, write in enumerate(written) if write == ("Node", first))
    assert opened > written.index(("Pod", "pod-001"), written.index(("Pod", "pod-000")))


@story
async def test_a_node_waits_for_those_that_join_later_no_more_than_a_moment(world: World) -> None:
    claims = await two_claims(world)
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.2)
    assert await is_open(world, "node-0")
    await world.join(claims["pod-001"], "node-1")
    await asyncio.sleep(0.1)  # nobody is to come after it
    assert await is_open(world, "node-1")


@story
async def test_a_nomination_lost_while_others_are_waited_for_is_written_again_before_the_node_opens(
    world: World,
) -> None:
    claims = await two_claims(world)
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(0.2)
    before = len(world.wire.writes)
    await take(world, "pod-000")
    await asyncio.sleep(0.2)
    assert await nominated(world, "pod-000") == ""
    await asyncio.sleep(1.0)
    since = [str(write) for write in world.wire.writes[before:] if write.kind in ("Pod", "Node")]
    assert since[:2] == ["patch Pod/status", "patch Node"]
    assert await nominated(world, "pod-000") == "node-0"
    assert await is_open(world, "node-0")


@story
async def test_a_nomination_lost_to_a_node_just_open_is_given_again_a_few_times(world: World) -> None:
    claims = await two_claims(world)
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.5)
    for _ in range(3):
        await take(world, "pod-000")
        await asyncio.sleep(0.1)
        assert await nominated(world, "pod-000") == "node-0"
    await take(world, "pod-000")
    await asyncio.sleep(0.1)
    assert await nominated(world, "pod-000") == ""


@story
async def test_a_pod_bound_elsewhere_is_not_nominated_again(world: World) -> None:
    claims = await two_claims(world)
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.5)
    await world.kube.bind("pod-000", "default", "elsewhere")
    before = world.writes("Pod")
    await take(world, "pod-000")
    await asyncio.sleep(0.5)
    assert world.writes("Pod") == before


@story
async def test_a_node_opens_although_its_nominations_are_taken_back_at_once(world: World) -> None:
    claims = await two_claims(world)
    undone: set[asyncio.Task[None]] = set()

    def undo(write: Write) -> None:
        if str(write) == "patch Pod/status" and write.body["status"]["nominatedNodeName"]:
            undone.add(asyncio.create_task(take(world, write.name)))

    world.wire.after = undo
    await world.join(claims["pod-000"], "node-0")
    await asyncio.sleep(7)
    assert undone
    assert await is_open(world, "node-0")
