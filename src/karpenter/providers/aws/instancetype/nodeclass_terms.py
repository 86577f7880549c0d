"""What of a class its list of types depends on, and nothing else.

Two classes that agree in it share one list; a change of anything else, such as a tag, keeps the list (AWS-284). ``identity`` is
exactly this: equal texts, equal lists. It covers everything ``compatibility`` reads, which the reference's key does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import msgspec

from karpenter.api.ec2_node_class import AMI, CapacityReservation, EC2NodeClass, EC2NodeClassSpec, Subnet
from karpenter.instancetypes.ec2_catalog import ZONE_ID
from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS, complete_requirements, label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.ec2_descriptions import PlacementGroupInfoEntry
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware
from karpenter.providers.aws.userdata.ami_families import AL2023, WINDOWS_BUILDS, AmiFamilyTraits, ami_family_of

_PARTITIONED = "partition"
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class NodeClassTerms:
    """A class as its types see it. ``group`` is the placement group it resolved to, None where it asks for none."""

    spec: EC2NodeClassSpec
    family: AmiFamilyTraits
    subnets: tuple[Subnet, ...]
    amis: tuple[AMI, ...]
    reservations: tuple[CapacityReservation, ...] = ()
    group: PlacementGroupInfoEntry | None = None
    #: Names of the images' set, under which memory is learned (AWS-316).
    images: str = field(default="")

    @cached_property
    def zone_ids(self) -> Mapping[str, str]:
        """The zones the class has subnets in, with their ids (empty where the status does not say)."""
        return {subnet.zone: subnet.zone_id for subnet in self.subnets}

    @cached_property
    def subnets_by_zone(self) -> Mapping[str, frozenset[str]]:
        """Ids of the class's subnets by the name of their zone."""
        return {zone: frozenset(subnet.id for subnet in self.subnets if subnet.zone == zone) for zone in self.zone_ids}

    @cached_property
    def reservations_by_type(self) -> Mapping[str, tuple[CapacityReservation, ...]]:
        """The class's reservations by instance type, each list sorted by id."""
        by_type: dict[str, tuple[CapacityReservation, ...]] = {}
        for reservation in sorted(self.reservations, key=lambda item: item.id):
            by_type[reservation.instance_type] = (*by_type.get(reservation.instance_type, ()), reservation)
        return by_type

    @property
    def efa_only(self) -> int:
        """Interfaces of the class that carry no addresses."""
        return sum(network_interface.interface_type == "efa-only" for network_interface in self.spec.network_interfaces)

    @property
    def group_id(self) -> str:
        """The placement group, empty without one."""
        return self.group.group_id if self.group is not None else ""

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """The partitions of the class's group, none where it is not divided (AWS-320)."""
        if self.group is None or self.group.strategy != _PARTITIONED:
            return ()
        return tuple(str(number) for number in range(1, self.group.partition_count + 1))


def read_terms(
    node_class: EC2NodeClass, group: PlacementGroupInfoEntry | None = None, *, reserved_capacity: bool = True
) -> NodeClassTerms:
    """The terms of a class; ``reserves`` is whether the gate ReservedCapacity is on (AWS-354)."""
    status = node_class.status
    return NodeClassTerms(
        spec=node_class.spec,
        family=ami_family_of(node_class.spec),
        subnets=status.subnets,
        amis=status.amis,
        reservations=status.capacity_reservations if reserved_capacity else (),
        group=group,
        images=image_set(status.amis),
    )


def terms_identity(terms: NodeClassTerms) -> bytes:
    """Equal for terms that make equal types and offerings (AWS-284, AWS-353 Beyond)."""
    spec = terms.spec
    return _encode(
        (
            terms.family.name,
            spec.kubelet,
            spec.block_device_mappings,
            spec.instance_store_policy,
            spec.network_interfaces,
            spec.cpu_options,
            spec.connection_tracking is not None,
            # Their order follows free addresses and changes by the minute.
            sorted((subnet.id, subnet.zone, subnet.zone_id) for subnet in terms.subnets),
            terms.images,
            terms.reservations,
            terms.group,
        )
    )


def image_set(amis: Iterable[AMI]) -> str:
    """A name for a set of images and what each is for; neither their order matters nor what else is known of them."""
    return hashlib.sha256(b"\n".join(sorted(_encode((ami.id, ami.requirements)) for ami in amis))).hexdigest()[:16]


class Incompatibility(StrEnum):
    """What of a class a type cannot do."""

    NETWORK_INTERFACES = "networkInterfaces"
    IMAGE_FAMILY = "amiFamily"
    NESTED_VIRTUALIZATION = "cpuOptions.nestedVirtualization"
    PLACEMENT_GROUP = "placementGroupSelector"
    CONNECTION_TRACKING = "connectionTracking"


def incompatibility(hardware: Ec2Hardware, terms: NodeClassTerms) -> Incompatibility | None:
    """The first thing the class wants and the type cannot do, None if there is none."""
    return next((reason for reason, permits in _CHECKS if not permits(hardware, terms)), None)


def _supports_network_interfaces(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    interfaces = terms.spec.network_interfaces
    if not interfaces:
        return True
    network = hardware.info.network_info
    if network.ena_support not in ("supported", "required") or terms.efa_only > hardware.shape.efa_interfaces:
        return False
    room = {card.network_card_index: card.maximum_network_interfaces for card in network.network_cards}
    return all(
        network_interface.device_index < room.get(network_interface.network_card_index, 0)
        for network_interface in interfaces
    )


def _runs_ami_family(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    """The first Graviton lacks what the system of AL2023 is compiled for."""
    return terms.family.name != AL2023 or not hardware.name.startswith("a1.")


def _supports_nested_virtualization(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    options = terms.spec.cpu_options
    if options is None or options.nested_virtualization != "enabled":
        return True
    return "nested-virtualization" in hardware.info.processor_info.supported_features


def _supports_placement_group(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    if terms.group is None:
        return True
    supported = hardware.info.placement_group_info
    return supported is not None and terms.group.strategy in supported.supported_strategies


def _supports_connection_tracking(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    return terms.spec.connection_tracking is None or hardware.info.hypervisor == "nitro"


_Check = Callable[[Ec2Hardware, NodeClassTerms], bool]
#: In this order.
_CHECKS: tuple[tuple[Incompatibility, _Check], ...] = (
    (Incompatibility.NETWORK_INTERFACES, _supports_network_interfaces),
    (Incompatibility.IMAGE_FAMILY, _runs_ami_family),
    (Incompatibility.NESTED_VIRTUALIZATION, _supports_nested_virtualization),
    (Incompatibility.PLACEMENT_GROUP, _supports_placement_group),
    (Incompatibility.CONNECTION_TRACKING, _supports_connection_tracking),
)


_WITHOUT_ZONE_IDS = INSTANCE_LABELS - {ZONE_ID}


def type_requirements(hardware: Ec2Hardware, terms: NodeClassTerms, region: str) -> Requirements:
    """All well-known labels of a type; DoesNotExist for those it lacks."""
    label_values = dict(hardware.labels)
    label_values[labels.REGION] = label_in(labels.REGION, region)
    label_values[labels.OS] = _os_requirement(hardware, terms)
    label_values[aws_labels.TENANCY] = label_in(aws_labels.TENANCY, "default", "dedicated")
    if terms.family.is_windows:
        label_values[labels.WINDOWS_BUILD] = label_in(labels.WINDOWS_BUILD, WINDOWS_BUILDS[terms.family.name])
    for key, values in (
        _zone_values(hardware, terms) | _reservation_values(hardware, terms) | _placement_group_values(terms)
    ).items():
        if values:
            label_values[key] = label_in(key, *values)
    # Where no zone's id is known the label is not denied: it is left open.
    return complete_requirements(label_values, INSTANCE_LABELS if ZONE_ID in label_values else _WITHOUT_ZONE_IDS)


def available_zones(hardware: Ec2Hardware, terms: NodeClassTerms) -> tuple[str, ...]:
    """Where the type is sold and the class has a subnet; sorted."""
    return tuple(sorted(hardware.zones & terms.zone_ids.keys()))


def label_bool(value: bool) -> str:
    """A truth value as a label."""
    return "true" if value else "false"


def _os_requirement(hardware: Ec2Hardware, terms: NodeClassTerms) -> Requirement:
    """Windows runs on amd64 only: other types are then for nobody (AWS-T301)."""
    if not terms.family.is_windows:
        return label_in(labels.OS, "linux")
    return label_in(labels.OS, "windows") if hardware.shape.arch == "amd64" else label_in(labels.OS)


def _zone_values(hardware: Ec2Hardware, terms: NodeClassTerms) -> dict[str, tuple[str, ...]]:
    zones = available_zones(hardware, terms)
    return {labels.ZONE: zones, ZONE_ID: tuple(terms.zone_ids[zone] for zone in zones if terms.zone_ids[zone])}


def _reservation_values(hardware: Ec2Hardware, terms: NodeClassTerms) -> dict[str, tuple[str, ...]]:
    own = terms.reservations_by_type.get(hardware.name, ())
    return {
        labels.CAPACITY_TYPE: (*hardware.capacity_types, *((labels.RESERVED,) if own else ())),
        labels.RESERVATION_ID: _distinct(reservation.id for reservation in own),
        aws_labels.RESERVATION_TYPE: _distinct(reservation.reservation_type for reservation in own),
        aws_labels.RESERVATION_INTERRUPTIBLE: _distinct(label_bool(reservation.interruptible) for reservation in own),
    }


def _placement_group_values(terms: NodeClassTerms) -> dict[str, tuple[str, ...]]:
    return {
        aws_labels.PLACEMENT_GROUP_ID: (terms.group_id,) if terms.group_id else (),
        aws_labels.PLACEMENT_GROUP_PARTITION: terms.partitions,
    }


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))
