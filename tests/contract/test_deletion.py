"""Deletion, finalizers, owners, binding and eviction."""

from __future__ import annotations

import pytest

from controlplane import binaries
from karpenter.api import core
from karpenter.api.kinds import CONFIG_MAP, NAMESPACE, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import Conflict, Invalid, NotFound
from karpenter.kube.protocol import Kube
from support.contract_builders import config_map, eventually, outcome, owned_by, pod, pool, run_pod, take


async def test_an_object_without_finalizers_is_deleted_at_once(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    await kube.delete(CONFIG_MAP, "one", namespace)
    assert await outcome(kube.get(CONFIG_MAP, "one", namespace)) is NotFound


async def test_a_finalizer_keeps_a_deleted_object_until_it_is_removed(kube: Kube, unique: str) -> None:
    made = await kube.create(NODE_POOL, pool(unique))
    await kube.patch(NODE_POOL, unique, {"metadata": {"finalizers": ["example.com/hold"]}})
    await kube.delete(NODE_POOL, unique)
    leaving = await kube.get(NODE_POOL, unique)
    assert leaving.metadata.deletion_timestamp is not None
    assert leaving.metadata.deletion_grace_period_seconds == 0
    assert leaving.metadata.generation == made.metadata.generation + 1
    await kube.patch(NODE_POOL, unique, {"metadata": {"finalizers": None}})
    assert await outcome(kube.get(NODE_POOL, unique)) is NotFound


async def test_deleting_twice_changes_nothing(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/hold",)))
    await kube.delete(CONFIG_MAP, "one", namespace)
    leaving = await kube.get(CONFIG_MAP, "one", namespace)
    await kube.delete(CONFIG_MAP, "one", namespace)
    assert await kube.get(CONFIG_MAP, "one", namespace) == leaving
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)


async def test_an_object_being_deleted_accepts_no_new_finalizer(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/hold",)))
    await kube.delete(CONFIG_MAP, "one", namespace)
    late = {"metadata": {"finalizers": ["example.com/hold", "example.com/late"]}}
    with pytest.raises(Invalid):
        await kube.patch(CONFIG_MAP, "one", late, namespace)
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)


async def test_a_watch_has_events_for_the_deletion_timestamp_and_the_deletion(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAP, config_map("one", namespace, finalizers=("example.com/hold",)))
    await kube.delete(CONFIG_MAP, "one", namespace)
    await kube.patch(CONFIG_MAP, "one", {"metadata": {"finalizers": None}}, namespace)
    events = await take(kube.watch(CONFIG_MAP, made.metadata.resource_version, namespace), 2)
    assert [event.type for event in events] == ["MODIFIED", "DELETED"]


async def test_a_delete_for_another_uid_is_refused(kube: Kube, namespace: str) -> None:
    made = await kube.create(CONFIG_MAP, config_map("one", namespace))
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAP, "one", namespace, uid="another")
    await kube.delete(CONFIG_MAP, "one", namespace, uid=made.metadata.uid)
    assert await outcome(kube.get(CONFIG_MAP, "one", namespace)) is NotFound


async def test_a_pod_without_a_node_is_deleted_at_once(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await kube.delete(POD, "one", namespace)
    assert await outcome(kube.get(POD, "one", namespace)) is NotFound


async def test_a_running_pod_gets_its_grace_period(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace, termination_grace_period_seconds=77))
    await run_pod(kube, "one", namespace)
    running = await kube.get(POD, "one", namespace)
    await kube.delete(POD, "one", namespace)
    leaving = await kube.get(POD, "one", namespace)
    assert leaving.metadata.deletion_grace_period_seconds == 77
    assert leaving.metadata.deletion_timestamp is not None
    assert leaving.metadata.generation == running.metadata.generation + 1


async def test_a_grace_period_can_be_shortened_but_not_extended(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await run_pod(kube, "one", namespace)
    await kube.delete(POD, "one", namespace, grace_period_seconds=60)
    first = await kube.get(POD, "one", namespace)
    await kube.delete(POD, "one", namespace, grace_period_seconds=600)
    assert await kube.get(POD, "one", namespace) == first
    await kube.delete(POD, "one", namespace, grace_period_seconds=10)
    shorter = await kube.get(POD, "one", namespace)
    assert shorter.metadata.deletion_grace_period_seconds == 10
    assert first.metadata.deletion_timestamp is not None
    assert shorter.metadata.deletion_timestamp is not None
    assert (first.metadata.deletion_timestamp - shorter.metadata.deletion_timestamp).total_seconds() == 50


async def test_a_grace_period_of_zero_removes_a_running_pod(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await run_pod(kube, "one", namespace)
    await kube.delete(POD, "one", namespace)
    await kube.delete(POD, "one", namespace, grace_period_seconds=0)
    assert await outcome(kube.get(POD, "one", namespace)) is NotFound


async def test_dependents_are_deleted_with_their_owner(kube: Kube, namespace: str) -> None:
    owner = await kube.create(CONFIG_MAP, config_map("owner", namespace))
    middle = await kube.create(
        CONFIG_MAP, config_map("middle", namespace, owner_references=(owned_by(CONFIG_MAP, owner.metadata),))
    )
    await kube.create(POD, _owned(pod("leaf", namespace), middle.metadata))
    await kube.create(CONFIG_MAP, config_map("bystander", namespace))
    await kube.delete(CONFIG_MAP, "owner", namespace)
    await eventually(lambda: outcome(kube.get(CONFIG_MAP, "middle", namespace)), lambda answer: answer is NotFound)
    await eventually(lambda: outcome(kube.get(POD, "leaf", namespace)), lambda answer: answer is NotFound)
    assert await outcome(kube.get(CONFIG_MAP, "bystander", namespace)) is None


def _owned(obj: core.Pod, owner: ObjectMeta) -> core.Pod:
    meta = ObjectMeta(
        name=obj.metadata.name,
        namespace=obj.metadata.namespace,
        owner_references=(owned_by(CONFIG_MAP, owner),),
    )
    return core.Pod(metadata=meta, spec=obj.spec)


async def test_a_dependent_stays_while_another_owner_exists(kube: Kube, namespace: str) -> None:
    first, second = [
        (await kube.create(CONFIG_MAP, config_map(name, namespace))).metadata for name in ("first", "second")
    ]
    both = (owned_by(CONFIG_MAP, first), _plain_owner(second))
    await kube.create(CONFIG_MAP, config_map("child", namespace, owner_references=both))
    await kube.delete(CONFIG_MAP, "first", namespace)

    async def owners() -> list[str]:
        child = await kube.get(CONFIG_MAP, "child", namespace)
        return [owner.name for owner in child.metadata.owner_references]

    await eventually(owners, lambda names: names == ["second"])


def _plain_owner(meta: ObjectMeta):
    import msgspec

    return msgspec.structs.replace(owned_by(CONFIG_MAP, meta), controller=False)


async def test_the_content_of_a_namespace_is_deleted_with_it(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("one", namespace))
    await kube.delete(NAMESPACE, namespace)
    await eventually(lambda: outcome(kube.get(CONFIG_MAP, "one", namespace)), lambda answer: answer is NotFound)
    await eventually(lambda: outcome(kube.get(NAMESPACE, namespace)), lambda answer: answer is NotFound)


async def test_binding_sets_the_node_and_a_condition(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await kube.bind("one", namespace, "node-1")
    bound = await kube.get(POD, "one", namespace)
    assert bound.spec.node_name == "node-1"
    assert [(condition.type, condition.status) for condition in bound.status.conditions] == [("PodScheduled", "True")]


async def test_a_bound_pod_cannot_be_bound_again(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await kube.bind("one", namespace, "node-1")
    with pytest.raises(Conflict):
        await kube.bind("one", namespace, "node-2")


async def test_a_gated_pod_cannot_be_bound(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace, scheduling_gates=(core.PodSchedulingGate(name="example.com/gate"),)))
    with pytest.raises(Conflict):
        await kube.bind("one", namespace, "node-1")


async def test_binding_clears_a_nomination(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    await kube.patch(POD, "one", {"status": {"nominatedNodeName": "node-1"}}, namespace, subresource="status")
    assert (await kube.get(POD, "one", namespace)).status.nominated_node_name == "node-1"
    await kube.bind("one", namespace, "node-1")
    # Until 1.34 the server cleared it only with an alpha gate.
    kept = {"node-1"} if binaries.minor_release() < 35 else set()
    assert (await kube.get(POD, "one", namespace)).status.nominated_node_name in {"", *kept}
