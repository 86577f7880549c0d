"""The most pods of a few groups that NodePool limits allow: an integer program over whole contents of nodes.

It shares no code with the engine. A node is of a form: a NodePool, a zone, and as many types as minValues asks for. It takes of
the limits the largest capacity of its types, and holds what the smallest of them holds (SCH-360, SCH-384).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import highspy
import numpy as np

from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res

#: Contents of nodes the program has at most.
MAX_CONTENTS = 4_000
#: Nodes of the search tree at most.
_MAX_TREE_NODES = 2_000


@dataclass(frozen=True)
class PodGroupSize:
    """Equal pods: what one requests (``pods`` included), the zone it asks for, and how many there are."""

    requests: Mapping[str, int]
    zone: str | None
    count: int


@dataclass(frozen=True)
class NodeForm:
    """What may be launched: what it holds, what it takes of the limits of its NodePool, and the reservation or stock it is of."""

    pool: str
    zone: str
    holds: Mapping[str, int]
    reserves: Mapping[str, int]
    counted: str = ""


def node_forms(pools: Sequence[NodePool], types: Sequence[InstanceType]) -> Iterator[NodeForm]:
    """Every form of node the pools may launch. All types are sold in all of their zones."""
    for pool in pools:
        asked = {each.key: each for each in pool.spec.template.spec.requirements}
        least = asked[labels.INSTANCE_TYPE].min_values if labels.INSTANCE_TYPE in asked else None
        zones = set(asked[labels.ZONE].values) if labels.ZONE in asked else None
        for together in combinations(types, least or 1):
            for zone in sorted({offering.zone for each in together for offering in each.offerings}):
                if zones is None or zone in zones:
                    yield NodeForm(pool.metadata.name, zone, _least(together), _most(together))


def _least(types: Sequence[InstanceType]) -> dict[str, int]:
    return {name: min(each.allocatable.get(name, 0) for each in types) for name in types[0].allocatable}


def _most(types: Sequence[InstanceType]) -> dict[str, int]:
    return {name: max(each.capacity.get(name, 0) for each in types) for name in types[0].capacity}


def most_served(
    groups: Sequence[PodGroupSize],
    forms: Sequence[NodeForm],
    limits: Mapping[str, Mapping[str, int]],
    units: Mapping[str, int] = {},
) -> int | None:
    """The most pods for which nodes can be launched; None where the program is too large or not solved.

    ``units``: how many nodes reservations and stocks have.
    """
    columns: list[tuple[NodeForm, tuple[int, ...]]] = []
    for form in forms:
        for contents in _full_contents(groups, form):
            columns.append((form, contents))
            if len(columns) > MAX_CONTENTS:
                return None
    return _solved(groups, columns, limits, units)


def _full_contents(groups: Sequence[PodGroupSize], form: NodeForm) -> Iterator[tuple[int, ...]]:
    """Contents to which no pod can be added."""

    def extend(at: int, free: Mapping[str, int], counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if at == len(groups):
            yield counts
            return
        for count in range(_fitting(groups[at], form, free), -1, -1):
            left = {name: free[name] - count * groups[at].requests.get(name, 0) for name in free}
            yield from extend(at + 1, left, (*counts, count))

    for counts in extend(0, dict(form.holds), ()):
        used = {n: sum(c * g.requests.get(n, 0) for c, g in zip(counts, groups, strict=True)) for n in form.holds}
        free = {name: amount - used[name] for name, amount in form.holds.items()}
        if any(counts) and not any(
            count < group.count and _fitting(group, form, free) for count, group in zip(counts, groups, strict=True)
        ):
            yield counts


def _fitting(group: PodGroupSize, form: NodeForm, free: Mapping[str, int]) -> int:
    if group.zone not in (None, form.zone):
        return 0
    return min(group.count, *(free.get(name, 0) // amount for name, amount in group.requests.items() if amount))


def _solved(
    groups: Sequence[PodGroupSize],
    columns: Sequence[tuple[NodeForm, tuple[int, ...]]],
    limits: Mapping[str, Mapping[str, int]],
    units: Mapping[str, int],
) -> int | None:
    """Variables: nodes of each content, then pods served of each group."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_max_nodes", _MAX_TREE_NODES)
    total = len(columns) + len(groups)
    for at in range(total):
        upper = highspy.kHighsInf if at < len(columns) else groups[at - len(columns)].count
        solver.addVar(0, upper)
        solver.changeColIntegrality(at, highspy.HighsVarType.kInteger)
        solver.changeColCost(at, 0.0 if at < len(columns) else -1.0)
    for number in range(len(groups)):
        row = {at: -float(contents[number]) for at, (_, contents) in enumerate(columns) if contents[number]}
        _add_row(solver, {**row, len(columns) + number: 1.0}, 0.0)
    for pool, amounts in limits.items():
        for name, amount in amounts.items():
            taken = {
                at: (res.ONE_UNIT if name == res.NODES else form.reserves.get(name, 0)) / max(amount, 1)
                for at, (form, _) in enumerate(columns)
                if form.pool == pool
            }
            _add_row(solver, taken, 1.0 if amount > 0 else 0.0)
    for counted, left in units.items():
        _add_row(solver, {at: 1.0 for at, (form, _) in enumerate(columns) if form.counted == counted}, float(left))
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return round(-solver.getInfo().objective_function_value)


def _add_row(solver: highspy.Highs, entries: Mapping[int, float], most: float) -> None:
    at, values = np.array(list(entries), dtype=np.int32), np.array(list(entries.values()))
    solver.addRow(-highspy.kHighsInf, most, len(entries), at, values)
