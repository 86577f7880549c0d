"""The controller of EC2NodeClasses put together from what it needs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.kube.protocol import Writer
from karpenter.model.clock import Clock
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass import collection, parameters
from karpenter.providers.aws.nodeclass.amis import Images, ImagesPart
from karpenter.providers.aws.nodeclass.collection import ProfileCollector
from karpenter.providers.aws.nodeclass.controller import NodeClassController, Surroundings
from karpenter.providers.aws.nodeclass.dry_runs import DryRuns, TemplateData
from karpenter.providers.aws.nodeclass.hashing import Editions
from karpenter.providers.aws.nodeclass.network import (
    CountAddresses,
    SecurityGroups,
    SecurityGroupsPart,
    Subnets,
    SubnetsPart,
)
from karpenter.providers.aws.nodeclass.news import News, Warnings
from karpenter.providers.aws.nodeclass.parameters import Parameters
from karpenter.providers.aws.nodeclass.placement import PlacementGroupPart, PlacementGroups
from karpenter.providers.aws.nodeclass.profiles import InstanceProfilePart, Profiles
from karpenter.providers.aws.nodeclass.reservations import CountUnits, Reservations, ReservationsPart
from karpenter.providers.aws.nodeclass.stamping import Stamps
from karpenter.providers.aws.nodeclass.termination import Leftovers, Termination
from karpenter.providers.aws.nodeclass.told import Part, condition_types
from karpenter.providers.aws.nodeclass.validation import Knowledge, ValidationPart, verdict_key
from karpenter.providers.aws.ports import Services
from karpenter.providers.aws.settings import AwsSettings, Cluster
from karpenter.providers.aws.surroundings import Herald, Observed

_log = structlog.get_logger()


@dataclass(frozen=True)
class Connections:
    """Where the controller reads and writes: AWS, the API server, and the cluster as watches last told it.

    ``cluster`` tells what is known of the cluster now; of it only the version may change with time.
    """

    services: Services
    kube: Writer
    clock: Clock
    cluster: Callable[[], Cluster]
    observed: Observed
    find: Callable[[str], EC2NodeClass | None]
    classes: Callable[[], Iterable[EC2NodeClass]]


@dataclass(frozen=True)
class Listeners:
    """Who is told: of events, of free addresses and free units whenever they were asked for, and of classes that are gone."""

    herald: Herald
    addresses: CountAddresses
    units: CountUnits
    gone: Callable[[EC2NodeClass], None]


@dataclass(frozen=True)
class NodeClasses:
    """The controller, and those of its pieces that others ask. ``collector`` is None in an isolated VPC (AWS-004)."""

    controller: NodeClassController
    editions: Editions
    placement_groups: PlacementGroups
    reservations: Reservations
    parameters: Parameters
    collector: ProfileCollector | None

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What has to run beside the controller, by name: each works until cancelled."""
        found = {"providers.ssm.invalidation": self._invalidate}
        return found if self.collector is None else {**found, "instanceprofile.garbagecollection": self._collect}

    async def _invalidate(self) -> None:
        await _every(parameters.OUTDATED_CHECKED_EVERY, self.parameters.drop_outdated)

    async def _collect(self) -> None:
        if self.collector is not None:
            await _every(collection.EVERY, self.collector.collect)


def node_classes(
    connections: Connections,
    listeners: Listeners,
    settings: AwsSettings,
    knowledge: Knowledge,
    template_data: TemplateData,
) -> NodeClasses:
    """Put everything together."""
    made = _Pieces(connections, listeners, settings, template_data)
    around = Surroundings(
        connections.kube,
        connections.clock,
        condition_types(settings.reserved_capacity),
        connections.find,
        connections.cluster,
    )
    controller = NodeClassController(
        around,
        made.parts(knowledge),
        Stamps(connections.kube, connections.observed.claims),
        made.editions,
        made.termination(),
    )
    return NodeClasses(controller, made.editions, made.groups, made.reservations, made.parameters, made.collector())


class _Pieces:
    """Everything that is shared between parts."""

    def __init__(
        self, connections: Connections, listeners: Listeners, settings: AwsSettings, template_data: TemplateData
    ) -> None:
        ec2, clock, cluster = connections.services.ec2, connections.clock, connections.cluster
        self._connections = connections
        self._listeners = listeners
        self._settings = settings
        self._news = News()
        self.editions = Editions()
        self.groups = PlacementGroups(ec2, clock)
        self.reservations = Reservations(ec2, clock, listeners.units)
        self.parameters = Parameters(connections.services.ssm, ec2, clock)
        self._profiles = Profiles(connections.services.iam, clock, cluster(), lambda: str(uuid.uuid4()))
        self._dry_runs = None if settings.disable_dry_run else DryRuns(ec2, clock, cluster, template_data)

    def parts(self, knowledge: Knowledge) -> Sequence[Part]:
        """The parts of a look, in the order of AWS-082."""
        ec2, clock = self._connections.services.ec2, self._connections.clock
        cluster, news, herald = self._connections.cluster, self._news, self._listeners.herald
        warnings = Warnings(herald, news)
        images = Images(ec2, self.parameters, clock, cluster, self._settings.ami_refresh_interval)
        subnets = Subnets(ec2, clock, self._settings.subnet_refresh_interval, self._listeners.addresses)
        reservations = ReservationsPart(self.reservations, clock, news)
        return (
            ImagesPart(images, cluster, news, herald),
            *((reservations,) if self._settings.reserved_capacity else ()),
            PlacementGroupPart(self.groups),
            SubnetsPart(subnets, news, warnings),
            SecurityGroupsPart(SecurityGroups(ec2, clock), subnets, news, warnings),
            InstanceProfilePart(self._profiles),
            ValidationPart(knowledge, self._dry_runs, self._settings.kubelet_expressions),
        )

    def termination(self) -> Termination:
        """How classes end."""
        connections = self._connections
        profiles = None if self._settings.isolated_vpc else self._profiles
        leftovers = Leftovers(profiles, connections.services.ec2, connections.cluster())
        return Termination(
            leftovers, connections.kube, self._listeners.herald, connections.observed.claims, self._forget
        )

    def collector(self) -> ProfileCollector | None:
        """What deletes profiles nobody uses."""
        if self._settings.isolated_vpc:
            return None
        connections = self._connections
        return ProfileCollector(self._profiles, connections.cluster(), connections.classes, connections.observed.claims)

    def _forget(self, node_class: EC2NodeClass) -> None:
        self._news.forget(node_class.metadata.uid)
        if self._dry_runs is not None:
            self._dry_runs.forget(verdict_key(node_class))
        self._listeners.gone(node_class)


async def _every(pause: timedelta, round_: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(pause.total_seconds())
        try:
            await round_()
        except AwsError as error:
            # The next round tries again.
            _log.error("round failed", error=str(error))
