"""What is filled, and the nodes that come of it: the data of `pattern_filling`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.random_rows import RandomRows

#: What a pod is worth, as whole numbers, is this many for a dollar: sums of whole numbers do not depend on their order.
VALUE_UNITS_PER_DOLLAR = 1e9


@dataclass(frozen=True, eq=False)
class FillPerturbation:
    """What makes rows differ from the obvious: uniform random numbers, a row each, and how far they change things.

    A number ``u`` of a group multiplies the preference for it by ``1 + group_amount * (2 u - 1)``; one of a column does the same
    to the weight of a resource. The first ``plain_rows`` stay as they are.
    """

    random: RandomRows
    group_amount: float
    column_amount: float
    plain_rows: int

    def factors(self) -> tuple[FloatArray, FloatArray]:
        """Factors near one for the preferences and weights of every row."""
        noise = 1 + self.group_amount * (2 * self.random.of_groups() - 1)
        weights = 1 + self.column_amount * (2 * self.random.of_columns() - 1)
        noise[: self.plain_rows], weights[: self.plain_rows] = 1.0, 1.0
        return noise, weights


@dataclass(frozen=True, eq=False)
class Beginning:
    """The group one pod of which each row begins with; rows that cannot take it stay empty.

    Where not all groups are tried they are drawn, by random numbers of the row. Pods that are worth much count twice.
    """

    first_group: IntArray


@dataclass(frozen=True, eq=False)
class Filling:
    """Rows to fill: nodes of these ``bin_types`` with pods worth ``pod_values``.

    ``left``: how many pods of each group there are, one line for as many rows as there are rows for each line.
    """

    bin_types: IntArray
    pod_values: FloatArray
    left: FloatArray
    perturbation: FillPerturbation
    beginning: Beginning | None = None


@dataclass(frozen=True, eq=False)
class FilledPatterns:
    """Nodes with pods in them, a row each: how many of every group, the cheapest bin type that holds them, and its price.

    Row ``i`` has ``numbers[starts[i]:starts[i + 1]]`` pods of those ``groups``, which ascend. ``values`` are what the pods are
    worth, in parts of a dollar per hour. The price is infinite where no bin type holds a row.
    """

    starts: IntArray
    groups: IntArray
    numbers: FloatArray
    values: FloatArray
    bin_types: IntArray
    prices: FloatArray

    @staticmethod
    def from_dense(contents: FloatArray, values: FloatArray, bin_types: IntArray, prices: FloatArray) -> FilledPatterns:
        """From contents with a column for every group."""
        rows, groups = np.nonzero(contents)
        starts = np.searchsorted(rows, np.arange(len(contents) + 1))
        return FilledPatterns(starts, groups, contents[rows, groups], values, bin_types, prices)

    def select(self, rows: IntArray) -> FilledPatterns:
        """Some of the rows, in this order."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.intp)
        entries = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        return FilledPatterns(
            starts,
            self.groups[entries],
            self.numbers[entries],
            self.values[rows],
            self.bin_types[rows],
            self.prices[rows],
        )

    def contents(self, row: int) -> tuple[IntArray, FloatArray]:
        """The groups of one row, and how many pods of each."""
        begin, end = self.starts[row], self.starts[row + 1]
        return self.groups[begin:end], self.numbers[begin:end]

    @property
    def is_selectable(self) -> BoolArray:
        """Which rows have a price and a pod in them."""
        selectable: BoolArray = np.isfinite(self.prices) & (self.values > 0)
        return selectable


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Rows that runs take one after the other: those of a run end at its ``until``. ``most``: nodes for each run at most."""

    ranked: IntArray
    until: IntArray
    most: FloatArray


def to_value_units(pod_values: FloatArray) -> FloatArray:
    """Values of pods as whole numbers of `VALUE_UNITS_PER_DOLLAR`."""
    rint: FloatArray = np.rint(pod_values * VALUE_UNITS_PER_DOLLAR)
    return rint
