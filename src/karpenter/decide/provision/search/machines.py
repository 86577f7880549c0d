"""Filling many machines at once: one row each, all of them pod by pod in its own order of preference.

This is what the search does most, so it works on whole arrays: a step looks at the next group of every row and puts in as many
pods as fit. Work is counted in cells, rows times steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from karpenter.decide.provision.search.linear import Floats, Places
from karpenter.decide.provision.search.shapes import Shapes

#: Groups a machine looks at before it is taken for full, those it prefers most.
LOOKS = 96
#: What a pod is worth, as whole numbers, is this many for a dollar: sums of whole numbers do not depend on their order.
PARTS = 1e9


@dataclass(frozen=True, eq=False)
class Filled:
    """Machines with pods in them, a row each: how many of every group, the cheapest kind that holds them, and its price."""

    contents: Floats
    kinds: Places
    prices: Floats


class Filler:
    """Fills machines of the kinds of one problem."""

    def __init__(self, shapes: Shapes, looks: int = LOOKS) -> None:
        self._shapes = shapes
        self._looks = looks
        self._closed = (~shapes.opens).T.astype(np.float32)
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

    def fill(self, kinds: Places, preferences: Floats, left: Floats, first: Places | None = None) -> Floats:
        """How many pods of every group each machine gets. ``left``: how many there are, a row each.

        ``first``: the group one pod of which each machine begins with; machines that cannot take it stay empty.
        """
        shapes = self._shapes
        usable = np.where(shapes.opens[kinds], left, 0.0)
        wanted = np.where(usable > 0, -preferences, np.inf)
        order = _first(wanted, min(self._looks, int((usable > 0).sum(axis=1).max(initial=0))))
        free = shapes.rooms[kinds].copy()
        contents = np.zeros_like(usable)
        rows = np.arange(len(kinds))
        if first is not None:
            begun = usable[rows, first] > 0
            contents[rows[begun], first[begun]] = 1.0
            free -= np.where(begun[:, None], shapes.needs[first], free)
            usable[rows, first] -= 1
        self.cells += order.size
        for step in range(order.shape[1]):
            group = order[:, step]
            needs = shapes.needs[group]
            with np.errstate(divide="ignore", invalid="ignore"):
                fitting = np.where(needs > 0, free / needs, np.inf).min(axis=1)
            number = np.maximum(np.minimum(np.floor(fitting), usable[rows, group]), 0.0)
            contents[rows, group] += number
            free -= needs * number[:, None]
        return contents

    def bought(self, contents: Floats) -> Filled:
        """The cheapest kind that holds each row; its price is infinite where none does."""
        shapes = self._shapes
        total = contents @ shapes.needs
        holds = (contents > 0).astype(np.float32) @ self._closed == 0
        for column in range(total.shape[1]):
            holds &= shapes.rooms[None, :, column] >= total[:, None, column]
        prices = np.where(holds, shapes.prices[None, :], np.inf)
        kinds = prices.argmin(axis=1)
        return Filled(contents, kinds, prices[np.arange(len(kinds)), kinds])


def _first(ranks: Floats, number: int) -> Places:
    """The places of the lowest ranks of each row, lowest first, ties in order."""
    if number >= ranks.shape[1]:
        return np.argsort(ranks, axis=1, kind="stable")
    some = np.sort(np.argpartition(ranks, number, axis=1)[:, : max(number, 1)], axis=1)
    inner = np.argsort(np.take_along_axis(ranks, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, inner, axis=1)


def whole(worths: Floats) -> Floats:
    """Worths as whole numbers of parts."""
    found: Floats = np.rint(worths * PARTS)
    return found
