"""Decisions on instance types that a test gives, for all NodePools or for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support.builders import NOW, flatten, snapshot

SoldTypes = Mapping[str, list[InstanceType]] | list[InstanceType]


def plan_on_types(
    objects: Sequence[object],
    types: SoldTypes,
    well_known_of: Callable[[Sequence[InstanceType]], frozenset[str]],
    options: SchedulingOptions | None = None,
) -> Solution:
    """The decision. ``types``: the same for all NodePools, or by the name of each."""
    wires = flatten(objects)
    names = [wire.metadata.name for wire in wires if isinstance(wire, NodePool)]
    own = dict(types) if isinstance(types, Mapping) else dict.fromkeys(names, types)
    indexes = {name: TypeIndex(sold, well_known_of(sold)) for name, sold in own.items()}
    return solve(build_problem(snapshot(wires), indexes, NOW, options or SchedulingOptions()), indexes)
