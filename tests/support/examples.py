"""How many examples of a property are tried: a slice in `make test`, all of them in `make soak`."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

SOAK: Final = "soak"
_FEWEST: Final = 15


def examples(count: int) -> int:
    """All of ``count`` under the profile ``soak``, a quarter otherwise, and at least fifteen."""
    if settings.get_current_profile_name() == SOAK:
        return count
    return min(count, max(count // 4, _FEWEST))
