"""Which machine to buy for a claim: the cheapest offering that satisfies all of it (OPS-256, OPS-259, OPS-267). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import labels, requirements
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.providers.contract import ProviderError

_LONGEST_LABEL = 63


class Refusal(StrEnum):
    """Why an offering of a type the claim names cannot be had."""

    INCOMPATIBLE = "not compatible with the claim's requirements"
    TOO_SMALL = "of a type too small for the requested resources"
    UNAVAILABLE = "not available now"


@dataclass(frozen=True, slots=True)
class Choice:
    """An offering of a type."""

    instance_type: InstanceType
    offering: Offering


@dataclass
class Market:
    """What a claim could be given: affordable choices, cheapest first, and why the other offerings are out."""

    choices: list[Choice] = field(default_factory=list)
    refusals: Counter[Refusal] = field(default_factory=Counter)
    types: int = 0

    def __str__(self) -> str:
        reasons = [f"{count} {reason}" for reason, count in sorted(self.refusals.items())]
        return f"of {self.types} instance types no offering is left: {', '.join(reasons) or 'none is known'}"


def wishes(claim: NodeClaim) -> Requirements:
    """What a claim requires."""
    return requirements.from_wire(claim.spec.requirements)


def market(
    types: Mapping[str, InstanceType], claim: NodeClaim, is_available: Callable[[InstanceType, Offering], bool]
) -> Market:
    """All choices for a claim, ordered by price, name, zone and capacity type. Raises ``ProviderError``."""
    wished, requests = wishes(claim), _requests(claim)
    found = Market()
    for instance_type in _named(types, wished):
        found.types += 1
        found.refusals.update(_sorted_out(found, instance_type, wished, requests, is_available))
    found.choices.sort(key=_order)
    return found


def _requests(claim: NodeClaim) -> res.Resources:
    try:
        return res.parse(claim.spec.resources.requests)
    except ValueError as error:
        raise ProviderError(f"claim {claim.metadata.name} asks for {error}") from error


def _named(types: Mapping[str, InstanceType], wished: Requirements) -> Iterator[InstanceType]:
    names = wished.of(labels.INSTANCE_TYPE)
    if names.complement:
        yield from (item for item in types.values() if names.allows(item.name))
    else:
        yield from (types[name] for name in names.values if name in types)


def _sorted_out(
    found: Market,
    instance_type: InstanceType,
    wished: Requirements,
    requests: res.Resources,
    is_available: Callable[[InstanceType, Offering], bool],
) -> Iterator[Refusal]:
    # The type defines every well-known label, so a label it has nothing to say about is the claim's own business.
    suits = requirements.intersects(instance_type.requirements, wished)
    fits = res.fits(requests, instance_type.allocatable)
    for offering in instance_type.offerings:
        if not suits or not requirements.intersects(offering.requirements, wished):
            yield Refusal.INCOMPATIBLE
        elif not fits:
            yield Refusal.TOO_SMALL
        elif not is_available(instance_type, offering):
            yield Refusal.UNAVAILABLE
        else:
            found.choices.append(Choice(instance_type, offering))


def _order(choice: Choice) -> tuple[float, str, str, str]:
    offering = choice.offering
    return offering.price_per_hour, choice.instance_type.name, offering.zone, offering.capacity_type


def resolved_labels(claim: NodeClaim, choice: Choice) -> dict[str, str]:
    """Labels settled by the launch: whatever claim, type and offering leave exactly one value for."""
    wished = wishes(claim).without(labels.SIMULATION_ONLY | {labels.HOSTNAME})
    together = wished.intersect(choice.instance_type.requirements).intersect(choice.offering.requirements)
    return dict(sorted(_single_values(together)))


def _single_values(settled: Requirements) -> Iterable[tuple[str, str]]:
    return (
        (key, next(iter(item.values))) for key, item in settled.items() if not item.complement and len(item.values) == 1
    )


def node_labels(claim: NodeClaim, choice: Choice) -> dict[str, str]:
    """Labels the Node registers with (OPS-259)."""
    return {
        **claim.metadata.labels,
        **resolved_labels(claim, choice),
        labels.HOSTNAME: claim.metadata.name[:_LONGEST_LABEL].rstrip(".-"),
        "kwok.x-k8s.io/node": "fake",
        "kwok-partition": "a",
        "eks-node-viewer/instance-price": f"{choice.offering.price_per_hour:.6f}",
    }
