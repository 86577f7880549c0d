"""Rules for objects of kind Event."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from karpenter.api import core, meta
from karpenter.api.kinds import EVENT
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import AlreadyExists, Invalid
from karpenter.kube.protocol import Kube
from support.contract_builders import outcome, refused

_TIME = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def _event(namespace: str, about: meta.ObjectReference | None = None, **name: str) -> core.Event:
    pod = meta.ObjectReference(kind="Pod", name="web-0", namespace=namespace, uid="uid-1")
    return core.Event(
        metadata=ObjectMeta(namespace=namespace, **name),
        involved_object=about or pod,
        reason="Evicted",
        message="Evicted pod",
        type="Normal",
        source=core.EventSource(component="karpenter"),
        first_timestamp=_TIME,
        last_timestamp=_TIME,
        count=1,
    )


async def test_an_event_with_a_fixed_name_exists_once(kube: Kube, namespace: str) -> None:
    made = await kube.create(EVENT, _event(namespace, name="web-0.1"))
    assert (made.metadata.name, made.count, made.first_timestamp) == ("web-0.1", 1, _TIME)
    error = await refused(kube.create(EVENT, _event(namespace, name="web-0.1")))
    assert isinstance(error, AlreadyExists)


async def test_an_event_with_a_generated_name_can_be_created_again(kube: Kube, namespace: str) -> None:
    names = {(await kube.create(EVENT, _event(namespace, generate_name="web-0."))).metadata.name for _ in range(3)}
    assert len(names) == 3


async def test_a_repeated_event_is_counted_by_a_patch(kube: Kube, namespace: str) -> None:
    await kube.create(EVENT, _event(namespace, name="web-0.1"))
    patch = {"count": 2, "lastTimestamp": "2024-05-06T08:00:00Z"}
    patched = await kube.patch(EVENT, "web-0.1", patch, namespace)
    assert (patched.count, patched.first_timestamp) == (2, _TIME)
    assert patched.last_timestamp == datetime(2024, 5, 6, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("involvedObject.name=web-0", True),
        ("involvedObject.name=web-1", False),
        ("involvedObject.kind=Pod", True),
        ("involvedObject.kind!=Pod", False),
        ("involvedObject.uid=uid-1", True),
        ("involvedObject.apiVersion=", True),
        ("reason=Evicted,type=Normal", True),
        ("type=Warning", False),
        ("source=karpenter", True),
        ("reportingComponent=", True),
    ],
)
async def test_events_are_selected_by_their_involved_object(
    kube: Kube, namespace: str, selector: str, found: bool
) -> None:
    await kube.create(EVENT, _event(namespace, name="web-0.1"))
    listing = await kube.list(EVENT, namespace, field_selector=f"{selector},metadata.name=web-0.1")
    assert bool(listing.items) is found


@pytest.mark.parametrize("selector", ["message=x", "involvedObject.labels=x", "count=1"])
async def test_other_field_selectors_of_events_are_refused(kube: Kube, namespace: str, selector: str) -> None:
    with pytest.raises(Invalid):
        await kube.list(EVENT, namespace, field_selector=selector)


async def test_an_event_lives_in_the_namespace_of_its_object(kube: Kube, namespace: str) -> None:
    elsewhere = meta.ObjectReference(kind="Pod", name="web-0", namespace="default")
    error = await refused(kube.create(EVENT, _event(namespace, elsewhere, name="web-0.1")))
    assert isinstance(error, Invalid)
    assert [cause.field for cause in error.details.causes] == ["involvedObject.namespace"]


async def test_an_event_about_an_object_of_the_whole_cluster_lives_in_the_default_namespace(
    kube: Kube, namespace: str
) -> None:
    node = meta.ObjectReference(kind="Node", name="node-1")
    assert await outcome(kube.create(EVENT, _event(namespace, node, name="node-1.1"))) is Invalid
    made = await kube.create(EVENT, _event("default", node, name=f"{namespace}.1"))
    await kube.delete(EVENT, made.metadata.name, "default")
