"""Rates by number of cores (OPS §8.1, OPS-C1 to OPS-C4)."""

from __future__ import annotations

import pytest

from karpenter.runtime.worker_scaling import (
    EVICTION,
    LIFECYCLE,
    TERMINATION,
    BucketSize,
    ScaledRateLimit,
    WorkerRange,
    scaled_bucket,
    whole_cores,
)

_ON = (1, 2, 4, 8, 16, 60)


@pytest.mark.parametrize(
    ("fewest", "most", "expected"),
    [
        (1000, 5000, (1000, 1067, 1203, 1474, 2016, 5000)),
        (100, 5000, (100, 183, 349, 681, 1345, 5000)),
        (100, 1000, (100, 115, 145, 206, 328, 1000)),
        (10, 3000, (10, 60, 162, 364, 770, 3000)),
        (10, 1000, (10, 26, 60, 127, 261, 1000)),
    ],
)
def test_workers_grow_from_the_fewest_on_one_core_to_the_most_on_sixty(
    fewest: int, most: int, expected: tuple[int, ...]
) -> None:
    """OPS-700"""
    assert tuple(WorkerRange(fewest, most).for_cores(count) for count in _ON) == expected


@pytest.mark.parametrize(
    ("millicores", "expected"), [(0, 1), (-5, 1), (500, 1), (1000, 1), (1500, 2), (4000, 4), (300_000, 300)]
)
def test_parts_of_a_core_count_as_one_and_none_too(millicores: int, expected: int) -> None:
    """OPS-C1, OPS-C4"""
    assert whole_cores(millicores) == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [(LIFECYCLE, (10, 11, 13, 15, 50)), (TERMINATION, (10, 19, 35, 69, 500)), (EVICTION, (100, 183, 349, 681, 5000))],
    ids=["lifecycle", "termination", "eviction"],
)
def test_shared_buckets_grow_with_the_workers(base: ScaledRateLimit, expected: tuple[int, ...]) -> None:
    """OPS-701, OPS-702, OPS-C2"""
    bucket_sizes = [scaled_bucket(base, count) for count in (1, 2, 4, 8, 60)]
    assert bucket_sizes == [BucketSize(rate, 10 * rate) for rate in expected]


def test_there_is_a_most_of_everything() -> None:
    """OPS-C3"""
    assert LIFECYCLE.workers.for_cores(whole_cores(300_000)) == 5000
    assert scaled_bucket(EVICTION, whole_cores(300_000)) == BucketSize(5000, 50_000)
