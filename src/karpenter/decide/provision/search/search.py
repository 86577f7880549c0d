"""The search for cheap machines: those that have to be many, columns, and the best of several ways to finish.

1. *Apart.* Where pods must be alone of their sort as many machines are needed as there are such pods. Each begins with one of
   them; those that waste the least money are taken, batch after batch.
2. *Columns.* A machine with pods in it is a column; the linear programme over columns says which to buy, in parts, and what a pod
   of each group is worth then. Machines whose pods are worth more than they cost become new columns, round after round.
3. *Whole machines.* Of every column that is no bad bargain as many as the programme buys in whole are bought. What that leaves
   is packed by several runs side by side, each always taking the machines with the most worth per dollar; the cheapest run wins.

Effort is counted in cells (`machines`), never in time. What looks random comes from a generator with a fixed seed, and only
uniform numbers and exact sums decide, so that one plan comes of one input on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from karpenter.decide.provision.search.linear import Covering, Floats, Places
from karpenter.decide.provision.search.machines import PARTS, Filled, Filler, Whim, whole
from karpenter.decide.provision.search.shapes import SEATS, Shapes

#: Rounds of new columns at most, and how many columns a round may bring.
ROUNDS = 24
NEW_COLUMNS = 48
#: Cells the rounds may take: for each of the first pods, for each pod more, and at most.
CELLS_PER_FIRST_POD, FIRST_PODS, CELLS_PER_POD, MOST_CELLS = 12_500, 20, 600, 1_200_000
#: Rows filled at once in a round, and in a step of the runs side by side.
ROWS, RUN_ROWS = 1000, 1400
#: Runs side by side at most; sets of them are made until they took so many cells for each of the first pods, or are so many.
RUNS, SETS = 16, 5
CELLS_TO_FINISH = 15_000
#: Fewer runs where there are many groups; and how near the best a machine has to be to be taken in the same step.
RUN_GROUPS, NEAR_BEST = 3_000, 0.995
#: Columns are bought whole if their pods are worth so much of the price by the bound.
GOOD_COLUMN = 0.95
#: How far preferences and the weights of resources are shaken.
SHAKEN, SHAKEN_WEIGHTS = 0.3, 0.5
#: How much of the last round's worths the next one keeps: the programme's own jump from one extreme to the other.
INERTIA = 0.5
#: Where pods must be apart: machines in a batch (so many for each that is taken, within limits), groups each looks at, and the
#: share of such pods a batch serves.
ROWS_APART, ROWS_EACH_APART, MOST_ROWS_APART, LOOKS_APART, SHARE_APART = 600, 8, 2400, 32, 0.1
#: It is done for so many machines or more, until few of those asked for at first are left, or it took so many cells.
AT_LEAST_APART, FEW_APART, MOST_CELLS_APART = 2, 0.05, 3_000_000
#: How far preferences are shaken there.
SHAKEN_APART = 0.6
_SEED = 20_240_807
_TINY = 1e-6


@dataclass(frozen=True)
class Pattern:
    """Machines of one kind with the same pods: ``contents`` counts them by group, ``times`` the machines."""

    kind: int
    contents: tuple[tuple[int, int], ...]
    times: int


@dataclass(frozen=True)
class Found:
    """What the search proposes, in the order it was found, and what it costs with the fees of machines."""

    patterns: tuple[Pattern, ...]
    cost: float


def search(shapes: Shapes) -> Found:
    """Machines for all pods of the problem."""
    searching = _Search(shapes)
    alone, left = searching.apart()
    bought, left = searching.columns(left)
    finished, cost = searching.finished(left)
    fixed = [*alone, *bought]
    return Found((*fixed, *finished), cost + sum(float(shapes.prices[p.kind]) * p.times for p in fixed))


class _Search:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._filler = Filler(shapes)
        self._random = np.random.Generator(np.random.PCG64(_SEED))
        self._worths = np.maximum(shapes.worths, _least(shapes))
        self._first_pods = min(FIRST_PODS, int(shapes.counts.sum()))
        self._seen: set[bytes] = set()
        self._columns: list[Floats] = []
        self._kinds: list[int] = []

    # -- machines that rules by host ask for ------------------------------------------------------------------------------

    def apart(self) -> tuple[list[Pattern], Floats]:
        """Machines for pods that must be alone of their sort, and the pods left.

        As many machines are needed as there are such pods, whatever else is in them. So each begins with one of them, and those
        that waste the least money are taken: their price less the worth of what is in them.
        """
        shapes = self._shapes
        left = shapes.counts.copy()
        patterns: list[Pattern] = []
        seats = shapes.needs[:, shapes.resources :] / SEATS
        worths = _balanced(shapes)
        cells = 0
        enough = max(AT_LEAST_APART, float((left @ seats).max(initial=0.0)) * FEW_APART)
        while cells < MOST_CELLS_APART:
            wanted = left @ seats
            if wanted.max(initial=0.0) < enough:
                break
            waiting = np.flatnonzero(left)
            scarce = np.flatnonzero(seats[waiting, int(wanted.argmax())] > _TINY)
            cells += self._round_apart(waiting, scarce, left, worths, patterns)
        return patterns, left

    def _round_apart(
        self, waiting: Places, scarce: Places, left: Floats, worths: Floats, patterns: list[Pattern]
    ) -> int:
        """Take the least wasteful of a batch of machines, each beginning with one of the scarce groups; the cells it took.

        Large pods go first: small ones fill what they leave.
        """
        shapes = self._shapes.of(waiting)
        filler = Filler(shapes, LOOKS_APART)
        number = len(shapes.kinds)
        most = max(1.0, np.ceil(left[waiting[scarce]].sum() * SHARE_APART))
        rows = int(min(MOST_ROWS_APART, max(ROWS_APART, ROWS_EACH_APART * most)))
        kinds = np.tile(np.arange(number), max(1, rows // number))
        first = self._random.choice(scarce, len(kinds))
        noise, weights = self._shakes(len(kinds), len(waiting), SHAKEN_APART)
        preferences = filler.preferences(kinds, worths[waiting], noise, weights) * worths[waiting]
        available = np.broadcast_to(left[waiting], (len(kinds), len(waiting)))
        filled = filler.fill(
            kinds, preferences, worths[waiting], available, Whim(first, self._random.random(noise.shape))
        ).real
        waste = filled.prices - filled.values / PARTS
        for row in np.argsort(waste, kind="stable").tolist():
            if most <= 0:
                break
            groups = np.flatnonzero(filled.contents[row])
            numbers = filled.contents[row, groups]
            times = int(min((left[waiting[groups]] // numbers).min(), most))
            if times:
                left[waiting[groups]] -= numbers * times
                most -= times
                patterns.append(_pattern(int(filled.kinds[row]), waiting[groups], numbers, times))
        return filler.cells

    # -- columns ----------------------------------------------------------------------------------------------------------

    def columns(self, counts: Floats) -> tuple[list[Pattern], Floats]:
        """What the linear programme over columns buys in whole of so many pods, and the pods it leaves.

        Where columns are too few for so many different pods it buys bad ones, too: those are left.
        """
        shapes = self._shapes
        if counts.sum() <= 0:
            return [], counts
        self._counts = counts
        covering = Covering(counts)
        self._bring(covering, self._filler.alone(self._worths).real)
        budget = min(MOST_CELLS, CELLS_PER_FIRST_POD * self._first_pods + CELLS_PER_POD * int(counts.sum()))
        solution = covering.solve()
        for _ in range(ROUNDS):
            if self._filler.cells > budget:
                break
            filled = self._round()
            if not self._bring(covering, filled.of(np.argsort(-(filled.values / filled.prices), kind="stable"))):
                break
            solution = covering.solve()
            if solution is None:
                break
            duals = np.maximum(solution.duals, _least(shapes))
            self._worths = INERTIA * self._worths + (1 - INERTIA) * duals
        return self._in_whole(solution.values if solution is not None else np.zeros(0))

    def _round(self) -> Filled:
        """Machines of every kind, most of them filled at a whim."""
        number = len(self._shapes.kinds)
        each = max(1, ROWS // number)
        kinds = np.tile(np.arange(number), each)
        noise, weights = self._shakes(len(kinds), len(self._worths), SHAKEN)
        noise[:number], weights[:number] = 1.0, 1.0  # each kind once as it is
        preferences = self._filler.preferences(kinds, self._worths, noise, weights)
        left = np.broadcast_to(self._counts, (len(kinds), len(self._counts)))
        return self._filler.fill(kinds, preferences, self._worths, left).real

    def _shakes(self, rows: int, groups: int, shaken: float) -> tuple[Floats, Floats]:
        """Factors near one for the preferences and weights of every row."""
        noise = 1 + shaken * (2 * self._random.random((rows, groups)) - 1)
        weights = 1 + SHAKEN_WEIGHTS * (2 * self._random.random((rows, self._shapes.needs.shape[1])) - 1)
        return noise, weights

    def _bring(self, covering: Covering, ranked: Filled) -> int:
        """Add the first columns that are new, at the beginning all; how many."""
        beginning = not self._columns
        new: list[int] = []
        for row in range(len(ranked.prices) if beginning else min(len(ranked.prices), 4 * NEW_COLUMNS)):
            name = ranked.contents[row].tobytes()
            if name not in self._seen:
                self._seen.add(name)
                new.append(row)
            if len(new) == NEW_COLUMNS and not beginning:
                break
        brought = ranked.of(np.array(new, dtype=np.intp))
        if new:
            self._columns += list(brought.contents)
            self._kinds += brought.kinds.tolist()
            covering.add(brought.prices, brought.contents)
        return len(new)

    def _in_whole(self, values: Floats) -> tuple[list[Pattern], Floats]:
        left = self._counts.copy()
        patterns: list[Pattern] = []
        parts = whole(self._shapes.worths)
        for at in np.flatnonzero(values >= 1 - _TINY).tolist():
            contents = self._columns[at]
            if (contents * parts).sum() < GOOD_COLUMN * PARTS * self._shapes.prices[self._kinds[at]]:
                continue
            times = int(min(np.floor(values[at] + _TINY), _times(contents, left)))
            if times > 0:
                left -= contents * times
                groups = np.flatnonzero(contents)
                patterns.append(_pattern(self._kinds[at], groups, contents[groups], times))
        return patterns, left

    # -- what is left -------------------------------------------------------------------------------------------------------

    def finished(self, left: Floats) -> tuple[list[Pattern], float]:
        """The cheapest of several runs that pack what is left, and what it costs."""
        groups = np.flatnonzero(left)
        if not len(groups):
            return [], 0.0
        runs = _Runs(self._shapes.of(groups), groups, self._worths[groups], self._shakes)
        found = [runs.best(left[groups])]
        while runs.cells < CELLS_TO_FINISH * self._first_pods and len(found) < SETS:
            found.append(runs.best(left[groups]))
        return min(found, key=lambda best: best[1])


class _Runs:
    """Runs side by side that pack the same pods, each with whims of its own. ``groups``: their numbers in the whole problem."""

    def __init__(self, shapes: Shapes, groups: Places, worths: Floats, shakes: _Shakes) -> None:
        self._shapes = shapes
        self._groups = groups
        self._worths = worths
        self._shakes = shakes
        self._filler = Filler(shapes)
        self._kinds = np.flatnonzero(shapes.opens.any(axis=1))

    @property
    def cells(self) -> int:
        """The work done so far."""
        return self._filler.cells

    def best(self, left: Floats) -> tuple[list[Pattern], float]:
        """The cheapest run's machines, and what they cost."""
        runs = max(1, min(RUNS, RUN_ROWS // len(self._kinds), RUN_GROUPS // len(self._groups)))
        waiting = np.repeat(left[None, :], runs, axis=0)
        costs = np.zeros(runs)
        taken: list[list[Pattern]] = [[] for _ in range(runs)]
        going = np.arange(runs)
        while len(going):
            filled, ranked = self._step(waiting[going], plain=not taken[0])
            for run, rows in zip(going.tolist(), ranked, strict=True):
                for row in rows:
                    inside = np.flatnonzero(filled.contents[row])
                    numbers = filled.contents[row, inside]
                    times = int((waiting[run, inside] // numbers).min())
                    if times:
                        waiting[run, inside] -= numbers * times
                        costs[run] += filled.prices[row] * times
                        taken[run].append(_pattern(int(filled.kinds[row]), self._groups[inside], numbers, times))
            going = going[waiting[going].sum(axis=1) > 0]
        winner = int(costs.argmin())
        return taken[winner], float(costs[winner])

    def _step(self, waiting: Floats, *, plain: bool) -> tuple[Filled, list[list[int]]]:
        """One machine of every kind for each run, and those of them nearly as good as the best: what each run takes."""
        number = len(self._kinds)
        rows = np.tile(self._kinds, len(waiting))
        noise, weights = self._shakes(len(rows), len(self._groups), SHAKEN)
        if plain:
            noise[:number], weights[:number] = 1.0, 1.0
        preferences = self._filler.preferences(rows, self._worths, noise, weights)
        filled = self._filler.fill(rows, preferences, self._worths, np.repeat(waiting, number, axis=0))
        score = (filled.values / filled.prices).reshape(len(waiting), number)
        ranked = np.argsort(-score, axis=1, kind="stable")
        near = np.take_along_axis(score, ranked, axis=1) >= NEAR_BEST * score.max(axis=1)[:, None]
        return filled, [
            (rows[close] + at * number).tolist() for at, (rows, close) in enumerate(zip(ranked, near, strict=True))
        ]


#: Gives factors for so many rows and groups, shaken so much.
_Shakes = Callable[[int, int, float], tuple[Floats, Floats]]


def _balanced(shapes: Shapes) -> Floats:
    """Worths between what the linear programme says and a plain share of machines.

    Where there is a little too much of one resource the programme takes it for worthless; whole machines never work out so well.
    """
    resources = slice(None, shapes.resources)
    share = (shapes.needs[None, :, resources] / np.maximum(shapes.rooms[:, None, resources], 1.0)).sum(axis=2)
    plain = np.where(shapes.opens, share * shapes.prices[:, None], np.inf).min(axis=0)
    plain *= (shapes.counts @ shapes.worths) / max(float(shapes.counts @ plain), _TINY)
    found: Floats = (shapes.worths + plain) / 2
    return found


def _least(shapes: Shapes) -> Floats:
    """No pod is worth less than this: a thousandth of its worth at first, and never nothing."""
    return np.maximum(shapes.worths * 1e-3, 1e-7)


def _times(contents: Floats, left: Floats) -> float:
    """How often these pods are left."""
    inside = contents > 0
    return float(np.floor(left[inside] / contents[inside]).min()) if inside.any() else 0.0


def _pattern(kind: int, groups: Places, numbers: Floats, times: int) -> Pattern:
    contents = tuple((group, int(number)) for group, number in zip(groups.tolist(), numbers.tolist(), strict=True))
    return Pattern(kind, contents, times)
