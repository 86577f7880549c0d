"""Whether a class can be launched from (AWS-100 to AWS-119, AWS-126 to AWS-128)."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
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
