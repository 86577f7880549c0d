"""The timeout of a provider call does not include waiting for a rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from karpenter.model.call_deadline import call_deadline
from karpenter.model.token_bucket import TokenBucket
from karpenter.providers.contract import ProviderError
from karpenter.providers.decorators import TimeoutProvider
from support.virtual_cluster import VirtualCluster, in_virtual_time


class WaitingCloud:
    """A provider whose calls a test defines."""

    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self._call = call

    async def list(self) -> tuple[()]:
        await self._call()
        return ()


async def listed(call: Callable[[], Awaitable[None]]) -> tuple[object, ...]:
    return await TimeoutProvider(WaitingCloud(call), 60.0).list()


@in_virtual_time
async def test_waiting_for_a_rate_limit_does_not_count_for_the_timeout(cluster: VirtualCluster) -> None:
    bucket = TokenBucket(0.01, 1)

    async def call() -> None:
        for _ in range(3):
            await bucket.take()  # the second and the third wait 100 s each
        await asyncio.sleep(50)

    assert await listed(call) == ()


@in_virtual_time
async def test_a_call_that_hangs_after_a_rate_limit_times_out(cluster: VirtualCluster) -> None:
    bucket = TokenBucket(0.01, 1)

    async def call() -> None:
        await asyncio.sleep(30)
        await bucket.take()
        await bucket.take()
        await asyncio.sleep(31)

    started = asyncio.get_running_loop().time()
    with pytest.raises(ProviderError, match="listing instances took longer than 60 s"):
        await listed(call)
    assert asyncio.get_running_loop().time() - started == pytest.approx(160)


@in_virtual_time
async def test_parts_of_a_call_can_wait_at_the_same_time(cluster: VirtualCluster) -> None:
    bucket = TokenBucket(0.01, 1)

    async def call() -> None:
        await asyncio.gather(*(bucket.take() for _ in range(4)))  # 0, 100, 200 and 300 s
        await asyncio.sleep(59)

    assert await listed(call) == ()


@in_virtual_time
async def test_a_rate_limit_outside_of_a_call_only_waits(cluster: VirtualCluster) -> None:
    bucket = TokenBucket(1.0, 1)
    async with call_deadline(5.0):
        pass
    await bucket.take()
    await asyncio.wait_for(bucket.take(), 2)
