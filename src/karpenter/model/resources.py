"""Arithmetic on resource lists (SCH-190 ff.): mappings from resource name to an exact amount in thousandths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.meta import WireResources
from karpenter.model import quantity

#: Resource name to amount in thousandths (millicores, milli-bytes, ...). Read-only by convention.
Resources = Mapping[str, int]

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
NODES = "nodes"
ONE_UNIT = quantity.MILLI

_BINARY_RESOURCES = frozenset({MEMORY, EPHEMERAL_STORAGE})


def parse_resources(wire: WireResources) -> dict[str, int]:
    """Exact amounts of a wire resource list. Raises ``quantity.QuantityError``."""
    return {name: quantity.parse_milli(value) for name, value in wire.items()}


def resources_to_wire(resources: Resources) -> dict[str, str]:
    """Canonical wire form, names sorted; memory-like resources in binary units."""
    return {
        name: quantity.quantity_text(amount, binary=_is_binary_resource(name))
        for name, amount in sorted(resources.items())
    }


def _is_binary_resource(name: str) -> bool:
    return name in _BINARY_RESOURCES or name.startswith("hugepages-")


def add(*lists: Resources) -> dict[str, int]:
    """Sum per resource name (SCH-190)."""
    total: dict[str, int] = {}
    for resources in lists:
        for name, amount in resources.items():
            total[name] = total.get(name, 0) + amount
    return total


def subtract(left: Resources, right: Resources) -> dict[str, int]:
    """Difference for the names of the left side only (SCH-190)."""
    return {name: amount - right.get(name, 0) for name, amount in left.items()}


def maximum(resource_lists: Iterable[Resources]) -> dict[str, int]:
    """Largest amount per name, over the union of names (SCH-190)."""
    result: dict[str, int] = {}
    for resources in resource_lists:
        for name, amount in resources.items():
            most = result.get(name)
            if most is None or amount > most:
                result[name] = amount
    return result


def limited_resources(limits: Iterable[str]) -> list[str]:
    """The resources that limits count, but for nodes, of which every node takes one."""
    return [name for name in limits if name != NODES]


def taken_of_limit(name: str, amounts: Resources) -> int:
    """What a node with these amounts takes of a limit (SCH-384)."""
    return ONE_UNIT if name == NODES else amounts.get(name, 0)


def minimum(resource_lists: Iterable[Resources]) -> dict[str, int]:
    """Smallest amount per name, over the names all lists share (SCH-190)."""
    result: dict[str, int] | None = None
    for resources in resource_lists:
        if result is None:
            result = dict(resources)
        else:
            result = {name: min(amount, resources[name]) for name, amount in result.items() if name in resources}
    return result or {}


def fits(requests: Resources, available: Resources) -> bool:
    """Whether every request is available; a missing resource counts as 0.

    SCH-198 with its Beyond: a negative amount of a resource that is not requested does not matter.
    """
    return all(amount <= 0 or amount <= available.get(name, 0) for name, amount in requests.items())
