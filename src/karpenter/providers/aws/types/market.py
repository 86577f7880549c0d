"""The market: what can be bought for a class, kept up to date at little cost (AWS §§7-8).

A list is made of layers that change at different paces, and each is made anew only where it changed:

* ``Hardware`` per type, when EC2 describes the type differently (twelve hours);
* the type for a class (labels, capacity), when the terms of the class or the memory learned for the type change. Classes with the
  same terms share a ``_Shelf``;
* its offerings, when one of its prices, a mark of unavailability, a reservation or a zonal shift changes.

A type whose offerings came out as they were stays the same object, and a list of the same objects the same tuple: callers may
keep what they made of it by identity. Making all of 1377 types anew takes a fraction of a second, looking whether anything
changed microseconds. Nothing of it is done in the background: whoever asks pays for what changed since the last time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.overlay import NodeOverlay
from karpenter.catalog import ec2
from karpenter.catalog import ec2_formulas as formulas
from karpenter.catalog.types import InstanceType
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.kubelet.resolved import TypeFacts
from karpenter.providers.aws.ports import MarketPort, PricingPort
from karpenter.providers.aws.settings import AwsSettings
from karpenter.providers.aws.shapes import (
    InstanceTypeInfo,
    PlacementGroupInfoEntry,
    TypeOffering,
)
from karpenter.providers.aws.types import prices as pricing
from karpenter.providers.aws.types.capacity import Operator, TermsError, reckon, type_facts
from karpenter.providers.aws.types.compatibility import obstacle
from karpenter.providers.aws.types.hardware import FactsError, Hardware, read
from karpenter.providers.aws.types.learned import LearnedMemory
from karpenter.providers.aws.types.offerings import Stock, offerings
from karpenter.providers.aws.types.prices import Prices
from karpenter.providers.aws.types.requirements import requirements
from karpenter.providers.aws.types.reserved import ReservedUnits
from karpenter.providers.aws.types.terms import ClassTerms, identity
from karpenter.providers.aws.types.terms import read as read_terms
from karpenter.providers.aws.types.unavailable import Unavailable
from karpenter.providers.contract import ProviderError

#: How often types are asked for (AWS-281).
TYPES_PERIOD = timedelta(hours=12)
#: How long the list of a class is kept that nobody asks for.
_SHELF_LIFE = timedelta(hours=1)

_log = structlog.get_logger()


def _no_group(node_class: EC2NodeClass) -> PlacementGroupInfoEntry | None:
    return None


@dataclass(frozen=True)
class Memories:
    """What is remembered of EC2's answers between calls; launches and controllers write it, the market reads it."""

    unavailable: Unavailable
    reserved: ReservedUnits
    learned: LearnedMemory

    @classmethod
    def empty(cls, clock: Clock) -> Memories:
        """Nothing remembered."""
        return cls(Unavailable(clock), ReservedUnits(clock), LearnedMemory(clock))


@dataclass(frozen=True)
class Surroundings:
    """What the market is told by others, asked anew each time.

    ``shifted_zones`` are ids of zones traffic is shifted away from (AWS-615); ``group_of`` is the placement group a class has
    resolved to, None without one (AWS-610); ``skipped`` hears how many types could not be read (AWS-283 Beyond).
    """

    shifted_zones: Callable[[], frozenset[str]] = frozenset
    group_of: Callable[[EC2NodeClass], PlacementGroupInfoEntry | None] = _no_group
    skipped: Callable[[int], None] = lambda count: None


class _Mark(NamedTuple):
    """What offerings depend on besides the types themselves: memories, by their versions, zones, and zones shifted away from."""

    versions: tuple[int, int, int]
    zones: tuple[str, ...]
    shifted: frozenset[str]


class _Class(NamedTuple):
    """A class as it was last asked for: the object, its terms and their identity."""

    node_class: EC2NodeClass
    terms: ClassTerms
    key: bytes


@dataclass
class _Place:
    """A type on a shelf: as the class sees it, whether the class can use it, and what its offerings were made of."""

    hardware: Hardware
    learned_bytes: int
    item: InstanceType
    fits_class: bool
    mark: tuple[int, ...] = ()


@dataclass
class _Shelf:
    """The list of all classes with the same terms; ``made_of`` and ``mark`` tell whether it still holds."""

    terms: ClassTerms
    places: dict[str, _Place] = field(default_factory=dict)
    made_of: tuple[int, int] = (-1, -1)
    mark: _Mark | tuple[()] = ()
    facts: Mapping[str, TypeFacts] = field(default_factory=dict)
    facts_of: int = -1
    types: tuple[InstanceType, ...] = ()


class Market:
    """What can be bought in a region. ``ec2`` and ``pricing`` are asked by the ``refresh_`` methods alone."""

    def __init__(
        self,
        ec2: MarketPort,
        pricing: PricingPort,
        settings: AwsSettings,
        region: str,
        clock: Clock,
        memories: Memories,
        surroundings: Surroundings = Surroundings(),
    ) -> None:
        self._ec2 = ec2
        self._pricing = pricing
        self._settings = settings
        self._operator = Operator(settings.vm_memory_overhead, settings.reserved_enis, settings.kubelet_expressions)
        self._region = region
        self._clock = clock
        self._memories = memories
        self._surroundings = surroundings
        self._prices = Prices(_packaged_prices())
        self._hardware: dict[str, Hardware] = {}
        self._zones: tuple[str, ...] = ()
        self._zone_ids: dict[str, str] = {}
        self._generation = 0
        self._said_no_list = False
        self._shelves: Expiring[bytes, _Shelf] = Expiring(clock, _SHELF_LIFE)
        self._classes: Expiring[str, _Class] = Expiring(clock, _SHELF_LIFE)

    # -- asking ---------------------------------------------------------------------------------------------------------------

    def types_for(self, node_class: EC2NodeClass) -> tuple[InstanceType, ...]:
        """Everything of the region as machines of the class; the identical tuple while nothing changed.

        Raises ``ProviderError`` while types or the class's subnets are not known, and for a class nothing can be made of.
        """
        if not self._hardware:
            raise ProviderError("no instance types found")
        if not self._zones:
            raise ProviderError("no instance types offerings found")
        if not node_class.status.subnets:
            raise ProviderError("no subnets found")
        shelf = self._shelf(node_class)
        try:
            remade = self._make_types(shelf)
        except TermsError as error:
            raise ProviderError(f"ec2nodeclass {node_class.metadata.name}: {error}") from error
        mark = self._mark(shelf.terms)
        if remade or shelf.mark != mark:
            self._make_offerings(shelf, mark)
        return shelf.types

    def facts(self, name: str) -> InstanceTypeInfo | None:
        """What EC2 says of a type, None where it knows none of that name."""
        found = self._hardware.get(name)
        return found.info if found is not None else None

    def zone_id(self, zone: str) -> str:
        """The id of a zone, empty where no class asked about so far has a subnet in it."""
        return self._zone_ids.get(zone, "")

    def fits(self, node_class: EC2NodeClass, instance_type: InstanceType) -> bool:
        """Whether machines of the class can be made of the type at all (AWS-340)."""
        hardware = self._hardware.get(instance_type.name)
        return hardware is not None and obstacle(hardware, self._read(node_class)[1]) is None

    def kubelet_facts(self, node_class: EC2NodeClass) -> Mapping[str, TypeFacts]:
        """By type, what the class's kubelet expressions may ask about it (AWS-111)."""
        shelf = self._shelf(node_class)
        if shelf.facts_of != self._generation:
            facts = {name: type_facts(item, shelf.terms, self._operator) for name, item in self._hardware.items()}
            shelf.facts, shelf.facts_of = facts, self._generation
        return shelf.facts

    @property
    def prices(self) -> Prices:
        """Prices as last heard."""
        return self._prices

    def reprice(self, overlays: Iterable[NodeOverlay]) -> None:
        """Take over the prices overlays give to types that have none; with gate NodeOverlay alone (AWS-356)."""
        if self._settings.node_overlay:
            self._prices.overlay(pricing.overlay_prices(overlays))

    # -- refreshing -----------------------------------------------------------------------------------------------------------

    async def refresh_types(self) -> None:
        """Ask for types and where they are sold (AWS-281). Raises ``ProviderError``, and then nothing has changed.

        A type whose description cannot be used is left out and logged; the others are there (AWS-283 Beyond).
        """
        try:
            described, sold = await asyncio.gather(
                self._ec2.describe_instance_types(), self._ec2.describe_instance_type_offerings()
            )
        except AwsError as error:
            raise ProviderError(f"discovering instance types, {error}") from error
        if not described:
            raise ProviderError("no instance types found")
        if not sold:
            raise ProviderError("no instance types offerings found")
        self._take_over(described, _by_type(sold))

    async def refresh_on_demand(self) -> None:
        """Ask for the price list (AWS-360 to AWS-364). Raises ``ProviderError``, and then nothing has changed."""
        if self._settings.isolated_vpc or not pricing.has_list(self._region):
            self._say_no_list()
            return
        questions = pricing.list_filters(self._region)
        try:
            answers = await asyncio.gather(*(self._pricing.get_products(question) for question in questions))
        except AwsError as error:
            raise ProviderError(f"retrieving on-demand pricing data, {error}") from error
        found = [pricing.listed(answer, pricing.currency(self._region)) for answer in answers]
        if not all(found):
            raise ProviderError("retrieving on-demand pricing data, no prices found")
        if self._prices.list_on_demand(found[0] | found[1]):
            _log.debug("updated on-demand pricing", **{"instance-type-count": self._prices.on_demand_count})

    def _say_no_list(self) -> None:
        if not self._said_no_list:
            self._said_no_list = True
            _log.info("on-demand prices are the packaged ones, no price list can be reached", region=self._region)

    async def refresh_spot(self) -> None:
        """Ask for spot prices (AWS-365). Raises ``ProviderError``, and then nothing has changed."""
        try:
            market = pricing.spot_market(await self._ec2.describe_spot_price_history())
        except AwsError as error:
            raise ProviderError(f"retrieving spot pricing data, {error}") from error
        if not market:
            raise ProviderError("retrieving spot pricing data, no prices found")
        if self._prices.hear_spot(market, self._clock.now()):
            types, pairs = self._prices.spot_counts
            counts = {"instance-type-count": types, "offering-count": pairs}
            _log.debug("updated spot pricing with instance types and offerings", **counts)

    # -- keeping --------------------------------------------------------------------------------------------------------------

    def _take_over(self, described: Iterable[InstanceTypeInfo], sold: Mapping[str, frozenset[str]]) -> None:
        """What EC2 says now; types it says the same of as before stay the same objects."""
        found: dict[str, Hardware] = {}
        skipped = 0
        for info in sorted(described, key=lambda item: item.instance_type):
            zones = sold.get(info.instance_type, frozenset())
            known = self._hardware.get(info.instance_type)
            try:
                unchanged = known is not None and known.info == info and known.zones == zones
                found[info.instance_type] = known if known is not None and unchanged else read(info, zones)
            except FactsError as error:
                skipped += 1
                _log.warning("ignoring instance type", **{"instance-type": info.instance_type, "error": str(error)})
        self._surroundings.skipped(skipped)
        all_zones = tuple(sorted(frozenset().union(*sold.values())))
        if found.keys() != self._hardware.keys():
            _log.debug("discovered instance types", count=len(found))
        if all_zones != self._zones:
            _log.debug("discovered zones", zones=list(all_zones))
        if any(found[name] is not self._hardware.get(name) for name in found) or len(found) != len(self._hardware):
            _log.debug("discovered offerings for instance types", **{"instance-type-count": len(sold)})
            self._generation += 1
        self._hardware, self._zones = found, all_zones

    def _shelf(self, node_class: EC2NodeClass) -> _Shelf:
        key, terms = self._read(node_class)
        shelf = self._shelves.get(key) or _Shelf(terms)
        self._shelves.put(key, shelf)
        self._shelves.expired()
        return shelf

    def _read(self, node_class: EC2NodeClass) -> tuple[bytes, ClassTerms]:
        """A class's terms and their identity; while it is the same object, and the group it found, read once."""
        group = self._surroundings.group_of(node_class)
        known = self._classes.get(node_class.metadata.name)
        if known is None or known.node_class is not node_class or known.terms.group != group:
            terms = read_terms(node_class, group, reserves=self._settings.reserved_capacity)
            self._zone_ids.update((zone, zone_id) for zone, zone_id in terms.zone_ids.items() if zone_id)
            known = _Class(node_class, terms, identity(terms))
        self._classes.put(node_class.metadata.name, known)
        self._classes.expired()
        return known.key, known.terms

    def _make_types(self, shelf: _Shelf) -> bool:
        """Bring the types themselves up to date, without their offerings; whether there was reason to. Raises ``TermsError``."""
        made_of = (self._generation, self._memories.learned.version)
        if shelf.made_of == made_of:
            return False
        places: dict[str, _Place] = {}
        for name, hardware in self._hardware.items():
            learned = self._memories.learned.known(name, shelf.terms.images) or 0
            place = shelf.places.get(name)
            if place is None or place.hardware is not hardware or place.learned_bytes != learned:
                place = self._made(hardware, shelf.terms, learned)
            places[name] = place
        shelf.places, shelf.made_of = places, made_of
        return True

    def _made(self, hardware: Hardware, terms: ClassTerms, learned_bytes: int) -> _Place:
        reckoned = reckon(hardware, terms, self._operator, learned_bytes)
        item = InstanceType(
            name=hardware.name,
            requirements=requirements(hardware, terms, self._region),
            capacity=formulas.capacity(hardware.shape, reckoned),
            overhead=formulas.overhead(hardware.shape, reckoned),
        )
        return _Place(hardware, learned_bytes, item, fits_class=obstacle(hardware, terms) is None)

    def _mark(self, terms: ClassTerms) -> _Mark:
        memories = self._memories
        versions = (self._prices.version, memories.unavailable.version, memories.reserved.version)
        return _Mark(versions, self._zones, self._shifted())

    def _make_offerings(self, shelf: _Shelf, mark: _Mark) -> None:
        """Bring offerings up to date, those of types about which something changed."""
        # A shift or a new zone concerns all types, whatever their own numbers say.
        everything = shelf.mark[1:] != mark[1:]
        memories = self._memories
        stock = Stock(self._zones, mark.shifted, self._prices, memories.unavailable, memories.reserved)
        for place in shelf.places.values():
            own = self._mark_of(place.hardware.name, shelf.terms)
            if everything or place.mark != own:
                place.mark = own
                self._offer(place, shelf.terms, stock)
        shelf.mark = mark
        types = tuple(place.item for place in shelf.places.values())
        if len(types) != len(shelf.types) or any(new is not old for new, old in zip(types, shelf.types, strict=True)):
            shelf.types = types

    def _offer(self, place: _Place, terms: ClassTerms, stock: Stock) -> None:
        made = offerings(place.hardware, terms, stock, fits_class=place.fits_class)
        if made != place.item.offerings:
            place.item = replace(place.item, offerings=made)

    def _mark_of(self, name: str, terms: ClassTerms) -> tuple[int, ...]:
        reserved = self._memories.reserved.version if name in terms.reservations_by_type else 0
        return self._prices.sequence(name), self._memories.unavailable.sequence(name), reserved

    def _shifted(self) -> frozenset[str]:
        """Names of the zones traffic is shifted away from."""
        ids = self._surroundings.shifted_zones()
        if not ids:
            return frozenset()
        return frozenset(zone for zone, zone_id in self._zone_ids.items() if zone_id in ids)


def _packaged_prices() -> dict[str, float]:
    """On-demand prices until the list is there: those of us-east-1, whatever the region (AWS-367)."""
    return {name: item.price_per_hour for name, item in ec2.published().items() if item.price_per_hour is not None}


def _by_type(sold: Iterable[TypeOffering]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for item in sold:
        found.setdefault(item.instance_type, set()).add(item.location)
    return {name: frozenset(zones) for name, zones in found.items()}
