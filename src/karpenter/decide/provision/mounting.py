"""How many volumes a machine can take besides those it holds (SCH-470).

A driver attaches so many volumes to a node and no more; a claim that several pods of the node share is attached once. What new
machines will allow few say before they run, but machines of the same type say it of themselves: Beyond of SCH-293.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from karpenter.catalog.index import TypeIndex
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.volumes import Mounted, Volumes
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.resources import Resources

#: Attachments of a driver as a resource, called as kubelets once called them.
SLOT = "attachable-volumes-csi-"
#: More attachments than there are pods.
_ENDLESS = 10**6 * res.ONE
#: Shared claims may take one part in so many of the smallest machine's attachments.
_PART = 4
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


def limits_of_types(
    volumes: Volumes, views: Iterable[NodeView], indexes: Iterable[TypeIndex]
) -> dict[str, dict[str, int]]:
    """Attachments by instance type and driver: the least that nodes of the type allow, or that the type tells itself.

    Types of which nobody knows are not listed. A type tells by a capacity of that name, as instance-type files and NodeOverlays
    may give it.
    """
    found: dict[str, dict[str, int]] = {}
    for name, limits in (*_told_by_nodes(volumes, views), *_told_by_types(indexes)):
        known = found.setdefault(name, {})
        known.update({driver: min(limit, known.get(driver, limit)) for driver, limit in limits.items()})
    return found


def _told_by_nodes(volumes: Volumes, views: Iterable[NodeView]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for view in views if volumes.limits else ():
        limits = volumes.limits.get(view.node.metadata.name) if view.node is not None else None
        for name in view.offers.of(labels.INSTANCE_TYPE).values if limits else ():
            yield name, limits or {}


def _told_by_types(indexes: Iterable[TypeIndex]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for index in {id(index): index for index in indexes}.values():
        if any(name.startswith(SLOT) for name in index.resources):
            for item in index.types:
                slots = [(name, amount) for name, amount in item.capacity.items() if name.startswith(SLOT)]
                if slots:
                    yield item.name, {name.removeprefix(SLOT): amount // res.ONE for name, amount in slots}


class Attaching:
    """What volumes take of machines in one decision. ``wanted`` is what each pod mounts that may want a machine.

    To machines to come attachments are one more resource, and each pod asks for as many as it has claims; those that several pods
    share are set aside on every machine, as nobody knows where they will meet. Nothing of this exists where no waiting pod
    mounts anything that is limited.
    """

    def __init__(self, volumes: Volumes, limits: Mapping[str, Mapping[str, int]], wanted: Iterable[Mounted]) -> None:
        self._volumes = volumes
        self._limits = limits
        least: dict[str, int] = {}
        for known in limits.values():
            least |= {driver: min(limit, least.get(driver, limit)) for driver, limit in known.items()}
        mounted: dict[str, list[frozenset[str]]] = {}
        for mounts in wanted if least else ():
            for driver in mounts.keys() & least.keys():
                mounted.setdefault(driver, []).append(mounts[driver])
        self._shared = {driver: _shared(mounted[driver], least[driver]) for driver in sorted(mounted)}
        self._extended: dict[int, TypeIndex] = {}
        self._of_kept: dict[frozenset[str], Mapping[str, int]] = {}

    def requests(self, mounts: Mounted) -> Resources:
        """The attachments a pod asks of a machine to come."""
        found = {driver: len(mounts[driver] - shared) for driver, shared in self._shared.items() if driver in mounts}
        return {SLOT + driver: number * res.ONE for driver, number in found.items() if number}

    @property
    def plenty(self) -> Resources:
        """Attachments without end, for machines that are there: those are asked what they hold, claim by claim."""
        return {SLOT + driver: _ENDLESS for driver in self._shared}

    def extended(self, index: TypeIndex) -> TypeIndex:
        """The types with their attachments."""
        if not self._shared:
            return index
        known = self._extended.get(id(index))
        if known is None:
            added = {
                SLOT + driver: [self._slots(item.name, driver, shared) for item in index.types]
                for driver, shared in self._shared.items()
            }
            known = self._extended[id(index)] = index.beside(added)
        return known

    def _slots(self, name: str, driver: str, shared: frozenset[str]) -> int:
        limit = self._limits.get(name, {}).get(driver)
        return _ENDLESS if limit is None else (limit - len(shared)) * res.ONE

    def of_machine(self, view: NodeView) -> Mounts:
        """What a machine holds of its attachments now; until its node says how many there are, its type does."""
        name = view.node.metadata.name if view.node is not None else ""
        limits = self._volumes.limits.get(name) or ({} if view.initialized else self._of_types(view))
        return Mounts(limits, self._volumes.mounted(view.pods)) if limits else UNLIMITED

    def _of_types(self, view: NodeView) -> Mapping[str, int]:
        """The least that any of the types allows of which somebody knows."""
        kept = view.offers.of(labels.INSTANCE_TYPE).values if self._limits else _NONE
        known = self._of_kept.get(kept)
        if known is None:
            found: dict[str, int] = {}
            for name in kept:
                limits = self._limits.get(name, {})
                found |= {driver: min(limit, found.get(driver, limit)) for driver, limit in limits.items()}
            known = self._of_kept[kept] = found
        return known


def _shared(mounted: Sequence[frozenset[str]], least: int) -> frozenset[str]:
    """Claims that more than one pod mounts, unless they would take a noticeable part of the smallest machine."""
    users = Counter(identity for own in mounted for identity in own)
    found = frozenset(identity for identity, number in users.items() if number > 1)
    most = max(len(own - found) for own in mounted)
    return found if len(found) <= least // _PART and most + len(found) <= least else _NONE
