"""A cluster on EC2 that Karpenter managed so far: our controller takes over its objects and instances, and returns them.

The first controller run stands for Karpenter: annotations that only we write are replaced by those that Karpenter writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controlplane.harness import Json
from controlplane.process import Controller
from karpenter.api import kinds
from karpenter.model import conditions, labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION_ANNOTATION
from support.aws.aws_cluster import CLUSTER, node_class, node_pool
from support.aws.clients import client
from support.aws.double import Double
from support.aws.memory_cluster import MemoryCluster, claim, memory_cluster
from support.aws.seeds import seed
from support.rollouts import settled

_SECONDS = 120.0
#: Of Karpenter 1.0 to 1.14: versions of its hashes, and what one looks like (API-503, API-513).
_WRITTEN_BY_KARPENTER = {
    labels.NODE_POOL_HASH: "6821555240594823858",
    labels.NODE_POOL_HASH_VERSION: "v3",
    HASH_ANNOTATION: "15012412345678901234",
    HASH_VERSION_ANNOTATION: "v4",
}
_VERSIONS = (labels.NODE_POOL_HASH_VERSION, HASH_VERSION_ANNOTATION)


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as running:
        seed(running)
        client(running, "sqs").create_queue(QueueName=CLUSTER)
        yield running


def _claim(name: str) -> Json:
    """A NodeClaim of the NodePool."""
    made = claim(name, "1", "2Gi")
    return {**made, "metadata": {"name": name, "labels": {labels.NODE_POOL: "np"}}}


@asynccontextmanager
async def _cluster(double: Double) -> AsyncIterator[MemoryCluster]:
    """A NodePool without consolidation, and two NodeClaims of it."""
    pool = node_pool("np", ("on-demand",), disruption={"consolidateAfter": "Never"})
    async with memory_cluster(double, node_class(), pool, _claim("web-1"), _claim("web-2")) as cluster:
        double.control.add_cluster(CLUSTER, cluster.url, "Q0E=")
        async with cluster.simulated_nodes(double.control):
            yield cluster


async def _initialized(cluster: MemoryCluster) -> None:
    """Wait until all NodeClaims are initialized."""

    async def missing() -> str:
        waiting = [one.metadata.name for one in await cluster.claims() if not _is(one, conditions.INITIALIZED)]
        return ", ".join(waiting)

    await settled(missing, _SECONDS)


def _is(wire: Any, condition: str) -> bool:
    return conditions.is_true(wire.status.conditions, condition)


async def _write_as_karpenter(cluster: MemoryCluster, double: Double) -> None:
    """Replace our annotations by Karpenter's, and delete tags that Karpenter does not set."""
    for kind in (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS):
        for wire in (await cluster.kube.list(kind)).items:
            foreign = dict.fromkeys(wire.metadata.annotations)
            annotations = {**foreign, **_annotations_of(kind)}
            await cluster.kube.patch(kind, wire.metadata.name, {"metadata": {"annotations": annotations}})
    tags = [{"Key": aws_labels.LAUNCH_BATCH}]
    client(double, "ec2").delete_tags(Resources=[one["instance_id"] for one in _running(double)], Tags=tags)


def _annotations_of(kind: Any) -> dict[str, str]:
    """What Karpenter writes on objects of this kind."""
    prefix = {"NodePool": labels.NODE_POOL_HASH, "EC2NodeClass": HASH_ANNOTATION}.get(kind.name, "")
    return {key: value for key, value in _WRITTEN_BY_KARPENTER.items() if key.startswith(prefix)}


def _running(double: Double) -> list[dict[str, Any]]:
    return [one for one in double.control.instances() if one["state"] == "running"]


async def _versions(cluster: MemoryCluster) -> set[str]:
    wires: list[Any] = [*(await cluster.kube.list(kinds.NODE_POOL)).items, *await cluster.claims()]
    wires += (await cluster.kube.list(kinds.EC2_NODE_CLASS)).items
    return {wire.metadata.annotations[key] for wire in wires for key in _VERSIONS if key in wire.metadata.annotations}


async def _identities(cluster: MemoryCluster, double: Double) -> tuple[object, ...]:
    """What must not change: NodeClaims with their finalizers, Nodes, instances."""
    claims = {(one.metadata.uid, one.metadata.finalizers, one.status.provider_id) for one in await cluster.claims()}
    nodes = {one.metadata.uid for one in (await cluster.kube.list(kinds.NODE)).items}
    return claims, nodes, {one["instance_id"] for one in _running(double)}


async def _takes_over(cluster: MemoryCluster, process: Controller) -> None:
    """Wait until every hash has our version, and disruption ran twice with them."""

    async def missing() -> str:
        left = await _versions(cluster) & set(_WRITTEN_BY_KARPENTER.values())
        return f"hashes of {sorted(left)} are left" if left else ""

    await settled(missing, _SECONDS)
    passes = await asyncio.to_thread(process.disruption_passes)
    await asyncio.to_thread(
        process.until, lambda: process.disruption_passes() >= passes + 2, "consider disruption twice"
    )


@pytest.mark.soak
async def test_instances_of_karpenter_are_taken_over_and_terminated_in_order(double: Double) -> None:
    """Issue 17.4, API-504, API-514, OPS-070: nothing drifts or launches; a deleted NodeClaim terminates its instance.

    If Karpenter runs again, it finds hashes of versions it does not know and writes its own; nothing else has changed.
    """
    async with _cluster(double) as cluster:
        async with cluster.controller(INTERRUPTION_QUEUE=CLUSTER):
            await _initialized(cluster)
        await _write_as_karpenter(cluster, double)
        before = await _identities(cluster, double)
        async with cluster.controller(INTERRUPTION_QUEUE=CLUSTER) as process:
            await _takes_over(cluster, process)
            assert await _identities(cluster, double) == before
            assert not any(_is(one, conditions.DRIFTED) for one in await cluster.claims())
            await cluster.kube.delete(kinds.NODE_CLAIM, "web-1")
            await settled(lambda: _is_gone(cluster, double), _SECONDS)


async def _is_gone(cluster: MemoryCluster, double: Double) -> str:
    names = [one.metadata.name for one in await cluster.claims()]
    return "" if (names, len(_running(double))) == (["web-2"], 1) else f"{names} and {len(_running(double))} instances"


@pytest.mark.soak
async def test_an_api_server_restored_from_a_backup_leaks_no_instance(double: Double) -> None:
    """OPS-093, docs/operations/backup.md: an instance whose NodeClaim is newer than the backup is terminated."""
    async with _cluster(double) as cluster:
        async with cluster.controller(INTERRUPTION_QUEUE=CLUSTER):
            await _initialized(cluster)
        (kept,) = [one.status.provider_id for one in await cluster.claims() if one.metadata.name == "web-2"]
        await _remove_from_api_server(cluster, "web-1")
        async with cluster.controller(INTERRUPTION_QUEUE=CLUSTER):
            await settled(lambda: _is_gone(cluster, double), _SECONDS)
        assert [one["provider_id"] for one in _running(double)] == [kept]


async def _remove_from_api_server(cluster: MemoryCluster, name: str) -> None:
    """Remove NodeClaim and Node from the API server without their finalizers."""
    (found,) = [one for one in await cluster.claims() if one.metadata.name == name]
    for kind, own in ((kinds.NODE, found.status.node_name), (kinds.NODE_CLAIM, name)):
        await cluster.kube.patch(kind, own, {"metadata": {"finalizers": None}})
        await cluster.kube.delete(kind, own)
