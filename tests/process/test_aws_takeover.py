"""A cluster on EC2 that Karpenter ran until now: our controller takes its objects and instances over, and gives them back.

The first controller stands for Karpenter: what only we write is removed, and what Karpenter writes stands there instead.
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
from support.aws.clients import client
from support.aws.double import Double
from support.aws.seeds import seed
from support.aws.small_stage import SmallStage, claim, small_stage
from support.aws.stage import CLUSTER, node_class, node_pool
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
async def _cluster(double: Double) -> AsyncIterator[SmallStage]:
    """A NodePool that removes nothing by itself, and two NodeClaims of it."""
    pool = node_pool("np", ("on-demand",), disruption={"consolidateAfter": "Never"})
    async with small_stage(double, node_class(), pool, _claim("web-1"), _claim("web-2")) as stage:
        double.control.add_cluster(CLUSTER, stage.url, "Q0E=")
        async with stage.machines(double.control):
            yield stage


async def _settle(stage: SmallStage) -> None:
    """All NodeClaims are initialized."""

    async def missing() -> str:
        waiting = [one.metadata.name for one in await stage.claims() if not _is(one, conditions.INITIALIZED)]
        return ", ".join(waiting)

    await settled(missing, _SECONDS)


def _is(wire: Any, condition: str) -> bool:
    return conditions.is_true(wire.status.conditions, condition)


async def _as_karpenter_wrote_it(stage: SmallStage, double: Double) -> None:
    """Annotations of Karpenter's instead of ours, and no tag that Karpenter does not set."""
    for kind in (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS):
        for wire in (await stage.kube.list(kind)).items:  # type: ignore[attr-defined]
            foreign = dict.fromkeys(wire.metadata.annotations)
            annotations = {**foreign, **_annotations_of(kind)}
            await stage.kube.patch(kind, wire.metadata.name, {"metadata": {"annotations": annotations}})  # type: ignore[arg-type]
    tags = [{"Key": aws_labels.LAUNCH_BATCH}]
    client(double, "ec2").delete_tags(Resources=[one["instance_id"] for one in _running(double)], Tags=tags)


def _annotations_of(kind: Any) -> dict[str, str]:
    """What Karpenter writes on objects of this kind."""
    prefix = {"NodePool": labels.NODE_POOL_HASH, "EC2NodeClass": HASH_ANNOTATION}.get(kind.name, "")
    return {key: value for key, value in _WRITTEN_BY_KARPENTER.items() if key.startswith(prefix)}


def _running(double: Double) -> list[dict[str, Any]]:
    return [one for one in double.control.machines() if one["state"] == "running"]


async def _versions(stage: SmallStage) -> set[str]:
    wires: list[Any] = [*(await stage.kube.list(kinds.NODE_POOL)).items, *await stage.claims()]
    wires += (await stage.kube.list(kinds.EC2_NODE_CLASS)).items
    return {wire.metadata.annotations[key] for wire in wires for key in _VERSIONS if key in wire.metadata.annotations}


async def _identities(stage: SmallStage, double: Double) -> tuple[object, ...]:
    """What must stay as it is: NodeClaims with their finalizers, Nodes, instances."""
    claims = {(one.metadata.uid, one.metadata.finalizers, one.status.provider_id) for one in await stage.claims()}
    nodes = {one.metadata.uid for one in (await stage.kube.list(kinds.NODE)).items}
    return claims, nodes, {one["instance_id"] for one in _running(double)}


async def _takes_over(stage: SmallStage, process: Controller) -> None:
    """Every hash is of our versions, and disruption has been considered with them."""

    async def missing() -> str:
        left = await _versions(stage) & set(_WRITTEN_BY_KARPENTER.values())
        return f"hashes of {sorted(left)} are left" if left else ""

    await settled(missing, _SECONDS)
    passes = await asyncio.to_thread(process.disruption_passes)
    await asyncio.to_thread(
        process.until, lambda: process.disruption_passes() >= passes + 2, "consider disruption twice"
    )


@pytest.mark.soak
async def test_instances_of_karpenter_are_taken_over_and_end_in_order(double: Double) -> None:
    """Issue 17.4, API-504, API-514, OPS-070: nothing drifts and nothing is bought; a deleted NodeClaim ends its instance.

    Given back at that moment, Karpenter finds hashes of versions it does not know and writes its own; all else is as it left it.
    """
    async with _cluster(double) as stage:
        async with stage.controller(INTERRUPTION_QUEUE=CLUSTER):
            await _settle(stage)
        await _as_karpenter_wrote_it(stage, double)
        before = await _identities(stage, double)
        async with stage.controller(INTERRUPTION_QUEUE=CLUSTER) as process:
            await _takes_over(stage, process)
            assert await _identities(stage, double) == before
            assert not any(_is(one, conditions.DRIFTED) for one in await stage.claims())
            await stage.kube.delete(kinds.NODE_CLAIM, "web-1")
            await settled(lambda: _is_gone(stage, double), _SECONDS)


async def _is_gone(stage: SmallStage, double: Double) -> str:
    names = [one.metadata.name for one in await stage.claims()]
    return "" if (names, len(_running(double))) == (["web-2"], 1) else f"{names} and {len(_running(double))} instances"


@pytest.mark.soak
async def test_an_api_server_restored_to_yesterday_leaks_no_instance(double: Double) -> None:
    """OPS-093, docs/operations/backup.md: the instance whose NodeClaim came after the backup ends; the other stays."""
    async with _cluster(double) as stage:
        async with stage.controller(INTERRUPTION_QUEUE=CLUSTER):
            await _settle(stage)
        (kept,) = [one.status.provider_id for one in await stage.claims() if one.metadata.name == "web-2"]
        await _forget(stage, "web-1")
        async with stage.controller(INTERRUPTION_QUEUE=CLUSTER):
            await settled(lambda: _is_gone(stage, double), _SECONDS)
        assert [one["provider_id"] for one in _running(double)] == [kept]


async def _forget(stage: SmallStage, name: str) -> None:
    """Take NodeClaim and Node out of the API server as if they had never been there."""
    (found,) = [one for one in await stage.claims() if one.metadata.name == name]
    for kind, own in ((kinds.NODE, found.status.node_name), (kinds.NODE_CLAIM, name)):
        await stage.kube.patch(kind, own, {"metadata": {"finalizers": None}})  # type: ignore[arg-type]
        await stage.kube.delete(kind, own)  # type: ignore[arg-type]
