"""Moments as manifests write them: RFC 3339, such as ``2026-12-24T18:00:00+01:00``; read and written in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_GRAMMAR = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_LONGEST_SHOWN = 60


class MomentError(ValueError):
    """A text that is not a moment. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        shown = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
        super().__init__(
            f"{shown!r} is not a date and time with its distance to UTC, such as 2026-12-24T18:00:00+01:00"
        )
        self.text = text


def parse(text: str) -> datetime:
    """The moment a text names, in UTC. The distance to UTC is required: nobody may have to guess it. Raises ``MomentError``."""
    if _GRAMMAR.fullmatch(text) is None:
        raise MomentError(text)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MomentError(text) from error


def text(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
