"""Lists, selectors and watches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from karpenter.api.kinds import CONFIG_MAP, NODE_POOL, POD, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import Gone, Invalid
from karpenter.kube.protocol import Kube, WatchEvent, WatchEventType
from support.contract_builders import Backend, config_map, pod, pool, take


class _NumberedMap(Wire, frozen=True, kw_only=True):
    """A ConfigMap whose values must be numbers."""

    metadata: ObjectMeta = ObjectMeta()
    binary_data: Mapping[str, str] = {}
    immutable: bool = False
    data: Mapping[str, int] = {}


NUMBERED = Kind("", "v1", "configmaps", "ConfigMap", True, _NumberedMap)


async def _names(kube: Kube, namespace: str, **selectors: str) -> list[str]:
    listing = await kube.list(CONFIG_MAP, namespace, **selectors)
    return [listed_map.metadata.name for listed_map in listing.items if listed_map.metadata.name.startswith("cm-")]


async def test_a_list_is_limited_to_its_namespace(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAP, config_map("cm-a", namespace))
    await kube.create(CONFIG_MAP, config_map(f"cm-{namespace}", "default"))
    assert await _names(kube, namespace) == ["cm-a"]
    assert {"cm-a", f"cm-{namespace}"} <= set(await _names(kube, ""))
    await kube.delete(CONFIG_MAP, f"cm-{namespace}", "default")


async def test_an_undecodable_object_is_reported_and_hides_no_other(kube: Kube, namespace: str) -> None:
    """One object that does not decode must not break the list of its kind (API-028)."""
    await kube.create(CONFIG_MAP, config_map("cm-good", namespace))
    await kube.patch(CONFIG_MAP, "cm-good", {"data": None}, namespace)
    await kube.create(CONFIG_MAP, config_map("cm-bad", namespace))
    selector = "metadata.name!=kube-root-ca.crt"
    listing = await kube.list(NUMBERED, namespace, field_selector=selector)
    assert [obj.metadata.name for obj in listing.items] == ["cm-good"]
    assert [(bad.kind, bad.namespace, bad.name) for bad in listing.undecodable] == [("ConfigMap", namespace, "cm-bad")]
    assert "data" in listing.undecodable[0].error
    with pytest.raises(Invalid):
        await kube.get(NUMBERED, "cm-bad", namespace)


async def test_an_undecodable_object_in_a_watch_is_reported_in_its_position(kube: Kube, namespace: str) -> None:
    start = (await kube.list(CONFIG_MAP, namespace)).resource_version
    made = await kube.create(CONFIG_MAP, config_map("cm-bad", namespace))
    selector = "metadata.name=cm-bad"
    [event] = await take(kube.watch(NUMBERED, start, namespace, field_selector=selector), 1)
    assert event.object is None
    assert event.undecodable is not None
    assert event.undecodable.name == "cm-bad"
    assert event.resource_version == made.metadata.resource_version


async def _life(kube: Kube, namespace: str) -> str:
    """Create, change and delete an object; return the version before."""
    start = (await kube.list(CONFIG_MAP, namespace)).resource_version
    await kube.create(CONFIG_MAP, config_map("cm-a", namespace))
    await kube.patch(CONFIG_MAP, "cm-a", {"data": {"a": "2"}}, namespace)
    await kube.delete(CONFIG_MAP, "cm-a", namespace)
    await kube.create(CONFIG_MAP, config_map("cm-b", namespace))
    return start


async def test_a_watch_shows_every_change_in_order(kube: Kube, namespace: str) -> None:
    start = await _life(kube, namespace)
    events = await take(kube.watch(CONFIG_MAP, start, namespace, label_selector="!kube"), 4)
    assert [(event.type, event.object.metadata.name) for event in events if event.object] == [
        ("ADDED", "cm-a"),
        ("MODIFIED", "cm-a"),
        ("DELETED", "cm-a"),
        ("ADDED", "cm-b"),
    ]
    assert len({event.resource_version for event in events}) == 4


async def test_a_watch_is_opened_before_its_first_event(kube: Kube, namespace: str) -> None:
    start = (await kube.list(CONFIG_MAP, namespace)).resource_version
    async with aclosing(kube.watch(CONFIG_MAP, start, namespace, label_selector="never")) as events:
        opened = await asyncio.wait_for(anext(events), 10)
    assert opened == WatchEvent(WatchEventType.BOOKMARK, start)


async def test_a_watch_resumes_after_the_last_version_seen(kube: Kube, namespace: str) -> None:
    start = await _life(kube, namespace)
    first = await take(kube.watch(CONFIG_MAP, start, namespace), 2)
    rest = await take(kube.watch(CONFIG_MAP, first[-1].resource_version, namespace), 2)
    assert [event.type for event in rest] == ["DELETED", "ADDED"]


async def test_the_deleted_event_has_the_version_of_the_deletion(kube: Kube, namespace: str) -> None:
    start = await _life(kube, namespace)
    events = await take(kube.watch(CONFIG_MAP, start, namespace), 3)
    deleted, before = events[2], events[1]
    assert deleted.object is not None
    assert deleted.object.metadata.resource_version == deleted.resource_version != before.resource_version
    assert deleted.object.data == {"a": "2"}


async def test_an_object_that_starts_to_match_a_selector_is_added_and_one_that_stops_is_deleted(
    kube: Kube, namespace: str
) -> None:
    start = (await kube.list(CONFIG_MAP, namespace)).resource_version
    await kube.create(CONFIG_MAP, config_map("cm-a", namespace))
    for value in ("in", "still-in", None):
        await kube.patch(CONFIG_MAP, "cm-a", {"metadata": {"labels": {"watched": value}}}, namespace)
    last = await kube.create(CONFIG_MAP, config_map("cm-b", namespace, labels={"watched": "in"}))
    events = await take(kube.watch(CONFIG_MAP, start, namespace, label_selector="watched"), 4)
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[2].object.metadata.labels == {"watched": "still-in"}
    assert events[3].resource_version == last.metadata.resource_version


async def test_a_watch_of_pods_of_a_node_has_bound_pods(kube: Kube, namespace: str) -> None:
    start = (await kube.list(POD, namespace)).resource_version
    await kube.create(POD, pod("one", namespace))
    await kube.bind("one", namespace, "node-1")
    [event] = await take(kube.watch(POD, start, namespace, field_selector="spec.nodeName=node-1"), 1)
    assert event.type == "ADDED"


async def test_a_watch_from_an_expired_version_is_gone(backend: Backend, unique: str) -> None:
    await backend.kube.create(NODE_POOL, pool(unique))
    backend.forget()
    with pytest.raises(Gone):
        await take(backend.kube.watch(NODE_POOL, "1"), 1)


async def test_a_current_version_is_valid_after_compaction(backend: Backend, unique: str) -> None:
    await backend.kube.create(NODE_POOL, pool(unique))
    backend.forget()
    now = (await backend.kube.list(NODE_POOL)).resource_version
    await backend.kube.patch(NODE_POOL, unique, {"metadata": {"labels": {"a": "b"}}})
    [event] = await take(backend.kube.watch(NODE_POOL, now, field_selector=f"metadata.name={unique}"), 1)
    assert event.type == "MODIFIED"
