"""What is for sale, as numbers: rows of machines with their room, their price and who may use them.

A *taste* is what a class asks of nodes in every lane it may buy from; classes of one taste that request the same are one crowd
for the linear programme. Amounts are whole numbers stored as floats, small enough (`_LARGEST`) for every sum to be exact, so
that no order of adding changes a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from karpenter.catalog.index import TypeIndex, members
from karpenter.catalog.types import Offering
from karpenter.decide.provision.demand import Option
from karpenter.decide.provision.search.linear import Flags, Floats, Places
from karpenter.decide.provision.templates import Template
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources

#: Amounts are divided until none is larger; sums over a machine then stay far below 2**53.
_LARGEST = 1 << 40
#: With more different wishes in one lane prices are not told apart any more: the cheapest holds for all.
_TOLD_APART = 24
#: USD per hour that stands for no price at all where something is divided by it.
_FREE = 1e-6


@dataclass(frozen=True, eq=False)
class Units:
    """The resources that matter and the unit each is counted in."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(requests: Sequence[Resources], indexes: Sequence[TypeIndex]) -> Units:
        """Resources somebody requests, in units fine enough for exact sums."""
        names = sorted({name for amounts in requests for name, amount in amounts.items() if amount > 0})
        most = [max((index.most(index.everything).get(name, 0) for index in indexes), default=0) for name in names]
        return Units(tuple(names), tuple(amount // _LARGEST + 1 for amount in most))

    def needs(self, requests: Sequence[Resources]) -> Floats:
        """Requests, a row each, rounded up."""
        rows = [
            [-(-amounts.get(name, 0) // size) for name, size in zip(self.names, self.sizes, strict=True)]
            for amounts in requests
        ]
        return np.array(rows, dtype=np.float64).reshape(len(requests), len(self.names))

    def rooms(self, template: Template) -> Floats:
        """What each type of the template leaves to pods, a row each, rounded down; nothing where DaemonSets do not fit."""
        rows = np.array(
            [
                [item.allocatable.get(name, 0) // size for name, size in zip(self.names, self.sizes, strict=True)]
                for item in template.index.types
            ],
            dtype=np.float64,
        ).reshape(len(template.index.types), len(self.names))
        for group in template.daemons:
            taken = [-(-group.overhead.get(n, 0) // s) for n, s in zip(self.names, self.sizes, strict=True)]
            if any(taken):
                rows[list(members(group.types))] -= np.array(taken, dtype=np.float64)
        return rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Machines of one kind each: what one holds, what it costs in USD per hour, and which tastes may use it.

    ``reservation`` numbers the reservation a row draws from, -1 for what is bought freely.
    """

    rooms: Floats
    prices: Floats
    accepts: Flags
    reservation: Floats

    def pick(self, kept: Flags | Places) -> Rows:
        """Only these rows, in this order."""
        return Rows(self.rooms[kept], self.prices[kept], self.accepts[kept], self.reservation[kept])


#: What one class asks in every lane it may buy from: template, reservation and the requirements a machine for it alone has.
Taste = tuple[tuple[int, str | None, Requirements], ...]


def taste_of(options: Sequence[Option]) -> Taste:
    """What decides where a class may go, its size aside."""
    return tuple((id(option.template), option.reservation, option.requirements) for option in options)


class Tastes:
    """The tastes of a decision, numbered, and the rows all of them may choose from. ``units`` as for `Wares`.

    ``surcharge``: USD per hour an offering counts beside its price.
    """

    def __init__(self, units: Units, surcharge: Callable[[Offering], float] = lambda _: 0.0) -> None:
        self.units = units
        self._surcharge = surcharge
        self.number: dict[Taste, int] = {}
        self._options: list[tuple[Option, ...]] = []

    def enter(self, options: tuple[Option, ...]) -> int:
        """The number of a class' taste."""
        taste = taste_of(options)
        if taste not in self.number:
            self.number[taste] = len(self._options)
            self._options.append(options)
        return self.number[taste]

    @cached_property
    def reservations(self) -> tuple[str, ...]:
        """Reservations somebody may draw from, by number."""
        return tuple(sorted({o.reservation for options in self._options for o in options if o.reservation is not None}))

    def rows(self) -> Rows:
        """Every machine that may be bought, at every price it may have for somebody, those beaten by others left out."""
        lanes: dict[tuple[int, str | None], list[tuple[int, Option]]] = {}
        for number, options in enumerate(self._options):
            for option in options:
                lanes.setdefault((id(option.template), option.reservation), []).append((number, option))
        rooms: dict[int, Floats] = {}
        parts = []
        for (template, reservation), asking in lanes.items():
            if template not in rooms:
                rooms[template] = self.units.rooms(asking[0][1].template)
            mark = -1 if reservation is None else self.reservations.index(reservation)
            parts.append(self._lane(asking, rooms[template], mark))
        return unbeaten(
            Rows(
                np.concatenate([part.rooms for part in parts]),
                np.concatenate([part.prices for part in parts]),
                np.concatenate([part.accepts for part in parts]),
                np.concatenate([part.reservation for part in parts]),
            )
        )

    def _lane(self, asking: Sequence[tuple[int, Option]], rooms: Floats, mark: int) -> Rows:
        wishes: dict[Requirements, list[int]] = {}
        by_wish: dict[Requirements, Option] = {}
        for number, option in asking:
            wishes.setdefault(option.requirements, []).append(number)
            by_wish[option.requirements] = option
        prices = np.array([self._prices(option, len(rooms)) for option in by_wish.values()])
        of_wish: Flags = np.zeros((len(wishes), len(self._options)), dtype=bool)
        for row, numbers in enumerate(wishes.values()):
            of_wish[row, numbers] = True
        if len(wishes) > _TOLD_APART:
            prices = prices.min(axis=0)[None, :]
            of_wish = np.atleast_2d(of_wish.any(axis=0))
        wish, at = np.nonzero(np.isfinite(prices))
        asked = prices[wish, at]
        # A machine at this price may be used by all whose own cheapest price for the type is no higher.
        open_to = prices[:, at] <= asked
        accepts = (open_to.T.astype(np.float32) @ of_wish.astype(np.float32)) > 0
        _, first = np.unique(np.column_stack([at, asked]), axis=0, return_index=True)
        kept = first[(rooms[at[first]] >= 0).all(axis=1)]
        return Rows(rooms[at[kept]], asked[kept], accepts[kept], np.full(len(kept), float(mark)))

    def _prices(self, option: Option, number: int) -> Floats:
        """USD per hour of every type for this option alone, infinite where it cannot be had."""
        index = option.template.index
        prices = index.prices(option.requirements)
        possible = option.template.types & index.matching(option.requirements) & prices.buyable
        found = np.full(number, np.inf)
        for position in members(possible):
            offering = prices.offering[position]
            found[position] = offering.price_per_hour + self._surcharge(offering)
        return found


def unbeaten(rows: Rows) -> Rows:
    """Rows no other row beats: none as cheap, open to the same tastes, has as much room of everything."""
    classes: dict[tuple[bytes, float], list[int]] = {}
    order = np.lexsort((-rows.rooms.sum(axis=1), rows.prices))
    for row in order.tolist():
        classes.setdefault((rows.accepts[row].tobytes(), float(rows.reservation[row])), []).append(row)
    kept = [row for members_ in classes.values() for row in front(rows.rooms, members_)]
    return rows.pick(np.array(sorted(kept), dtype=np.intp))


def front(rooms: Floats, by_price: Sequence[int]) -> list[int]:
    """Of rows, cheapest first, those with more of something than every cheaper one."""
    kept: list[int] = []
    held = np.zeros((len(by_price), rooms.shape[1]))
    for row in by_price:
        if not (held[: len(kept)] >= rooms[row]).all(axis=1).any():
            held[len(kept)] = rooms[row]
            kept.append(row)
    return kept


def by_price(rows: Rows, opens: Flags) -> Flags:
    """Rows worth using in parts: no other has more of everything for each dollar and is open to all the same crowds."""
    worth = rows.rooms / np.maximum(rows.prices, _FREE)[:, None]
    better = (worth[:, None, :] >= worth[None, :, :]).all(axis=2)
    closed = opens.astype(np.float32) @ (~opens).astype(np.float32).T
    better &= closed.T == 0  # better[j, k]: j has more per dollar and is open to whoever k is open to
    better &= rows.reservation[:, None] == rows.reservation[None, :]
    alike = better & better.T
    first = np.tril(alike, -1).any(axis=1)  # of equals the first stays
    beaten = (better & ~alike).any(axis=0) | first
    kept: Flags = ~beaten
    return kept
