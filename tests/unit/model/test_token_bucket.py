"""The token bucket on a clock that is given."""

from __future__ import annotations

from karpenter.model.token_bucket import TokenBucket


def test_tokens_come_back_at_the_rate_up_to_the_burst() -> None:
    bucket = TokenBucket(2.0, 3)
    assert [bucket.try_take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.try_take(1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.try_take(100.0) for _ in range(4)] == [True, True, True, False]


def test_a_clock_set_back_refills_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(5.0, 10)
    assert bucket.try_take(3_600.0)
    assert [bucket.try_take(0.0) for _ in range(10)] == [True] * 9 + [False]
    assert bucket.try_take(0.2)
