"""Clusters that provisioning serves."""

from __future__ import annotations

from typing import Any

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption
from karpenter.settings import Settings
from support.world import World

CALM = Disruption(consolidate_after="Never")


async def start_with_pool(world: World, settings: Settings | None = None, **pool: Any) -> None:
    """A running controller with a class and a pool, on the scripted cloud."""
    await world.node_class()
    await world.pool(**{"disruption": CALM, **pool})
    await world.start(settings)


async def claims(world: World) -> list[Any]:
    return await world.all(kinds.NODE_CLAIM)
