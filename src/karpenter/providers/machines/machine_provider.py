"""The provider of hosts: power on is launch, power off is termination.

Which host is on for which NodeClaim is in the status of its MachineNodeClass. An entry is written before the power goes on and
removed after it is off, each against the version that was read: two controllers cannot take the same host, and a new process
knows every host that is in use. A class with a host in use keeps a finalizer: its status is all that is known of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import MACHINE_NODE_CLASS, NODE_CLAIM, Kind
from karpenter.api.machine_node_class import MachineInUse, MachineNodeClass
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Json, Kube
from karpenter.model import conditions
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.model.repair_policies import RepairPolicy
from karpenter.providers.contract import (
    Instance,
    InstanceDrift,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    ProviderError,
    RegistrationHook,
)
from karpenter.providers.machines.machine_hosts import HostChoice, instance_types, suitable_hosts
from karpenter.providers.machines.machine_power import MachinePower, PowerFailed
from karpenter.runtime.events import NORMAL, EventRecorder, InvolvedObject, ObjectEvent

SCHEME = "machines://"
#: Held by a class from its first host in use on; when it is deleted, until its last one is off.
CLASS_FINALIZER = f"{MACHINE_NODE_CLASS.group}/termination"
#: A host that did not come up counts as unavailable for so long.
UNAVAILABLE_FOR = timedelta(minutes=10)
#: Garbage collection skips younger entries: their claim may not be visible yet.
GARBAGE_AGE = timedelta(seconds=30)
_REPAIR_AFTER = timedelta(minutes=10)
_REPAIR_POLICIES = (
    RepairPolicy("Ready", conditions.FALSE, _REPAIR_AFTER),
    RepairPolicy("Ready", conditions.UNKNOWN, _REPAIR_AFTER, ".*"),
)
_MAX_CONFLICTS = 20
_WAITING_REPEATED = timedelta(minutes=10)
_MAX_NAMED = 5
#: A launch tries no further host after so long, or so many.
_MAX_CREATE = timedelta(seconds=30)
_MAX_TRIED_HOSTS = 10
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Place:
    """An entry and the class that has it."""

    node_class: MachineNodeClass
    entry: MachineInUse


class MachineProvider:
    """Implements ``CloudProvider`` with hosts that ``power`` switches."""

    def __init__(self, kube: Kube, clock: Clock, power: MachinePower, events: EventRecorder | None = None) -> None:
        self._kube = kube
        self._events = events
        self._clock = clock
        self._power = power
        #: Hosts that did not come up, by class and name, until they are tried again.
        self._failed: dict[tuple[str, str], datetime] = {}
        self._listed: dict[str, tuple[InstanceType, ...]] = {}

    @property
    def name(self) -> str:
        """The provider name in metrics."""
        return "machines"

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """MachineNodeClass only."""
        return (MACHINE_NODE_CLASS,)  # type: ignore[return-value]

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """A node that is not ready for ten minutes is unhealthy."""
        return _REPAIR_POLICIES

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """None."""
        return ()

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """A host that the class lists no longer, or with other amounts, is to go."""
        node_class = await self._class(claim.spec.node_class_ref.name)
        own = (e for e in node_class.status.in_use if e.claim_uid == claim.metadata.uid)
        entry = next((e for e in own if not e.terminating), None)
        if entry is None:
            return None
        host = next((host for host in node_class.spec.hosts if host.name == entry.host), None)
        if host is None:
            return InstanceDrift("HostRemoved", f"MachineNodeClass {node_class.metadata.name} has no host {entry.host}")
        if (host.capacity, host.overhead) != (entry.capacity, entry.overhead):
            return InstanceDrift("HostChanged", f"host {entry.host} has other amounts than when it was powered on")
        return None

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """The hosts of the pool's class; offerings without a free host are unavailable."""
        name = pool.spec.template.spec.node_class_ref.name
        try:
            node_class = await self._kube.get(MACHINE_NODE_CLASS, name)
        except NotFound:
            return ()
        except KubeError as error:
            raise ProviderError(f"reading MachineNodeClass {name}, {error}") from error
        return self._types(node_class)

    def _types(self, node_class: MachineNodeClass) -> tuple[InstanceType, ...]:
        """The identical tuple while nothing changed that shows in it. Raises ``NodeClassNotReady``."""
        name = node_class.metadata.name
        try:
            made = instance_types(name, node_class.spec.hosts, self._busy(node_class))
        except ValueError as error:
            raise NodeClassNotReady(f"MachineNodeClass {name}: {error}") from error
        if self._listed.get(name) != made:
            self._listed[name] = made
        return self._listed[name]

    def _busy(self, node_class: MachineNodeClass) -> frozenset[str]:
        now, name = self._clock.now(), node_class.metadata.name
        self._failed = {key: until for key, until in self._failed.items() if until > now}
        failed = {host for owner, host in self._failed if owner == name}
        return frozenset({entry.host for entry in node_class.status.in_use} | failed)

    # -- launch ---------------------------------------------------------------------------------------------------------

    async def create(self, claim: NodeClaim) -> Instance:
        """Power on the claim's host: the one it has, or the cheapest that suits.

        After a host that does not come up comes the next, for a bounded time. The host may have come up nevertheless. It stays in
        use, terminating, until garbage collection has found it off.
        """
        give_up_at = self._clock.now() + _MAX_CREATE
        failed: list[str] = []
        while not failed or (len(failed) < _MAX_TRIED_HOSTS and self._clock.now() < give_up_at):
            place = await self._reserve(claim)
            entry = place.entry
            try:
                await self._power.on(place.node_class.spec.power, entry.host, entry.variables)
            except PowerFailed as error:
                _log.error("host does not power on", host=entry.host, error=str(error))
                self._failed[place.node_class.metadata.name, entry.host] = self._clock.now() + UNAVAILABLE_FOR
                await self._replace(place, msgspec.structs.replace(entry, terminating=True))
                failed.append(entry.host)
            else:
                return _instance(place)
        raise InsufficientCapacity(f"claim {claim.metadata.name}: hosts {', '.join(failed)} do not power on")

    async def _reserve(self, claim: NodeClaim) -> _Place:
        """Write down the claim's host before anything happens to it. Raises ``ProviderError``."""
        name = claim.spec.node_class_ref.name
        for _ in range(_MAX_CONFLICTS):
            node_class = await self._class(name)
            for entry in node_class.status.in_use:
                if entry.claim_uid == claim.metadata.uid and not entry.terminating:
                    return _Place(node_class, entry)
            if node_class.metadata.deletion_timestamp is not None:
                raise NodeClassNotReady(f"MachineNodeClass {name} is being deleted")
            if not conditions.is_true(node_class.status.conditions, "Ready"):
                raise NodeClassNotReady(f"MachineNodeClass {name} is not ready")
            busy = self._busy(node_class) | await self._held(claim, name)
            choice = next(suitable_hosts(claim, node_class.spec.hosts, self._types(node_class), busy), None)
            if choice is None:
                raise InsufficientCapacity(
                    f"no host of MachineNodeClass {name} is free for claim {claim.metadata.name}"
                )
            entry = self._entry(claim, choice)
            kept = await self._with_finalizer(node_class)
            stored = None if kept is None else await self._write(kept, (*kept.status.in_use, entry))
            if stored is not None:
                return _Place(stored, entry)
        raise ProviderError(f"MachineNodeClass {name} keeps changing")

    async def _held(self, claim: NodeClaim, class_name: str) -> frozenset[str]:
        """Hosts whose provider ID another NodeClaim has still: its end would switch them off. Raises ``ProviderError``."""
        prefix = f"{SCHEME}{class_name}/"
        try:
            claims = (await self._kube.list(NODE_CLAIM)).items
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        others = (other.status.provider_id for other in claims if other.metadata.uid != claim.metadata.uid)
        return frozenset(held.removeprefix(prefix) for held in others if held.startswith(prefix))

    def _entry(self, claim: NodeClaim, choice: HostChoice) -> MachineInUse:
        host = choice.host
        return MachineInUse(
            host=host.name,
            claim_name=claim.metadata.name,
            claim_uid=claim.metadata.uid,
            since=self._clock.now(),
            labels=choice.labels,
            capacity=host.capacity,
            overhead=host.overhead,
            variables=host.variables,
        )

    async def _class(self, name: str) -> MachineNodeClass:
        try:
            return await self._kube.get(MACHINE_NODE_CLASS, name)
        except NotFound as error:
            raise InsufficientCapacity(f"MachineNodeClass {name} does not exist") from error
        except KubeError as error:
            raise ProviderError(f"reading MachineNodeClass {name}, {error}") from error

    async def _write(self, node_class: MachineNodeClass, entries: tuple[MachineInUse, ...]) -> MachineNodeClass | None:
        """Write the hosts in use against the version that was read; None if it has changed. Raises ``ProviderError``."""
        meta = node_class.metadata
        patch = {"status": {"inUse": msgspec.to_builtins(entries, builtin_types=())}}
        try:
            return await self._kube.patch(
                MACHINE_NODE_CLASS, meta.name, patch, subresource="status", resource_version=meta.resource_version
            )
        except Conflict:
            return None
        except KubeError as error:
            raise ProviderError(f"writing MachineNodeClass {meta.name}, {error}") from error

    async def _with_finalizer(self, node_class: MachineNodeClass) -> MachineNodeClass | None:
        """The class with our finalizer; None if it has changed. Raises ``ProviderError``."""
        held = node_class.metadata.finalizers
        return (
            node_class if CLASS_FINALIZER in held else await self._set_finalizers(node_class, (*held, CLASS_FINALIZER))
        )

    async def _set_finalizers(
        self, node_class: MachineNodeClass, finalizers: tuple[str, ...]
    ) -> MachineNodeClass | None:
        """Write the finalizers against the version that was read; None if it has changed or is gone. Raises ``ProviderError``."""
        meta = node_class.metadata
        patch: dict[str, Json] = {"metadata": {"finalizers": list(finalizers)}}
        try:
            return await self._kube.patch(MACHINE_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)
        except (Conflict, NotFound):
            return None
        except KubeError as error:
            raise ProviderError(f"writing MachineNodeClass {meta.name}, {error}") from error

    # -- termination ----------------------------------------------------------------------------------------------------

    async def delete(self, provider_id: str) -> None:
        """Power off; the host is free, and ``InstanceNotFound`` is raised, once it is seen to be off."""
        # In the same call: in the next one the host may be that of another claim.
        if await self._end(await self._place(provider_id)):
            raise InstanceNotFound(f"{provider_id} is off")

    async def _end(self, place: _Place, *, may_come_on: bool = False) -> bool:
        """Whether the host is off, and free. Raises ``ProviderError``.

        A host that ``may_come_on`` still, after a failed power-on, gets a power-off even if it is off now.
        """
        entry, driver = place.entry, place.node_class.spec.power
        if not entry.terminating:
            place = await self._replace(place, msgspec.structs.replace(entry, terminating=True))
        try:
            if await self._power.is_on(driver, entry.host, entry.variables):
                await self._power.off(driver, entry.host, entry.variables)
            elif may_come_on:
                # Programs for BMCs may refuse this to a host that is off, which is what was asked for.
                with suppress(PowerFailed):
                    await self._power.off(driver, entry.host, entry.variables)
            is_on = await self._power.is_on(driver, entry.host, entry.variables)
        except PowerFailed as error:
            raise ProviderError(f"powering off host {entry.host}, {error}") from error
        if not is_on:
            await self._release((await self._replace(place, None)).node_class)
        return not is_on

    async def _release(self, node_class: MachineNodeClass) -> None:
        """Let a deleted class go whose hosts are all off. Raises ``ProviderError``."""
        held = node_class.metadata.finalizers
        is_deleted = node_class.metadata.deletion_timestamp is not None
        if is_deleted and not node_class.status.in_use and CLASS_FINALIZER in held:
            await self._set_finalizers(node_class, tuple(name for name in held if name != CLASS_FINALIZER))

    async def _replace(self, place: _Place, entry: MachineInUse | None) -> _Place:
        """Change or remove an entry, whatever else of the class changes meanwhile. Raises ``ProviderError``."""
        own, name = place.entry, place.node_class.metadata.name
        for _ in range(_MAX_CONFLICTS):
            node_class = await self._class(name)
            others = [e for e in node_class.status.in_use if (e.host, e.claim_uid) != (own.host, own.claim_uid)]
            kept = tuple(others) if entry is None else (*others, entry)
            stored = await self._write(node_class, kept)
            if stored is not None:
                return _Place(stored, entry or own)
        raise ProviderError(f"MachineNodeClass {name} keeps changing")

    # -- what there is --------------------------------------------------------------------------------------------------

    async def get(self, provider_id: str) -> Instance:
        """A host in use."""
        return _instance(await self._place(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        """All hosts in use."""
        return tuple(map(_instance, await self._places()))

    async def collect_garbage(self) -> None:
        """Power off hosts whose claim is gone, and those that did not come up for a claim that has another.

        Deleted classes without a host in use are let go. Hosts are listed before claims: a claim made in between has no host yet.
        """
        classes = await self._classes()
        try:
            claims = await self._kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        uids = {claim.metadata.uid for claim in claims.items}
        unreadable = {claim.name for claim in claims.undecodable}
        for place in _places_of(classes):
            entry = place.entry
            is_old = self._clock.now() - entry.since > GARBAGE_AGE
            has_claim = entry.claim_uid in uids or entry.claim_name in unreadable
            if is_old and (entry.terminating or not has_claim):
                try:
                    current = await self._current(place)
                    if current is not None:
                        await self._end(current, may_come_on=True)
                except ProviderError as error:
                    # One BMC that does not answer must not keep the other hosts on.
                    _log.error("host without claim does not power off", host=entry.host, error=str(error))
        for node_class in classes:
            self._tell_of_waiting(node_class)
            await self._release(node_class)

    async def _current(self, place: _Place) -> _Place | None:
        """The place as it is now: ending others took time, in which the host may have come to another claim."""
        own = place.entry
        for now in _places_of([await self._class(place.node_class.metadata.name)]):
            if (now.entry.host, now.entry.claim_uid) == (own.host, own.claim_uid):
                return now
        return None

    def _tell_of_waiting(self, node_class: MachineNodeClass) -> None:
        """An event on a deleted class that stays because of its hosts, as an EC2NodeClass has one (OPS-544)."""
        meta, claims = node_class.metadata, sorted({entry.claim_name for entry in node_class.status.in_use})
        if self._events is None or meta.deletion_timestamp is None or not claims:
            return
        more = f" and {len(claims) - _MAX_NAMED} other(s)" if len(claims) > _MAX_NAMED else ""
        message = f"Waiting on NodeClaim termination for {', '.join(claims[:_MAX_NAMED])}{more}"
        about = InvolvedObject(MACHINE_NODE_CLASS, meta)
        self._events.publish(
            ObjectEvent(about, NORMAL, "WaitingOnNodeClaimTermination", message, dedupe_timeout=_WAITING_REPEATED)
        )

    async def _place(self, provider_id: str) -> _Place:
        for place in await self._places():
            if _provider_id(place) == provider_id:
                return place
        raise InstanceNotFound(f"{provider_id or 'an empty provider ID'} is no host in use")

    async def _places(self) -> Sequence[_Place]:
        return _places_of(await self._classes())

    async def _classes(self) -> Sequence[MachineNodeClass]:
        try:
            return (await self._kube.list(MACHINE_NODE_CLASS)).items
        except KubeError as error:
            raise ProviderError(f"listing MachineNodeClasses, {error}") from error


def _places_of(classes: Iterable[MachineNodeClass]) -> list[_Place]:
    return [_Place(node_class, entry) for node_class in classes for entry in node_class.status.in_use]


def _provider_id(place: _Place) -> str:
    return f"{SCHEME}{place.node_class.metadata.name}/{place.entry.host}"


def _instance(place: _Place) -> Instance:
    entry = place.entry
    capacity = {"pods": 110 * res.ONE_UNIT, **res.parse_resources(entry.capacity)}
    overhead = {name: amount for name, amount in res.parse_resources(entry.overhead).items() if name in capacity}
    return Instance(
        provider_id=_provider_id(place),
        claim_name=entry.claim_name,
        labels=dict(entry.labels),
        capacity=capacity,
        allocatable=res.subtract(capacity, overhead),
        created_at=entry.since,
        node_name=entry.host,
        terminating=entry.terminating,
    )
