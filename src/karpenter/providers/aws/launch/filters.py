"""What of all that is sold a claim may be given, and in which order the choice narrows (AWS-420 to AWS-431). Pure.

Every filter takes the candidates and returns those that stay; ``FILTERS`` is the order. A candidate is a type of which only the
offerings that can be bought now and suit the claim are left, so no later step has to ask again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import labels, requirements
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements
from karpenter.providers.aws import names
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed

#: How many types a request names at most (AWS-428).
MOST_TYPES = 60
#: Below this many types an on-demand launch that could have been spot is told to be inflexible (AWS-431).
FLEXIBLE_TYPES = 5
ALL_UNAVAILABLE = "all requested instance types were unavailable during launch"

_EXOTIC_RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
)

Candidates = tuple[InstanceType, ...]


@dataclass(frozen=True)
class Wish:
    """What a claim asks of its machine."""

    requirements: Requirements
    requests: res.Resources

    def allows(self, key: str, value: str) -> bool:
        """Whether a label may have this value."""
        return self.requirements.of(key).allows(value)

    @property
    def allows_reserved(self) -> bool:
        """Whether reserved capacity will do."""
        return self.allows(labels.CAPACITY_TYPE, labels.RESERVED)

    @property
    def varied(self) -> tuple[Requirement, ...]:
        """Requirements that ask for several different values among the types."""
        return tuple(item for item in self.requirements.values() if item.min_values is not None)


@dataclass(frozen=True)
class Rejection:
    """Types a filter took out."""

    filter: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class Filtered:
    """What is left, cheapest type first, and what each filter took out (AWS-429)."""

    types: Candidates
    rejections: tuple[Rejection, ...]


def wish_of(claim: NodeClaim) -> Wish:
    """What a claim asks. Raises ``LaunchFailed`` for amounts nobody can read."""
    try:
        requests = res.parse(claim.spec.resources.requests)
    except ValueError as error:
        raise LaunchFailed("LaunchFailed", f"claim {claim.metadata.name} asks for {error}") from error
    return Wish(requirements.from_wire(claim.spec.requirements), requests)


def select(wish: Wish, types: Sequence[InstanceType], *, varied: bool) -> Filtered:
    """The types to ask for. ``varied``: a lack of different values is no launch (policy Strict).

    Raises ``InsufficientCapacity`` where nothing is left (AWS-427, AWS-428).
    """
    left = _compatible_available(wish, types)
    rejections = []
    for name, narrow in FILTERS:
        kept = narrow(wish, left)
        gone = {item.name for item in left} - {item.name for item in kept}
        if gone:
            rejections.append(Rejection(name, tuple(sorted(gone))))
        left = kept
    if not left:
        raise InsufficientCapacity(ALL_UNAVAILABLE)
    left = tuple(sorted(left, key=lambda item: (_cheapest(item.offerings), item.name)))[:MOST_TYPES]
    lacking = _lacking(wish, left) if varied else None
    if lacking is not None:
        raise InsufficientCapacity(f"minValues {lacking.min_values} of {lacking.key} cannot be had now")
    return Filtered(left, tuple(rejections))


def capacity_type(wish: Wish, types: Candidates) -> str:
    """The one capacity type of the request (AWS-430)."""
    sold = {offering.capacity_type for item in types for offering in item.offerings}
    for kind in (labels.RESERVED, labels.SPOT):
        if kind in sold and wish.allows(labels.CAPACITY_TYPE, kind):
            return kind
    return labels.ON_DEMAND


def tenancy(wish: Wish) -> str:
    """``default`` where it will do, else ``dedicated`` (AWS-430)."""
    return names.DEFAULT if wish.allows(names.TENANCY, names.DEFAULT) else "dedicated"


def is_inflexible(wish: Wish, types: Candidates) -> bool:
    """Whether an on-demand launch that might have been spot has few types to choose from (AWS-431)."""
    is_fallback = wish.allows(labels.CAPACITY_TYPE, labels.SPOT) and capacity_type(wish, types) == labels.ON_DEMAND
    return is_fallback and len(types) < FLEXIBLE_TYPES


def label(offering: Offering, key: str) -> str:
    """The one value an offering has for a label, empty where it has none or several."""
    values = offering.requirements[key].values if key in offering.requirements else frozenset()
    return next(iter(values)) if len(values) == 1 else ""


def reservation_kind(offering: Offering) -> str:
    """``default``, ``capacity-block`` or ``interruptible-capacity-reservation``; empty for what is not reserved."""
    if offering.capacity_type != labels.RESERVED:
        return ""
    if label(offering, names.RESERVATION_INTERRUPTIBLE) == "true":
        return names.INTERRUPTIBLE
    return label(offering, names.RESERVATION_TYPE) or names.DEFAULT


def _compatible_available(wish: Wish, types: Iterable[InstanceType]) -> Candidates:
    """AWS-420. Types know every well-known label, so a label they have nothing to say about is the claim's own business.

    Ten thousand offerings differ in a few dozen ways, so each way is asked about once.
    """
    suits: dict[Requirements, bool] = {}

    def can_use(offering: Offering) -> bool:
        asked = offering.requirements
        known = suits.get(asked)
        if known is None:
            known = suits[asked] = requirements.intersects(asked, wish.requirements)
        return known

    names_allowed = wish.requirements.of(labels.INSTANCE_TYPE)
    found = []
    for item in types:
        if not names_allowed.allows(item.name):
            continue
        offerings = tuple(offering for offering in item.offerings if offering.available and can_use(offering))
        if offerings and _fits(wish, item) and requirements.intersects(item.requirements, wish.requirements):
            found.append(item if len(offerings) == len(item.offerings) else replace(item, offerings=offerings))
    return tuple(found)


def _fits(wish: Wish, item: InstanceType) -> bool:
    return res.fits(wish.requests, item.allocatable)


_GROUP_ORDER = {names.DEFAULT: 0, names.CAPACITY_BLOCK: 1, names.INTERRUPTIBLE: 2}


def _reservation_type(wish: Wish, types: Candidates) -> Candidates:
    """One request cannot mix kinds of reservations: the kind with the cheapest offering stays, alone (AWS-421)."""
    if not wish.allows_reserved:
        return types
    cheapest: dict[str, float] = {}
    for item in types:
        for offering in item.offerings:
            kind = reservation_kind(offering)
            if kind:
                cheapest[kind] = min(offering.price_per_hour, cheapest.get(kind, math.inf))
    if not cheapest:
        return types
    chosen = min(cheapest, key=lambda kind: (cheapest[kind], _GROUP_ORDER.get(kind, len(_GROUP_ORDER))))
    return _keep(types, lambda item, offering: reservation_kind(offering) == chosen)


def _capacity_block(wish: Wish, types: Candidates) -> Candidates:
    """A request names one block (AWS-422)."""
    blocks = [
        (offering.price_per_hour, item.name, offering.zone, offering.reservation, offering)
        for item in types
        for offering in item.offerings
        if reservation_kind(offering) == names.CAPACITY_BLOCK
    ]
    if not wish.allows_reserved or not blocks:
        return types
    *_, chosen = min(blocks, key=lambda block: block[:4])
    return _keep(types, lambda item, offering: offering is chosen)


def _reserved_offering(wish: Wish, types: Candidates) -> Candidates:
    """Per type and zone the reservation with most room; types without any go, unless all would (AWS-423)."""
    if not wish.allows_reserved:
        return types
    best: dict[tuple[str, str], Offering] = {}
    for item in types:
        for offering in item.offerings:
            if offering.capacity_type != labels.RESERVED:
                continue
            known = best.get((item.name, offering.zone))
            if known is None or (offering.units_left or 0) > (known.units_left or 0):
                best[item.name, offering.zone] = offering
    if not best:
        return types
    return _keep(types, lambda item, offering: best.get((item.name, offering.zone)) is offering)


def _exotic(wish: Wish, types: Candidates) -> Candidates:
    """Bare metal and accelerators only where nothing else would do (AWS-425)."""
    if wish.varied:
        return types
    plain = tuple(item for item in types if not _is_exotic(item))
    return plain or types


def _is_exotic(item: InstanceType) -> bool:
    return "metal" in item.name.partition(".")[2] or any(item.capacity.get(name, 0) for name in _EXOTIC_RESOURCES)


def _spot(wish: Wish, types: Candidates) -> Candidates:
    """Spot that costs more than the cheapest on-demand machine is no bargain (AWS-426)."""
    both = all(wish.allows(labels.CAPACITY_TYPE, kind) for kind in (labels.SPOT, labels.ON_DEMAND))
    ceiling = min(
        (
            offering.price_per_hour
            for item in types
            for offering in item.offerings
            if offering.capacity_type == labels.ON_DEMAND
        ),
        default=None,
    )
    if wish.varied or not both or ceiling is None:
        return types
    return _keep(
        types, lambda item, offering: offering.capacity_type != labels.SPOT or offering.price_per_hour <= ceiling
    )


#: The filters after the first, in order. Those about reservations do nothing for claims that do not allow them (AWS-424).
FILTERS: tuple[tuple[str, Callable[[Wish, Candidates], Candidates]], ...] = (
    ("capacity-reservation-type", _reservation_type),
    ("capacity-block", _capacity_block),
    ("reserved-offering", _reserved_offering),
    ("exotic-instance", _exotic),
    ("spot-offering", _spot),
)


def _keep(types: Candidates, stays: Callable[[InstanceType, Offering], bool]) -> Candidates:
    kept = []
    for item in types:
        offerings = tuple(offering for offering in item.offerings if stays(item, offering))
        if offerings:
            kept.append(item if len(offerings) == len(item.offerings) else replace(item, offerings=offerings))
    return tuple(kept)


def _cheapest(offerings: Iterable[Offering]) -> float:
    return min((offering.price_per_hour for offering in offerings), default=math.inf)


def _lacking(wish: Wish, types: Candidates) -> Requirement | None:
    """A requirement whose number of different values these types do not reach."""
    for asked in wish.varied:
        values = {
            value
            for item in types
            if asked.key in item.requirements
            for value in item.requirements[asked.key].values
            if asked.allows(value)
        }
        if len(values) < (asked.min_values or 0):
            return asked
    return None
