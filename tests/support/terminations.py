"""Nodes and NodeClaims that end."""

from __future__ import annotations

from support.world import World


def evicted(world: World) -> list[str]:
    return [write.name for write in world.wire.writes if write.verb == "evict"]
