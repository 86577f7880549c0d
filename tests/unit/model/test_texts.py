"""Texts that messages are made of."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.model.texts import days_text, decoding_text


@pytest.mark.parametrize(
    ("days", "text"),
    [(1, "1 day"), (0.012, "0.012 days"), (7, "7 days"), (12.345, "12.3 days"), (1234.5, "1234 days")],
)
def test_days_are_written_with_three_digits_and_in_the_singular(days: float, text: str) -> None:
    assert days_text(days) == text


class Port(msgspec.Struct):
    number: int


@pytest.mark.parametrize(
    ("content", "shape", "text"),
    [
        ({"ports": [{"number": "x"}]}, dict[str, list[Port]], "[...][0].number: Expected `int`, got `str`"),
        ({"number": "x"}, Port, "number: Expected `int`, got `str`"),
        ([1], Port, "Expected `object`, got `array`"),
        ({1: 2}, dict[str, int], "a key: Expected `str`, got `int`"),
    ],
)
def test_an_error_of_the_decoder_begins_with_the_place(content: object, shape: object, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(content, shape)
    assert decoding_text(raised.value) == text
