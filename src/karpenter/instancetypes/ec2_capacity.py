"""Capacity and overhead of EC2 instance types, computed from their shape (AWS-290 to AWS-315).

The kubelet reports a node's capacity only after the launch. Scheduling needs it before, and must not overestimate it: otherwise a
pod stays pending on a node launched for it. So a flat share of memory is deducted for the hypervisor, and reserved resources
follow the formulas of the bootstrap script.

All amounts are in thousandths of their unit, as everywhere; parameters in their own unit say so in their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from karpenter.model import resources as res
from karpenter.model.resources import Resources

MIB = 2**20
GIB = 2**30

POD_ENI = "vpc.amazonaws.com/pod-eni"
EFA = "vpc.amazonaws.com/efa"
PRIVATE_ADDRESS = "vpc.amazonaws.com/PrivateIPv4Address"
NEURON = "aws.amazon.com/neuron"
NEURON_CORE = "aws.amazon.com/neuroncore"
#: Extended resource of whole GPUs by manufacturer (AWS-296).
GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "habana": "habana.ai/gaudi"}

#: Share of memory the hypervisor and firmware take, by default (``vm-memory-overhead-percent``).
VM_MEMORY_OVERHEAD = Fraction(75, 1000)
#: Size of the root volume unless the class says otherwise (AWS-293).
ROOT_VOLUME_BYTES = 20 * GIB

_ARM_FIRMWARE_MIB = 64
_EVICTION_MEMORY_MIB = 100
_RESERVED_MIB_PER_POD = 11
_RESERVED_MIB = 255
_FIXED_BANDWIDTH = re.compile(r"(?:(?P<cards>\d+)x )?(?P<gbps>\d+(?:\.\d+)?) Gigabit")


@dataclass(frozen=True, slots=True)
class EC2InstanceShape:
    """The properties of a type that determine its capacity.

    ``gpus`` counts whole GPUs, ``neuron_devices`` Inferentia and Trainium devices of ``neuron_cores`` cores each; ``interfaces``
    are those of the default network card; ``branch_interfaces`` is 0 for types without trunking.
    """

    arch: str
    vcpus: int
    memory_mib: int
    interfaces: int
    ipv4_per_interface: int
    gpu_manufacturer: str = ""
    gpus: int = 0
    neuron_devices: int = 0
    neuron_cores: int = 0
    efa_interfaces: int = 0
    branch_interfaces: int = 0


@dataclass(frozen=True, slots=True)
class EvictionThreshold:
    """An eviction threshold: ``share`` of the capacity, rounded up, plus ``units`` of the resource."""

    share: Fraction = Fraction(0)
    units: int = 0

    def amount_of(self, capacity: int) -> int:
        """The threshold for this capacity, in units."""
        return _ceiling_of_share(capacity, self.share) + self.units


@dataclass(frozen=True, slots=True)
class CapacityParameters:
    """Node class settings that affect capacity. The defaults are those of a class without settings (AL2023).

    None and 0 mean: as the shape says. ``learned_memory_bytes`` is the memory observed on such nodes; ``reserved_pods`` the pods
    memory is reserved for, ``private_ipv4_addresses`` those of Windows pods; ``kube_reserved`` replaces defaults by name.
    """

    vm_memory_overhead: Fraction = VM_MEMORY_OVERHEAD
    learned_memory_bytes: int = 0
    storage_bytes: int = ROOT_VOLUME_BYTES
    pods: int | None = None
    reserved_pods: int | None = None
    efa_interfaces: int | None = None
    private_ipv4_addresses: int = 0
    kube_reserved: Resources = field(default_factory=dict)
    system_reserved: Resources = field(default_factory=dict)
    memory_eviction_threshold: EvictionThreshold = EvictionThreshold(units=_EVICTION_MEMORY_MIB * MIB)
    storage_eviction_threshold: EvictionThreshold = EvictionThreshold(share=Fraction(1, 10))


#: Parameters of a node class without settings.
DEFAULT_CAPACITY_PARAMETERS = CapacityParameters()


def memory_capacity_mib(memory_mib: int, arch: str, overhead: Fraction = VM_MEMORY_OVERHEAD) -> int:
    """Memory the node will report, in MiB (AWS-291)."""
    usable = memory_mib - (_ARM_FIRMWARE_MIB if arch == "arm64" else 0)
    return usable - _ceiling_of_share(usable, overhead)


def max_pods(interfaces: int, ipv4_per_interface: int, reserved_interfaces: int = 0) -> int:
    """Number of pods the network interfaces have addresses for (AWS-300)."""
    usable = max(0, interfaces - reserved_interfaces)
    return usable * (ipv4_per_interface - 1) + 2 if usable else 0


def reserved_cpu_millis(vcpus: int) -> int:
    """Reserved millicores: 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest (AWS-305)."""
    first, second = min(vcpus, 1), min(max(vcpus - 1, 0), 1)
    third, rest = min(max(vcpus - 2, 0), 2), max(vcpus - 4, 0)
    return 60 * first + 10 * second + 5 * third + 5 * rest // 2


def reserved_memory_mib(pods: int) -> int:
    """MiB reserved for kubelet and container runtime (AWS-306)."""
    return _RESERVED_MIB_PER_POD * pods + _RESERVED_MIB


def instance_capacity(
    shape: EC2InstanceShape, parameters: CapacityParameters = DEFAULT_CAPACITY_PARAMETERS
) -> Resources:
    """Capacity; resources with amount 0 are omitted, except pods (AWS-290 to AWS-300)."""
    amounts = {
        res.MEMORY: parameters.learned_memory_bytes or _computed_memory_bytes(shape, parameters),
        res.CPU: shape.vcpus,
        res.EPHEMERAL_STORAGE: parameters.storage_bytes,
        POD_ENI: shape.branch_interfaces,
        GPU_RESOURCES.get(shape.gpu_manufacturer, ""): shape.gpus,
        NEURON: shape.neuron_devices,
        NEURON_CORE: shape.neuron_devices * shape.neuron_cores,
        EFA: shape.efa_interfaces if parameters.efa_interfaces is None else parameters.efa_interfaces,
        PRIVATE_ADDRESS: parameters.private_ipv4_addresses,
    }
    pods = _address_bound_pods(shape) if parameters.pods is None else parameters.pods
    return {res.PODS: pods * res.ONE_UNIT} | {
        name: amount * res.ONE_UNIT for name, amount in amounts.items() if name and amount
    }


def instance_overhead(
    shape: EC2InstanceShape, parameters: CapacityParameters = DEFAULT_CAPACITY_PARAMETERS
) -> Resources:
    """Reserved resources plus eviction thresholds (AWS-305 to AWS-314)."""
    pods = _address_bound_pods(shape) if parameters.reserved_pods is None else parameters.reserved_pods
    kept = {
        res.CPU: reserved_cpu_millis(shape.vcpus),
        res.MEMORY: reserved_memory_mib(pods) * MIB * res.ONE_UNIT,
        res.EPHEMERAL_STORAGE: GIB * res.ONE_UNIT,
    }
    evicted = {
        res.MEMORY: parameters.memory_eviction_threshold.amount_of(_computed_memory_bytes(shape, parameters))
        * res.ONE_UNIT,
        res.EPHEMERAL_STORAGE: parameters.storage_eviction_threshold.amount_of(parameters.storage_bytes) * res.ONE_UNIT,
    }
    return res.add({**kept, **parameters.kube_reserved}, parameters.system_reserved, evicted)


def network_mbps(performance: str, card_gbps: Iterable[float]) -> int:
    """Baseline bandwidth of a type in Mbit/s from EC2's description, 0 where EC2 does not say (AWS-323).

    EC2 gives some types with two cards the whole bandwidth on each. A fixed total (``200 Gigabit``, ``4x 100 Gigabit``) is
    right for all; ``Up to 10 Gigabit`` is a peak, and then the cards have the baseline.
    """
    fixed = _FIXED_BANDWIDTH.fullmatch(performance)
    if fixed is None:
        return round(sum(card_gbps) * 1000)
    return round(int(fixed["cards"] or 1) * float(fixed["gbps"]) * 1000)


def _computed_memory_bytes(shape: EC2InstanceShape, parameters: CapacityParameters) -> int:
    return memory_capacity_mib(shape.memory_mib, shape.arch, parameters.vm_memory_overhead) * MIB


def _address_bound_pods(shape: EC2InstanceShape) -> int:
    return max_pods(shape.interfaces, shape.ipv4_per_interface)


def _ceiling_of_share(amount: int, share: Fraction) -> int:
    """The share of an amount, rounded up. Exact, without the common divisor that fractions look for."""
    return -(-amount * share.numerator // share.denominator)
