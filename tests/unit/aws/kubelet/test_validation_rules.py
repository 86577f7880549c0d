"""Validation rules of kubelet settings."""

from __future__ import annotations

import pytest

from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts
from karpenter.providers.aws.userdata.kubelet_validation import (
    expression_failures,
    expression_faults,
    expression_settings,
    kubelet_violations,
    unsupported_settings,
)

SMALL = KubeletTypeFacts("t3.small", vcpus=2, memory_mib=2048, default_enis=3, ips_per_eni=4, default_pods=11)
LARGE = KubeletTypeFacts("m5.4xlarge", vcpus=16, memory_mib=65536, default_enis=8, ips_per_eni=30, default_pods=234)
GRACE = {"memory.available": "1m30s"}


@pytest.mark.parametrize(
    "kubelet",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"maxPods": 0, "podsPerCore": 0, "evictionMaxPodGracePeriod": 0}, id="AWS-137 zeros"),
        pytest.param({"maxPods": "vcpus * 10"}, id="AWS-130 an expression"),
        pytest.param({"cpuManagerPolicy": None}, id="null is not set"),
        pytest.param({"authentication": {"webhook": {"enabled": True, "cacheTTL": "2m"}}}, id="AWS-139 nested"),
        pytest.param({"shutdownGracePeriodByPodPriority": [{"priority": 1}]}, id="AWS-139 list of objects"),
        pytest.param({"reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]}, id="AWS-139 limits"),
        pytest.param({"evictionHard": {"memory.available": "5%", "pid.available": "100"}}, id="AWS-133"),
        pytest.param({"evictionSoft": {"memory.available": "0"}, "evictionSoftGracePeriod": GRACE}, id="AWS-134"),
        pytest.param({"kubeReserved": {"cpu": "100m", "pid": "500"}}, id="AWS-135"),
        pytest.param({"kubeReserved": {"cpu": "vcpus * 10"}}, id="AWS-111 a reserved expression"),
        pytest.param({"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80}, id="AWS-136"),
        pytest.param({"evictionSoft": {}, "evictionSoftGracePeriod": None}, id="AWS-134 absent is empty"),
        pytest.param({"memoryThrottlingFactor": 0.9, "featureGates": {"A": True}}, id="AWS-139 numbers and flags"),
    ],
)
def test_valid_kubelet_settings_are_accepted(kubelet: dict[str, object]) -> None:
    """API-358: every real field of a KubeletConfiguration is admitted."""
    assert kubelet_violations(kubelet) == ()


@pytest.mark.parametrize(
    ("kubelet", "words"),
    [
        pytest.param({"maxPod": 3}, ["maxPod: unknown field", "maxPods"], id="AWS-130 unknown"),
        pytest.param({"memorySwap": {"behaviour": "x"}}, ["memorySwap.behaviour"], id="AWS-130 unknown nested"),
        pytest.param({"podsPerCore": "3"}, ["podsPerCore: expected int, got str"], id="AWS-130 type"),
        pytest.param({"clusterDNS": "10.0.0.10"}, ["clusterDNS: expected array, got str"], id="AWS-130 list API-350"),
        pytest.param({"evictionMaxPodGracePeriod": "60"}, ["evictionMaxPodGracePeriod: expected int"], id="API-355"),
        pytest.param({"cpuCFSQuota": "no"}, ["cpuCFSQuota: expected bool"], id="API-357"),
        pytest.param({"kubeReserved": {"cpu": 1}}, ["kubeReserved", "expected str, got int"], id="AWS-130 map"),
        pytest.param({"syncFrequency": "soon"}, ["syncFrequency"], id="AWS-139 durations"),
        pytest.param({"registerWithTaints": []}, ["registerWithTaints: may not be set"], id="AWS-131"),
        pytest.param({"evictionHard": {"memory.free": "5%"}}, ["memory.free", "memory.available"], id="AWS-132"),
        pytest.param({"evictionMinimumReclaim": {"x": "5%"}}, ["evictionMinimumReclaim[x]"], id="AWS-132 reclaim"),
        pytest.param({"evictionHard": {"memory.available": "101%"}}, ["'101%'"], id="AWS-133 above 100 %"),
        pytest.param({"evictionHard": {"memory.available": "-5%"}}, ["'-5%'"], id="AWS-133 below 0 %"),
        pytest.param({"evictionHard": {"memory.available": "-1Mi"}}, ["'-1Mi'"], id="AWS-133 negative"),
        pytest.param({"evictionHard": {"memory.available": "5 %"}}, ["'5 %'"], id="AWS-133 neither"),
        pytest.param(
            {"evictionSoft": {"memory.available": "5%"}, "evictionSoftGracePeriod": {"memory.available": "-1m"}},
            ["'-1m'"],
            id="AWS-133 negative grace",
        ),
        pytest.param(
            {"evictionSoft": {"memory.available": "5%"}},
            ["memory.available", "no evictionSoftGracePeriod"],
            id="AWS-T097",
        ),
        pytest.param({"evictionSoftGracePeriod": GRACE}, ["memory.available", "no evictionSoft"], id="AWS-134"),
        pytest.param({"kubeReserved": {"pods": "5"}}, ["kubeReserved[pods]"], id="AWS-135 key"),
        pytest.param({"systemReserved": {"cpu": "-100m"}}, ["systemReserved[cpu]", "-100m"], id="AWS-135 sign"),
        pytest.param({"imageGCLowThresholdPercent": 101}, ["imageGCLow", "101"], id="AWS-136 range"),
        pytest.param(
            {"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80}, ["must be above"], id="AWS-136 order"
        ),
        pytest.param({"maxPods": -1}, ["maxPods: -1 is below zero"], id="AWS-137 maxPods"),
        pytest.param({"podsPerCore": -1}, ["podsPerCore: -1 is below zero"], id="AWS-137 podsPerCore"),
        pytest.param({"maxPods": 2**31}, ["maxPods"], id="AWS-137 beyond what the kubelet counts"),
    ],
)
def test_a_violation_names_its_field(kubelet: dict[str, object], words: list[str]) -> None:
    """Every field of the kubelet has its own check.

    API-351, API-352, API-353, API-354, API-356, API-359, API-S168, API-S169, API-S170
    """
    (kubelet_violation,) = kubelet_violations(kubelet)
    assert all(word in kubelet_violation for word in words), kubelet_violation


def test_all_violations_are_reported_together_but_a_wrong_type_alone() -> None:
    """AWS-101, AWS-130. API-360: all findings are reported together."""
    broken = {"unknown": 1, "maxPods": -1, "kubeReserved": {"pods": "1"}}
    assert len(kubelet_violations(broken)) == 3
    assert kubelet_violations(broken | {"podsPerCore": "x"}) == ("podsPerCore: expected int, got str",)


@pytest.mark.parametrize("family", ["AL2", "Bottlerocket", "Windows2019", "Windows2022", "Windows2025"])
def test_families_with_kubelet_flags_refuse_settings_without_a_flag(family: str) -> None:
    """AWS-T099, AWS-T100, AWS-138, API-361: the condition names the fields."""
    assert unsupported_settings(family, {"clusterDNS": ["10.0.0.10"], "maxPods": 10, "cpuCFSQuota": False}) == ()
    assert unsupported_settings(family, {"cpuManagerPolicy": None}) == ()
    (field,) = unsupported_settings(family, {"cpuManagerPolicy": "static"})
    assert field.startswith("cpuManagerPolicy: ")
    (servers,) = unsupported_settings(family, {"clusterDNS": ["10.0.0.10", "10.0.0.11"]})
    assert servers.startswith("clusterDNS: ")


def test_only_bottlerocket_has_no_pods_per_core() -> None:
    """AWS-138."""
    kubelet = {"podsPerCore": 10}
    refusing = [
        name for name in ("AL2", "AL2023", "Bottlerocket", "Windows2022") if unsupported_settings(name, kubelet)
    ]
    assert refusing == ["Bottlerocket"]


@pytest.mark.parametrize("family", ["AL2023", "Custom"])
def test_families_with_a_kubelet_configuration_support_every_field(family: str) -> None:
    """AWS-138."""
    assert (
        unsupported_settings(family, {"cpuManagerPolicy": "static", "clusterDNS": ["a", "b"], "podsPerCore": 3}) == ()
    )


def test_texts_of_max_pods_and_non_quantities_of_reserved_maps_are_expressions() -> None:
    """AWS-T098, AWS-111."""
    kubelet = {"maxPods": "110", "kubeReserved": {"cpu": "100m", "memory": "memory_mib / 20"}, "systemReserved": {}}
    assert expression_settings(kubelet) == {"maxPods": "110", "kubeReserved.memory": "memory_mib / 20"}
    assert expression_settings({"maxPods": 110}) == {}


def test_expressions_that_cannot_be_evaluated_are_reported_with_their_path() -> None:
    """AWS-T102, AWS-103."""
    kubelet = {"maxPods": "vcpus *", "kubeReserved": {"memory": "memory_mib * 0.05", "cpu": "vcpus"}}
    actual = expression_faults(kubelet)
    assert [text.partition(":")[0] for text in actual] == ["maxPods", "kubeReserved.memory"]


def test_an_expression_is_checked_on_every_type() -> None:
    """AWS-107, AWS-T103."""
    kubelet = {"kubeReserved": {"cpu": "100 / (vcpus - 16)", "memory": "vcpus"}, "maxPods": "12 - vcpus"}
    assert expression_failures(kubelet, [SMALL])[0].startswith("kubeReserved.cpu: yields -7")
    assert expression_failures(kubelet, [LARGE]) == (
        "maxPods: yields -4, which is not between 0 and 2147483647 for instance type m5.4xlarge",
        "kubeReserved.cpu: division by zero in CEL expression for instance type m5.4xlarge",
    )
    assert len(expression_failures(kubelet, [SMALL, LARGE])) == 2
    assert expression_failures({"kubeReserved": {"cpu": "vcpus"}}, [SMALL, LARGE]) == ()


def test_reserved_expressions_are_checked_with_the_pods_of_the_class() -> None:
    """AWS-113."""
    reserved = {"kubeReserved": {"cpu": "20 - max_pods"}}
    assert expression_failures(reserved | {"maxPods": 10}, [LARGE]) == ()
    assert expression_failures(reserved | {"maxPods": "5 + 5"}, [LARGE]) == ()
    assert len(expression_failures(reserved, [LARGE])) == 1


@pytest.mark.parametrize(
    ("family", "kubelet", "word"),
    [
        pytest.param("Bottlerocket", {"podsPerCore": 5}, "podsPerCore", id="K15-A02-pods"),
        pytest.param("AL2", {"clusterDNS": ["10.0.0.10", "10.0.0.11"]}, "clusterDNS", id="K15-A02-dns"),
        pytest.param("AL2023", {"evictionMaxPodGracePeriod": -1}, "evictionMaxPodGracePeriod", id="K15-A02-grace"),
        pytest.param("AL2023", {"evictionHard": {"memory.available": ""}}, "memory.available", id="K15-A03-empty"),
        pytest.param("AL2023", {"evictionHard": {"memory.available": "-5Mi"}}, "-5Mi", id="K15-A03-sign"),
    ],
)
def test_settings_that_1_14_stored_and_1_15_refuses_are_named_by_the_condition(
    family: str, kubelet: dict[str, object], word: str
) -> None:
    """K15-A02, K15-A03: the class stays as it is stored, and its ValidationSucceeded turns False."""
    assert word in " ".join((*kubelet_violations(kubelet), *unsupported_settings(family, kubelet)))


def test_percentages_of_evictions_may_have_any_number_of_decimals() -> None:
    """K15-A03: release 1.14 took two."""
    assert kubelet_violations({"evictionHard": {"memory.available": "5.125%"}}) == ()


def test_the_kubelet_field_of_kubernetes_1_37_is_known() -> None:
    """K15-A12: a class with it was refused for an unknown field."""
    assert kubelet_violations({"defaultPodSysctls": {"net.core.somaxconn": "1024"}}) == ()
    assert kubelet_violations({"defaultPodSysctl": {}}) != ()
