"""Provisioners, Machines and AWSNodeTemplates on a cluster: their twins under a running controller (API-852 to API-856)."""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

from karpenter.api import kinds
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.api.older_kinds import (
    AWS_NODE_TEMPLATE,
    MACHINE,
    PROVISIONER,
    OlderMachine,
    OlderNodeTemplate,
    OlderProvisioner,
)
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import runtime_validation
from karpenter.olderversions.twins import CONVERTED_FROM
from support.builders import node_pool
from support.virtual_cluster import VirtualCluster, in_virtual_time

T = TypeVar("T", bound=Wire)
#: Longer than the pause between two passes over an object that is not ready.
_PASS_SECONDS = 6.0
_SELECTED = {"subnetSelector": {"team": "shop"}, "securityGroupSelector": {"team": "shop"}}


async def begin(cluster: VirtualCluster) -> None:
    await cluster.start()
    await asyncio.sleep(1)


async def apply(cluster: VirtualCluster, name: str = "shop", **spec: object) -> None:
    wanted = {"providerRef": {"name": "shop"}} if not {"providerRef", "provider"} & spec.keys() else {}
    older = OlderProvisioner(metadata=ObjectMeta(name=name), spec={**wanted, **spec})
    await cluster.kube.create(PROVISIONER, older)
    await asyncio.sleep(1)


async def active(cluster: VirtualCluster, kind: Kind[T], name: str = "shop") -> Condition:
    older = await cluster.kube.get(kind, name)
    (condition,) = cast(OlderProvisioner, older).status.conditions
    return condition


async def is_there(cluster: VirtualCluster, kind: Kind[T], name: str = "shop") -> bool:
    try:
        await cluster.kube.get(kind, name)
    except NotFound:
        return False
    return True


async def pool(cluster: VirtualCluster, name: str = "shop") -> NodePool:
    return await cluster.kube.get(kinds.NODE_POOL, name)


@in_virtual_time
async def test_a_provisioner_has_a_twin_that_follows_it_and_goes_with_it(cluster: VirtualCluster) -> None:
    """API-852, API-855, API-S294: created, changed, made again after a user deleted it, gone with its Provisioner."""
    await begin(cluster)
    await apply(cluster, ttlSecondsAfterEmpty=30, limits={"resources": {"cpu": "1000"}})
    twin = await pool(cluster)
    assert twin.metadata.annotations[CONVERTED_FROM] == "karpenter.sh/v1alpha5/Provisioner/shop"
    assert twin.spec.template.metadata.labels == {"karpenter.sh/provisioner-name": "shop"}
    assert (twin.spec.disruption.consolidation_policy, twin.spec.disruption.consolidate_after) == ("WhenEmpty", "30s")
    assert twin.spec.limits == {"cpu": "1000"}
    await cluster.kube.patch(PROVISIONER, "shop", {"spec": {"ttlSecondsAfterEmpty": 60, "limits": None}})
    await asyncio.sleep(1)
    assert (await pool(cluster)).spec.disruption.consolidate_after == "60s"
    assert not (await pool(cluster)).spec.limits
    await cluster.kube.delete(kinds.NODE_POOL, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert await is_there(cluster, kinds.NODE_POOL)
    await cluster.kube.delete(PROVISIONER, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert not await is_there(cluster, kinds.NODE_POOL)


@in_virtual_time
async def test_the_twin_is_a_pool_that_admission_and_validation_take(cluster: VirtualCluster) -> None:
    """API-855: the label of the older name is no restricted label."""
    await begin(cluster)
    await apply(cluster)
    assert list(runtime_validation.validate_node_pool(await pool(cluster))) == []
    assert (await active(cluster, PROVISIONER)).reason == "NotReady"


@in_virtual_time
async def test_a_pool_of_that_name_is_never_touched(cluster: VirtualCluster) -> None:
    """API-853, API-S295: until it goes; then the twin is made."""
    await begin(cluster)
    await cluster.kube.create(kinds.NODE_POOL, node_pool("shop"))
    before = (await pool(cluster)).spec
    await apply(cluster)
    condition = await active(cluster, PROVISIONER)
    assert (condition.status, condition.reason) == ("False", "Shadowed")
    assert (await pool(cluster)).spec == before
    await cluster.kube.delete(kinds.NODE_POOL, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert CONVERTED_FROM in (await pool(cluster)).metadata.annotations


@in_virtual_time
async def test_an_inline_provider_has_a_class_of_its_own(cluster: VirtualCluster) -> None:
    """API-852, API-A30: pool and class have the name of the Provisioner."""
    await begin(cluster)
    await apply(cluster, provider={"instanceProfile": "old", **_SELECTED}, kubeletConfiguration={"maxPods": 20})
    node_class = await cluster.kube.get(kinds.EC2_NODE_CLASS, "shop")
    assert node_class.spec.instance_profile == "old"
    assert node_class.spec.kubelet == {"maxPods": 20}
    assert (await pool(cluster)).spec.template.spec.node_class_ref.name == "shop"


@in_virtual_time
async def test_a_node_template_has_a_class(cluster: VirtualCluster) -> None:
    """API-852, API-A11, API-A20"""
    await begin(cluster)
    spec = {**_SELECTED, "instanceProfile": "KarpenterInstanceProfile", "amiFamily": "Bottlerocket"}
    await cluster.kube.create(AWS_NODE_TEMPLATE, OlderNodeTemplate(metadata=ObjectMeta(name="shop"), spec=spec))
    await asyncio.sleep(1)
    node_class = await cluster.kube.get(kinds.EC2_NODE_CLASS, "shop")
    assert [term.alias for term in node_class.spec.ami_selector_terms] == ["bottlerocket@latest"]


@in_virtual_time
async def test_what_cannot_be_converted_says_why_and_blocks_nothing_else(cluster: VirtualCluster) -> None:
    """API-854, API-787: no twin, Active False; another object beside it has its twin."""
    await begin(cluster)
    await apply(cluster, "odd", provider={"launchTemplate": "mine"})
    await apply(cluster)
    condition = await active(cluster, PROVISIONER, "odd")
    assert condition.reason == "ConversionFailed"
    assert 'cannot convert with "spec.launchTemplate"' in condition.message
    assert not await is_there(cluster, kinds.NODE_POOL, "odd")
    assert await is_there(cluster, kinds.NODE_POOL)


@in_virtual_time
async def test_what_the_conversion_changed_is_an_event(cluster: VirtualCluster) -> None:
    """API-854, API-826: one for each warning of `karpenter convert`."""
    await begin(cluster)
    await apply(cluster, requirements=[{"key": "kubernetes.io/arch", "values": ["arm64", "amd64"]}])
    events = [event for event in await cluster.all(kinds.EVENT) if event.reason == "ConversionWarning"]
    assert [event.involved_object.kind for event in events] == ["Provisioner"]
    assert "is missing; In is written" in events[0].message


@in_virtual_time
async def test_a_machine_has_a_claim_and_ends_with_it(cluster: VirtualCluster) -> None:
    """API-852, API-770 to API-775"""
    await begin(cluster)
    spec = {"machineTemplateRef": {"name": "shop"}, "requirements": []}
    await cluster.kube.create(MACHINE, OlderMachine(metadata=ObjectMeta(name="shop"), spec=spec))
    await asyncio.sleep(1)
    claim = await cluster.kube.get(kinds.NODE_CLAIM, "shop")
    assert claim.spec.expire_after == "Never"
    await cluster.kube.delete(kinds.NODE_CLAIM, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert not await is_there(cluster, MACHINE)
    assert not await is_there(cluster, kinds.NODE_CLAIM)


@in_virtual_time
async def test_a_machine_with_an_instance_launches_no_second_one(cluster: VirtualCluster) -> None:
    """API-A22: nodes of that age are not adopted, and not launched again."""
    spec = {"machineTemplateRef": {"name": "shop"}, "requirements": []}
    await cluster.kube.create(MACHINE, OlderMachine(metadata=ObjectMeta(name="shop"), spec=spec))
    launched: JsonObject = {"status": {"providerID": "aws:///eu-west-1a/i-1"}}
    await cluster.kube.patch(MACHINE, "shop", launched, subresource="status")
    await begin(cluster)
    assert not await is_there(cluster, kinds.NODE_CLAIM)
    assert "i-1" in (await active(cluster, MACHINE)).message
