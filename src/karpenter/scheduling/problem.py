"""The input of a scheduling pass as frozen data: everything the answer depends on, and nothing else.

``solver.solve`` is a function of a `Problem`. It reads no clock, no live state and no callable, so a problem that is written to a
file (`problem_file`) and solved again, elsewhere and later, gives the same `Solution`. Effort is part of the program, not of the
problem: search is limited by counted work with a fixed seed, never by time.

A ``TypeIndex`` answers questions about a catalog and remembers the answers. Callers that solve again and again keep one for each
catalog and hand it in beside the problem; it saves time and never changes the answer.
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
class InstanceTypeCatalog:
    """The instance types a NodePool chooses from, and the label keys that count as well known with them."""

    instance_types: tuple[InstanceType, ...]
    well_known_labels: frozenset[str]


@dataclass(frozen=True, eq=False)
class Problem:
    """All inputs of one scheduling pass. ``catalogs`` is by NodePool name; pools with the same types share one catalog.

    A NodePool without a catalog takes no part (SCH-115).
    """

    snapshot: ClusterSnapshot
    catalogs: Mapping[str, InstanceTypeCatalog]
    now: datetime
    options: SchedulingOptions = _DEFAULT_OPTIONS


def build_problem(
    snapshot: ClusterSnapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    options: SchedulingOptions = _DEFAULT_OPTIONS,
) -> Problem:
    """The problem of a caller that has type indexes; to be solved with these indexes."""
    return Problem(snapshot, catalogs_of(indexes), now, options)


def catalogs_of(indexes: Mapping[str, TypeIndex]) -> dict[str, InstanceTypeCatalog]:
    """The catalogs of type indexes by NodePool name; pools with the same index share one catalog."""
    by_index: dict[int, InstanceTypeCatalog] = {}
    for index in indexes.values():
        if id(index) not in by_index:
            by_index[id(index)] = InstanceTypeCatalog(index.types, index.well_known)
    return {name: by_index[id(index)] for name, index in indexes.items()}


def build_type_indexes(problem: Problem) -> dict[str, TypeIndex]:
    """A type index for each NodePool of the problem, one for each catalog."""
    return type_indexes_of(problem.catalogs)


def type_indexes_of(catalogs: Mapping[str, InstanceTypeCatalog]) -> dict[str, TypeIndex]:
    """A type index by NodePool name, one for each catalog."""
    by_catalog: dict[int, TypeIndex] = {}
    for catalog in catalogs.values():
        if id(catalog) not in by_catalog:
            by_catalog[id(catalog)] = TypeIndex(catalog.instance_types, catalog.well_known_labels)
    return {name: by_catalog[id(catalog)] for name, catalog in catalogs.items()}
