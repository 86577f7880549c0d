"""Filling many nodes at once: one row each, all of them pod by pod in its own order of preference.

This is what the search does most. A C library does it row by row (`compiled_filling`) where it was built; else whole arrays
are worked on step by step (`array_filling`). Both do the same operations in the same order and give the same bytes. Work is
counted in cells, rows times steps, whichever does it.
"""

from __future__ import annotations

import numpy as np

from karpenter.scheduling.search import array_filling, compiled_filling
from karpenter.scheduling.search.distinct_rows import distinct_numbers
from karpenter.scheduling.search.filled_patterns import FilledPatterns, Filling, RankedRows, to_value_units
from karpenter.scheduling.search.linear_program import FloatArray
from karpenter.scheduling.search.packing_problem import PackingProblem

#: Groups tried for a node before it is taken for full, those it prefers most.
MAX_GROUPS_TRIED = 96


class PatternFiller:
    """Fills nodes of the bin types of one problem, whose pods are worth so much in dollars per hour."""

    def __init__(self, problem: PackingProblem, max_groups_tried: int = MAX_GROUPS_TRIED) -> None:
        self._problem = problem
        self._max_groups_tried = max_groups_tried
        self._fill = compiled_filling.filler(problem) or array_filling.filler(problem)
        #: Rows times steps so far.
        self.work = 0

    def fill(self, filling: Filling) -> FilledPatterns:
        """Nodes with as many pods as go in, in the order of preference."""
        problem = self._problem
        there = np.minimum(filling.left, problem.max_per_node) > 0
        admits = problem.admits[distinct_numbers(filling.bin_types)]
        most = int((there.astype(np.float32) @ admits.astype(np.float32).T).max(initial=0))
        steps = max(1, min(self._max_groups_tried, most))
        self.work += len(filling.bin_types) * steps
        return self._fill(filling, steps)

    def fill_single_pods(self, pod_values: FloatArray) -> FilledPatterns:
        """One node for one pod of every group."""
        problem = self._problem
        groups = np.arange(len(problem.counts))
        bin_types, prices = array_filling.cheapest_bins_of_groups(problem)
        values = to_value_units(pod_values)
        return FilledPatterns(np.arange(len(groups) + 1), groups, np.ones(len(groups)), values, bin_types, prices)


def take_rows(filled: FilledPatterns, rows: RankedRows, waiting: FloatArray) -> FloatArray:
    """How many nodes like each ranked row its run takes: as many as pods are left for.

    ``waiting`` has a row for each run and changes.
    """
    return (compiled_filling.taker() or array_filling.take)(filled, rows, waiting)
