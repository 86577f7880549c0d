"""What instance types leave to pods where DaemonSets take different amounts of many of them.

A limit on the pods of a node is stated as pods that DaemonSets have already on each type (`node_share`), so there may be as many
amounts as types. Asking each of these groups what fits took most of a packing under such a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_sets import AmountIndex, TypeSet, type_set
from karpenter.model.resources import Resources

#: Stands for no amount at all: less than DaemonSets can take.
_NONE = -(1 << 200)


class TypeRooms:
    """Allocatable amounts of types less what DaemonSets take. ``overheads``: that by position, of all types that count."""

    def __init__(self, types: Sequence[InstanceType], overheads: Mapping[int, Resources]) -> None:
        self._types = types
        self._overheads = overheads
        self._known: TypeSet = type_set(overheads)
        #: Types that hold their DaemonSets.
        self._bearing: TypeSet = type_set(position for position in overheads if self._bears(position))
        self._rooms: dict[str, AmountIndex] = {}

    def overhead_of(self, position: int) -> Resources:
        """What DaemonSets take on one type."""
        return self._overheads.get(position, {})

    def fitting(self, requests: Resources, within: TypeSet) -> TypeSet:
        """Types of these that hold the requests beside their DaemonSets."""
        types = self._bearing & within
        for name, amount in requests.items():
            if amount > 0:
                types &= self._room(name).at_least(amount)
        return types

    def most(self, types: TypeSet) -> dict[str, int]:
        """The most that one of these types leaves of each resource."""
        known = types & self._known
        if not known:
            return {}
        names = {name for position in self._overheads for name in self._types[position].allocatable}
        most = {name: self._room(name).largest_amount_of(known) for name in sorted(names)}
        return {name: amount for name, amount in most.items() if amount > _NONE}

    def _bears(self, position: int) -> bool:
        allocatable = self._types[position].allocatable
        return all(
            allocatable.get(name, 0) >= amount for name, amount in self._overheads[position].items() if amount > 0
        )

    def _room(self, name: str) -> AmountIndex:
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = AmountIndex(
                [self._amount(position, name) for position in range(len(self._types))]
            )
        return room

    def _amount(self, position: int, name: str) -> int:
        overhead, allocatable = self._overheads.get(position), self._types[position].allocatable
        if overhead is None or name not in allocatable:
            return _NONE
        return allocatable[name] - overhead.get(name, 0)
