"""How many volumes a node can take besides those it holds (SCH-470).

A driver attaches so many volumes to a node and no more; a claim that several pods of the node share is attached once. What new
nodes will allow few say before they run, but nodes of the same type say it of themselves: Beyond of SCH-293.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.pod_volumes import ClusterVolumes, VolumesByDriver
from karpenter.state.state_node import StateNode

#: Attachments of a driver as a resource, called as kubelets once called them.
ATTACHMENT_RESOURCE_PREFIX = "attachable-volumes-csi-"
#: More attachments than there are pods.
_UNLIMITED_ATTACHMENTS = 10**6 * res.ONE_UNIT
#: Shared claims may take one part in so many of the smallest node's attachments.
_SHARED_FRACTION = 4
_NONE: frozenset[str] = frozenset()


class VolumeUsage:
    """What one node holds of the attachments its drivers allow. Immutable; costs nothing where no limit is known."""

    __slots__ = ("_attached", "_limits")

    def __init__(self, limits: Mapping[str, int], held: VolumesByDriver) -> None:
        self._limits = limits
        self._attached = {driver: held[driver] for driver in limits.keys() & held.keys()}

    def count_fitting(self, wanted: Sequence[VolumesByDriver]) -> int:
        """How many of the leading pods fit together; each is given by what it mounts."""
        if not self._limits:
            return len(wanted)
        held = {driver: set(self._attached.get(driver, _NONE)) for driver in self._limits}
        for number, mounts in enumerate(wanted):
            for driver in held.keys() & mounts.keys():
                if not mounts[driver] <= held[driver]:
                    held[driver] |= mounts[driver]
                    if len(held[driver]) > self._limits[driver]:
                        return number
        return len(wanted)

    def with_pods(self, taken: Iterable[VolumesByDriver]) -> VolumeUsage:
        """The node with these pods too, whether or not they fit."""
        if not self._limits:
            return self
        held = {driver: set(self._attached.get(driver, _NONE)) for driver in self._limits}
        for mounts in taken:
            for driver in held.keys() & mounts.keys():
                held[driver] |= mounts[driver]
        return VolumeUsage(self._limits, {driver: frozenset(identities) for driver, identities in held.items()})


#: A node without known limits.
UNLIMITED_VOLUMES = VolumeUsage({}, {})


def volume_limits_of_types(
    volumes: ClusterVolumes, views: Iterable[StateNode], indexes: Iterable[TypeIndex]
) -> dict[str, dict[str, int]]:
    """Attachments by instance type and driver: the least that nodes of the type allow, or that the type itself declares.

    Types without known limits are not listed. A type declares a limit by a capacity of that name, which instance-type files and
    NodeOverlays may set.
    """
    volume_limits: dict[str, dict[str, int]] = {}
    for name, limits in (*_limits_from_nodes(volumes, views), *_limits_from_types(indexes)):
        setdefault = volume_limits.setdefault(name, {})
        setdefault.update({driver: min(limit, setdefault.get(driver, limit)) for driver, limit in limits.items()})
    return volume_limits


def _limits_from_nodes(volumes: ClusterVolumes, views: Iterable[StateNode]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for view in views if volumes.attach_limits else ():
        limits = volumes.attach_limits.get(view.node.metadata.name) if view.node is not None else None
        for name in view.requirements.requirement_for(labels.INSTANCE_TYPE).values if limits else ():
            yield name, limits or {}


def _limits_from_types(indexes: Iterable[TypeIndex]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for index in {id(index): index for index in indexes}.values():
        if any(name.startswith(ATTACHMENT_RESOURCE_PREFIX) for name in index.resources):
            for instance_type in index.types:
                slots = [
                    (name, amount)
                    for name, amount in instance_type.capacity.items()
                    if name.startswith(ATTACHMENT_RESOURCE_PREFIX)
                ]
                if slots:
                    yield (
                        instance_type.name,
                        {
                            name.removeprefix(ATTACHMENT_RESOURCE_PREFIX): amount // res.ONE_UNIT
                            for name, amount in slots
                        },
                    )


class VolumeAttachments:
    """What volumes take of nodes in one decision. ``wanted`` is what each pod mounts that may want a node.

    To new nodes attachments are one more resource, and each pod asks for as many as it has claims; those that several pods
    share are set aside on every node, because it is not known which nodes those pods will share. If no waiting pod mounts a
    limited volume, there are no such resources.
    """

    def __init__(
        self, volumes: ClusterVolumes, limits: Mapping[str, Mapping[str, int]], wanted: Iterable[VolumesByDriver]
    ) -> None:
        self._volumes = volumes
        self._limits = limits
        least: dict[str, int] = {}
        for limits_of_type in limits.values():
            least |= {driver: min(limit, least.get(driver, limit)) for driver, limit in limits_of_type.items()}
        mounted: dict[str, list[frozenset[str]]] = {}
        for mounts in wanted if least else ():
            for driver in mounts.keys() & least.keys():
                mounted.setdefault(driver, []).append(mounts[driver])
        self._shared = {driver: _shared_claims(mounted[driver], least[driver]) for driver in sorted(mounted)}
        self._extended_indexes: dict[int, TypeIndex] = {}
        self._limits_by_types: dict[frozenset[str], Mapping[str, int]] = {}

    @property
    def are_unlimited(self) -> bool:
        """Whether no limit is known, so that volumes take nothing of nodes."""
        return not self._limits and not self._volumes.attach_limits

    def attachment_requests(self, mounts: VolumesByDriver) -> Resources:
        """The attachments a pod asks of a node to come."""
        attachments = {
            driver: len(mounts[driver] - shared) for driver, shared in self._shared.items() if driver in mounts
        }
        return {
            ATTACHMENT_RESOURCE_PREFIX + driver: number * res.ONE_UNIT
            for driver, number in attachments.items()
            if number
        }

    @property
    def unlimited_attachments(self) -> Resources:
        """Attachments without end, for nodes that are there: those are asked what they hold, claim by claim."""
        return {ATTACHMENT_RESOURCE_PREFIX + driver: _UNLIMITED_ATTACHMENTS for driver in self._shared}

    def with_attachments(self, index: TypeIndex) -> TypeIndex:
        """The types with their attachments."""
        if not self._shared:
            return index
        type_index = self._extended_indexes.get(id(index))
        if type_index is None:
            added = {
                ATTACHMENT_RESOURCE_PREFIX + driver: [
                    self._attachments_of_type(instance_type.name, driver, shared) for instance_type in index.types
                ]
                for driver, shared in self._shared.items()
            }
            type_index = self._extended_indexes[id(index)] = index.with_resources(added)
        return type_index

    def _attachments_of_type(self, name: str, driver: str, shared: frozenset[str]) -> int:
        limit = self._limits.get(name, {}).get(driver)
        return _UNLIMITED_ATTACHMENTS if limit is None else (limit - len(shared)) * res.ONE_UNIT

    def usage_of_node(self, view: StateNode) -> VolumeUsage:
        """What a node holds of its attachments now; until its node says how many there are, its type does."""
        name = view.node.metadata.name if view.node is not None else ""
        limits = self._volumes.attach_limits.get(name) or (
            {} if view.initialized else self._limits_of_possible_types(view)
        )
        return VolumeUsage(limits, self._volumes.attached_volumes(view.pods)) if limits else UNLIMITED_VOLUMES

    def _limits_of_possible_types(self, view: StateNode) -> Mapping[str, int]:
        """The least that any of the possible types with known limits allows."""
        kept = view.requirements.requirement_for(labels.INSTANCE_TYPE).values if self._limits else _NONE
        cached = self._limits_by_types.get(kept)
        if cached is None:
            least: dict[str, int] = {}
            for name in kept:
                limits = self._limits.get(name, {})
                least |= {driver: min(limit, least.get(driver, limit)) for driver, limit in limits.items()}
            cached = self._limits_by_types[kept] = least
        return cached


#: For decisions without known limits.
NO_VOLUME_LIMITS = VolumeAttachments(ClusterVolumes(), {}, ())


def _shared_claims(mounted: Sequence[frozenset[str]], least: int) -> frozenset[str]:
    """Claims that more than one pod mounts, unless they would take a noticeable part of the smallest node."""
    users = Counter(identity for own in mounted for identity in own)
    shared = frozenset(identity for identity, number in users.items() if number > 1)
    most = max(len(own - shared) for own in mounted)
    return shared if len(shared) <= least // _SHARED_FRACTION and most + len(shared) <= least else _NONE
