"""The capacity of EC2, and the order in which it tries the targets of a fleet (AWS-980).

A pool is a type in a zone for a capacity type. Pools are unlimited until a test sets their size, now or at a later time.
The order depends on prices, pools and the allocation strategy alone, and is not random: equal pools are ordered by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from support.aws.ec2_types import Ec2Types

#: Bounds of free instances; capacity-optimized-prioritized treats pools between the same bounds as equal.
_BUCKETS = (1, 10, 100)


class Pool(NamedTuple):
    """A type in a zone, for a capacity type."""

    instance_type: str
    zone: str
    capacity_type: str


class LaunchTarget(NamedTuple):
    """Where a fleet override launches: pool, subnet, priority (lower is better) and its index among the overrides."""

    pool: Pool
    subnet_id: str
    priority: float
    index: int


@dataclass
class Quotas:
    """Quotas of the account for running instances; infinite unless a test sets them."""

    on_demand_vcpus: float = math.inf
    spot_vcpus: float = math.inf
    spot_instances: float = math.inf


class _PlannedSize(NamedTuple):
    """The size of a pool from a time on."""

    at: float
    pool: Pool
    free: int


@dataclass
class Capacity:
    """The pools. ``now`` is seconds since the epoch."""

    instance_types: Ec2Types
    now: Callable[[], float]
    quotas: Quotas = field(default_factory=Quotas)
    _free: dict[Pool, int] = field(default_factory=dict)
    _script: list[_PlannedSize] = field(default_factory=list)
    _weights: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        """Unlimited pools, without quotas."""
        self._free.clear()
        self._script.clear()
        self._weights.clear()
        self.quotas = Quotas()

    def set(self, pool: Pool, free: int) -> None:
        """Set the number of free instances of a pool."""
        self._free[pool] = free

    def plan(self, pool: Pool, free: int, after_seconds: float) -> None:
        """Set the number of free instances of a pool at a later time."""
        self._script.append(_PlannedSize(self.now() + after_seconds, pool, free))

    def set_interruption_weight(self, instance_type: str, interruption: float) -> None:
        """Set the interruption weight of a type: price-capacity-optimized multiplies its price by 1 + ``interruption``."""
        self._weights[instance_type] = interruption

    def free(self, pool: Pool) -> float:
        """Free instances of a pool."""
        due = sorted(step for step in self._script if step.at <= self.now())
        self._script = [step for step in self._script if step.at > self.now()]
        self._free.update((step.pool, step.free) for step in due)
        return self._free.get(pool, math.inf)

    def take(self, pool: Pool) -> None:
        """Take one instance out of a pool."""
        if pool in self._free:
            self._free[pool] -= 1

    def give_back(self, pool: Pool) -> None:
        """Return one instance to a pool."""
        if pool in self._free:
            self._free[pool] += 1

    def price(self, pool: Pool) -> float:
        """USD an hour; infinite where the price is unknown."""
        if pool.capacity_type == "spot":
            price = self.instance_types.spot_price(pool.instance_type, pool.zone)
        else:
            price = self.instance_types.on_demand_price(pool.instance_type)
        return math.inf if price is None else price

    def rank(self, targets: Sequence[LaunchTarget], strategy: str) -> list[LaunchTarget]:
        """Targets in the order of the allocation strategy, including empty pools."""
        by_strategy: dict[str, Callable[[LaunchTarget], tuple[object, ...]]] = {
            "lowest-price": lambda target: (self.price(target.pool),),
            "prioritized": lambda target: (target.priority,),
            "price-capacity-optimized": lambda target: (self._score(target.pool),),
            "capacity-optimized": lambda target: (-self._bucket(target.pool),),
            "capacity-optimized-prioritized": lambda target: (-self._bucket(target.pool), target.priority),
        }
        key = by_strategy[strategy]
        return sorted(targets, key=lambda target: (*key(target), target.pool, target.index))

    def _score(self, pool: Pool) -> float:
        return self.price(pool) * (1 + self._weights.get(pool.instance_type, 0.0))

    def _bucket(self, pool: Pool) -> int:
        free = self.free(pool)
        return sum(free >= bound for bound in _BUCKETS)
