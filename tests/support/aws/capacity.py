"""How much EC2 has, and which of the ways to make a machine it takes (AWS-980).

A pool is a type in a zone for a capacity type. Pools are bottomless until a test says how much is in them, by now or by a
script. Which pool is taken depends on prices, pools and the strategy alone: no chance is in it, equal ones go by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from support.aws.market import Market

#: Buckets of free machines that capacity-optimized-prioritized takes for equal.
_BUCKETS = (1, 10, 100)


class Pool(NamedTuple):
    """A type in a zone, for a capacity type."""

    instance_type: str
    zone: str
    capacity_type: str


class Way(NamedTuple):
    """One way to make a machine: an override, where it leads, and the wish for it (lower is better)."""

    pool: Pool
    subnet_id: str
    priority: float
    place: int


@dataclass
class Quotas:
    """What the account may have at once; infinite unless a test says otherwise."""

    on_demand_vcpus: float = math.inf
    spot_vcpus: float = math.inf
    spot_machines: float = math.inf


class _Step(NamedTuple):
    """A line of the script."""

    at: float
    pool: Pool
    free: int


@dataclass
class Capacity:
    """The pools. ``now`` is seconds since the epoch."""

    market: Market
    now: Callable[[], float]
    quotas: Quotas = field(default_factory=Quotas)
    _free: dict[Pool, int] = field(default_factory=dict)
    _script: list[_Step] = field(default_factory=list)
    _weights: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        """Bottomless again, without quotas."""
        self._free.clear()
        self._script.clear()
        self._weights.clear()
        self.quotas = Quotas()

    def set(self, pool: Pool, free: int) -> None:
        """So many machines are left in a pool."""
        self._free[pool] = free

    def plan(self, pool: Pool, free: int, after_seconds: float) -> None:
        """A line of the script: at that time so many machines are left."""
        self._script.append(_Step(self.now() + after_seconds, pool, free))

    def weigh(self, instance_type: str, interruption: float) -> None:
        """How much price-capacity-optimized shies away from a type: its price counts 1 + ``interruption`` times."""
        self._weights[instance_type] = interruption

    def free(self, pool: Pool) -> float:
        """Machines left."""
        due = sorted(step for step in self._script if step.at <= self.now())
        self._script = [step for step in self._script if step.at > self.now()]
        self._free.update((step.pool, step.free) for step in due)
        return self._free.get(pool, math.inf)

    def take(self, pool: Pool) -> None:
        """One machine fewer is left."""
        if pool in self._free:
            self._free[pool] -= 1

    def give_back(self, pool: Pool) -> None:
        """One machine more is left."""
        if pool in self._free:
            self._free[pool] += 1

    def price(self, pool: Pool) -> float:
        """USD an hour; infinite for what nobody knows a price of."""
        if pool.capacity_type == "spot":
            price = self.market.spot_price(pool.instance_type, pool.zone)
        else:
            price = self.market.on_demand_price(pool.instance_type)
        return math.inf if price is None else price

    def rank(self, ways: Sequence[Way], strategy: str) -> list[Way]:
        """Ways in the order in which the strategy takes them, empty pools included."""
        by_strategy: dict[str, Callable[[Way], tuple[object, ...]]] = {
            "lowest-price": lambda way: (self.price(way.pool),),
            "prioritized": lambda way: (way.priority,),
            "price-capacity-optimized": lambda way: (self._score(way.pool),),
            "capacity-optimized": lambda way: (-self._bucket(way.pool),),
            "capacity-optimized-prioritized": lambda way: (-self._bucket(way.pool), way.priority),
        }
        key = by_strategy[strategy]
        return sorted(ways, key=lambda way: (*key(way), way.pool, way.place))

    def _score(self, pool: Pool) -> float:
        return self.price(pool) * (1 + self._weights.get(pool.instance_type, 0.0))

    def _bucket(self, pool: Pool) -> int:
        free = self.free(pool)
        return sum(free >= bound for bound in _BUCKETS)
