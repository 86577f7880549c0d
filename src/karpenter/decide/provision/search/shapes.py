"""The packing problem as arrays: groups of pods, kinds of machines they may be put into, and first prices for both.

What makes two classes one group is all that filling a machine asks about: requests, taste, seats. *Seats* are what rules by host
leave on one machine, counted like a resource: a pod that must be alone of its sort takes all of them, one that others only keep
away from takes a crumb. Rules too odd for that are left out; whoever carries a pattern out looks at all of them again.

A kind of machine keeps to one lane and begins with requirements some class has (its *anchor*); it is open to whoever adds nothing
to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpenter.catalog.index import TypeSet, set_of
from karpenter.decide.provision.demand import Demand, Option
from karpenter.decide.provision.filling import Book, Lane
from karpenter.decide.provision.hosting import Rules
from karpenter.decide.provision.search.bound import Crowds, Relaxed, relaxed
from karpenter.decide.provision.search.linear import Flags, Floats, Places
from karpenter.decide.provision.search.wares import Tastes, Units, front
from karpenter.decide.worth import Worth
from karpenter.model.requirements import Requirements

#: Kinds of machines tried at most; the rest are worse by value and price.
KINDS = 128
#: Sets of requirements a lane's machines may begin with, those of most pods first.
ANCHORS = 12
#: Rules by host that are counted as seats, those of most pods first.
SEATINGS = 16
#: Seats on one machine: a pod that keeps others away takes all, one that is kept away takes one.
SEATS = 1 << 20


@dataclass(frozen=True)
class Kind:
    """A machine of one type in one lane."""

    lane: Lane
    target: int


@dataclass(frozen=True, eq=False)
class Shapes:
    """The problem. ``groups`` are positions of demands; ``needs`` and ``rooms`` have resources and then seats in their columns.

    ``opens`` says which kinds could hold one pod of a group, ``accepts`` which would have pods of a taste at all, ``tastes`` the
    taste of each group. ``prices`` are USD per hour with the fee of a machine. ``worths`` say what a pod of each group is worth,
    ``weights`` what one unit of each column is worth on each kind: how much of a machine's price a pod deserves there.
    """

    groups: tuple[tuple[int, ...], ...]
    counts: Floats
    needs: Floats
    kinds: tuple[Kind, ...]
    rooms: Floats
    prices: Floats
    opens: Flags
    tastes: Places
    accepts: Flags
    worths: Floats
    weights: Floats
    #: So many of the columns are resources.
    resources: int
    #: How many pods of each group one machine should take at most, so that no workload is too exposed.
    most: Floats

    def of(self, groups: Places) -> Shapes:
        """The same problem for some of the groups."""
        return replace(
            self,
            groups=tuple(self.groups[at] for at in groups.tolist()),
            counts=self.counts[groups],
            needs=self.needs[groups],
            opens=self.opens[:, groups],
            tastes=self.tastes[groups],
            worths=self.worths[groups],
            most=self.most[groups],
        )


@dataclass(frozen=True, eq=False)
class Ask:
    """What is to be packed: the demands at ``positions``, with the pods ``left`` of each and what it may be bought from now.

    ``worth`` says how machines are valued, ``within`` which types limits leave of each pool (None: all), ``strict`` whether
    minValues are law.
    """

    demands: Sequence[Demand]
    positions: Sequence[int]
    left: Sequence[int]
    allowed: Callable[[int], tuple[tuple[Option, TypeSet], ...]]
    within: Mapping[str, TypeSet | None]
    book: Book
    worth: Worth
    strict: bool


def shapes_of(ask: Ask) -> Shapes | None:
    """The problem of all that can be bought freely; None where there is none, or somebody fits nowhere.

    Pods that have to be beside others, and reservations, are no part of it: whatever it leaves has to be packed otherwise.
    """
    positions = [at for at in ask.positions if not ask.demands[at].near]
    options = {at: tuple(o for o, _ in ask.allowed(at) if o.reservation is None) for at in positions}
    positions = [at for at in positions if options[at]]
    if not positions:
        return None
    units = Units.of(
        [ask.demands[at].requests for at in positions],
        list({id(o.template.index): o.template.index for at in positions for o in options[at]}.values()),
    )
    tastes = Tastes(units, ask.worth.risk)
    tasting = [tastes.enter(options[at]) for at in positions]
    needs = units.needs([ask.demands[at].requests for at in positions])
    left = np.array([float(ask.left[at]) for at in positions])
    crowd_of, crowds = _crowds(needs, tasting, left)
    relaxation = relaxed(crowds, tastes.rows(), ask.worth.node_fee_per_hour, {})
    if relaxation is None:
        return None
    seats = _seats([ask.demands[at].rules for at in positions], left)
    kinds = _Kinds(ask, units, [(options[at], taste) for at, taste in zip(positions, tasting, strict=True)], left)
    merged = _merged(crowd_of, seats)
    first = [members_[0] for members_ in merged]
    crowd = crowd_of[first]
    group_needs = needs[first]
    accepts = kinds.accepts[:, [tasting[at] for at in first]]
    opens = accepts & (group_needs[None, :, :] <= kinds.rooms[:, None, :]).all(axis=2)
    weights, promise = _weights(kinds.rooms, kinds.prices, opens, relaxation, crowd)
    counts = np.array([left[list(members_)].sum() for members_ in merged])
    sensible = _sensible(counts, seats[first], relaxation.cost)
    kept = _promising(promise, kinds.prices, opens, sensible)
    columns = seats.shape[1]
    if not kept:
        return None
    shapes = Shapes(
        tuple(tuple(positions[at] for at in members_) for members_ in merged),
        counts,
        np.hstack([group_needs, seats[first]]),
        tuple(kinds.kinds[row] for row in kept),
        np.hstack([kinds.rooms[kept], np.full((len(kept), columns), float(SEATS))]),
        kinds.prices[kept],
        opens[kept],
        np.array([tasting[at] for at in first], dtype=np.intp),
        kinds.accepts[kept],
        relaxation.worths[crowd],
        np.hstack([weights[kept], np.zeros((len(kept), columns))]),
        needs.shape[1],
        np.array([float(sum(ask.demands[positions[at]].most_on_one for at in members_)) for members_ in merged]),
    )
    return shapes.of(np.flatnonzero(shapes.opens.any(axis=0)))


def _crowds(needs: Floats, tasting: Sequence[int], left: Floats) -> tuple[Places, Crowds]:
    """Demands that request the same and have one taste; which crowd each is of."""
    _keys, first, crowd_of = np.unique(
        np.column_stack([needs, np.array(tasting, dtype=np.float64)]), axis=0, return_index=True, return_inverse=True
    )
    counts: Floats = np.bincount(crowd_of.ravel(), weights=left).astype(np.float64)
    return crowd_of.ravel(), Crowds(counts, needs[first], [tasting[at] for at in first])


def _merged(crowd_of: Places, seats: Floats) -> list[list[int]]:
    """Places of demands that one group stands for, in the order of demands."""
    found: dict[tuple[int, bytes], list[int]] = {}
    for at, crowd in enumerate(crowd_of.tolist()):
        found.setdefault((crowd, seats[at].tobytes()), []).append(at)
    return list(found.values())


def _seats(rules: Sequence[Rules | None], left: Floats) -> Floats:
    """Seats each demand takes of every rule that is counted."""
    taken: list[Mapping[object, int]] = [_taken(rule) if rule is not None else {} for rule in rules]
    weights: dict[object, float] = {}
    for mapping, count in zip(taken, left.tolist(), strict=True):
        for rule, amount in mapping.items():
            weights[rule] = weights.get(rule, 0.0) + (count if amount > 1 else 0.0)
    ranked = sorted((rule for rule, weight in weights.items() if weight), key=lambda rule: -weights[rule])[:SEATINGS]
    column = {rule: at for at, rule in enumerate(ranked)}
    found = np.zeros((len(rules), len(ranked)))
    for at, mapping in enumerate(taken):
        for rule, amount in mapping.items():
            if rule in column:
                found[at, column[rule]] = amount
    return found


def _taken(rules: Rules) -> dict[object, int]:
    """How many of a machine's seats one pod takes, by rule."""
    found: dict[object, int] = dict.fromkeys(rules.repelled_by, 1)
    for constraint in rules.spared:
        found[constraint] = SEATS // max(1, constraint.term.max_skew)
    for constraint, itself in rules.spread:
        if itself:
            found[constraint] = SEATS // max(1, constraint.term.max_skew)
    for constraint, itself in rules.apart:
        if itself:
            found[constraint] = SEATS
    found.update(dict.fromkeys(rules.ports, SEATS))
    return found


class _Kinds:
    """Machines by lane and anchor. ``tasted``: options and number of the taste of every demand in question."""

    def __init__(self, ask: Ask, units: Units, tasted: Sequence[tuple[tuple[Option, ...], int]], left: Floats) -> None:
        self._ask = ask
        self.kinds: list[Kind] = []
        anchors: dict[Lane, dict[Requirements, tuple[Option, float]]] = {}
        self._by_taste: dict[int, dict[Lane, Option]] = {}
        for (options, taste), count in zip(tasted, left.tolist(), strict=True):
            for option in options:
                known = anchors.setdefault(option.lane, {})
                _, weight = known.get(option.requirements, (option, 0.0))
                known[option.requirements] = (option, weight + count)
            self._by_taste.setdefault(taste, {option.lane: option for option in options})
        rooms, prices, accepts = [], [], []
        for lane, known in anchors.items():
            ranked = sorted(known.values(), key=lambda item: -item[1])[:ANCHORS]
            room = units.rooms(ranked[0][0].template)
            for option, _ in ranked:
                types = self._efficient(option, room)
                accepted = self._accepted(lane, option)
                offering = option.template.index.prices(option.requirements).offering
                rooms.append(room[types])
                prices += [ask.worth.of_one(offering[position]) for position in types]
                accepts += [accepted] * len(types)
                self.kinds += [Kind(lane, position) for position in types]
        self.rooms = np.concatenate(rooms)
        self.prices = np.array(prices, dtype=np.float64)
        self.accepts = np.array(accepts, dtype=bool).reshape(len(prices), len(self._by_taste))

    def _efficient(self, option: Option, rooms: Floats) -> list[int]:
        """Types for machines that begin as this option asks, unbeaten by price and room; cheapest first."""
        template = option.template
        index, requirements = template.index, self._ask.book.same(option.requirements)
        types = self._ask.book.possible(template, requirements)
        limited = self._ask.within.get(template.name)
        if limited is not None:
            types &= limited
        ranked = self._ask.worth.ranked(index.prices(requirements))
        by_price = [at for at in ranked.cheapest_first(types) if (rooms[at] >= 0).all()]
        found = front(rooms, by_price)
        if not self._ask.strict or not any(item.min_values is not None for item in requirements.values()):
            return found
        return [
            at
            for at in found
            if option.diverse(types & set_of(np.flatnonzero((rooms >= rooms[at]).all(axis=1)).tolist()))
        ]

    def _accepted(self, lane: Lane, anchor: Option) -> list[bool]:
        """The tastes that add nothing to the anchor's requirements."""
        book, requirements = self._ask.book, self._ask.book.same(anchor.requirements)
        found = []
        for number in range(len(self._by_taste)):
            option = self._by_taste[number].get(lane)
            joined = book.joined(anchor.template, requirements, option) if option is not None else None
            found.append(joined is not None and joined[0] is requirements)
        return found


def _weights(rooms: Floats, prices: Floats, opens: Flags, relaxation: Relaxed, crowd: Places) -> tuple[Floats, Floats]:
    """For each kind what its columns are worth, and the most value per dollar it can promise.

    What the linear programme says of one kind holds of any other that is open to no more crowds: the least such promise counts.
    """
    known = relaxation.opens[:, crowd]
    strangers = opens.astype(np.float32) @ (~known).astype(np.float32).T > 0
    value = np.zeros((len(prices), len(known)))
    for column in range(rooms.shape[1]):
        value += rooms[:, column, None] * relaxation.weights[None, :, column]
    promise = np.where(strangers, np.inf, value / np.maximum(prices, _FREE)[:, None])
    best = promise.argmin(axis=1)
    plain = prices[:, None] / np.maximum(rooms, 1.0) / rooms.shape[1]
    unknown = ~np.isfinite(promise.min(axis=1, initial=np.inf))
    chosen = np.where(unknown[:, None], plain, relaxation.weights[best] + _SPECK * plain)
    return chosen, np.where(unknown, 1.0, promise.min(axis=1, initial=np.inf))


def _promising(promise: Floats, prices: Floats, opens: Flags, sensible: float) -> list[int]:
    """Kinds worth trying: of those that promise well and are not dearer than is sensible all sizes, small ones closer together.

    For every group at least a few it may use are among them.
    """
    if not len(promise):
        return []
    ranked = np.argsort(-promise, kind="stable")
    good = np.flatnonzero((prices <= sensible) & (promise >= (_GOOD if len(promise) > KINDS else 0.0)))
    chosen = set(_spread(good, prices))
    for group in range(opens.shape[1]):
        usable = ranked[opens[ranked, group]]
        if not chosen.intersection(usable.tolist()):
            chosen.update(usable[np.argsort(prices[usable], kind="stable")][:3].tolist(), usable[:3].tolist())
    return sorted(chosen, key=lambda row: (-promise[row], row))


def _spread(rows: Places, prices: Floats) -> list[int]:
    """At most `KINDS` of the rows, their prices in steps of about equal ratio."""
    ordered = rows[np.argsort(prices[rows], kind="stable")]
    if len(ordered) <= KINDS:
        return [int(row) for row in ordered]
    logs = np.log(np.maximum(prices[ordered], _FREE))
    marks = np.linspace(logs[0], logs[-1], KINDS)
    found = np.unique(np.searchsorted(logs, marks - 1e-12))
    return [int(row) for row in ordered[np.minimum(found, len(ordered) - 1)]]


def _sensible(counts: Floats, seats: Floats, cost: float) -> float:
    """USD per hour above which a machine is too large: rules by host ask for so many machines that they must be small."""
    machines = float((counts @ seats).max(initial=0.0)) / SEATS
    return _TIMES_AVERAGE * cost / machines if machines >= 1 else np.inf


#: Kinds that promise so much of their price are tried, smaller ones before others.
_GOOD = 0.8
#: Where rules by host ask for many machines: as many times the average price a machine may cost.
_TIMES_AVERAGE = 4.0
#: USD per hour that stands for no price at all where something is divided by it.
_FREE = 1e-6
#: How much of a plain share is mixed into what resources are worth, so that none is worth nothing.
_SPECK = 1e-3
