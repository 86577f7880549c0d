"""The input of a scheduling pass as frozen data: everything the answer depends on, and nothing else.

``solver.solve`` is a function of a `Problem`. It reads no clock, no live state and no callable, so a problem that is written to a
file (`problem_file`) and solved again, elsewhere and later, gives the same `Solution`. Effort is part of the program, not of the
problem: search is limited by counted work with a fixed seed, never by time.

A ``TypeIndex`` answers questions about instance types and remembers the answers. Callers that solve again and again keep one
for each list of types and hand it in beside the problem; it saves time and never changes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.state.snapshot import ClusterSnapshot

_DEFAULT_OPTIONS = SchedulingOptions()


@dataclass(frozen=True, eq=False)
class InstanceTypes:
    """The instance types a NodePool chooses from, and the label keys that count as well known with them."""

    instance_types: tuple[InstanceType, ...]
    well_known_labels: frozenset[str]


@dataclass(frozen=True, eq=False)
class Problem:
    """All inputs of one scheduling pass. ``instance_types`` is by NodePool name; pools with the same types share one object.

    A NodePool without instance types takes no part (SCH-115).
    """

    snapshot: ClusterSnapshot
    instance_types: Mapping[str, InstanceTypes]
    now: datetime
    options: SchedulingOptions = _DEFAULT_OPTIONS


def build_problem(
    snapshot: ClusterSnapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    options: SchedulingOptions = _DEFAULT_OPTIONS,
) -> Problem:
    """The problem of a caller that has type indexes; to be solved with these indexes."""
    return Problem(snapshot, instance_types_of(indexes), now, options)


def instance_types_of(indexes: Mapping[str, TypeIndex]) -> dict[str, InstanceTypes]:
    """The instance types of indexes by NodePool name; pools with the same index share one object."""
    by_index: dict[int, InstanceTypes] = {}
    for index in indexes.values():
        if id(index) not in by_index:
            by_index[id(index)] = InstanceTypes(index.types, index.well_known)
    return {name: by_index[id(index)] for name, index in indexes.items()}


def build_type_indexes(problem: Problem) -> dict[str, TypeIndex]:
    """A type index for each NodePool of the problem; NodePools with the same types share one."""
    return type_indexes_of(problem.instance_types)


def type_indexes_of(instance_types: Mapping[str, InstanceTypes]) -> dict[str, TypeIndex]:
    """A type index by NodePool name; NodePools with the same types share one."""
    by_types: dict[int, TypeIndex] = {}
    for types in instance_types.values():
        if id(types) not in by_types:
            by_types[id(types)] = TypeIndex(types.instance_types, types.well_known_labels)
    return {name: by_types[id(types)] for name, types in instance_types.items()}
