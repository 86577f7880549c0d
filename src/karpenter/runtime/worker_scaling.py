"""How much work goes on at once, from the processor time the process asked for (OPS-700 to OPS-702).

The reference gives each controller a number of workers that grows with its cores, and the token bucket shared by a
controller's workers grows along. Workers cost nothing here, so of most controllers only the buckets matter: they are what the API
server sees. Launches are different: each keeps a worker until the cloud has answered, and those that wait together are launched
together.
"""

from __future__ import annotations

from dataclasses import dataclass

#: With one core a controller has its fewest workers, with this many its most.
_MAX_CORES = 60


@dataclass(frozen=True)
class WorkerRange:
    """A controller's fewest and most workers."""

    minimum: int
    maximum: int

    def for_cores(self, cores: int) -> int:
        """How many it has on so many cores."""
        grown = (self.maximum - self.minimum) * (cores - 1) // (_MAX_CORES - 1) + self.minimum
        return min(self.maximum, max(self.minimum, grown))


@dataclass(frozen=True)
class ScaledRateLimit:
    """A controller whose workers share a token bucket of ``per_second`` when they are fewest."""

    workers: WorkerRange
    per_second: int


@dataclass(frozen=True)
class BucketSize:
    """A token bucket: so many a second on average, so many at once."""

    per_second: int
    burst: int


LIFECYCLE = ScaledRateLimit(WorkerRange(1000, 5000), 10)
TERMINATION = ScaledRateLimit(WorkerRange(100, 5000), 10)
#: Writers of deletion costs (K15-351); they share no bucket.
DELETION_COST_WORKERS = WorkerRange(100, 5000)
EVICTION = ScaledRateLimit(WorkerRange(100, 5000), 100)


def whole_cores(millicores: int) -> int:
    """Whole cores for a CPU request in thousandths; none or less counts as one."""
    return max(1, -(-millicores // 1000))


def scaled_bucket(base: ScaledRateLimit, cores: int) -> BucketSize:
    """The bucket of a controller on so many cores (OPS-701)."""
    rate = -(-base.workers.for_cores(cores) * base.per_second // base.workers.minimum)
    return BucketSize(rate, 10 * rate)
