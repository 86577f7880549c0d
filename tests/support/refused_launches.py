"""Launches in a world of launches, and fleets that EC2 refuses."""

from __future__ import annotations

from typing import Any

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws.ec2_requests import (
    FleetError,
    FleetOverride,
    TemplateAndOverrides,
)
from karpenter.providers.contract import Instance
from support.launch_cases import (
    World,
    machine,
    node_class,
)

LARGE, XLARGE = machine("m5.large", 0.1), machine("m5.xlarge", 0.2)


async def launch(world: World, *types: InstanceType, name: str = "one", **more: Any) -> Instance:
    asked = await world.claim(name, uid="", **more)
    return await world.launcher.launch(asked, node_class(), types)


def failures_counted(world: World, zone: str, reason: str, capacity_type: str = "spot") -> float:
    return world.sample(
        "karpenter_cloudprovider_instance_launch_failures_total",
        zone=zone,
        zone_id=world.told.zone_id(zone),
        capacity_type=capacity_type,
        reason=reason,
    )


def refusal(code: str, message: str = "no", zone: str = "a", subnet: str = "s-a", name: str = "m5.large") -> FleetError:
    override = FleetOverride(instance_type=name, subnet_id=subnet, availability_zone=zone)
    return FleetError(
        error_code=code, error_message=message, launch_template_and_overrides=TemplateAndOverrides(overrides=override)
    )


def empty(world: World, *errors: FleetError, types: tuple[InstanceType, ...] = (LARGE,)) -> None:
    """Every fleet comes back with these refusals and no machine."""
    kinds = ("spot", "on-demand")
    world.ec2.free = {(instance_type.name, zone, kind): 0 for instance_type in types for zone in "ab" for kind in kinds}
    world.ec2.extra_errors = errors
