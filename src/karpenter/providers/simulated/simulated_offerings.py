"""Which instance to launch for a claim: the cheapest offering that satisfies all of it (OPS-256, OPS-259, OPS-267). Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import msgspec
from msgspec.structs import replace

from karpenter.api.core import ResourceRequirements
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels, requirements
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.providers.contract import ProviderError

_LONGEST_LABEL = 63
#: So many lists of requirements are remembered with their offerings.
_MAX_REQUIREMENTS = 64


class SimulatedOfferingRejection(StrEnum):
    """Why an offering of a type the claim names cannot be had."""

    INCOMPATIBLE = "not compatible with the claim's requirements"
    TOO_SMALL = "of a type too small for the requested resources"
    UNAVAILABLE = "not available now"


@dataclass(frozen=True, slots=True)
class SimulatedOffering:
    """An offering, and its type with the amounts that the offering overrides."""

    instance_type: InstanceType
    offering: Offering


@dataclass
class SimulatedOfferings:
    """What a claim could be given: affordable choices, cheapest first, and why the other offerings are out."""

    launchable: list[SimulatedOffering] = field(default_factory=list)
    rejections: Counter[SimulatedOfferingRejection] = field(default_factory=Counter)
    type_count: int = 0

    def __str__(self) -> str:
        reasons = [f"{count} {reason}" for reason, count in sorted(self.rejections.items())]
        return f"of {self.type_count} instance types no offering is left: {', '.join(reasons) or 'none is known'}"


def claim_requirements(claim: NodeClaim) -> Requirements:
    """What a claim requires."""
    return requirements.requirements_from_wire(claim.spec.requirements)


def launchable_offerings(
    types: Mapping[str, InstanceType], claim: NodeClaim, is_available: Callable[[InstanceType, Offering], bool]
) -> SimulatedOfferings:
    """All choices for a claim, ordered by price, name, zone and capacity type. Raises ``ProviderError``."""
    wished, requests = claim_requirements(claim), claim_requests(claim)
    offerings = SimulatedOfferings()
    # Offerings of different types require the same few zones and capacity types.
    suits = cache(lambda of_offering: requirements.intersects(of_offering, wished))
    for instance_type in _types_named_by_claim(types, wished):
        offerings.type_count += 1
        # The type defines every well-known label, so a label it has nothing to say about is the claim's own business.
        if not requirements.intersects(instance_type.requirements, wished):
            offerings.rejections[SimulatedOfferingRejection.INCOMPATIBLE] += len(instance_type.offerings)
            continue
        offerings.rejections.update(_classify_offerings(offerings, instance_type, suits, requests, is_available))
    offerings.launchable.sort(key=_price_order)
    return offerings


class CompatibleOfferings:
    """Offerings of ``types`` that satisfy the requirements of claims, cheapest first, whatever is requested and available.

    The claims of a plan have few different lists of requirements, each with dozens of types, so the lists are remembered.
    """

    def __init__(self, types: Mapping[str, InstanceType]) -> None:
        self._types = types
        self._by_requirements: OrderedDict[bytes, tuple[SimulatedOffering, ...]] = OrderedDict()

    def of(self, claim: NodeClaim) -> tuple[SimulatedOffering, ...]:
        """The offerings for a claim, ordered by price, name, zone and capacity type."""
        key = msgspec.json.encode(claim.spec.requirements)
        found = self._by_requirements.pop(key, None)
        if found is None:
            of_any_size = replace(claim, spec=replace(claim.spec, resources=ResourceRequirements()))
            found = tuple(launchable_offerings(self._types, of_any_size, lambda *_: True).launchable)
        self._by_requirements[key] = found
        if len(self._by_requirements) > _MAX_REQUIREMENTS:
            self._by_requirements.popitem(last=False)
        return found


def claim_requests(claim: NodeClaim) -> res.Resources:
    """What a claim requests. Raises ``ProviderError`` for amounts that are no quantities."""
    try:
        return res.parse_resources(claim.spec.resources.requests)
    except ValueError as error:
        raise ProviderError(f"claim {claim.metadata.name} asks for {error}") from error


def _types_named_by_claim(types: Mapping[str, InstanceType], required: Requirements) -> Iterator[InstanceType]:
    names = required.requirement_for(labels.INSTANCE_TYPE)
    if names.complement:
        yield from (instance_type for instance_type in types.values() if names.allows(instance_type.name))
    else:
        yield from (types[name] for name in names.values if name in types)


def _classify_offerings(
    offerings: SimulatedOfferings,
    instance_type: InstanceType,
    suits: Callable[[Requirements], bool],
    requests: res.Resources,
    is_available: Callable[[InstanceType, Offering], bool],
) -> Iterator[SimulatedOfferingRejection]:
    for offering in instance_type.offerings:
        if not suits(offering.requirements):
            yield SimulatedOfferingRejection.INCOMPATIBLE
        elif not res.fits(requests, (sized := instance_type.sized_by(offering)).allocatable):
            yield SimulatedOfferingRejection.TOO_SMALL
        elif not is_available(instance_type, offering):
            yield SimulatedOfferingRejection.UNAVAILABLE
        else:
            offerings.launchable.append(SimulatedOffering(sized, offering))


def _price_order(choice: SimulatedOffering) -> tuple[float, str, str, str]:
    offering = choice.offering
    return offering.price_per_hour, choice.instance_type.name, offering.zone, offering.capacity_type


def resolved_labels(claim: NodeClaim, simulated_offering: SimulatedOffering) -> dict[str, str]:
    """Labels settled by the launch: whatever claim, type and offering leave exactly one value for."""
    wished = claim_requirements(claim).without(labels.SIMULATION_ONLY | {labels.HOSTNAME})
    together = wished.intersect(simulated_offering.instance_type.requirements).intersect(
        simulated_offering.offering.requirements
    )
    return dict(sorted(_single_values(together)))


def _single_values(combined: Requirements) -> Iterable[tuple[str, str]]:
    return (
        (key, next(iter(requirement.values)))
        for key, requirement in combined.items()
        if not requirement.complement and len(requirement.values) == 1
    )


def node_labels(claim: NodeClaim, simulated_offering: SimulatedOffering) -> dict[str, str]:
    """Labels the Node registers with (OPS-259)."""
    return {
        **claim.metadata.labels,
        **resolved_labels(claim, simulated_offering),
        labels.HOSTNAME: claim.metadata.name[:_LONGEST_LABEL].rstrip(".-"),
        "kwok.x-k8s.io/node": "fake",
        "kwok-partition": "a",
        "eks-node-viewer/instance-price": f"{simulated_offering.offering.price_per_hour:.6f}",
    }
