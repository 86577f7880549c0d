from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.model import durations


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("48h", 172800, "48h0m0s"),
        ("90s", 90, "1m30s"),
        ("1h1h", 7200, "2h0m0s"),
        ("1h30m", 5400, "1h30m0s"),
        ("500ms", 0.5, "500ms"),
        ("1.5h", 5400, "1h30m0s"),
        (".5s", 0.5, "500ms"),
        ("1500ms", 1.5, "1.5s"),
        ("1500us", 0.0015, "1.5ms"),
        ("7µs", 7e-6, "7µs"),
        ("7μs", 7e-6, "7µs"),
        ("0s", 0, "0s"),
        ("0", 0, "0s"),
        ("-5m", -300, "-5m0s"),
        ("+5m", 300, "5m0s"),
        ("2562047h", 2562047 * 3600, "2562047h0m0s"),
    ],
)
def test_durations_are_read_and_written_as_go_does(text: str, seconds: float, canonical: str) -> None:
    """API-028, API-029"""
    assert durations.parse_duration(text) == timedelta(seconds=seconds)
    assert durations.duration_text(durations.parse_duration(text)) == canonical


def test_the_shortest_positive_duration_stays_positive() -> None:
    assert durations.parse_duration("1ns") > timedelta(0) > durations.parse_duration("-1ns")


@pytest.mark.parametrize(
    "text", ["", "1", "1d", "h", "1 h", "1h ", "Never", "never", ".s", "1..5s", "-", "٣s", "2562048h", "9" * 5000 + "h"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(durations.DurationError) as error:
        durations.parse_duration(text)
    assert error.value.text == text
    assert len(str(error.value)) < 500


def test_never_means_no_duration() -> None:
    """API-029"""
    assert durations.parse_duration_or_never("Never") is None
    assert durations.parse_duration_or_never("1m") == timedelta(minutes=1)


@pytest.mark.parametrize("text", ["2562048h", "9" * 5000 + "h", "9223372037s"])
def test_a_duration_out_of_range_is_cut_where_it_was_admitted_and_distinguished(text: str) -> None:
    """API-028: one such object must not stop the others."""
    assert durations.parse_duration_or_never(text) == durations.MAX_DURATION
    assert durations.MAX_DURATION.days // 365 == 292
    assert not durations.is_valid_duration(text)


def test_what_is_neither_a_duration_nor_never_is_refused() -> None:
    with pytest.raises(durations.DurationError):
        durations.parse_duration_or_never("soon")
    assert [durations.is_valid_duration(text) for text in ("soon", "Never", "1h")] == [False, True, True]
