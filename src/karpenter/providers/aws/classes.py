"""The controller of EC2NodeClasses put together: its parts in their order, and what they share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import KubeError
from karpenter.model import validation
from karpenter.providers.aws.booting import Booting
from karpenter.providers.aws.ground import Ground
from karpenter.providers.aws.launch.addresses import Addresses
from karpenter.providers.aws.nodeclass.amis import Images, ImagesPart
from karpenter.providers.aws.nodeclass.collection import ProfileCollector
from karpenter.providers.aws.nodeclass.controller import NodeClassController, Surroundings
from karpenter.providers.aws.nodeclass.dry_runs import DryRuns
from karpenter.providers.aws.nodeclass.hashing import Editions
from karpenter.providers.aws.nodeclass.network import SecurityGroups, SecurityGroupsPart, Subnets, SubnetsPart
from karpenter.providers.aws.nodeclass.news import KIND, News, Warnings
from karpenter.providers.aws.nodeclass.parameters import Parameters
from karpenter.providers.aws.nodeclass.placement import PlacementGroupPart, PlacementGroups
from karpenter.providers.aws.nodeclass.profiles import InstanceProfilePart, Profiles
from karpenter.providers.aws.nodeclass.reservations import Reservations, ReservationsPart
from karpenter.providers.aws.nodeclass.stamping import Stamps
from karpenter.providers.aws.nodeclass.termination import Leftovers, Termination
from karpenter.providers.aws.nodeclass.told import Part, condition_types
from karpenter.providers.aws.nodeclass.validation import Knowledge, ValidationPart
from karpenter.providers.aws.types.market import Market
from karpenter.providers.aws.types.reserved import ReservedUnits
from karpenter.providers.aws.window import Window
from karpenter.providers.contract import ProviderError


@dataclass(frozen=True)
class Neighbours:
    """Whom looks at a class tell what they found, and ask what they do not know. ``gone`` is told of a class that has ended."""

    market: Market
    booting: Booting
    groups: PlacementGroups
    addresses: Addresses
    reserved: ReservedUnits
    gone: Callable[[EC2NodeClass], None]


class Classes:
    """EC2NodeClasses and what is made for them."""

    def __init__(self, ground: Ground, window: Window, neighbours: Neighbours) -> None:
        self._ground = ground
        self._window = window
        self._neighbours = neighbours
        self._news = News()
        self._profiles = Profiles(ground.services.iam, ground.clock, ground.now(), lambda: str(uuid.uuid4()))
        self.parameters = Parameters(ground.services.ssm, ground.services.ec2, ground.clock)
        self.editions = Editions()
        around = Surroundings(
            kube=ground.kube,
            clock=ground.clock,
            types=condition_types(ground.settings.reserved_capacity),
            find=window.class_named,
            cluster=ground.now,
        )
        stamps = Stamps(ground.kube, window.claims)
        self.controller = NodeClassController(around, self._parts(), stamps, self.editions, self._termination())

    def node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """A class came, changed or went. What its owner should know is told with every edition."""
        if new is not None and (old is None or old.metadata.generation != new.metadata.generation):
            for finding in validation.advise(new):
                self._window.warning(KIND, new.metadata, "NodeClassAdvice", str(finding))
        self.controller.node_class(old, new)

    async def collect_profiles(self) -> None:
        """AWS-125. Raises ``ProviderError`` while anything cannot be read: it may have a profile in use."""
        window, kube = self._window, self._ground.kube
        unreadable = (*(await kube.list(NODE_CLAIM)).rejected, *(await kube.list(EC2_NODE_CLASS)).rejected)
        if unreadable:
            texts = ", ".join(sorted(item.name for item in unreadable))
            raise ProviderError(f"instance profiles are left alone while nobody can read {texts}")
        await ProfileCollector(self._profiles, self._ground.now(), window.classes, window.claims).collect()

    # -- parts ------------------------------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[Part, ...]:
        """What a look at a class consists of, in order (AWS-082)."""
        ground, window, neighbours = self._ground, self._window, self._neighbours
        ec2, clock, settings = ground.services.ec2, ground.clock, ground.settings
        warnings = Warnings(window, self._news)
        images = Images(ec2, self.parameters, clock, ground.now, settings.ami_refresh_interval)
        subnets = Subnets(ec2, clock, settings.subnet_refresh_interval, self._counted)
        reservations = Reservations(ec2, clock, neighbours.reserved.set)
        reserved = (ReservationsPart(reservations, clock, self._news),) if settings.reserved_capacity else ()
        return (
            ImagesPart(images, ground.now, self._news, window),
            *reserved,
            PlacementGroupPart(neighbours.groups),
            SubnetsPart(subnets, self._news, warnings),
            SecurityGroupsPart(SecurityGroups(ec2, clock), subnets, self._news, warnings),
            InstanceProfilePart(self._profiles),
            self._validation(),
        )

    def _counted(self, subnet_id: str, free: int) -> None:
        self._neighbours.addresses.counted({subnet_id: free})

    def _validation(self) -> ValidationPart:
        ground, market = self._ground, self._neighbours.market
        knowledge = Knowledge(
            service_cidr=self._service_cidr,
            pools=self._window.pools,
            facts=lambda node_class: tuple(market.kubelet_facts(node_class).values()),
            types=market.types_for,
            fits=market.fits,
        )
        dry_runs = DryRuns(ground.services.ec2, ground.clock, ground.now, self._neighbours.booting.trial_data)
        wanted = None if ground.settings.disable_dry_run else dry_runs
        return ValidationPart(knowledge, wanted, ground.settings.kubelet_expressions)

    async def _service_cidr(self) -> str:
        """AWS-026. Raises ``AwsError`` and ``ProviderError``."""
        ground = self._ground
        if not ground.now().service_cidr:
            await ground.services.eks.describe_cluster(ground.now().name)
            try:
                await ground.cluster.look()
            except KubeError as error:
                raise ProviderError(f"asking for the cluster's version, {error}") from error
        return ground.now().service_cidr

    def _termination(self) -> Termination:
        ground = self._ground
        profiles = None if ground.settings.isolated_vpc else self._profiles
        leftovers = Leftovers(profiles, ground.services.ec2, ground.now())
        return Termination(leftovers, ground.kube, self._window, self._window.claims, self._forget)

    def _forget(self, node_class: EC2NodeClass) -> None:
        self.editions.forget(node_class.metadata.name)
        self._news.forget(node_class.metadata.uid)
        self._neighbours.gone(node_class)
