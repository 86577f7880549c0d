"""NodeClaims whose fields users edit."""

from __future__ import annotations

import asyncio
from typing import Any

from karpenter.api.karpenter import Disruption
from support.world import World


async def up(world: World, *names: str, consolidate_after: str = "Never") -> None:
    """A running controller, a pool, and initialised machines of it: claims c, d, ... on nodes node-c, node-d, ..."""
    await world.node_class()
    pool = await world.pool(disruption=Disruption(consolidate_after=consolidate_after))
    await world.start()
    for name in names or ("c",):
        await world.owned_claim(pool, name)
    await asyncio.sleep(0.1)
    for name in names or ("c",):
        await world.join(name)
    await asyncio.sleep(1)


def bugs(world: World) -> list[dict[str, Any]]:
    return [line for line in world.lines() if "stacktrace" in line]
