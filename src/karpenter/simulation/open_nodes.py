"""The nodes that are open to pods of one kind, known from one attempt to the next.

Most attempts see a cluster in which few nodes have changed since the last attempt of a pod alike. A node that refused such a pod
for want of room refuses it until it gains some: pods that come only take room away. So an attempt checks the nodes that gained
room or changed since then, and those that were open. It is for pods that have no constraints on other pods and use no host ports.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

from karpenter.simulation.scheduler_node_info import FilterReason, NodeSlotInfo

#: So many kinds of pods are remembered, each with all nodes.
_MAX_KINDS = 64

Filter = Callable[[NodeSlotInfo], FilterReason | None]


class _KindOfPods:
    """What nodes said to pods of one kind, up to a change of the cluster."""

    def __init__(self) -> None:
        self.seen = 0
        self.open: set[str] = set()
        self.refused: dict[str, FilterReason] = {}
        self.refusals: Counter[FilterReason] = Counter()

    def forget(self, name: str) -> None:
        """Drop what a node said."""
        self.open.discard(name)
        reason = self.refused.pop(name, None)
        if reason is not None:
            self.refusals[reason] -= 1

    def set_reason(self, name: str, reason: FilterReason | None) -> None:
        """Record what a node says now."""
        self.forget(name)
        if reason is None:
            self.open.add(name)
        else:
            self.refused[name] = reason
            self.refusals[reason] += 1


class OpenNodes:
    """Open nodes by kind of pods. ``slots``: the nodes by name, some of them only known by their pods yet."""

    def __init__(self, slots: dict[str, NodeSlotInfo]) -> None:
        self._slots = slots
        self._change = 0
        #: By name of a node the number of its last change, the latest at the end.
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._kinds: OrderedDict[bytes, _KindOfPods] = OrderedDict()

    def changed(self, name: str) -> None:
        """The node may be open to pods now that it refused before, or is there no more."""
        self._change += 1
        self._changed[name] = self._change
        self._changed.move_to_end(name)

    def gone(self, name: str) -> None:
        """Nothing is known of the node any more, not even pods: forget it, or a long run remembers all nodes it ever had."""
        self._changed.pop(name, None)
        for known in self._kinds.values():
            known.forget(name)

    def find(self, kind: bytes, refusal_of: Filter) -> tuple[list[NodeSlotInfo], Counter[FilterReason]]:
        """The open nodes by name, and how many of the others refuse such pods for which reason."""
        known = self._kinds.pop(kind, None) or _KindOfPods()
        self._kinds[kind] = known
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        for name in {*known.open, *self._changed_since(known.seen)}:
            slot = self._slots[name]
            if slot.node is None:
                known.forget(name)
            else:
                known.set_reason(name, refusal_of(slot))
        known.seen = self._change
        return [self._slots[name] for name in sorted(known.open)], known.refusals

    def _changed_since(self, change: int) -> Iterator[str]:
        for name, number in reversed(self._changed.items()):
            if number <= change:
                return
            yield name
