"""Who comes within moments of others goes on with them."""

from __future__ import annotations

import asyncio

from karpenter.provisioning.nomination import OpeningBatch
from karpenter.runtime.batch_window import BatchWindow
from support.world import World, story


async def gone_on_at(*come_at: float) -> list[float]:
    """When those who come at these seconds go on, in the same order."""
    gathering = OpeningBatch(BatchWindow(idle_seconds=1.0, max_seconds=5.0))
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(moment: float) -> float:
        await asyncio.sleep(moment)
        await gathering.wait()
        return round(loop.time() - start, 3)

    return list(await asyncio.gather(*map(one, come_at)))


@story
async def test_all_go_on_a_quiet_second_after_the_last_came(world: World) -> None:
    assert await gone_on_at(0.0, 0.5, 1.2) == [2.2, 2.2, 2.2]


@story
async def test_who_comes_later_gathers_anew(world: World) -> None:
    assert await gone_on_at(0.0, 1.5, 1.6) == [1.0, 2.6, 2.6]


@story
async def test_nobody_waits_for_others_for_ever(world: World) -> None:
    waited = await gone_on_at(*(0.9 * number for number in range(12)))
    assert waited[:6] == [5.0] * 6
    assert all(later > 5.0 for later in waited[6:])
