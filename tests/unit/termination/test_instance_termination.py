"""Termination of instances: what delays it, and which instances are garbage."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.meta import OwnerReference
from karpenter.kube.errors import Conflict, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from karpenter.providers.contract import ProviderError
from karpenter.termination.pod_eviction import first_eviction_tier, must_delete_pod
from support.builders import pod
from support.nodeclaim_stages import all_gone, evicted, ready
from support.virtual_cluster import START, VirtualCluster, after, in_virtual_time, refusing, until


@in_virtual_time
async def test_a_cloud_that_cannot_delete_keeps_the_finalizer(cluster: VirtualCluster) -> None:
    """DIS-S312, OPS-L32, API-475: it is on the claim and on its Node until the instance is gone."""
    await ready(cluster)
    cluster.cloud.refuse("delete", ProviderError("broken"), ProviderError("broken"))
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(7)
    assert labels.TERMINATION_FINALIZER in (await cluster.get_claim()).metadata.finalizers
    assert labels.TERMINATION_FINALIZER in (await cluster.get_node()).metadata.finalizers
    assert cluster.lines("Reconciler error")
    await until(lambda: all_gone(cluster), 60)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_an_instance_that_shuts_down_slowly_is_polled_every_five_seconds(cluster: VirtualCluster) -> None:
    """DIS-S313, OPS-L33, DIS-039: until the provider reports it gone."""
    cluster.cloud.lingers = 8
    await ready(cluster)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(7)
    asked = len(cluster.cloud.calls)
    await asyncio.sleep(15)
    assert 2 <= len(cluster.cloud.calls) - asked <= 4
    assert await cluster.has(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 60)


@in_virtual_time
async def test_an_unregistered_claim_leaves_its_node_to_the_cloud(cluster: VirtualCluster) -> None:
    """DIS-S314, OPS-L31"""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.stop()
    await cluster.join()
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await cluster.start()
    await asyncio.sleep(20)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}
    assert "delete Node" not in cluster.writes()
    assert (await cluster.get_node()).metadata.deletion_timestamp is None


@in_virtual_time
async def test_a_claim_that_never_launched_does_not_bother_the_cloud(cluster: VirtualCluster) -> None:
    """DIS-S315, OPS-L29, OPS-074: without a provider ID the cloud is not called."""
    cluster.cloud.refuse("create", *(ProviderError("no") for _ in range(100)))
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(1)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(65)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert "delete" not in {call[0] for call in cluster.cloud.calls}


@in_virtual_time
async def test_a_dead_instance_is_not_drained(cluster: VirtualCluster) -> None:
    """DIS-512: not ready and unknown to the cloud: nothing runs there any more."""
    await ready(cluster)
    await cluster.running("lost", "node-c")
    cluster.cloud.instances.clear()
    await cluster.set_ready("node-c", "Unknown")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 10)
    assert evicted(cluster) == []


@in_virtual_time
async def test_a_kubelet_that_lives_is_drained_even_if_the_cloud_denies_its_instance(cluster: VirtualCluster) -> None:
    """DIS-512"""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    cluster.cloud.instances.clear()
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(2)
    assert evicted(cluster) == ["busy"]
    await cluster.gone("busy")
    await until(lambda: all_gone(cluster), 30)


@pytest.mark.parametrize(
    ("registered", "node_ready", "node_gone", "instance_gone", "collected"),
    [
        (True, "False", False, True, True),
        (True, "True", False, True, False),
        (False, "", False, True, False),
        (True, "True", True, False, False),
    ],
    ids=["OPS-L36", "OPS-090-kubelet-alive", "OPS-L37", "OPS-L38"],
)
@in_virtual_time
async def test_claims_whose_instance_is_gone_are_collected(
    cluster: VirtualCluster, registered: bool, node_ready: str, node_gone: bool, instance_gone: bool, collected: bool
) -> None:
    """OPS-L36, OPS-L37, OPS-L38, OPS-090, OPS-092, DIS-S265, DIS-S266. DIS-041: within two minutes."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    if registered:
        await cluster.join()
        await asyncio.sleep(0.1)
        await cluster.set_ready("node-c", node_ready)
    if node_gone:
        await cluster.kube.patch(kinds.NODE, "node-c", {"metadata": {"finalizers": []}})
        await cluster.stop()
        await cluster.kube.delete(kinds.NODE, "node-c")
        await cluster.start()
    if instance_gone:
        cluster.cloud.instances.clear()
    await asyncio.sleep(125)
    has = await cluster.has(kinds.NODE_CLAIM, "c")
    assert has is not collected
    assert bool(cluster.lines("garbage collecting nodeclaim with no cloudprovider representation")) is collected


@in_virtual_time
async def test_a_cloud_that_cannot_list_collects_nothing(cluster: VirtualCluster) -> None:
    """A listing that fails must not look like an empty cloud."""
    await ready(cluster)
    await cluster.set_ready("node-c", "False")
    cluster.cloud.refuse("list", *(ProviderError("broken") for _ in range(5)))
    await asyncio.sleep(500)
    assert (await cluster.get_claim()).metadata.deletion_timestamp is None
    assert cluster.lines("listing instances failed")


@pytest.mark.parametrize(
    "shown", ["delete Node", "patch Node", "patch NodeClaim/status", "patch NodeClaim", "delete NodeClaim"]
)
@pytest.mark.parametrize(
    "error",
    [
        lambda: Conflict("changed", status=409),
        lambda: ServerUnavailable("broken", status=500),
        lambda: TooManyRequests("slow"),
    ],
    ids=["409", "500", "429"],
)
@in_virtual_time
async def test_a_refused_write_delays_an_ending_and_loses_nothing(
    cluster: VirtualCluster, shown: str, error: object
) -> None:
    """OPS-008: whichever write is refused twice, node, claim and instance are removed."""
    await ready(cluster, termination_grace_period="10m")
    cluster.connection.refuse = refusing(error, 2, shown)
    subject = kinds.NODE if shown == "delete NodeClaim" else kinds.NODE_CLAIM
    await cluster.kube.delete(subject, "node-c" if subject is kinds.NODE else "c")
    await until(lambda: all_gone(cluster), 60)
    assert cluster.cloud.instances == {}


def test_ordinary_pods_go_first_and_critical_daemons_last() -> None:
    """DIS-522"""
    daemon = {"owner_references": (OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d"),)}
    critical = {"priority_class_name": "system-node-critical"}
    tiers = [
        pod("plain"),
        pod("daemon", meta=daemon),
        pod("critical", **critical),
        pod("critical-daemon", meta=daemon, **critical),
    ]
    assert first_eviction_tier([]) == []
    for number in range(4):
        assert first_eviction_tier(tiers[number:][::-1]) == [tiers[number]]


@pytest.mark.parametrize(
    ("own", "deleted", "deadline", "forced"),
    [
        (60, None, None, False),
        (None, None, 1.0, False),
        (60, None, 59.0, True),
        (60, None, 61.0, False),
        (60, 300.0, 200.0, True),
        (60, 100.0, 200.0, False),
        (2**62, None, 3600.0, True),
    ],
)
def test_when_a_pod_must_be_forced(
    own: int | None, deleted: float | None, deadline: float | None, forced: bool
) -> None:
    """DIS-530, K15-420: at each pass the drain decides about a pod: delete it by force, evict it, wait, or leave it."""
    subject = pod(
        "p",
        meta={"deletion_timestamp": None if deleted is None else after(deleted)},
        termination_grace_period_seconds=own,
    )
    assert must_delete_pod(subject, None if deadline is None else after(deadline), START) is forced
