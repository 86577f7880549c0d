"""What makes a node drift, and what does not (DIS §14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodeClaim
from karpenter.model import labels, nodepool_hash
from karpenter.providers.contract import InstanceDrift, InstanceNotFound, ProviderError
from support.builders import wanted
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))
CUSTOM = "example.com/team"


async def up(cluster: VirtualCluster, *requirements: Any, own: dict[str, str] | None = None) -> None:
    """A running controller, a pool and one initialized node with these labels."""
    await cluster.node_class()
    fields: dict[str, Any] = {"requirements": requirements} if requirements else {}
    await cluster.pool(disruption=CLOSED, **fields)
    await cluster.start()
    pool = await cluster.kube.get(kinds.NODE_POOL, "np")
    notes = {
        labels.NODE_POOL_HASH: nodepool_hash.node_pool_hash(pool),
        labels.NODE_POOL_HASH_VERSION: nodepool_hash.NODE_POOL_HASH_VERSION,
    }
    await cluster.owned_claim(pool, metadata={"labels": own or {}, "annotations": notes})
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)


async def drifted(cluster: VirtualCluster) -> str:
    """The reason it drifted for, empty when it has not."""
    condition = await cluster.condition("c", "Drifted")
    return "" if condition is None else condition[1]


async def require(cluster: VirtualCluster, *entries: dict[str, Any]) -> None:
    """Other requirements for the pool; the change is seen at once."""
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"spec": {"requirements": list(entries)}}}})
    await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, "NodePoolDrifted"),
        ({"metadata": {"annotations": {"a": "b"}}}, "NodePoolDrifted"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, "NodePoolDrifted"),
        ({"spec": {"startupTaints": [{"key": "a", "effect": "NoSchedule"}]}}, "NodePoolDrifted"),
        ({"spec": {"expireAfter": "100h"}}, "NodePoolDrifted"),
        ({"spec": {"terminationGracePeriod": "1h"}}, "NodePoolDrifted"),
        ({"spec": {"expireAfter": "30h690h"}}, ""),
    ],
    ids=["label", "annotation", "taint", "startup-taint", "expire-after", "grace-period", "another-spelling"],
)
@in_virtual_time
async def test_what_the_template_says_and_nodes_cannot_follow_drifts(
    cluster: VirtualCluster, change: dict[str, Any], reason: str
) -> None:
    """DIS-S246, DIS-343, DIS-352, DIS-356"""
    await up(cluster)
    assert await drifted(cluster) == ""
    change = {"spec": {"expireAfter": "43200m"}} if not reason else change
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": change}})
    await asyncio.sleep(1)
    assert await drifted(cluster) == reason
    assert [line["reason"] for line in cluster.lines("marking drifted")] == ([reason] if reason else [])


@pytest.mark.parametrize(
    "change",
    [
        {"disruption": {"budgets": [{"nodes": "1"}]}},
        {"disruption": {"consolidateAfter": "5m"}},
        {"weight": 7},
        {"limits": {"cpu": "100"}},
    ],
    ids=["budgets", "consolidate-after", "weight", "limits"],
)
@in_virtual_time
async def test_what_concerns_the_pool_alone_does_not_drift(cluster: VirtualCluster, change: dict[str, Any]) -> None:
    """DIS-S247, DIS-352"""
    await up(cluster)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": change})
    await asyncio.sleep(1)
    assert await drifted(cluster) == ""


@pytest.mark.parametrize(
    "notes",
    [
        {labels.NODE_POOL_HASH: None},
        {labels.NODE_POOL_HASH_VERSION: None},
        {labels.NODE_POOL_HASH_VERSION: "v3"},
    ],
    ids=["no-hash", "no-version", "another-version"],
)
@in_virtual_time
async def test_without_hashes_that_can_be_compared_nothing_drifts(
    cluster: VirtualCluster, notes: dict[str, Any]
) -> None:
    """DIS-S248"""
    await up(cluster)
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"annotations": notes}})
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await asyncio.sleep(1)
    assert await drifted(cluster) == ""


@pytest.mark.parametrize(
    ("entry", "is_drifted"),
    [
        ({"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot"]}, True),
        ({"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"]}, False),
        ({"key": labels.CAPACITY_TYPE, "operator": "Exists"}, False),
        ({"key": labels.CAPACITY_TYPE, "operator": "DoesNotExist"}, True),
        ({"key": CUSTOM, "operator": "In", "values": ["a"]}, True),
        ({"key": CUSTOM, "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "number", "operator": "Gt", "values": ["10"]}, True),
        ({"key": "number", "operator": "Gt", "values": ["2"]}, False),
        ({"key": "number", "operator": "Lt", "values": ["1"]}, True),
    ],
    ids=[
        "DIS-S241",
        "DIS-S243-widened",
        "DIS-S244-exists",
        "DIS-S244-absent",
        "DIS-S242",
        "absent-ok",
        "DIS-S245-gt",
        "gt-ok",
        "DIS-S245-lt",
    ],
)
@in_virtual_time
async def test_a_node_drifts_when_its_labels_are_not_asked_for_any_more(
    cluster: VirtualCluster, entry: dict[str, Any], is_drifted: bool
) -> None:
    """DIS-S241 to DIS-S245, DIS-344, API-512: the labels of the claim must meet the pool's requirements.

    API-124, DIS-321: the condition has the reason, or is absent.
    """
    await up(cluster, wanted(labels.CAPACITY_TYPE, "In", "on-demand"), own={"number": "5"})
    assert await drifted(cluster) == ""
    await require(cluster, entry)
    assert await drifted(cluster) == ("RequirementsDrifted" if is_drifted else "")


@in_virtual_time
async def test_a_node_that_meets_an_edited_pool_has_not_drifted(cluster: VirtualCluster) -> None:
    """DIS-S252, DIS-357"""
    await up(cluster, wanted(labels.CAPACITY_TYPE, "In", "on-demand"))
    await require(cluster, {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot"]})
    assert await drifted(cluster) == "RequirementsDrifted"
    await require(cluster, {"key": labels.CAPACITY_TYPE, "operator": "Exists"})
    assert await drifted(cluster) == ""
    assert [line["reason"] for line in cluster.lines("removing drifted status condition")] == ["not drifted"]


@in_virtual_time
async def test_the_drift_reason_of_the_cloud_is_read_every_five_minutes_and_comes_last(cluster: VirtualCluster) -> None:
    """API-515, DIS-033, DIS-340, DIS-S249, DIS-346 ff. OPS-216: the provider answers with its own drift only."""
    asked: list[str] = []
    reason = ""

    async def drift(claim: NodeClaim) -> InstanceDrift | None:
        asked.append(claim.metadata.name)
        return InstanceDrift(reason) if reason else None

    cluster.cloud.drift = drift
    await up(cluster)
    first = len(asked)
    assert first <= 2
    reason = "AMIDrift"
    await asyncio.sleep(290)
    assert (await drifted(cluster), len(asked)) == ("", first)
    await asyncio.sleep(15)
    assert (await drifted(cluster), len(asked)) == ("AMIDrift", first + 1)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await asyncio.sleep(1)
    assert await drifted(cluster) == "NodePoolDrifted"


@in_virtual_time
async def test_a_changed_node_class_is_checked_at_once(cluster: VirtualCluster) -> None:
    """DIS-340. DIS-328: the class is watched."""
    reason = ""

    async def drift(_: NodeClaim) -> InstanceDrift | None:
        return InstanceDrift(reason, "another image") if reason else None

    cluster.cloud.drift = drift
    await up(cluster)
    reason = "NodeClassDrift"
    await cluster.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "7s"}})
    await asyncio.sleep(1)
    assert await drifted(cluster) == "NodeClassDrift"


@pytest.mark.parametrize("error", [InstanceNotFound("x"), ProviderError("broken")], ids=["not-found", "broken"])
@in_virtual_time
async def test_what_the_cloud_cannot_say_changes_nothing(cluster: VirtualCluster, error: Exception) -> None:
    """DIS-342"""
    answers: list[Any] = ["AMIDrift"]

    async def drift(_: NodeClaim) -> InstanceDrift | None:
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return InstanceDrift(answers[-1]) if answers[-1] else None

    cluster.cloud.drift = drift
    await up(cluster)
    assert await drifted(cluster) == "AMIDrift"
    answers.append(error)
    await asyncio.sleep(310)
    assert await drifted(cluster) == "AMIDrift"
    answers.append("")
    await asyncio.sleep(400)
    assert await drifted(cluster) == ""


@in_virtual_time
async def test_a_type_that_no_longer_exists_drifts_after_an_hour(cluster: VirtualCluster) -> None:
    """DIS-S250, DIS-345, API-513: younger claims are not checked."""
    await up(cluster)
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"labels": {labels.INSTANCE_TYPE: "gone"}}})
    created = (await cluster.get_claim()).metadata.creation_timestamp
    assert created is not None
    await asyncio.sleep(3590 - (cluster.clock.now() - created).total_seconds())
    assert await drifted(cluster) == ""
    await asyncio.sleep(60)
    assert await drifted(cluster) == "InstanceTypeNotFound"


@in_virtual_time
async def test_a_claim_that_is_not_launched_has_not_drifted(cluster: VirtualCluster) -> None:
    """DIS-S251, DIS-341, API-511, API-S239: a condition that is there is removed."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=CLOSED)
    cluster.cloud.hangs.add(("create", "*"))
    await cluster.start()
    await cluster.owned_claim(pool)
    await cluster.set_condition(kinds.NODE_CLAIM, "c", "Drifted", "True")
    await until(lambda: _is_undrifted(cluster), 120)


async def _is_undrifted(cluster: VirtualCluster) -> bool:
    return await drifted(cluster) == ""


@in_virtual_time
async def test_without_its_pool_a_claim_keeps_what_it_has(cluster: VirtualCluster) -> None:
    """DIS-S253"""
    await up(cluster, wanted(labels.CAPACITY_TYPE, "In", "on-demand"))
    await require(cluster, {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot"]})
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"ownerReferences": []}})
    await cluster.kube.delete(kinds.NODE_POOL, "np")
    await asyncio.sleep(400)
    assert await drifted(cluster) == "RequirementsDrifted"
