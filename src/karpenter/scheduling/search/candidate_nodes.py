"""Candidate nodes: what can be launched for a set of pods, with capacities, costs and the option signatures each node accepts.

A candidate is an instance type at the offerings (zone and capacity type) that the same signatures accept. Every signature that
accepts the offering and the type may be on that node, so pods that narrow different labels find the nodes they can share: those
that accept them all. Labels that neither type nor offering fixes, such as custom labels of a NodePool, split the signatures of a
channel first.

Alternative: a candidate for each set of requirements that some pods have together. Such sets double with every group; offerings
do not. Work grows with offering positions (zone and capacity type) times types, a dozen times a thousand, whatever the number of
pods. Candidates that another one beats are dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, compatible
from karpenter.scheduling.node_filling import FillCache, LaunchChannel
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.offering_rows import CpuSurplusRows, ResourceUnits, fitting

#: So many different requirements of a channel have candidates of their own, those of most pods first.
MAX_REQUIREMENTS_PER_CHANNEL = 64
#: This many different requirements on labels that no type and no offering fixes are kept separate, those of most pods first.
MAX_OPEN_PARTS = 12
#: So many rows are compared with each other, and with those of all cheaper ones that none beats, at once.
_ROWS_AT_ONCE = 128


@dataclass(frozen=True, eq=False)
class CandidateRows:
    """Candidate nodes of one channel: ``types`` are positions in its index, ``costs`` leave out CPU beyond the baseline."""

    capacities: FloatArray
    costs: FloatArray
    accepts: BoolArray
    types: IntArray

    def pick(self, kept: BoolArray | IntArray) -> CandidateRows:
        """Only these rows, in this order."""
        return CandidateRows(self.capacities[kept], self.costs[kept], self.accepts[kept], self.types[kept])

    @staticmethod
    def concatenate(parts: Sequence[CandidateRows]) -> CandidateRows:
        """All rows of the parts, in order."""
        return CandidateRows(
            np.concatenate([part.capacities for part in parts]),
            np.concatenate([part.costs for part in parts]),
            np.concatenate([part.accepts for part in parts]),
            np.concatenate([part.types for part in parts]),
        )


@dataclass(frozen=True)
class BinType:
    """A node of one type in one channel."""

    channel: LaunchChannel
    type_position: int


@dataclass(frozen=True, eq=False)
class CandidateRequest:
    """What candidates are for: how offerings count, which types limits leave (None: all), whether minValues hold.

    ``limits``: what is left of limits by NodePool, where a type that takes less of them is kept beside a cheaper one.
    """

    offering_cost: Callable[[Offering], float]
    types_within: Mapping[str, TypeSet | None]
    fill_cache: FillCache
    strict_min_values: bool
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _TypeMerits:
    """What makes a type better than another beside its capacity, a row for each type of a channel.

    ``limited``: its capacity of the resources that limits count.
    """

    surplus: CpuSurplusRows
    limited: FloatArray

    def of_rows(self, rows: CandidateRows) -> FloatArray:
        """Capacities and the rest of each row: one with more of everything costs no more to use."""
        return np.column_stack([self.surplus.pick(rows.types).merits(rows.capacities), -self.limited[rows.types]])


class CandidateNodes:
    """Candidate nodes of all channels, a row each. ``options``: by channel and number of their signature.

    ``costs`` are USD per hour with all CPU beyond the baseline that a node may hold (``surplus``), ``list_costs`` without. A
    burstable type is there twice: with all of its CPU, and with its baseline for capacity.
    """

    def __init__(
        self,
        request: CandidateRequest,
        units: ResourceUnits,
        options: Mapping[LaunchChannel, Mapping[int, LaunchOption]],
        pods_by_signature: FloatArray,
    ) -> None:
        self._request = request
        self._units = units
        self._pods = pods_by_signature
        self.bin_types: list[BinType] = []
        parts, surpluses = [], []
        for channel, own in options.items():
            surplus = units.surplus_rows(next(iter(own.values())).template)
            rows = self._with_baseline_rows(self._rows(own, surplus), surplus)
            parts.append(rows)
            surpluses.append(surplus.pick(rows.types))
            self.bin_types += [BinType(channel, at) for at in rows.types.tolist()]
        rows = CandidateRows.concatenate(parts)
        self.capacities, self.accepts = rows.capacities, rows.accepts
        self.surplus = CpuSurplusRows.joined(surpluses)
        self.list_costs = rows.costs
        self.costs = rows.costs.copy()
        if self.surplus.prices.any():
            beyond = np.maximum(self.capacities[:, units.cpu_column] - self.surplus.baselines, 0.0)
            self.costs += self.surplus.prices * beyond

    def _with_baseline_rows(self, rows: CandidateRows, surplus: CpuSurplusRows) -> CandidateRows:
        """The rows, then those of burstable types once more with no more CPU than their price includes."""
        burstable = rows.pick(np.flatnonzero(surplus.prices[rows.types]))
        if not len(burstable.types):
            return rows
        cpu = self._units.cpu_column
        burstable.capacities[:, cpu] = np.minimum(burstable.capacities[:, cpu], surplus.baselines[burstable.types])
        return CandidateRows.concatenate([rows, burstable])

    def _rows(self, options: Mapping[int, LaunchOption], surplus: CpuSurplusRows) -> CandidateRows:
        """The rows of one channel, for as many signatures as are kept separate, those of most pods first."""
        template = next(iter(options.values())).template
        capacities = self._units.capacity_rows(template)
        limited = self._request.types_within.get(template.name)
        if limited is not None:
            capacities[list(members(template.index.all_types & ~limited))] = -1.0
        options = self._most_asked(options)
        merits = _TypeMerits(surplus, self._limited_capacities(template))
        holders = self._holders(options, capacities, surplus)
        parts = []
        for together in _signatures_together(options, self._pods):
            own = {number: options[number] for number in together}
            rows = _rows_of_channel(own, len(self._pods), capacities, self._request.offering_cost, merits)
            # Before rows are compared: one that leaves enough types may be beaten by one that leaves too few.
            rows = rows if holders is None else holders.of(rows)
            parts.append(_undominated_rows(rows, merits))
        return _undominated_rows(CandidateRows.concatenate(parts), merits) if len(parts) > 1 else parts[0]

    def _holders(
        self, options: Mapping[int, LaunchOption], capacities: FloatArray, surplus: CpuSurplusRows
    ) -> _EnoughHolders | None:
        if not self._request.strict_min_values:
            return None
        if not any(has_min_values(option.requirements) for option in options.values()):
            return None
        return _EnoughHolders(options, capacities, surplus.prices > 0, self._request.fill_cache)

    def _limited_capacities(self, template: NodePoolTemplate) -> FloatArray:
        """What each type of the channel takes of the limits of its NodePool."""
        names = res.limited_resources(self._request.limits.get(template.name, ()))
        types = template.index.types
        if not names:
            return np.zeros((len(types), 0))
        taken = [[float(each.capacity.get(name, 0)) for name in names] for each in types]
        return np.array(taken).reshape(len(types), len(names))

    def _most_asked(self, options: Mapping[int, LaunchOption]) -> Mapping[int, LaunchOption]:
        weights: dict[Requirements, float] = {}
        for number, option in options.items():
            weights[option.requirements] = weights.get(option.requirements, 0.0) + float(self._pods[number])
        if len(weights) <= MAX_REQUIREMENTS_PER_CHANNEL:
            return options
        ranked = sorted(weights, key=lambda requirements: -weights[requirements])
        kept = frozenset(ranked[:MAX_REQUIREMENTS_PER_CHANNEL])
        return {number: option for number, option in options.items() if option.requirements in kept}


class _EnoughHolders:
    """Which candidate nodes leave as many types as minValues asks for, judged by the first signature that a node accepts.

    A type *holds* what another one holds if it has at least as much of everything. A claim for a node keeps the types that hold
    it, so it needs as many of them as minValues asks for, and costs what the cheapest of them costs.
    """

    def __init__(
        self,
        options: Mapping[int, LaunchOption],
        capacities: FloatArray,
        is_burstable: BoolArray,
        fill_cache: FillCache,
    ) -> None:
        self._options = options
        self._is_burstable = is_burstable
        self._fill_cache = fill_cache
        #: For each type, in its column, which types hold what it holds.
        self._holds = fitting(capacities, capacities)
        self._enough: dict[tuple[int, int], bool] = {}

    def of(self, rows: CandidateRows) -> CandidateRows:
        """The rows with enough holders, each at the price of the cheapest of them."""
        words = np.packbits(rows.accepts, axis=1)
        kept, costs = [], rows.costs.copy()
        for own in _alike(words):
            signature = int(rows.accepts[own[0]].argmax())
            if not has_min_values(self._options[signature].requirements):
                kept += own
                continue
            held = [row for row in own if self._are_enough(signature, int(rows.types[row]))]
            kept += held
            broader = np.flatnonzero(((words & words[own[0]]) == words[own[0]]).all(axis=1))
            costs[held] = self._least_costs(rows, np.array(held, dtype=np.intp), broader)
        return replace(rows, costs=costs).pick(np.array(sorted(kept), dtype=np.intp))

    def _are_enough(self, signature: int, position: int) -> bool:
        """Whether enough types hold what the type at this position holds."""
        known = self._enough.get((signature, position))
        if known is None:
            option = self._options[signature]
            possible = self._fill_cache.possible_types(option.template, self._fill_cache.canonical(option.requirements))
            types = possible & type_set_of(self._holds[:, position])
            known = self._enough[signature, position] = option.satisfies_min_values(types)
        return known

    def _least_costs(self, rows: CandidateRows, held: IntArray, holders: IntArray) -> FloatArray:
        """What each of the held rows costs as the cheapest of the holders.

        Burstable types keep their price, because CPU beyond their baseline costs extra.
        """
        costs: FloatArray = rows.costs[held]
        flat = holders[~self._is_burstable[rows.types[holders]]]
        if not len(flat):
            return costs
        flat = flat[np.argsort(rows.costs[flat], kind="stable")]
        holds = self._holds[np.ix_(rows.types[flat], rows.types[held])]
        cheapest = rows.costs[flat[holds.argmax(axis=0)]]
        is_lower = holds.any(axis=0) & ~self._is_burstable[rows.types[held]]
        return np.where(is_lower, np.minimum(costs, cheapest), costs)


def has_min_values(requirements: Requirements) -> bool:
    """Whether any of the requirements asks for a number of values."""
    return any(requirement.min_values is not None for requirement in requirements.values())


def _rows_of_channel(
    options: Mapping[int, LaunchOption],
    signature_count: int,
    capacities: FloatArray,
    cost: Callable[[Offering], float],
    merits: _TypeMerits,
) -> CandidateRows:
    """The candidate nodes of one channel. ``options``: by the number of their signature.

    ``capacities`` are those of the channel's types. Labels that neither types nor offerings fix are ignored.
    """
    template = next(iter(options.values())).template
    index = template.index
    numbers_by_requirements: dict[Requirements, list[int]] = {}
    for number, option in options.items():
        numbers_by_requirements.setdefault(option.requirements, []).append(number)
    signatures = _signature_rows(numbers_by_requirements.values(), signature_count)
    matching = np.array(
        [
            _membership(template.types & index.matching(requirements), len(capacities))
            for requirements in numbers_by_requirements
        ]
    )
    parts = [_no_rows(capacities, signature_count)]
    for accepting, offerings in _offerings_by_requirements(list(numbers_by_requirements), index).items():
        rows = list(accepting)
        prices = index.cheapest_of_offerings(offerings)
        types = np.array(prices.order, dtype=np.intp)
        costs = (
            np.array([cost(prices.cheapest_offering[at]) for at in prices.order], dtype=np.float64)
            + merits.surplus.fixed[types]
        )
        accepts = matching[rows][:, types].T.astype(np.float32) @ signatures[rows].astype(np.float32) > 0
        kept = accepts.any(axis=1) & (capacities[types] >= 0).all(axis=1)
        parts.append(CandidateRows(capacities[types[kept]], costs[kept], accepts[kept], types[kept]))
    return CandidateRows.concatenate(parts)


def _signature_rows(numbers: Iterable[Sequence[int]], signature_count: int) -> BoolArray:
    """A row for each sequence of signature numbers, saying which are in it."""
    sequences = list(numbers)
    rows: BoolArray = np.zeros((len(sequences), signature_count), dtype=bool)
    for row, own in enumerate(sequences):
        rows[row, own] = True
    return rows


def _offerings_by_requirements(
    requirements_in_use: Sequence[Requirements], index: TypeIndex
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Positions of offerings by the places of the requirements that accept them."""
    accepting: dict[int, list[int]] = {}
    for place, requirements in enumerate(requirements_in_use):
        for position in index.accepted_offerings(requirements):
            accepting.setdefault(position, []).append(place)
    offerings_by_places: dict[tuple[int, ...], list[int]] = {}
    for position in sorted(accepting):
        offerings_by_places.setdefault(tuple(accepting[position]), []).append(position)
    return {places: tuple(positions) for places, positions in offerings_by_places.items()}


def type_set_of(is_member: BoolArray) -> TypeSet:
    """The positions at which it is true, as a set."""
    return int.from_bytes(np.packbits(is_member, bitorder="little").tobytes(), "little")


def _membership(types: TypeSet, count: int) -> BoolArray:
    """For each of so many positions whether the set has it."""
    packed = np.frombuffer(types.to_bytes(count // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(bool)


def _no_rows(capacities: FloatArray, signature_count: int) -> CandidateRows:
    none = np.zeros(0, dtype=np.intp)
    accepts: BoolArray = np.zeros((0, signature_count), dtype=bool)
    return CandidateRows(np.zeros((0, capacities.shape[1])), np.zeros(0), accepts, none)


def _undominated_rows(rows: CandidateRows, type_merits: _TypeMerits) -> CandidateRows:
    """Rows no other row beats: none as cheap accepts the same signatures and has as much capacity of everything.

    First among rows that accept the same, which are the most, then among those that are left.
    """
    words = np.packbits(rows.accepts, axis=1)
    merits = type_merits.of_rows(rows)
    alike = _alike(words)
    kept = [row for rows_alike in alike for row in _undominated(rows, merits, words, rows_alike)]
    if _may_beat_others(words[[own[0] for own in alike]]):
        kept = _undominated(rows, merits, words, kept)
    return rows.pick(np.array(sorted(kept), dtype=np.intp))


def _alike(words: NDArray[np.uint8]) -> list[list[int]]:
    """The rows that accept the same signatures, which are in bits."""
    alike: dict[bytes, list[int]] = {}
    for row in range(len(words)):
        alike.setdefault(words[row].tobytes(), []).append(row)
    return list(alike.values())


def _may_beat_others(words: NDArray[np.uint8]) -> bool:
    """Whether some of these different sets of signatures has all that another has, in bits: zones of their own have not."""
    covers: BoolArray = ~np.eye(len(words), dtype=bool)
    for word in range(words.shape[1]):
        covers &= (~words[:, None, word] & words[None, :, word]) == 0
    return bool(covers.any())


def _undominated(rows: CandidateRows, merits: FloatArray, words: NDArray[np.uint8], among: Sequence[int]) -> list[int]:
    """Of these rows those that no cheaper one beats, and none at the same price that is larger or accepts more."""
    at = np.array(sorted(among), dtype=np.intp)
    sizes, breadths = rows.capacities[at].sum(axis=1), rows.accepts[at].sum(axis=1)
    at = at[np.lexsort((-breadths, -sizes, rows.costs[at]))]
    merits, words = merits[at], words[at]
    kept: IntArray = np.zeros(0, dtype=np.intp)
    for begin in range(0, len(at), _ROWS_AT_ONCE):
        # What is beaten by a row that is beaten itself is beaten by a row that is kept.
        block = np.arange(begin, min(len(at), begin + _ROWS_AT_ONCE))
        others = np.concatenate([kept, block])
        covers = others[:, None] < block[None, :]
        for column in range(merits.shape[1]):
            covers &= merits[others, None, column] >= merits[None, block, column]
        for word in range(words.shape[1]):
            covers &= (~words[others, None, word] & words[None, block, word]) == 0
        kept = np.concatenate([kept, block[~covers.any(axis=0)]])
    remaining: list[int] = at[kept].tolist()
    return remaining


def _signatures_together(options: Mapping[int, LaunchOption], left: FloatArray) -> list[list[int]]:
    """Numbers of signatures that can share nodes as far as labels go that no type and no offering fixes, in sets."""
    index = next(iter(options.values())).template.index
    open_part = {
        number: option.requirements.without(tuple(index.fixed_label_keys)) for number, option in options.items()
    }
    weights: dict[Requirements, float] = {}
    for number, part in open_part.items():
        weights[part] = weights.get(part, 0.0) + float(left[number])
    if len(weights) == 1:
        return [list(options)]
    parts = sorted(weights, key=lambda part: -weights[part])[:MAX_OPEN_PARTS]
    for part in tuple(parts):
        for other in tuple(parts):
            joined = part.intersect(other)
            if len(parts) < MAX_OPEN_PARTS and joined not in weights and compatible(part, other, index.well_known):
                weights[joined] = 0.0
                parts.append(joined)
    sets = [
        [
            number
            for number, part in open_part.items()
            if compatible(begun, part, index.well_known) and begun.intersect(part) == begun
        ]
        for begun in parts
    ]
    return [together for together in sets if together]
