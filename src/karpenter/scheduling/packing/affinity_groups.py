"""Pod groups that required affinity by host connects, and how they go to one node together.

A pod that follows another must be on its node. In a chain (web follows cache, cache follows db) a node that takes db takes a pod
that web needs, too. So the companions of a demand are its whole connected group, not only the demands that follow it directly,
and a node takes one pod of each before it takes a second of any. Pods of another connected group join only if none of that group
stays behind: their targets would be used up.

Alternatives: one hop of companions leaves out the far end of a chain in half of all orders; treating a connected group as one pod
of summed requests cannot have several followers per target. Work per claim: the connected groups that wait, times their length;
no work without affinity by host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Protocol, Self, TypeVar

from karpenter.scheduling.demand import Demand
from karpenter.scheduling.topology.topology_groups import TopologyGroup


class Fill(Protocol):
    """A node while it is filled."""

    @property
    def contents(self) -> Mapping[int, int]:
        """Pods on it, by position of their demand."""

    def add(self, position: int, wanted: int) -> int:
        """Add pods of a demand until there are ``wanted`` of them, as far as they fit; how many were added."""

    def copy(self) -> Self:
        """The same node, to try further pods on."""


FillT = TypeVar("FillT", bound=Fill)


class AffinityGraph:
    """Which demands follow which, by required affinity by host."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._affinity = [tuple(group for group, _ in demand.host_affinity) for demand in demands]
        stated = {group for affinity in self._affinity for group in affinity}
        self._targets: defaultdict[TopologyGroup, list[int]] = defaultdict(list)
        for position, demand in enumerate(demands) if stated else ():
            for group in demand.host_limits.counted_by if demand.host_limits is not None else ():
                if group in stated:
                    self._targets[group].append(position)
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        for position, affinity in enumerate(self._affinity):
            for target in dict.fromkeys(target for group in affinity for target in self._targets[group]):
                if target != position:
                    self._followers[target].append(position)

    def __bool__(self) -> bool:
        return bool(self._targets)

    def has_affinity(self, position: int) -> bool:
        """Whether pods of the demand must be on the node of others, or of each other."""
        return bool(self._affinity[position])

    def companions(self, seed: int, pods_left: Sequence[int]) -> list[int]:
        """Waiting demands connected to the seed: those that follow it, what else these follow, and so on."""
        reached = [seed]
        for member in reached:
            for follower in self._followers.get(member, ()):
                if pods_left[follower] and follower not in reached:
                    reached.append(follower)
            for group in self._affinity[member]:
                targets = self._targets[group]
                if not any(target in reached for target in targets):
                    reached += [target for target in targets if pods_left[target]][:1]
        return reached[1:]


class ConnectedGroups:
    """The connected groups that wait while one node is opened for ``seed``."""

    def __init__(self, graph: AffinityGraph, pods_left: Sequence[int], can_be_first: Container[int]) -> None:
        self._graph = graph
        self._pods_left = pods_left
        waiting = [position for position, count in enumerate(pods_left) if count] if graph else []
        companions = {
            position: graph.companions(position, pods_left) for position in waiting if position in can_be_first
        }
        self._companions = {
            position: members for position, members in companions.items() if members or graph.has_affinity(position)
        }
        #: Demands that no node may take on their own.
        self.members = frozenset(
            (*self._companions, *(position for position in waiting if graph.has_affinity(position)))
        )

    @property
    def roots(self) -> tuple[int, ...]:
        """Demands that a connected group can begin with on a node."""
        return tuple(self._companions)

    def begin(self, fill: Fill, seed: int) -> None:
        """Add the seed's pods; with companions one of each first, then all pods of the companions."""
        companions = self._companions.get(seed)
        if not companions:
            fill.add(seed, self._pods_left[seed])
            return
        if not fill.add(seed, 1):
            return
        # Followers first: their targets, of which one is enough here, have a place on other nodes, too.
        for position in reversed(_add_one_of_each(fill, companions)):
            fill.add(position, self._pods_left[position])

    def add_others(self, fill: FillT, seed: int) -> tuple[FillT, int]:
        """The node with those other connected groups of which no follower stays behind; and how many were tried."""
        tried = 0
        for root in self._companions:
            if root != seed and root not in self._companions.get(seed, ()):
                tried += 1
                trial = fill.copy()
                self.begin(trial, root)
                fill = trial if self._is_complete(trial, root) else fill
        return fill, tried

    def _is_complete(self, fill: Fill, root: int) -> bool:
        return all(
            fill.contents.get(position, 0) >= (self._pods_left[position] if self._graph.has_affinity(position) else 1)
            for position in (root, *self._companions[root])
        )

    def stranded_pods(self, seed: int, contents: Mapping[int, int]) -> int:
        """Pods of the seed's companions that a node with these contents leaves without a target."""
        used_up = contents.get(seed, 0) >= self._pods_left[seed]
        return sum(
            self._pods_left[position] - contents.get(position, 0)
            for position in self._companions.get(seed, ())
            if self._graph.has_affinity(position) and (used_up or not contents.get(position, 0))
        )


def _add_one_of_each(fill: Fill, companions: Sequence[int]) -> list[int]:
    """Walk the companions until none joins any more: one may join only after another. Those that joined, in that order."""
    joined: list[int] = []
    waiting = list(companions)
    while waiting:
        joining = [position for position in waiting if fill.add(position, 1)]
        if not joining:
            break
        joined += joining
        waiting = [position for position in waiting if position not in joining]
    return joined


class HostAffinityCheck:
    """Which pods may have a node to themselves, as far as required affinity by host says.

    ``satisfied``: affinities that pods elsewhere have begun.
    """

    def __init__(self, demands: Sequence[Demand], satisfied: Container[TopologyGroup]) -> None:
        self._affinity = [demand.host_affinity for demand in demands]
        self._counted_by = [
            frozenset(demand.host_limits.counted_by) if demand.host_limits is not None else frozenset[TopologyGroup]()
            for demand in demands
        ]
        own = {group for affinity in self._affinity for group, itself in affinity if itself}
        #: By affinity that a node may begin, all the pods it means: they must be on that node.
        self._meant = {
            group: {at: len(demand.pods) for at, demand in enumerate(demands) if group in self._counted_by[at]}
            for group in own
            if group not in satisfied
        }

    def holds_for(self, contents: Sequence[tuple[int, int]]) -> bool:
        """Whether these pods can come to an empty node in some order, each after one that it must be beside."""
        waiting = [position for position, _ in contents if self._affinity[position]]
        if not waiting:
            return True
        counts = dict(contents)
        begun = {
            group for group, meant in self._meant.items() if all(counts.get(at, 0) == n for at, n in meant.items())
        }
        present = {group for position in counts if position not in waiting for group in self._counted_by[position]}
        while waiting:
            joining = [
                position
                for position in waiting
                if all(group in present or (itself and group in begun) for group, itself in self._affinity[position])
            ]
            if not joining:
                return False
            present |= {group for position in joining for group in self._counted_by[position]}
            waiting = [position for position in waiting if position not in joining]
        return True
