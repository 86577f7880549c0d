"""How many examples of a property, and cases of a series, a run tries: few in `make test`, many in `make soak`.

``SOAK_EXAMPLES`` and ``SOAK_CASES`` in the environment bound a soak run per test. The cases of a run follow from its seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

SOAK: Final = "soak"
SOAK_EXAMPLES: Final = int(os.environ.get("SOAK_EXAMPLES", "500"))
SOAK_CASES: Final = int(os.environ.get("SOAK_CASES", "6"))
_FEWEST: Final = 12
#: A property with a small count is slow: in a soak run it gets at most so many times its count.
_MOST_TIMES: Final = 20


def examples(count: int) -> int:
    """An eighth of ``count``, at least twelve; under the profile ``soak`` as many as ``SOAK_EXAMPLES`` allows."""
    if settings.get_current_profile_name() == SOAK:
        return min(SOAK_EXAMPLES, _MOST_TIMES * count)
    return min(count, max(count // 8, _FEWEST))


def series(values: Iterable[T], *slice_: T) -> list[object]:
    """A long series of parameters, of which `make test` runs the slice and `make soak` the rest."""
    return [pytest.param(value, marks=() if value in slice_ else pytest.mark.soak) for value in values]


def left_out(tests: Mapping[str, Sequence[T]], seed: str, most: int = SOAK_CASES) -> list[T]:
    """The cases a soak run skips: of each test it runs at most ``most`` cases, drawn by the seed."""
    skipped: list[T] = []
    for name, cases in tests.items():
        drawn = set(Random(f"{seed}/{name}").sample(range(len(cases)), min(most, len(cases))))
        skipped += [case for number, case in enumerate(cases) if number not in drawn]
    return skipped
