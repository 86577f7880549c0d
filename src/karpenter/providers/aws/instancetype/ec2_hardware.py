"""A type as EC2 describes it, read once: its shape, the labels that follow from the hardware, where it is sold.

Nothing here depends on a node class, so all classes share it. Two facts come from the packaged table: branch interfaces,
which EC2 has no call for, and the network bandwidth, because the figure people know and select by is the published one, not
what the API says of the first of several cards (AWS-323). A type the table does not know has what EC2 says of it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from karpenter.instancetypes import ec2_capacity, ec2_packaged_types
from karpenter.instancetypes.ec2_capacity import EC2InstanceShape
from karpenter.instancetypes.well_known_labels import label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirement
from karpenter.providers.aws.ec2_descriptions import GpuDevice, InstanceTypeInfo, NetworkCard

_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_UNPUBLISHED = ec2_packaged_types.PublishedTypeFacts(branch_interfaces=0, network_mbps=0, price_per_hour=None)
_CAPACITY_TYPES = (labels.ON_DEMAND, labels.SPOT)


class HardwareFactsError(ValueError):
    """EC2's description of a type is not enough to know what it offers. The text says what is missing."""


@dataclass(frozen=True)
class Ec2Hardware:
    """A type, read.

    ``labels`` hold the requirements that follow from the hardware; ``zones`` are the names of the zones it is sold in,
    ``capacity_types`` those EC2 sells it as; ``card`` is its default network card.
    """

    info: InstanceTypeInfo
    shape: EC2InstanceShape
    card: NetworkCard
    labels: Mapping[str, Requirement]
    zones: frozenset[str]
    capacity_types: tuple[str, ...]

    @property
    def name(self) -> str:
        """Such as ``m5.large``."""
        return self.info.instance_type


def read_hardware(info: InstanceTypeInfo, zones: frozenset[str]) -> Ec2Hardware:
    """What a description says. Raises ``HardwareFactsError``."""
    published = ec2_packaged_types.published_type_facts().get(info.instance_type, _UNPUBLISHED)
    arch = _architecture(info)
    card = _default_card(info)
    return Ec2Hardware(
        info=info,
        shape=_shape(info, arch, card, published.branch_interfaces),
        card=card,
        labels={key: label_in(key, value) for key, value in _labels(info, arch, published.network_mbps)},
        zones=zones,
        capacity_types=tuple(kind for kind in _CAPACITY_TYPES if kind in info.supported_usage_classes),
    )


def _architecture(info: InstanceTypeInfo) -> str:
    offered = info.processor_info.supported_architectures
    architecture = next((_ARCHITECTURES[name] for name in offered if name in _ARCHITECTURES), "")
    if not architecture:
        raise HardwareFactsError(f"no architecture we know among {', '.join(offered) or 'none'}")
    return architecture


def _default_card(info: InstanceTypeInfo) -> NetworkCard:
    network = info.network_info
    if not network.network_cards:
        return NetworkCard(maximum_network_interfaces=network.maximum_network_interfaces)
    index = network.default_network_card_index
    card = next((card for card in network.network_cards if card.network_card_index == index), None)
    if card is None:
        raise HardwareFactsError(f"the default network card {index} is not among its cards")
    return card


def _shape(info: InstanceTypeInfo, arch: str, card: NetworkCard, branch_interfaces: int) -> EC2InstanceShape:
    _check_complete(info)
    gpus = info.gpu_info.gpus if info.gpu_info is not None else ()
    neurons = info.neuron_info.neuron_devices if info.neuron_info is not None else ()
    cores = neurons[0].core_info if neurons else None
    efa = info.network_info.efa_info
    return EC2InstanceShape(
        arch=arch,
        vcpus=info.vcpu_info.default_vcpus,
        memory_mib=info.memory_info.size_in_mib,
        interfaces=card.maximum_network_interfaces,
        ipv4_per_interface=info.network_info.ipv4_addresses_per_interface,
        gpu_manufacturer=gpus[0].manufacturer.lower() if gpus else "",
        gpus=sum(gpu.count for gpu in gpus),
        neuron_devices=sum(device.count for device in neurons),
        neuron_cores=cores.count if cores is not None else 0,
        efa_interfaces=efa.maximum_efa_interfaces if efa is not None else 0,
        branch_interfaces=branch_interfaces,
    )


def _check_complete(info: InstanceTypeInfo) -> None:
    """Refuse a description without which any figure would be made up."""
    needed = {
        "vCPUs": info.vcpu_info.default_vcpus,
        "memory": info.memory_info.size_in_mib,
        "addresses per interface": info.network_info.ipv4_addresses_per_interface,
    }
    missing = [name for name, amount in needed.items() if amount <= 0]
    if missing:
        raise HardwareFactsError(f"no {', '.join(missing)}")


def _labels(info: InstanceTypeInfo, arch: str, network_mbps: int) -> Iterator[tuple[str, str]]:
    """Labels of AWS-320 that depend on the type alone; what is missing is left out."""
    yield labels.INSTANCE_TYPE, info.instance_type
    yield labels.ARCH, arch
    plain = ec2_packaged_types.name_labels(info.instance_type) | dict(_basic_labels(info, network_mbps))
    for suffix, value in plain.items():
        yield f"{ec2_packaged_types.INSTANCE_LABEL_PREFIX}{suffix}", value


def _basic_labels(info: InstanceTypeInfo, network_mbps: int) -> Iterator[tuple[str, str]]:
    yield "cpu", str(info.vcpu_info.default_vcpus)
    yield "memory", str(info.memory_info.size_in_mib)
    yield "hypervisor", info.hypervisor
    yield "encryption-in-transit-supported", _label_bool(info.network_info.encryption_in_transit_supported)
    yield from _processor_labels(info)
    network = info.network_info
    card_gbps = (card.baseline_bandwidth_in_gbps or 0.0 for card in network.network_cards)
    bandwidth = network_mbps or ec2_capacity.network_mbps(network.network_performance, card_gbps)
    if bandwidth:
        yield "network-bandwidth", str(bandwidth)
    yield from _disk_labels(info)
    yield from _gpu_labels(info)
    yield from _accelerator_labels(info)


def _processor_labels(info: InstanceTypeInfo) -> Iterator[tuple[str, str]]:
    if info.processor_info.manufacturer:
        yield "cpu-manufacturer", _label_value(info.processor_info.manufacturer)
    if info.processor_info.sustained_clock_speed_in_ghz:
        yield "cpu-sustained-clock-speed-mhz", str(round(info.processor_info.sustained_clock_speed_in_ghz * 1000))


def _disk_labels(info: InstanceTypeInfo) -> Iterator[tuple[str, str]]:
    ebs = info.ebs_info
    if ebs is not None and ebs.ebs_optimized_support == "default":
        bandwidth = ebs.ebs_optimized_info.maximum_bandwidth_in_mbps if ebs.ebs_optimized_info is not None else None
        if bandwidth is not None:
            yield "ebs-bandwidth", str(bandwidth)
    local = info.instance_storage_info
    if local is not None and local.nvme_support not in ("", "unsupported"):
        yield "local-nvme", str(local.total_size_in_gb)


def _gpu_labels(info: InstanceTypeInfo) -> Iterator[tuple[str, str]]:
    """Only where all are of one kind. Fractions of a GPU count 0 (AWS-322)."""
    gpus: tuple[GpuDevice, ...] = info.gpu_info.gpus if info.gpu_info is not None else ()
    if len(gpus) != 1:
        return
    yield "gpu-name", _label_value(gpus[0].name)
    yield "gpu-manufacturer", _label_value(gpus[0].manufacturer)
    yield "gpu-count", str(gpus[0].count)
    if gpus[0].memory_info is not None:
        yield "gpu-memory", str(gpus[0].memory_info.size_in_mib)


def _accelerator_labels(info: InstanceTypeInfo) -> Iterator[tuple[str, str]]:
    """Only where all are of one kind; Neuron devices have their own name and are no inference accelerators here."""
    inference, neuron = info.inference_accelerator_info, info.neuron_info
    if neuron is not None:
        if len(neuron.neuron_devices) == 1:
            device = neuron.neuron_devices[0]
            yield from _accelerator_label_pairs(device.name, "aws", device.count)
    elif inference is not None and len(inference.accelerators) == 1:
        other = inference.accelerators[0]
        yield from _accelerator_label_pairs(other.name, other.manufacturer, other.count)


def _accelerator_label_pairs(name: str, manufacturer: str, count: int) -> Iterator[tuple[str, str]]:
    yield "accelerator-name", _label_value(name)
    yield "accelerator-manufacturer", _label_value(manufacturer)
    yield "accelerator-count", str(count)


def _label_value(text: str) -> str:
    """A name as a label's value."""
    return text.lower().replace(" ", "-")


def _label_bool(value: bool) -> str:
    return "true" if value else "false"
