"""Random numbers for rows that are filled, drawn where they are used.

A round of the search needs a million numbers, each of them once. So only the state of the generator is kept. Who fills rows makes
the numbers: the C library (`fill_kernel.c`) those of one row at a time, arrays all at once. Both make those that
``Generator.random`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.scheduling.search.linear_program import FloatArray

_WORD = (1 << 64) - 1


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
    """A generator with a fixed seed. It gives rows of numbers, and passes over them."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self.generator = np.random.Generator(self._bits)

    def next_rows(self, rows: int, groups: int, columns: int, draws: int) -> RandomRows:
        """The next numbers for so many rows, with so many ``draws`` in each: one for each group, or none."""
        before = self._bits.state
        inner = before["state"]
        drawn = RandomRows(inner["state"], inner["inc"], rows, groups, columns)
        self._bits.advance(rows * (groups + columns + draws))
        if before["has_uint32"]:  # half a word that a choice left, which ``advance`` forgets
            self._bits.state = {**before, "state": self._bits.state["state"]}
        return drawn
