"""What each instance of a study cost between two moments, also where its price changed meanwhile.

Costs are fractions of whole nano-dollars and microseconds, as those of ``CostMeter``: parts add up to the whole exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from karpenter.providers.simulated.simulated_instances import SimulatedInstance
from karpenter.simulation.run_history import InstanceLaunched, InstanceNotice, InstanceRepriced
from karpenter.simulation.run_report import MICROSECOND, NANO, exact_usd

_HOUR = timedelta(hours=1)


def usd(nano_per_hour: int, span: timedelta) -> Fraction:
    """What so many nano-dollars per hour come to in this time."""
    return exact_usd(nano_per_hour * (span // MICROSECOND))


@dataclass(frozen=True, slots=True)
class InstanceBill:
    """An instance from its launch to its end, or to the end of the study.

    ``prices``: USD per hour from each moment on, oldest first, beginning with the launch.
    """

    record: SimulatedInstance
    ended: datetime
    prices: tuple[tuple[datetime, float], ...]

    @property
    def launched(self) -> datetime:
        """When it was launched."""
        return self.prices[0][0]

    @property
    def hours(self) -> float:
        """How long it was paid for."""
        return max(0.0, (self.ended - self.launched) / _HOUR)

    def cost_usd(self, since: datetime, until: datetime) -> Fraction:
        """What it cost between two moments of its life."""
        ends = [*(at for at, _ in self.prices[1:]), self.ended]
        return sum(
            (
                usd(round(price * NANO), max(timedelta(0), min(end, until) - max(at, since)))
                for (at, price), end in zip(self.prices, ends, strict=True)
            ),
            Fraction(0),
        )


def instance_bills(
    notices: Iterable[InstanceNotice], repricings: Iterable[InstanceRepriced], until: datetime
) -> tuple[InstanceBill, ...]:
    """The instances in the order of their launches. Notices and price changes are in the order of time."""
    launched: dict[str, InstanceLaunched] = {}
    ended: dict[str, datetime] = {}
    for notice in notices:
        if isinstance(notice, InstanceLaunched):
            launched[notice.record.node_name] = notice
        else:
            ended[notice.record.node_name] = notice.at
    prices = {name: [(launch.at, launch.record.price_per_hour)] for name, launch in launched.items()}
    for repriced in repricings:
        prices[repriced.node_name].append((repriced.at, repriced.price_per_hour))
    return tuple(
        InstanceBill(launch.record, min(ended.get(name, until), until), tuple(prices[name]))
        for name, launch in launched.items()
    )
