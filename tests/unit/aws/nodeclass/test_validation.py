"""Whether a class can be launched from (AWS-100 to AWS-119, AWS-126 to AWS-128)."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_labels import NVIDIA_CONSUMABLE_CAPACITY
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION
from support.class_validation import VALID, judged, tried, verdict
from support.ec2_class_services import THROTTLED
from support.ec2_classes import Classes

CAPACITY_TYPE, TENANCY = "karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-tenancy"


# -- what the class says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "gate", "reason"),
    [
        pytest.param(
            {"kubelet": {"evictionSoft": {"memory.available": "5%"}}},
            False,
            "InvalidKubeletConfiguration",
            id="AWS-T097",
        ),
        pytest.param({"kubelet": {"maxPods": "110"}}, False, "KubeletExpressionsDisabled", id="AWS-T098"),
        pytest.param(
            {"kubelet": {"cpuManagerPolicy": "static"}, "ami_family": "Bottlerocket"},
            False,
            "UnsupportedKubeletConfiguration",
            id="AWS-T099-bottlerocket",
        ),
        pytest.param({"kubelet": {"cpuManagerPolicy": "static"}}, False, "", id="AWS-T099-al2023"),
        pytest.param(
            {"kubelet": {"clusterDNS": ["10.0.0.1", "10.0.0.2"]}, "ami_family": "AL2"},
            False,
            "UnsupportedKubeletConfiguration",
            id="AWS-T100-al2",
        ),
        pytest.param({"kubelet": {"clusterDNS": ["10.0.0.1", "10.0.0.2"]}}, False, "", id="AWS-T100-al2023"),
        pytest.param({"kubelet": {"kubeReserved": {"cpu": "vcpus * 10"}}}, True, "", id="AWS-T101"),
        pytest.param(
            {"kubelet": {"kubeReserved": {"memory": "memory_mib * 0.05"}}},
            True,
            "KubeletExpressionInvalid",
            id="AWS-T102",
        ),
        pytest.param(
            {"kubelet": {"kubeReserved": {"cpu": "vcpus / 0"}}},
            True,
            "KubeletExpressionEvaluationFailed",
            id="AWS-T103",
        ),
        pytest.param({"kubelet": {"nonsense": 1}}, False, "InvalidKubeletConfiguration", id="AWS-T052"),
    ],
)
async def test_kubelet_settings_are_judged(spec: dict[str, Any], gate: bool, reason: str) -> None:
    """AWS-101 to AWS-107, API-666: the condition has a reason for each kind of fault.

    API-S171, API-S172, API-S173: by family, for an unknown field, and for an expression while the gate is off.
    """
    world = Classes(kubelet_expressions=gate).stocked()
    assert await judged(world, **spec) == (("False", reason) if reason else VALID)
    assert bool(tried(world)) is not bool(reason)


@pytest.mark.parametrize(
    ("text", "gate", "reason"),
    [
        ("0", True, "NVIDIAConsumableCapacityInvalid"),
        ("-1", False, "NVIDIAConsumableCapacityInvalid"),
        ("1Gi", True, "NVIDIAConsumableCapacityInvalid"),
        ("shares", False, "NVIDIAConsumableCapacityInvalid"),
        ("4", False, "DRADisabled"),
        ("memory", False, "DRADisabled"),
        ("unlimited", False, "DRADisabled"),
        ("4", True, ""),
        ("disabled", False, ""),
        ("", False, ""),
    ],
)
async def test_sharing_of_gpus_is_judged(text: str, gate: bool, reason: str) -> None:
    """K15-A25, K15-A26, K15-A147, K15-A148: a bad value is told even with the gate off."""
    world = Classes(dra_nvidia_gpu_gate=gate).stocked()
    await world.create()
    await annotate(world, text)
    await world.look()
    assert await verdict(world) == (("False", reason) if reason else VALID)
    message = await world.message("ValidationSucceeded")
    if reason == "NVIDIAConsumableCapacityInvalid":
        assert message.startswith(f'annotation {NVIDIA_CONSUMABLE_CAPACITY}, "{text}" must be "disabled"')
    elif reason:
        assert "the feature gate DRANVIDIAGPU is disabled" in message


async def annotate(world: Classes, sharing: str) -> None:
    notes = {"metadata": {"annotations": {NVIDIA_CONSUMABLE_CAPACITY: sharing}}}
    await world.kube.patch(EC2_NODE_CLASS, "default", notes)


async def test_a_changed_annotation_is_judged_anew() -> None:
    """K15-A28: it is part of the key of the verdict, not of the hash."""
    world = Classes(dra_nvidia_gpu_gate=True).stocked()
    await world.create()
    await world.look()
    assert await verdict(world) == VALID
    hashed = (await world.get()).metadata.annotations[HASH_ANNOTATION]
    await annotate(world, "1Gi")
    await world.look()
    assert await verdict(world) == ("False", "NVIDIAConsumableCapacityInvalid")
    assert (await world.get()).metadata.annotations[HASH_ANNOTATION] == hashed


async def test_the_message_names_the_field() -> None:
    """AWS-T097, AWS-108"""
    world = Classes().stocked()
    await judged(world, kubelet={"evictionSoft": {"memory.available": "5%"}})
    assert await world.message("ValidationSucceeded") == (
        "spec.kubelet.evictionSoft[memory.available]: has no evictionSoftGracePeriod"
    )


async def test_what_only_the_owner_can_mend_is_not_looked_at_again() -> None:
    """AWS-102, AWS-104"""
    world = Classes().stocked()
    await world.create(kubelet={"maxPods": "110"})
    assert await world.look() is None


async def test_expressions_wait_until_types_are_known() -> None:
    """AWS-107"""
    world = Classes(kubelet_expressions=True).stocked()
    world.facts = ()
    assert await judged(world, kubelet={"maxPods": "vcpus * 10"}) == ("Unknown", "AwaitingReconciliation")
    assert tried(world) == []


async def test_a_service_cidr_nobody_tells_is_told() -> None:
    """AWS-T105, AWS-100"""
    world = Classes().stocked()
    world.cidr_error = AwsError("AccessDeniedException", "no", status=403)
    await world.create()
    with pytest.raises(NodeClassReconcileFailed):
        await world.look()
    assert await verdict(world) == ("False", "ClusterCIDRResolutionFailed")


async def test_a_service_that_is_down_changes_no_verdict() -> None:
    """AWS-100"""
    world = Classes().stocked()
    world.cidr_error = AwsError("ServerException", "later", status=503)
    await world.create()
    assert await world.look() == 5
    assert await verdict(world) == ("Unknown", "AwaitingReconciliation")


async def test_only_al2023_needs_the_service_cidr() -> None:
    """AWS-100"""
    world = Classes().stocked()
    world.cidr_error = AwsError("AccessDeniedException", "no", status=403)
    assert await judged(world, ami_family="Bottlerocket") == VALID


async def test_unknown_dependencies_are_awaited() -> None:
    """AWS-106"""
    world = Classes().stocked()
    world.ec2.refuse("DescribeSubnets", THROTTLED)
    await world.create()
    with pytest.raises(NodeClassReconcileFailed):
        await world.look()
    assert await verdict(world) == ("Unknown", "DependenciesNotReady")
    assert await world.message("ValidationSucceeded") == "Awaiting SubnetsReady=Unknown"
