"""Instance types and offerings (SCH-116, OPS-235 ff.)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources

_HUGE_PAGES = "hugepages-"


@dataclass(frozen=True)
class Offering:
    """One way to buy a type: requirements on at least zone and capacity type, a price, and whether it can be had now.

    ``units_left``: how many machines its reservation still holds; None where it is bound to none, or nobody counts.
    ``interruptions_per_hour``: how often the cloud takes such a machine away, on average; 0 where that is not known.
    """

    requirements: Requirements
    price_per_hour: float
    available: bool = True
    reservation_capacity: int | None = None
    interruptions_per_hour: float = 0.0

    @cached_property
    def zone(self) -> str:
        """The zone, empty if the offering names none or several."""
        return _single_value(self.requirements, labels.ZONE)

    @cached_property
    def capacity_type(self) -> str:
        """``spot``, ``on-demand`` or ``reserved``; empty if the offering names none or several."""
        return _single_value(self.requirements, labels.CAPACITY_TYPE)

    @cached_property
    def reservation_id(self) -> str:
        """The reservation it belongs to, empty if it is of none."""
        return _single_value(self.requirements, labels.RESERVATION_ID)


@dataclass(frozen=True)
class InstanceType:
    """A machine shape.

    ``requirements`` has an entry for every well-known label, DoesNotExist for those the type lacks (SCH-116). ``extended`` is the
    part of the capacity NodeOverlays gave it, ``is_repriced`` whether one changed the price of an offering (SCH-760).
    """

    name: str
    requirements: Requirements
    capacity: Resources
    overhead: Resources = field(default_factory=dict)
    offerings: tuple[Offering, ...] = ()
    overlay_capacity: Resources = field(default_factory=dict)
    is_price_overlaid: bool = False

    @cached_property
    def allocatable(self) -> Resources:
        """What pods can use: capacity minus overhead, memory further reduced by huge pages, not below 0 (SCH-117)."""
        left = res.subtract(self.capacity, self.overhead)
        huge = sum(amount for name, amount in self.capacity.items() if name.startswith(_HUGE_PAGES))
        if huge and res.MEMORY in left:
            left[res.MEMORY] = max(0, left[res.MEMORY] - huge)
        return left


def _single_value(requirements: Requirements, key: str) -> str:
    values = requirements[key].values if key in requirements else frozenset()
    return next(iter(values)) if len(values) == 1 else ""
