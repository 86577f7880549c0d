"""How many volumes a machine can take besides those it holds (SCH-470).

A driver attaches so many volumes to a node and no more; a claim that several pods of the node share is attached once. What new
machines will allow nobody says before they run, but machines of the same type say it of themselves: Beyond of SCH-293.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.api.core import Pod
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.volumes import Mounted, Volumes
from karpenter.model import labels

_NONE: frozenset[str] = frozenset()


class Mounts:
    """What one machine holds of the attachments its drivers allow. Immutable; costs nothing where no limit is known."""

    __slots__ = ("_held", "_limits")

    def __init__(self, limits: Mapping[str, int], held: Mounted) -> None:
        self._limits = limits
        self._held = {driver: held[driver] for driver in limits.keys() & held.keys()}

    def room(self, wanted: Sequence[Mounted]) -> int:
        """How many of the leading pods fit together; each is given by what it mounts."""
        if not self._limits:
            return len(wanted)
        held = {driver: set(self._held.get(driver, _NONE)) for driver in self._limits}
        for number, mounts in enumerate(wanted):
            for driver in held.keys() & mounts.keys():
                if not mounts[driver] <= held[driver]:
                    held[driver] |= mounts[driver]
                    if len(held[driver]) > self._limits[driver]:
                        return number
        return len(wanted)

    def take(self, taken: Iterable[Mounted]) -> Mounts:
        """The machine with these pods too, whether or not they fit."""
        if not self._limits:
            return self
        held = {driver: set(self._held.get(driver, _NONE)) for driver in self._limits}
        for mounts in taken:
            for driver in held.keys() & mounts.keys():
                held[driver] |= mounts[driver]
        return Mounts(self._limits, {driver: frozenset(identities) for driver, identities in held.items()})

    def obstacle(self, mounts: Mounted) -> str:
        """Why the pod does not fit, by the first driver that has no room for it; empty when it fits.

        A pod that adds nothing is welcome even where there is too much already, as in the scheduler.
        """
        for driver in sorted(self._limits.keys() & mounts.keys()):
            held = self._held.get(driver, _NONE)
            count = len(held | mounts[driver])
            if count > len(held) and count > self._limits[driver]:
                limit = self._limits[driver]
                return f"would exceed volume limit (provisioner={driver}, volume-count={count}, volume-limit={limit})"
        return ""


#: A machine nobody knows a limit of.
UNLIMITED = Mounts({}, {})


def of_machine(volumes: Volumes, node_name: str, running: Iterable[Pod]) -> Mounts:
    """What a node holds of its attachments now; its pods are looked at only where a limit is known."""
    limits = volumes.limits.get(node_name)
    return Mounts(limits, volumes.mounted(running)) if limits else UNLIMITED


def of_types(volumes: Volumes, views: Iterable[NodeView]) -> dict[str, Mounts]:
    """Empty machines by instance type, with the least that nodes of the type allow; types nobody has yet are not listed."""
    found: dict[str, dict[str, int]] = {}
    for view in views if volumes.limits else ():
        limits = volumes.limits.get(view.node.metadata.name, {}) if view.node is not None else {}
        for name in view.offers.of(labels.INSTANCE_TYPE).values if limits else ():
            known = found.setdefault(name, {})
            known.update({driver: min(limit, known.get(driver, limit)) for driver, limit in limits.items()})
    return {name: Mounts(limits, {}) for name, limits in found.items()}
