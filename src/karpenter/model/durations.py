"""Durations as manifests write them: ``1h30m``, ``500ms``, ``1.5h``; ``Never`` where a function can be off.

Text is read as Go reads it, because that is what users of these APIs write, and every API server of the family has the same
range: what does not fit into 2^63 nanoseconds is refused (API-028), or cut to that where an API server has let it in. Values are
``timedelta``; a remainder finer than a microsecond is rounded away from zero, so that a positive duration stays positive.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache

from karpenter.model.texts import shorten

#: The word for "no duration": the function is off (API-029).
NEVER = "Never"

_MICROSECONDS = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "µs": Fraction(1),  # micro sign
    "μs": Fraction(1),  # Greek mu
    "ms": Fraction(1000),
    "s": Fraction(10**6),
    "m": Fraction(60 * 10**6),
    "h": Fraction(3600 * 10**6),
}
_PART = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)"
_GRAMMAR = re.compile(rf"([+-]?)((?:{_PART})+|0)")
_PARTS = re.compile(r"([0-9.]+)([^0-9.]+)")
_MAX_TEXT_LENGTH = 256
_LIMIT = Fraction(2**63, 1000)

#: The longest duration there is (2^63 nanoseconds).
MAX_DURATION = timedelta(microseconds=int(_LIMIT))


class DurationError(ValueError):
    """A text that is not a duration, or one beyond 2^63 nanoseconds. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        shown = shorten(text, _MAX_TEXT_LENGTH + 1)
        super().__init__(
            f"{shown!r} is not a duration (expected numbers with units, such as 90s or 1h30m, up to 292 years)"
        )
        self.text = text


@lru_cache(maxsize=1024)  # a cluster has few different texts, and each is read in every pass
def parse_duration(text: str) -> timedelta:
    """The duration a text spells. Raises ``DurationError``."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_TEXT_LENGTH else None
    if match is None:
        raise DurationError(text)
    sign, body = match.groups()
    total = sum((_number(number) * _MICROSECONDS[unit] for number, unit in _PARTS.findall(body)), Fraction(0))
    if total >= _LIMIT:
        raise DurationError(text)
    microseconds = -(-total.numerator // total.denominator)
    return timedelta(microseconds=-microseconds if sign == "-" else microseconds)


def _number(text: str) -> Fraction:
    whole, _, part = text.partition(".")
    return Fraction(int((whole + part) or "0"), 10 ** len(part))


def parse_duration_or_never(text: str) -> timedelta | None:
    """As ``parse_duration``, for text an API server has admitted: ``Never`` gives None, a duration out of range ``MAX_DURATION``.

    That is 292 years: the cut makes no practical difference, and an object with such a value must not stop others (API-028).
    Validation reports it. Raises ``DurationError`` for what is no duration at all.
    """
    if text == NEVER:
        return None
    try:
        return parse_duration(text)
    except DurationError:
        if _GRAMMAR.fullmatch(text) is None:
            raise
        return MAX_DURATION


def is_valid_duration(text: str) -> bool:
    """Whether the text is ``Never`` or a duration in range."""
    try:
        return text == NEVER or parse_duration(text) is not None
    except DurationError:
        return False


def duration_text(duration: timedelta) -> str:
    """Canonical text, as a typed client stores it (API-029): ``48h0m0s``, ``1m30s``, ``1.5s``, ``500ms``, ``0s``."""
    microseconds = duration // timedelta(microseconds=1)
    sign = "-" if microseconds < 0 else ""
    return sign + _positive(abs(microseconds))


def _positive(microseconds: int) -> str:
    if microseconds == 0:
        return "0s"
    if microseconds < 1000:
        return f"{microseconds}µs"
    if microseconds < 10**6:
        return f"{_decimal(microseconds, 1000)}ms"
    minutes, rest = divmod(microseconds, 60 * 10**6)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, 10**6)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")
