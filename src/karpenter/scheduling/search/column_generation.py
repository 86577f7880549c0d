"""The search for cheap nodes: those that have to be many, columns, and the best of several ways to finish.

1. *Apart.* Where pods must be alone of their sort as many nodes are needed as there are such pods. Each begins with one of
   them; those that waste the least money are taken, batch after batch.
2. *Columns.* A node with pods in it is a column; the linear program over columns selects some, in parts, and says what a pod
   of each group is worth then. Nodes whose pods are worth more than they cost become new columns, round after round.
3. *Whole nodes.* Of every column whose pods are worth its price the whole part of its count is taken. What that leaves
   is packed by several restarts, each always taking the nodes with the most worth per dollar; the cheapest restart wins.

Effort is counted in cells (`pattern_filling`), never in time. Random numbers come from a generator with a fixed seed. Only
uniform numbers and exact sums decide, so one input gives one plan on every computer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from karpenter.scheduling.objective import LEAST_PRICE_PER_HOUR
from karpenter.scheduling.search.filled_patterns import (
    VALUE_UNITS_PER_DOLLAR,
    Beginning,
    FilledPatterns,
    Filling,
    FillPerturbation,
    RankedRows,
    to_value_units,
)
from karpenter.scheduling.search.linear_program import CoveringProgram, FloatArray, IntArray, SparseColumns
from karpenter.scheduling.search.packing_problem import HOST_LIMIT_CAPACITY, PackingProblem
from karpenter.scheduling.search.pattern_filling import PatternFiller, take_rows
from karpenter.scheduling.search.random_rows import RandomSource

#: Rounds of new columns at most, and how many columns a round may bring.
MAX_COLUMN_ROUNDS = 24
#: Rounds at most where it is known what pods are worth.
MAX_ROUNDS_FROM_KNOWN_VALUES = 10
MAX_NEW_COLUMNS = 48
#: Cells the rounds may take: for each of the first pods, for each pod more, and at most.
WORK_PER_FIRST_POD, FIRST_PODS, WORK_PER_POD, MAX_WORK = 12_500, 20, 600, 1_200_000
#: Rows filled at once in a round, and in a step of the restarts.
PATTERNS_PER_ROUND, PATTERNS_PER_RESTART_STEP = 1000, 1400
#: Restarts at most; sets of them are made until they took so many cells for each of the first pods, or are so many.
MAX_RESTARTS, MAX_RESTART_SETS = 16, 5
WORK_TO_FINISH = 15_000
#: Fewer restarts where there are many groups; and how near the best a node has to be to be taken in the same step.
MAX_RESTART_GROUPS, NEAR_BEST = 3_000, 0.995
#: Columns are taken whole if their pods are worth so much of the price by the bound.
MIN_COLUMN_VALUE = 0.95
#: How far preferences and the weights of resources are perturbed.
PREFERENCE_PERTURBATION, WEIGHT_PERTURBATION = 0.3, 0.5
#: How much of the last round's pod values the next one keeps: the program's own duals jump from one extreme to the other.
DUAL_SMOOTHING = 0.5
#: Where pods must be apart, nodes are filled in batches: so many for each node that is taken, at least and at most so many.
PATTERNS_EACH_APART, MIN_PATTERNS_APART, MAX_PATTERNS_APART = 4, 300, 1200
#: The share of the pods apart that a batch serves.
SHARE_APART = 0.1
#: Groups that are tried for each node of a batch, from how many groups on there are many, and how many of these are tried.
GROUPS_TRIED_APART, MANY_GROUPS_APART, OF_MANY_GROUPS_TRIED_APART = 32, 256, 40
#: It is done for so many nodes or more, until few of the pods at first are left, or it took so many cells.
MIN_NODES_APART, MIN_SHARE_APART, MAX_WORK_APART = 2, 0.05, 3_000_000
#: After that, rounds of columns at most, and this share of restarts: what is left is a small part of the price.
MAX_ROUNDS_AFTER_APART, RESTARTS_AFTER_APART = 8, 0.5
#: How far preferences are perturbed there.
PREFERENCE_PERTURBATION_APART = 0.6
_TINY = 1e-6


@dataclass(frozen=True)
class PackingPattern:
    """Nodes of one bin type with the same pods: ``contents`` counts them by group, ``times`` the nodes."""

    bin_type: int
    contents: tuple[tuple[int, int], ...]
    times: int


@dataclass(frozen=True, eq=False)
class SearchedNodes:
    """Nodes that a search proposes, and what a pod of each demand is worth by its last linear program."""

    patterns: list[PackingPattern]
    pod_values: Mapping[int, float]


@dataclass(frozen=True, eq=False)
class SearchStart:
    """Where a search begins and when its rounds end.

    ``pod_values``: what a search for the same pods, in nearly the same nodes, found a pod of each demand to be worth; empty where
    there was none. This one begins there and needs fewer rounds. ``gap``: rounds end once the linear program costs no more than
    this share above the lower bound; None for all rounds.
    """

    pod_values: Mapping[int, float] = field(default_factory=dict)
    gap: float | None = None


FULL_SEARCH = SearchStart()


def search_patterns(problem: PackingProblem, start: SearchStart = FULL_SEARCH) -> SearchedNodes:
    """Nodes for all pods of the problem, in the order of the steps above."""
    searching = _ColumnGeneration(problem, problem.values_of_groups(start.pod_values), start.gap)
    alone, left = searching.isolated_patterns()
    taken, left = searching.column_patterns(left)
    patterns = [*alone, *taken, *searching.best_restart(left)]
    return SearchedNodes(patterns, problem.values_by_demand(searching.pod_values))


def pods_of_pattern(
    groups: Sequence[Sequence[int]], pattern: PackingPattern, left: Sequence[int], most: Sequence[int]
) -> list[tuple[int, int]]:
    """The pods of one node of the pattern by demand, in the order of demands; as many as there still are.

    ``most``: of each demand no more than so many go to one node.
    """
    pods: list[tuple[int, int]] = []
    for group, count in pattern.contents:
        members = [position for position in groups[group] if left[position]]
        if len(members) > 1:  # a demand that needs more nodes than others goes into each of them
            members.sort(key=lambda position: -(-left[position] // most[position]), reverse=True)
        for position in members:
            number = min(count, left[position], most[position])
            if number:
                pods.append((position, number))
                count -= number
    return sorted(pods)


class _ColumnGeneration:
    def __init__(self, problem: PackingProblem, known_values: FloatArray | None, gap: float | None) -> None:
        self._problem = problem
        self._filler = PatternFiller(problem)
        self._random = RandomSource()
        first_values = problem.pod_values if known_values is None else known_values
        self._pod_values = np.maximum(first_values, _minimum_values(problem))
        self._gap = gap
        self._rounds = MAX_COLUMN_ROUNDS if known_values is None else MAX_ROUNDS_FROM_KNOWN_VALUES
        self._restarts = 1.0
        self._first_pods = min(FIRST_PODS, int(problem.counts.sum()))
        self._seen: set[tuple[bytes, bytes]] = set()
        self._columns: list[tuple[IntArray, FloatArray]] = []
        self._bin_types: list[int] = []
        self._prices: list[float] = []

    @property
    def pod_values(self) -> FloatArray:
        """What a pod of each group is worth, as far as it is known."""
        return self._pod_values

    # -- nodes that rules by host ask for ------------------------------------------------------------------------------

    def isolated_patterns(self) -> tuple[list[PackingPattern], FloatArray]:
        """Nodes for pods that must be alone of their sort, and the pods left.

        As many nodes are needed as there are such pods, whatever else is in them. So each begins with one of them, and those
        that waste the least money are taken: their price less the worth of what is in them.
        """
        problem = self._problem
        left = problem.counts.copy()
        patterns: list[PackingPattern] = []
        host_shares = problem.requests[:, problem.resource_columns :] / HOST_LIMIT_CAPACITY
        pod_values = _balanced_values(problem)
        work = 0
        enough = max(MIN_NODES_APART, float((left @ host_shares).max(initial=0.0)) * MIN_SHARE_APART)
        while work < MAX_WORK_APART:
            wanted = left @ host_shares
            if wanted.max(initial=0.0) < enough:
                break
            waiting = np.flatnonzero(left)
            scarce = np.flatnonzero(host_shares[waiting, int(wanted.argmax())] > _TINY)
            work += self._isolated_round(waiting, scarce, left, pod_values, patterns)
        if patterns:
            self._rounds, self._restarts = min(self._rounds, MAX_ROUNDS_AFTER_APART), RESTARTS_AFTER_APART
        return patterns, left

    def _isolated_round(
        self,
        waiting: IntArray,
        scarce: IntArray,
        left: FloatArray,
        pod_values: FloatArray,
        patterns: list[PackingPattern],
    ) -> int:
        """Take the least wasteful of a batch of nodes, each beginning with one of the scarce groups; the cells it took.

        Large pods go first: small ones fill what they leave.
        """
        problem = self._problem.subset(waiting)
        are_many = len(self._problem.groups) >= MANY_GROUPS_APART
        filler = PatternFiller(problem, OF_MANY_GROUPS_TRIED_APART if are_many else GROUPS_TRIED_APART)
        number = len(problem.bin_types)
        most = max(1.0, np.ceil(left[waiting[scarce]].sum() * SHARE_APART))
        batch = int(min(MAX_PATTERNS_APART, max(MIN_PATTERNS_APART, PATTERNS_EACH_APART * most)))
        bin_types = np.tile(np.arange(number), max(1, batch // number))
        first = self._random.generator.choice(scarce, len(bin_types))
        columns = problem.requests.shape[1]
        random = self._random.next_rows(len(bin_types), len(waiting), columns, len(waiting))
        perturbation = FillPerturbation(random, PREFERENCE_PERTURBATION_APART, WEIGHT_PERTURBATION, 0)
        filled = filler.fill(
            Filling(bin_types, pod_values[waiting], left[None, waiting], perturbation, Beginning(first))
        )
        rows = np.flatnonzero(filled.is_selectable)
        waste = filled.prices[rows] - filled.values[rows] / VALUE_UNITS_PER_DOLLAR
        rows = rows[np.argsort(waste, kind="stable")]
        there = left[None, waiting]
        times = take_rows(filled, RankedRows(rows, np.array([len(rows)]), np.array([most])), there)
        left[waiting] = there[0]
        patterns += _patterns(filled, rows, times, waiting)
        return filler.work

    # -- columns ----------------------------------------------------------------------------------------------------------

    def column_patterns(self, counts: FloatArray) -> tuple[list[PackingPattern], FloatArray]:
        """The columns that the linear program selects in whole for so many pods, and the pods it leaves.

        Where columns are too few for so many different pods it selects bad ones, too: those are left.
        """
        problem = self._problem
        if counts.sum() <= 0:
            return [], counts
        self._counts = counts
        covering = CoveringProgram(counts)
        single = self._filler.fill_single_pods(self._pod_values)
        self._add_new_columns(covering, single, np.flatnonzero(single.is_selectable))
        budget = min(MAX_WORK, WORK_PER_FIRST_POD * self._first_pods + WORK_PER_POD * int(counts.sum()))
        enough = -np.inf
        if self._gap is not None and counts.sum() == problem.counts.sum():
            enough = problem.lower_bound * (1 + self._gap)
        solution = covering.solve()
        for _ in range(self._rounds):
            if self._filler.work > budget or (solution is not None and solution.objective <= enough):
                break
            filled = self._new_columns()
            rows = np.flatnonzero(filled.is_selectable)
            if not self._add_new_columns(
                covering, filled, rows[np.argsort(-_value_per_dollar(filled)[rows], kind="stable")]
            ):
                break
            solution = covering.solve()
            if solution is None:
                break
            duals = np.maximum(solution.duals, _minimum_values(problem))
            self._pod_values = DUAL_SMOOTHING * self._pod_values + (1 - DUAL_SMOOTHING) * duals
        return self._whole_patterns(solution.values if solution is not None else np.zeros(0))

    def _new_columns(self) -> FilledPatterns:
        """Nodes of every bin type, most of them filled with perturbed preferences."""
        number = len(self._problem.bin_types)
        each = max(1, PATTERNS_PER_ROUND // number)
        bin_types = np.tile(np.arange(number), each)
        perturbation = self._perturbation(len(bin_types), len(self._pod_values), PREFERENCE_PERTURBATION, number)
        filling = Filling(bin_types, self._pod_values, self._counts[None, :], perturbation)
        return self._filler.fill(filling)

    def _perturbation(self, rows: int, groups: int, amount: float, plain_rows: int = 0) -> FillPerturbation:
        """What changes the preferences and weights of every row but the first ones."""
        random = self._random.next_rows(rows, groups, self._problem.requests.shape[1], 0)
        return FillPerturbation(random, amount, WEIGHT_PERTURBATION, plain_rows)

    def _add_new_columns(self, covering: CoveringProgram, filled: FilledPatterns, ranked: IntArray) -> int:
        """Add the first of the ranked rows that are new, at the beginning all; how many."""
        beginning = not self._columns
        new: list[int] = []
        for row in ranked.tolist() if beginning else ranked[: 4 * MAX_NEW_COLUMNS].tolist():
            groups, numbers = filled.contents(row)
            name = (groups.tobytes(), numbers.tobytes())
            if name not in self._seen:
                self._seen.add(name)
                new.append(row)
                self._columns.append((groups, numbers))
            if len(new) == MAX_NEW_COLUMNS and not beginning:
                break
        if new:
            brought = filled.select(np.array(new, dtype=np.intp))
            self._bin_types += brought.bin_types.tolist()
            self._prices += brought.prices.tolist()
            covering.add_columns(brought.prices, SparseColumns(brought.starts, brought.groups, brought.numbers))
        return len(new)

    def _whole_patterns(self, values: FloatArray) -> tuple[list[PackingPattern], FloatArray]:
        left = self._counts.copy()
        patterns: list[PackingPattern] = []
        parts = to_value_units(self._problem.pod_values)
        for at in np.flatnonzero(values >= 1 - _TINY).tolist():
            groups, numbers = self._columns[at]
            if (numbers * parts[groups]).sum() < MIN_COLUMN_VALUE * VALUE_UNITS_PER_DOLLAR * self._prices[at]:
                continue
            times = int(min(np.floor(values[at] + _TINY), np.floor(left[groups] / numbers).min()))
            if times > 0:
                left[groups] -= numbers * times
                patterns.append(_pattern(self._bin_types[at], groups, numbers, times))
        return patterns, left

    # -- what is left -------------------------------------------------------------------------------------------------------

    def best_restart(self, left: FloatArray) -> list[PackingPattern]:
        """The cheapest of several runs that pack what is left."""
        groups = np.flatnonzero(left)
        if not len(groups):
            return []
        runs = _Restarts(self._problem.subset(groups), groups, self._pod_values[groups], self._perturbation)
        restarts = [runs.best_of_set(left[groups], self._restarts)]
        while runs.work < WORK_TO_FINISH * self._first_pods and len(restarts) < MAX_RESTART_SETS:
            restarts.append(runs.best_of_set(left[groups], self._restarts))
        return min(restarts, key=lambda best: best[1])[0]


class _Restarts:
    """Restarts that pack the same pods, each with its own perturbations. ``groups``: their numbers in the whole problem."""

    def __init__(
        self, problem: PackingProblem, groups: IntArray, pod_values: FloatArray, perturbation: _Perturbations
    ) -> None:
        self._problem = problem
        self._groups = groups
        self._pod_values = pod_values
        self._perturbation = perturbation
        self._filler = PatternFiller(problem)
        self._bin_types = np.flatnonzero(problem.admits.any(axis=1))

    @property
    def work(self) -> int:
        """The work done so far."""
        return self._filler.work

    def best_of_set(self, left: FloatArray, share: float) -> tuple[list[PackingPattern], float]:
        """The cheapest run's nodes, and what they cost. ``share``: so much of the usual number of runs at most."""
        most = int(min(MAX_RESTARTS * share, MAX_RESTART_GROUPS * share // len(self._groups)))
        runs = max(1, min(most, PATTERNS_PER_RESTART_STEP // len(self._bin_types)))
        waiting = np.repeat(left[None, :], runs, axis=0)
        costs = np.zeros(runs)
        steps: list[_TakenRows] = []
        going = np.arange(runs)
        while len(going):
            there = waiting[going]
            taken = self._step(there, going, plain=not steps)
            np.add.at(costs, taken.runs, taken.filled.prices[taken.rows] * taken.times)
            steps.append(taken)
            waiting[going] = there
            going = going[there.sum(axis=1) > 0]
        winner = int(costs.argmin())
        return [pattern for taken in steps for pattern in taken.of_run(winner, self._groups)], float(costs[winner])

    def _step(self, waiting: FloatArray, going: IntArray, *, plain: bool) -> _TakenRows:
        """One node of every bin type for each run, and those of them nearly as good as the best taken."""
        number = len(self._bin_types)
        rows = np.tile(self._bin_types, len(waiting))
        perturbation = self._perturbation(len(rows), len(self._groups), PREFERENCE_PERTURBATION, number if plain else 0)
        filled = self._filler.fill(Filling(rows, self._pod_values, waiting, perturbation))
        score = _value_per_dollar(filled).reshape(len(waiting), number)
        order = np.argsort(-score, axis=1, kind="stable")
        near = np.take_along_axis(score, order, axis=1) >= NEAR_BEST * score.max(axis=1)[:, None]
        ranked = (order + np.arange(len(waiting))[:, None] * number)[near]
        lengths = near.sum(axis=1)
        most = np.full(len(waiting), np.inf)
        times = take_rows(filled, RankedRows(ranked, np.cumsum(lengths), most), waiting)
        return _TakenRows(filled, np.repeat(going, lengths), ranked, times)


@dataclass(frozen=True, eq=False)
class _TakenRows:
    """What runs took in one step: of which row how many nodes."""

    filled: FilledPatterns
    runs: IntArray
    rows: IntArray
    times: FloatArray

    def of_run(self, run: int, numbers: IntArray) -> list[PackingPattern]:
        """What one run took. ``numbers``: those of its groups in the whole problem."""
        own = np.flatnonzero(self.runs == run)
        return _patterns(self.filled, self.rows[own], self.times[own], numbers)


#: Gives what changes so many rows of so many groups, by how much, but for so many rows at first.
_Perturbations = Callable[[int, int, float, int], FillPerturbation]


def _balanced_values(problem: PackingProblem) -> FloatArray:
    """Values of pods between what the linear program says and a plain share of nodes.

    Where there is a little too much of one resource the program values it at nothing; whole nodes never work out so well.
    """
    resources = slice(None, problem.resource_columns)
    share = (problem.requests[None, :, resources] / np.maximum(problem.capacities[:, None, resources], 1.0)).sum(axis=2)
    plain = np.where(problem.admits, share * problem.prices[:, None], np.inf).min(axis=0)
    plain *= (problem.counts @ problem.pod_values) / max(float(problem.counts @ plain), _TINY)
    balanced_values: FloatArray = (problem.pod_values + plain) / 2
    return balanced_values


def _minimum_values(problem: PackingProblem) -> FloatArray:
    """No pod is worth less than this: a thousandth of its worth at first, and never nothing."""
    return np.maximum(problem.pod_values * 1e-3, 1e-7)


def _patterns(filled: FilledPatterns, rows: IntArray, times: FloatArray, numbers: IntArray) -> list[PackingPattern]:
    """Rows that were taken. ``numbers``: those of their groups in the whole problem."""
    patterns = []
    for at in np.flatnonzero(times).tolist():
        groups, pods = filled.contents(int(rows[at]))
        patterns.append(_pattern(int(filled.bin_types[rows[at]]), numbers[groups], pods, int(times[at])))
    return patterns


def _pattern(bin_type: int, groups: IntArray, numbers: FloatArray, times: int) -> PackingPattern:
    contents = tuple((group, int(number)) for group, number in zip(groups.tolist(), numbers.tolist(), strict=True))
    return PackingPattern(bin_type, contents, times)


def _value_per_dollar(filled: FilledPatterns) -> FloatArray:
    return filled.values / np.maximum(filled.prices, LEAST_PRICE_PER_HOUR)
