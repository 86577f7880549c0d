"""What of all that is sold a claim may be given, and in which order the choice narrows (AWS-420 to AWS-431). Pure.

Every filter takes the candidates and returns those that stay; ``FILTERS`` is the order. A candidate is a type of which only the
offerings that can be launched now and suit the claim are left, so no later step has to ask again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels, requirements
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements
from karpenter.providers.aws import aws_labels
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed

#: How many types a request names at most (AWS-428).
MAX_INSTANCE_TYPES = 60
#: Below this many types a warning is logged for an on-demand launch that could have been spot (AWS-431).
FLEXIBILITY_THRESHOLD = 5
ALL_UNAVAILABLE = "all requested instance types were unavailable during launch"

_EXOTIC_RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
)

CandidateTypes = tuple[InstanceType, ...]


@dataclass(frozen=True)
class LaunchRequirements:
    """What a claim asks of its instance."""

    requirements: Requirements
    requests: res.Resources

    def allows(self, key: str, value: str) -> bool:
        """Whether a label may have this value."""
        return self.requirements.requirement_for(key).allows(value)

    @property
    def allows_reserved(self) -> bool:
        """Whether reserved capacity will do."""
        return self.allows(labels.CAPACITY_TYPE, labels.RESERVED)

    @property
    def min_values_requirements(self) -> tuple[Requirement, ...]:
        """Requirements that ask for several different values among the types."""
        return tuple(requirement for requirement in self.requirements.values() if requirement.min_values is not None)


@dataclass(frozen=True)
class FilterRejection:
    """Types a filter took out."""

    filter: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class LaunchableTypes:
    """What is left, cheapest type first, and what each filter took out (AWS-429)."""

    types: CandidateTypes
    rejections: tuple[FilterRejection, ...]


def launch_requirements(claim: NodeClaim) -> LaunchRequirements:
    """What a claim asks for. Raises ``LaunchFailed`` for amounts that cannot be parsed."""
    try:
        requests = res.parse_resources(claim.spec.resources.requests)
    except ValueError as error:
        raise LaunchFailed("LaunchFailed", f"claim {claim.metadata.name} asks for {error}") from error
    return LaunchRequirements(requirements.requirements_from_wire(claim.spec.requirements), requests)


def filter_instance_types(
    required: LaunchRequirements, types: Sequence[InstanceType], *, strict_min_values: bool
) -> LaunchableTypes:
    """The types to ask for. ``strict_min_values``: where values are lacking, nothing is launched (policy Strict).

    Raises ``InsufficientCapacity`` where nothing is left (AWS-427, AWS-428).
    """
    remaining = _compatible_available(required, types)
    rejections = []
    for name, narrow in FILTERS:
        kept = narrow(required, remaining)
        gone = {instance_type.name for instance_type in remaining} - {instance_type.name for instance_type in kept}
        if gone:
            rejections.append(FilterRejection(name, tuple(sorted(gone))))
        remaining = kept
    if not remaining:
        raise InsufficientCapacity(ALL_UNAVAILABLE)
    remaining = tuple(
        sorted(remaining, key=lambda instance_type: (_cheapest_price(instance_type.offerings), instance_type.name))
    )[:MAX_INSTANCE_TYPES]
    lacking = _unmet_min_values(required, remaining) if strict_min_values else None
    if lacking is not None:
        raise InsufficientCapacity(f"minValues {lacking.min_values} of {lacking.key} cannot be had now")
    return LaunchableTypes(remaining, tuple(rejections))


def launch_capacity_type(required: LaunchRequirements, types: CandidateTypes) -> str:
    """The one capacity type of the request (AWS-430)."""
    capacity_types = {offering.capacity_type for instance_type in types for offering in instance_type.offerings}
    for kind in (labels.RESERVED, labels.SPOT):
        if kind in capacity_types and required.allows(labels.CAPACITY_TYPE, kind):
            return kind
    return labels.ON_DEMAND


def launch_tenancy(required: LaunchRequirements) -> str:
    """``default`` where it will do, else ``dedicated`` (AWS-430)."""
    return aws_labels.DEFAULT if required.allows(aws_labels.TENANCY, aws_labels.DEFAULT) else "dedicated"


def is_inflexible(required: LaunchRequirements, types: CandidateTypes) -> bool:
    """Whether an on-demand launch that might have been spot has few types to choose from (AWS-431)."""
    is_fallback = (
        required.allows(labels.CAPACITY_TYPE, labels.SPOT) and launch_capacity_type(required, types) == labels.ON_DEMAND
    )
    return is_fallback and len(types) < FLEXIBILITY_THRESHOLD


def offering_label(offering: Offering, key: str) -> str:
    """The one value an offering has for a label, empty where it has none or several."""
    values = offering.requirements[key].values if key in offering.requirements else frozenset()
    return next(iter(values)) if len(values) == 1 else ""


def offering_reservation_kind(offering: Offering) -> str:
    """``default``, ``capacity-block`` or ``interruptible-capacity-reservation``; empty for what is not reserved."""
    if offering.capacity_type != labels.RESERVED:
        return ""
    if offering_label(offering, aws_labels.RESERVATION_INTERRUPTIBLE) == "true":
        return aws_labels.INTERRUPTIBLE
    return offering_label(offering, aws_labels.RESERVATION_TYPE) or aws_labels.DEFAULT


def _compatible_available(required: LaunchRequirements, types: Iterable[InstanceType]) -> CandidateTypes:
    """AWS-420. Types know every well-known label, so a label they have nothing to say about is the claim's own business.

    Ten thousand offerings differ in a few dozen ways, so each way is asked about once.
    """
    suits: dict[Requirements, bool] = {}

    def can_use(offering: Offering) -> bool:
        asked = offering.requirements
        suit = suits.get(asked)
        if suit is None:
            suit = suits[asked] = requirements.intersects(asked, required.requirements)
        return suit

    names_allowed = required.requirements.requirement_for(labels.INSTANCE_TYPE)
    compatible = []
    for instance_type in types:
        if not names_allowed.allows(instance_type.name):
            continue
        offerings = tuple(offering for offering in instance_type.offerings if offering.launchable and can_use(offering))
        if (
            offerings
            and _fits(required, instance_type)
            and requirements.intersects(instance_type.requirements, required.requirements)
        ):
            compatible.append(
                instance_type
                if len(offerings) == len(instance_type.offerings)
                else replace(instance_type, offerings=offerings)
            )
    return tuple(compatible)


def _fits(required: LaunchRequirements, instance_type: InstanceType) -> bool:
    return res.fits(required.requests, instance_type.allocatable)


_RESERVATION_KIND_ORDER = {aws_labels.DEFAULT: 0, aws_labels.CAPACITY_BLOCK: 1, aws_labels.INTERRUPTIBLE: 2}


def _reservation_type(required: LaunchRequirements, types: CandidateTypes) -> CandidateTypes:
    """One request cannot mix kinds of reservations: the kind with the cheapest offering stays, alone (AWS-421)."""
    if not required.allows_reserved:
        return types
    cheapest: dict[str, float] = {}
    for instance_type in types:
        for offering in instance_type.offerings:
            kind = offering_reservation_kind(offering)
            if kind:
                cheapest[kind] = min(offering.price_per_hour, cheapest.get(kind, math.inf))
    if not cheapest:
        return types
    order = _RESERVATION_KIND_ORDER
    chosen = min(cheapest, key=lambda kind: (cheapest[kind], order.get(kind, len(order))))
    return _keep_offerings(types, lambda instance_type, offering: offering_reservation_kind(offering) == chosen)


def _capacity_block(required: LaunchRequirements, types: CandidateTypes) -> CandidateTypes:
    """A request names one block (AWS-422)."""
    blocks = [
        (offering.price_per_hour, instance_type.name, offering.zone, offering.reservation_id, offering)
        for instance_type in types
        for offering in instance_type.offerings
        if offering_reservation_kind(offering) == aws_labels.CAPACITY_BLOCK
    ]
    if not required.allows_reserved or not blocks:
        return types
    *_, chosen = min(blocks, key=lambda block: block[:4])
    return _keep_offerings(types, lambda instance_type, offering: offering is chosen)


def _reserved_offering(required: LaunchRequirements, types: CandidateTypes) -> CandidateTypes:
    """Per type and zone the reservation with most room; types without any go, unless all would (AWS-423)."""
    if not required.allows_reserved:
        return types
    best: dict[tuple[str, str], Offering] = {}
    for instance_type in types:
        for offering in instance_type.offerings:
            if offering.capacity_type != labels.RESERVED:
                continue
            current = best.get((instance_type.name, offering.zone))
            if current is None or (offering.reservation_capacity or 0) > (current.reservation_capacity or 0):
                best[instance_type.name, offering.zone] = offering
    if not best:
        return types
    return _keep_offerings(types, lambda type_, offering: best.get((type_.name, offering.zone)) is offering)


def _exotic(required: LaunchRequirements, types: CandidateTypes) -> CandidateTypes:
    """Bare metal and accelerators only where nothing else would do (AWS-425)."""
    if required.min_values_requirements:
        return types
    plain = tuple(instance_type for instance_type in types if not _is_exotic(instance_type))
    return plain or types


def _is_exotic(instance_type: InstanceType) -> bool:
    return "metal" in instance_type.name.partition(".")[2] or any(
        instance_type.capacity.get(name, 0) for name in _EXOTIC_RESOURCES
    )


def _spot(required: LaunchRequirements, types: CandidateTypes) -> CandidateTypes:
    """Spot that costs more than the cheapest on-demand instance is no bargain (AWS-426)."""
    both = all(required.allows(labels.CAPACITY_TYPE, kind) for kind in (labels.SPOT, labels.ON_DEMAND))
    ceiling = min(
        (
            offering.price_per_hour
            for instance_type in types
            for offering in instance_type.offerings
            if offering.capacity_type == labels.ON_DEMAND
        ),
        default=None,
    )
    if required.min_values_requirements or not both or ceiling is None:
        return types
    return _keep_offerings(
        types,
        lambda instance_type, offering: offering.capacity_type != labels.SPOT or offering.price_per_hour <= ceiling,
    )


#: The filters after the first, in order. Those about reservations do nothing for claims that do not allow them (AWS-424).
FILTERS: tuple[tuple[str, Callable[[LaunchRequirements, CandidateTypes], CandidateTypes]], ...] = (
    ("capacity-reservation-type", _reservation_type),
    ("capacity-block", _capacity_block),
    ("reserved-offering", _reserved_offering),
    ("exotic-instance", _exotic),
    ("spot-offering", _spot),
)


def _keep_offerings(types: CandidateTypes, keeps: Callable[[InstanceType, Offering], bool]) -> CandidateTypes:
    kept = []
    for instance_type in types:
        offerings = tuple(offering for offering in instance_type.offerings if keeps(instance_type, offering))
        if offerings:
            kept.append(
                instance_type
                if len(offerings) == len(instance_type.offerings)
                else replace(instance_type, offerings=offerings)
            )
    return tuple(kept)


def _cheapest_price(offerings: Iterable[Offering]) -> float:
    return min((offering.price_per_hour for offering in offerings), default=math.inf)


def _unmet_min_values(required: LaunchRequirements, types: CandidateTypes) -> Requirement | None:
    """A requirement whose number of different values these types do not reach."""
    for requirement in required.min_values_requirements:
        values = {
            value
            for instance_type in types
            if requirement.key in instance_type.requirements
            for value in instance_type.requirements[requirement.key].values
            if requirement.allows(value)
        }
        if len(values) < (requirement.min_values or 0):
            return requirement
    return None
