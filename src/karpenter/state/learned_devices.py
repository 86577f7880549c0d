"""Devices of instance types, learned from their nodes: the slices of a node stand for those of nodes to come (SCH-784 Beyond).

Karpenter gets the devices of a type from its provider alone. Most providers report none, but as soon as one node of a type has
published its devices, the next one will have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from karpenter.api.resource_claims import BasicDevice, Device, ResourceSlice, ResourceSliceSpec

#: Parts of attribute names that tell one device from all others: no device to come will have such a value.
_IDENTIFYING = ("uuid", "serial")


def learned_devices(
    slices: Iterable[ResourceSlice], type_of_node: Mapping[str, str]
) -> dict[str, tuple[ResourceSliceSpec, ...]]:
    """Slices without their node by instance type: those of the node with the most devices, then by name of node.

    Only whole pools of the newest generation count.
    """
    by_node: dict[str, list[ResourceSliceSpec]] = {}
    for each in slices:
        node = each.spec.node_name or ""
        if node in type_of_node:
            by_node.setdefault(node, []).append(each.spec)
    best: dict[str, tuple[int, tuple[ResourceSliceSpec, ...]]] = {}
    for node in sorted(by_node):
        pools = whole_pools(by_node[node])
        learned = tuple(_without_node(spec) for key in sorted(pools) for spec in pools[key])
        count = sum(len(spec.devices) for spec in learned)
        if count > best.get(type_of_node[node], (0, ()))[0]:
            best[type_of_node[node]] = (count, learned)
    return {name: learned for name, (_, learned) in best.items()}


def whole_pools(slices: Iterable[ResourceSliceSpec]) -> dict[tuple[str, str], list[ResourceSliceSpec]]:
    """The pools of which all slices of the newest generation are there, by driver and name."""
    by_pool: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
    for spec in slices:
        by_pool.setdefault((spec.driver, spec.pool.name), []).append(spec)
    newest = {key: max(spec.pool.generation for spec in own) for key, own in by_pool.items()}
    current = {key: [spec for spec in own if spec.pool.generation == newest[key]] for key, own in by_pool.items()}
    return {key: own for key, own in current.items() if len(own) == own[0].pool.resource_slice_count}


def _without_node(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    devices = tuple(_anonymous(device) for device in spec.devices)
    return msgspec.structs.replace(spec, node_name=None, devices=devices)


def _anonymous(device: Device) -> Device:
    """The device without what only this one has: its identity and its taints."""
    flat = device.flat
    attributes = {
        name: value for name, value in flat.attributes.items() if not any(part in name.lower() for part in _IDENTIFYING)
    }
    plain: BasicDevice = msgspec.structs.replace(flat, attributes=attributes, taints=(), node_name=None)
    fields = {name: getattr(plain, name) for name in BasicDevice.__struct_fields__}
    return Device(name=device.name, **fields)
