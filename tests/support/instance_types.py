"""Instance types for tests: the fixtures STD and INC(n) of the scheduling scenarios (SCH §34), and a way to make others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import complete_requirements, label_in
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements

SIZE, SPECIAL, INTEGER = "size", "special", "integer"
WELL_KNOWN = labels.CORE_WELL_KNOWN | {SIZE, SPECIAL, INTEGER}
ZONES = ("z1", "z2", "z3")
_SOLD = (("spot", "z1"), ("spot", "z2"), ("on-demand", "z1"), ("on-demand", "z2"), ("on-demand", "z3"))
_OVERHEAD = {"cpu": "100m", "memory": "10Mi"}


def offering(capacity_type: str, zone: str, price: float, *, available: bool = True) -> Offering:
    wanted = Requirements((label_in(labels.CAPACITY_TYPE, capacity_type), label_in(labels.ZONE, zone)))
    return Offering(wanted, price, available)


def shape(
    name: str,
    capacity: Mapping[str, str | int],
    offerings: Iterable[Offering] | None = None,
    *,
    overhead: Mapping[str, str] = _OVERHEAD,
    arch: str = "amd64",
    systems: Sequence[str] = ("linux", "windows"),
    well_known: frozenset[str] = WELL_KNOWN,
    own: Mapping[str, str] = {},
) -> InstanceType:
    """A type by the rules of fixture STD: price from CPU, memory and GPU, sizes as extra labels."""
    amounts = res.parse_resources(capacity)
    cpu, memory = amounts["cpu"] // 1000, amounts["memory"] // 1000
    price = 0.1 * cpu + 0.1 * memory / 1e9 + (1 if any("gpu" in element for element in capacity) else 0)
    sold = tuple(offering(kind, zone, price) for kind, zone in _SOLD) if offerings is None else tuple(offerings)
    large = cpu > 4 and memory > 8 * 2**30
    requirements = {
        labels.INSTANCE_TYPE: label_in(labels.INSTANCE_TYPE, name),
        labels.ARCH: label_in(labels.ARCH, arch),
        labels.OS: label_in(labels.OS, *systems),
        labels.ZONE: label_in(labels.ZONE, *sorted({offer.zone for offer in sold})),
        labels.CAPACITY_TYPE: label_in(labels.CAPACITY_TYPE, *sorted({offer.capacity_type for offer in sold})),
        SIZE: label_in(SIZE, "large" if large else "small"),
        INTEGER: label_in(INTEGER, str(cpu)),
        **({SPECIAL: label_in(SPECIAL, "optional")} if large else {}),
        **{key: label_in(key, value) for key, value in own.items()},
    }
    return InstanceType(
        name,
        complete_requirements(requirements, well_known - {labels.NODE_POOL}),
        amounts,
        res.parse_resources(overhead),
        sold,
    )


STD = (
    shape("small", {"cpu": 2, "memory": "2Gi", "pods": 5}),
    shape("default", {"cpu": 4, "memory": "4Gi", "pods": 5}),
    shape("gpu-a", {"cpu": 4, "memory": "4Gi", "pods": 5, "a/gpu": 2}),
    shape("gpu-b", {"cpu": 4, "memory": "4Gi", "pods": 5, "b/gpu": 2}),
    shape("arm", {"cpu": 16, "memory": "128Gi", "pods": 5}, arch="arm64", systems=("linux", "windows", "ios")),
    shape("single", {"cpu": 4, "memory": "4Gi", "pods": 1}),
)


def inc(count: int) -> tuple[InstanceType, ...]:
    """Types t0 ... of growing size: type i has i+1 CPU, 2(i+1) GiB and room for 10(i+1) pods."""
    return tuple(
        shape(f"t{number}", {"cpu": number + 1, "memory": f"{2 * (number + 1)}Gi", "pods": 10 * (number + 1)})
        for number in range(count)
    )


def index_of(types: Iterable[InstanceType], well_known: frozenset[str] = WELL_KNOWN) -> TypeIndex:
    return TypeIndex(types, well_known)
