"""Nodes that come to their end in a ``World``: one that is ready for it, and one of which nothing is left."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from support.world import World


async def ready(world: World, name: str = "c", **fields: object) -> None:
    """A running controller, a claim and its initialised node."""
    if world.manager is None:
        await world.start()
    await world.claim(name, **fields)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    await world.join(name)
    await asyncio.sleep(1)


async def all_gone(world: World, name: str = "c") -> bool:
    """Whether claim and node are gone."""
    return not await world.has(kinds.NODE_CLAIM, name) and not await world.has(kinds.NODE, f"node-{name}")
