"""Kubelet settings resolved for an instance type."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from karpenter.providers.aws.userdata import kubelet_settings
from karpenter.providers.aws.userdata.kubelet_settings import (
    ExpressionError,
    KubeletSettings,
    KubeletTypeFacts,
    expression_fault,
    resolve_kubelet_settings,
    resolve_max_pods,
)

M5_XLARGE = KubeletTypeFacts("m5.xlarge", vcpus=4, memory_mib=16384, default_enis=4, ips_per_eni=15, default_pods=58)


def kube_reserved(**values: object) -> dict[str, str]:
    kubelet = {"kubeReserved": {name.replace("_", "-"): value for name, value in values.items()}}
    return dict(resolve_kubelet_settings(kubelet, M5_XLARGE, expressions=True).kube_reserved)


def test_without_settings_nothing_is_resolved() -> None:
    assert resolve_kubelet_settings({}, M5_XLARGE, expressions=True) == KubeletSettings()


def test_static_settings_are_unchanged() -> None:
    kubelet = {
        "maxPods": 20,
        "podsPerCore": 3,
        "kubeReserved": {"cpu": "100m"},
        "systemReserved": {"memory": "1Gi"},
        "evictionHard": {"memory.available": "5%"},
        "clusterDNS": ["10.0.0.10", "10.0.0.11"],
    }
    assert resolve_kubelet_settings(kubelet, M5_XLARGE, expressions=False) == KubeletSettings(
        max_pods=20,
        pods_per_core=3,
        kube_reserved={"cpu": "100m"},
        system_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "5%"},
        cluster_dns=("10.0.0.10", "10.0.0.11"),
    )


@pytest.mark.parametrize(
    ("name", "expression", "quantity"),
    [
        pytest.param("cpu", "vcpus * 10", "40m", id="AWS-T101"),
        pytest.param("cpu", "vcpus * 10 + 1", "50m", id="AWS-114 cpu in steps of 10m"),
        pytest.param("memory", "memory_mib / 40", "416Mi", id="AWS-T102 409 in steps of 16Mi"),
        pytest.param("memory", "double(memory_mib) * 0.025", "416Mi", id="AWS-112 fractions are cut off"),
        pytest.param("ephemeral_storage", "vcpus", "4Gi", id="AWS-114 storage in GiB"),
        pytest.param("pid", "vcpus * 100", "400", id="AWS-114 pids are counted"),
        pytest.param("cpu", "min(vcpus, 2.5)", "10m", id="AWS-111 min of an int and a double"),
        pytest.param("cpu", "max(double(vcpus), 70)", "70m", id="AWS-111 max of a double and an int"),
        pytest.param("cpu", "instance_type == 'm5.xlarge' ? 80 : 0", "80m", id="AWS-111 ternary on the type"),
        pytest.param("cpu", "instance_type.startsWith('m5') ? 7 / 2 : 0", "10m", id="AWS-111 integer division"),
        pytest.param("cpu", "max_pods", "60m", id="AWS-113 pods of the type"),
        pytest.param("cpu", "[1, 2].map(n, n * vcpus)[1]", "10m", id="a comprehension binds its own name"),
    ],
)
def test_an_expression_reserves_in_the_unit_of_its_resource(name: str, expression: str, quantity: str) -> None:
    """API-362: cpu is rounded up to 10m, memory to 16Mi."""
    assert expression_fault(expression) == ""
    assert kube_reserved(**{name: expression}) == {name.replace("_", "-"): quantity}


def test_reserved_expressions_use_the_resolved_pods_and_max_pods_uses_the_default() -> None:
    """AWS-113."""
    kubelet = {"maxPods": "max_pods * 2", "systemReserved": {"memory": "max_pods * 16"}}
    resolved = resolve_kubelet_settings(kubelet, M5_XLARGE, expressions=True)
    assert resolved.max_pods == 116
    assert resolved.system_reserved == {"memory": "1856Mi"}


@pytest.mark.parametrize(
    ("applies", "kubelet", "memory"),
    [
        pytest.param(True, {"podsPerCore": 5}, "320Mi", id="fewer than the type's"),
        pytest.param(True, {"podsPerCore": 5, "maxPods": 12}, "192Mi", id="more than maxPods"),
        pytest.param(True, {"podsPerCore": 5, "maxPods": "max_pods * 2"}, "320Mi", id="fewer than an expression's"),
        pytest.param(False, {"podsPerCore": 5}, "928Mi", id="a kubelet that does not know it"),
    ],
)
def test_reserved_expressions_use_the_number_of_pods_that_the_node_can_run(
    applies: bool, kubelet: dict[str, object], memory: str
) -> None:
    """AWS-113, AWS-300: podsPerCore bounds the pods, so it bounds what is reserved for them."""
    facts = replace(M5_XLARGE, applies_pods_per_core=applies)
    resolved = resolve_kubelet_settings(
        {**kubelet, "kubeReserved": {"memory": "max_pods * 16"}}, facts, expressions=True
    )
    assert resolved.kube_reserved == {"memory": memory}


def test_with_the_gate_off_expressions_are_ignored_and_static_entries_apply() -> None:
    """AWS-129."""
    kubelet = {"maxPods": "110", "kubeReserved": {"cpu": "vcpus * 10", "memory": "1Gi"}}
    assert resolve_kubelet_settings(kubelet, M5_XLARGE, expressions=False) == KubeletSettings(
        kube_reserved={"memory": "1Gi"}
    )


@pytest.mark.parametrize(
    "expression", ["vcpus / 0", "vcpus - 100", "0.0 / 0.0", "1.0 / 0.0", "memory_mib * 0.05", "'a'"]
)
def test_a_failing_or_negative_entry_is_dropped_with_a_log_line_and_other_entries_apply(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS-112, AWS-114."""
    monkeypatch.setattr(kubelet_settings, "_logged", set())  # each expression is logged once per process
    with capture_logs() as lines:
        assert kube_reserved(cpu=expression, memory="1Gi") == {"memory": "1Gi"}
    assert [(line["field"], line["expression"]) for line in lines] == [("cpu", expression)]


def test_max_pods_is_between_zero_and_the_kubelet_limit() -> None:
    """AWS-114."""
    assert resolve_max_pods("2147483647", M5_XLARGE) == 2147483647
    for expression in ("2147483648", "-1", "1e300"):
        with pytest.raises(ExpressionError, match="yields"):
            resolve_max_pods(expression, M5_XLARGE)
        assert resolve_kubelet_settings({"maxPods": expression}, M5_XLARGE, expressions=True).max_pods is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        pytest.param("vcpus +", "syntax error", id="does not parse"),
        pytest.param("memory_mib * 0.05", "operand types", id="AWS-T102 int times double"),
        pytest.param("'a'", "a text, not a number", id="yields a text"),
        pytest.param("vcpus > 2", "a truth value, not a number", id="yields a truth value"),
        pytest.param("vcpus > 100 ? cores : 1", "unknown name cores", id="unknown name in a branch not taken"),
        pytest.param("sqrt(vcpus)", "sqrt", id="unknown function"),
        pytest.param("min(vcpus, 2, 3)", "not a number", id="min takes two"),
        pytest.param("min('a', 'b')", "not a number", id="min takes numbers"),
        pytest.param("(" * 100_000, "100000 characters long", id="deep enough to exhaust the parser's stack"),
        pytest.param("1" + "+1" * 20_000, "40001 characters long", id="long enough to exhaust the evaluator's stack"),
    ],
)
def test_the_error_of_an_expression_is_reported(expression: str, words: str) -> None:
    """AWS-103."""
    assert words in expression_fault(expression).lower()


def test_an_expression_of_maximum_length_is_safe_at_any_depth() -> None:
    assert expression_fault("1" + "+1" * 1023) == ""
    assert "parse" in expression_fault("(" * 1023 + "1" + ")" * 1023)


def test_a_division_by_zero_is_found_on_types_and_not_in_the_expression() -> None:
    """AWS-T103: it is found on the types (AWS-107)."""
    assert expression_fault("vcpus / (vcpus - 2)") == ""


@pytest.mark.parametrize(
    "kubelet",
    [
        {"maxPods": -1, "podsPerCore": -1},
        {"maxPods": True, "kubeReserved": ["cpu"], "clusterDNS": "10.0.0.10"},
        {"maxPods": 1.5, "kubeReserved": {"cpu": True}, "evictionHard": None},
    ],
)
def test_settings_of_the_wrong_type_are_left_out(kubelet: dict[str, object]) -> None:
    assert resolve_kubelet_settings(kubelet, M5_XLARGE, expressions=True) == KubeletSettings()
