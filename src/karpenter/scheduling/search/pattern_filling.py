"""Filling many nodes at once: one row each, all of them pod by pod in its own order of preference.

This is what the search does most, so it works on whole arrays: a step looks at the next group of every row and puts in as many
pods as fit. Work is counted in cells, rows times steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.packing_problem import PackingProblem

#: Groups a node looks at before it is taken for full, those it prefers most.
MAX_GROUPS_TRIED = 96
#: What a pod is worth, as whole numbers, is this many for a dollar: sums of whole numbers do not depend on their order.
VALUE_UNITS_PER_DOLLAR = 1e9


@dataclass(frozen=True, eq=False)
class FilledPatterns:
    """Nodes with pods in them, a row each: how many of every group, the cheapest bin type that holds them, and its price.

    ``values`` are what the pods are worth, in parts of a dollar per hour. The price is infinite where no bin type holds a row.
    """

    contents: FloatArray
    values: FloatArray
    bin_types: IntArray
    prices: FloatArray

    def select(self, rows: IntArray | BoolArray) -> FilledPatterns:
        """Some of the rows."""
        return FilledPatterns(self.contents[rows], self.values[rows], self.bin_types[rows], self.prices[rows])

    @property
    def purchasable(self) -> FilledPatterns:
        """Those that can be bought and have a pod in them."""
        return self.select(np.isfinite(self.prices) & (self.values > 0))


@dataclass(frozen=True, eq=False)
class FillPerturbation:
    """What makes nodes differ from the obvious: the group one pod of which each begins with (those that cannot take it stay
    empty), and a weight by which groups are drawn where not all are tried."""

    first_group: IntArray
    draw_weights: FloatArray


class PatternFiller:
    """Fills nodes of the bin types of one problem, whose pods are worth so much in dollars per hour."""

    def __init__(self, problem: PackingProblem, looks: int = MAX_GROUPS_TRIED) -> None:
        self._problem = problem
        self._max_groups_tried = looks
        self._rejects = ~problem.accepts
        #: Rows times steps so far.
        self.work = 0

    def preferences(
        self, bin_types: IntArray, pod_values: FloatArray, noise: FloatArray, weights: FloatArray
    ) -> FloatArray:
        """How much each row's node wants a pod of each group: its worth over what it takes there.

        ``noise`` multiplies preferences, ``weights`` what a column counts, a row each.
        """
        problem = self._problem
        size = np.full((len(bin_types), len(problem.counts)), 1e-12)
        for column in range(problem.requests.shape[1]):
            share = problem.resource_values[bin_types, column] * weights[:, column]
            if share.any():
                size += share[:, None] * problem.requests[None, :, column]
        preferences: FloatArray = pod_values[None, :] / size * noise
        return preferences

    def fill(
        self,
        bin_types: IntArray,
        preferences: FloatArray,
        pod_values: FloatArray,
        left: FloatArray,
        perturbation: FillPerturbation | None = None,
    ) -> FilledPatterns:
        """Nodes with as many pods as go in, in the order of preference. ``left``: how many there are, a row each."""
        problem = self._problem
        usable = np.where(problem.admits[bin_types], np.minimum(left, problem.max_per_node[None, :]), 0.0)
        wanted = np.where(usable > 0, -preferences, np.inf)
        most = int((usable > 0).sum(axis=1).max(initial=0))
        order = _lowest_ranked(
            wanted, min(self._max_groups_tried, most), perturbation.draw_weights if perturbation is not None else None
        )
        first = perturbation.first_group if perturbation is not None else None
        filling = _PatternsInProgress(problem, bin_types, to_value_units(pod_values))
        if first is not None:
            begun = usable[filling.rows, first] > 0
            filling.add(first, begun.astype(np.float64))
            usable[filling.rows, first] -= 1
            usable[~begun] = 0
        self.work += order.size
        for step in range(order.shape[1]):
            group = order[:, step]
            filling.add(group, np.minimum(filling.count_fitting(group), usable[filling.rows, group]))
        return self._with_cheapest_bin(filling)

    def fill_single_pods(self, pod_values: FloatArray) -> FilledPatterns:
        """One node for one pod of every group."""
        groups = np.arange(len(self._problem.counts))
        filling = _PatternsInProgress(self._problem, np.zeros(len(groups), dtype=np.intp), to_value_units(pod_values))
        filling.add(groups, np.ones(len(groups)))
        return self._with_cheapest_bin(filling)

    def _with_cheapest_bin(self, filling: _PatternsInProgress) -> FilledPatterns:
        problem = self._problem
        holds = np.ones((len(filling.rows), len(problem.prices)), dtype=bool)
        for column in range(problem.capacities.shape[1]):
            holds &= problem.capacities[None, :, column] >= filling.total_requests[:, None, column]
        for signature in range(self._rejects.shape[1]):
            holds &= ~(filling.signatures[:, signature, None] & self._rejects[None, :, signature])
        prices = np.where(holds, problem.prices_with(filling.total_requests), np.inf)
        bin_types = prices.argmin(axis=1)
        return FilledPatterns(filling.contents, filling.values, bin_types, prices[filling.rows, bin_types])


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
    drawn = (
        ranks
        if certainties is None
        else np.where(np.isfinite(ranks), -np.sqrt(np.maximum(-ranks, 0.0)) * certainties, np.inf)
    )
    some = np.sort(np.argpartition(drawn, number, axis=1)[:, : max(number, 1)], axis=1)
    inner = np.argsort(np.take_along_axis(ranks, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, inner, axis=1)


def to_value_units(pod_values: FloatArray) -> FloatArray:
    """Values of pods as whole numbers of `VALUE_UNITS_PER_DOLLAR`."""
    rint: FloatArray = np.rint(pod_values * VALUE_UNITS_PER_DOLLAR)
    return rint
