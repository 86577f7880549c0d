"""Validation results of an EC2NodeClass, and the dry runs behind them."""

from __future__ import annotations

from typing import Any

from support.node_class_environment import NodeClassEnvironment

VALID = ("True", "ValidationSucceeded")
TRIED = ("CreateLaunchTemplate", "CreateFleet", "RunInstances")


async def verdict(environment: NodeClassEnvironment) -> tuple[str, str]:
    return await environment.condition("ValidationSucceeded")


async def validation_of(environment: NodeClassEnvironment, **spec: Any) -> tuple[str, str]:
    await environment.create(**spec)
    await environment.reconcile()
    return await verdict(environment)


def tried(environment: NodeClassEnvironment) -> list[str]:
    return [name for name in environment.ec2.names() if name in TRIED]
