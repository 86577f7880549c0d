"""Random numbers for rows that are filled, drawn where they are used.

A round of the search needs a million numbers, each of them once. So only the state of the generator is kept. The code that fills
rows makes the numbers: the C library (`fill_kernel.c`) those of one row at a time, the arrays all at once. Both make those that
``Generator.random`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from karpenter.scheduling.search.linear_program import FloatArray

_WORD = (1 << 64) - 1
#: The seed of the search, and what numpy makes of it: the state of a PCG64 and its increment.
SEED = 20_240_807
_STATE_OF_SEED, _INCREMENT_OF_SEED = 189638086413757959277061714294425633685, 86994994328379048727934011565680381195
#: What a step of PCG64 multiplies its state by.
_FACTOR = 2549297995355413924 << 64 | 4865540595714422341
_STATE_BITS = (1 << 128) - 1


@dataclass(frozen=True, eq=False)
class RandomRows:
    """Uniform numbers for so many rows: one for each group, then for all rows one for each column, then ``draws`` for each group.

    ``state`` and ``increment`` are those of a PCG64 before the first of them.
    """

    state: int
    increment: int
    rows: int
    groups: int
    columns: int

    @property
    def words(self) -> tuple[int, int, int, int]:
        """State and increment in words of 64 bits, the high one first."""
        return self.state >> 64, self.state & _WORD, self.increment >> 64, self.increment & _WORD

    def of_groups(self) -> FloatArray:
        """A row of numbers for each row, one for each group."""
        return self._numbers(0, self.groups)

    def of_columns(self) -> FloatArray:
        """One for each column."""
        return self._numbers(self.groups, self.columns)

    def draws(self) -> FloatArray:
        """One for each group, by which groups are drawn where not all are tried."""
        return self._numbers(self.groups + self.columns, self.groups)

    def _numbers(self, place: int, width: int) -> FloatArray:
        bits = np.random.PCG64()
        state = bits.state
        bits.state = {**state, "state": {**state["state"], "state": self.state, "inc": self.increment}}
        bits.advance(place * self.rows)
        return np.random.Generator(bits).random((self.rows, width))


class RandomSource:
    """A generator that begins with the seed of the search, or with another one. It gives rows of numbers, and passes over them.

    numpy's generators take seven milliseconds to load, a tenth of a small search, and only choices need them.
    """

    def __init__(self, seed: int = SEED) -> None:
        self._bits: np.random.PCG64 | None = None if seed == SEED else np.random.PCG64(seed)
        self._state = _STATE_OF_SEED

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator, for other numbers than those of rows; rows come from it from now on."""
        if self._bits is None:
            self._bits = np.random.PCG64(SEED)
            state = self._bits.state
            self._bits.state = {**state, "state": {**state["state"], "state": self._state}}
        return np.random.Generator(self._bits)

    def next_rows(self, rows: int, groups: int, columns: int, draws: int) -> RandomRows:
        """The next numbers for so many rows, with so many ``draws`` in each: one for each group, or none."""
        passed = rows * (groups + columns + draws)
        if self._bits is None:
            drawn = RandomRows(self._state, _INCREMENT_OF_SEED, rows, groups, columns)
            self._state = _state_after(self._state, passed)
            return drawn
        before = self._bits.state
        inner = before["state"]
        drawn = RandomRows(inner["state"], inner["inc"], rows, groups, columns)
        self._bits.advance(passed)
        if before["has_uint32"]:  # half a word that a choice left, which ``advance`` forgets
            self._bits.state = {**before, "state": self._bits.state["state"]}
        return drawn


def _state_after(state: int, steps: int) -> int:
    """The state of the generator after so many numbers: steps of a linear congruence, doubled again and again."""
    factor, summand = _FACTOR, _INCREMENT_OF_SEED
    while steps:
        if steps & 1:
            state = (state * factor + summand) & _STATE_BITS
        factor, summand = factor * factor & _STATE_BITS, summand * (factor + 1) & _STATE_BITS
        steps >>= 1
    return state
