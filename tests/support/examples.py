"""How many examples of a property, and cases of a series, are tried: a slice in `make test`, all of them in `make soak`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

SOAK: Final = "soak"
_FEWEST: Final = 15


def examples(count: int) -> int:
    """All of ``count`` under the profile ``soak``, a quarter otherwise, and at least fifteen."""
    if settings.get_current_profile_name() == SOAK:
        return count
    return min(count, max(count // 4, _FEWEST))


def series(values: Iterable[T], *slice_: T) -> list[object]:
    """A long series of parameters, of which `make test` runs the slice and `make soak` the rest."""
    return [pytest.param(value, marks=() if value in slice_ else pytest.mark.soak) for value in values]
