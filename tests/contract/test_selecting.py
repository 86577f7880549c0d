"""Selectors: every operator of label selectors, and the supported field selectors."""

from __future__ import annotations

import pytest

from karpenter.api import core
from karpenter.api.kinds import CONFIG_MAP, NAMESPACE, NODE, NODE_CLAIM, NODE_POOL, POD, REPLICA_SET, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import Invalid
from karpenter.kube.protocol import Kube
from support.contract_builders import config_map, pod, refused

_LABELS = {
    "a": {"tier": "web", "count": "7"},
    "b": {"tier": "db", "size": "big", "count": "12"},
    "c": {"count": "many"},
    "d": {},
}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=web", "a"),
        ("tier==web", "a"),
        ("tier!=web", "bcd"),
        ("tier in (web,db)", "ab"),
        ("tier in ()", ""),
        ("tier notin (web)", "bcd"),
        ("tier notin ()", "abcd"),
        ("tier", "ab"),
        ("!tier", "cd"),
        ("tier,size=big", "b"),
        ("tier=", ""),
        ("count>7", "b"),
        ("count>6", "ab"),
        ("count<12", "a"),
        ("count", "abc"),
        (" tier = web ", "a"),
    ],
)
async def test_label_selectors(kube: Kube, namespace: str, selector: str, expected: str) -> None:
    for name, labels in _LABELS.items():
        await kube.create(CONFIG_MAP, config_map(name, namespace, labels=labels))
    listing = await kube.list(CONFIG_MAP, namespace, label_selector=selector)
    assert (
        "".join(listed_map.metadata.name for listed_map in listing.items if listed_map.metadata.name in _LABELS)
        == expected
    )


@pytest.mark.parametrize(
    "selector", ["tier=web=db", "tier in web", "tier in (web", "tier,", "=web", "!", "count>many", "-tier=x"]
)
async def test_invalid_label_selectors_are_refused(kube: Kube, namespace: str, selector: str) -> None:
    error = await refused(kube.list(CONFIG_MAP, namespace, label_selector=selector))
    assert (type(error), error.status, error.reason) == (Invalid, 400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=node-1", "bound"),
        ("spec.nodeName==node-1", "bound"),
        ("spec.nodeName!=node-1", "free"),
        ("spec.nodeName=", "free"),
        ("spec.nodeName=a\\,b", ""),
        ("metadata.name=free", "free"),
        ("metadata.name!=free", "bound"),
        ("metadata.name=free,metadata.name=bound", ""),
        ("status.phase=Pending", "bound free"),
        ("status.phase!=Pending", ""),
        ("status.phase=Pending,spec.nodeName=node-1", "bound"),
        ("spec.schedulerName=nobody", "bound free"),
        ("spec.restartPolicy=Always", "bound free"),
        ("spec.hostNetwork=false", "bound free"),
        ("spec.hostNetwork=true", ""),
        ("spec.serviceAccountName=", "bound free"),
        ("status.podIP=", "bound free"),
        ("status.nominatedNodeName=", "bound free"),
    ],
)
async def test_field_selectors_of_pods(kube: Kube, namespace: str, selector: str, expected: str) -> None:
    for name in ("bound", "free"):
        await kube.create(POD, pod(name, namespace))
    await kube.bind("bound", namespace, "node-1")
    listing = await kube.list(POD, namespace, field_selector=selector)
    assert " ".join(listed_pod.metadata.name for listed_pod in listing.items) == expected


async def test_namespaced_objects_can_be_selected_by_namespace(kube: Kube, namespace: str) -> None:
    await kube.create(POD, pod("one", namespace))
    inside = await kube.list(POD, field_selector=f"metadata.namespace={namespace}")
    assert [listed_pod.metadata.name for listed_pod in inside.items] == ["one"]
    assert (await kube.list(POD, namespace, field_selector=f"metadata.namespace!={namespace}")).items == ()


async def test_nodes_can_be_selected_by_unschedulable(kube: Kube, unique: str) -> None:
    for name, closed in ((f"{unique}-open", False), (f"{unique}-closed", True)):
        meta = ObjectMeta(name=name, labels={"test": unique})
        await kube.create(NODE, core.Node(metadata=meta, spec=core.NodeSpec(unschedulable=closed)))
    try:
        for value, name in (("true", f"{unique}-closed"), ("false", f"{unique}-open")):
            selector = f"spec.unschedulable={value}"
            listing = await kube.list(NODE, label_selector=f"test={unique}", field_selector=selector)
            assert [node.metadata.name for node in listing.items] == [name]
    finally:
        for name in (f"{unique}-open", f"{unique}-closed"):
            await kube.delete(NODE, name)


async def test_namespaces_are_selected_by_their_phase(kube: Kube, namespace: str) -> None:
    selector = f"status.phase=Active,metadata.name={namespace}"
    assert len((await kube.list(NAMESPACE, field_selector=selector)).items) == 1


@pytest.mark.parametrize(
    ("kind", "selector"),
    [
        (POD, "spec.priority=0"),
        (POD, "metadata.uid=x"),
        (POD, "metadata.labels.app=web"),
        (POD, "spec.nodeName"),
        (POD, "=x"),
        (POD, " spec.nodeName=x"),
        (CONFIG_MAP, "data.a=1"),
        (NODE, "spec.providerID=x"),
        (NODE, "metadata.namespace=x"),
        (NAMESPACE, "metadata.namespace=x"),
        (REPLICA_SET, "status.replicas=0"),
        (NODE_POOL, "spec.weight=1"),
        (NODE_CLAIM, "metadata.namespace=x"),
    ],
    ids=lambda value: value.plural if isinstance(value, Kind) else value,
)
async def test_unsupported_field_selectors_are_refused(kube: Kube, kind: Kind[Wire], selector: str) -> None:
    error = await refused(kube.list(kind, field_selector=selector))
    assert (type(error), error.status, error.reason) == (Invalid, 400, "BadRequest")
