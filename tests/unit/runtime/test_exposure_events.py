"""Exposure while the controller runs: the setting decides, and a share that cannot be kept is logged once."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import Disruption
from karpenter.model import labels
from karpenter.scheduling.packing import open_claims
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.settings import Settings
from support.builders import owner, pod
from support.virtual_cluster import VirtualCluster, in_virtual_time

CALM = Disruption(consolidate_after="Never")
MESSAGE = "exposure is not as wished"


def replicas(count: int, cpu: str, **annotations: str) -> list[Pod]:
    meta = {"owner_references": (owner("ReplicaSet", "web"),), "annotations": annotations}
    return [pod(f"web-{number}", {"cpu": cpu}, meta=meta) for number in range(count)]


async def start_with_pool(
    cluster: VirtualCluster, settings: Settings | None = None, limits: dict[str, str] | None = None
) -> None:
    await cluster.node_class()
    await cluster.pool(disruption=CALM, limits=limits or {})
    await cluster.start(settings)


@in_virtual_time
async def test_a_workload_gets_two_nodes(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster)
    await cluster.waiting(*replicas(4, "100m"))
    await asyncio.sleep(3)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 2
    assert cluster.lines(MESSAGE) == []


@in_virtual_time
async def test_the_setting_says_otherwise(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, Settings(exposure=Fraction(1)))
    await cluster.waiting(*replicas(4, "100m"))
    await asyncio.sleep(3)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 1


@in_virtual_time
async def test_a_relaxed_preference_is_in_the_log(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, limits={"nodes": "1"})
    await cluster.waiting(*replicas(4, "100m"))
    await asyncio.sleep(3)
    (line,) = cluster.lines(MESSAGE)
    assert "4 pods of ReplicaSet default/web in NodeClaim" in line["detail"]


@in_virtual_time
async def test_an_annotation_that_cannot_be_parsed_is_in_the_log_once(cluster: VirtualCluster) -> None:
    """Pods that stay waiting are planned again every ten seconds."""
    await start_with_pool(cluster)
    await cluster.waiting(*replicas(4, "900", **{labels.EXPOSURE: "half"}))
    await asyncio.sleep(60)
    (line,) = cluster.lines(MESSAGE)
    assert line["detail"].startswith("annotation karpenter.sh/exposure of ReplicaSet default/web: 'half' is neither")


@in_virtual_time
async def test_a_packing_that_is_not_as_asked_is_in_the_log_once(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods that stay waiting are planned again every ten seconds, and each plan ends the work it may do."""
    monkeypatch.setattr(open_claims, "MAX_TRIES", 1)
    await start_with_pool(cluster, Settings(packing=PackingMode.FEWEST_PODS))
    await cluster.waiting(*replicas(4, "100m"), pod("big", {"cpu": "900"}))
    await asyncio.sleep(60)
    assert (
        len(
            cluster.lines(
                "packed first-fit decreasing, not fewest-pods: too many pods and nodes to try each pod on each node"
            )
        )
        == 1
    )
