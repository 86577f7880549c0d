"""What a class makes of a type's capacity: its kubelet's settings, its disks, its interfaces (AWS-290 to AWS-314).

The formulas are the catalogue's (``catalog.ec2_formulas``); here the class is read into their terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from karpenter.api.ec2 import BlockDeviceMapping
from karpenter.catalog import ec2_formulas as formulas
from karpenter.catalog.ec2_formulas import GIB, MIB, Threshold
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.ec2_volumes import VolumeSizeError, volume_size_bytes
from karpenter.providers.aws.kubelet.resolved import Resolved, TypeFacts, resolve
from karpenter.providers.aws.types.hardware import Hardware
from karpenter.providers.aws.types.terms import ClassTerms
from karpenter.providers.aws.userdata.families import PODS_WITHOUT_LIMIT

_GIGABYTE = 10**9
_FALLBACK_VOLUME_BYTES = 20 * GIB
_KEPT = frozenset({res.CPU, res.MEMORY, res.EPHEMERAL_STORAGE})
_EVICT_MEMORY = Threshold(units=100 * MIB)
_EVICT_STORAGE = Threshold(share=Fraction(1, 10))


class TermsError(ValueError):
    """A class says something no capacity follows from. The text says what."""


@dataclass(frozen=True)
class Operator:
    """What the operator says of all machines: settings AWS-006, AWS-008 and AWS-013."""

    vm_memory_overhead: Fraction = formulas.VM_MEMORY_OVERHEAD
    reserved_enis: int = 0
    kubelet_expressions: bool = False


def reckon(hardware: Hardware, terms: ClassTerms, operator: Operator, learned_bytes: int = 0) -> formulas.Terms:
    """A class's terms for one type. ``learned_bytes`` is the memory such nodes have, 0 where unknown. Raises ``TermsError``."""
    settings = resolve(terms.spec.kubelet, type_facts(hardware, terms, operator), operator.kubelet_expressions)
    pods = _pods(hardware, terms, operator, settings)
    interfaces_only = terms.family.reserves_for_interfaces
    return formulas.Terms(
        vm_memory_overhead=operator.vm_memory_overhead,
        learned_memory_bytes=learned_bytes,
        storage_bytes=_storage_bytes(hardware, terms),
        pods=pods,
        reserved_pods=None if interfaces_only else pods,
        efa_interfaces=terms.efa_only if terms.spec.network_interfaces else None,
        private_addresses=_private_addresses(hardware, terms),
        kube_reserved=_reserved(settings.kube_reserved),
        system_reserved=_reserved(settings.system_reserved),
        evict_memory=_threshold(settings.eviction_hard, "memory.available", _EVICT_MEMORY),
        evict_storage=_threshold(settings.eviction_hard, "nodefs.available", _EVICT_STORAGE),
    )


def type_facts(hardware: Hardware, terms: ClassTerms, operator: Operator) -> TypeFacts:
    """What the class's kubelet expressions may ask about the type (AWS-111, AWS-113)."""
    return TypeFacts(
        instance_type=hardware.name,
        vcpus=hardware.shape.vcpus,
        memory_mib=hardware.shape.memory_mib,
        default_enis=hardware.shape.interfaces,
        ips_per_eni=hardware.shape.ipv4_per_interface,
        default_pods=_default_pods(hardware, terms, operator),
    )


def _default_pods(hardware: Hardware, terms: ClassTerms, operator: Operator) -> int:
    if not terms.family.is_bound_by_interfaces:
        return PODS_WITHOUT_LIMIT
    taken = sum(
        item.interface_type == "efa-only" and item.network_card_index == 0 for item in terms.spec.network_interfaces
    )
    shape = hardware.shape
    return formulas.max_pods(shape.interfaces, shape.ipv4_per_interface, operator.reserved_enis + taken)


def _pods(hardware: Hardware, terms: ClassTerms, operator: Operator, settings: Resolved) -> int:
    """AWS-300."""
    pods = settings.max_pods if settings.max_pods is not None else _default_pods(hardware, terms, operator)
    if settings.pods_per_core and terms.family.heeds_pods_per_core:
        return min(pods, settings.pods_per_core * hardware.shape.vcpus)
    return pods


def _private_addresses(hardware: Hardware, terms: ClassTerms) -> int:
    """Addresses for Windows pods, which only some machines run (AWS-299)."""
    runs_windows = terms.family.is_windows and hardware.shape.arch == "amd64"
    return hardware.shape.ipv4_per_interface - 1 if runs_windows else 0


def _reserved(values: Mapping[str, str]) -> res.Resources:
    try:
        return {name: quantity.milli(value) for name, value in values.items() if name in _KEPT}
    except quantity.QuantityError as error:
        raise TermsError(f"kubelet: {error}") from error


def _threshold(values: Mapping[str, str], signal: str, default: Threshold) -> Threshold:
    """A hard eviction threshold; 100 % means that there is none (AWS-310, AWS-311)."""
    text = values.get(signal)
    if text is None:
        return default
    try:
        if not text.endswith("%"):
            return Threshold(units=quantity.milli(text) // quantity.MILLI)
        share = Fraction(text[:-1]) / 100
    except ValueError as error:
        raise TermsError(f"kubelet.evictionHard {signal}: {text!r} is neither a quantity nor a percentage") from error
    return Threshold(share=share if share < 1 else Fraction(0))


def _storage_bytes(hardware: Hardware, terms: ClassTerms) -> int:
    """What pods can write, in bytes (AWS-293)."""
    local = hardware.info.instance_storage_info
    if terms.spec.instance_store_policy == "RAID0" and local is not None and local.total_size_in_gb:
        return local.total_size_in_gb * _GIGABYTE
    mapping = _storage_mapping(terms)
    return (mapping is not None and _size(mapping)) or _default_size(terms) or _FALLBACK_VOLUME_BYTES


def _storage_mapping(terms: ClassTerms) -> BlockDeviceMapping | None:
    """The mapping pods write on, None where the class says nothing about it."""
    mappings = terms.spec.block_device_mappings
    root = next((item for item in mappings if item.root_volume), None)
    if root is not None:
        return root
    if not terms.family.ephemeral_device:
        return mappings[-1] if mappings else None
    return next((item for item in mappings if item.device_name == terms.family.ephemeral_device), None)


def _default_size(terms: ClassTerms) -> int:
    device = terms.family.ephemeral_device
    return sum(_size(item) for item in terms.family.block_devices if item.device_name == device)


def _size(mapping: BlockDeviceMapping) -> int:
    """Bytes of a volume, 0 where its snapshot decides."""
    text = mapping.ebs.volume_size if mapping.ebs is not None else None
    if text is None:
        return 0
    try:
        return volume_size_bytes(text)
    except VolumeSizeError as error:
        raise TermsError(f"block device {mapping.device_name}: volumeSize: {error}") from error
