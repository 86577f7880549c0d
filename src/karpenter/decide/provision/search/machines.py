"""Filling many machines at once: one row each, all of them pod by pod in its own order of preference.

This is what the search does most, so it works on whole arrays: a step looks at the next group of every row and puts in as many
pods as fit. Work is counted in cells, rows times steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.decide.provision.search.linear import Flags, Floats, Places
from karpenter.decide.provision.search.shapes import Shapes

#: Groups a machine looks at before it is taken for full, those it prefers most.
LOOKS = 96
#: What a pod is worth, as whole numbers, is this many for a dollar: sums of whole numbers do not depend on their order.
PARTS = 1e9


@dataclass(frozen=True, eq=False)
class Filled:
    """Machines with pods in them, a row each: how many of every group, the cheapest kind that holds them, and its price.

    ``values`` are what the pods are worth, in parts of a dollar per hour. The price is infinite where no kind holds a row.
    """

    contents: Floats
    values: Floats
    kinds: Places
    prices: Floats

    def of(self, rows: Places | Flags) -> Filled:
        """Some of the rows."""
        return Filled(self.contents[rows], self.values[rows], self.kinds[rows], self.prices[rows])

    @property
    def real(self) -> Filled:
        """Those that can be bought and have somebody in them."""
        return self.of(np.isfinite(self.prices) & (self.values > 0))


@dataclass(frozen=True, eq=False)
class Whim:
    """What makes machines differ from the obvious: the group one pod of which each begins with (those that cannot take it stay
    empty), and each group's luck in being looked at where not all are."""

    first: Places
    chances: Floats


class Filler:
    """Fills machines of the kinds of one problem, whose pods are worth so much in dollars per hour."""

    def __init__(self, shapes: Shapes, looks: int = LOOKS) -> None:
        self._shapes = shapes
        self._looks = looks
        self._closed = ~shapes.accepts
        #: Rows times steps so far.
        self.cells = 0

    def preferences(self, kinds: Places, worths: Floats, noise: Floats, weights: Floats) -> Floats:
        """How much each row's machine wants a pod of each group: its worth over what it takes there.

        ``noise`` multiplies preferences, ``weights`` what a column counts, a row each.
        """
        shapes = self._shapes
        size = np.full((len(kinds), len(shapes.counts)), 1e-12)
        for column in range(shapes.needs.shape[1]):
            share = shapes.weights[kinds, column] * weights[:, column]
            if share.any():
                size += share[:, None] * shapes.needs[None, :, column]
        found: Floats = worths[None, :] / size * noise
        return found

    def fill(
        self, kinds: Places, preferences: Floats, worths: Floats, left: Floats, whim: Whim | None = None
    ) -> Filled:
        """Machines with as many pods as go in, in the order of preference. ``left``: how many there are, a row each."""
        shapes = self._shapes
        usable = np.where(shapes.opens[kinds], np.minimum(left, shapes.most[None, :]), 0.0)
        wanted = np.where(usable > 0, -preferences, np.inf)
        most = int((usable > 0).sum(axis=1).max(initial=0))
        order = _first(wanted, min(self._looks, most), whim.chances if whim is not None else None)
        first = whim.first if whim is not None else None
        filling = _Filling(shapes, kinds, whole(worths))
        if first is not None:
            begun = usable[filling.rows, first] > 0
            filling.add(first, begun.astype(np.float64))
            usable[filling.rows, first] -= 1
            usable[~begun] = 0
        self.cells += order.size
        for step in range(order.shape[1]):
            group = order[:, step]
            filling.add(group, np.minimum(filling.room(group), usable[filling.rows, group]))
        return self._bought(filling)

    def alone(self, worths: Floats) -> Filled:
        """One machine for one pod of every group."""
        groups = np.arange(len(self._shapes.counts))
        filling = _Filling(self._shapes, np.zeros(len(groups), dtype=np.intp), whole(worths))
        filling.add(groups, np.ones(len(groups)))
        return self._bought(filling)

    def _bought(self, filling: _Filling) -> Filled:
        shapes = self._shapes
        holds = np.ones((len(filling.rows), len(shapes.prices)), dtype=bool)
        for column in range(shapes.rooms.shape[1]):
            holds &= shapes.rooms[None, :, column] >= filling.total[:, None, column]
        for taste in range(self._closed.shape[1]):
            holds &= ~(filling.tastes[:, taste, None] & self._closed[None, :, taste])
        prices = np.where(holds, shapes.prices[None, :], np.inf)
        kinds = prices.argmin(axis=1)
        return Filled(filling.contents, filling.values, kinds, prices[filling.rows, kinds])


class _Filling:
    """Machines while they are filled. All sums are of whole numbers."""

    def __init__(self, shapes: Shapes, kinds: Places, worths: Floats) -> None:
        self._shapes = shapes
        self._worths = worths
        self._free = shapes.rooms[kinds].copy()
        self.rows = np.arange(len(kinds))
        self.contents = np.zeros((len(kinds), len(shapes.counts)))
        self.values = np.zeros(len(kinds))
        self.total = np.zeros_like(self._free)
        self.tastes: Flags = np.zeros((len(kinds), shapes.accepts.shape[1]), dtype=bool)

    def room(self, group: Places) -> Floats:
        """How many pods of its group still go into each row."""
        needs = self._shapes.needs[group]
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = np.where(needs > 0, self._free / needs, np.inf).min(axis=1)
        found: Floats = np.maximum(np.floor(fitting), 0.0)
        return found

    def add(self, group: Places, number: Floats) -> None:
        """So many pods of its group into each row."""
        taken = self._shapes.needs[group] * number[:, None]
        self._free -= taken
        self.total += taken
        self.contents[self.rows, group] += number
        self.values += self._worths[group] * number
        self.tastes[self.rows, self._shapes.tastes[group]] |= number > 0


def _first(ranks: Floats, number: int, chances: Floats | None) -> Places:
    """The places of the lowest ranks of each row, lowest first, ties in order; or of those some by their chances."""
    if number >= ranks.shape[1]:
        return np.argsort(ranks, axis=1, kind="stable")
    drawn = (
        ranks if chances is None else np.where(np.isfinite(ranks), -np.sqrt(np.maximum(-ranks, 0.0)) * chances, np.inf)
    )
    some = np.sort(np.argpartition(drawn, number, axis=1)[:, : max(number, 1)], axis=1)
    inner = np.argsort(np.take_along_axis(ranks, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, inner, axis=1)


def whole(worths: Floats) -> Floats:
    """Worths as whole numbers of parts."""
    found: Floats = np.rint(worths * PARTS)
    return found
