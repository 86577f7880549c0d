"""Offerings with a limited number of instances: capacity reservations, and stocks, such as the free hosts of one kind.

A stock differs from a reservation in two ways. It is no capacity type of its own, and its price counts, because it is not paid
for in advance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements

#: What counts as left of a reservation whose remaining units are not known.
UNLIMITED_UNITS = 2**31


@dataclass(frozen=True)
class CountedOfferings:
    """The counted offerings among those of some types.

    ``units``: what is left, by the name it is counted under; reserved capacity that names no reservation has an empty one.
    ``stocks``: what only the offerings of a stock satisfy, by its name.
    """

    units: Mapping[str, int]
    stocks: Mapping[str, Requirements]

    def requirements(self, name: str) -> Requirements:
        """The requirements of offerings of one reservation or stock."""
        return self.stocks[name] if name in self.stocks else _reservation_requirements(name)

    def is_prepaid(self, name: str | None) -> bool:
        """Whether the name is of a reservation, which is paid for in advance, and not of a stock. None: of neither."""
        return name is not None and name not in self.stocks

    @cached_property
    def outside(self) -> Requirements:
        """The requirements of offerings of no reservation and no stock. A type with a stock is sold from stocks only."""
        types = frozenset(
            value for requirements in self.stocks.values() for value in requirements[labels.INSTANCE_TYPE].values
        )
        unreserved = Requirement(labels.CAPACITY_TYPE, True, frozenset((labels.RESERVED,)))
        return Requirements((unreserved, *((Requirement(labels.INSTANCE_TYPE, True, types),) if types else ())))


def counted_offerings(types: Iterable[InstanceType]) -> CountedOfferings:
    """The counted offerings of these types (SCH-581)."""
    units: dict[str, int] = {}
    stocks: dict[str, Requirements] = {}
    # Ten thousand offerings share a few dozen objects that say what is required of them.
    is_reserved: dict[int, bool] = {}
    for instance_type in types:
        for offering in instance_type.offerings:
            shared = id(offering.requirements)
            if shared not in is_reserved:
                is_reserved[shared] = offering.capacity_type == labels.RESERVED
            if offering.stock:
                stocks[offering.stock] = _stock_requirements(instance_type, offering)
            if offering.stock or is_reserved[shared]:
                name = offering.stock or offering.reservation_id
                left = UNLIMITED_UNITS if offering.reservation_capacity is None else offering.reservation_capacity
                units[name] = min(left, units.get(name, left))
    return CountedOfferings(units, stocks)


def _reservation_requirements(reservation: str) -> Requirements:
    """An empty name stands for reserved capacity that names none."""
    named = [Requirement(labels.RESERVATION_ID, False, frozenset((reservation,)))] if reservation else []
    return Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.RESERVED,))), *named))


def _stock_requirements(instance_type: InstanceType, offering: Offering) -> Requirements:
    place = (
        (labels.INSTANCE_TYPE, instance_type.name),
        (labels.ZONE, offering.zone),
        (labels.CAPACITY_TYPE, offering.capacity_type),
    )
    return Requirements(tuple(Requirement(key, False, frozenset((value,))) for key, value in place))
