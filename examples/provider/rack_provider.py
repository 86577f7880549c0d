"""A cloud of your own: servers in a rack, with the controllers of Karpenter. docs/how-to/own-provider.md explains it.

``Rack`` stands for the SDK of your cloud: replace it. ``RackProvider`` is what the controllers call.

    PYTHONPATH=examples/provider RACK=/tmp/rack karpenter run --provider rack_provider:RackProvider
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM, Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.instance_type_file import load_instance_types
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, requirements
from karpenter.model import resources as res
from karpenter.providers.contract import (
    Instance,
    InstanceDrift,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    ProviderContext,
    ProviderError,
    RegistrationHook,
    RepairPolicy,
)

SERVER_TYPES = Path(__file__).with_name("server-types.json")
#: An offering that could not be had counts as unavailable for so long.
UNAVAILABLE_FOR = timedelta(minutes=3)
#: Garbage collection skips younger servers: their claim may not be visible yet.
GARBAGE_AGE = timedelta(seconds=30)
SCHEME = "rack://"


# -- the node class -----------------------------------------------------------------------------------------------------

_READY = Condition(type="Ready", status="True", reason="Ready", last_transition_time=datetime(2026, 1, 1).astimezone())


class RackNodeClassStatus(Wire, frozen=True, kw_only=True):
    """Ready until somebody says otherwise; a class that needs preparation gets its own controller."""

    conditions: tuple[Condition, ...] = (_READY,)


class RackNodeClass(Wire, frozen=True, kw_only=True):
    """What NodePools refer to. Put here what servers have in common: image, network, keys."""

    metadata: ObjectMeta = ObjectMeta()
    status: RackNodeClassStatus = RackNodeClassStatus()


RACK_NODE_CLASS = Kind("rack.example.com", "v1", "racknodeclasses", "RackNodeClass", False, RackNodeClass)


# -- the cloud ----------------------------------------------------------------------------------------------------------


class SoldOut(Exception):
    """The rack has no such server left."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server that runs. ``labels`` are those settled by the choice; capacities are quantities as Kubernetes writes them."""

    name: str
    claim_name: str
    claim_uid: str
    created_at: datetime
    labels: dict[str, str]
    capacity: dict[str, str]
    allocatable: dict[str, str]


class Rack:
    """A directory with a file for each running server. ``sold-out`` in it lists offerings as ``type/zone/capacity-type``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def power_on(self, server: Server, offering: str) -> Server:
        """Start a server, or return the one of this name. Raises ``SoldOut``."""
        running = self.server(server.name)
        if running is not None:
            return running
        sold_out = self._directory / "sold-out"
        if sold_out.exists() and offering in sold_out.read_text(encoding="utf-8").split():
            raise SoldOut(offering)
        self._file(server.name).write_bytes(msgspec.json.encode(server))
        return server

    def power_off(self, name: str) -> None:
        """Stop a server for good."""
        self._file(name).unlink(missing_ok=True)

    def server(self, name: str) -> Server | None:
        """A running server."""
        file = self._file(name)
        return msgspec.json.decode(file.read_bytes(), type=Server) if file.exists() else None

    def servers(self) -> tuple[Server, ...]:
        """All running servers."""
        return tuple(
            msgspec.json.decode(file.read_bytes(), type=Server) for file in sorted(self._directory.glob("*.json"))
        )

    def _file(self, name: str) -> Path:
        return self._directory / f"{Path(name).name}.json"


# -- choosing an offering -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """An offering of a type that the claim could have."""

    instance_type: InstanceType
    offering: Offering

    @property
    def key(self) -> str:
        """How the rack calls the offering."""
        return f"{self.instance_type.name}/{self.offering.zone}/{self.offering.capacity_type}"


def choices(claim: NodeClaim, types: tuple[InstanceType, ...]) -> list[Choice]:
    """The available offerings that satisfy the claim's requirements and hold its requests, cheapest first."""
    required = requirements.requirements_from_wire(claim.spec.requirements)
    requests = res.parse_resources(claim.spec.resources.requests)
    possible = [
        Choice(instance_type, offering)
        for instance_type in types
        if requirements.intersects(instance_type.requirements, required)
        and res.fits(requests, instance_type.allocatable)
        for offering in instance_type.offerings
        if offering.available and requirements.intersects(offering.requirements, required)
    ]
    return sorted(possible, key=lambda choice: (choice.offering.price_per_hour, choice.key))


def resolved_labels(choice: Choice) -> Iterator[tuple[str, str]]:
    """The labels for which type and offering leave exactly one value."""
    for key, requirement in choice.instance_type.requirements.intersect(choice.offering.requirements).items():
        if not requirement.complement and len(requirement.values) == 1:
            yield key, next(iter(requirement.values))


# -- the provider -------------------------------------------------------------------------------------------------------


class RackProvider:
    """Implements ``CloudProvider``. The rack is the memory: a restarted provider finds every server again."""

    def __init__(self, context: ProviderContext) -> None:
        self._kube, self._clock = context.kube, context.clock
        self._rack = Rack(Path(os.environ.get("RACK", "rack")))
        self._types = load_instance_types(str(SERVER_TYPES))
        self._unavailable: dict[str, datetime] = {}
        self._listed: tuple[frozenset[str], tuple[InstanceType, ...]] = (frozenset(), self._types)

    @property
    def name(self) -> str:
        return "rack"

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        return (RACK_NODE_CLASS,)  # type: ignore[return-value]

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        return (RepairPolicy("Ready", conditions.UNKNOWN, timedelta(minutes=10)),)

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        return ()

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        return None

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """All types, those sold out marked as such; the identical tuple while nothing changed."""
        now = self._clock.now()
        self._unavailable = {key: until for key, until in self._unavailable.items() if until > now}
        missing = frozenset(self._unavailable)
        if missing != self._listed[0]:
            self._listed = (missing, tuple(_without(instance_type, missing) for instance_type in self._types))
        return self._listed[1]

    async def create(self, claim: NodeClaim) -> Instance:
        """The claim's server: the one it has, or the cheapest that can be had."""
        name = _server_name(claim)
        running = await asyncio.to_thread(self._rack.server, name)
        if running is not None:
            return _instance(running)
        await self._check_class(claim.spec.node_class_ref.name)
        for choice in choices(claim, self._types):
            try:
                return _instance(await asyncio.to_thread(self._rack.power_on, self._server(claim, choice), choice.key))
            except SoldOut:
                self._unavailable[choice.key] = self._clock.now() + UNAVAILABLE_FOR
        raise InsufficientCapacity(f"the rack has no server for claim {claim.metadata.name}")

    async def delete(self, provider_id: str) -> None:
        server = await self._server_of(provider_id)
        await asyncio.to_thread(self._rack.power_off, server.name)

    async def get(self, provider_id: str) -> Instance:
        return _instance(await self._server_of(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        return tuple(map(_instance, await asyncio.to_thread(self._rack.servers)))

    async def collect_garbage(self) -> None:
        """Stop servers whose claim is gone. Servers are listed before claims: a claim made in between has no server yet."""
        servers = await asyncio.to_thread(self._rack.servers)
        try:
            claims = await self._kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error
        uids = {claim.metadata.uid for claim in claims.items}
        unreadable = {claim.name for claim in claims.undecodable}
        for server in servers:
            is_old = self._clock.now() - server.created_at > GARBAGE_AGE
            if is_old and server.claim_uid not in uids and server.claim_name not in unreadable:
                await asyncio.to_thread(self._rack.power_off, server.name)

    async def _check_class(self, name: str) -> None:
        try:
            node_class = await self._kube.get(RACK_NODE_CLASS, name)
        except NotFound as error:
            raise InsufficientCapacity(f"RackNodeClass {name} does not exist") from error
        except KubeError as error:
            raise ProviderError(f"reading RackNodeClass {name}, {error}") from error
        if conditions.is_false(node_class.status.conditions, "Ready"):
            raise NodeClassNotReady(f"RackNodeClass {name} is not ready")

    async def _server_of(self, provider_id: str) -> Server:
        name = provider_id.removeprefix(SCHEME)
        server = await asyncio.to_thread(self._rack.server, name) if provider_id.startswith(SCHEME) else None
        if server is None:
            raise InstanceNotFound(f"{provider_id or 'an empty provider ID'} is no server of the rack")
        return server

    def _server(self, claim: NodeClaim, choice: Choice) -> Server:
        instance_type = choice.instance_type
        return Server(
            name=_server_name(claim),
            claim_name=claim.metadata.name,
            claim_uid=claim.metadata.uid,
            created_at=self._clock.now(),
            labels=dict(resolved_labels(choice)),
            capacity=dict(res.resources_to_wire(instance_type.capacity)),
            allocatable=dict(res.resources_to_wire(instance_type.allocatable)),
        )


def _server_name(claim: NodeClaim) -> str:
    """Derived from name and uid: a repeated launch finds the first server, and a namesake gets its own."""
    digest = hashlib.sha256(f"{claim.metadata.name}/{claim.metadata.uid}".encode()).hexdigest()
    return f"{claim.metadata.name[:50]}-{digest[:6]}"


def _instance(server: Server) -> Instance:
    return Instance(
        provider_id=SCHEME + server.name,
        claim_name=server.claim_name,
        labels=server.labels,
        capacity=res.parse_resources(server.capacity),
        allocatable=res.parse_resources(server.allocatable),
        created_at=server.created_at,
        node_name=server.name,
    )


def _without(instance_type: InstanceType, missing: frozenset[str]) -> InstanceType:
    offerings = tuple(
        replace(offering, available=offering.available and Choice(instance_type, offering).key not in missing)
        for offering in instance_type.offerings
    )
    return replace(instance_type, offerings=offerings)
