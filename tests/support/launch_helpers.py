"""Helpers for launches, and for fleets that EC2 refuses."""

from __future__ import annotations

from typing import Any

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws.ec2_requests import (
    FleetError,
    FleetOverride,
    TemplateAndOverrides,
)
from karpenter.providers.contract import Instance
from support.launch_environment import (
    LaunchEnvironment,
    ec2_type,
    node_class,
)

LARGE, XLARGE = ec2_type("m5.large", 0.1), ec2_type("m5.xlarge", 0.2)


async def launch(environment: LaunchEnvironment, *types: InstanceType, name: str = "one", **more: Any) -> Instance:
    asked = await environment.claim(name, uid="", **more)
    return await environment.launcher.launch(asked, node_class(), types)


def failures_counted(environment: LaunchEnvironment, zone: str, reason: str, capacity_type: str = "spot") -> float:
    return environment.sample(
        "karpenter_cloudprovider_instance_launch_failures_total",
        zone=zone,
        zone_id=environment.recorded.zone_id(zone),
        capacity_type=capacity_type,
        reason=reason,
    )


def refusal(code: str, message: str = "no", zone: str = "a", subnet: str = "s-a", name: str = "m5.large") -> FleetError:
    override = FleetOverride(instance_type=name, subnet_id=subnet, availability_zone=zone)
    return FleetError(
        error_code=code, error_message=message, launch_template_and_overrides=TemplateAndOverrides(overrides=override)
    )


def refuse_fleets(
    environment: LaunchEnvironment, *errors: FleetError, types: tuple[InstanceType, ...] = (LARGE,)
) -> None:
    """Make every fleet answer with these errors and no instance."""
    kinds = ("spot", "on-demand")
    environment.ec2.free = {
        (instance_type.name, zone, kind): 0 for instance_type in types for zone in "ab" for kind in kinds
    }
    environment.ec2.extra_errors = errors
