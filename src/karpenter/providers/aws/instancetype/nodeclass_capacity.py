"""What a class makes of a type's capacity: its kubelet's settings, its disks, its interfaces (AWS-290 to AWS-314).

The formulas are the catalogue's (``catalog.ec2_formulas``); here the class is read into their terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from karpenter.api.ec2_node_class import BlockDeviceMapping
from karpenter.instancetypes import ec2_capacity as formulas
from karpenter.instancetypes.ec2_capacity import GIB, MIB, EvictionThreshold
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_bytes
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware
from karpenter.providers.aws.instancetype.nodeclass_terms import NodeClassTerms
from karpenter.providers.aws.userdata.ami_families import DEFAULT_MAX_PODS
from karpenter.providers.aws.userdata.kubelet_settings import (
    KubeletSettings,
    KubeletTypeFacts,
    resolve_kubelet_settings,
)

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
    """A class's terms for one type. ``learned_bytes`` is the memory such nodes have, 0 where unknown. Raises ``TermsError``."""
    settings = resolve_kubelet_settings(
        terms.spec.kubelet,
        kubelet_type_facts(hardware, terms, capacity_settings),
        capacity_settings.kubelet_expressions,
    )
    pods = _pod_count(hardware, terms, capacity_settings, settings)
    interfaces_only = terms.family.reserves_for_interfaces
    return formulas.CapacityParameters(
        vm_memory_overhead=capacity_settings.vm_memory_overhead,
        learned_memory_bytes=learned_bytes,
        storage_bytes=_storage_bytes(hardware, terms),
        pods=pods,
        reserved_pods=None if interfaces_only else pods,
        efa_interfaces=terms.efa_only if terms.spec.network_interfaces else None,
        private_ipv4_addresses=_private_addresses(hardware, terms),
        kube_reserved=_reserved(settings.kube_reserved),
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
    )


def _default_pods(hardware: Ec2Hardware, terms: NodeClassTerms, capacity_settings: CapacitySettings) -> int:
    if not terms.family.is_limited_by_interfaces:
        return DEFAULT_MAX_PODS
    reserved_interfaces = sum(
        network_interface.interface_type == "efa-only" and network_interface.network_card_index == 0
        for network_interface in terms.spec.network_interfaces
    )
    shape = hardware.shape
    return formulas.max_pods(
        shape.interfaces, shape.ipv4_per_interface, capacity_settings.reserved_enis + reserved_interfaces
    )


def _pod_count(
    hardware: Ec2Hardware, terms: NodeClassTerms, capacity_settings: CapacitySettings, kubelet_settings: KubeletSettings
) -> int:
    """How many pods the kubelet allows (AWS-300)."""
    pods = (
        kubelet_settings.max_pods
        if kubelet_settings.max_pods is not None
        else _default_pods(hardware, terms, capacity_settings)
    )
    if kubelet_settings.pods_per_core and terms.family.applies_pods_per_core:
        return min(pods, kubelet_settings.pods_per_core * hardware.shape.vcpus)
    return pods


def _private_addresses(hardware: Ec2Hardware, terms: NodeClassTerms) -> int:
    """Addresses for Windows pods, which only some instances run (AWS-299)."""
    runs_windows = terms.family.is_windows and hardware.shape.arch == "amd64"
    return hardware.shape.ipv4_per_interface - 1 if runs_windows else 0


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
