"""Prices that change while a study runs: all instance types at each change, the same for every policy of a seed.

The logarithm of an offering's price over its list price is drawn as an autoregressive process of first order, which is the
Ornstein-Uhlenbeck process at fixed times: it starts at 0, comes back to 0 within days, and in the long run has the standard
deviation that the rule gives. EC2 says that spot prices "adjust gradually based on long-term trends"; how fast they come back is
an assumption (``_REVERSION_HOURS``). A spot price is never above the on-demand list price of its type and zone, where there is
one: EC2 ends spot instances there by default.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from karpenter.providers.simulated.fault_rules import SimulatedLaunch
from karpenter.simulator.offering_patterns import OfferingPattern, first_match

_REVERSION_HOURS = 72.0
_HOUR = 3600


class PriceDrift(OfferingPattern, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Prices change every so many hours. ``spread``: the standard deviation of the logarithm of price over list price."""

    every_hours: Annotated[int, Meta(ge=1)]
    spread: Annotated[float, Meta(gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class PricedTypes:
    """All instance types from a moment on, in seconds since the start of the study."""

    begin_seconds: int
    types: tuple[InstanceType, ...]


def price_changes(rules: Sequence[PriceDrift], until_seconds: int) -> tuple[int, ...]:
    """When prices change before ``until_seconds``, in seconds since the start of the study."""
    steps = {rule.every_hours * _HOUR for rule in rules}
    return tuple(sorted({at for step in steps for at in range(step, until_seconds, step)}))


def priced_types(
    rules: Sequence[PriceDrift], seed: int, types: Sequence[InstanceType], until_seconds: int
) -> Iterator[PricedTypes]:
    """All instance types at the start and after each change before ``until_seconds``. Costs O(offerings) for each change."""
    yield PricedTypes(0, tuple(types))
    walks = [_walks(rules, seed, instance_type) for instance_type in types]
    for moment in price_changes(rules, until_seconds):
        yield PricedTypes(
            moment, tuple(_at(moment, instance_type, own) for instance_type, own in zip(types, walks, strict=True))
        )


def offering_prices(types: Sequence[InstanceType]) -> dict[tuple[str, str, str], float]:
    """USD per hour by instance type, zone and capacity type."""
    return {
        (instance_type.name, offering.zone, offering.capacity_type): offering.price_per_hour
        for instance_type in types
        for offering in instance_type.offerings
    }


@dataclass
class _PriceWalk:
    """The price of one offering; asked with times that never decrease."""

    rule: PriceDrift
    dice: random.Random
    most: float
    _logarithm: float = 0.0
    _steps: int = 0

    def price(self, listed: float, seconds: int) -> float:
        kept = math.exp(-self.rule.every_hours / _REVERSION_HOURS)
        noise = self.rule.spread * math.sqrt(1 - kept * kept)
        while self._steps < seconds // (self.rule.every_hours * _HOUR):
            self._logarithm = kept * self._logarithm + self.dice.gauss(0, noise)
            self._steps += 1
        return min(self.most, listed * math.exp(self._logarithm))


def _walks(rules: Sequence[PriceDrift], seed: int, instance_type: InstanceType) -> dict[int, _PriceWalk]:
    """By the position of the offering; offerings without a rule have none."""
    walks: dict[int, _PriceWalk] = {}
    for position, offering in enumerate(instance_type.offerings):
        place = SimulatedLaunch("", instance_type.name, offering.zone, offering.capacity_type)
        rule = first_match(rules, place)
        if rule is not None:
            dice = random.Random(f"{seed} price {place.instance_type} {place.zone} {place.capacity_type}")
            walks[position] = _PriceWalk(rule, dice, _most(instance_type, offering))
    return walks


def _most(instance_type: InstanceType, offering: Offering) -> float:
    """On demand the list price says nothing about a limit."""
    if offering.capacity_type == labels.ON_DEMAND:
        return math.inf
    on_demand = [
        other.price_per_hour
        for other in instance_type.offerings
        if other.zone == offering.zone and other.capacity_type == labels.ON_DEMAND
    ]
    return max([*on_demand, offering.price_per_hour]) if on_demand else math.inf


def _at(seconds: int, instance_type: InstanceType, walks: dict[int, _PriceWalk]) -> InstanceType:
    if not walks:
        return instance_type
    offerings = list(instance_type.offerings)
    for position, walk in walks.items():
        listed = offerings[position]
        offerings[position] = replace(listed, price_per_hour=walk.price(listed.price_per_hour, seconds))
    return replace(instance_type, offerings=tuple(offerings))
