"""NodeClaims at the start of their life cycle."""

from __future__ import annotations

import asyncio

from support.world import World


async def launched(world: World, **fields: object) -> None:
    """A running controller and one claim with its machine bought."""
    await world.start()
    await world.claim(**fields)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)


async def registered(world: World, **fields: object) -> None:
    await launched(world, **fields)
    await world.join()
    await asyncio.sleep(0.1)
