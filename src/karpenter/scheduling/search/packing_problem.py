"""The packing problem as arrays: groups of pods, kinds of nodes they may be put into, and first prices for both.

What makes two classes one group is all that filling a node asks about: requests, taste, seats. *Seats* are what rules by host
leave on one node, counted like a resource: a pod that must be alone of its sort takes all of them, one that others only keep
away from takes a crumb. Rules too odd for that are left out; whoever carries a pattern out looks at all of them again.

A kind of node keeps to one lane and begins with requirements some class has (its *anchor*); it is open to whoever adds nothing
to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karpenter.instancetypes.type_sets import TypeSet, type_set
from karpenter.model.requirements import Requirements
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.node_filling import FillCache, PurchaseChannel
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.purchase_options import PurchaseOption
from karpenter.scheduling.search.linear_program import BoolArray, FloatArray, IntArray
from karpenter.scheduling.search.lower_bound import FractionalBound, ItemTypes, fractional_bound
from karpenter.scheduling.search.offering_rows import (
    CpuSurplusRows,
    OptionSignatures,
    ResourceUnits,
    pareto_front_rows,
)
from karpenter.scheduling.topology.host_limits import HostLimits

#: Kinds of nodes tried at most; the rest are worse by value and price.
MAX_BIN_TYPES = 128
#: Sets of requirements a lane's nodes may begin with, those of most pods first.
MAX_ANCHORS = 12
#: Rules by host that are counted as seats, those of most pods first.
MAX_HOST_LIMIT_COLUMNS = 16
#: Seats on one node: a pod that keeps others away takes all, one that is kept away takes one.
HOST_LIMIT_CAPACITY = 1 << 20


@dataclass(frozen=True)
class BinType:
    """A node of one type in one lane."""

    channel: PurchaseChannel
    type_position: int


@dataclass(frozen=True, eq=False)
class PackingProblem:
    """The problem. ``groups`` are positions of demands; ``needs`` and ``rooms`` have resources and then seats in their columns.

    ``opens`` says which kinds could hold one pod of a group, ``accepts`` which would have pods of a taste at all, ``tastes`` the
    taste of each group. ``prices`` are USD per hour with the fee of a node and all CPU beyond the baseline that it may hold
    (``surplus``): a burstable type is there twice, with its baseline for capacity and with all of its CPU. ``pod_values`` say
    what a pod of each group is worth, ``resource_values`` what one unit of each column is worth on each kind: how much of a
    node's price a pod deserves there.
    """

    groups: tuple[tuple[int, ...], ...]
    counts: FloatArray
    requests: FloatArray
    bin_types: tuple[BinType, ...]
    capacities: FloatArray
    prices: FloatArray
    admits: BoolArray
    signatures: IntArray
    accepts: BoolArray
    pod_values: FloatArray
    resource_values: FloatArray
    #: So many of the columns are resources.
    resource_columns: int
    #: How many pods of each group one node should take at most, so that no workload is too exposed.
    max_per_node: FloatArray
    surplus: CpuSurplusRows
    cpu_column: int

    def prices_with(self, requests: FloatArray) -> FloatArray:
        """USD per hour of every node if pods request so much on it, a row for each row of requests."""
        burstable = np.flatnonzero(self.surplus.prices)
        prices = np.repeat(self.prices[None, :], len(requests), axis=0)
        if len(burstable):
            unused = self.capacities[None, burstable, self.cpu_column] - np.maximum(
                requests[:, self.cpu_column, None], self.surplus.baselines[None, burstable]
            )
            prices[:, burstable] -= self.surplus.prices[burstable] * np.maximum(unused, 0.0)
        return prices

    def subset(self, groups: IntArray) -> PackingProblem:
        """The same problem for some of the groups."""
        return replace(
            self,
            groups=tuple(self.groups[at] for at in groups.tolist()),
            counts=self.counts[groups],
            requests=self.requests[groups],
            admits=self.admits[:, groups],
            signatures=self.signatures[groups],
            pod_values=self.pod_values[groups],
            max_per_node=self.max_per_node[groups],
        )


@dataclass(frozen=True, eq=False)
class PackingRequest:
    """What is to be packed: the demands at ``positions``, with the pods ``left`` of each and what it may be bought from now.

    ``worth`` says how nodes are valued, ``within`` which types limits leave of each pool (None: all), ``strict`` whether
    minValues are law.
    """

    demands: Sequence[Demand]
    positions: Sequence[int]
    left: Sequence[int]
    allowed: Callable[[int], tuple[tuple[PurchaseOption, TypeSet], ...]]
    types_within: Mapping[str, TypeSet | None]
    fill_cache: FillCache
    objective: Objective
    strict_min_values: bool


def packing_problem(request: PackingRequest) -> PackingProblem | None:
    """The problem of all that can be bought freely; None where there is none, or somebody fits nowhere.

    Pods that have to be beside others, and reservations, are no part of it: whatever it leaves has to be packed otherwise.
    """
    positions = [at for at in request.positions if not request.demands[at].host_affinity]
    options = {at: tuple(o for o, _ in request.allowed(at) if o.reservation is None) for at in positions}
    positions = [at for at in positions if options[at]]
    if not positions:
        return None
    units = ResourceUnits.for_requests(
        [request.demands[at].requests for at in positions],
        list({id(o.template.index): o.template.index for at in positions for o in options[at]}.values()),
    )
    tastes = OptionSignatures(units, request.objective.interruption_cost)
    tasting = [tastes.add(options[at]) for at in positions]
    needs = units.request_rows([request.demands[at].requests for at in positions])
    left = np.array([float(request.left[at]) for at in positions])
    crowd_of, crowds = _item_types(needs, tasting, left)
    relaxation = fractional_bound(crowds, tastes.rows(), request.objective.node_fee_per_hour, {})
    if relaxation is None:
        return None
    seats = _host_limit_columns([request.demands[at].host_limits for at in positions], left)
    kinds = _BinTypes(
        request, units, [(options[at], taste) for at, taste in zip(positions, tasting, strict=True)], left
    )
    merged = _merged_groups(crowd_of, seats)
    first = [members_[0] for members_ in merged]
    crowd = crowd_of[first]
    group_needs = needs[first]
    accepts = kinds.accepts[:, [tasting[at] for at in first]]
    opens = accepts & (group_needs[None, :, :] <= kinds.capacities[:, None, :]).all(axis=2)
    weights, promise = _resource_values(kinds.capacities, kinds.prices, opens, relaxation, crowd)
    counts = np.array([left[list(members_)].sum() for members_ in merged])
    sensible = _max_sensible_price(counts, seats[first], relaxation.cost)
    kept = _promising_bin_types(promise, kinds.prices, opens, sensible)
    columns = seats.shape[1]
    if not kept:
        return None
    shapes = PackingProblem(
        tuple(tuple(positions[at] for at in members_) for members_ in merged),
        counts,
        np.hstack([group_needs, seats[first]]),
        tuple(kinds.bin_types[row] for row in kept),
        np.hstack([kinds.capacities[kept], np.full((len(kept), columns), float(HOST_LIMIT_CAPACITY))]),
        kinds.prices[kept],
        opens[kept],
        np.array([tasting[at] for at in first], dtype=np.intp),
        kinds.accepts[kept],
        relaxation.pod_values[crowd],
        np.hstack([weights[kept], np.zeros((len(kept), columns))]),
        needs.shape[1],
        np.array([float(sum(request.demands[positions[at]].max_per_node for at in members_)) for members_ in merged]),
        kinds.surplus.pick(np.array(kept, dtype=np.intp)),
        units.cpu_column,
    )
    return shapes.subset(np.flatnonzero(shapes.admits.any(axis=0)))


def _item_types(requests: FloatArray, tasting: Sequence[int], left: FloatArray) -> tuple[IntArray, ItemTypes]:
    """Demands that request the same and have one taste; which crowd each is of."""
    _keys, first, crowd_of = np.unique(
        np.column_stack([requests, np.array(tasting, dtype=np.float64)]), axis=0, return_index=True, return_inverse=True
    )
    counts: FloatArray = np.bincount(crowd_of.ravel(), weights=left).astype(np.float64)
    return crowd_of.ravel(), ItemTypes(counts, requests[first], [tasting[at] for at in first])


def _merged_groups(crowd_of: IntArray, usage: FloatArray) -> list[list[int]]:
    """Places of demands that one group stands for, in the order of demands."""
    found: dict[tuple[int, bytes], list[int]] = {}
    for at, crowd in enumerate(crowd_of.tolist()):
        found.setdefault((crowd, usage[at].tobytes()), []).append(at)
    return list(found.values())


def _host_limit_columns(host_limits: Sequence[HostLimits | None], left: FloatArray) -> FloatArray:
    """Seats each demand takes of every rule that is counted."""
    taken: list[Mapping[object, int]] = [_host_limit_usage(rule) if rule is not None else {} for rule in host_limits]
    weights: dict[object, float] = {}
    for mapping, count in zip(taken, left.tolist(), strict=True):
        for rule, amount in mapping.items():
            weights[rule] = weights.get(rule, 0.0) + (count if amount > 1 else 0.0)
    ranked = sorted((rule for rule, weight in weights.items() if weight), key=lambda rule: -weights[rule])[
        :MAX_HOST_LIMIT_COLUMNS
    ]
    column = {rule: at for at, rule in enumerate(ranked)}
    zeros = np.zeros((len(host_limits), len(ranked)))
    for at, mapping in enumerate(taken):
        for rule, amount in mapping.items():
            if rule in column:
                zeros[at, column[rule]] = amount
    return zeros


def _host_limit_usage(host_limits: HostLimits) -> dict[object, int]:
    """How many of a node's seats one pod takes, by rule."""
    fromkeys: dict[object, int] = dict.fromkeys(host_limits.repelled_by, 1)
    for constraint in host_limits.others_spread:
        fromkeys[constraint] = HOST_LIMIT_CAPACITY // max(1, constraint.term.max_skew)
    for constraint, itself in host_limits.spread:
        if itself:
            fromkeys[constraint] = HOST_LIMIT_CAPACITY // max(1, constraint.term.max_skew)
    for constraint, itself in host_limits.anti_affinity:
        if itself:
            fromkeys[constraint] = HOST_LIMIT_CAPACITY
    fromkeys.update(dict.fromkeys(host_limits.ports, HOST_LIMIT_CAPACITY))
    return fromkeys


class _BinTypes:
    """Nodes by lane and anchor. ``tasted``: options and number of the taste of every demand in question."""

    def __init__(
        self,
        request: PackingRequest,
        reservation_units: ResourceUnits,
        tasted: Sequence[tuple[tuple[PurchaseOption, ...], int]],
        left: FloatArray,
    ) -> None:
        self._request = request
        self.bin_types: list[BinType] = []
        anchors: dict[PurchaseChannel, dict[Requirements, tuple[PurchaseOption, float]]] = {}
        self._options_by_signature: dict[int, dict[PurchaseChannel, PurchaseOption]] = {}
        for (options, taste), count in zip(tasted, left.tolist(), strict=True):
            for option in options:
                setdefault = anchors.setdefault(option.channel, {})
                _, weight = setdefault.get(option.requirements, (option, 0.0))
                setdefault[option.requirements] = (option, weight + count)
            self._options_by_signature.setdefault(taste, {option.channel: option for option in options})
        rooms, prices, accepts, surpluses = [], [], [], []
        for lane, setdefault in anchors.items():
            ranked = sorted(setdefault.values(), key=lambda item: -item[1])[:MAX_ANCHORS]
            room = reservation_units.capacity_rows(ranked[0][0].template)
            surplus = reservation_units.surplus_rows(ranked[0][0].template)
            for option, _ in ranked:
                efficient = self._efficient_types(option, room, surplus)
                types = np.array([*efficient, *(at for at in efficient if surplus.prices[at])], dtype=np.intp)
                capacities = room[types]
                within = np.arange(len(types)) >= len(efficient)
                if within.any():
                    cpu = reservation_units.cpu_column
                    capacities[within, cpu] = np.minimum(capacities[within, cpu], surplus.baselines[types[within]])
                accepted = self._accepted_signatures(lane, option)
                offering = option.template.index.prices(option.requirements).cheapest_offering
                rooms.append(capacities)
                surpluses.append(surplus.pick(types))
                prices += [request.objective.offering_cost(offering[position]) for position in types.tolist()]
                accepts += [accepted] * len(types)
                self.bin_types += [BinType(lane, position) for position in types.tolist()]
        self.capacities = np.concatenate(rooms)
        self.surplus = CpuSurplusRows.joined(surpluses)
        self.prices = np.array(prices, dtype=np.float64) + self.surplus.fixed
        if self.surplus.prices.any():
            beyond = np.maximum(self.capacities[:, reservation_units.cpu_column] - self.surplus.baselines, 0.0)
            self.prices += self.surplus.prices * beyond
        self.accepts = np.array(accepts, dtype=bool).reshape(len(prices), len(self._options_by_signature))

    def _efficient_types(self, option: PurchaseOption, capacities: FloatArray, surplus: CpuSurplusRows) -> list[int]:
        """Types for nodes that begin as this option asks, unbeaten by price and room; cheapest first."""
        template = option.template
        index, requirements = template.index, self._request.fill_cache.canonical(option.requirements)
        types = self._request.fill_cache.possible_types(template, requirements)
        limited = self._request.types_within.get(template.name)
        if limited is not None:
            types &= limited
        ranked = self._request.objective.ordered(index.prices(requirements))
        by_price = [at for at in ranked.cheapest_first(types) if (capacities[at] >= 0).all()]
        efficient_types = pareto_front_rows(surplus.merits(capacities), by_price)
        if not self._request.strict_min_values or not any(
            requirement.min_values is not None for requirement in requirements.values()
        ):
            return efficient_types
        return [
            at
            for at in efficient_types
            if option.satisfies_min_values(
                types & type_set(np.flatnonzero((capacities >= capacities[at]).all(axis=1)).tolist())
            )
        ]

    def _accepted_signatures(self, channel: PurchaseChannel, anchor: PurchaseOption) -> list[bool]:
        """The tastes that add nothing to the anchor's requirements."""
        book, requirements = self._request.fill_cache, self._request.fill_cache.canonical(anchor.requirements)
        accepted_signatures = []
        for number in range(len(self._options_by_signature)):
            option = self._options_by_signature[number].get(channel)
            joined = book.joined(anchor.template, requirements, option) if option is not None else None
            accepted_signatures.append(joined is not None and joined[0] is requirements)
        return accepted_signatures


def _resource_values(
    capacities: FloatArray, prices: FloatArray, opens: BoolArray, relaxation: FractionalBound, waiting: IntArray
) -> tuple[FloatArray, FloatArray]:
    """For each kind what its columns are worth, and the most value per dollar it can promise.

    What the linear programme says of one kind holds of any other that is open to no more crowds: the least such promise counts.
    """
    known = relaxation.admits[:, waiting]
    strangers = opens.astype(np.float32) @ (~known).astype(np.float32).T > 0
    value = np.zeros((len(prices), len(known)))
    for column in range(capacities.shape[1]):
        value += capacities[:, column, None] * relaxation.resource_values[None, :, column]
    promise = np.where(strangers, np.inf, value / np.maximum(prices, _MIN_PRICE)[:, None])
    best = promise.argmin(axis=1)
    plain = prices[:, None] / np.maximum(capacities, 1.0) / capacities.shape[1]
    unknown = ~np.isfinite(promise.min(axis=1, initial=np.inf))
    chosen = np.where(unknown[:, None], plain, relaxation.resource_values[best] + _PLAIN_VALUE_SHARE * plain)
    return chosen, np.where(unknown, 1.0, promise.min(axis=1, initial=np.inf))


def _promising_bin_types(promise: FloatArray, prices: FloatArray, opens: BoolArray, sensible: float) -> list[int]:
    """Kinds worth trying: of those that promise well and are not dearer than is sensible all sizes, small ones closer together.

    For every group at least a few it may use are among them.
    """
    if not len(promise):
        return []
    ranked = np.argsort(-promise, kind="stable")
    good = np.flatnonzero((prices <= sensible) & (promise >= (_MIN_PROMISE if len(promise) > MAX_BIN_TYPES else 0.0)))
    chosen = set(_spread_by_price(good, prices))
    for group in range(opens.shape[1]):
        usable = ranked[opens[ranked, group]]
        if not chosen.intersection(usable.tolist()):
            chosen.update(usable[np.argsort(prices[usable], kind="stable")][:3].tolist(), usable[:3].tolist())
    return sorted(chosen, key=lambda row: (-promise[row], row))


def _spread_by_price(rows: IntArray, prices: FloatArray) -> list[int]:
    """At most `KINDS` of the rows, their prices in steps of about equal ratio."""
    ordered = rows[np.argsort(prices[rows], kind="stable")]
    if len(ordered) <= MAX_BIN_TYPES:
        return [int(row) for row in ordered]
    logs = np.log(np.maximum(prices[ordered], _MIN_PRICE))
    marks = np.linspace(logs[0], logs[-1], MAX_BIN_TYPES)
    unique = np.unique(np.searchsorted(logs, marks - 1e-12))
    return [int(row) for row in ordered[np.minimum(unique, len(ordered) - 1)]]


def _max_sensible_price(counts: FloatArray, usage: FloatArray, cost: float) -> float:
    """USD per hour above which a node is too large: rules by host ask for so many nodes that they must be small."""
    nodes = float((counts @ usage).max(initial=0.0)) / HOST_LIMIT_CAPACITY
    return _MAX_TIMES_AVERAGE_PRICE * cost / nodes if nodes >= 1 else np.inf


#: Kinds that promise so much of their price are tried, smaller ones before others.
_MIN_PROMISE = 0.8
#: Where rules by host ask for many nodes: as many times the average price a node may cost.
_MAX_TIMES_AVERAGE_PRICE = 4.0
#: USD per hour that stands for no price at all where something is divided by it.
_MIN_PRICE = 1e-6
#: How much of a plain share is mixed into what resources are worth, so that none is worth nothing.
_PLAIN_VALUE_SHARE = 1e-3
