"""What is written on NodePools: hash and its version, conditions, counters, advice (API §2.3, §12.1, §13.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodeClassReference, NodePool
from karpenter.kube.errors import Conflict, ServerUnavailable
from karpenter.model import labels, nodepool_hash
from karpenter.model import resources as res
from karpenter.nodepool.counter import NodePoolResourceCounter
from karpenter.state import ClusterState
from support.builders import claim, node_and_claim, node_pool, wanted
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing

HASH, VERSION = labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION
CALM = Disruption(consolidate_after="Never")


async def start_with_pool(cluster: VirtualCluster, **fields: Any) -> NodePool:
    await cluster.node_class()
    made = await cluster.pool(**{"disruption": CALM, **fields})
    await cluster.start()
    await asyncio.sleep(1)
    return made


async def stamps(cluster: VirtualCluster, kind: Any = kinds.NODE_POOL, name: str = "np") -> tuple[str, str]:
    result = (await cluster.kube.get(kind, name)).metadata.annotations
    return result.get(HASH, ""), result.get(VERSION, "")


async def current(cluster: VirtualCluster) -> str:
    return nodepool_hash.node_pool_hash(await cluster.kube.get(kinds.NODE_POOL, "np"))


# -- hash --------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_pool_carries_its_hash_and_follows_its_template(cluster: VirtualCluster) -> None:
    """API-500, API-503, API-505, API-642, API-S231.

    API-453, DIS-354: hash and version are annotations that a controller writes.
    """
    await start_with_pool(cluster)
    first = await stamps(cluster)
    assert first == (await current(cluster), nodepool_hash.NODE_POOL_HASH_VERSION)
    labelled = {"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", labelled)
    await asyncio.sleep(1)
    second = await stamps(cluster)
    assert second[0] == await current(cluster) != first[0]


@in_virtual_time
async def test_what_a_hash_does_not_cover_writes_none(cluster: VirtualCluster) -> None:
    """API-501, API-S230, API-516"""
    await start_with_pool(cluster)
    first = await stamps(cluster)
    changed = {"spec": {"weight": 5, "limits": {"cpu": "10"}, "disruption": {"consolidateAfter": "5m"}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", changed)
    await asyncio.sleep(1)
    assert await stamps(cluster) == first


@in_virtual_time
async def test_a_hash_taken_away_or_changed_by_hand_is_put_back(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster)
    first = await stamps(cluster)
    for edit in ({HASH: None}, {HASH: "banana"}, {HASH: None, VERSION: None}):
        await cluster.edit(kinds.NODE_POOL, "np", annotations=edit)
        await asyncio.sleep(1)
        assert await stamps(cluster) == first


async def adopted(cluster: VirtualCluster, *stamped: dict[str, str], drifted: bool = False) -> list[tuple[str, str]]:
    """Claims with these annotations in a cluster that another implementation ran; theirs once our controller has started."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=CALM)
    await cluster.edit(kinds.NODE_POOL, "np", annotations={HASH: "123", VERSION: "v3"})
    for number, stamp in enumerate(stamped):
        await cluster.owned_claim(pool, f"c{number}", metadata={"annotations": stamp})
        if drifted:
            drift = {"type": "Drifted", "status": "True", "reason": "NodePoolDrifted", "message": "NodePoolDrifted"}
            moment = {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
            await cluster.edit(kinds.NODE_CLAIM, f"c{number}", {"conditions": [{**drift, **moment}]})
    await cluster.start()
    await asyncio.sleep(2)
    return [await stamps(cluster, kinds.NODE_CLAIM, f"c{number}") for number in range(len(stamped))]


@in_virtual_time
async def test_claims_of_another_version_are_taken_over_with_their_pool(cluster: VirtualCluster) -> None:
    """API-504, API-505, DIS-355, API-S233: nothing drifts because another implementation created it."""
    actual = await adopted(cluster, {HASH: "123", VERSION: "v3"}, {HASH: "9", VERSION: "v2"}, {HASH: "77"}, {})
    ours = (await current(cluster), nodepool_hash.NODE_POOL_HASH_VERSION)
    assert actual == [ours] * 4
    assert await stamps(cluster) == ours
    (line,) = cluster.lines("took over nodeclaims stamped by another version")
    assert (line["NodePool"], line["nodeclaims"]) == ({"name": "np"}, 4)


@in_virtual_time
async def test_a_claim_that_had_drifted_keeps_the_hash_it_drifted_by(cluster: VirtualCluster) -> None:
    """API-504, DIS-355"""
    (actual,) = await adopted(cluster, {HASH: "9", VERSION: "v3"}, drifted=True)
    assert actual == ("9", nodepool_hash.NODE_POOL_HASH_VERSION)


@in_virtual_time
async def test_a_claim_of_todays_version_is_left_as_it_is(cluster: VirtualCluster) -> None:
    """API-504: its hash differs, so it has drifted; that must show."""
    (actual,) = await adopted(cluster, {HASH: "9", VERSION: nodepool_hash.NODE_POOL_HASH_VERSION})
    assert actual == ("9", nodepool_hash.NODE_POOL_HASH_VERSION)


@in_virtual_time
async def test_an_edit_of_the_pool_later_changes_no_claim(cluster: VirtualCluster) -> None:
    """API-504, API-S231, API-S232: only a new version does. A claim without a hash never gets one."""
    pool = await start_with_pool(cluster)
    await cluster.owned_claim(pool, "old", metadata={"annotations": {HASH: "9", VERSION: "v3"}})
    await cluster.owned_claim(pool, "bare")
    labelled = {"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", labelled)
    await asyncio.sleep(2)
    assert await stamps(cluster, kinds.NODE_CLAIM, "old") == ("9", "v3")
    assert await stamps(cluster, kinds.NODE_CLAIM, "bare") == ("", "")


@pytest.mark.parametrize(
    "error",
    [lambda: Conflict("changed", status=409), lambda: ServerUnavailable("broken", status=500)],
    ids=["409", "500"],
)
@in_virtual_time
async def test_the_pool_is_stamped_only_after_all_its_claims(cluster: VirtualCluster, error: Any) -> None:
    """API-504: what an interruption leaves undone is done later."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=CALM)
    await cluster.edit(kinds.NODE_POOL, "np", annotations={VERSION: "v3"})
    for number in range(30):
        await cluster.owned_claim(pool, f"c{number}", metadata={"annotations": {HASH: "1", VERSION: "v3"}})
    await cluster.start()
    refuse = refusing(error, 10**6, "patch NodeClaim")
    cluster.connection.refuse = refuse
    await asyncio.sleep(1)
    done = [await stamps(cluster, kinds.NODE_CLAIM, f"c{number}") for number in range(30)]
    assert ("1", "v3") in done
    assert (await stamps(cluster))[1] == "v3"
    await cluster.crash()
    await cluster.start()
    await asyncio.sleep(90)
    ours = (await current(cluster), nodepool_hash.NODE_POOL_HASH_VERSION)
    assert {await stamps(cluster, kinds.NODE_CLAIM, f"c{number}") for number in range(30)} == {ours}
    assert await stamps(cluster) == ours


# -- readiness ---------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_class_without_conditions_leaves_its_pools_unready(cluster: VirtualCluster) -> None:
    """API-S247, API-641"""
    await cluster.node_class()
    await cluster.pool(disruption=CALM)
    await cluster.edit(kinds.KWOK_NODE_CLASS, "default", {"conditions": []})
    await cluster.start()
    await asyncio.sleep(1)
    expected = ("False", "NodeClassReadinessUnknown", "Node Class Readiness Unknown")
    assert await cluster.pool_condition("NodeClassReady") == expected
    assert (await cluster.pool_condition("Ready"))[0] == "False"


@pytest.mark.parametrize("reason", ["", "not a reason!"])
@in_virtual_time
async def test_a_class_whose_reason_no_condition_can_have_is_reported_all_the_same(
    cluster: VirtualCluster, reason: str
) -> None:
    """API-641, API-607: a class of another schema must not keep its pools from saying why."""
    from karpenter.api.meta import Condition
    from karpenter.model import conditions
    from karpenter.nodepool.readiness import NodeClassState, node_class_ready_condition

    state = NodeClassState((Condition(type="Ready", status="False", reason=reason, message="why"),), deleting=False)
    owner = conditions.conditioned_object(conditions.NODE_POOL, node_pool("np").metadata, cluster.clock.now())
    condition = conditions.find_condition(
        conditions.set_condition((), node_class_ready_condition(state), owner), "NodeClassReady"
    )
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == ("False", "NodeClassReady", "why")


@in_virtual_time
async def test_an_edited_pool_is_validated_again(cluster: VirtualCluster) -> None:
    """API-640: also after the same generation was found sound."""
    await start_with_pool(cluster)
    assert (await cluster.pool_condition("ValidationSucceeded"))[0] == "True"
    bad = {
        "spec": {
            "template": {"spec": {"requirements": [{"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["x"]}]}}
        }
    }
    await cluster.kube.patch(kinds.NODE_POOL, "np", bad)
    await asyncio.sleep(1)
    assert (await cluster.pool_condition("ValidationSucceeded"))[:2] == ("False", "NodePoolValidationFailed")
    good = {"spec": {"template": {"spec": {"requirements": []}}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", good)
    await asyncio.sleep(1)
    assert (await cluster.pool_condition("Ready"))[0] == "True"


@in_virtual_time
async def test_a_pool_that_contradicts_the_rules_is_a_warning_once_for_each_edition(cluster: VirtualCluster) -> None:
    """API-640: events on the pool report it as well as conditions."""
    sopt = wanted(labels.CAPACITY_TYPE, "In", "sopt")
    await start_with_pool(cluster, requirements=(sopt,))
    (event,) = await cluster.events("NodePoolValidationFailed")
    assert (event.type, event.involved_object.kind, event.involved_object.name) == ("Warning", "NodePool", "np")
    assert event.message == (await cluster.pool_condition("ValidationSucceeded"))[2]
    assert "no value is one of on-demand, reserved, spot" in event.message
    await cluster.edit(kinds.NODE_POOL, "np", {"conditions": []})
    await asyncio.sleep(300)
    assert len(await cluster.events("NodePoolValidationFailed")) == 1
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"weight": 3}})
    await asyncio.sleep(1)
    assert len(await cluster.events("NodePoolValidationFailed")) == 2
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"spec": {"requirements": []}}}})
    await asyncio.sleep(300)
    assert len(await cluster.events("NodePoolValidationFailed")) == 2


@in_virtual_time
async def test_conditions_of_a_pool_edited_by_hand_are_put_back(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster)
    before = (await cluster.kube.get(kinds.NODE_POOL, "np")).status
    await cluster.edit(kinds.NODE_POOL, "np", {"conditions": [], "resources": {"cpu": "999"}, "nodes": 7})
    await asyncio.sleep(10)
    after = (await cluster.kube.get(kinds.NODE_POOL, "np")).status
    assert {condition.type: condition.status for condition in after.conditions} == {
        condition.type: condition.status for condition in before.conditions
    }
    assert (after.nodes, dict(after.resources)["cpu"]) == (0, "0")


@in_virtual_time
async def test_a_pool_of_another_providers_class_gets_no_hash_and_no_advice(cluster: VirtualCluster) -> None:
    """API-S249"""
    foreign = NodeClassReference(group="other.example", kind="OtherClass", name="x")
    nodepool = node_pool("np", requirements=(wanted(labels.CAPACITY_TYPE, "In", "spot", "sopt"),))
    spec = msgspec.structs.replace(nodepool.spec.template.spec, node_class_ref=foreign)
    template = msgspec.structs.replace(nodepool.spec.template, spec=spec)
    bare = msgspec.structs.replace(nodepool.metadata, uid="")
    status = type(nodepool.status)()
    changed = msgspec.structs.replace(
        nodepool, metadata=bare, status=status, spec=msgspec.structs.replace(nodepool.spec, template=template)
    )
    await cluster.kube.create(kinds.NODE_POOL, changed)
    await cluster.start()
    await asyncio.sleep(30)
    assert await stamps(cluster) == ("", "")
    assert await cluster.events(about="NodePool") == []


# -- advice ------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_advice_is_given_once_and_again_after_an_edit(cluster: VirtualCluster) -> None:
    """API-078, API-088 and their Beyond"""
    await start_with_pool(
        cluster,
        requirements=(wanted(labels.CAPACITY_TYPE, "In", "spot", "sopt"),),
        disruption=Disruption(
            consolidate_after="Never", budgets=(Budget(nodes="1", schedule="99 99 99 99 99", duration="1h"),)
        ),
    )
    events = await cluster.events("NodePoolAdvice")
    assert {(event.type, event.involved_object.name) for event in events} == {("Warning", "np")}
    texts = " ".join(event.message for event in events)
    assert "sopt" in texts
    assert "spec.disruption.budgets[0]" in texts
    (line,) = cluster.lines("please correct found invalid values, proceeding with valid values")
    assert (line["key"], line["valid-values"], line["invalid-values"]) == (labels.CAPACITY_TYPE, ["spot"], ["sopt"])
    assert (line["level"], line["NodePool"]) == ("ERROR", {"name": "np"})
    assert (await cluster.pool_condition("Ready"))[0] == "True"
    await asyncio.sleep(300)
    assert len(await cluster.events("NodePoolAdvice")) == len(events)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"weight": 3}})
    await asyncio.sleep(1)
    assert len(await cluster.events("NodePoolAdvice")) == 2 * len(events)


# -- counters ----------------------------------------------------------------------------------------------------------------


def views(*objects: object) -> ClusterState:
    """Cluster state with these nodes and claims of a NodePool that exists."""
    state = ClusterState()
    state.set_pool(node_pool())
    for element in objects:
        for part in element if isinstance(element, tuple) else (element,):
            (state.set_claim if hasattr(part.spec, "node_class_ref") else state.set_node)(part)
    return state


def held(sums: NodePoolResourceCounter, pool: str = "np") -> dict[str, int]:
    return {name: amount // res.ONE_UNIT for name, amount in sums.resources_of(pool).items() if amount}


def test_sums_follow_every_change_of_a_node() -> None:
    """API-645, OPS-113, OPS-S13, OPS-S14: launched, initialized, moved to another pool, marked, gone."""
    sums, state = NodePoolResourceCounter(), views()

    def count() -> None:
        sums.update(state.state_nodes())

    count()
    assert held(sums) == {}
    assert set(sums.resources_of("np")) == {"cpu", "memory", "pods", "ephemeral-storage", "nodes"}
    state.set_claim(claim("c"))
    count()
    assert held(sums) == {"nodes": 1}
    state.set_claim(claim("c", {"cpu": "4"}, provider_id="p://c"))
    count()
    assert held(sums) == {"cpu": 4, "pods": 110, "nodes": 1}
    node, owner = node_and_claim("n", {"cpu": "2", "pods": "20", "example.com/gpu": "1"})
    state.set_node(node)
    state.set_claim(owner)
    count()
    assert held(sums) == {"cpu": 6, "pods": 130, "nodes": 2, "example.com/gpu": 1}
    state.mark_for_deletion(owner.metadata.name)
    count()
    assert held(sums) == {"cpu": 4, "pods": 110, "nodes": 1}
    state.unmark_for_deletion(owner.metadata.name)
    moved, _ = node_and_claim("n", {"cpu": "2", "pods": "20"}, pool="other")
    state.set_node(moved)
    count()
    assert held(sums) == {"cpu": 4, "pods": 110, "nodes": 1}
    assert held(sums, "other") == {"cpu": 2, "pods": 20, "nodes": 1}
    for name in ("c", owner.metadata.name):
        state.remove_claim(name)
    state.remove_node("n")
    count()
    assert held(sums) == held(sums, "other") == {}


def test_nodes_of_no_pool_or_without_a_claim_are_in_no_sum() -> None:
    node, owner = node_and_claim("n", {"cpu": "2"})
    sums = NodePoolResourceCounter()
    sums.update(views(node).state_nodes())
    assert held(sums) == {}
    sums.update(views(claim("c", {"cpu": "4"}, pool="", provider_id="p://c")).state_nodes())
    assert held(sums) == {}
    sums.update(views(node, owner).state_nodes())
    assert held(sums)["cpu"] == 2


def test_an_unchanged_cluster_is_not_added_up_again() -> None:
    """API-645 at 5000 nodes: a count costs what changed."""

    class Counting(dict[str, int]):
        read = 0

        def items(self) -> Any:
            Counting.read += 1
            return super().items()

    state = views(*(node_and_claim(f"n{number:04}", {"cpu": "2"}) for number in range(500)))
    from dataclasses import replace

    shown = tuple(replace(view, capacity=Counting(view.capacity)) for view in state.state_nodes())
    sums = NodePoolResourceCounter()
    sums.update(shown)
    assert Counting.read == 500
    sums.update(shown)
    assert Counting.read == 500
    sums.update((*shown[:7], replace(shown[7]), *shown[8:]))
    assert Counting.read == 502
    assert held(sums)["nodes"] == 500


@in_virtual_time
async def test_a_quiet_cluster_writes_no_pool(cluster: VirtualCluster) -> None:
    pool = await start_with_pool(cluster)
    for name in ("c", "d"):
        await cluster.owned_claim(pool, name)
    await asyncio.sleep(20)
    written = len(cluster.writes("NodePool"))
    await asyncio.sleep(120)
    assert len(cluster.writes("NodePool")) == written
