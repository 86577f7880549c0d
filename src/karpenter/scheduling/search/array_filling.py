"""Rows filled with whole arrays: a step takes the next group of every row and puts in as many pods as fit.

It needs nothing but numpy. `fill_kernel.c` does the same row by row; change both together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from karpenter.scheduling.search.filled_patterns import FilledPatterns, Filling, RankedRows, to_value_units
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.offering_rows import fitting
from karpenter.scheduling.search.packing_problem import PackingProblem


def filler(problem: PackingProblem) -> Callable[[Filling, int], FilledPatterns]:
    """What fills rows of the problem, each with so many groups at most."""
    return lambda filling, steps: _fill(problem, filling, steps)


def _fill(problem: PackingProblem, filling: Filling, steps: int) -> FilledPatterns:
    left = np.repeat(filling.left, len(filling.bin_types) // len(filling.left), axis=0)
    usable = np.where(problem.admits[filling.bin_types], np.minimum(left, problem.max_per_node[None, :]), 0.0)
    preferences = _preferences(problem, filling)
    beginning = filling.beginning
    wanted = np.where(usable > 0, -preferences, np.inf)
    order = _lowest_ranked(wanted, steps, filling.perturbation.random.draws() if beginning is not None else None)
    rows = _PatternsInProgress(problem, filling.bin_types, to_value_units(filling.pod_values))
    if beginning is not None:
        first = beginning.first_group
        begun = usable[rows.rows, first] > 0
        rows.add(first, begun.astype(np.float64))
        usable[rows.rows, first] -= 1
        usable[~begun] = 0
    for step in range(order.shape[1]):
        group = order[:, step]
        rows.add(group, np.minimum(rows.count_fitting(group), usable[rows.rows, group]))
    bin_types, prices = cheapest_bins(problem, rows.total_requests, rows.signatures)
    return FilledPatterns.from_dense(rows.contents, rows.values, bin_types, prices)


def take(filled: FilledPatterns, rows: RankedRows, waiting: FloatArray) -> FloatArray:
    """How many nodes like each ranked row its run takes: as many as pods are left for.

    ``waiting`` has a row for each run and changes.
    """
    times = np.zeros(len(rows.ranked))
    begin = 0
    for run, until in enumerate(rows.until.tolist()):
        most = float(rows.most[run])
        for at in range(begin, until):
            groups, numbers = filled.contents(int(rows.ranked[at]))
            times[at] = min(most, float(np.floor(waiting[run, groups] / numbers).min())) if len(groups) else 0.0
            waiting[run, groups] -= numbers * times[at]
            most -= times[at]
        begin = until
    return times


def _preferences(problem: PackingProblem, filling: Filling) -> FloatArray:
    """How much each row's node wants a pod of each group: its worth over what it takes there."""
    noise, weights = filling.perturbation.factors()
    size = np.full((len(filling.bin_types), len(problem.counts)), 1e-12)
    for column in range(problem.requests.shape[1]):
        share = problem.resource_values[filling.bin_types, column] * weights[:, column]
        if share.any():
            size += share[:, None] * problem.requests[None, :, column]
    preferences: FloatArray = filling.pod_values[None, :] / size * noise
    return preferences if filling.beginning is None else preferences * filling.pod_values


def cheapest_bins(
    problem: PackingProblem, total_requests: FloatArray, signatures: BoolArray
) -> tuple[IntArray, FloatArray]:
    """For each row the cheapest bin type that holds its pods, and its price; infinite where there is none."""
    rejects = ~problem.accepts
    holds = np.ones((len(total_requests), len(problem.prices)), dtype=bool)
    for column in range(problem.capacities.shape[1]):
        holds &= problem.capacities[None, :, column] >= total_requests[:, None, column]
    for signature in range(rejects.shape[1]):
        holds &= ~(signatures[:, signature, None] & rejects[None, :, signature])
    return _cheapest_holding(problem, total_requests, holds)


def cheapest_bins_of_groups(problem: PackingProblem) -> tuple[IntArray, FloatArray]:
    """The same for one pod of every group."""
    holds = problem.accepts[:, problem.signatures] & fitting(problem.requests, problem.capacities)
    return _cheapest_holding(problem, problem.requests, holds.T)


def _cheapest_holding(
    problem: PackingProblem, total_requests: FloatArray, holds: BoolArray
) -> tuple[IntArray, FloatArray]:
    prices = np.where(holds, problem.prices_with(total_requests), np.inf)
    bin_types = prices.argmin(axis=1)
    return bin_types, prices[np.arange(len(prices)), bin_types]


class _PatternsInProgress:
    """Nodes while they are filled. All sums are of whole numbers."""

    def __init__(self, problem: PackingProblem, bin_types: IntArray, pod_values: FloatArray) -> None:
        self._problem = problem
        self._pod_values = pod_values
        self._free = problem.capacities[bin_types].copy()
        self.rows = np.arange(len(bin_types))
        self.contents = np.zeros((len(bin_types), len(problem.counts)))
        self.values = np.zeros(len(bin_types))
        self.total_requests = np.zeros_like(self._free)
        self.signatures: BoolArray = np.zeros((len(bin_types), problem.accepts.shape[1]), dtype=bool)

    def count_fitting(self, group: IntArray) -> FloatArray:
        """How many pods of its group still go into each row."""
        needs = self._problem.requests[group]
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = np.where(needs > 0, self._free / needs, np.inf).min(axis=1)
        maximum: FloatArray = np.maximum(np.floor(fitting), 0.0)
        return maximum

    def add(self, group: IntArray, number: FloatArray) -> None:
        """So many pods of its group into each row."""
        taken = self._problem.requests[group] * number[:, None]
        self._free -= taken
        self.total_requests += taken
        self.contents[self.rows, group] += number
        self.values += self._pod_values[group] * number
        self.signatures[self.rows, self._problem.signatures[group]] |= number > 0


def _lowest_ranked(ranks: FloatArray, number: int, certainties: FloatArray | None) -> IntArray:
    """The places of the lowest ranks of each row, lowest first, ties in order; or of those some by their chances."""
    if number >= ranks.shape[1]:
        return np.argsort(ranks, axis=1, kind="stable")
    if certainties is None:
        return np.argsort(ranks, axis=1, kind="stable")[:, :number]
    drawn = np.where(np.isfinite(ranks), -np.sqrt(np.maximum(-ranks, 0.0)) * certainties, np.inf)
    # Sorted, not partitioned: which of equals a partition takes depends on the processor.
    some = np.sort(np.argsort(drawn, axis=1, kind="stable")[:, :number], axis=1)
    inner = np.argsort(np.take_along_axis(ranks, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, inner, axis=1)
