"""Whether machines of a class can be made of a type at all (AWS-340 to AWS-345).

A type that cannot keeps its place in the list, so that its labels stay known; nothing of it is available.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from karpenter.providers.aws.types.hardware import Hardware
from karpenter.providers.aws.types.terms import ClassTerms
from karpenter.providers.aws.userdata.families import AL2023


class Obstacle(StrEnum):
    """What of a class a type cannot do."""

    NETWORK_INTERFACES = "networkInterfaces"
    IMAGE_FAMILY = "amiFamily"
    NESTED_VIRTUALIZATION = "cpuOptions.nestedVirtualization"
    PLACEMENT_GROUP = "placementGroupSelector"
    CONNECTION_TRACKING = "connectionTracking"


def obstacle(hardware: Hardware, terms: ClassTerms) -> Obstacle | None:
    """The first thing the class wants and the type cannot do, None if there is none."""
    return next((reason for reason, permits in _CHECKS if not permits(hardware, terms)), None)


def _has_interfaces(hardware: Hardware, terms: ClassTerms) -> bool:
    wanted = terms.spec.network_interfaces
    if not wanted:
        return True
    network = hardware.info.network_info
    if network.ena_support not in ("supported", "required") or terms.efa_only > hardware.shape.efa_interfaces:
        return False
    room = {card.network_card_index: card.maximum_network_interfaces for card in network.network_cards}
    return all(item.device_index < room.get(item.network_card_index, 0) for item in wanted)


def _runs_images(hardware: Hardware, terms: ClassTerms) -> bool:
    """The first Graviton lacks what the system of AL2023 is compiled for."""
    return terms.family.name != AL2023 or not hardware.name.startswith("a1.")


def _nests(hardware: Hardware, terms: ClassTerms) -> bool:
    options = terms.spec.cpu_options
    if options is None or options.nested_virtualization != "enabled":
        return True
    return "nested-virtualization" in hardware.info.processor_info.supported_features


def _can_be_placed(hardware: Hardware, terms: ClassTerms) -> bool:
    if terms.group is None:
        return True
    supported = hardware.info.placement_group_info
    return supported is not None and terms.group.strategy in supported.supported_strategies


def _tracks_connections(hardware: Hardware, terms: ClassTerms) -> bool:
    return terms.spec.connection_tracking is None or hardware.info.hypervisor == "nitro"


_Check = Callable[[Hardware, ClassTerms], bool]
#: In this order.
_CHECKS: tuple[tuple[Obstacle, _Check], ...] = (
    (Obstacle.NETWORK_INTERFACES, _has_interfaces),
    (Obstacle.IMAGE_FAMILY, _runs_images),
    (Obstacle.NESTED_VIRTUALIZATION, _nests),
    (Obstacle.PLACEMENT_GROUP, _can_be_placed),
    (Obstacle.CONNECTION_TRACKING, _tracks_connections),
)
