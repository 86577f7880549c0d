"""Creation, patches and subresources of objects."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from karpenter.api import control_plane, core
from karpenter.api.kinds import CONFIG_MAP, LEASE, LIMIT_RANGE, NODE, NODE_CLAIM, NODE_POOL, POD
from karpenter.api.limit_range import LimitRange, LimitRangeItem, LimitRangeSpec
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from karpenter.kube.protocol import Kube
from support.contract_builders import claim, condition, config_map, outcome, pod, pool


async def test_a_created_object_gets_identity_time_and_version(kube: Kube, namespace: str) -> None:
    made = (await kube.create(CONFIG_MAP, config_map("one", namespace))).metadata
    assert made.uid
    assert made.resource_version
    assert made.creation_timestamp is not None
    assert (await kube.get(CONFIG_MAP, "one", namespace)).metadata == made


async def test_a_name_can_be_used_once(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    with pytest.raises(AlreadyExists):
        await kube.create(CONFIG_MAP, config_map("one", namespace))


async def test_generated_names_differ_and_keep_their_prefix(kube: Kube, namespace: str) -> None:
    names = {
        (await kube.create(CONFIG_MAP, config_map("", namespace, generate_name="web-"))).metadata.name for _ in range(5)
    }
    assert len(names) == 5
    assert all(name.startswith("web-") and len(name) == len("web-") + 5 for name in names)


async def test_a_generated_name_stays_within_the_limit(kube: Kube, namespace: str) -> None:
    made = (await kube.create(CONFIG_MAP, config_map("", namespace, generate_name="a." + "b" * 100))).metadata
    assert len(made.name) == 63
    assert made.generate_name == "a." + "b" * 100


async def test_a_name_takes_precedence_over_generate_name(kube: Kube, namespace: str) -> None:
    made = (await kube.create(CONFIG_MAP, config_map("fixed", namespace, generate_name="web-"))).metadata
    assert (made.name, made.generate_name) == ("fixed", "web-")


async def test_fields_that_the_server_sets_cannot_be_set_by_clients(kube: Kube, unique: str) -> None:
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    forged = {"uid": "mine", "generation": 7, "creation_timestamp": long_ago, "deletion_timestamp": long_ago}
    wanted = pool(unique)
    meta = msgspec.structs.replace(wanted.metadata, **forged)
    made = (await kube.create(NODE_POOL, msgspec.structs.replace(wanted, metadata=meta))).metadata
    assert made.uid != "mine"
    assert made.creation_timestamp is not None
    assert made.creation_timestamp > long_ago
    assert (made.generation, made.deletion_timestamp) == (1, None)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", ""])
async def test_an_invalid_name_is_refused(kube: Kube, namespace: str, name: str) -> None:
    with pytest.raises(Invalid):
        await kube.create(CONFIG_MAP, config_map(name, namespace))


async def test_a_label_value_longer_than_63_characters_is_refused(kube: Kube, namespace: str) -> None:
    with pytest.raises(Invalid):
        await kube.create(CONFIG_MAP, config_map("one", namespace, labels={"key": "v" * 64}))


async def test_nothing_can_be_created_in_a_namespace_that_does_not_exist(kube: Kube, unique: str) -> None:
    with pytest.raises(NotFound):
        await kube.create(CONFIG_MAP, config_map("one", f"{unique}-missing"))


async def test_a_missing_object_is_not_found(kube: Kube, namespace: str) -> None:
    assert await outcome(kube.get(CONFIG_MAP, "none", namespace)) is NotFound
    assert await outcome(kube.patch(CONFIG_MAP, "none", {"data": {}}, namespace)) is NotFound
    assert await outcome(kube.delete(CONFIG_MAP, "none", namespace)) is NotFound


async def test_a_merge_patch_sets_and_removes_labels(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, labels={"keep": "1", "drop": "1"}))
    patched = await kube.patch(CONFIG_MAP, "one", {"metadata": {"labels": {"drop": None, "new": "2"}}}, namespace)
    assert patched.metadata.labels == {"keep": "1", "new": "2"}
    assert patched.data == {"a": "1"}


async def test_a_merge_patch_replaces_finalizers_as_a_whole(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/a", "example.com/b")))
    patched = await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": ["example.com/b"]}}, namespace)
    assert patched.metadata.finalizers == ("example.com/b",)
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)


async def test_a_patch_of_an_old_version_is_refused(kube: Kube, namespace: str) -> None:
    old = (await kube.create(CONFIG_MAP, config_map("one", namespace))).metadata.resource_version
    new = await kube.patch(CONFIG_MAP, "one", {"data": {"a": "2"}}, namespace, resource_version=old)
    assert new.metadata.resource_version != old
    with pytest.raises(Conflict):
        await kube.patch(CONFIG_MAP, "one", {"data": {"a": "3"}}, namespace, resource_version=old)
    assert (await kube.get(CONFIG_MAP, "one", namespace)).data == {"a": "2"}


async def test_of_two_writes_from_one_version_one_succeeds(kube: Kube, namespace: str) -> None:
    read = (await kube.create(CONFIG_MAP, config_map("one", namespace))).metadata.resource_version
    writes = [
        outcome(kube.patch(CONFIG_MAP, "one", {"data": {"a": value}}, namespace, resource_version=read))
        for value in ("2", "3")
    ]
    assert set(await asyncio.gather(*writes)) == {None, Conflict}


async def test_a_patch_without_a_version_has_no_conflict(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    writes = [outcome(kube.patch(CONFIG_MAP, "one", {"data": {str(i): "x"}}, namespace)) for i in range(10)]
    assert set(await asyncio.gather(*writes)) == {None}
    assert len((await kube.get(CONFIG_MAP, "one", namespace)).data) == 11


async def test_a_patch_for_another_uid_is_refused(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    with pytest.raises(Invalid):
        await kube.patch(CONFIG_MAP, "one", {"metadata": {"uid": "another"}, "data": {"a": "2"}}, namespace)


async def test_a_patch_without_changes_creates_no_version(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAP, config_map("one", namespace, labels={"a": "b"}))
    same = await kube.patch(CONFIG_MAP, "one", {"metadata": {"labels": {"a": "b"}}, "data": {"a": "1"}}, namespace)
    assert same == made


async def test_a_patch_cannot_change_server_fields(kube: Kube, unique: str) -> None:
    made = (await kube.create(NODE_POOL, pool(unique))).metadata
    forged = {"creationTimestamp": "2000-01-01T00:00:00Z", "generation": 77, "labels": {"a": "b"}}
    patched = (await kube.patch(NODE_POOL, unique, {"metadata": forged})).metadata
    assert patched.creation_timestamp == made.creation_timestamp
    assert patched.generation == 1
    assert patched.labels == {"a": "b"}


async def test_status_is_written_only_through_its_subresource(kube: Kube, unique: str) -> None:
    await kube.create(NODE_POOL, pool(unique))
    through_main = await kube.patch(NODE_POOL, unique, {"status": {"nodes": 5}})
    assert through_main.status.nodes == 0
    change = {"status": {"nodes": 7}, "spec": {"weight": 9}, "metadata": {"labels": {"a": "b"}}}
    through_status = await kube.patch(NODE_POOL, unique, change, subresource="status")
    assert through_status.status.nodes == 7
    assert through_status.spec.weight is None
    assert through_status.metadata.labels == {}


async def test_status_of_a_new_object_is_dropped(kube: Kube, namespace: str) -> None:
    made = await kube.create(POD, pod("one", namespace))
    assert made.status.phase == "Pending"
    assert made.spec.termination_grace_period_seconds == 30


async def test_conditions_are_replaced_by_a_status_patch(kube: Kube, unique: str) -> None:
    await kube.create(NODE_CLAIM, claim(unique))
    first = {"status": {"conditions": [condition("Launched", "True"), condition("Registered", "Unknown")]}}
    await kube.patch(NODE_CLAIM, unique, first, subresource="status")
    second = {"status": {"conditions": [condition("Launched", "True")], "nodeName": "n"}}
    patched = await kube.patch(NODE_CLAIM, unique, second, subresource="status")
    assert [listed_condition.type for listed_condition in patched.status.conditions] == ["Launched"]
    assert patched.status.node_name == "n"


async def test_a_status_patch_of_an_old_version_is_refused(kube: Kube, unique: str) -> None:
    old = (await kube.create(NODE_CLAIM, claim(unique))).metadata.resource_version
    await kube.patch(NODE_CLAIM, unique, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await kube.patch(NODE_CLAIM, unique, {"status": {"nodeName": "n"}}, subresource="status", resource_version=old)


async def test_the_generation_counts_spec_changes_only(kube: Kube, unique: str) -> None:
    made = await kube.create(NODE_POOL, pool(unique))
    labelled = await kube.patch(NODE_POOL, unique, {"metadata": {"labels": {"a": "b"}}})
    reported = await kube.patch(NODE_POOL, unique, {"status": {"nodes": 1}}, subresource="status")
    respecified = await kube.patch(NODE_POOL, unique, {"spec": {"weight": 10}})
    generations = [nodepool.metadata.generation for nodepool in (made, labelled, reported, respecified)]
    assert generations == [1, 1, 1, 2]


async def test_writing_the_same_status_is_no_change(kube: Kube, unique: str) -> None:
    await kube.create(NODE_CLAIM, claim(unique))
    patch = {"status": {"nodeName": "n", "conditions": [condition("Launched", "True")]}}
    first = await kube.patch(NODE_CLAIM, unique, patch, subresource="status")
    assert await kube.patch(NODE_CLAIM, unique, patch, subresource="status") == first


async def test_writing_the_same_spec_is_no_change(kube: Kube, unique: str) -> None:
    await kube.create(NODE_POOL, pool(unique))
    first = await kube.patch(NODE_POOL, unique, {"spec": {"weight": 10}})
    assert await kube.patch(NODE_POOL, unique, {"spec": {"weight": 10}}) == first


async def test_a_status_is_removed_by_null(kube: Kube, unique: str) -> None:
    await kube.create(NODE_CLAIM, claim(unique))
    await kube.patch(NODE_CLAIM, unique, {"status": {"nodeName": "n", "imageID": "i"}}, subresource="status")
    patched = await kube.patch(NODE_CLAIM, unique, {"status": {"nodeName": None}}, subresource="status")
    assert (patched.status.node_name, patched.status.image_id) == ("", "i")


async def test_a_kind_without_a_status_subresource_refuses_status_writes(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    with pytest.raises(NotFound):
        await kube.patch(CONFIG_MAP, "one", {"status": {"a": "b"}}, namespace, subresource="status")


async def test_the_spec_of_a_claim_cannot_change(kube: Kube, unique: str) -> None:
    """NodeClaim.spec is immutable as a whole (API-100)."""
    await kube.create(NODE_CLAIM, claim(unique))
    with pytest.raises(Invalid):
        await kube.patch(NODE_CLAIM, unique, {"spec": {"expireAfter": "1h"}})


async def test_a_node_pool_that_violates_its_schema_is_refused(kube: Kube, unique: str) -> None:
    await kube.create(NODE_POOL, pool(unique))
    with pytest.raises(Invalid, match="weight"):
        await kube.patch(NODE_POOL, unique, {"spec": {"weight": 101}})


async def test_a_new_node_starts_with_a_not_ready_taint(kube: Kube, unique: str) -> None:
    node = await kube.create(NODE, core.Node(metadata=ObjectMeta(name=unique)))
    try:
        assert [(taint.key, taint.effect) for taint in node.spec.taints] == [
            ("node.kubernetes.io/not-ready", "NoSchedule")
        ]
    finally:
        await kube.delete(NODE, unique)


async def test_the_spec_of_a_running_pod_cannot_change(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    with pytest.raises(Invalid):
        await kube.patch(POD, "one", {"spec": {"nodeName": "elsewhere"}}, namespace)


async def test_a_lease_is_acquired_only_from_the_version_that_was_read(kube: Kube, namespace: str) -> None:
    lease = control_plane.Lease(
        metadata=ObjectMeta(name="lock", namespace=namespace), spec=control_plane.LeaseSpec(holder_identity="first")
    )
    read = (await kube.create(LEASE, lease)).metadata.resource_version
    takeover = {"spec": {"holderIdentity": "second"}}
    await kube.patch(LEASE, "lock", takeover, namespace, resource_version=read)
    with pytest.raises(Conflict):
        await kube.patch(LEASE, "lock", {"spec": {"holderIdentity": "third"}}, namespace, resource_version=read)


async def test_limit_ranges_set_default_requests_and_limits_of_new_pods(kube: Kube, namespace: str) -> None:
    """The default limit defaults to the maximum; the default request to the default limit, or else the minimum."""
    item = LimitRangeItem(
        type="Container",
        max={"cpu": "4"},
        min={"memory": "1Mi"},
        default={"memory": "1Gi"},
        default_request={"memory": "64Mi"},
    )
    limit_range = LimitRange(
        metadata=ObjectMeta(name="defaults", namespace=namespace), spec=LimitRangeSpec(limits=(item,))
    )
    await kube.create(LIMIT_RANGE, limit_range)
    stored = await kube.create(POD, pod("web", namespace))
    resources = stored.spec.containers[0].resources
    assert dict(resources.requests) == {"cpu": "4", "memory": "64Mi"}
    assert dict(resources.limits) == {"cpu": "4", "memory": "1Gi"}
