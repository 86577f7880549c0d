"""Metrics of provider calls: durations and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.metrics import Metrics
from karpenter.metrics.controller_metrics import controller_scope
from karpenter.providers import conformance
from karpenter.providers.contract import (
    CloudProvider,
    InstanceNotFound,
    InsufficientCapacity,
    LaunchFailed,
    NodeClassNotReady,
    ProviderError,
)
from karpenter.providers.decorators import MetricsProvider, reboot_instance
from karpenter.simulation.virtual_time import run_virtual
from support.builders import claim, node_pool
from support.simulated_provider_cluster import run_in_virtual_time

Call = Callable[[CloudProvider], Coroutine[Any, Any, object]]

CALLS: dict[str, Call] = {
    "Create": lambda cloud: cloud.create(claim("c")),
    "Delete": lambda cloud: cloud.delete("id"),
    "Get": lambda cloud: cloud.get("id"),
    "List": lambda cloud: cloud.list(),
    "GetInstanceTypes": lambda cloud: cloud.instance_types(node_pool("np")),
    "IsDrifted": lambda cloud: cloud.drift(claim("c")),
    "Reboot": lambda cloud: reboot_instance(cloud, claim("c"), "operation"),
}


class SlowProvider:
    """A provider that returns or raises ``answer`` after two seconds."""

    name = "slow"
    node_class_kinds = ()

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def _say(self, *_: object) -> Any:
        await asyncio.sleep(2)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    create = delete = get = list = instance_types = drift = reboot = _say

    def repair_policies(self) -> tuple[()]:
        return ()

    def registration_hooks(self) -> tuple[()]:
        return ()


def asked(method: str, answer: object) -> Metrics:
    """The metrics after a controller called a method that gives this answer. The caller gets the answer."""
    metrics = Metrics()

    async def scenario() -> None:
        cloud = MetricsProvider(SlowProvider(answer), metrics)
        with controller_scope("nodeclaim.lifecycle"):
            if isinstance(answer, Exception):
                with pytest.raises(type(answer)) as caught:
                    await CALLS[method](cloud)
                assert caught.value is answer
            else:
                actual = await CALLS[method](cloud)
                assert method in ("Delete", "Reboot") or actual is answer

    run_virtual(lambda clock: scenario(), datetime(2026, 1, 1, tzinfo=UTC))
    return metrics


def value(metrics: Metrics, series: str, method: str, **more: str) -> float | None:
    own = {"controller": "nodeclaim.lifecycle", "method": method, "provider": "slow", **more}
    return metrics.registry.get_sample_value(series, own)


def errors(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Counted errors by method and kind."""
    families = (family for family in metrics.registry.collect() if family.name == "karpenter_cloudprovider_errors")
    samples = [sample for family in families for sample in family.samples]
    return {(sample.labels["method"], sample.labels["error"]): sample.value for sample in samples}


@pytest.mark.parametrize("method", CALLS)
def test_calls_are_timed_by_controller_method_and_provider(method: str) -> None:
    """OPS-470"""
    metrics = asked(method, ("an answer",))
    assert value(metrics, "karpenter_cloudprovider_duration_seconds_count", method) == 1
    assert value(metrics, "karpenter_cloudprovider_duration_seconds_sum", method) == pytest.approx(2)
    assert errors(metrics) == {}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (InsufficientCapacity("x"), "InsufficientCapacityError"),
        (NodeClassNotReady("x"), "NodeClassNotReadyError"),
        (LaunchFailed("Quota", "x"), "unknown"),
        (ProviderError("x"), "unknown"),
        (ValueError("a bug"), "unknown"),
    ],
    ids=["OPS-226", "OPS-227", "OPS-228", "OPS-230", "bug"],
)
def test_errors_are_counted_by_kind_and_timed(method: str, error: Exception, name: str) -> None:
    """K15-462, K15-A104, OPS-471, OPS-M11: also of a reboot; other kinds are unknown; the NodePool is another label."""
    metrics = asked(method, error)
    assert errors(metrics) == {(method, name): 1}
    assert value(metrics, "karpenter_cloudprovider_duration_seconds_count", method) == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (InsufficientCapacity, "InsufficientCapacityError"),
        (NodeClassNotReady, "NodeClassNotReadyError"),
        (InstanceNotFound, "NodeClaimNotFoundError"),
    ],
)
def test_an_error_with_a_cause_keeps_its_kind(kind: Callable[[str], ProviderError], name: str) -> None:
    """OPS-P1: decorators raise the same error, so its causes are kept."""
    innermost = OSError("connection reset")
    cause = ProviderError("reading the class")
    cause.__cause__ = innermost
    error = kind("x")
    error.__cause__ = cause
    assert errors(asked("Create", error)) == {("Create", name): 1}
    assert error.__cause__.__cause__ is innermost


@pytest.mark.parametrize("method", [method for method in CALLS if method != "Delete"])
def test_an_instance_that_is_missing_is_an_error(method: str) -> None:
    """OPS-225"""
    assert errors(asked(method, InstanceNotFound("i-1"))) == {(method, "NodeClaimNotFoundError"): 1}


def test_a_missing_instance_after_a_deletion_is_no_error() -> None:
    """OPS-230 Beyond"""
    metrics = asked("Delete", InstanceNotFound("i-1"))
    assert errors(metrics) == {}
    assert value(metrics, "karpenter_cloudprovider_duration_seconds_count", "Delete") == 1


class MeasuredEnvironment:
    """A conformance environment whose providers have metrics."""

    def __init__(self, environment: conformance.ConformanceEnvironment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    async def provider(self) -> CloudProvider:
        return MetricsProvider(await self._environment.provider(), Metrics())


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_a_provider_with_metrics_conforms(check: conformance.ConformanceCheck) -> None:
    run_in_virtual_time(lambda environment: check(MeasuredEnvironment(environment)))
