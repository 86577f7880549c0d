"""Nodes or pods that come within a short window are handled as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from karpenter.provisioning.opening_batches import OpeningBatches
from karpenter.runtime.batch_window import BatchWindow
from support.virtual_cluster import VirtualCluster, in_virtual_time


async def gone_on_at(*come_at: float, prepared_after: Sequence[float] = ()) -> list[float]:
    """When those who come at these seconds, and are prepared so many seconds later, go on, in the same order."""
    gathering = OpeningBatches(BatchWindow(idle_seconds=1.0, max_seconds=5.0), longest_preparation_seconds=15.0)
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(moment: float, preparation: float) -> float:
        await asyncio.sleep(moment)
        with gathering.joined() as batch:
            await asyncio.sleep(preparation)
        await batch.opens()
        return round(loop.time() - start, 3)

    return list(await asyncio.gather(*map(one, come_at, prepared_after or [0.0] * len(come_at))))


@in_virtual_time
async def test_all_go_on_a_quiet_second_after_the_last_came(cluster: VirtualCluster) -> None:
    assert await gone_on_at(0.0, 0.5, 1.2) == [2.2, 2.2, 2.2]


@in_virtual_time
async def test_pods_that_come_later_open_a_new_batch(cluster: VirtualCluster) -> None:
    assert await gone_on_at(0.0, 1.5, 1.6) == [1.0, 2.6, 2.6]


@in_virtual_time
async def test_no_pod_waits_for_others_forever(cluster: VirtualCluster) -> None:
    waited = await gone_on_at(*(0.9 * number for number in range(12)))
    assert waited[:6] == [5.0] * 6
    assert all(later > 5.0 for later in waited[6:])


@in_virtual_time
async def test_all_wait_until_each_of_them_is_prepared(cluster: VirtualCluster) -> None:
    assert await gone_on_at(0.0, 0.5, prepared_after=(0.1, 4.0)) == [4.5, 4.5]


@in_virtual_time
async def test_a_pod_that_comes_during_preparation_does_not_extend_the_batch(cluster: VirtualCluster) -> None:
    assert await gone_on_at(0.0, 2.0, prepared_after=(4.0, 8.0)) == [4.0, 10.0]


@in_virtual_time
async def test_no_pod_waits_longer_than_the_limit_for_the_preparation_of_others(cluster: VirtualCluster) -> None:
    assert await gone_on_at(0.0, 0.0, prepared_after=(0.0, 60.0)) == [16.0, 60.0]


@in_virtual_time
async def test_nodes_open_at_once_when_no_other_node_will_join(cluster: VirtualCluster) -> None:
    gathering = OpeningBatches(BatchWindow(idle_seconds=1.0, max_seconds=5.0), longest_preparation_seconds=15.0)
    start = asyncio.get_running_loop().time()
    with gathering.joined() as first, gathering.joined() as second:
        gathering.complete()
    await first.opens()
    await second.opens()
    assert asyncio.get_running_loop().time() == start
