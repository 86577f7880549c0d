"""When new nodes lose their pods, further launches pause longer each time, as upstream's Chaos suite requires."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import Disruption, NodeClaim, NodeClaimStatus
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.scheduling_constraints import Taint
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer
from karpenter.provisioning.lost_pods import LostPods
from karpenter.settings import Settings
from support import builders
from support.consolidation_cases import deployment
from support.observed_cluster import ObservedCluster
from support.virtual_cluster import VirtualCluster, in_virtual_time

CHAOS = Taint(key="test", value="true", effect="NoExecute")


class TaintAdder:
    """Adds a taint to each new node, as upstream's Chaos suite does, and evicts the pods there, as the taint manager does."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._world = cluster
        self._nodes: Informer[Node] = Informer(cluster.kube, kinds.NODE)
        self._pods: Informer[Pod] = Informer(cluster.kube, kinds.POD)
        self._changed = asyncio.Event()
        self._nodes.subscribe(lambda old, new: self._changed.set())
        self._pods.subscribe(lambda old, new: self._changed.set())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._pods.run())
            while True:
                await self._changed.wait()
                self._changed.clear()
                for node in tuple(self._nodes):
                    await self._taint(node)

    async def _taint(self, node: Node) -> None:
        name = node.metadata.name
        if CHAOS not in node.spec.taints:
            taints = msgspec.to_builtins((*node.spec.taints, CHAOS))
            try:
                await self._world.kube.patch(kinds.NODE, name, {"spec": {"taints": taints}})
            except KubeError:
                return
        for pod in tuple(self._pods):
            if pod.spec.node_name == name and pod.metadata.deletion_timestamp is None:
                await self._world.kube.delete(kinds.POD, pod.metadata.name, pod.metadata.namespace)


class CreatedClaims:
    """How many NodeClaims were created, and when the last one was."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.times: list[float] = []
        self._informer: Informer[NodeClaim] = Informer(cluster.kube, kinds.NODE_CLAIM)
        self._informer.subscribe(self._on_claim)
        cluster.also(self._informer.run())

    def _on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is None:
            self.times.append(asyncio.get_running_loop().time())


CONSOLIDATION = Disruption(consolidate_after="0s", consolidation_policy="WhenEmptyOrUnderutilized")
EMPTINESS = Disruption(consolidate_after="30s", consolidation_policy="WhenEmpty")
NEVER = Disruption(consolidate_after="Never")


async def runaway(
    cluster: VirtualCluster, disruption: Disruption, *, nominate: bool, delay: str = "2s"
) -> CreatedClaims:
    await cluster.node_class(node_registration_delay=delay)
    await cluster.pool(disruption=disruption)
    cluster.simulated()
    cluster.scheduled()
    cluster.also(TaintAdder(cluster).run())
    created = CreatedClaims(cluster)
    await cluster.start(Settings(nominate_pods=nominate))
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 1))
    return created


@pytest.mark.parametrize("nominate", [True, False], ids=["nomination", "no-nomination"])
@pytest.mark.parametrize("disruption", [CONSOLIDATION, EMPTINESS, NEVER], ids=["consolidation", "emptiness", "never"])
@in_virtual_time
async def test_a_taint_on_each_new_node_does_not_run_away(
    cluster: VirtualCluster, disruption: Disruption, nominate: bool
) -> None:
    """One pod, and every node launched for it loses it: fewer than ten nodes in five minutes."""
    created = await runaway(cluster, disruption, nominate=nominate)
    await asyncio.sleep(300)
    assert 2 <= len(created.times) < 10


@in_virtual_time
async def test_a_pod_that_every_node_loses_gets_a_node_every_ten_minutes_in_the_end(cluster: VirtualCluster) -> None:
    created = await runaway(cluster, CONSOLIDATION, nominate=True)
    await asyncio.sleep(1500)
    before = len(created.times)
    await asyncio.sleep(1800)
    assert len(created.times) - before <= 3


@in_virtual_time
async def test_a_pause_gives_an_event_on_the_pod_and_is_counted(cluster: VirtualCluster) -> None:
    """DIS-483, its second half: a loop of launch, loss and deletion slows down, and an event on the pod says so."""
    await runaway(cluster, NEVER, nominate=True)
    await asyncio.sleep(100)
    events = await cluster.events("NodeClaimDelayed")
    assert [event.involved_object.kind for event in events] == ["Pod"] * len(events)
    assert events[-1].message.startswith("4 node(s) launched for this pod lost it, the last one of nodeclaim/np-")
    assert cluster.counted("pods_lost_by_new_nodes_total", nodepool="np") == 4


@pytest.mark.parametrize(("is_bound", "losses"), [(False, 1), (True, 0)])
def test_a_pod_that_was_bound_to_its_new_node_was_not_lost_when_another_node_is_planned(
    is_bound: bool, losses: int
) -> None:
    """Its node drains: the next one is planned while the pod is still there."""
    context = ObservedCluster().context
    waiting = builders.pod("p", {"cpu": "1"})
    (planned,) = builders.plan(builders.node_pool(), waiting).new_claims
    launched = (Condition(type="Launched", status="True"),)
    status = NodeClaimStatus(node_name="n", conditions=launched)
    context.state.set_claim(msgspec.structs.replace(planned.claim, status=status))
    lost_pods = LostPods(context)
    lost_pods.claim_created(planned)
    assert lost_pods.delayed([planned]) == []
    if is_bound:
        lost_pods.pod_updated(waiting, builders.pod("p", {"cpu": "1"}, node_name="n"))
    successor = ObjectMeta(name="successor")
    lost_pods.delayed([dataclasses.replace(planned, claim=msgspec.structs.replace(planned.claim, metadata=successor))])
    assert context.metrics.pods_lost_by_new_nodes_total.labels(nodepool="np")._value.get() == losses


class EvictingController:
    """Closes each node to further pods and deletes its pod as soon as it is bound."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._world = cluster

    async def run(self) -> None:
        closed = msgspec.to_builtins((Taint(key="closed", effect="NoSchedule"),))
        while True:
            for pod in (await self._world.kube.list(kinds.POD)).items:
                if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
                    await self._world.kube.patch(kinds.NODE, pod.spec.node_name, {"spec": {"taints": closed}})
                    await self._world.kube.delete(kinds.POD, pod.metadata.name, pod.metadata.namespace)
            await asyncio.sleep(1)


@in_virtual_time
async def test_pods_that_are_evicted_from_each_new_node_count_for_their_owner(cluster: VirtualCluster) -> None:
    """The owner creates each successor under a new name, and the node takes no second pod."""
    await cluster.node_class(node_registration_delay="2s")
    await cluster.pool(disruption=EMPTINESS)
    cluster.simulated()
    cluster.scheduled()
    cluster.also(EvictingController(cluster).run())
    created = CreatedClaims(cluster)
    await cluster.start(Settings())
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 1))
    await asyncio.sleep(300)
    assert 2 <= len(created.times) < 10


@in_virtual_time
async def test_a_workload_whose_nodes_keep_their_pods_never_pauses(cluster: VirtualCluster) -> None:
    """PlannedCluster by one node at a time, pod by pod, with pods deleted long after they were bound."""
    await cluster.node_class(node_registration_delay="2s")
    await cluster.pool(disruption=NEVER)
    cluster.simulated()
    cluster.scheduled()
    created = CreatedClaims(cluster)
    await cluster.start(Settings())
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 1, cpu="7"))
    for replicas in (2, 3, 2, 4, 1, 5):
        await asyncio.sleep(90)
        await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": replicas}}, "default")
    await asyncio.sleep(90)
    assert await cluster.events("NodeClaimDelayed") == []
    assert len(created.times) == 5
