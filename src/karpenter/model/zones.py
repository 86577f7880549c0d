"""Time zones by their IANA names, such as ``Asia/Seoul``. The rules come from the system, or from the tzdata package."""

from __future__ import annotations

import difflib
import zoneinfo
from functools import lru_cache

#: Names that mean something else on every machine, or nothing.
_NOT_PLACES = frozenset({"localtime", "Factory"})
_LONGEST_SHOWN = 60


class ZoneError(ValueError):
    """A text that names no time zone. ``text`` is what was given, the message says what would do."""

    def __init__(self, text: str) -> None:
        shown = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
        near = difflib.get_close_matches(text, _names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "expected an IANA name such as 'Europe/Berlin'"
        super().__init__(f"{shown!r} is not a time zone; {hint}")
        self.text = text


@lru_cache(maxsize=256)
def find(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of a name, in exactly this spelling. Raises ``ZoneError``."""
    if name not in _names():
        raise ZoneError(name)
    return zoneinfo.ZoneInfo(name)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - _NOT_PLACES)
