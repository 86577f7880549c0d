"""Exponential backoff: the schedule and the table per key."""

from __future__ import annotations

from karpenter.model.backoff import Backoff, BackoffTable


def test_delays_double_from_the_base_to_the_maximum() -> None:
    backoff = Backoff(1.0, 60.0)
    assert [backoff.delay(failures) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.delay(10_000) == 60


def test_the_delay_after_another_is_twice_as_long() -> None:
    backoff = Backoff(0.1, 10.0)
    assert [backoff.after(delay) for delay in (0.0, 0.1, 4.0, 8.0, 10.0)] == [0.1, 0.2, 8.0, 10.0, 10.0]


def test_a_table_counts_failures_per_key_until_the_key_is_reset() -> None:
    now = [100.0]
    table: BackoffTable[str] = BackoffTable(Backoff(1.0, 60.0), lambda: now[0])
    assert table.remaining_seconds("a") == 0
    assert [table.record_failure("a"), table.record_failure("a"), table.record_failure("b")] == [1, 2, 1]
    now[0] = 101.5
    assert (table.remaining_seconds("a"), table.remaining_seconds("b")) == (0.5, 0)
    table.forget("a")
    assert table.record_failure("a") == 1


def test_a_full_table_forgets_the_key_that_failed_longest_ago() -> None:
    table: BackoffTable[str] = BackoffTable(Backoff(1.0, 60.0), lambda: 0.0, max_entries=2)
    for key in ("a", "b", "a", "c"):
        table.record_failure(key)
    assert (table.remaining_seconds("b"), table.remaining_seconds("a")) == (0, 2)
