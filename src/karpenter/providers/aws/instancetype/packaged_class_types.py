"""Packaged instance types as instances of an EC2NodeClass: what a plan offline knows of the class.

The controller computes the same from EC2's descriptions (``instance_type_provider``). Here shapes and labels are the packaged
ones. The class's kubelet settings, volumes, image family and network interfaces count: they change capacities and exclude types.
Not known offline, and without effect: what selectors select (subnets count where the status has them, otherwise every zone has
one), capacity reservations, placement groups and which types support nested virtualization and enclaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from karpenter.api.ec2_node_class import EC2NodeClass, Subnet
from karpenter.instancetypes import ec2_capacity, ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from karpenter.model.requirements import Requirement
from karpenter.providers.aws.ec2_descriptions import (
    InstanceStorageInfo,
    InstanceTypeInfo,
    NetworkCard,
    NetworkInfo,
    ProcessorInfo,
)
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware
from karpenter.providers.aws.instancetype.nodeclass_terms import (
    CapacitySettings,
    NodeClassTerms,
    capacity_terms,
    incompatibility,
    read_terms,
    type_requirements,
)

_VARIABLE_LABELS = (labels.ZONE, ec2_packaged_types.ZONE_ID, labels.CAPACITY_TYPE)


def packaged_class_types(
    node_class: EC2NodeClass, region: str, capacity_settings: CapacitySettings
) -> tuple[InstanceType, ...]:
    """The packaged types of a region for a class. Raises ``NodeClassTermsError``."""
    types = ec2_packaged_types.packaged_instance_types(region)
    terms = _plan_terms(node_class, types)
    return tuple(_class_type(instance_type, terms, region, capacity_settings) for instance_type in types)


def _plan_terms(node_class: EC2NodeClass, types: Iterable[InstanceType]) -> NodeClassTerms:
    """The class's terms, with a subnet in every zone where the status names none."""
    terms = read_terms(node_class, reserved_capacity=False)
    return terms if terms.subnets else replace(terms, subnets=tuple(_assumed_subnets(types)))


def _assumed_subnets(types: Iterable[InstanceType]) -> Iterator[Subnet]:
    offerings = (offering for instance_type in types for offering in instance_type.offerings)
    zones = {
        offering.zone: next(iter(offering.requirements[ec2_packaged_types.ZONE_ID].values)) for offering in offerings
    }
    for zone, zone_id in sorted(zones.items()):
        yield Subnet(id=f"subnet-assumed-in-{zone}", zone=zone, zone_id=zone_id)


def _class_type(
    instance_type: InstanceType, terms: NodeClassTerms, region: str, capacity_settings: CapacitySettings
) -> InstanceType:
    hardware = _packaged_hardware(instance_type)
    parameters = capacity_terms(hardware, terms, capacity_settings)
    is_compatible = incompatibility(hardware, terms) is None
    return replace(
        instance_type,
        requirements=type_requirements(hardware, terms, region),
        capacity=ec2_capacity.instance_capacity(hardware.shape, parameters),
        overhead=ec2_capacity.instance_overhead(hardware.shape, parameters),
        offerings=tuple(
            _class_offering(offering, is_compatible and offering.zone in terms.zone_ids)
            for offering in instance_type.offerings
        ),
    )


def _class_offering(offering: Offering, is_available: bool) -> Offering:
    return offering if is_available else replace(offering, available=False)


def _packaged_hardware(instance_type: InstanceType) -> Ec2Hardware:
    """The packaged facts of a type in the form that class terms are applied to."""
    shape = ec2_packaged_types.packaged_shape(instance_type.name)
    info = InstanceTypeInfo(
        instance_type=instance_type.name,
        hypervisor=_label(instance_type, "hypervisor"),
        nitro_enclaves_support="supported",
        processor_info=ProcessorInfo(supported_features=("nested-virtualization",)),
        network_info=NetworkInfo(
            ena_support="supported", network_cards=(NetworkCard(maximum_network_interfaces=shape.interfaces),)
        ),
        instance_storage_info=InstanceStorageInfo(total_size_in_gb=int(_label(instance_type, "local-nvme") or 0)),
    )
    return Ec2Hardware(
        info=info,
        shape=shape,
        card=info.network_info.network_cards[0],
        labels=dict(_fixed_labels(instance_type)),
        zones=frozenset(instance_type.requirements[labels.ZONE].values),
        capacity_types=tuple(sorted(instance_type.requirements[labels.CAPACITY_TYPE].values)),
    )


def _fixed_labels(instance_type: InstanceType) -> Iterator[tuple[str, Requirement]]:
    return ((key, label) for key, label in instance_type.requirements.items() if key not in _VARIABLE_LABELS)


def _label(instance_type: InstanceType, suffix: str) -> str:
    """The value of a hardware label, empty if the type lacks it."""
    label = instance_type.requirements[f"{ec2_packaged_types.INSTANCE_LABEL_PREFIX}{suffix}"]
    return next(iter(label.values), "")
