"""The device index of the cluster state: resource claims, their templates, device classes and slices, as watched.

It learns what nodes of each instance type publish and remembers that when the nodes are gone, so the next node of such a type can
be launched for a claim. The memory ends with the process; then the first node has to be there for other reasons, or its type must
have templates (`learned_devices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from karpenter.api.core import Node
from karpenter.api.resource_claims import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    ResourceSliceSpec,
)
from karpenter.model import labels
from karpenter.state.cluster_devices import ClusterDevices, ObjectKey
from karpenter.state.learned_devices import learned_devices, whole_pools


class DeviceIndex:
    """Follows device claims. ``on_change`` is called with every change. Until it is enabled, pods with claims are left alone."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._is_enabled = False
        self._claims: dict[ObjectKey, ResourceClaim] = {}
        self._templates: dict[ObjectKey, ResourceClaimTemplate] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._learned: dict[str, tuple[ResourceSliceSpec, ...]] = {}
        self._slices_changed = False
        self._snapshot: ClusterDevices | None = None

    def enable(self) -> None:
        """Plan for pods with claims from now on."""
        self._is_enabled = True
        self._changed()

    def snapshot(self, nodes: Mapping[str, Node]) -> ClusterDevices | None:
        """Everything, immutable; None until enabled. ``nodes`` by name say which type has published what."""
        if not self._is_enabled:
            return None
        if self._slices_changed:
            self._learn(nodes)
        if self._snapshot is None:
            self._snapshot = ClusterDevices(
                dict(self._claims),
                dict(self._templates),
                dict(self._classes),
                tuple(self._slices[name] for name in sorted(self._slices)),
                dict(self._learned),
            )
        return self._snapshot

    def _learn(self, nodes: Mapping[str, Node]) -> None:
        named = {each.spec.node_name or "" for each in self._slices.values()}
        types = {name: nodes[name].metadata.labels.get(labels.INSTANCE_TYPE, "") for name in named if name in nodes}
        learned = learned_devices(self._slices.values(), {name: own for name, own in types.items() if own})
        # A slice may arrive before its Node: it is read again until all Nodes are known.
        self._slices_changed = any(name and name not in nodes for name in named)
        if any(self._learned.get(name) != own for name, own in learned.items()):
            self._learned = {**self._learned, **learned}
            self._snapshot = None

    @property
    def is_enabled(self) -> bool:
        """Whether pods with claims are planned for."""
        return self._is_enabled

    def unpublished_driver(self, drivers: Iterable[str], node_name: str) -> str:
        """The first of these drivers without a whole pool on a Node; empty when all have one (OPS-044).

        Slices count that are of the Node, by its name or by their owner.
        """
        local = [each.spec for each in self._slices.values() if _is_local(each, node_name)]
        published = {driver for driver, _ in whole_pools(local)}
        return next((driver for driver in drivers if driver not in published), "")

    # -- events -----------------------------------------------------------------------------------------------------------------

    def set_object(self, obj: ResourceClaim | ResourceClaimTemplate | DeviceClass | ResourceSlice) -> None:
        """An object of any of the kinds appeared or changed."""
        match obj:
            case ResourceClaim():
                self.set_claim(obj)
            case ResourceClaimTemplate():
                self.set_template(obj)
            case DeviceClass():
                self.set_class(obj)
            case ResourceSlice():
                self.set_slice(obj)

    def set_claim(self, claim: ResourceClaim) -> None:
        """A claim appeared or changed."""
        self._claims[claim.metadata.namespace, claim.metadata.name] = claim
        self._changed()

    def remove_claim(self, key: ObjectKey) -> None:
        """A claim is gone."""
        self._claims.pop(key, None)
        self._changed()

    def set_template(self, template: ResourceClaimTemplate) -> None:
        """A template of claims appeared or changed."""
        self._templates[template.metadata.namespace, template.metadata.name] = template
        self._changed()

    def remove_template(self, key: ObjectKey) -> None:
        """A template of claims is gone."""
        self._templates.pop(key, None)
        self._changed()

    def set_class(self, device_class: DeviceClass) -> None:
        """A device class appeared or changed."""
        self._classes[device_class.metadata.name] = device_class
        self._changed()

    def remove_class(self, name: str) -> None:
        """A device class is gone."""
        self._classes.pop(name, None)
        self._changed()

    def set_slice(self, resource_slice: ResourceSlice) -> None:
        """A slice appeared or changed."""
        self._slices[resource_slice.metadata.name] = resource_slice
        self._slices_changed = True
        self._changed()

    def remove_slice(self, name: str) -> None:
        """A slice is gone."""
        self._slices.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self._snapshot = None
        self._on_change()


def _is_local(resource_slice: ResourceSlice, node_name: str) -> bool:
    owners = resource_slice.metadata.owner_references
    return resource_slice.spec.node_name == node_name or any(
        owner.kind == "Node" and owner.name == node_name for owner in owners
    )
