"""What a process needs around its loops: events, probes, log lines, pool status (OPS §4.5-4.6, §6; API §13.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClassReference
from karpenter.kube.errors import Conflict, NotFound, ServerUnavailable
from karpenter.model import conditions
from karpenter.runtime.events import NORMAL, EventRecorder, ObjectEvent, involved_node, involved_pod, shortened
from support.builders import node, node_pool, pod, wanted
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing

# -- events ---------------------------------------------------------------------------------------------------------------


def evicted(name: str, uid: str, silence: Any = None) -> ObjectEvent:
    more = {"dedupe_timeout": silence} if silence else {}
    return ObjectEvent(involved_pod(pod(name, meta={"uid": uid})), NORMAL, "Evicted", "Evicted pod: Empty", **more)


async def recorder(cluster: VirtualCluster) -> EventRecorder:
    event_recorder = EventRecorder(cluster.kube, cluster.clock)
    cluster.also(event_recorder.run())
    return event_recorder


@in_virtual_time
async def test_an_event_published_five_times_is_written_once(cluster: VirtualCluster) -> None:
    """OPS-E1, OPS-501"""
    events = await recorder(cluster)
    events.publish(*(evicted("p", "1") for _ in range(5)))
    assert len(await cluster.events()) == 1


@in_virtual_time
async def test_events_of_different_pods_are_all_written(cluster: VirtualCluster) -> None:
    """OPS-E2, OPS-504, OPS-505: the namespace and the uid tell pods apart."""
    events = await recorder(cluster)
    events.publish(evicted("p", "1"), evicted("p", "2"))
    assert len(await cluster.events()) == 2


@in_virtual_time
async def test_an_event_is_repeated_after_two_minutes(cluster: VirtualCluster) -> None:
    """OPS-E3: what was dropped does not prolong the silence. DIS-044: the default of de-duplication."""
    events = await recorder(cluster)
    events.publish(evicted("p", "1"))
    await asyncio.sleep(60)
    events.publish(evicted("p", "1"))
    assert len(await cluster.events()) == 1
    await asyncio.sleep(61)
    events.publish(evicted("p", "1"))
    assert len(await cluster.events()) == 2


@in_virtual_time
async def test_an_event_may_bring_its_own_silence(cluster: VirtualCluster) -> None:
    """OPS-E4"""
    from datetime import timedelta

    events = await recorder(cluster)
    for _ in range(2):
        events.publish(evicted("p", "1", timedelta(minutes=5)))
        await asyncio.sleep(180)
    assert len(await cluster.events()) == 1


@in_virtual_time
async def test_events_about_nodes_land_in_the_default_namespace(cluster: VirtualCluster) -> None:
    """OPS-E6, OPS-500"""
    events = await recorder(cluster)
    events.publish(ObjectEvent(involved_node(node("n", {}).metadata), NORMAL, "X", "text"))
    event = (await cluster.events())[0]
    assert event.metadata.namespace == "default"
    assert (event.involved_object.kind, event.involved_object.name, event.involved_object.namespace) == (
        "Node",
        "n",
        "",
    )
    assert event.source.component == "karpenter"
    assert event.first_timestamp == cluster.clock.now().replace(microsecond=0)


@in_virtual_time
async def test_an_event_that_cannot_be_written_costs_only_itself(cluster: VirtualCluster) -> None:
    cluster.server.inject_fault(ServerUnavailable("broken", status=500), verb="create", plural="events")
    events = await recorder(cluster)
    events.publish(evicted("p", "1"), evicted("q", "2"))
    assert [event.involved_object.name for event in await cluster.events()] == ["q"]
    assert cluster.lines("publishing event failed")


# -- probes ---------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_missing_crd_keeps_the_process_unready_until_it_is_there(cluster: VirtualCluster) -> None:
    """OPS-O9, OPS-364, OPS-368"""
    missing = NotFound('the server does not serve "nodepools.karpenter.sh"', status=404)
    cluster.server.inject_fault(missing, verb="list", plural="nodepools", times=3)
    await cluster.start()
    assert cluster.manager is not None
    assert cluster.manager.informers.unready().startswith("nodepools: the server does not serve")
    await asyncio.sleep(30)
    assert cluster.manager.informers.unready() == ""
    assert cluster.lines("Starting Controller")


# -- log lines ------------------------------------------------------------------------------------------------------------


def test_long_lists_are_cut() -> None:
    """OPS-O13, OPS-383"""
    names = [f"n{number}" for number in range(7)]
    assert shortened(names) == "n0, n1, n2, n3, n4 and 2 other(s)"
    assert shortened(names[:5]) == "n0, n1, n2, n3, n4"
    assert shortened(names[:1]) == "n0"


# -- pools ----------------------------------------------------------------------------------------------------------------


async def condition(cluster: VirtualCluster, type_: str, name: str = "np") -> tuple[str, str, str]:
    pool = await cluster.kube.get(kinds.NODE_POOL, name)
    condition = conditions.find_condition(pool.status.conditions, type_)
    return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)


@in_virtual_time
async def test_a_pool_is_ready_when_its_class_is(cluster: VirtualCluster) -> None:
    """API-S245, API-S248, API-641, OPS-103. API-667: a class that is not Ready makes its NodePools not Ready."""
    await cluster.pool()
    await cluster.start()
    assert await condition(cluster, "NodeClassReady") == (
        "False",
        "NodeClassNotFound",
        "NodeClass not found on cluster",
    )
    assert (await condition(cluster, "Ready"))[0] == "False"
    await cluster.node_class(ready="")
    await asyncio.sleep(0.1)
    await cluster.set_condition(kinds.KWOK_NODE_CLASS, "default", "Ready", "False", reason="Broken", message="no image")
    await asyncio.sleep(0.1)
    assert await condition(cluster, "NodeClassReady") == ("False", "Broken", "no image")
    await cluster.set_condition(kinds.KWOK_NODE_CLASS, "default", "Ready", "True")
    await asyncio.sleep(0.1)
    assert await condition(cluster, "Ready") == ("True", "Ready", "")
    await cluster.kube.delete(kinds.KWOK_NODE_CLASS, "default")
    await asyncio.sleep(0.1)
    assert (await condition(cluster, "NodeClassReady"))[1] == "NodeClassNotFound"


@in_virtual_time
async def test_a_class_on_its_way_out_makes_its_pools_unready(cluster: VirtualCluster) -> None:
    """API-S246"""
    await cluster.node_class()
    await cluster.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"metadata": {"finalizers": ["example.com/hold"]}})
    await cluster.pool()
    await cluster.start()
    await cluster.kube.delete(kinds.KWOK_NODE_CLASS, "default")
    await asyncio.sleep(0.1)
    actual = await condition(cluster, "NodeClassReady")
    assert actual == ("False", "NodeClassTerminating", "NodeClass is Terminating")


@in_virtual_time
async def test_a_pool_that_contradicts_the_rules_says_so(cluster: VirtualCluster) -> None:
    """API-640"""
    await cluster.node_class()
    await cluster.pool("bad", requirements=(wanted("karpenter.sh/capacity-type", "In", "sopt"),))
    await cluster.pool("good")
    await cluster.start()
    status, reason, message = await condition(cluster, "ValidationSucceeded", "bad")
    assert (status, reason) == ("False", "NodePoolValidationFailed")
    assert "no value is one of on-demand, reserved, spot" in message
    assert (await condition(cluster, "Ready", "bad"))[0] == "False"
    assert (await condition(cluster, "Ready", "good"))[0] == "True"


@in_virtual_time
async def test_a_pool_of_another_providers_class_is_left_alone(cluster: VirtualCluster) -> None:
    """API-S249"""
    foreign = NodeClassReference(group="other.example", kind="OtherClass", name="x")
    nodepool = node_pool("np")
    import msgspec

    spec = msgspec.structs.replace(nodepool.spec.template.spec, node_class_ref=foreign)
    template = msgspec.structs.replace(nodepool.spec.template, spec=spec)
    bare = msgspec.structs.replace(nodepool.metadata, uid="")
    changed = msgspec.structs.replace(
        nodepool, metadata=bare, spec=msgspec.structs.replace(nodepool.spec, template=template)
    )
    await cluster.kube.create(kinds.NODE_POOL, changed)
    await cluster.start()
    await asyncio.sleep(30)
    assert cluster.writes() == []


@in_virtual_time
async def test_a_pool_counts_what_it_holds(cluster: VirtualCluster) -> None:
    """API-S250, API-645"""
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await asyncio.sleep(6)
    pool = await cluster.kube.get(kinds.NODE_POOL, "np")
    assert dict(pool.status.resources) == dict.fromkeys(("cpu", "memory", "pods", "ephemeral-storage", "nodes"), "0")
    await cluster.claim("one", pool="np")
    await asyncio.sleep(0.1)
    cluster.cloud.capacity = {"cpu": "2", "memory": "4Gi", "pods": "20"}
    await cluster.claim("two", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("two")
    await asyncio.sleep(6)
    pool = await cluster.kube.get(kinds.NODE_POOL, "np")
    assert pool.status.nodes == 2
    assert {key: str(pool.status.resources[key]) for key in ("cpu", "nodes", "pods")} == {
        "cpu": "6",
        "nodes": "2",
        "pods": "60",
    }
    await cluster.kube.delete(kinds.NODE_CLAIM, "one")
    await asyncio.sleep(6)
    assert (await cluster.kube.get(kinds.NODE_POOL, "np")).status.nodes == 1


@in_virtual_time
async def test_nothing_is_counted_before_everything_is_known(cluster: VirtualCluster) -> None:
    """API-S251"""
    cluster.server.inject_fault(ServerUnavailable("slow", status=503), verb="list", plural="nodes", times=4)
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await asyncio.sleep(3)
    assert cluster.writes() == []
    await asyncio.sleep(60)
    assert (await cluster.kube.get(kinds.NODE_POOL, "np")).status.resources != {}


@pytest.mark.parametrize("error", [Conflict("changed", status=409), ServerUnavailable("broken", status=500)])
@in_virtual_time
async def test_a_pool_that_cannot_be_written_does_not_hide_the_others(cluster: VirtualCluster, error: Any) -> None:
    await cluster.node_class()
    await cluster.pool("a")
    await cluster.pool("b")

    def refuse(write: Any) -> None:
        if write.name == "a":
            raise error

    await cluster.start()
    cluster.connection.refuse = refuse
    await cluster.claim("c", pool="b")
    await asyncio.sleep(7)
    assert (await cluster.kube.get(kinds.NODE_POOL, "b")).status.nodes == 1
    cluster.connection.refuse = refusing(lambda: error, 0)
    await asyncio.sleep(70)
    assert (await condition(cluster, "Ready", "a"))[0] == "True"
