"""Instance types and offerings (SCH-116, OPS-235 ff.)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources

_HUGE_PAGES = "hugepages-"
_NOTHING: Resources = {}


def _nothing() -> Resources:
    """One object for all offerings that override no amount; EC2 has ten thousand."""
    return _NOTHING


@dataclass(frozen=True, slots=True)
class Offering:
    """An offering of a type: requirements on at least zone and capacity type, a price, and whether it is available now.

    ``reservation_capacity``: remaining instances of its reservation or stock; None without either or if unknown.
    ``stock``: what its instances are counted under where they are no capacity reservation, such as hosts of one kind; empty
    where they are not counted. All offerings of a type with a stock have one, and those of one zone and capacity type share it.
    ``interruptions_per_hour``: average interruption rate of such instances; 0 if unknown.
    ``capacity_override`` and ``overhead_override`` replace amounts of the type on instances launched this way, resource by
    resource (SCH-117, OPS-238).
    """

    requirements: Requirements
    price_per_hour: float
    available: bool = True
    reservation_capacity: int | None = None
    interruptions_per_hour: float = 0.0
    capacity_override: Resources = field(default_factory=_nothing, hash=False)
    overhead_override: Resources = field(default_factory=_nothing, hash=False)
    stock: str = ""

    @property
    def zone(self) -> str:
        """The zone, empty if the offering names none or several."""
        return single_value(self.requirements, labels.ZONE)

    @property
    def capacity_type(self) -> str:
        """``spot``, ``on-demand`` or ``reserved``; empty if the offering names none or several."""
        return single_value(self.requirements, labels.CAPACITY_TYPE)

    @property
    def launchable(self) -> bool:
        """Whether it can be launched now: available, and its reservation or stock, if it has one, is not used up (K15-080)."""
        # EC2 has over ten thousand offerings, and hardly any has a count of a reservation: the rest is not asked of them.
        return self.available and (
            self.reservation_capacity != 0 or (not self.stock and self.capacity_type != labels.RESERVED)
        )

    @property
    def reservation_id(self) -> str:
        """ID of its reservation, empty if it has none."""
        return single_value(self.requirements, labels.RESERVATION_ID)


@dataclass(frozen=True)
class BurstableCpu:
    """What a burstable type guarantees of its vCPUs: it earns CPU credits for ``baseline_millis`` and no more.

    ``baseline_millis`` are thousandths of a vCPU, summed over all vCPUs. CPU beyond it, averaged over a day, costs
    ``surplus_price_per_vcpu_hour``; None if no more than the baseline is available (credit mode ``standard``).
    """

    baseline_millis: int
    surplus_price_per_vcpu_hour: float | None = None


@dataclass(frozen=True)
class BindingGroup:
    """Devices of a pool that will agree in an attribute whose value is known only once they exist (K15-160)."""

    attribute: str
    pool: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class DeviceTemplates:
    """What drivers will publish on nodes of a type: slices that name no node, and which devices belong together."""

    slices: tuple[ResourceSliceSpec, ...] = ()
    binding_groups: tuple[BindingGroup, ...] = ()


NO_DEVICE_TEMPLATES = DeviceTemplates()


@dataclass(frozen=True)
class InstanceType:
    """An instance type.

    ``requirements`` has an entry for every well-known label, DoesNotExist for those it lacks (SCH-116). ``overlay_capacity`` is
    the capacity added by NodeOverlays, ``is_price_overlaid`` whether one changed the price of an offering (SCH-760).
    ``burstable_cpu`` is None for types that guarantee all of their CPU, and where the price of their surplus is unknown.
    ``devices`` are those that claims can be met by (SCH-784).
    """

    name: str
    requirements: Requirements
    capacity: Resources
    overhead: Resources = field(default_factory=dict)
    offerings: tuple[Offering, ...] = ()
    overlay_capacity: Resources = field(default_factory=dict)
    is_price_overlaid: bool = False
    burstable_cpu: BurstableCpu | None = None
    devices: DeviceTemplates = field(default=NO_DEVICE_TEMPLATES, hash=False)

    @cached_property
    def allocatable(self) -> Resources:
        """Resources for pods: capacity minus overhead, memory further reduced by huge pages, not below 0 (SCH-117)."""
        allocatable = res.subtract(self.capacity, self.overhead)
        huge_pages = sum(amount for name, amount in self.capacity.items() if name.startswith(_HUGE_PAGES))
        if huge_pages and res.MEMORY in allocatable:
            allocatable[res.MEMORY] = max(0, allocatable[res.MEMORY] - huge_pages)
        return allocatable

    def sized_by(self, offering: Offering) -> InstanceType:
        """The type as one of its offerings sells it: with the amounts that the offering overrides (OPS-238)."""
        if not offering.capacity_override and not offering.overhead_override:
            return self
        return replace(
            self,
            capacity={**self.capacity, **offering.capacity_override},
            overhead={**self.overhead, **offering.overhead_override},
        )

    def allocatable_groups(self) -> tuple[InstanceType, ...]:
        """The type once per allocatable group (SCH-117), each with the offerings of that group, the base group first.

        Unavailable offerings stay in their group, because explanations name them. A group without offerings is left out,
        unless the type has none at all.
        """
        if not any(offering.capacity_override or offering.overhead_override for offering in self.offerings):
            return (self,)
        groups: dict[tuple[frozenset[tuple[str, int]], ...], list[Offering]] = {(frozenset(), frozenset()): []}
        for offering in self.offerings:
            overrides = (offering.capacity_override, offering.overhead_override)
            groups.setdefault(tuple(frozenset(amounts.items()) for amounts in overrides), []).append(offering)
        if len(groups) == 1:
            return (self,)
        return tuple(
            replace(self.sized_by(offerings[0]), offerings=tuple(_without_overrides(each) for each in offerings))
            for offerings in groups.values()
            if offerings
        )


def _without_overrides(offering: Offering) -> Offering:
    return replace(offering, capacity_override=_NOTHING, overhead_override=_NOTHING)


def single_value(requirements: Requirements, key: str) -> str:
    """The only value that a label may have; empty where it is not named or may have several."""
    values = requirements[key].values if key in requirements else frozenset()
    return next(iter(values)) if len(values) == 1 else ""
