"""What is for sale, as numbers: rows of nodes with their capacity, their price and the option signatures that accept them.

An *option signature* is what a demand requires of nodes in every launch channel; demands of one signature with equal requests
are one item type for the linear program. Amounts are whole numbers stored as floats, small enough (`_MAX_AMOUNT`) for
every sum to be exact, so that no order of adding changes a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources
from karpenter.scheduling.objective import LEAST_PRICE_PER_HOUR
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.search.distinct_rows import distinct_rows
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray

#: Amounts are divided until none is larger; sums over a node then stay far below 2**53.
_MAX_AMOUNT = 1 << 40
#: With more different requirements in one channel, all of them get the cheapest price.
_MAX_REQUIREMENTS_PER_CHANNEL = 24
#: So many rows are compared with each other, and with those of all cheaper ones that none beats, at once.
_ROWS_AT_ONCE = 128


@dataclass(frozen=True, eq=False)
class ResourceUnits:
    """The resources that matter and the unit each is counted in."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def for_requests(requests: Sequence[Resources], indexes: Sequence[TypeIndex]) -> ResourceUnits:
        """Resources that some pod requests, in units fine enough for exact sums."""
        names = sorted({name for amounts in requests for name, amount in amounts.items() if amount > 0})
        most = [
            max((index.max_allocatable(index.all_types).get(name, 0) for index in indexes), default=0) for name in names
        ]
        return ResourceUnits(tuple(names), tuple(amount // _MAX_AMOUNT + 1 for amount in most))

    def request_rows(self, requests: Sequence[Resources]) -> FloatArray:
        """Requests, a row each, rounded up."""
        rows = [
            [-(-amounts.get(name, 0) // size) for name, size in zip(self.names, self.sizes, strict=True)]
            for amounts in requests
        ]
        return np.array(rows, dtype=np.float64).reshape(len(requests), len(self.names))

    def capacity_rows(self, template: NodePoolTemplate) -> FloatArray:
        """What each type of the template leaves to pods, a row each, rounded down; nothing where DaemonSets do not fit."""
        amounts = template.index.allocatable_units(tuple(zip(self.names, self.sizes, strict=True)))
        rows = np.array(amounts).reshape(len(template.index.types), len(self.names))
        for group in template.daemons:
            taken = [-(-group.overhead.get(n, 0) // s) for n, s in zip(self.names, self.sizes, strict=True)]
            if any(taken):
                rows[list(members(group.types))] -= np.array(taken, dtype=np.float64)
        return rows

    @cached_property
    def cpu_column(self) -> int:
        """The column of CPU, -1 if no pod requests any."""
        return self.names.index(res.CPU) if res.CPU in self.names else -1

    def surplus_rows(self, template: NodePoolTemplate) -> CpuSurplusRows:
        """What CPU beyond the baseline costs on each type of the template."""
        rows = CpuSurplusRows.none(len(template.index.types))
        for position, surplus in template.cpu_surpluses.by_position.items():
            rows.fixed[position] = surplus.price_per_hour({})
            if self.cpu_column >= 0 and surplus.price_per_vcpu_hour:
                size = self.sizes[self.cpu_column]
                rows.baselines[position] = max(0, surplus.pod_baseline_millis) // size
                rows.prices[position] = surplus.price_per_vcpu_hour * size / res.ONE_UNIT
        return rows


@dataclass(frozen=True, eq=False)
class CpuSurplusRows:
    """Beside rows of nodes: the CPU that pods get for the price, infinite where it is all, and USD per hour for each unit beyond.

    ``fixed``: USD per hour for what DaemonSets alone request beyond the baseline.
    """

    baselines: FloatArray
    prices: FloatArray
    fixed: FloatArray

    @staticmethod
    def none(number: int) -> CpuSurplusRows:
        """So many nodes that give all of their CPU for their price."""
        return CpuSurplusRows(np.full(number, np.inf), np.zeros(number), np.zeros(number))

    def pick(self, kept: BoolArray | IntArray) -> CpuSurplusRows:
        """Only these rows, in this order."""
        return CpuSurplusRows(self.baselines[kept], self.prices[kept], self.fixed[kept])

    @staticmethod
    def joined(parts: Sequence[CpuSurplusRows]) -> CpuSurplusRows:
        """The rows of all parts."""
        return CpuSurplusRows(
            np.concatenate([part.baselines for part in parts]),
            np.concatenate([part.prices for part in parts]),
            np.concatenate([part.fixed for part in parts]),
        )

    def merits(self, capacities: FloatArray) -> FloatArray:
        """Capacities and what else makes one node better than another: a row with more of everything costs no more to use."""
        return np.column_stack([capacities, self.baselines, -self.prices])


@dataclass(frozen=True, eq=False)
class OfferingRows:
    """Candidate nodes, a row each: what one holds, what it costs in USD per hour, and which signatures may use it.

    ``reservation`` numbers the reservation a row draws from, -1 for what is launched freely. ``cpu_column`` is the column of CPU,
    -1 if no pod requests any; ``surplus`` says how much of it the price includes.
    """

    capacities: FloatArray
    prices: FloatArray
    accepts: BoolArray
    reservation: FloatArray
    surplus: CpuSurplusRows
    cpu_column: int

    def pick(self, kept: BoolArray | IntArray) -> OfferingRows:
        """Only these rows, in this order."""
        return OfferingRows(
            self.capacities[kept],
            self.prices[kept],
            self.accepts[kept],
            self.reservation[kept],
            self.surplus.pick(kept),
            self.cpu_column,
        )


#: What one demand requires in every launch channel: template, reservation and the requirements a node for it alone has.
OptionSignature = tuple[tuple[int, str | None, Requirements], ...]


def option_signature(options: Sequence[LaunchOption]) -> OptionSignature:
    """What decides which nodes a demand may use, apart from its requests."""
    return tuple((id(option.template), option.reservation, option.requirements) for option in options)


class OptionSignatures:
    """The option signatures of a decision, numbered, and the rows all of them may choose from, in these ``units``.

    ``surcharge``: USD per hour an offering counts beside its price.
    """

    def __init__(self, units: ResourceUnits, surcharge: Callable[[Offering], float] = lambda _: 0.0) -> None:
        self.units = units
        self._surcharge = surcharge
        self.number_of: dict[OptionSignature, int] = {}
        self._options: list[tuple[LaunchOption, ...]] = []

    def add(self, options: tuple[LaunchOption, ...]) -> int:
        """The number of the signature of a demand with these options."""
        signature = option_signature(options)
        if signature not in self.number_of:
            self.number_of[signature] = len(self._options)
            self._options.append(options)
        return self.number_of[signature]

    @cached_property
    def reservations(self) -> tuple[str, ...]:
        """Reservations that some demand may draw from, by number."""
        return tuple(sorted({o.reservation for options in self._options for o in options if o.reservation is not None}))

    def rows(self) -> OfferingRows:
        """Every node that may be launched, at every price it may have for some demand, without dominated ones."""
        channels: dict[tuple[int, str | None], list[tuple[int, LaunchOption]]] = {}
        for number, options in enumerate(self._options):
            for option in options:
                channels.setdefault((id(option.template), option.reservation), []).append((number, option))
        rooms: dict[int, FloatArray] = {}
        parts = []
        for (template, reservation), asking in channels.items():
            if template not in rooms:
                rooms[template] = self.units.capacity_rows(asking[0][1].template)
            mark = -1 if reservation is None else self.reservations.index(reservation)
            parts.append(self._rows_of_channel(asking, rooms[template], mark))
        return undominated_rows(
            OfferingRows(
                np.concatenate([part.capacities for part in parts]),
                np.concatenate([part.prices for part in parts]),
                np.concatenate([part.accepts for part in parts]),
                np.concatenate([part.reservation for part in parts]),
                CpuSurplusRows.joined([part.surplus for part in parts]),
                self.units.cpu_column,
            )
        )

    def _rows_of_channel(
        self, constraints: Sequence[tuple[int, LaunchOption]], capacities: FloatArray, mark: int
    ) -> OfferingRows:
        groups_by_requirements: dict[Requirements, list[int]] = {}
        option_by_requirements: dict[Requirements, LaunchOption] = {}
        for number, option in constraints:
            groups_by_requirements.setdefault(option.requirements, []).append(number)
            option_by_requirements[option.requirements] = option
        surplus = self.units.surplus_rows(constraints[0][1].template)
        prices = (
            np.array([self._prices(option, len(capacities)) for option in option_by_requirements.values()])
            + surplus.fixed
        )
        groups_of_row: BoolArray = np.zeros((len(groups_by_requirements), len(self._options)), dtype=bool)
        for row, numbers in enumerate(groups_by_requirements.values()):
            groups_of_row[row, numbers] = True
        if len(groups_by_requirements) > _MAX_REQUIREMENTS_PER_CHANNEL:
            prices = prices.min(axis=0)[None, :]
            groups_of_row = np.atleast_2d(groups_of_row.any(axis=0))
        row_numbers, at = np.nonzero(np.isfinite(prices))
        own_price = prices[row_numbers, at]
        # A node at this price may be used by all whose own cheapest price for the type is no higher.
        open_to = prices[:, at] <= own_price
        accepts = (open_to.T.astype(np.float32) @ groups_of_row.astype(np.float32)) > 0
        first, _ = distinct_rows(np.column_stack([at, own_price]))
        kept = first[(capacities[at[first]] >= 0).all(axis=1)]
        return OfferingRows(
            capacities[at[kept]],
            own_price[kept],
            accepts[kept],
            np.full(len(kept), float(mark)),
            surplus.pick(at[kept]),
            self.units.cpu_column,
        )

    def _prices(self, option: LaunchOption, number: int) -> FloatArray:
        """USD per hour of every type for this option alone, infinite where it cannot be had."""
        index = option.template.index
        prices = index.prices(option.requirements)
        possible = option.template.types & index.matching(option.requirements) & prices.available_types
        full = np.full(number, np.inf)
        for position in members(possible):
            offering = prices.cheapest_offering[position]
            full[position] = offering.price_per_hour + self._surcharge(offering)
        return full


def undominated_rows(rows: OfferingRows) -> OfferingRows:
    """Rows no other row beats: none as cheap, open to the same signatures, has as much room of everything for its price."""
    rows_by_acceptance: dict[tuple[bytes, float], dict[bytes, int]] = {}
    order = np.lexsort((-rows.capacities.sum(axis=1), rows.prices))
    merits = rows.surplus.merits(rows.capacities)
    for row in order.tolist():
        alike = rows_by_acceptance.setdefault((rows.accepts[row].tobytes(), float(rows.reservation[row])), {})
        alike.setdefault(merits[row].tobytes(), row)  # of equal merits the cheapest: NodePools share their types
    kept = [row for alike in rows_by_acceptance.values() for row in pareto_front_rows(merits, [*alike.values()])]
    return rows.pick(np.array(sorted(kept), dtype=np.intp))


def pareto_front_rows(capacities: FloatArray, by_price: Sequence[int]) -> list[int]:
    """Of rows, cheapest first, those with more of something than every cheaper one."""
    ordered = capacities[np.array(by_price, dtype=np.intp)]
    kept: IntArray = np.zeros(0, dtype=np.intp)
    for begin in range(0, len(ordered), _ROWS_AT_ONCE):
        # What is beaten by a row that is beaten itself is beaten by a row that is kept.
        block = np.arange(begin, min(len(ordered), begin + _ROWS_AT_ONCE))
        others = np.concatenate([kept, block])
        covers = others[:, None] < block[None, :]
        for column in range(ordered.shape[1]):
            covers &= ordered[others, None, column] >= ordered[None, block, column]
        kept = np.concatenate([kept, block[~covers.any(axis=0)]])
    return [by_price[place] for place in kept.tolist()]


def fitting(requests: FloatArray, capacities: FloatArray) -> BoolArray:
    """Which rows of capacities hold which rows of requests, column by column: many times faster than all columns at once."""
    fits: BoolArray = np.ones((len(capacities), len(requests)), dtype=bool)
    for column in range(requests.shape[1]):
        fits &= requests[None, :, column] <= capacities[:, None, column]
    return fits


def undominated_per_dollar(rows: OfferingRows, opens: BoolArray) -> BoolArray:
    """Rows worth using in parts: no other has more of everything for each dollar and is open to all the same item types."""
    per_dollar = 1 / np.maximum(rows.prices, LEAST_PRICE_PER_HOUR)[:, None]
    worth = rows.surplus.merits(rows.capacities)
    worth[:, :-1] *= per_dollar
    better = fitting(worth, worth)
    closed = opens.astype(np.float32) @ (~opens).astype(np.float32).T
    better &= closed.T == 0  # better[j, k]: j has more per dollar and is open to all that k is open to
    better &= rows.reservation[:, None] == rows.reservation[None, :]
    alike = better & better.T
    first = np.tril(alike, -1).any(axis=1)  # of equals the first stays
    beaten: BoolArray = np.asarray((better & ~alike).any(axis=0) | first)
    kept: BoolArray = ~beaten
    return kept
