"""The verdict on an EC2NodeClass, and the calls that were tried for it."""

from __future__ import annotations

from typing import Any

from support.ec2_classes import Classes

VALID = ("True", "ValidationSucceeded")
TRIED = ("CreateLaunchTemplate", "CreateFleet", "RunInstances")


async def verdict(world: Classes) -> tuple[str, str]:
    return await world.condition("ValidationSucceeded")


async def judged(world: Classes, **spec: Any) -> tuple[str, str]:
    await world.create(**spec)
    await world.look()
    return await verdict(world)


def tried(world: Classes) -> list[str]:
    return [name for name in world.ec2.names() if name in TRIED]
