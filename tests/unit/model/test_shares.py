"""Shares as settings and annotations write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from karpenter.model.shares import WHOLE, ShareError, parse_share, share_of, share_text


@pytest.mark.parametrize(
    ("text", "share"), [("0.5", Fraction(1, 2)), (".25", Fraction(1, 4)), ("1", WHOLE), ("1.0", WHOLE), ("off", WHOLE)]
)
def test_a_share_is_a_decimal_or_off(text: str, share: Fraction) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "1.01", "2", "-0.1", "50%", "1/2", "1e-1", "Off", " 0.5", "0.5\n", "nan"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ShareError, match="neither off nor a number above 0 and up to 1"):
        parse_share(text)


def test_shares_are_exact() -> None:
    """With floats three tenths of ten would round up to four."""
    assert share_of(parse_share("0.3"), 10) == 3
    assert share_of(parse_share("0.1"), 30) == 3
    assert share_of(parse_share("0.1"), 31) == 4
    assert share_of(parse_share("0.000001"), 5) == 1


@pytest.mark.parametrize("text", ["off", "0.5", "0.25", "0.125"])
def test_shares_are_shown_as_they_are_written(text: str) -> None:
    assert share_text(parse_share(text)) == text
