"""What an EC2 machine offers to pods, computed from its shape (AWS-290 to AWS-315).

The kubelet only says after the launch what a node has. A planner needs the figure before, and it must not be too high: a
pod planned into memory that turns out to be missing stays pending on a node bought for it. Hence a flat share is taken off
for the hypervisor, and what the node keeps for itself follows the formulas its bootstrap script uses.

All amounts are in thousandths of their unit, as everywhere; parameters in their own unit say so in their name.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts about a type that its capacity follows from.

    ``gpus`` counts whole GPUs, ``neurons`` Inferentia and Trainium devices of ``neuron_cores`` cores each; ``interfaces``
    are those of the default network card; ``branch_interfaces`` is 0 for types without trunking.
    """

    arch: str
    vcpus: int
    memory_mib: int
    interfaces: int
    ipv4_per_interface: int
    gpu_manufacturer: str = ""
    gpus: int = 0
    neurons: int = 0
    neuron_cores: int = 0
    efa_interfaces: int = 0
    branch_interfaces: int = 0


@dataclass(frozen=True, slots=True)
class Threshold:
    """What is kept free by evicting pods: ``share`` of the capacity, rounded up, plus ``units`` of the resource."""

    share: Fraction = Fraction(0)
    units: int = 0

    def of(self, capacity: int) -> int:
        """Units that are kept free of so many."""
        return _ceiling(capacity * self.share) + self.units


@dataclass(frozen=True, slots=True)
class Terms:
    """What a class of machines makes of a shape. The defaults are those of a class that says nothing (AL2023).

    None and 0 mean: as the shape says. ``learned_memory_bytes`` is what such nodes were seen to have; ``reserved_pods`` the pods
    memory is reserved for, ``private_addresses`` those of Windows pods; ``kube_reserved`` replaces defaults by name.
    """

    vm_memory_overhead: Fraction = VM_MEMORY_OVERHEAD
    learned_memory_bytes: int = 0
    storage_bytes: int = ROOT_VOLUME_BYTES
    pods: int | None = None
    reserved_pods: int | None = None
    efa_interfaces: int | None = None
    private_addresses: int = 0
    kube_reserved: Resources = field(default_factory=dict)
    system_reserved: Resources = field(default_factory=dict)
    evict_memory: Threshold = Threshold(units=_EVICTION_MEMORY_MIB * MIB)
    evict_storage: Threshold = Threshold(share=Fraction(1, 10))


#: Terms of a class that says nothing.
USUAL = Terms()


def memory_capacity_mib(memory_mib: int, arch: str, overhead: Fraction = VM_MEMORY_OVERHEAD) -> int:
    """Memory the node will report, in MiB (AWS-291)."""
    usable = memory_mib - (_ARM_FIRMWARE_MIB if arch == "arm64" else 0)
    return usable - _ceiling(usable * overhead)


def max_pods(interfaces: int, ipv4_per_interface: int, reserved_interfaces: int = 0) -> int:
    """Pods for which the network interfaces have addresses (AWS-300)."""
    usable = max(0, interfaces - reserved_interfaces)
    return usable * (ipv4_per_interface - 1) + 2 if usable else 0


def reserved_cpu_millis(vcpus: int) -> int:
    """Millicores the node keeps: 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest (AWS-305)."""
    first, second = min(vcpus, 1), min(max(vcpus - 1, 0), 1)
    third, rest = min(max(vcpus - 2, 0), 2), max(vcpus - 4, 0)
    return 60 * first + 10 * second + 5 * third + 5 * rest // 2


def reserved_memory_mib(pods: int) -> int:
    """MiB the node keeps for kubelet and container runtime (AWS-306)."""
    return _RESERVED_MIB_PER_POD * pods + _RESERVED_MIB


def capacity(shape: Shape, terms: Terms = USUAL) -> Resources:
    """Capacity; resources the type has none of are left out, pods alone may be 0 (AWS-290 to AWS-300)."""
    amounts = {
        res.MEMORY: terms.learned_memory_bytes or _computed_memory(shape, terms),
        res.CPU: shape.vcpus,
        res.EPHEMERAL_STORAGE: terms.storage_bytes,
        POD_ENI: shape.branch_interfaces,
        GPU_RESOURCES.get(shape.gpu_manufacturer, ""): shape.gpus,
        NEURON: shape.neurons,
        NEURON_CORE: shape.neurons * shape.neuron_cores,
        EFA: shape.efa_interfaces if terms.efa_interfaces is None else terms.efa_interfaces,
        PRIVATE_ADDRESS: terms.private_addresses,
    }
    pods = _bound_pods(shape) if terms.pods is None else terms.pods
    return {res.PODS: pods * res.ONE} | {name: amount * res.ONE for name, amount in amounts.items() if name and amount}


def overhead(shape: Shape, terms: Terms = USUAL) -> Resources:
    """What the node keeps and what it evicts pods to keep free (AWS-305 to AWS-314)."""
    pods = _bound_pods(shape) if terms.reserved_pods is None else terms.reserved_pods
    kept = {
        res.CPU: reserved_cpu_millis(shape.vcpus),
        res.MEMORY: reserved_memory_mib(pods) * MIB * res.ONE,
        res.EPHEMERAL_STORAGE: GIB * res.ONE,
    }
    evicted = {
        res.MEMORY: terms.evict_memory.of(_computed_memory(shape, terms)) * res.ONE,
        res.EPHEMERAL_STORAGE: terms.evict_storage.of(terms.storage_bytes) * res.ONE,
    }
    return res.add({**kept, **terms.kube_reserved}, terms.system_reserved, evicted)


def _computed_memory(shape: Shape, terms: Terms) -> int:
    return memory_capacity_mib(shape.memory_mib, shape.arch, terms.vm_memory_overhead) * MIB


def _bound_pods(shape: Shape) -> int:
    return max_pods(shape.interfaces, shape.ipv4_per_interface)


def _ceiling(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
