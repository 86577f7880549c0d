"""Nodes that are recreated under their name, second nodes, and NodeClaims written by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.model import conditions, labels
from support.edited_nodeclaims import bugs, up
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

# -- Nodes that come and go ------------------------------------------------------------------------------------------------


async def rejoined(cluster: VirtualCluster, **fields: Any) -> None:
    """While no controller runs the Node goes without its finalizer's work, and the kubelet makes it again."""
    old = await cluster.get_node()
    await forced_away(cluster)
    await cluster.join(**fields)
    assert (await cluster.get_node()).metadata.uid != old.metadata.uid
    await cluster.start()


async def forced_away(cluster: VirtualCluster) -> None:
    await cluster.stop()
    await cluster.edit(kinds.NODE, "node-c", finalizers=[])
    await cluster.kube.delete(kinds.NODE, "node-c")


@in_virtual_time
async def test_a_node_made_again_by_its_kubelet_is_registered_again(cluster: VirtualCluster) -> None:
    """Same name and provider ID, another uid, and closed as at the first time: it must not stay so."""
    await up(cluster)
    await rejoined(cluster)
    await asyncio.sleep(5)
    node = await cluster.get_node()
    assert node.spec.taints == ()
    assert node.metadata.labels[labels.REGISTERED] == node.metadata.labels[labels.INITIALIZED] == "true"
    assert node.metadata.labels[labels.NODE_POOL] == "np"
    assert node.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert conditions.is_true((await cluster.get_claim()).status.conditions, "Ready")
    assert len(cluster.lines("registered nodeclaim")) == 2
    assert len(cluster.cloud.instances) == 1


@in_virtual_time
async def test_a_node_made_again_is_initialised_only_when_it_is_ready_again(cluster: VirtualCluster) -> None:
    await up(cluster)
    await rejoined(cluster, ready="False")
    await asyncio.sleep(5)
    assert await cluster.condition("c", "Initialized") == ("Unknown", "NodeNotReady", "Node status is NotReady")
    assert labels.INITIALIZED not in (await cluster.get_node()).metadata.labels
    await cluster.set_ready("node-c", "True")
    await asyncio.sleep(1)
    assert (await cluster.condition("c", "Initialized") or ("",))[0] == "True"


@in_virtual_time
async def test_a_node_of_the_same_name_with_another_instance_is_not_the_claims(cluster: VirtualCluster) -> None:
    """The instance still runs and costs money: an event says so. When the instance goes, so does the claim."""
    await up(cluster)
    claim = await cluster.get_claim()
    await forced_away(cluster)
    await cluster.kube.create(kinds.NODE, _stranger("other:///machine"))
    await cluster.start()
    await asyncio.sleep(240)
    assert await cluster.events("NodeNotFound") == []
    await asyncio.sleep(120)
    (event,) = await cluster.events("NodeNotFound")
    assert (event.type, event.involved_object.name) == ("Warning", "c")
    assert claim.status.provider_id in event.message
    assert (await cluster.get_node()).metadata.finalizers == ()
    assert (await cluster.get_claim()).status.provider_id == claim.status.provider_id
    cluster.cloud.instances.clear()
    await asyncio.sleep(130)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert await cluster.has(kinds.NODE, "node-c")
    assert cluster.ended_for("garbage_collected", "np") == 1
    assert bugs(cluster) == []


def _stranger(provider_id: str) -> Node:
    from karpenter.api.core import NodeSpec
    from karpenter.api.meta import ObjectMeta

    return Node(metadata=ObjectMeta(name="node-c"), spec=NodeSpec(provider_id=provider_id))


@in_virtual_time
async def test_a_second_node_of_a_registered_claim_is_reported_and_waited_out(cluster: VirtualCluster) -> None:
    """OPS-022 Beyond"""
    await up(cluster)
    await cluster.join("c", "twin")
    await asyncio.sleep(5)
    assert (await cluster.condition("c", "Registered") or ("",))[0] == "True"
    (event,) = await cluster.events("MultipleNodesFound")
    assert (event.type, event.involved_object.kind, event.involved_object.name) == ("Warning", "NodeClaim", "c")
    assert "Nodes node-c, twin have the same provider ID" in event.message
    assert cluster.lines("nodeclaim needs attention")[0]["reason"] == "MultipleNodesFound"
    await asyncio.sleep(240)
    assert len(await cluster.events("MultipleNodesFound")) == 1
    await cluster.kube.delete(kinds.NODE, "twin")
    await asyncio.sleep(1800)
    assert len(await cluster.events("MultipleNodesFound")) == 1
    assert conditions.is_true((await cluster.get_claim()).status.conditions, "Ready")
    assert bugs(cluster) == []


@in_virtual_time
async def test_a_second_node_that_appears_before_initialisation_holds_it_up(cluster: VirtualCluster) -> None:
    """OPS-040: none or several both fail."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(1)
    await cluster.join(ready="False")
    await asyncio.sleep(1)
    await cluster.join("c", "twin")
    await cluster.set_ready("node-c", "True")
    await asyncio.sleep(1)
    assert (await cluster.condition("c", "Initialized") or ())[:2] == ("Unknown", "NodeNotFound")
    await cluster.kube.delete(kinds.NODE, "twin")
    await asyncio.sleep(1)
    assert (await cluster.condition("c", "Initialized") or ("",))[0] == "True"


# -- claims written by hand ------------------------------------------------------------------------------------------------


ODD: dict[str, dict[str, Any]] = {
    "requests nobody can read": {"requests": {"cpu": "1e1.5"}},
    "negative requests": {"requests": {"cpu": "-1"}},
    "expires after all times": {"expire_after": "99999999999h"},
    "grace beyond all times": {"termination_grace_period": "99999999999h"},
    "labels of another pool": {"pool": "no-such-pool"},
    "a status of its own": {"metadata": {"labels": {labels.REGISTERED: "true"}}},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD.keys())
@in_virtual_time
async def test_an_odd_claim_written_by_hand_affects_no_other(cluster: VirtualCluster, fields: dict[str, Any]) -> None:
    cluster.simulated()
    await cluster.node_class()
    await cluster.start()
    await cluster.claim("odd", **fields)
    await cluster.claim("c")
    await until(lambda: _initialised(cluster, "c"), 60)
    await asyncio.sleep(900)
    assert await _initialised(cluster, "c")
    assert bugs(cluster) == []


async def _initialised(cluster: VirtualCluster, name: str) -> bool:
    return (await cluster.condition(name, "Initialized") or ("",))[0] == "True"
