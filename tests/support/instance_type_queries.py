"""Queries of instance types, and capacity reservations and overlays for tests of them."""

from __future__ import annotations

import msgspec

from karpenter.api.ec2_node_class import (
    CapacityReservation,
)
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, NodeOverlayStatus, OverlayRequirement
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws.aws_errors import AwsError
from support.ec2_instance_types import A

ZONE_ID = "topology.k8s.aws/zone-id"


PARTITION = "karpenter.k8s.aws/placement-group-partition"


REFUSED = AwsError("InternalError", "try again")


def values(item: InstanceType, key: str) -> frozenset[str]:
    return item.requirements[key].values


def available(item: InstanceType) -> set[tuple[str, str]]:
    return {(offer.capacity_type, offer.zone) for offer in item.offerings if offer.available}


def reservation(**changes: object) -> CapacityReservation:
    usual = CapacityReservation(
        id="cr-1", availability_zone=A, instance_type="m5.large", instance_match_criteria="open", owner_id="1" * 12
    )
    return msgspec.structs.replace(usual, **changes)


def overlay(
    *requirements: tuple[str, str], price: str | None = "2.5", valid: bool = True, weight: int = 1
) -> NodeOverlay:
    return NodeOverlay(
        metadata=ObjectMeta(name="overlay"),
        spec=NodeOverlaySpec(
            requirements=tuple(
                OverlayRequirement(key=key, operator="In", values=(value,)) for key, value in requirements
            ),
            price=price,
            weight=weight,
        ),
        status=NodeOverlayStatus(
            conditions=(Condition(type="ValidationSucceeded", status="True" if valid else "False"),)
        ),
    )
