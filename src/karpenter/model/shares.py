"""Shares as settings and annotations write them: how much of a whole may hang on one of its places.

Exact fractions, so that three tenths of ten is exactly three.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

#: Everything may be in one place: no limit.
WHOLE = Fraction(1)
_DECIMAL = re.compile(r"[01](\.[0-9]{1,6})?|\.[0-9]{1,6}")


class ShareError(ValueError):
    """A share that cannot be read; the message says what belongs there."""


def parse_share(text: str) -> Fraction:
    """A number above 0 and up to 1 such as ``0.5``, or ``off``, which is 1. Raises ``ShareError``."""
    if text == "off":
        return WHOLE
    share = Fraction(text) if _DECIMAL.fullmatch(text) else Fraction(0)
    if not 0 < share <= WHOLE:
        raise ShareError(f"{text!r} is neither off nor a number above 0 and up to 1, such as 0.5")
    return share


def share_text(share: Fraction) -> str:
    """A share as settings write it."""
    return "off" if share == WHOLE else f"{float(share):g}"


def share_of(share: Fraction, whole: int) -> int:
    """So many of a whole are no more than the share, rounded up, and at least one."""
    return max(1, math.ceil(share * whole))
