"""Validation of a class (AWS-100 to AWS-119, AWS-126 to AWS-128)."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_labels import NVIDIA_CONSUMABLE_CAPACITY
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION
from support.fake_node_class_services import THROTTLED
from support.node_class_environment import NodeClassEnvironment
from support.node_class_validation import VALID, tried, validation_of, verdict

CAPACITY_TYPE, TENANCY = "karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-tenancy"


# -- fields of the class -----------------------------------------------------------------------------------------------------


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
async def test_kubelet_settings_are_validated(spec: dict[str, Any], gate: bool, reason: str) -> None:
    """AWS-101 to AWS-107, API-666: the condition has a reason for each kind of error.

    API-S171, API-S172, API-S173: by family, for an unknown field, and for an expression while the gate is off.
    """
    environment = NodeClassEnvironment(kubelet_expressions=gate).with_resources()
    assert await validation_of(environment, **spec) == (("False", reason) if reason else VALID)
    assert bool(tried(environment)) is not bool(reason)


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
async def test_the_gpu_sharing_annotation_is_validated(text: str, gate: bool, reason: str) -> None:
    """K15-A25, K15-A26, K15-A147, K15-A148: an invalid value is reported even with the gate off."""
    environment = NodeClassEnvironment(dra_nvidia_gpu_gate=gate).with_resources()
    await environment.create()
    await annotate(environment, text)
    await environment.reconcile()
    assert await verdict(environment) == (("False", reason) if reason else VALID)
    message = await environment.message("ValidationSucceeded")
    if reason == "NVIDIAConsumableCapacityInvalid":
        assert message.startswith(f'annotation {NVIDIA_CONSUMABLE_CAPACITY}, "{text}" must be "disabled"')
    elif reason:
        assert "the feature gate DRANVIDIAGPU is disabled" in message


async def annotate(environment: NodeClassEnvironment, sharing: str) -> None:
    notes = {"metadata": {"annotations": {NVIDIA_CONSUMABLE_CAPACITY: sharing}}}
    await environment.kube.patch(EC2_NODE_CLASS, "default", notes)


async def test_a_changed_annotation_is_validated_again() -> None:
    """K15-A28: it is part of the validation cache key, not of the hash."""
    environment = NodeClassEnvironment(dra_nvidia_gpu_gate=True).with_resources()
    await environment.create()
    await environment.reconcile()
    assert await verdict(environment) == VALID
    hashed = (await environment.get()).metadata.annotations[HASH_ANNOTATION]
    await annotate(environment, "1Gi")
    await environment.reconcile()
    assert await verdict(environment) == ("False", "NVIDIAConsumableCapacityInvalid")
    assert (await environment.get()).metadata.annotations[HASH_ANNOTATION] == hashed


async def test_the_message_names_the_field() -> None:
    """AWS-T097, AWS-108"""
    environment = NodeClassEnvironment().with_resources()
    await validation_of(environment, kubelet={"evictionSoft": {"memory.available": "5%"}})
    assert await environment.message("ValidationSucceeded") == (
        "spec.kubelet.evictionSoft[memory.available]: has no evictionSoftGracePeriod"
    )


async def test_an_error_that_only_the_owner_can_fix_is_not_retried() -> None:
    """AWS-102, AWS-104"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(kubelet={"maxPods": "110"})
    assert await environment.reconcile() is None


async def test_expressions_wait_until_types_are_known() -> None:
    """AWS-107"""
    environment = NodeClassEnvironment(kubelet_expressions=True).with_resources()
    environment.facts = ()
    assert await validation_of(environment, kubelet={"maxPods": "vcpus * 10"}) == ("Unknown", "AwaitingReconciliation")
    assert tried(environment) == []


async def test_an_unknown_service_cidr_is_reported() -> None:
    """AWS-T105, AWS-100"""
    environment = NodeClassEnvironment().with_resources()
    environment.cidr_error = AwsError("AccessDeniedException", "no", status=403)
    await environment.create()
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert await verdict(environment) == ("False", "ClusterCIDRResolutionFailed")


async def test_an_unavailable_service_does_not_change_the_validation() -> None:
    """AWS-100"""
    environment = NodeClassEnvironment().with_resources()
    environment.cidr_error = AwsError("ServerException", "later", status=503)
    await environment.create()
    assert await environment.reconcile() == 5
    assert await verdict(environment) == ("Unknown", "AwaitingReconciliation")


async def test_only_al2023_needs_the_service_cidr() -> None:
    """AWS-100"""
    environment = NodeClassEnvironment().with_resources()
    environment.cidr_error = AwsError("AccessDeniedException", "no", status=403)
    assert await validation_of(environment, ami_family="Bottlerocket") == VALID


async def test_validation_waits_for_unknown_dependencies() -> None:
    """AWS-106"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("DescribeSubnets", THROTTLED)
    await environment.create()
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert await verdict(environment) == ("Unknown", "DependenciesNotReady")
    assert await environment.message("ValidationSucceeded") == "Awaiting SubnetsReady=Unknown"
