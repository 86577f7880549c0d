"""Consolidation end to end: underutilized nodes are removed or replaced, and every pod keeps a node to run on (DIS §9,
§11).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment
from karpenter.api.karpenter import Budget
from karpenter.disruption import disruption_controller
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.model import conditions, labels, pods
from support.builders import budget
from support.consolidation_cases import begin, deployment, runs, scale
from support.virtual_cluster import VirtualCluster, in_virtual_time, until


async def instance_types(cluster: VirtualCluster) -> list[str]:
    """The instance types of all nodes that are not being deleted."""
    claims = [claim for claim in await cluster.all(kinds.NODE_CLAIM) if claim.metadata.deletion_timestamp is None]
    return sorted(claim.metadata.labels.get(labels.INSTANCE_TYPE, "") for claim in claims)


async def least_running(cluster: VirtualCluster, seconds: int) -> int:
    """The fewest pods that were ready at any second."""
    fewest = 10**6
    for _ in range(seconds):
        result = [
            obj
            for obj in await cluster.all(kinds.POD)
            if obj.status.phase == "Running" and obj.metadata.deletion_timestamp is None
        ]
        fewest = min(fewest, len(result))
        await asyncio.sleep(1)
    return fewest


@in_virtual_time
async def test_after_pods_have_gone_the_rest_moves_together_and_everything_runs(cluster: VirtualCluster) -> None:
    """DIS-S110, DIS-S150: what is left costs a fraction, and every move was validated before."""
    await begin(cluster, *(deployment(f"w{number}", 4) for number in range(6)))
    before = await instance_types(cluster)
    for number in range(6):
        await scale(cluster, f"w{number}", 1)
    await asyncio.sleep(900)
    assert await runs(cluster, 6)
    after = await instance_types(cluster)
    size = {f"t{number}": number + 1 for number in range(8)}
    assert sum(size[name] for name in after) <= 8 < sum(size[name] for name in before)
    begun = cluster.lines("disrupting node(s)")
    assert begun
    assert len(cluster.lines("command succeeded")) == len(begun)
    assert not cluster.lines("failed terminating nodes while executing a disruption command")
    quiet = len(begun)
    await asyncio.sleep(3600)
    assert len(cluster.lines("disrupting node(s)")) == quiet, "no move follows the last one while nothing changes"


@in_virtual_time
async def test_a_decision_that_a_thread_computes_is_known_to_be_in_progress(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the console waits for it instead of taking turns with it."""
    known: list[bool] = []

    def is_known() -> bool:
        assert cluster.manager is not None
        return cluster.manager.context.decisions.are_in_progress

    def watched(*given: Any) -> Any:
        known.append(is_known())
        return decide_disruption(*given)

    monkeypatch.setattr(disruption_controller, "_THREADED_DECISION_NODES", 0)
    monkeypatch.setattr(disruption_controller, "decide_disruption", watched)
    await begin(cluster, deployment("web", 4))
    assert known
    assert all(known)
    assert not is_known()


@in_virtual_time
async def test_a_budget_over_pods_holds_while_they_move(cluster: VirtualCluster) -> None:
    """No more pods are away than their budget allows."""
    await begin(cluster, deployment("web", 16))
    guard = budget("web", {"app": "web"}, max_unavailable=1)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, guard)
    await scale(cluster, "web", 8)
    await until(lambda: runs(cluster, 8), 120)
    assert await least_running(cluster, 1500) >= 7
    assert await runs(cluster, 8)
    assert cluster.lines("command succeeded")


@in_virtual_time
async def test_a_protected_pod_is_not_moved(cluster: VirtualCluster) -> None:
    """DIS-079. API-S220."""
    await begin(cluster, deployment("web", 12), protected("kept", 3))
    before = {obj.metadata.uid for obj in await cluster.all(kinds.POD) if obj.metadata.labels["app"] == "kept"}
    await scale(cluster, "web", 3)
    await asyncio.sleep(1200)
    assert {obj.metadata.uid for obj in await cluster.all(kinds.POD) if obj.metadata.labels["app"] == "kept"} == before
    assert await runs(cluster, 6)


def protected(name: str, replicas: int) -> Deployment:
    """A workload whose pods must not be disrupted."""
    plain = deployment(name, replicas)
    meta = msgspec.structs.replace(plain.spec.template.metadata, annotations={labels.DO_NOT_DISRUPT: "true"})
    template = msgspec.structs.replace(plain.spec.template, metadata=meta)
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, template=template))


async def half_empty(cluster: VirtualCluster) -> None:
    """Nodes that the next pass would consolidate: five minutes old, half of their pods gone a while ago."""
    await begin(cluster, deployment("web", 12), budgets=(Budget(nodes="0"),))
    await asyncio.sleep(300)
    await scale(cluster, "web", 4)
    await until(lambda: runs(cluster, 4), 120)
    await asyncio.sleep(60)


@in_virtual_time
async def test_the_controller_does_not_move_itself_for_money(cluster: VirtualCluster) -> None:
    """DIS-469: whichever pod it is, that one stays where it is while others move."""
    await half_empty(cluster)
    before = {obj.metadata.uid for obj in await cluster.all(kinds.POD)}
    for own in await cluster.all(kinds.POD):
        await cluster.stop()
        cluster.own_pod = (own.metadata.namespace, own.metadata.name)
        await cluster.start()
        await open_budgets(cluster)
        await asyncio.sleep(600)
        left = {obj.metadata.uid for obj in await cluster.all(kinds.POD)}
        assert own.metadata.uid in left
        if left != before:
            return
        await open_budgets(cluster, "0")
    raise AssertionError("nothing moved, whoever the controller was")


async def open_budgets(cluster: VirtualCluster, nodes: str = "100%") -> None:
    change = {"spec": {"disruption": {"budgets": [{"nodes": nodes}]}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", change)


async def considered(cluster: VirtualCluster) -> bool:
    assert cluster.manager is not None
    return bool(cluster.manager.disruption.awaiting_validation)


async def chosen(cluster: VirtualCluster) -> list[str]:
    """Wait until consolidation has chosen nodes, and return them."""
    await open_budgets(cluster)
    await until(lambda: considered(cluster), 30, 0.5)
    assert cluster.manager is not None
    return [
        candidate.state_node.name
        for command in cluster.manager.disruption.awaiting_validation
        if command.reason == "Underutilized"
        for candidate in command.candidates
    ]


@in_virtual_time
async def test_a_command_that_passes_validation_is_executed(cluster: VirtualCluster) -> None:
    """DIS-S186, DIS-023: not before fifteen seconds have passed.

    DIS-395: the event ConsolidationCandidate names the saving.
    """
    await half_empty(cluster)
    names = await chosen(cluster)
    assert names
    candidates = [event for event in await cluster.events("ConsolidationCandidate") if "savings: $" in event.message]
    assert {event.involved_object.kind for event in candidates} == {"Node", "NodeClaim"}
    await asyncio.sleep(13)
    assert not cluster.lines("disrupting node(s)")
    await asyncio.sleep(4)
    gone = [
        node["Node"]["name"]
        for line in cluster.lines("disrupting node(s)")
        if line["reason"] == "Underutilized"
        for node in line["disrupted-nodes"]
    ]
    assert sorted(gone) == sorted(names)


@pytest.mark.parametrize(
    "change", ["pod", "nominated", "node", "budget"], ids=["DIS-S180", "DIS-S182", "DIS-S165", "DIS-S183"]
)
@in_virtual_time
async def test_what_has_changed_meanwhile_is_left_alone(cluster: VirtualCluster, change: str) -> None:
    """DIS-S180, DIS-S182, DIS-S183: the node stays, the refusal is counted.

    DIS-396, OPS-520: the event `ConsolidationRejected` names the reason.
    DIS-271, DIS-274: what was nominated or lost its budget is refused, and each candidate is counted.
    """
    await half_empty(cluster)
    names = await chosen(cluster)
    name = names[0]
    assert cluster.manager is not None
    await asyncio.sleep(5)
    if change == "pod":
        await cluster.running("guard", name, meta={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    elif change == "nominated":
        from datetime import timedelta

        claim = next(view.key for view in cluster.manager.state.state_nodes() if view.name == name)
        cluster.manager.state.nominate(claim, cluster.clock.now() + timedelta(seconds=60))
    elif change == "node":
        await cluster.kube.patch(kinds.NODE, name, {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}})
    else:
        await open_budgets(cluster, "0")
    await asyncio.sleep(12)
    begun = [node["Node"]["name"] for line in cluster.lines("disrupting node(s)") for node in line["disrupted-nodes"]]
    assert name not in begun
    if change != "budget":
        rejected = await cluster.events("ConsolidationRejected")
        assert any(event.involved_object.name == name and "rejected: churn" in event.message for event in rejected)
        counted = sum(
            cluster.counted("voluntary_disruption_failed_validations_total", consolidation_type=kind)
            for kind in ("multi", "single")
        )
        assert counted >= 1


@in_virtual_time
async def test_a_budget_over_pods_that_closes_meanwhile_keeps_the_node(cluster: VirtualCluster) -> None:
    """DIS-S181"""
    await half_empty(cluster)
    names = await chosen(cluster)
    await asyncio.sleep(5)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("shut", {"app": "web"}, max_unavailable=0))
    await asyncio.sleep(60)
    begun = [node["Node"]["name"] for line in cluster.lines("disrupting node(s)") for node in line["disrupted-nodes"]]
    assert set(begun).isdisjoint(names)


@in_virtual_time
async def test_a_drifted_node_is_replaced_without_validation(cluster: VirtualCluster) -> None:
    """DIS-S187, DIS-S190: its replacement is there before it goes. DIS-228, DIS-232: drift has no validation wait."""
    await begin(cluster, deployment("web", 4), budgets=(Budget(nodes="1"),))
    await asyncio.sleep(30)
    old = {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}
    since = cluster.elapsed
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await until(lambda: _begun(cluster), 12, 0.1)
    assert cluster.elapsed - since <= 11
    await until(lambda: _all_new(cluster, old), 900, 1)
    assert await runs(cluster, 4)
    lines = cluster.lines("disrupting node(s)")
    assert {line["reason"] for line in lines} == {"Drifted"}
    assert all(claim.metadata.labels.get("a") == "b" for claim in await cluster.all(kinds.NODE_CLAIM))


async def _begun(cluster: VirtualCluster) -> bool:
    return bool(cluster.lines("disrupting node(s)"))


async def _all_new(cluster: VirtualCluster, old: set[str]) -> bool:
    return old.isdisjoint(claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM))


@in_virtual_time
async def test_drift_keeps_to_its_budget_while_nodes_are_replaced(cluster: VirtualCluster) -> None:
    """DIS-S012, DIS-S196: never more than the budget are on their way out."""
    await begin(cluster, *(deployment(f"w{number}", 1, "6500m") for number in range(6)), budgets=(Budget(nodes="2"),))
    await asyncio.sleep(30)
    old = {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}
    assert len(old) == 6
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    most = 0
    for _ in range(600):
        ending = {
            claim.status.node_name
            for claim in await cluster.all(kinds.NODE_CLAIM)
            if conditions.is_true(claim.status.conditions, "InstanceTerminating")
        }
        nodes = [node for node in await cluster.all(kinds.NODE) if node.metadata.name not in ending]
        most = max(most, sum(labels.DISRUPTED_TAINT in node.spec.taints for node in nodes))
        await asyncio.sleep(1)
    assert most == 2
    assert await _all_new(cluster, old)
    assert await runs(cluster, 6)


@in_virtual_time
async def test_a_command_that_waits_for_validation_delays_no_other(cluster: VirtualCluster) -> None:
    """DIS §3 Beyond: drift begins while emptiness waits."""
    await begin(cluster, *(deployment(f"w{number}", 1, "6500m") for number in range(3)))
    await asyncio.sleep(330)
    await scale(cluster, "w0", 0)
    await until(lambda: considered(cluster), 30, 0.5)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await until(lambda: _begun(cluster), 12, 0.1)
    assert await considered(cluster)
    assert [line["reason"] for line in cluster.lines("disrupting node(s)")] == ["Drifted", "Drifted"]


@in_virtual_time
async def test_a_replacement_is_not_taken_for_empty_while_its_pods_are_on_their_way(cluster: VirtualCluster) -> None:
    """A slow drain, such as one that a PodDisruptionBudget blocks, must not remove the replacement node."""
    await begin(cluster, deployment("web", 1), budgets=(Budget(nodes="100%"),))
    await asyncio.sleep(30)
    (pod,) = await cluster.all(kinds.POD)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await until(lambda: _begun(cluster), 30, 0.1)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("shut", {"app": "web"}, min_available=1))
    await asyncio.sleep(600)
    assert (await cluster.all(kinds.POD))[0].metadata.uid == pod.metadata.uid
    assert len([c for c in await cluster.all(kinds.NODE_CLAIM) if c.metadata.deletion_timestamp is None]) == 1
    await cluster.kube.delete(kinds.POD_DISRUPTION_BUDGET, "shut", "default")
    await asyncio.sleep(120)
    assert len(cluster.lines("disrupting node(s)")) == 1
    assert await runs(cluster, 1)
    assert len([obj for obj in await cluster.all(kinds.POD) if pods.is_reschedulable(obj)]) == 1


@in_virtual_time
async def test_balanced_pools_say_what_a_move_is_worth(cluster: VirtualCluster) -> None:
    """DIS-260 to DIS-264, DIS-S330.

    DIS-397, 258, OPS-521: the event `ConsolidationApproved` and the log line have the figures.
    """
    await begin(cluster, deployment("web", 12), policy="Balanced")
    await asyncio.sleep(300)
    await scale(cluster, "web", 4)
    await asyncio.sleep(300)
    said = await cluster.events("ConsolidationApproved")
    assert said
    assert all("threshold 0.50, k: 2, savings" in event.message for event in said)
    moved = [line for line in cluster.lines("disrupting node(s)") if line["reason"] == "Underutilized"]
    assert moved
    counted = cluster.counted("consolidation_moves_total", decision="approved", nodepool="np", policy="Balanced")
    assert counted >= len(moved)
    scored = cluster.lines("consolidation score")
    assert {line["nodepool"] for line in scored} == {"np"}
    assert all(line["approved"] for line in scored)
