"""Hosts as instance types, and which of them a NodeClaim gets (pure).

Hosts with the same labels and amounts are one instance type, whatever their zone and cost. An offering of it is available while
one of its hosts is free. The free hosts of one zone and capacity type are a stock, so that no plan has more nodes than there are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from karpenter.api.karpenter import NodeClaim
from karpenter.api.machine_node_class import MachineHost
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.instance_type_file import parse_instance_types
from karpenter.model import labels, requirements
from karpenter.model import resources as res

#: The zone of hosts without one.
DEFAULT_ZONE = "default"
_PLACE = frozenset({labels.ZONE, labels.CAPACITY_TYPE, labels.ARCH, labels.OS, labels.INSTANCE_TYPE})
#: Instance type, zone, capacity type and cost.
_OfferingKey = tuple[str, str, str, float]


class HostsError(ValueError):
    """Hosts cannot be used as they are listed; the message names them."""


@dataclass(frozen=True)
class HostChoice:
    """A host, and what it is as an instance type."""

    host: MachineHost
    instance_type: InstanceType
    offering: Offering

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the Node."""
        return dict(host_labels(self.host))


def host_labels(host: MachineHost) -> Mapping[str, str]:
    """The labels of a host, with those that every Node has."""
    defaults = {
        labels.ZONE: DEFAULT_ZONE,
        labels.CAPACITY_TYPE: labels.ON_DEMAND,
        labels.ARCH: "amd64",
        labels.OS: "linux",
    }
    own = {**defaults, **host.labels}
    return {labels.INSTANCE_TYPE: _type_name(host, own), **own}


def _type_name(host: MachineHost, own: Mapping[str, str]) -> str:
    """Cores, memory and architecture; a digest covers all other differences between hosts."""
    amounts = res.parse_resources(host.capacity)
    cores, gib = amounts.get("cpu", 0) / 1000, amounts.get("memory", 0) / 1000 / 2**30
    rest = _shape(host, own)
    digest = hashlib.sha256(msgspec.json.encode(rest, order="deterministic")).hexdigest()[:6]
    return f"host-{cores:g}cpu-{gib:g}gi-{digest}"


def _shape(host: MachineHost, own: Mapping[str, str]) -> tuple[object, ...]:
    further = {key: value for key, value in own.items() if key not in _PLACE}
    amounts = (sorted(res.parse_resources(each).items()) for each in (host.capacity, host.overhead))
    return (own[labels.ARCH], own[labels.OS], sorted(further.items()), *amounts)


def _offering_key(host: MachineHost) -> _OfferingKey:
    own = host_labels(host)
    return (own[labels.INSTANCE_TYPE], own[labels.ZONE], own[labels.CAPACITY_TYPE], float(host.cost_per_hour))


def instance_types(class_name: str, hosts: Iterable[MachineHost], busy: Collection[str]) -> tuple[InstanceType, ...]:
    """The available hosts of a class. ``busy``: hosts in use, and that did not come up. Raises ``ValueError``."""
    by_type: dict[str, list[MachineHost]] = {}
    free: Counter[tuple[str, str, str]] = Counter()
    for host in hosts:
        name, zone, capacity_type, _ = _offering_key(host)
        by_type.setdefault(name, []).append(host)
        free[name, zone, capacity_type] += host.name not in busy
    entries = [_entry(name, alike, busy) for name, alike in by_type.items()]
    types = parse_instance_types(msgspec.json.encode(entries), "hosts")
    return tuple(
        replace(each, offerings=tuple(_counted(class_name, each.name, free, each.offerings))) for each in types
    )


def _counted(
    class_name: str, type_name: str, free: Mapping[tuple[str, str, str], int], offerings: Iterable[Offering]
) -> Iterator[Offering]:
    """The offerings with their stocks. Another class may have hosts of the same type."""
    for offering in offerings:
        place = (type_name, offering.zone, offering.capacity_type)
        yield replace(offering, stock="/".join((class_name, *place)), reservation_capacity=free[place])


def _entry(name: str, alike: list[MachineHost], busy: Collection[str]) -> dict[str, object]:
    first, own = alike[0], host_labels(alike[0])
    for other in alike[1:]:
        if _shape(other, host_labels(other)) != _shape(first, own):
            raise HostsError(f"hosts {first.name} and {other.name} differ and have the same instance type {name}")
    free: dict[_OfferingKey, bool] = {}
    for host in alike:
        free[_offering_key(host)] = free.get(_offering_key(host), False) or host.name not in busy
    return {
        "name": name,
        "architecture": own[labels.ARCH],
        "operatingSystems": [own[labels.OS]],
        "resources": dict(first.capacity),
        "overhead": dict(first.overhead),
        "labels": {key: value for key, value in own.items() if key not in _PLACE},
        "offerings": [_offering(key, available=available) for key, available in free.items()],
    }


def _offering(key: _OfferingKey, *, available: bool) -> dict[str, object]:
    _, zone, capacity_type, price = key
    required = ((labels.ZONE, zone), (labels.CAPACITY_TYPE, capacity_type))
    return {
        "price": price,
        "available": available,
        "requirements": [{"key": name, "operator": "In", "values": [value]} for name, value in required],
    }


def suitable_hosts(
    claim: NodeClaim, hosts: Iterable[MachineHost], types: Iterable[InstanceType], busy: Collection[str]
) -> Iterator[HostChoice]:
    """The free hosts that satisfy a claim and hold its requests, the cheapest first."""
    required = requirements.requirements_from_wire(claim.spec.requirements)
    requests = res.parse_resources(claim.spec.resources.requests)
    offerings = {
        (kind.name, offering.zone, offering.capacity_type, offering.price_per_hour): (kind, offering)
        for kind in types
        if requirements.intersects(kind.requirements, required) and res.fits(requests, kind.allocatable)
        for offering in kind.offerings
        if requirements.intersects(offering.requirements, required)
    }
    for host in sorted(hosts, key=lambda host: (float(host.cost_per_hour), host.name)):
        type_and_offering = offerings.get(_offering_key(host))
        if type_and_offering is not None and host.name not in busy:
            yield HostChoice(host, *type_and_offering)
