"""The simulated cloud (OPS-250 ff.): instances that cost nothing, behave like real ones and can be made to misbehave.

It launches by the same rules as a real one: the cheapest available offering that satisfies the claim and holds its pods. The
instances are entries in the API server (``simulated_instances``); ``simulated_kubelet`` plays what would run on them. Beyond the
original: the Node reports the type's full capacity (OPS-265), instances whose claim vanished are ended (OPS-266), a type without
a fitting offering is skipped (OPS-267), and trouble can be scripted (OPS-269).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import KWOK_NODE_CLASS, NODE, NODE_CLAIM, Kind
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model import conditions, durations, labels
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.model.repair_policies import RepairAction, RepairPolicy
from karpenter.providers.contract import (
    Instance,
    InstanceDrift,
    InstanceNotFound,
    InsufficientCapacity,
    LaunchFailed,
    NodeClassNotReady,
    ProviderError,
    RegistrationHook,
)
from karpenter.providers.simulated import simulated_offerings
from karpenter.providers.simulated.fault_rules import FaultInjector, Faults, LaunchFaults, SimulatedLaunch
from karpenter.providers.simulated.simulated_instances import (
    SimulatedInstance,
    SimulatedInstanceStore,
    instance_name,
    name_from_provider_id,
)

#: How long an offering that could not be had counts as unavailable.
UNAVAILABLE_FOR = timedelta(minutes=3)
#: Garbage collection skips younger instances: their claim may not be visible yet.
GARBAGE_AGE = timedelta(seconds=30)
_REPAIR_AFTER, _REPAIR_SOON = timedelta(minutes=10), timedelta(seconds=30)
_REPAIR_POLICIES = (
    RepairPolicy("Ready", conditions.FALSE, _REPAIR_AFTER, drain_bound=timedelta()),
    RepairPolicy("Ready", conditions.UNKNOWN, _REPAIR_AFTER, ".*", timedelta()),
    RepairPolicy("KWOKUnhealthy", conditions.TRUE, _REPAIR_SOON, ".*", timedelta(seconds=45)),
    RepairPolicy(
        "KWOKRebootRequired", conditions.TRUE, _REPAIR_SOON, ".*", timedelta(minutes=1), action=RepairAction.REBOOT
    ),
)

#: Type name, zone, capacity type.
_OfferingKey = tuple[str, str, str]


@dataclass(frozen=True)
class _Availability:
    """What is unavailable: offerings without capacity lately, and units of reservations that instances use."""

    unavailable: frozenset[_OfferingKey] = frozenset()
    reserved_in_use: frozenset[tuple[str, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.unavailable or self.reserved_in_use)

    def remaining(self, instance_type: InstanceType, offering: Offering) -> Offering:
        """What is left of an offering."""
        available = offering.available and _key(instance_type, offering) not in self.unavailable
        units = offering.reservation_capacity
        if units is not None:
            units = max(0, units - dict(self.reserved_in_use).get(offering.reservation_id, 0))
        if (available, units) == (offering.available, offering.reservation_capacity):
            return offering
        return replace(offering, available=available, reservation_capacity=units)


class SimulatedProvider:
    """A cloud provider with simulated instances. Implements ``CloudProvider``."""

    def __init__(self, kube: Kube, clock: Clock, types: tuple[InstanceType, ...], faults: Faults | None = None) -> None:
        self._kube = kube
        self._clock = clock
        self._store = SimulatedInstanceStore(kube)
        self._launch_faults: LaunchFaults = FaultInjector(faults or Faults())
        self._types = types
        self._by_name = {instance_type.name: instance_type for instance_type in types}
        self._compatible = simulated_offerings.CompatibleOfferings(self._by_name)
        self._launches_by_zone: Counter[str] = Counter()
        self._unavailable: dict[_OfferingKey, datetime] = {}
        self._cached_types: tuple[_Availability, tuple[InstanceType, ...]] = (_Availability(), types)
        self._has_reservations = any(
            offering.reservation_capacity is not None for instance_type in types for offering in instance_type.offerings
        )

    def set_faults(self, faults: Faults) -> None:
        """Use other fault rules from now on; faults of existing instances stay as decided at launch."""
        self.set_launch_faults(FaultInjector(faults))

    def set_launch_faults(self, launch_faults: LaunchFaults) -> None:
        """Like ``set_faults``, with something other than rules."""
        self._launch_faults = launch_faults

    def set_types(self, types: tuple[InstanceType, ...]) -> None:
        """Sell these from now on: the same types and offerings with other prices."""
        self._types = types
        self._by_name = {instance_type.name: instance_type for instance_type in types}
        self._compatible = simulated_offerings.CompatibleOfferings(self._by_name)
        self._cached_types = (_Availability(), types)

    @property
    def all_types(self) -> tuple[InstanceType, ...]:
        """All instance types, whether available now or not."""
        return self._types

    @property
    def name(self) -> str:
        """The provider name in metrics."""
        return "kwok"

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """KWOKNodeClass only."""
        return (KWOK_NODE_CLASS,)  # type: ignore[return-value]

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """A node that is not ready for ten minutes is unhealthy, and what the two conditions for tests say (K15-520)."""
        return _REPAIR_POLICIES

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """None: a simulated instance is complete when it joins."""
        return ()

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """Simulated instances never drift (OPS-260)."""
        return None

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """All instance types; offerings without capacity are marked unavailable, reservations have their remaining capacity."""
        availability = await self._availability()
        if availability != self._cached_types[0]:
            self._cached_types = (
                availability,
                tuple(_with_availability(instance_type, availability) for instance_type in self._types)
                if availability
                else self._types,
            )
        return self._cached_types[1]

    async def _availability(self) -> _Availability:
        if not self._has_reservations:
            return _Availability(self._unavailable_offerings())
        running = [record for record in await self._store.all() if not record.terminating]
        units_in_use = Counter(reservation for r in running if (reservation := r.labels.get(labels.RESERVATION_ID, "")))
        return _Availability(self._unavailable_offerings(), frozenset(units_in_use.items()))

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch the cheapest instance that satisfies the claim, or return the existing one (OPS-210, OPS-211, OPS-256)."""
        existing = await self._existing_instance(claim)
        if existing is not None:
            return existing.instance()
        node_class = await self._usable_class(claim)
        choice = self._choose_offering(claim, await self._availability())
        record = await self._store.create(self._new_instance(claim, node_class, choice))
        self._launches_by_zone[record.zone] += 1
        if record.claim_uid != claim.metadata.uid:
            raise ProviderError(
                f"instance {record.node_name} belongs to another claim, {record.claim_uid}; it must go first"
            )
        return record.instance()

    async def delete(self, provider_id: str) -> None:
        """Terminate the instance; raises ``InstanceNotFound`` once it is gone (OPS-212)."""
        await self._store.terminate(await self._store.get(name_from_provider_id(provider_id)), self._clock.now())

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Give the Node another boot ID, derived from the operation: it never turns NotReady (K15-521)."""
        if not claim.status.node_name:
            raise ProviderError("rebooting nodeclaim, node is not registered")
        patch: JsonObject = {"status": {"nodeInfo": {"bootID": f"kwok-{operation_id}"}}}
        try:
            await self._kube.patch(NODE, claim.status.node_name, patch, subresource="status")
        except NotFound as error:
            raise InstanceNotFound(f"node {claim.status.node_name} is gone") from error
        except KubeError as error:
            raise ProviderError(f"rebooting node {claim.status.node_name}, {error}") from error

    async def get(self, provider_id: str) -> Instance:
        """One instance (OPS-213)."""
        return (await self._store.get(name_from_provider_id(provider_id))).instance()

    async def list(self) -> tuple[Instance, ...]:
        """All instances, sorted by name (OPS-214)."""
        return tuple(record.instance() for record in await self._store.all())

    async def collect_garbage(self) -> tuple[str, ...]:
        """Terminate instances whose claim is gone (OPS-266); returns their provider IDs. Called periodically.

        Raises ``ProviderError``.
        """
        # Instances are listed before claims: a claim created in between then has no instance in the list.
        records = await self._store.all()
        claim_exists = await self._claim_exists()
        now = self._clock.now()
        running = [record for record in records if not record.terminating and now - record.created_at > GARBAGE_AGE]
        orphans = [record for record in running if not claim_exists(record)]
        return tuple([record.provider_id for record in orphans if await self._terminate(record, now)])

    async def _claim_exists(self) -> Callable[[SimulatedInstance], bool]:
        """Whether an instance's claim exists. A claim that does not decode counts as existing and keeps every instance of its
        name."""
        try:
            claims = await self._kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        readable = {claim.metadata.uid for claim in claims.items}
        unreadable = {claim.name for claim in claims.undecodable}
        # One without even a name may belong to any instance.
        return lambda record: record.claim_uid in readable or not unreadable.isdisjoint((record.claim_name, ""))

    async def _terminate(self, record: SimulatedInstance, now: datetime) -> bool:
        try:
            await self._store.terminate(record, now)
        except InstanceNotFound:
            return False
        return True

    async def _existing_instance(self, claim: NodeClaim) -> SimulatedInstance | None:
        try:
            record = await self._store.get(instance_name(claim))
        except InstanceNotFound:
            return None
        return record if record.claim_uid == claim.metadata.uid else None

    async def _usable_class(self, claim: NodeClaim) -> KWOKNodeClass:
        name = claim.spec.node_class_ref.name
        try:
            node_class = await self._kube.get(KWOK_NODE_CLASS, name)
        except NotFound as error:
            raise InsufficientCapacity(f"KWOKNodeClass {name} does not exist") from error
        except KubeError as error:
            raise ProviderError(f"reading KWOKNodeClass {name}, {error}") from error
        if node_class.metadata.deletion_timestamp is not None:
            raise InsufficientCapacity(f"KWOKNodeClass {name} is being deleted")
        if conditions.is_false(node_class.status.conditions, "Ready"):
            raise NodeClassNotReady(f"KWOKNodeClass {name} has condition Ready False")
        return node_class

    def _choose_offering(self, claim: NodeClaim, availability: _Availability) -> simulated_offerings.SimulatedOffering:
        refused = 0
        for choice in self._launchable(claim, availability):
            launch = _simulated_launch(claim, choice)
            launch_error = self._launch_faults.launch_error(launch)
            if launch_error is not None:
                raise LaunchFailed(launch_error.reason, launch_error.message)
            if not self._launch_faults.is_out_of_capacity(launch):
                return choice
            refused += 1
            self._unavailable[_key(choice.instance_type, choice.offering)] = self._clock.now() + UNAVAILABLE_FOR
        raise InsufficientCapacity(self._why_none(claim, availability, refused))

    def _launchable(
        self, claim: NodeClaim, availability: _Availability
    ) -> Iterator[simulated_offerings.SimulatedOffering]:
        """What the claim may be given, in the order of launches; only as many as requested are evaluated."""
        requests = simulated_offerings.claim_requests(claim)
        for _, equal in groupby(self._compatible.of(claim), key=_price_and_type):
            fitting = [
                choice
                for choice in equal
                if res.fits(requests, choice.instance_type.allocatable)
                and availability.remaining(choice.instance_type, choice.offering).launchable
            ]
            yield from sorted(fitting, key=self._launch_count)

    def _launch_count(self, choice: simulated_offerings.SimulatedOffering) -> int:
        """Of the zones of a type at equal price, the one with the fewest launches comes first."""
        return self._launches_by_zone[choice.offering.zone]

    def _why_none(self, claim: NodeClaim, availability: _Availability, refused: int) -> str:
        offerings = simulated_offerings.launchable_offerings(
            self._by_name,
            claim,
            lambda instance_type, offering: availability.remaining(instance_type, offering).launchable,
        )
        if refused:
            offerings.rejections[simulated_offerings.SimulatedOfferingRejection.UNAVAILABLE] += refused
        return str(offerings)

    def _unavailable_offerings(self) -> frozenset[_OfferingKey]:
        now = self._clock.now()
        for key in [key for key, until in self._unavailable.items() if until <= now]:
            del self._unavailable[key]
        return frozenset(self._unavailable)

    def _new_instance(
        self, claim: NodeClaim, node_class: KWOKNodeClass, choice: simulated_offerings.SimulatedOffering
    ) -> SimulatedInstance:
        launch = _simulated_launch(claim, choice)
        return SimulatedInstance(
            node_name=instance_name(claim),
            claim_name=claim.metadata.name,
            claim_uid=claim.metadata.uid,
            instance_type=launch.instance_type,
            zone=launch.zone,
            capacity_type=launch.capacity_type,
            price_per_hour=choice.offering.price_per_hour,
            created_at=self._clock.now(),
            labels=simulated_offerings.resolved_labels(claim, choice),
            node_labels=simulated_offerings.node_labels(claim, choice),
            taints=tuple(taint.as_taint() for taint in (*claim.spec.taints, *claim.spec.startup_taints)),
            capacity=res.resources_to_wire(choice.instance_type.capacity),
            allocatable=res.resources_to_wire(choice.instance_type.allocatable),
            fate=self._launch_faults.schedule_faults(launch, _registration_delay(node_class)),
            devices=choice.instance_type.devices.slices,
        )


def _registration_delay(node_class: KWOKNodeClass) -> timedelta:
    text = node_class.spec.node_registration_delay
    try:
        return durations.parse_duration(text) if text else timedelta()
    except durations.DurationError as error:
        raise NodeClassNotReady(
            f"KWOKNodeClass {node_class.metadata.name}, spec.nodeRegistrationDelay: {error}"
        ) from error


def _simulated_launch(claim: NodeClaim, choice: simulated_offerings.SimulatedOffering) -> SimulatedLaunch:
    pool = claim.metadata.labels.get(labels.NODE_POOL, "")
    return SimulatedLaunch(pool, choice.instance_type.name, choice.offering.zone, choice.offering.capacity_type)


def _price_and_type(choice: simulated_offerings.SimulatedOffering) -> tuple[float, str]:
    return choice.offering.price_per_hour, choice.instance_type.name


def _key(instance_type: InstanceType, offering: Offering) -> _OfferingKey:
    return instance_type.name, offering.zone, offering.capacity_type


def _with_availability(instance_type: InstanceType, availability: _Availability) -> InstanceType:
    """The type as it is sold now; the same where nothing of it is missing."""
    offerings = tuple(availability.remaining(instance_type, offering) for offering in instance_type.offerings)
    return replace(instance_type, offerings=offerings) if offerings != instance_type.offerings else instance_type
