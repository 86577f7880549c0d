"""The world around a study: delays of instances and images, stock-outs, instances that the cloud takes back, prices that change.

    world:
      registration: {median: 45s, p95: 90s}
      podStart: {median: 3s, p95: 30s}
      interruptions: [{capacityType: spot, perMonth: advisor}]
      losses: [{perMonth: 0.01}]
      stockOuts: [{instanceType: "p*", everyHours: 24, minutes: 60}]
      priceDrift: [{capacityType: spot, everyHours: 6, spread: 0.2}]

Rules are matched in their order by shell patterns; the first that fits a launch counts. All is drawn from the seed: stock-outs
and prices belong to the offering and the time, so every policy meets the same ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from karpenter.instancetypes.ec2_spot_interruptions import monthly_interruption_share
from karpenter.model import durations
from karpenter.providers.simulated.fault_rules import LaunchErrorRule, ScheduledFaults, SimulatedLaunch
from karpenter.simulator.offering_patterns import OfferingPattern, first_match
from karpenter.simulator.price_drift import PriceDrift
from karpenter.simulator.workload import WorkloadError

#: EC2 announces the end of a spot instance two minutes ahead.
_NOTICE_SECONDS = 120.0
_MONTH_SECONDS = 730 * 3600
#: The 95 % quantile of the standard normal distribution.
_Z_95 = 1.645

MonthlyShare = Annotated[float, Meta(ge=0, lt=1)]
_Rate = Annotated[float, Meta(gt=0)]


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log-normal delay by its median and its 95 % quantile, both durations; without the second it is constant."""

    median: str
    p95: str | None = None

    def draw_seconds(self, dice: random.Random) -> float:
        """One delay."""
        median = durations.parse_duration(self.median).total_seconds()
        if self.p95 is None or not median:
            return median
        spread = math.log(durations.parse_duration(self.p95).total_seconds() / median) / _Z_95
        return median * math.exp(dice.gauss(0, spread))


class MonthlyRate(OfferingPattern, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The share of instances that meet this within a month."""

    per_month: MonthlyShare


class InterruptionRate(OfferingPattern, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The share of instances that are interrupted within a month; ``advisor``: what the Spot Instance Advisor says of a type."""

    per_month: MonthlyShare | Literal["advisor"]

    def share_of(self, launch: SimulatedLaunch) -> float:
        """The share for this launch."""
        if self.per_month == "advisor":
            return monthly_interruption_share(launch.zone, launch.instance_type)
        return self.per_month


class StockOut(OfferingPattern, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Each offering runs out every so many hours for so many minutes, on average."""

    every_hours: _Rate
    minutes: _Rate


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A world. By default nothing goes wrong and nothing varies.

    ``registration``: from a launch to the Node; ``pod_start``: from the binding of a pod to its readiness (image pull).
    """

    registration: Delay = Delay("45s")
    pod_start: Delay = Delay("3s")
    interruptions: list[InterruptionRate] = []
    losses: list[MonthlyRate] = []
    stock_outs: list[StockOut] = []
    price_drift: list[PriceDrift] = []

    def check(self) -> None:
        """Raises ``WorldError`` for the first delay that is none."""
        for place, delay in (("registration", self.registration), ("podStart", self.pod_start)):
            _check_delay(place, delay)


class WorldError(WorkloadError):
    """A world cannot be used; ``place`` is where, such as ``registration.p95``."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place


def _check_delay(place: str, delay: Delay) -> None:
    for member, text in (("median", delay.median), ("p95", delay.p95)):
        try:
            durations.parse_duration(text if text is not None else "0s")
        except durations.DurationError as error:
            raise WorldError(f"{place}.{member}", str(error)) from None
    if delay.p95 is not None and durations.parse_duration(delay.p95) < durations.parse_duration(delay.median):
        raise WorldError(f"{place}.p95", f"{delay.p95} is less than the median {delay.median}")


@dataclass
class WorldFaults:
    """A world being played on a cloud. Implements ``LaunchFaults``. ``seconds`` tells the time since the start of the study."""

    world: World
    seed: int
    seconds: Callable[[], float]
    _launches: int = 0
    _stock: dict[SimulatedLaunch, _Stock] = field(default_factory=dict)

    def is_out_of_capacity(self, launch: SimulatedLaunch) -> bool:
        """See ``LaunchFaults``."""
        rule = first_match(self.world.stock_outs, launch)
        if rule is None:
            return False
        key = SimulatedLaunch("", launch.instance_type, launch.zone, launch.capacity_type)
        if key not in self._stock:
            dice = random.Random(f"{self.seed} stock {key.instance_type} {key.zone} {key.capacity_type}")
            self._stock[key] = _Stock(_stock_changes(rule, dice))
        return self._stock[key].is_out(self.seconds())

    def launch_error(self, launch: SimulatedLaunch) -> LaunchErrorRule | None:
        """No launch is refused."""
        return None

    def schedule_faults(self, launch: SimulatedLaunch, registration_delay: object) -> ScheduledFaults:
        """See ``LaunchFaults``; the delay of the node class is not used, as the world has its own."""
        self._launches += 1
        dice = random.Random(f"{self.seed} launch {self._launches}")
        interruption = first_match(self.world.interruptions, launch)
        loss = first_match(self.world.losses, launch)
        return ScheduledFaults(
            registration_seconds=self.world.registration.draw_seconds(dice),
            interrupted_seconds=_moment(0.0 if interruption is None else interruption.share_of(launch), dice),
            lost_seconds=_moment(0.0 if loss is None else loss.per_month, dice),
            notice_seconds=_NOTICE_SECONDS,
        )


def _moment(monthly_share: float, dice: random.Random) -> float | None:
    """When it happens to an instance, in seconds since its launch; None: never. The rate is the same at any age."""
    drawn = dice.random()
    return math.log(1 - drawn) / math.log(1 - monthly_share) * _MONTH_SECONDS if monthly_share else None


@dataclass
class _Stock:
    """Whether an offering is out of stock; asked with times that never decrease."""

    _changes: Iterator[float]
    _next_change: float = 0.0
    _is_out: bool = True

    def is_out(self, seconds: float) -> bool:
        while self._next_change <= seconds:
            self._next_change = next(self._changes)
            self._is_out = not self._is_out
        return self._is_out


def _stock_changes(rule: StockOut, dice: random.Random) -> Iterator[float]:
    """When the offering runs out, comes back, runs out again and so on."""
    moment = 0.0
    while True:
        moment += dice.expovariate(1 / (rule.every_hours * 3600))
        yield moment
        moment += dice.expovariate(1 / (rule.minutes * 60))
        yield moment
