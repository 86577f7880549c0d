"""Claims and Nodes edited by hand into impossible states: some are repaired, some only reported, and nothing breaks.

The table is one edit per row, made on a node that is up; soon afterwards everything is as before. What follows it are edits
after which nobody can know what is right, and edits made earlier in a node's life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import Condition
from karpenter.model import conditions, labels
from karpenter.model.clock import rfc3339
from support.edited_nodeclaims import bugs, up
from support.virtual_cluster import START, VirtualCluster, in_virtual_time

CLASS_LABEL = "karpenter.kwok.sh/kwoknodeclass"
Edit = Callable[[VirtualCluster], Awaitable[None]]


def on_claim(status: dict[str, Any] | None = None, **metadata: Any) -> Edit:
    return lambda cluster: cluster.edit(kinds.NODE_CLAIM, "c", status or {}, **metadata)


def on_node(**metadata: Any) -> Edit:
    return lambda cluster: cluster.edit(kinds.NODE, "node-c", **metadata)


def without(*types: str) -> Edit:
    """Conditions taken away."""
    return _conditions(lambda condition: None if condition.type in types else condition)


def set_false(type_: str) -> Edit:
    def changed(condition: Condition) -> Condition:
        return (
            msgspec.structs.replace(condition, status="False", reason="ByHand")
            if condition.type == type_
            else condition
        )

    return _conditions(changed)


def _conditions(change: Callable[[Condition], Condition | None]) -> Edit:
    async def edit(cluster: VirtualCluster) -> None:
        result = (change(condition) for condition in (await cluster.get_claim()).status.conditions)
        kept = [condition for condition in result if condition is not None]
        await cluster.edit(kinds.NODE_CLAIM, "c", {"conditions": msgspec.to_builtins(kept)})

    return edit


NONSENSE = {
    "karpenter.sh/nodepool-hash": "banana",
    "karpenter.sh/nodepool-hash-version": "v0",
    "karpenter.sh/do-not-disrupt": "perhaps",
    "karpenter.sh/nodeclaim-termination-timestamp": "soon",
    "karpenter.sh/nodeclaim-min-values-relaxed": "?",
}

HEALS: dict[str, Edit] = {
    "claim: finalizer removed": on_claim(finalizers=[]),
    "claim: provider ID changed": on_claim({"providerID": "nonsense"}),
    "claim: provider ID of another cloud": on_claim({"providerID": "other:///i-1"}),
    "claim: provider ID removed": on_claim({"providerID": ""}),
    "claim: node name changed": on_claim({"nodeName": "elsewhere"}),
    "claim: node name removed": on_claim({"nodeName": ""}),
    "claim: provider ID and node name removed": on_claim({"providerID": "", "nodeName": "", "conditions": []}),
    "claim: Launched removed": without("Launched"),
    "claim: Registered removed": without("Registered"),
    "claim: Initialized removed": without("Initialized"),
    "claim: Ready removed": without("Ready"),
    "claim: all conditions removed": on_claim({"conditions": []}),
    "claim: Launched set False": set_false("Launched"),
    "claim: Registered set False": set_false("Registered"),
    "claim: Initialized set False": set_false("Initialized"),
    "claim: Ready set False": set_false("Ready"),
    "claim: pool label removed": on_claim(labels={labels.NODE_POOL: None}),
    "claim: class label removed": on_claim(labels={CLASS_LABEL: None}),
    "claim: class label changed": on_claim(labels={CLASS_LABEL: "another"}),
    "claim: annotations with nonsense": on_claim(annotations=NONSENSE),
    "node: registered label removed": on_node(labels={labels.REGISTERED: None}),
    "node: registered label changed": on_node(labels={labels.REGISTERED: "maybe"}),
    "node: initialized label removed": on_node(labels={labels.INITIALIZED: None}),
    "node: both labels removed": on_node(labels={labels.REGISTERED: None, labels.INITIALIZED: None}),
    "node: pool label removed": on_node(labels={labels.NODE_POOL: None}),
    "node: class label removed": on_node(labels={CLASS_LABEL: None}),
    "node: class label changed": on_node(labels={CLASS_LABEL: "another"}),
    "node: finalizer removed": on_node(finalizers=[]),
    "node: owner removed": on_node(ownerReferences=[]),
    "node: annotations with nonsense": on_node(annotations=NONSENSE),
}


def identity(claim: NodeClaim, node: Node) -> object:
    """What an edit must not change for long."""
    wanted = {CLASS_LABEL, labels.NODE_POOL, labels.REGISTERED, labels.INITIALIZED}
    return (
        claim.metadata.uid,
        claim.metadata.finalizers,
        {key: value for key, value in claim.metadata.labels.items() if key in wanted},
        (claim.status.provider_id, claim.status.node_name),
        {condition.type: condition.status for condition in claim.status.conditions},
        node.metadata.uid,
        node.metadata.finalizers,
        [owner.uid for owner in node.metadata.owner_references],
        {key: value for key, value in node.metadata.labels.items() if key in wanted},
        node.spec.taints,
    )


@pytest.mark.parametrize("edit", HEALS.values(), ids=HEALS.keys())
@in_virtual_time
async def test_an_edit_that_makes_no_sense_is_put_right(cluster: VirtualCluster, edit: Edit) -> None:
    """OPS-003, OPS-080, OPS-081, OPS-102 and beyond"""
    await up(cluster)
    before = identity(await cluster.get_claim(), await cluster.get_node())
    await edit(cluster)
    await asyncio.sleep(5)
    assert identity(await cluster.get_claim(), await cluster.get_node()) == before
    written = len(cluster.writes())
    await asyncio.sleep(180)
    assert identity(await cluster.get_claim(), await cluster.get_node()) == before
    assert len(cluster.writes()) == written
    assert len(cluster.cloud.launched) == len(cluster.cloud.instances) == 1
    assert bugs(cluster) == []


@pytest.mark.parametrize("edit", HEALS.values(), ids=HEALS.keys())
@in_virtual_time
async def test_an_edit_made_while_no_controller_runs_is_repaired_by_the_next_process(
    cluster: VirtualCluster, edit: Edit
) -> None:
    """OPS-123"""
    await up(cluster)
    before = identity(await cluster.get_claim(), await cluster.get_node())
    await cluster.stop()
    await edit(cluster)
    await cluster.start()
    await asyncio.sleep(5)
    assert identity(await cluster.get_claim(), await cluster.get_node()) == before
    assert len(cluster.cloud.launched) == len(cluster.cloud.instances) == 1
    assert bugs(cluster) == []


@in_virtual_time
async def test_restored_fields_are_reported(cluster: VirtualCluster) -> None:
    await up(cluster)
    provider_id = (await cluster.get_claim()).status.provider_id
    await cluster.edit(kinds.NODE_CLAIM, "c", {"providerID": "nonsense"})
    await cluster.edit(kinds.NODE, "node-c", labels={labels.REGISTERED: None}, finalizers=[])
    await asyncio.sleep(5)
    (line,) = cluster.lines("restored nodeclaim")
    assert (line["provider-id"], line["changed-to"]) == (provider_id, "nonsense")
    restored = [name for actual in cluster.lines("hydrated node") for name in actual["restored"]]
    assert sorted(restored) == ["finalizers", labels.REGISTERED]


@in_virtual_time
async def test_a_claim_without_its_class_label_gets_it(cluster: VirtualCluster) -> None:
    """OPS-L44, OPS-080"""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(1)
    assert (await cluster.get_claim()).metadata.labels[CLASS_LABEL] == "default"


@in_virtual_time
async def test_a_node_of_several_claims_is_not_hydrated(cluster: VirtualCluster) -> None:
    """OPS-081"""
    await up(cluster, "c", "d")
    cluster.cloud.hangs.add(("create", "d"))
    shared = (await cluster.get_claim()).status.provider_id
    await cluster.stop()
    # Without the Node nothing says which instance d had.
    await cluster.edit(kinds.NODE, "node-d", finalizers=[])
    await cluster.kube.delete(kinds.NODE, "node-d")
    await cluster.edit(kinds.NODE_CLAIM, "d", {"providerID": shared})
    await cluster.edit(kinds.NODE, "node-c", labels={CLASS_LABEL: None})
    await cluster.start()
    await asyncio.sleep(60)
    assert CLASS_LABEL not in (await cluster.get_node()).metadata.labels
    events = await cluster.events("MultipleNodeClaimsFound")
    assert {event.involved_object.name for event in events} == {"c", "d"}
    assert all("NodeClaims c, d have the same provider ID" in event.message for event in events)
    assert bugs(cluster) == []


# -- a pool changed by its label, not taken away ---------------------------------------------------------------------------


@in_virtual_time
async def test_a_pool_label_that_was_changed_is_left_as_it_is(cluster: VirtualCluster) -> None:
    """OPS-S14: it may be meant; only what is missing is put back."""
    await up(cluster)
    await cluster.edit(kinds.NODE, "node-c", labels={labels.NODE_POOL: "another"})
    await asyncio.sleep(60)
    assert (await cluster.get_node()).metadata.labels[labels.NODE_POOL] == "another"


@pytest.mark.parametrize("owner", ["none", "another pool's"])
@in_virtual_time
async def test_a_pool_label_without_evidence_is_not_restored(cluster: VirtualCluster, owner: str) -> None:
    await up(cluster)
    references = [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "np", "uid": "gone"}]
    await cluster.edit(
        kinds.NODE_CLAIM,
        "c",
        labels={labels.NODE_POOL: None},
        ownerReferences=references if owner == "another pool's" else [],
    )
    await asyncio.sleep(5)
    if await cluster.has(kinds.NODE_CLAIM, "c"):  # else the cluster's own collection took it as an orphan of its owner
        assert labels.NODE_POOL not in (await cluster.get_claim()).metadata.labels
    assert bugs(cluster) == []


# -- times -------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_pod_event_dated_into_the_future_does_not_keep_a_node_for_ever(cluster: VirtualCluster) -> None:
    """DIS-241, OPS-099: it counts for nothing, and the next event replaces it."""
    await up(cluster, consolidate_after="10s")
    later = rfc3339(cluster.clock.now() + timedelta(days=365))
    await cluster.edit(kinds.NODE_CLAIM, "c", {"lastPodEventTime": later})
    await cluster.running("busy", "node-c")
    await asyncio.sleep(1)
    stamped = (await cluster.get_claim()).status.last_pod_event_time
    assert stamped is not None
    assert stamped <= cluster.clock.now()
    await cluster.edit(kinds.NODE_CLAIM, "c", {"lastPodEventTime": later})
    await asyncio.sleep(30)
    assert (await cluster.condition("c", "Consolidatable") or ("",))[0] == "True"


@pytest.mark.parametrize("years", [-10, 10])
@in_virtual_time
async def test_conditions_dated_absurdly_break_nothing(cluster: VirtualCluster, years: int) -> None:
    """OPS-053"""
    await up(cluster)
    moment = START + timedelta(days=365 * years)
    await _conditions(lambda condition: msgspec.structs.replace(condition, last_transition_time=moment))(cluster)
    await asyncio.sleep(3600)
    assert conditions.is_true((await cluster.get_claim()).status.conditions, "Ready")
    assert bugs(cluster) == []


# -- earlier in life -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [{"providerID": ""}, {"providerID": "", "conditions": []}], ids=["ID", "everything"])
@in_virtual_time
async def test_a_launched_claim_that_lost_its_provider_id_gets_it_again(
    cluster: VirtualCluster, status: dict[str, Any]
) -> None:
    """OPS-211: the cloud knows the claim."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(1)
    provider_id = (await cluster.get_claim()).status.provider_id
    await cluster.edit(kinds.NODE_CLAIM, "c", status)
    await asyncio.sleep(5)
    claim = await cluster.get_claim()
    assert claim.status.provider_id == provider_id
    assert conditions.is_true(claim.status.conditions, "Launched")
    assert len(cluster.cloud.launched) == 1
    await cluster.join()
    await asyncio.sleep(1)
    assert conditions.is_true((await cluster.get_claim()).status.conditions, "Ready")


@in_virtual_time
async def test_a_launched_claim_with_a_wrong_instance_is_given_up_and_its_own_collected(
    cluster: VirtualCluster,
) -> None:
    """OPS-051, OPS-266: only the cloud knows the right one, and it is not called for a claim that looks valid."""
    cluster.simulated()
    await cluster.node_class(node_registration_delay="10s")
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.5)
    await cluster.edit(kinds.NODE_CLAIM, "c", {"providerID": "kwok://no-such-instance"})
    await asyncio.sleep(15 * 60 + 30)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(300)
    assert await cluster.all(kinds.CONFIG_MAP) == []
    assert await cluster.all(kinds.NODE) == []
    assert bugs(cluster) == []


@in_virtual_time
async def test_a_claim_that_got_anothers_provider_id_before_registering_finds_its_own(cluster: VirtualCluster) -> None:
    """Two claims, one provider ID: the Node says whose it is, the cloud what the other one launched."""
    await up(cluster)
    await cluster.claim("d")
    await asyncio.sleep(1)
    own = (await cluster.get_claim("d")).status.provider_id
    shared = (await cluster.get_claim()).status.provider_id
    await cluster.edit(kinds.NODE_CLAIM, "d", {"providerID": shared})
    await asyncio.sleep(5)
    assert (await cluster.get_claim("d")).status.provider_id == own
    assert (await cluster.get_claim("c")).status.provider_id == shared
    assert [owner.name for owner in (await cluster.get_node()).metadata.owner_references] == ["c"]
    await cluster.join("d")
    await asyncio.sleep(1)
    for name in ("c", "d"):
        assert conditions.is_true((await cluster.get_claim(name)).status.conditions, "Ready")
    assert len(cluster.cloud.instances) == 2


@in_virtual_time
async def test_a_registered_claim_that_got_anothers_provider_id_finds_its_own(cluster: VirtualCluster) -> None:
    await up(cluster, "c", "d")
    before = {name: (await cluster.get_claim(name)).status.provider_id for name in ("c", "d")}
    await cluster.edit(kinds.NODE_CLAIM, "d", {"providerID": before["c"]})
    await asyncio.sleep(5)
    assert {name: (await cluster.get_claim(name)).status.provider_id for name in ("c", "d")} == before
    assert await cluster.has(kinds.NODE, "node-c")
    assert await cluster.has(kinds.NODE, "node-d")


@in_virtual_time
async def test_claims_that_swapped_their_provider_ids_swap_back(cluster: VirtualCluster) -> None:
    await up(cluster, "c", "d")
    before = {name: (await cluster.get_claim(name)).status.provider_id for name in ("c", "d")}
    await cluster.stop()
    await cluster.edit(kinds.NODE_CLAIM, "c", {"providerID": before["d"]})
    await cluster.edit(kinds.NODE_CLAIM, "d", {"providerID": before["c"]})
    await cluster.start()
    await asyncio.sleep(5)
    assert {name: (await cluster.get_claim(name)).status.provider_id for name in ("c", "d")} == before


@in_virtual_time
async def test_a_claim_whose_cloud_insists_on_anothers_instance_does_not_take_its_node(cluster: VirtualCluster) -> None:
    await up(cluster)
    shared = (await cluster.get_claim()).status.provider_id
    await cluster.claim("d")
    await asyncio.sleep(1)
    cluster.cloud.hangs.add(("create", "d"))
    await cluster.edit(kinds.NODE_CLAIM, "d", {"providerID": shared})
    await asyncio.sleep(70)
    assert await cluster.condition("d", "Registered") == (
        "Unknown",
        "MultipleNodeClaimsFound",
        "Node node-c belongs to NodeClaim c",
    )
    assert [owner.name for owner in (await cluster.get_node()).metadata.owner_references] == ["c"]
