"""What a node class says about its instance types, and the type that follows from it and the hardware (AWS-290 to AWS-323).

Two classes with equal terms share one list of types; a change of anything else, such as a tag, keeps the list (AWS-284).
``terms_identity`` is exactly these terms: equal texts, equal lists. It covers everything ``incompatibility`` reads, which
Karpenter's key does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

import msgspec

from karpenter.api.ec2_node_class import (
    AMI,
    BlockDeviceMapping,
    CapacityReservation,
    EC2NodeClass,
    EC2NodeClassSpec,
    Subnet,
)
from karpenter.instancetypes import ec2_capacity as formulas
from karpenter.instancetypes.ec2_capacity import GIB, MIB, EvictionThreshold
from karpenter.instancetypes.ec2_packaged_types import ZONE_ID
from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS, complete_requirements, label_in
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_bytes
from karpenter.model.requirements import Requirement, Requirements
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.bootstrap.join_rules import (
    KubeReservedMode,
    has_own_pod_network,
    kube_reserved_mode,
)
from karpenter.providers.aws.ec2_descriptions import PlacementGroupInfoEntry
from karpenter.providers.aws.instancetype.device_templates import NO_SHARING, GpuSharing, gpu_sharing_of
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware
from karpenter.providers.aws.userdata.ami_families import (
    AL2023,
    DEFAULT_MAX_PODS,
    WINDOWS_BUILDS,
    AmiFamilyTraits,
    ami_family_of,
)
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts, resolve_kubelet_settings

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
    has_own_pod_network: bool = False
    reserved_mode: KubeReservedMode = KubeReservedMode.AWS
    gpu_sharing: GpuSharing = NO_SHARING

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
        for reservation in sorted(self.reservations, key=lambda reservation: reservation.id):
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
    """The terms of a class; ``reserved_capacity`` is whether the gate ReservedCapacity is on (AWS-354)."""
    status = node_class.status
    return NodeClassTerms(
        spec=node_class.spec,
        family=ami_family_of(node_class.spec),
        subnets=status.subnets,
        amis=status.amis,
        reservations=status.capacity_reservations if reserved_capacity else (),
        group=group,
        images=image_set(status.amis),
        has_own_pod_network=has_own_pod_network(node_class),
        reserved_mode=kube_reserved_mode(node_class),
        gpu_sharing=gpu_sharing_of(node_class),
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
            spec.enclave_options,
            spec.connection_tracking is not None,
            # Their order follows free addresses and changes by the minute.
            sorted((subnet.id, subnet.zone, subnet.zone_id) for subnet in terms.subnets),
            terms.images,
            terms.reservations,
            terms.group,
            terms.has_own_pod_network,
            terms.reserved_mode,
            (terms.gpu_sharing.mode, terms.gpu_sharing.shares),
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
    ENCLAVES = "enclaveOptions.enabled"
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


def _supports_enclaves(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    """Types that do not say whether they support Nitro Enclaves do not (K15-A31)."""
    options = terms.spec.enclave_options
    return options is None or not options.enabled or hardware.info.nitro_enclaves_support == "supported"


def _supports_connection_tracking(hardware: Ec2Hardware, terms: NodeClassTerms) -> bool:
    return terms.spec.connection_tracking is None or hardware.info.hypervisor == "nitro"


_Check = Callable[[Ec2Hardware, NodeClassTerms], bool]
#: In this order.
_CHECKS: tuple[tuple[Incompatibility, _Check], ...] = (
    (Incompatibility.NETWORK_INTERFACES, _supports_network_interfaces),
    (Incompatibility.IMAGE_FAMILY, _runs_ami_family),
    (Incompatibility.NESTED_VIRTUALIZATION, _supports_nested_virtualization),
    (Incompatibility.ENCLAVES, _supports_enclaves),
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
    placed = _zone_values(hardware, terms) | _reservation_values(hardware, terms) | _placement_group_values(terms)
    for key, values in placed.items():
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
    """Windows runs on amd64 only: other types then allow no operating system (AWS-T301)."""
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


_GIGABYTE = 10**9
_FALLBACK_VOLUME_BYTES = 20 * GIB
_RESERVABLE_RESOURCES = frozenset({res.CPU, res.MEMORY, res.EPHEMERAL_STORAGE})
_DEFAULT_MEMORY_EVICTION = EvictionThreshold(units=100 * MIB)
_DEFAULT_STORAGE_EVICTION = EvictionThreshold(share=Fraction(1, 10))


class NodeClassTermsError(ValueError):
    """A class says something no capacity follows from. The text says what."""


@dataclass(frozen=True)
class CapacitySettings:
    """What the operator says of all instances: settings AWS-006, AWS-008 and AWS-013."""

    vm_memory_overhead: Fraction = formulas.VM_MEMORY_OVERHEAD
    reserved_enis: int = 0
    kubelet_expressions: bool = False


def capacity_terms(
    hardware: Ec2Hardware, terms: NodeClassTerms, capacity_settings: CapacitySettings, learned_bytes: int = 0
) -> formulas.CapacityParameters:
    """A class's terms for one type. ``learned_bytes`` is the memory such nodes have, 0 where unknown. Raises
    ``NodeClassTermsError``."""
    facts = kubelet_type_facts(hardware, terms, capacity_settings)
    settings = resolve_kubelet_settings(terms.spec.kubelet, facts, capacity_settings.kubelet_expressions)
    pods = facts.pods(settings.max_pods, settings.pods_per_core)
    interfaces_only = terms.family.reserves_for_interfaces and not terms.has_own_pod_network
    return formulas.CapacityParameters(
        vm_memory_overhead=capacity_settings.vm_memory_overhead,
        learned_memory_bytes=learned_bytes,
        storage_bytes=_storage_bytes(hardware, terms),
        pods=pods,
        reserved_pods=None if interfaces_only else pods,
        efa_interfaces=terms.efa_only if terms.spec.network_interfaces else None,
        private_ipv4_addresses=_private_addresses(hardware, terms),
        kube_reserved={**_unreserved(terms.reserved_mode), **_reserved(settings.kube_reserved)},
        system_reserved=_reserved(settings.system_reserved),
        memory_eviction_threshold=_threshold(settings.eviction_hard, "memory.available", _DEFAULT_MEMORY_EVICTION),
        storage_eviction_threshold=_threshold(settings.eviction_hard, "nodefs.available", _DEFAULT_STORAGE_EVICTION),
    )


def kubelet_type_facts(
    hardware: Ec2Hardware, terms: NodeClassTerms, capacity_settings: CapacitySettings
) -> KubeletTypeFacts:
    """What the class's kubelet expressions may ask about the type (AWS-111, AWS-113)."""
    return KubeletTypeFacts(
        instance_type=hardware.name,
        vcpus=hardware.shape.vcpus,
        memory_mib=hardware.shape.memory_mib,
        default_enis=hardware.shape.interfaces,
        ips_per_eni=hardware.shape.ipv4_per_interface,
        default_pods=_default_pods(hardware, terms, capacity_settings),
        applies_pods_per_core=terms.family.applies_pods_per_core,
    )


def _default_pods(hardware: Ec2Hardware, terms: NodeClassTerms, capacity_settings: CapacitySettings) -> int:
    if terms.has_own_pod_network or not terms.family.is_limited_by_interfaces:
        return DEFAULT_MAX_PODS
    reserved_interfaces = sum(
        network_interface.interface_type == "efa-only" and network_interface.network_card_index == 0
        for network_interface in terms.spec.network_interfaces
    )
    shape = hardware.shape
    return formulas.max_pods(
        shape.interfaces, shape.ipv4_per_interface, capacity_settings.reserved_enis + reserved_interfaces
    )


def _private_addresses(hardware: Ec2Hardware, terms: NodeClassTerms) -> int:
    """Addresses for Windows pods, which only some instances run (AWS-299)."""
    runs_windows = terms.family.is_windows and hardware.shape.arch == "amd64"
    return hardware.shape.ipv4_per_interface - 1 if runs_windows else 0


def _unreserved(mode: KubeReservedMode) -> res.Resources:
    """What takes the place of the amounts EKS images reserve (AWS-931)."""
    return {} if mode is KubeReservedMode.AWS else dict.fromkeys(_RESERVABLE_RESOURCES, 0)


def _reserved(values: Mapping[str, str]) -> res.Resources:
    try:
        return {name: quantity.parse_milli(value) for name, value in values.items() if name in _RESERVABLE_RESOURCES}
    except quantity.QuantityError as error:
        raise NodeClassTermsError(f"kubelet: {error}") from error


def _threshold(values: Mapping[str, str], signal: str, default: EvictionThreshold) -> EvictionThreshold:
    """A hard eviction threshold; 100 % means that there is none (AWS-310, AWS-311)."""
    text = values.get(signal)
    if text is None:
        return default
    try:
        if not text.endswith("%"):
            return EvictionThreshold(units=quantity.parse_milli(text) // quantity.MILLI)
        share = Fraction(text[:-1]) / 100
    except ValueError as error:
        raise NodeClassTermsError(
            f"kubelet.evictionHard {signal}: {text!r} is neither a quantity nor a percentage"
        ) from error
    return EvictionThreshold(share=share if share < 1 else Fraction(0))


def _storage_bytes(hardware: Ec2Hardware, terms: NodeClassTerms) -> int:
    """What pods can write, in bytes (AWS-293)."""
    local = hardware.info.instance_storage_info
    if terms.spec.instance_store_policy == "RAID0" and local is not None and local.total_size_in_gb:
        return local.total_size_in_gb * _GIGABYTE
    mapping = _storage_mapping(terms)
    return (mapping is not None and _volume_bytes(mapping)) or _default_volume_bytes(terms) or _FALLBACK_VOLUME_BYTES


def _storage_mapping(terms: NodeClassTerms) -> BlockDeviceMapping | None:
    """The mapping pods write on, None where the class says nothing about it."""
    mappings = terms.spec.block_device_mappings
    root = next((device_mapping for device_mapping in mappings if device_mapping.root_volume), None)
    if root is not None:
        return root
    if not terms.family.ephemeral_device:
        return mappings[-1] if mappings else None
    return next(
        (device_mapping for device_mapping in mappings if device_mapping.device_name == terms.family.ephemeral_device),
        None,
    )


def _default_volume_bytes(terms: NodeClassTerms) -> int:
    device = terms.family.ephemeral_device
    return sum(
        _volume_bytes(device_mapping)
        for device_mapping in terms.family.block_devices
        if device_mapping.device_name == device
    )


def _volume_bytes(mapping: BlockDeviceMapping) -> int:
    """Bytes of a volume, 0 where its snapshot decides."""
    text = mapping.ebs.volume_size if mapping.ebs is not None else None
    if text is None:
        return 0
    try:
        return volume_size_bytes(text)
    except VolumeSizeError as error:
        raise NodeClassTermsError(f"block device {mapping.device_name}: volumeSize: {error}") from error
