"""Two autoscalers on one cluster: each acts on the NodeClaims of its own node classes, and does not see the others' (OPS-002)."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption, NodeClassReference
from karpenter.api.meta import ObjectMeta
from karpenter.manager import Manager, ManagerOptions
from karpenter.providers.decorators import TimeoutProvider
from karpenter.settings import Settings
from support.aws.provider_process import node_class
from support.builders import ANY_CAPACITY, node_pool, pod, replaced
from support.fake_cloud import FakeCloud, InterceptedKube
from support.virtual_cluster import VirtualCluster, in_virtual_time

OTHER_CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
NEVER = Disruption(consolidate_after="Never")


class OtherCloud(FakeCloud):
    """The cloud of the other autoscaler."""

    name = "other"
    node_class_kinds = (kinds.EC2_NODE_CLASS,)


async def other_pool(cluster: VirtualCluster, name: str) -> None:
    wanted = node_pool(name, (ANY_CAPACITY,), labels={"team": name}, disruption=NEVER)
    spec = replaced(wanted.spec.template.spec, node_class_ref=OTHER_CLASS)
    template = replaced(wanted.spec.template, spec=spec)
    await cluster.kube.create(
        kinds.NODE_POOL, replaced(wanted, metadata=ObjectMeta(name=name), spec=replaced(wanted.spec, template=template))
    )


async def wanted_by(cluster: VirtualCluster, team: str, name: str) -> None:
    await cluster.waiting(pod(name, {"cpu": "1"}, node_selector={"team": team}))


@in_virtual_time
async def test_each_launches_for_its_own_pools_and_keeps_the_others_out_of_its_state(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    await cluster.pool("own", labels={"team": "own"}, disruption=NEVER)
    await other_class(cluster)
    await other_pool(cluster, "other")
    await cluster.start()
    cloud = OtherCloud(cluster.clock)
    options = ManagerOptions({}, {})
    other = Manager(InterceptedKube(cluster.kube), TimeoutProvider(cloud), cluster.clock, Settings(), options)
    cluster.also(other.run())
    await asyncio.sleep(1)
    await wanted_by(cluster, "own", "a")
    await wanted_by(cluster, "other", "b")
    await asyncio.sleep(30)
    claims = {
        claim.metadata.labels["karpenter.sh/nodepool"]: claim.metadata.name
        for claim in await cluster.all(kinds.NODE_CLAIM)
    }
    assert claims.keys() == {"own", "other"}
    assert cluster.manager is not None
    assert [claim.metadata.name for claim in cluster.manager.state.claims()] == [claims["own"]]
    assert [claim.metadata.name for claim in other.state.claims()] == [claims["other"]]
    assert [about for method, about in cluster.cloud.calls if method == "create"] == [claims["own"]]
    assert [about for method, about in cloud.calls if method == "create"] == [claims["other"]]


async def other_class(cluster: VirtualCluster) -> None:
    await cluster.kube.create(kinds.EC2_NODE_CLASS, node_class())
    await cluster.set_condition(kinds.EC2_NODE_CLASS, "default", "Ready", "True")


@in_virtual_time
async def test_no_pod_waits_for_the_claim_of_another_autoscaler(cluster: VirtualCluster) -> None:
    """A pod was nominated to one for an hour while nothing was launched."""
    await cluster.node_class()
    await cluster.pool(disruption=NEVER)
    await cluster.claim("foreign", pool="np", requests={"cpu": "4"}, node_class_ref=OTHER_CLASS)
    await cluster.start()
    await cluster.waiting(pod("a", {"cpu": "1"}))
    await asyncio.sleep(10)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 2
    assert cluster.manager is not None
    assert cluster.manager.state.claim("foreign") is None
    assert "foreign" not in cluster.manager.state.planned_nodes.values()


@in_virtual_time
async def test_no_pod_waits_for_a_claim_of_an_unknown_pool(cluster: VirtualCluster) -> None:
    """SCH-072: nor does it count as a node, until its NodePool exists."""
    await cluster.node_class()
    await cluster.pool(disruption=NEVER)
    await cluster.claim("stray", pool="gone", requests={"cpu": "4"})
    await cluster.start()
    await cluster.waiting(pod("a", {"cpu": "1"}))
    await asyncio.sleep(10)
    assert cluster.manager is not None
    state = cluster.manager.state
    assert "stray" not in state.planned_nodes.values()
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 2
    assert "stray" not in {node.key for node in state.state_nodes()}
    await cluster.pool("gone", disruption=NEVER)
    await asyncio.sleep(1)
    assert "stray" in {node.key for node in state.state_nodes()}


@in_virtual_time
async def test_two_managers_of_one_process_share_no_metrics(cluster: VirtualCluster) -> None:
    kube, cloud = InterceptedKube(cluster.kube), TimeoutProvider(OtherCloud(cluster.clock))
    first, second = (Manager(kube, cloud, cluster.clock, Settings()) for _ in range(2))
    assert first.context.metrics is not second.context.metrics
