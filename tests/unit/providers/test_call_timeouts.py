"""Timeouts of provider calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.providers import conformance
from karpenter.providers.contract import (
    CloudProvider,
    HookPending,
    HookSatisfied,
    InstanceNotFound,
    LaunchFailed,
    ProviderError,
)
from karpenter.providers.decorators import TimeoutProvider
from karpenter.simulation.virtual_time import run_virtual
from support.builders import claim, node_pool
from support.simulated_provider_cluster import ProviderCluster, run_in_virtual_time

Call = Callable[[CloudProvider], Coroutine[Any, Any, object]]

CALLS: dict[str, Call] = {
    "create": lambda cloud: cloud.create(claim("c")),
    "delete": lambda cloud: cloud.delete("id"),
    "get": lambda cloud: cloud.get("id"),
    "list": lambda cloud: cloud.list(),
    "instance_types": lambda cloud: cloud.instance_types(node_pool("np")),
    "drift": lambda cloud: cloud.drift(claim("c")),
    "hook": lambda cloud: cloud.registration_hooks()[0].check(claim("c")),
}


class SlowProvider:
    """A provider that returns or raises ``answer`` after some seconds. Its only hook does the same."""

    name = "slow"
    node_class_kinds = ()

    def __init__(self, seconds: float, answer: object) -> None:
        self.seconds = seconds
        self.answer = answer
        self.cancelled = 0

    async def _say(self, *_: object) -> Any:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    create = delete = get = list = instance_types = drift = check = _say

    def repair_policies(self) -> tuple[str]:
        return ("policy",)

    def registration_hooks(self) -> tuple[Any]:
        return (self,)


def after(call: Call, cloud: SlowProvider) -> tuple[object, float]:
    """The result or exception of a call, and its duration in seconds."""

    async def scenario(clock: object) -> tuple[object, float]:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            answer: object = await call(TimeoutProvider(cloud))
        except Exception as error:
            answer = error
        return answer, now() - began

    return run_virtual(scenario, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_call_that_hangs_is_a_provider_error_after_a_minute(call: Call) -> None:
    """OPS-733"""
    cloud = SlowProvider(10**6, None)
    answer, seconds = after(call, cloud)
    assert isinstance(answer, ProviderError)
    assert str(answer).endswith("took longer than 60 s")
    assert seconds == pytest.approx(60)
    assert cloud.cancelled == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("said", [LaunchFailed("Denied", "no"), InstanceNotFound("id"), TimeoutError("own")], ids=type)
def test_errors_pass_unchanged(call: Call, said: Exception) -> None:
    """A timeout error of the provider is passed on."""
    answer, seconds = after(call, SlowProvider(59, said))
    assert answer is said
    assert seconds == pytest.approx(59)


@pytest.mark.parametrize("said", [HookSatisfied({"a": "b"}), HookPending()], ids=["satisfied", "pending"])
def test_answers_pass_unchanged(said: object) -> None:
    for call in CALLS.values():
        answer, _ = after(call, SlowProvider(59, None if call is CALLS["delete"] else said))
        assert answer is (None if call is CALLS["delete"] else said)


def test_attributes_without_a_call_are_passed_on() -> None:
    cloud = TimeoutProvider(SlowProvider(0, None))
    assert (cloud.name, cloud.node_class_kinds, cloud.repair_policies()) == ("slow", (), ("policy",))
    assert [hook.name for hook in cloud.registration_hooks()] == ["slow"]


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_a_provider_with_timeouts_conforms(check: conformance.ConformanceCheck) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        class WithTimeouts:
            async def provider(self) -> CloudProvider:
                return TimeoutProvider(await cluster.provider())

            def __getattr__(self, name: str) -> Any:
                return getattr(cluster, name)

        await check(WithTimeouts())

    run_in_virtual_time(scenario)
