"""Instance types and offerings of a node class, kept up to date at little cost (AWS §§7-8).

A list consists of layers that change at different paces, and each is rebuilt only where it changed:

* ``Ec2Hardware`` per type, when EC2 describes the type differently (twelve hours);
* the type for a class (labels, capacity), when the terms of the class or the memory learned for the type change. Classes with the
  same terms share a ``_TypeList``;
* its offerings, when one of its prices, a mark of unavailability, a reservation or a zonal shift changes.

A type whose offerings came out as they were stays the same object, and a list of the same objects the same tuple: callers may
keep what they made of it by identity. Building all 1377 types takes a fraction of a second; finding out that nothing
changed takes microseconds. Nothing of it is done in the background: a caller pays for what changed since the last call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

import structlog
from cachetools import TTLCache

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.node_overlay import NodeOverlay
from karpenter.instancetypes import ec2_capacity as formulas
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import InstanceTypeApi, PricingApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_partitions import partition_of, pricing_region
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.ec2_descriptions import InstanceTypeInfo, InstanceTypeOffering, PlacementGroupInfoEntry
from karpenter.providers.aws.instancetype import ec2_pricing
from karpenter.providers.aws.instancetype.device_templates import device_templates
from karpenter.providers.aws.instancetype.discovered_capacity import DiscoveredCapacity
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware, HardwareFactsError, read_hardware
from karpenter.providers.aws.instancetype.ec2_offerings import (
    OfferingInputs,
    ReservationAvailability,
    UnavailableOfferings,
    type_offerings,
)
from karpenter.providers.aws.instancetype.ec2_pricing import Ec2Prices
from karpenter.providers.aws.instancetype.nodeclass_terms import (
    CapacitySettings,
    NodeClassTerms,
    NodeClassTermsError,
    capacity_terms,
    incompatibility,
    kubelet_type_facts,
    terms_identity,
    type_requirements,
)
from karpenter.providers.aws.instancetype.nodeclass_terms import read_terms as read_terms
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts
from karpenter.providers.contract import ProviderError

#: How often types are asked for (AWS-281).
TYPES_REFRESH_PERIOD = timedelta(hours=12)
#: How long an unused list of a class is kept.
_TYPE_LIST_TTL = timedelta(hours=1)

_log = structlog.get_logger()


def _no_placement_group(node_class: EC2NodeClass) -> PlacementGroupInfoEntry | None:
    return None


@dataclass(frozen=True)
class InstanceTypeCaches:
    """What is remembered of EC2's answers between calls; launches and controllers write it, the provider reads it."""

    unavailable: UnavailableOfferings
    reservations: ReservationAvailability
    discovered_capacity: DiscoveredCapacity

    @classmethod
    def empty(cls, clock: Clock) -> InstanceTypeCaches:
        """Nothing remembered."""
        return cls(UnavailableOfferings(clock), ReservationAvailability(clock), DiscoveredCapacity(clock))


@dataclass(frozen=True)
class InstanceTypeInputs:
    """What the provider reads of other parts at each call.

    ``shifted_zone_ids`` are zones that traffic is shifted away from (AWS-615); ``placement_group_of`` gives the placement group a
    class has resolved to, None without one (AWS-610); ``record_skipped`` gets how many types could not be read (AWS-283 Beyond).
    """

    shifted_zone_ids: Callable[[], frozenset[str]] = frozenset
    placement_group_of: Callable[[EC2NodeClass], PlacementGroupInfoEntry | None] = _no_placement_group
    record_skipped: Callable[[int], None] = lambda count: None


class _OfferingVersion(NamedTuple):
    """What offerings depend on besides the types themselves: memories, by their versions, zones, and zones shifted away from."""

    versions: tuple[int, int, int]
    zones: tuple[str, ...]
    shifted: frozenset[str]


class _CachedNodeClass(NamedTuple):
    """A class as it was last asked for: the object, its terms and their identity."""

    node_class: EC2NodeClass
    terms: NodeClassTerms
    key: bytes


@dataclass
class _TypeEntry:
    """A type of a ``_TypeList``: as the class sees it, whether the class can use it, and what its offerings were made of."""

    hardware: Ec2Hardware
    learned_bytes: int
    instance_type: InstanceType
    fits_class: bool
    version: tuple[int, ...] = ()


@dataclass
class _TypeList:
    """The list of all classes with the same terms; ``types_version`` and ``offering_version`` show whether it is still valid."""

    terms: NodeClassTerms
    entries: dict[str, _TypeEntry] = field(default_factory=dict)
    types_version: tuple[int, int] = (-1, -1)
    offering_version: _OfferingVersion | tuple[()] = ()
    facts: Mapping[str, KubeletTypeFacts] = field(default_factory=dict)
    facts_generation: int = -1
    types: tuple[InstanceType, ...] = ()


class InstanceTypeProvider:
    """Instance types and offerings of a region. Only methods named ``refresh...`` send requests to ``ec2`` and ``pricing``."""

    def __init__(
        self,
        ec2: InstanceTypeApi,
        pricing: PricingApi,
        settings: AwsSettings,
        region: str,
        clock: Clock,
        caches: InstanceTypeCaches,
        inputs: InstanceTypeInputs = InstanceTypeInputs(),
    ) -> None:
        self._ec2 = ec2
        self._pricing = pricing
        self._settings = settings
        self._capacity_settings = CapacitySettings(
            settings.vm_memory_overhead, settings.reserved_enis, settings.kubelet_expressions
        )
        self._region = region
        self._currency = partition_of(region).currency
        self._clock = clock
        self._caches = caches
        self._inputs = inputs
        self._prices = Ec2Prices(ec2_pricing.packaged_on_demand_prices(region))
        self._hardware: dict[str, Ec2Hardware] = {}
        self._zones: tuple[str, ...] = ()
        self._zone_ids: dict[str, str] = {}
        self._generation = 0
        self._logged_no_list = False
        self._type_lists: TTLCache[bytes, _TypeList, datetime] = TTLCache(inf, _TYPE_LIST_TTL, clock.now)
        self._cached_classes: TTLCache[str, _CachedNodeClass, datetime] = TTLCache(inf, _TYPE_LIST_TTL, clock.now)

    # -- asking ---------------------------------------------------------------------------------------------------------------

    def types_for(self, node_class: EC2NodeClass) -> tuple[InstanceType, ...]:
        """Everything of the region as instances of the class; the identical tuple while nothing changed.

        Raises ``ProviderError`` while types or the class's subnets are not known, and for a class nothing can be made of.
        """
        if not self._hardware:
            raise ProviderError("no instance types found")
        if not self._zones:
            raise ProviderError("no instance types offerings found")
        if not node_class.status.subnets:
            raise ProviderError("no subnets found")
        type_list = self._type_list(node_class)
        try:
            remade = self._update_types(type_list)
        except NodeClassTermsError as error:
            raise ProviderError(f"ec2nodeclass {node_class.metadata.name}: {error}") from error
        mark = self._offering_version(type_list.terms)
        if remade or type_list.offering_version != mark:
            self._update_offerings(type_list, mark)
        return type_list.types

    def type_info(self, name: str) -> InstanceTypeInfo | None:
        """What EC2 says of a type, None where it knows none of that name."""
        hardware = self._hardware.get(name)
        return hardware.info if hardware is not None else None

    def zone_id(self, zone: str) -> str:
        """The id of a zone, empty where no class asked about so far has a subnet in it."""
        return self._zone_ids.get(zone, "")

    def is_compatible(self, node_class: EC2NodeClass, instance_type: InstanceType) -> bool:
        """Whether instances of the class can be made of the type at all (AWS-340)."""
        hardware = self._hardware.get(instance_type.name)
        return hardware is not None and incompatibility(hardware, self._terms_of(node_class)[1]) is None

    def kubelet_facts(self, node_class: EC2NodeClass) -> Mapping[str, KubeletTypeFacts]:
        """By type, what the class's kubelet expressions may ask about it (AWS-111)."""
        type_list = self._type_list(node_class)
        if type_list.facts_generation != self._generation:
            facts = {
                name: kubelet_type_facts(ec2_hardware, type_list.terms, self._capacity_settings)
                for name, ec2_hardware in self._hardware.items()
            }
            type_list.facts, type_list.facts_generation = facts, self._generation
        return type_list.facts

    @property
    def prices(self) -> Ec2Prices:
        """Prices as last read."""
        return self._prices

    def set_overlay_prices(self, overlays: Iterable[NodeOverlay]) -> None:
        """Take over the prices overlays give to types that have none; with gate NodeOverlay alone (AWS-356)."""
        if self._settings.node_overlay:
            self._prices.set_overlays(ec2_pricing.overlay_prices(overlays))

    # -- refreshing -----------------------------------------------------------------------------------------------------------

    async def refresh_types(self) -> None:
        """Ask for types and where they are sold (AWS-281). Raises ``ProviderError``, and then nothing has changed.

        A type whose description cannot be used is left out and logged; the others are there (AWS-283 Beyond).
        """
        try:
            described, offerings = await asyncio.gather(
                self._ec2.describe_instance_types(), self._ec2.describe_instance_type_offerings()
            )
        except AwsError as error:
            raise ProviderError(f"discovering instance types, {error}") from error
        if not described:
            raise ProviderError("no instance types found")
        if not offerings:
            raise ProviderError("no instance types offerings found")
        self._replace_types(described, _zones_by_type(offerings))

    async def refresh_on_demand(self) -> None:
        """Ask for the price list (AWS-360 to AWS-364). Raises ``ProviderError``, and then nothing has changed."""
        if self._settings.isolated_vpc or not pricing_region(self._region):
            self._log_no_list()
            return
        try:
            prices = await ec2_pricing.read_price_list(self._pricing, self._region)
        except AwsError as error:
            raise ProviderError(f"retrieving on-demand pricing data, {error}") from error
        if self._prices.set_on_demand(prices):
            _log.debug("updated on-demand pricing", **{"instance-type-count": self._prices.on_demand_count})

    def log_price_fallback(self, error: str) -> None:
        """Log what on-demand prices are while the price list cannot be read."""
        if self._prices.on_demand_count:
            _log.error("prices are the packaged ones for now", error=error)
        else:
            _log.error("on-demand prices are unknown: no on-demand instance is launched without one", error=error)

    def _log_no_list(self) -> None:
        if self._logged_no_list:
            return
        self._logged_no_list = True
        if self._prices.on_demand_count:
            _log.info("on-demand prices are the packaged ones, no price list can be reached", region=self._region)
        else:
            _log.error(
                "on-demand prices are unknown, no price list can be reached: give prices with NodeOverlays",
                region=self._region,
                currency=self._currency,
            )

    async def refresh_spot(self) -> None:
        """Ask for spot prices (AWS-365). Raises ``ProviderError``, and then nothing has changed."""
        try:
            spot_prices = ec2_pricing.parse_spot_prices(await self._ec2.describe_spot_price_history())
        except AwsError as error:
            raise ProviderError(f"retrieving spot pricing data, {error}") from error
        if not spot_prices:
            raise ProviderError("retrieving spot pricing data, no prices found")
        if self._prices.set_spot(spot_prices, self._clock.now()):
            types, pairs = self._prices.spot_counts
            counts = {"instance-type-count": types, "offering-count": pairs}
            _log.debug("updated spot pricing with instance types and offerings", **counts)

    # -- keeping --------------------------------------------------------------------------------------------------------------

    def _replace_types(
        self, described: Iterable[InstanceTypeInfo], zones_by_type: Mapping[str, frozenset[str]]
    ) -> None:
        """What EC2 says now; types it says the same of as before stay the same objects."""
        hardware_by_name: dict[str, Ec2Hardware] = {}
        skipped = 0
        for info in sorted(described, key=lambda info: info.instance_type):
            zones = zones_by_type.get(info.instance_type, frozenset())
            current = self._hardware.get(info.instance_type)
            try:
                unchanged = current is not None and current.info == info and current.zones == zones
                hardware_by_name[info.instance_type] = (
                    current if current is not None and unchanged else read_hardware(info, zones)
                )
            except HardwareFactsError as error:
                skipped += 1
                _log.warning("ignoring instance type", **{"instance-type": info.instance_type, "error": str(error)})
        self._inputs.record_skipped(skipped)
        all_zones = tuple(sorted(frozenset().union(*zones_by_type.values())))
        if hardware_by_name.keys() != self._hardware.keys():
            _log.debug("discovered instance types", count=len(hardware_by_name))
        if all_zones != self._zones:
            _log.debug("discovered zones", zones=list(all_zones))
        if any(hardware_by_name[name] is not self._hardware.get(name) for name in hardware_by_name) or len(
            hardware_by_name
        ) != len(self._hardware):
            _log.debug("discovered offerings for instance types", **{"instance-type-count": len(zones_by_type)})
            self._generation += 1
        self._hardware, self._zones = hardware_by_name, all_zones

    def _type_list(self, node_class: EC2NodeClass) -> _TypeList:
        key, terms = self._terms_of(node_class)
        type_list = self._type_lists.get(key) or _TypeList(terms)
        self._type_lists[key] = type_list
        return type_list

    def _terms_of(self, node_class: EC2NodeClass) -> tuple[bytes, NodeClassTerms]:
        """A class's terms and their identity; while it is the same object, and the group it found, read once."""
        group = self._inputs.placement_group_of(node_class)
        cached = self._cached_classes.get(node_class.metadata.name)
        if cached is None or cached.node_class is not node_class or cached.terms.group != group:
            terms = read_terms(node_class, group, reserved_capacity=self._settings.reserved_capacity)
            self._zone_ids.update((zone, zone_id) for zone, zone_id in terms.zone_ids.items() if zone_id)
            cached = _CachedNodeClass(node_class, terms, terms_identity(terms))
        self._cached_classes[node_class.metadata.name] = cached
        return cached.key, cached.terms

    def _update_types(self, type_list: _TypeList) -> bool:
        """Bring the types themselves up to date, without their offerings; whether there was reason to. Raises
        ``NodeClassTermsError``."""
        made_of = (self._generation, self._caches.discovered_capacity.version)
        if type_list.types_version == made_of:
            return False
        entries: dict[str, _TypeEntry] = {}
        for name, hardware in self._hardware.items():
            learned = self._caches.discovered_capacity.memory_bytes(name, type_list.terms.images) or 0
            place = type_list.entries.get(name)
            if place is None or place.hardware is not hardware or place.learned_bytes != learned:
                place = self._build_entry(hardware, type_list.terms, learned)
            entries[name] = place
        type_list.entries, type_list.types_version = entries, made_of
        return True

    def _build_entry(self, hardware: Ec2Hardware, terms: NodeClassTerms, learned_bytes: int) -> _TypeEntry:
        reckoned = capacity_terms(hardware, terms, self._capacity_settings, learned_bytes)
        instance_type = InstanceType(
            name=hardware.name,
            requirements=type_requirements(hardware, terms, self._region),
            capacity=formulas.instance_capacity(hardware.shape, reckoned),
            overhead=formulas.instance_overhead(hardware.shape, reckoned),
            burstable_cpu=ec2_packaged_types.burstable_cpu(hardware.name, self._currency),
            devices=device_templates(
                hardware.name,
                terms.gpu_sharing,
                nvidia_gpus=self._settings.dra_nvidia_gpu,
                efa_interfaces=self._settings.dra_efa,
            ),
        )
        return _TypeEntry(hardware, learned_bytes, instance_type, fits_class=incompatibility(hardware, terms) is None)

    def _offering_version(self, terms: NodeClassTerms) -> _OfferingVersion:
        memories = self._caches
        versions = (self._prices.version, memories.unavailable.version, memories.reservations.version)
        return _OfferingVersion(versions, self._zones, self._shifted_zones())

    def _update_offerings(self, type_list: _TypeList, version: _OfferingVersion) -> None:
        """Bring offerings up to date, those of types about which something changed."""
        # A shift or a new zone concerns all types, whatever their own numbers say.
        everything = type_list.offering_version[1:] != version[1:]
        memories = self._caches
        stock = OfferingInputs(self._zones, version.shifted, self._prices, memories.unavailable, memories.reservations)
        for place in type_list.entries.values():
            own = self._entry_version(place.hardware.name, type_list.terms)
            if everything or place.version != own:
                place.version = own
                self._update_entry(place, type_list.terms, stock)
        type_list.offering_version = version
        types = tuple(place.instance_type for place in type_list.entries.values())
        old_types = type_list.types
        if len(types) != len(old_types) or any(new is not old for new, old in zip(types, old_types, strict=True)):
            type_list.types = types

    def _update_entry(self, entry: _TypeEntry, terms: NodeClassTerms, inputs: OfferingInputs) -> None:
        offerings = type_offerings(entry.hardware, terms, inputs, is_compatible=entry.fits_class)
        if offerings != entry.instance_type.offerings:
            entry.instance_type = replace(entry.instance_type, offerings=offerings)

    def _entry_version(self, name: str, terms: NodeClassTerms) -> tuple[int, ...]:
        reserved = self._caches.reservations.version if name in terms.reservations_by_type else 0
        return self._prices.sequence_number(name), self._caches.unavailable.sequence_number(name), reserved

    def _shifted_zones(self) -> frozenset[str]:
        """Names of the zones traffic is shifted away from."""
        ids = self._inputs.shifted_zone_ids()
        if not ids:
            return frozenset()
        return frozenset(zone for zone, zone_id in self._zone_ids.items() if zone_id in ids)


def _zones_by_type(offerings: Iterable[InstanceTypeOffering]) -> dict[str, frozenset[str]]:
    zones_by_type: dict[str, set[str]] = {}
    for type_offering in offerings:
        zones_by_type.setdefault(type_offering.instance_type, set()).add(type_offering.location)
    return {name: frozenset(zones) for name, zones in zones_by_type.items()}
