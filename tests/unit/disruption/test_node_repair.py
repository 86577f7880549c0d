"""Execution of node repair: replacements first, and reboots in place, on the in-memory API server in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.disruption.repair_execution import RebootHistory
from karpenter.model import labels
from karpenter.model.clock import parse_annotation_time
from karpenter.model.repair_policies import InvalidRepairPolicies, RepairPolicy
from karpenter.model.setting_kinds import Profile
from karpenter.providers.contract import InstanceNotFound, ProviderError, RebootFailed
from karpenter.settings import Settings, resolve_settings
from support.builders import NOW, claim, node
from support.node_repair_cases import MINUTE, ON, POLICIES, leaving, phase, rebooting, set_boot_id, start_with_nodes
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

UNKNOWN = RepairPolicy("Ready", "Unknown", 30 * MINUTE, ".*")


@in_virtual_time
async def test_a_broken_node_goes_only_after_its_replacement_is_ready(cluster: VirtualCluster) -> None:
    """K15-601, K15-231, K15-211: the limit of the drain counts from the deletion, not from the decision.

    K15-238: release 1.14 deleted it at once, without a replacement, and its drain waited for no pod.
    """
    await start_with_nodes(cluster)
    await cluster.set_condition(kinds.NODE, "n0", "DiskReady", "False")
    await asyncio.sleep(590)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 5
    await until(lambda: _has(cluster, 6), 60)
    (new,) = {one.metadata.name for one in await cluster.all(kinds.NODE_CLAIM)} - {f"n{number}" for number in range(5)}
    await asyncio.sleep(90)
    assert await leaving(cluster) == []
    await cluster.kube.patch(kinds.NODE_CLAIM, "n0", {"metadata": {"finalizers": ["example.com/hold"]}})
    await cluster.join(new, new)
    await until(lambda: _is_leaving(cluster), 30)
    gone = await cluster.get_claim("n0")
    deadline = parse_annotation_time(gone.metadata.annotations[labels.TERMINATION_TIMESTAMP])
    assert gone.metadata.deletion_timestamp is not None
    assert deadline is not None
    assert abs((deadline - gone.metadata.deletion_timestamp).total_seconds() - 120) < 5
    described = {"condition": "disk_ready", "nodepool": "np", "capacity_type": "on-demand", "image_id": "image-1"}
    assert cluster.counted("nodeclaims_unhealthy_disrupted_total", **described, termination_mode="eventual") == 1
    decided = {"decision": "replace", "reason": "unhealthy", "consolidation_type": ""}
    assert cluster.counted("voluntary_disruption_decisions_total", **decided) == 1
    (line,) = cluster.lines("selected repair policy")
    assert (line["condition"], line["action"], line["termination-grace-period"]) == ("DiskReady", "ReplaceNode", "2m0s")


async def _has(cluster: VirtualCluster, count: int) -> bool:
    return len(await cluster.all(kinds.NODE_CLAIM)) == count


async def _is_leaving(cluster: VirtualCluster) -> bool:
    return await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_when_too_many_are_broken_the_event_says_so(cluster: VirtualCluster) -> None:
    """K15-228, K15-237, K15-490: on the Node, its NodeClaim and its NodePool."""
    await start_with_nodes(cluster)
    for number in range(2):
        await cluster.set_condition(kinds.NODE, f"n{number}", "DiskReady", "False")
    await asyncio.sleep(700)
    assert await leaving(cluster) == []
    blocked = await cluster.events("NodeRepairBlocked")
    assert {event.involved_object.kind for event in blocked} == {"Node", "NodeClaim", "NodePool"}
    assert {event.message for event in blocked} == {'more than 20% of nodes in nodepool "np" are unhealthy'}


@in_virtual_time
async def test_a_reboot_leaves_node_and_claim_in_place(cluster: VirtualCluster) -> None:
    """K15-280 to K15-290, K15-609: drained, rebooted, initialized again.

    K15-004, K15-006, K15-007, K15-296, K15-383, K15-457, K15-458, K15-459, K15-491, K15-495, K15-500.
    """
    await start_with_nodes(cluster)
    asked = rebooting(cluster)
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False", reason="XID48")
    await until(lambda: _is_phase(cluster, ("True", "RebootRequested")), 700)
    committed = await cluster.get_claim("n0")
    assert committed.metadata.annotations[labels.REBOOT_GRACE_PERIOD] == "1m0s"
    assert (await cluster.condition("n0", "Rebooting")) == ("True", "RebootRequested", "rebooting for GpuReady/XID48")
    assert (await cluster.condition("n0", "DisruptionReason")) == ("True", "Unhealthy", "Unhealthy")
    await asyncio.sleep(1)
    assert labels.REBOOTING_TAINT in (await cluster.get_node("n0")).spec.taints
    await until(lambda: _is_phase(cluster, ("False", "RebootSucceeded")), 120)
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "True")
    await asyncio.sleep(20)
    assert await leaving(cluster) == []
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 5
    node, after = await cluster.get_node("n0"), await cluster.get_claim("n0")
    assert labels.REBOOTING_TAINT not in node.spec.taints
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert labels.REBOOT_PRE_BOOT_ID not in after.metadata.annotations
    assert (await cluster.condition("n0", "DisruptionReason")) is None
    (operation,) = asked
    assert operation.startswith(f"{after.metadata.uid}-")
    assert operation.endswith("-boot-1")
    assert cluster.counted("nodes_reboots_total", result="succeeded") == 1
    assert await cluster.events("RebootObserved", "n0")
    assert [event.message for event in await cluster.events("Evicted")] == ["Evicted pod: Unhealthy"]
    assert cluster.lines("reboot reached terminal outcome")[0]["reason"] == "RebootSucceeded"
    assert cluster.counted("nodes_reboot_duration_seconds_count", result="succeeded") == 1
    (line,) = cluster.lines("selected repair policy")
    assert (line["condition"], line["reason"], line["action"], line["fallback"]) == (
        "GpuReady",
        "XID48",
        "RebootNode",
        False,
    )


@in_virtual_time
async def test_a_pod_that_may_not_be_evicted_stays_through_the_reboot(cluster: VirtualCluster) -> None:
    """K15-284, K15-423, K15-611: it is only ever evicted, and left in place once the time is over."""
    await start_with_nodes(cluster)
    held = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
    await cluster.kube.patch(kinds.POD, "p0", held, "default")
    asked = rebooting(cluster)
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False", reason="XID48")
    await until(lambda: _is_phase(cluster, ("True", "RebootRequested")), 700)
    requested = cluster.elapsed
    await asyncio.sleep(55)
    assert asked == []
    await until(lambda: _is_phase(cluster, ("False", "RebootSucceeded")), 60)
    assert 60 <= cluster.elapsed - requested < 100
    assert await cluster.has(kinds.POD, "p0", "default")
    assert "evict Pod" not in cluster.writes()
    assert "delete Pod" not in cluster.writes()


async def _is_phase(cluster: VirtualCluster, wanted: tuple[str, str]) -> bool:
    return await phase(cluster) == wanted


async def _is_being_replaced(cluster: VirtualCluster) -> bool:
    return not await cluster.has(kinds.NODE_CLAIM, "n0") or await leaving(cluster) == ["n0"]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RebootFailed("no permission"), "provider_error"),
        (InstanceNotFound("i-1"), "provider_error"),
        (ProviderError("busy"), "provider_error"),
        (None, "provider_error"),
    ],
    ids=["final", "gone", "transient", "not-implemented"],
)
@in_virtual_time
async def test_a_reboot_that_the_provider_refuses_replaces_the_node(
    cluster: VirtualCluster, error: Exception | None, result: str
) -> None:
    """K15-287, K15-292, K15-S12, K15-510: transient errors are repeated with one operation ID for five minutes."""
    await start_with_nodes(cluster)
    asked = rebooting(cluster, True, error) if error is not None else []
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False")
    await until(lambda: _is_being_replaced(cluster), 1100)
    assert cluster.counted("nodes_reboots_total", result=result) == 1
    assert len(set(asked)) <= 1
    assert (len(asked) > 10) == (type(error) is ProviderError)
    assert await cluster.events("RebootFailed", "n0")


@in_virtual_time
async def test_a_node_that_does_not_come_back_is_replaced(cluster: VirtualCluster) -> None:
    """K15-291, K15-292: after twenty minutes; K15-005: meanwhile the claim is not initialized."""
    await start_with_nodes(cluster)
    rebooting(cluster, False)
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False")
    await until(lambda: _is_phase(cluster, ("True", "RebootIssued")), 900)
    assert (await cluster.condition("n0", "Initialized")) == ("Unknown", "Rebooting", "node is rebooting")
    assert labels.INITIALIZED not in (await cluster.get_node("n0")).metadata.labels
    await asyncio.sleep(19 * 60)
    assert await leaving(cluster) == []
    await until(lambda: _is_being_replaced(cluster), 120)
    assert cluster.counted("nodes_reboots_total", result="recovery_timeout") == 1


@in_virtual_time
async def test_a_request_that_cannot_be_read_replaces_nothing(cluster: VirtualCluster) -> None:
    """K15-285, K15-S11, K15-011, K15-492: the bound is kept on the claim, and the failure is reported."""
    await start_with_nodes(cluster, Settings())
    note = {"metadata": {"annotations": {labels.REBOOT_GRACE_PERIOD: "abc"}}}
    await cluster.kube.patch(kinds.NODE_CLAIM, "n0", note)
    await cluster.set_condition(kinds.NODE_CLAIM, "n0", "Rebooting", "True", reason="RebootRequested")
    await asyncio.sleep(5)
    condition = await cluster.condition("n0", "Rebooting")
    assert condition is not None
    assert condition[:2] == ("False", "RebootFailed")
    assert condition[2].startswith("invalid reboot request: ")
    assert [event.message for event in await cluster.events("RebootFailed", "n0")] == [condition[2]]
    assert await leaving(cluster) == []
    assert cluster.counted("nodes_reboots_total", result="invalid_request") == 1


@in_virtual_time
async def test_a_started_reboot_ends_with_repair_switched_off_and_after_a_crash(cluster: VirtualCluster) -> None:
    """K15-282, K15-286, K15-010: the boot ID that has changed already is no second call."""
    await start_with_nodes(cluster)
    asked = rebooting(cluster, False)
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False")
    await until(lambda: _is_phase(cluster, ("True", "RebootIssued")), 900)
    await cluster.crash()
    await set_boot_id(cluster, "n0", "boot-2")
    await cluster.start(Settings())
    await until(lambda: _is_phase(cluster, ("False", "RebootSucceeded")), 60)
    assert len(asked) == 1


def test_the_third_repair_within_a_day_is_no_reboot() -> None:
    """K15-236: by uid, and only in memory."""
    history, one = RebootHistory(), claim("c", {})
    history.record(one.metadata.uid, NOW)
    assert history.exhausted([one], NOW) == frozenset()
    history.record(one.metadata.uid, NOW + MINUTE)
    assert history.exhausted([one], NOW + 2 * MINUTE) == {"c"}
    assert history.exhausted([one], NOW + timedelta(hours=24)) == frozenset()


@in_virtual_time
async def test_without_valid_policies_the_process_does_not_start(cluster: VirtualCluster) -> None:
    """K15-051, K15-S23; K15-046: the controller of release 1.14 does without."""
    asked = Settings(profile=Profile.KARPENTER, feature_gates=ON.feature_gates)
    with pytest.raises(InvalidRepairPolicies, match="requires the cloud provider to define RepairPolicies"):
        await cluster.start(asked)
    await cluster.start(replace(asked, legacy_node_repair=True))
    await cluster.stop()


@in_virtual_time
async def test_repair_that_is_on_by_default_does_not_refuse_a_provider_without_policies(
    cluster: VirtualCluster,
) -> None:
    """DIS-380: a provider of another package may define none. One that defines them wrongly is refused all the same.

    Who asked for repair is warned.
    """
    for given, level in ((None, "INFO"), ("NodeOverlay=false", "INFO"), ("NodeRepair=true", "WARNING")):
        await cluster.start(resolve_settings({"feature_gates": given}, {}))
        line = cluster.lines("node repair is off: the cloud provider defines no repair policies")[-1]
        assert line["level"] == level, given
        await cluster.stop()
    cluster.cloud.repair_policies = lambda: POLICIES[1:]
    with pytest.raises(InvalidRepairPolicies, match="exactly one policy must have no reason pattern"):
        await cluster.start(Settings())


@in_virtual_time
async def test_one_broken_node_is_repaired_without_any_setting(cluster: VirtualCluster) -> None:
    await start_with_nodes(cluster, Settings())
    await cluster.set_condition(kinds.NODE, "n0", "DiskReady", "False")
    await until(lambda: _has(cluster, 6), 700)


@in_virtual_time
async def test_in_the_profile_karpenter_nothing_is_repaired_by_default(cluster: VirtualCluster) -> None:
    """K15-043: its defaults are those of Karpenter."""
    await start_with_nodes(cluster, resolve_settings({"profile": "karpenter"}, {}))
    await cluster.set_condition(kinds.NODE, "n0", "DiskReady", "False")
    await cluster.set_ready("n1", "False")
    await asyncio.sleep(2 * 60 * 60)
    assert await leaving(cluster) == []
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 5


@pytest.mark.parametrize("lost", [2, 3, 5])
@in_virtual_time
async def test_kubelets_that_lose_the_api_server_cost_no_node(cluster: VirtualCluster, lost: int) -> None:
    """K15-228: a zone without network, or all kubelets cut off, for two hours. After that one broken node is repaired."""
    await start_with_nodes(cluster, Settings(), policies=(*POLICIES, UNKNOWN))
    for number in range(lost):
        await cluster.set_ready(f"n{number}", "Unknown")
    await asyncio.sleep(2 * 60 * 60)
    assert {one.metadata.name for one in await cluster.all(kinds.NODE_CLAIM)} == {f"n{number}" for number in range(5)}
    assert await leaving(cluster) == []
    assert await cluster.events("NodeRepairBlocked")
    for number in range(lost):
        await cluster.set_ready(f"n{number}", "True")
    await asyncio.sleep(60)
    assert await leaving(cluster) == []
    await cluster.set_condition(kinds.NODE, "n0", "DiskReady", "False")
    await until(lambda: _has(cluster, 6), 700)


@in_virtual_time
async def test_nodes_without_a_claim_are_never_repaired(cluster: VirtualCluster) -> None:
    """K15-222: a node of a node group, of a host joined by hand, or of another product is not ours to replace."""
    await start_with_nodes(cluster, Settings())
    await cluster.kube.create(kinds.NODE, node("group-1", {"cpu": "4"}, labels={labels.NODE_POOL: "np"}))
    await cluster.set_condition(kinds.NODE, "group-1", "DiskReady", "False")
    await asyncio.sleep(60 * 60)
    assert "group-1" in {one.metadata.name for one in await cluster.all(kinds.NODE)}
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 5
