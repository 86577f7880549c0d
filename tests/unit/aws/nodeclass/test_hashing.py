"""The hash of a class and its annotations (AWS-570 to AWS-574, API-507 to API-510)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    BlockDevice,
    BlockDeviceMapping,
    ConnectionTracking,
    CpuOptions,
    EC2NodeClass,
    EnclaveOptions,
    MetadataOptions,
    NetworkInterface,
    PlacementGroupSelector,
    SubnetSelectorTerm,
)
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.api.meta import ObjectMeta
from karpenter.providers.aws.nodeclass.nodeclass_hash import (
    HASH_ANNOTATION,
    HASH_VERSION,
    HASH_VERSION_ANNOTATION,
    NodeClassHashInputs,
    node_class_hash,
)
from support.node_class_environment import CLUSTER, NodeClassEnvironment, spec_of

ROOT = BlockDeviceMapping(device_name="/dev/xvda", ebs=BlockDevice(volume_size="20Gi"))
DATA = BlockDeviceMapping(device_name="/dev/xvdb", ebs=BlockDevice(volume_size="40Gi"))
FIRST = NetworkInterface(network_card_index=0, device_index=0, interface_type="interface")
SECOND = NetworkInterface(network_card_index=1, device_index=1, interface_type="efa-only")


def made(**spec: Any) -> EC2NodeClass:
    return EC2NodeClass(metadata=ObjectMeta(name="default"), spec=spec_of(**spec))


def hashed(**spec: Any) -> str:
    return node_class_hash(made(**spec), CLUSTER)


@pytest.mark.parametrize(
    "change",
    [
        {"user_data": "echo"},
        {"role": "other"},
        {"role": None, "instance_profile": "nodes"},
        {"tags": {"a": "1"}},
        {"tags": {"a": ""}},
        {"kubelet": {"maxPods": 12}},
        {"block_device_mappings": (ROOT,)},
        {"instance_store_policy": "RAID0"},
        {"network_interfaces": (FIRST,)},
        {"detailed_monitoring": True},
        {"metadata_options": MetadataOptions(http_tokens="optional")},
        {"connection_tracking": ConnectionTracking(udp_timeout=30)},
        {"context": "c"},
        {"cpu_options": CpuOptions(nested_virtualization="enabled")},
        {"enclave_options": EnclaveOptions(enabled=True)},
        {"enclave_options": EnclaveOptions(enabled=False)},
        {"associate_public_ip_address": False},
        {"placement_group_selector": PlacementGroupSelector(name="p")},
        {"ami_family": "Bottlerocket"},
        {"ip_prefix_count": 2},
    ],
    ids=lambda change: ",".join(change),
)
def test_fields_that_affect_instances_change_the_hash(change: dict[str, Any]) -> None:
    """DIS-353, API-S236, AWS-571; ipPrefixCount by its Beyond. K15-A23: also an explicit false of enclaves."""
    assert hashed(**change) != hashed()


def test_another_certificate_authority_changes_the_hash() -> None:
    """AWS-570"""
    assert node_class_hash(made(), replace(CLUSTER, ca_bundle="b3RoZXI=")) != hashed()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"ami_family": None, "ami_selector_terms": (AMISelectorTerm(alias="al2023@latest"),)},
            {"ami_family": "AL2023", "ami_selector_terms": (AMISelectorTerm(alias="al2023@latest"),)},
            id="AWS-T567",
        ),
        pytest.param(
            {"tags": {"a": "1", "b": "2"}, "block_device_mappings": (ROOT, DATA)},
            {"tags": {"b": "2", "a": "1"}, "block_device_mappings": (DATA, ROOT)},
            id="AWS-T569",
        ),
        pytest.param(
            {"network_interfaces": (FIRST, SECOND)}, {"network_interfaces": (SECOND, FIRST)}, id="API-509-interfaces"
        ),
        pytest.param({"subnet_selector_terms": (SubnetSelectorTerm(id="subnet-1"),)}, {}, id="AWS-T573"),
        pytest.param({"user_data": "", "context": ""}, {}, id="AWS-570-empty-is-absent"),
        pytest.param({"ip_prefix_count": 0}, {}, id="AWS-570-zero-is-absent"),
        pytest.param({"kubelet": {"a": 1, "b": 2}}, {"kubelet": {"b": 2, "a": 1}}, id="API-509-kubelet-keys"),
    ],
)
def test_equivalent_specs_have_the_same_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    """API-S238: the order of tags does not count."""
    assert hashed(**one) == hashed(**other)


def test_kubelet_settings_are_hashed_as_text() -> None:
    """API-509"""
    assert hashed(kubelet={"maxPods": 12}) != hashed(kubelet={"maxPods": 21})
    assert hashed(kubelet={"clusterDNS": ["a", "b"]}) != hashed(kubelet={"clusterDNS": ["b", "a"]})


def test_the_hash_is_the_same_in_every_process() -> None:
    """API-510: a changed algorithm needs a new version, otherwise all nodes drift."""
    assert (HASH_VERSION, hashed()) == ("py1", "4464311865014453411")


def test_changed_fields_are_named_as_in_manifests() -> None:
    """AWS §12, its Beyond"""
    editions = NodeClassHashInputs()
    old, new = made(), made(user_data="echo", block_device_mappings=(ROOT,), ami_family="Custom")
    for edition in (old, new):
        editions.remember(edition, CLUSTER)
    then, now = node_class_hash(old, CLUSTER), node_class_hash(new, CLUSTER)
    assert editions.changed_fields("default", then, now) == ("blockDeviceMappings", "amiFamily", "userData")
    assert editions.changed_fields("default", "12", now) == ()
    editions.forget("default")
    assert editions.changed_fields("default", then, now) == ()


# -- annotations -------------------------------------------------------------------------------------------------------------


async def stamps(environment: NodeClassEnvironment, claim: str) -> tuple[str | None, str | None]:
    notes = (await environment.kube.get(NODE_CLAIM, claim)).metadata.annotations
    return notes.get(HASH_ANNOTATION), notes.get(HASH_VERSION_ANNOTATION)


async def test_the_hash_annotation_of_a_class_follows_its_spec_and_that_of_claims_does_not() -> None:
    """AWS-572"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    first = (await environment.get()).metadata.annotations[HASH_ANNOTATION]
    await environment.claim("c", {HASH_ANNOTATION: first, HASH_VERSION_ANNOTATION: HASH_VERSION})
    await environment.change({"userData": "echo"})
    await environment.reconcile()
    assert (await environment.get()).metadata.annotations[HASH_ANNOTATION] != first
    assert await stamps(environment, "c") == (first, HASH_VERSION)


async def test_claims_with_another_hash_version_are_migrated_without_drift() -> None:
    """AWS-T570, AWS-573, AWS-574; K15-A04: those of release 1.14 (``v5``) get our version and hash, and no drift."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    foreign = {"metadata": {"annotations": {HASH_ANNOTATION: "123", HASH_VERSION_ANNOTATION: "v5"}}}
    await environment.kube.patch(EC2_NODE_CLASS, "default", foreign)
    for name in ("same", "drifted", "bare"):
        await environment.claim(name, {} if name == "bare" else {HASH_ANNOTATION: "123", HASH_VERSION_ANNOTATION: "v5"})
    drift = {
        "type": "Drifted",
        "status": "True",
        "reason": "AMIDrift",
        "message": "AMIDrift",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await environment.kube.patch(NODE_CLAIM, "drifted", {"status": {"conditions": [drift]}}, subresource="status")
    await environment.reconcile()
    now = (await environment.get()).metadata.annotations[HASH_ANNOTATION]
    assert await stamps(environment, "same") == (now, HASH_VERSION)
    assert await stamps(environment, "bare") == (now, HASH_VERSION)
    assert await stamps(environment, "drifted") == ("123", HASH_VERSION)
