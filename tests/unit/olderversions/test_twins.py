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
from support.world import World, story

T = TypeVar("T", bound=Wire)
#: Longer than the pause between two passes over an object that is not ready.
_PASS_SECONDS = 6.0
_SELECTED = {"subnetSelector": {"team": "shop"}, "securityGroupSelector": {"team": "shop"}}


async def begin(world: World) -> None:
    await world.start()
    await asyncio.sleep(1)


async def apply(world: World, name: str = "shop", **spec: object) -> None:
    wanted = {"providerRef": {"name": "shop"}} if not {"providerRef", "provider"} & spec.keys() else {}
    older = OlderProvisioner(metadata=ObjectMeta(name=name), spec={**wanted, **spec})
    await world.kube.create(PROVISIONER, older)
    await asyncio.sleep(1)


async def active(world: World, kind: Kind[T], name: str = "shop") -> Condition:
    older = await world.kube.get(kind, name)
    (condition,) = cast(OlderProvisioner, older).status.conditions
    return condition


async def is_there(world: World, kind: Kind[T], name: str = "shop") -> bool:
    try:
        await world.kube.get(kind, name)
    except NotFound:
        return False
    return True


async def pool(world: World, name: str = "shop") -> NodePool:
    return await world.kube.get(kinds.NODE_POOL, name)


@story
async def test_a_provisioner_has_a_twin_that_follows_it_and_goes_with_it(world: World) -> None:
    """API-852, API-855, API-S294: created, changed, made again after a user deleted it, gone with its Provisioner."""
    await begin(world)
    await apply(world, ttlSecondsAfterEmpty=30, limits={"resources": {"cpu": "1000"}})
    twin = await pool(world)
    assert twin.metadata.annotations[CONVERTED_FROM] == "karpenter.sh/v1alpha5/Provisioner/shop"
    assert twin.spec.template.metadata.labels == {"karpenter.sh/provisioner-name": "shop"}
    assert (twin.spec.disruption.consolidation_policy, twin.spec.disruption.consolidate_after) == ("WhenEmpty", "30s")
    assert twin.spec.limits == {"cpu": "1000"}
    await world.kube.patch(PROVISIONER, "shop", {"spec": {"ttlSecondsAfterEmpty": 60, "limits": None}})
    await asyncio.sleep(1)
    assert (await pool(world)).spec.disruption.consolidate_after == "60s"
    assert not (await pool(world)).spec.limits
    await world.kube.delete(kinds.NODE_POOL, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert await is_there(world, kinds.NODE_POOL)
    await world.kube.delete(PROVISIONER, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert not await is_there(world, kinds.NODE_POOL)


@story
async def test_the_twin_is_a_pool_that_admission_and_validation_take(world: World) -> None:
    """API-855: the label of the older name is no restricted label."""
    await begin(world)
    await apply(world)
    assert list(runtime_validation.validate_node_pool(await pool(world))) == []
    assert (await active(world, PROVISIONER)).reason == "NotReady"


@story
async def test_a_pool_of_that_name_is_never_touched(world: World) -> None:
    """API-853, API-S295: until it goes; then the twin is made."""
    await begin(world)
    await world.kube.create(kinds.NODE_POOL, node_pool("shop"))
    before = (await pool(world)).spec
    await apply(world)
    condition = await active(world, PROVISIONER)
    assert (condition.status, condition.reason) == ("False", "Shadowed")
    assert (await pool(world)).spec == before
    await world.kube.delete(kinds.NODE_POOL, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert CONVERTED_FROM in (await pool(world)).metadata.annotations


@story
async def test_an_inline_provider_has_a_class_of_its_own(world: World) -> None:
    """API-852, API-A30: pool and class have the name of the Provisioner."""
    await begin(world)
    await apply(world, provider={"instanceProfile": "old", **_SELECTED}, kubeletConfiguration={"maxPods": 20})
    node_class = await world.kube.get(kinds.EC2_NODE_CLASS, "shop")
    assert node_class.spec.instance_profile == "old"
    assert node_class.spec.kubelet == {"maxPods": 20}
    assert (await pool(world)).spec.template.spec.node_class_ref.name == "shop"


@story
async def test_a_node_template_has_a_class(world: World) -> None:
    """API-852, API-A11, API-A20"""
    await begin(world)
    spec = {**_SELECTED, "instanceProfile": "KarpenterInstanceProfile", "amiFamily": "Bottlerocket"}
    await world.kube.create(AWS_NODE_TEMPLATE, OlderNodeTemplate(metadata=ObjectMeta(name="shop"), spec=spec))
    await asyncio.sleep(1)
    node_class = await world.kube.get(kinds.EC2_NODE_CLASS, "shop")
    assert [term.alias for term in node_class.spec.ami_selector_terms] == ["bottlerocket@latest"]


@story
async def test_what_cannot_be_converted_says_why_and_blocks_nothing_else(world: World) -> None:
    """API-854, API-787: no twin, Active False; another object beside it has its twin."""
    await begin(world)
    await apply(world, "odd", provider={"launchTemplate": "mine"})
    await apply(world)
    condition = await active(world, PROVISIONER, "odd")
    assert condition.reason == "ConversionFailed"
    assert 'cannot convert with "spec.launchTemplate"' in condition.message
    assert not await is_there(world, kinds.NODE_POOL, "odd")
    assert await is_there(world, kinds.NODE_POOL)


@story
async def test_what_the_conversion_changed_is_an_event(world: World) -> None:
    """API-854, API-826: one for each warning of `karpenter convert`."""
    await begin(world)
    await apply(world, requirements=[{"key": "kubernetes.io/arch", "values": ["arm64", "amd64"]}])
    events = [event for event in await world.all(kinds.EVENT) if event.reason == "ConversionWarning"]
    assert [event.involved_object.kind for event in events] == ["Provisioner"]
    assert "is missing; In is written" in events[0].message


@story
async def test_a_machine_has_a_claim_and_ends_with_it(world: World) -> None:
    """API-852, API-770 to API-775"""
    await begin(world)
    spec = {"machineTemplateRef": {"name": "shop"}, "requirements": []}
    await world.kube.create(MACHINE, OlderMachine(metadata=ObjectMeta(name="shop"), spec=spec))
    await asyncio.sleep(1)
    claim = await world.kube.get(kinds.NODE_CLAIM, "shop")
    assert claim.spec.expire_after == "Never"
    await world.kube.delete(kinds.NODE_CLAIM, "shop")
    await asyncio.sleep(_PASS_SECONDS)
    assert not await is_there(world, MACHINE)
    assert not await is_there(world, kinds.NODE_CLAIM)


@story
async def test_a_machine_with_an_instance_buys_no_second_one(world: World) -> None:
    """API-A22: nodes of that age are not adopted, and not bought again."""
    spec = {"machineTemplateRef": {"name": "shop"}, "requirements": []}
    await world.kube.create(MACHINE, OlderMachine(metadata=ObjectMeta(name="shop"), spec=spec))
    launched: JsonObject = {"status": {"providerID": "aws:///eu-west-1a/i-1"}}
    await world.kube.patch(MACHINE, "shop", launched, subresource="status")
    await begin(world)
    assert not await is_there(world, kinds.NODE_CLAIM)
    assert "i-1" in (await active(world, MACHINE)).message
