"""A NodeClaim in a ``World`` at a stage of its life cycle: launched, registered, initialized, gone."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from support.world import World


async def launched(world: World, **fields: object) -> None:
    """A running controller and one NodeClaim whose instance is launched."""
    await world.start()
    await world.claim(**fields)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)


async def registered(world: World, **fields: object) -> None:
    """A running controller and one NodeClaim whose Node is registered."""
    await launched(world, **fields)
    await world.join()
    await asyncio.sleep(0.1)


async def ready(world: World, name: str = "c", **fields: object) -> None:
    """A running controller, a NodeClaim and its initialized Node."""
    if world.manager is None:
        await world.start()
    await world.claim(name, **fields)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    await world.join(name)
    await asyncio.sleep(1)


async def all_gone(world: World, name: str = "c") -> bool:
    """Whether NodeClaim and Node are gone."""
    return not await world.has(kinds.NODE_CLAIM, name) and not await world.has(kinds.NODE, f"node-{name}")


def evicted(world: World) -> list[str]:
    """Names of the pods that eviction was requested for, in order."""
    return [write.name for write in world.wire.writes if write.verb == "evict"]
