"""NodeOverlays applied to instance types: changed prices and added capacity, as scheduling sees them (SCH §26, API §5).

``evaluate_overlays`` finds the overlays that conflict with another one of the same weight; these are not used at all.
``apply_overlays`` returns a pool's types with the accepted overlays: overlays with a higher weight come first, and the first one
that sets a price or resource wins. Everything else stays as the provider returned it.

Costs O(overlays x types), with one comparison per distinct label requirement and per distinct offering requirements. Twenty
overlays over five pools with all instance types of a cloud take a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property

from karpenter.api.karpenter import NodePool
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import (
    Requirement,
    Requirements,
    compatible,
    requirements_from_labels,
    requirements_from_wire,
)
from karpenter.model.resources import Resources

#: The conflicting setting if it is the price; otherwise it is the name of a resource.
PRICE_SETTING = "price"


@dataclass(frozen=True)
class PriceChange:
    """A price change: times ``factor``, plus ``addend`` per hour, never below 0 (SCH-759)."""

    factor: Decimal
    addend: Decimal

    def applied_to(self, price_per_hour: float) -> float:
        """The price after the change, computed in decimals."""
        kept = Decimal(repr(price_per_hour)) * self.factor if self.factor else Decimal(0)
        return float(max(kept + self.addend, Decimal(0)))


@dataclass(frozen=True)
class ParsedOverlay:
    """A parsed NodeOverlay."""

    name: str
    requirements: Requirements
    weight: int = 0
    price: PriceChange | None = None
    capacity: Resources = field(default_factory=dict)


@dataclass(frozen=True)
class NodePoolInstanceTypes:
    """The instance types of one pool."""

    node_pool: NodePool
    types: tuple[InstanceType, ...]


@dataclass(frozen=True)
class OverlayConflict:
    """Two overlays of one weight that set the same thing: the price, or a resource, of an instance type in a pool (SCH-757)."""

    accepted_overlay: str
    weight: int
    setting: str
    instance_type: str
    pool: str

    @property
    def message(self) -> str:
        """The conflict in a sentence, and how to resolve it."""
        setting = "the price" if self.setting == PRICE_SETTING else self.setting
        return (
            f"conflict with another overlay: {self.accepted_overlay} also sets {setting} of instance type "
            f"{self.instance_type} in NodePool {self.pool} and has the same weight ({self.weight}); "
            "give one of them another weight"
        )


@dataclass(frozen=True)
class OverlayEvaluation:
    """Accepted overlays in order of precedence, and the conflicts of the others, by name."""

    accepted: tuple[ParsedOverlay, ...] = ()
    conflicts: dict[str, OverlayConflict] = field(default_factory=dict)


def parse_overlay(overlay: NodeOverlay) -> ParsedOverlay:
    """Parse a valid overlay (``runtime_validation.validate_node_overlay`` has no findings)."""
    spec = overlay.spec
    return ParsedOverlay(
        overlay.metadata.name,
        requirements_from_wire(requirement.as_nodepool_requirement() for requirement in spec.requirements),
        spec.weight or 0,
        _price_change(spec),
        res.parse_resources(spec.capacity),
    )


def _price_change(spec: NodeOverlaySpec) -> PriceChange | None:
    if spec.price is not None:
        return PriceChange(Decimal(0), Decimal(spec.price))
    text = spec.price_adjustment
    if text is None:
        return None
    if text.endswith("%"):
        return PriceChange(1 + Decimal(text[:-1]) / 100, Decimal(0))
    return PriceChange(Decimal(1), Decimal(text))


def evaluate_overlays(
    overlays: Iterable[ParsedOverlay], pool_types: Iterable[NodePoolInstanceTypes]
) -> OverlayEvaluation:
    """Which overlays are accepted, over all pools (SCH-753, SCH-757).

    Order: weight descending, then name descending; the later one of two conflicting overlays is rejected in every pool. Beyond:
    compared with every overlay of its weight, not only with the one before it.
    """
    found: _FoundMatches = {}
    matchers = [_OverlayMatcher(instance_types, found) for instance_types in pool_types]
    touched: dict[_OverlaySetting, str] = {}
    accepted: list[ParsedOverlay] = []
    clashes: dict[str, OverlayConflict] = {}
    for overlay in sorted(
        overlays, key=lambda parsed_overlay: (parsed_overlay.weight, parsed_overlay.name), reverse=True
    ):
        wished = [touch for matcher in matchers for touch in matcher.settings_of(overlay)]
        contested = next((touch for touch in wished if touch in touched), None)
        if contested is not None:
            clashes[overlay.name] = contested.conflict_with(touched[contested])
        else:
            accepted.append(overlay)
            touched.update(dict.fromkeys(wished, overlay.name))
    return OverlayEvaluation(tuple(accepted), clashes)


def apply_overlays(overlays: Sequence[ParsedOverlay], pool_types: NodePoolInstanceTypes) -> tuple[InstanceType, ...]:
    """The pool's types with the overlays (in order of precedence) applied; the same tuple if none matches."""
    return next(apply_overlays_to_pools(overlays, [pool_types]))


def apply_overlays_to_pools(
    overlays: Sequence[ParsedOverlay], offered: Sequence[NodePoolInstanceTypes]
) -> Iterator[tuple[InstanceType, ...]]:
    """The types of each pool with the overlays applied: one tuple for all pools of the same types that they change alike."""
    found: _FoundMatches = {}
    changed: dict[tuple[object, ...], tuple[InstanceType, ...]] = {}
    for pool_types in offered:
        matcher = _OverlayMatcher(pool_types, found)
        matches = [matcher.matches(overlay) for overlay in overlays]
        alike = (id(pool_types.types), *map(id, matches))
        if alike not in changed:
            changed[alike] = _with_changes(pool_types.types, overlays, matches)
        yield changed[alike]


def _with_changes(
    types: tuple[InstanceType, ...], overlays: Sequence[ParsedOverlay], matches: Sequence[_Matches]
) -> tuple[InstanceType, ...]:
    """The types with the overlays applied where they match."""
    changed: dict[int, _TypeChanges] = {}
    for overlay, matching in zip(overlays, matches, strict=True):
        for position, sold in matching:
            changes = changed.setdefault(position, _TypeChanges())
            changes.capacity = {**overlay.capacity, **changes.capacity}
            if overlay.price is not None:
                changes.prices = {**dict.fromkeys(sold, overlay.price), **changes.prices}
    if not changed:
        return types
    return tuple(
        _apply_changes(instance_type, changed[position]) if position in changed else instance_type
        for position, instance_type in enumerate(types)
    )


@dataclass
class _TypeChanges:
    """Changes of one type: added capacity, and price changes by index of the offering."""

    capacity: dict[str, int] = field(default_factory=dict)
    prices: dict[int, PriceChange] = field(default_factory=dict)


def _apply_changes(instance_type: InstanceType, changes: _TypeChanges) -> InstanceType:
    return replace(
        instance_type,
        capacity={**instance_type.capacity, **changes.capacity},
        overlay_capacity=changes.capacity,
        is_price_overlaid=bool(changes.prices),
        offerings=tuple(
            _with_price_change(offering, changes.prices[place]) if place in changes.prices else offering
            for place, offering in enumerate(instance_type.offerings)
        ),
    )


def _with_price_change(offering: Offering, change: PriceChange) -> Offering:
    return replace(offering, price_per_hour=change.applied_to(offering.price_per_hour))


#: Positions of the matching types, each with the positions of its matching offerings (SCH-756).
_Matches = tuple[tuple[int, tuple[int, ...]], ...]
#: Matches by overlay, types, and what the pool says of the labels that the overlay asks for.
_FoundMatches = dict[tuple[object, ...], _Matches]


class _OverlayMatcher:
    """Matches overlays against the types of one pool. ``found`` is shared by the matchers of all pools, which live as long."""

    def __init__(self, offered: NodePoolInstanceTypes, found: _FoundMatches) -> None:
        self._name = offered.node_pool.metadata.name
        self._types = offered.types
        self._own = requirements_from_labels(
            {**offered.node_pool.spec.template.metadata.labels, labels.NODE_POOL: self._name}
        )
        self._found = found

    @cached_property
    def _well_known(self) -> frozenset[str]:
        return labels.WELL_KNOWN | well_known_labels_of(self._types)

    def matches(self, overlay: ParsedOverlay) -> _Matches:
        """Where the overlay matches: one object for pools of the same types that it cannot tell apart."""
        own = tuple((key, self._own[key]) for key in overlay.requirements if key in self._own)
        key = (id(overlay), id(self._types), own)
        if key not in self._found:
            self._found[key] = tuple(self._find_matches(overlay))
        return self._found[key]

    def _find_matches(self, overlay: ParsedOverlay) -> Iterator[tuple[int, tuple[int, ...]]]:
        of_labels = _LabelCompatibility(overlay.requirements, self._own)
        of_offerings: dict[Requirements, bool] = {}
        for position, instance_type in enumerate(self._types):
            if not of_labels.is_compatible(instance_type.requirements):
                continue
            sold = []
            for place, offering in enumerate(instance_type.offerings):
                asked = offering.requirements
                if asked not in of_offerings:
                    of_offerings[asked] = compatible(overlay.requirements, asked, self._well_known)
                if of_offerings[asked]:
                    sold.append(place)
            if sold:
                yield position, tuple(sold)

    def settings_of(self, overlay: ParsedOverlay) -> Iterator[_OverlaySetting]:
        """All settings of the overlay."""
        for position, sold in self.matches(overlay):
            name = self._types[position].name
            if overlay.price is not None:
                for place in sold:
                    yield _OverlaySetting(overlay.weight, self._name, name, PRICE_SETTING, place)
            for resource in overlay.capacity:
                yield _OverlaySetting(overlay.weight, self._name, name, resource)


class _LabelCompatibility:
    """Compatibility of labels with an overlay, cached per label requirement: thousands of types share most of them.

    ``of_pool``: the labels that a pool gives its nodes beside those of their type.
    """

    def __init__(self, asked: Requirements, of_pool: Requirements) -> None:
        self._asked = [
            (key, Requirements((requirement,)), of_pool.get(key), dict[Requirement | None, bool]())
            for key, requirement in asked.items()
        ]

    def is_compatible(self, type_labels: Requirements) -> bool:
        """Whether all labels are compatible; a missing label is so only if its absence is required (strict)."""
        for key, asked, of_pool, answers in self._asked:
            said = type_labels.get(key)
            answer = answers.get(said)
            if answer is None:
                own = Requirements(stated for stated in (of_pool, said) if stated is not None)
                answer = answers[said] = compatible(own, asked, frozenset())
            if not answer:
                return False
        return True


@dataclass(frozen=True, slots=True)
class _OverlaySetting:
    """One setting of an overlay: a resource of a type, or the price of the offering at a position."""

    weight: int
    pool: str
    instance_type: str
    setting: str
    offering_position: int = -1

    def conflict_with(self, winner: str) -> OverlayConflict:
        """The conflict if another overlay has already made this setting."""
        return OverlayConflict(winner, self.weight, self.setting, self.instance_type, self.pool)
