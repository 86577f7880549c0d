"""What of a class its list of types depends on, and nothing else.

Two classes that agree in it share one list; a change of anything else, such as a tag, keeps the list (AWS-284). ``identity`` is
exactly this: equal texts, equal lists. It covers everything ``compatibility`` reads, which the reference's key does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from karpenter.api.ec2 import AMI, CapacityReservation, EC2NodeClass, EC2NodeClassSpec, Subnet
from karpenter.providers.aws.shapes import PlacementGroupInfoEntry
from karpenter.providers.aws.types.learned import image_set
from karpenter.providers.aws.userdata.families import Family, family_of

_PARTITIONED = "partition"
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class ClassTerms:
    """A class as its types see it. ``group`` is the placement group it resolved to, None where it asks for none."""

    spec: EC2NodeClassSpec
    family: Family
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
        found: dict[str, tuple[CapacityReservation, ...]] = {}
        for item in sorted(self.reservations, key=lambda item: item.id):
            found[item.instance_type] = (*found.get(item.instance_type, ()), item)
        return found

    @property
    def efa_only(self) -> int:
        """Interfaces of the class that carry no addresses."""
        return sum(item.interface_type == "efa-only" for item in self.spec.network_interfaces)

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


def read(
    node_class: EC2NodeClass, group: PlacementGroupInfoEntry | None = None, *, reserves: bool = True
) -> ClassTerms:
    """The terms of a class; ``reserves`` is whether the gate ReservedCapacity is on (AWS-354)."""
    status = node_class.status
    return ClassTerms(
        spec=node_class.spec,
        family=family_of(node_class.spec),
        subnets=status.subnets,
        amis=status.amis,
        reservations=status.capacity_reservations if reserves else (),
        group=group,
        images=image_set(status.amis),
    )


def identity(terms: ClassTerms) -> bytes:
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
