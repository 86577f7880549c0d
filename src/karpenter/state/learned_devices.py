"""What nodes teach about their instance types: the slices of a node stand for those of nodes to come (SCH-784 Beyond).

Karpenter knows the devices of a type from its provider alone. Most providers know none, but as soon as one node of a type has
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
    by_node: dict[str, dict[tuple[str, str], list[ResourceSliceSpec]]] = {}
    for each in slices:
        node = each.spec.node_name or ""
        if node in type_of_node:
            by_node.setdefault(node, {}).setdefault((each.spec.driver, each.spec.pool.name), []).append(each.spec)
    best: dict[str, tuple[int, tuple[ResourceSliceSpec, ...]]] = {}
    for node in sorted(by_node):
        learned = tuple(spec for key in sorted(by_node[node]) for spec in _whole_pool(by_node[node][key]))
        count = sum(len(spec.devices) for spec in learned)
        if count > best.get(type_of_node[node], (0, ()))[0]:
            best[type_of_node[node]] = (count, learned)
    return {name: learned for name, (_, learned) in best.items()}


def _whole_pool(slices: list[ResourceSliceSpec]) -> list[ResourceSliceSpec]:
    newest = max(spec.pool.generation for spec in slices)
    current = [spec for spec in slices if spec.pool.generation == newest]
    if len(current) != current[0].pool.resource_slice_count:
        return []
    return [_without_node(spec) for spec in current]


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
