"""The provider put together: what is asked of AWS, what is remembered, who acts on it, and which loops run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
from prometheus_client import Gauge

from karpenter.api.core import Node
from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_OVERLAY
from karpenter.kube.workqueue import Queue
from karpenter.model import labels
from karpenter.providers.aws.booting import Booting
from karpenter.providers.aws.classes import Classes, Neighbours
from karpenter.providers.aws.events.health import InstanceHealth
from karpenter.providers.aws.events.partitions import PartitionKnown
from karpenter.providers.aws.events.queue import InterruptionQueue
from karpenter.providers.aws.events.reservations import CapacityTypes, ReservationEnds
from karpenter.providers.aws.events.responding import Effects, Responder
from karpenter.providers.aws.events.selling import OfferingFigures
from karpenter.providers.aws.events.shifts import Places, ZonalShifts
from karpenter.providers.aws.ground import Ground
from karpenter.providers.aws.instances.collector import Collector
from karpenter.providers.aws.instances.deaths import Deaths
from karpenter.providers.aws.instances.ending import Ending
from karpenter.providers.aws.instances.reading import Instances, Region
from karpenter.providers.aws.instances.tagger import Tagger, is_wanting
from karpenter.providers.aws.launch.addresses import Addresses
from karpenter.providers.aws.launch.buyer import Buyer
from karpenter.providers.aws.launch.consequences import Consequences, Pool
from karpenter.providers.aws.launch.launcher import Launcher, Trade
from karpenter.providers.aws.launch.plan import Rules
from karpenter.providers.aws.launch.templates import Templates
from karpenter.providers.aws.learning import Learning
from karpenter.providers.aws.nodeclass.placement import PlacementGroups
from karpenter.providers.aws.provider import AwsProvider, Desks, View
from karpenter.providers.aws.rounds import Look, Refresh, every, rounds
from karpenter.providers.aws.series import InstanceSeries
from karpenter.providers.aws.types import market as types_market
from karpenter.providers.aws.types import prices, telemetry
from karpenter.providers.aws.types.market import Market, Memories
from karpenter.providers.aws.types.unavailable import Sold, Unavailable
from karpenter.providers.aws.window import Outside, Window
from karpenter.providers.contract import ProviderError
from karpenter.telemetry.aws import InterruptionMetrics

_PROFILES_SECONDS = 1800.0
_PARAMETERS_SECONDS = 1800.0
_TEMPLATES_SECONDS = 3600.0
_OVERLAYS_SECONDS = 300.0
_TAGGERS = 1
_log = structlog.get_logger()


class AwsCloud:
    """Everything of the provider. ``hydrate`` before anything is asked of it, ``join`` before loops run."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._has_adopted = False
        self._window = Window()
        self._memories = Memories.empty(ground.clock)
        self._figures = telemetry.MarketFigures(ground.metrics.registry, self._memories.unavailable.current)
        self._groups = PlacementGroups(ground.services.ec2, ground.clock)
        self._shifts = self._zonal_shifts()
        self._market = self._made_market()
        self._types = Refresh(self._market.refresh_types, types_market.TYPES_PERIOD, ground.clock)
        self._list = Refresh(self._market.refresh_on_demand, prices.ON_DEMAND_PERIOD, ground.clock)
        self._spot = Refresh(self._market.refresh_spot, prices.SPOT_PERIOD, ground.clock)
        self._series = InstanceSeries(ground.metrics, self._market)
        self._templates = Templates(ground.services.ec2, ground.cluster.cluster, ground.clock)
        self._addresses = Addresses()
        self._instances = Instances(ground.services.ec2, self._region(), ground.clock, self._series)
        self._user_data_bytes = Gauge(
            "karpenter_ec2nodeclasses_userdata_bytes",
            "Bytes of user data that machines of a class get, of the 16384 EC2 takes.",
            ("nodeclass",),
            registry=ground.metrics.registry,
        )
        self._booting = Booting(self._market, lambda: ground.cluster.cluster, ground.settings, self._weighed)
        self._classes = Classes(ground, self._window, self._neighbours())
        self._tagging: Queue[str] = Queue(self._tag, _TAGGERS, _tell_tagging_failed)
        self._tagger = Tagger(self._instances, ground.kube, ground.cluster.cluster)
        self._learning = Learning(ground.kube, self._memories.learned, self._market.types_for, self._window.class_named)
        self.provider = AwsProvider(
            self._desks(),
            View(self._window, self._window.class_named, self._window),
            ground.clock,
            ground.settings.reserved_capacity,
        )

    # -- life -------------------------------------------------------------------------------------------------------------------

    async def hydrate(self) -> None:
        """Learn what is sold and at what price (AWS-024). Raises ``ProviderError`` where types cannot be had.

        Prices that cannot be had now stay the packaged ones; they are asked for again.
        """
        await self._learning.recall()
        await asyncio.gather(self._types.now(), _tried(self._list.now), _tried(self._spot.now))
        if self._shifts is not None:
            await self._shifts.hydrate()

    def join(self, outside: Outside) -> None:
        """See the process from now on."""
        self._window.open(outside)

    def node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """A class came, changed or went."""
        self._classes.node_class(old, new)

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim came, changed or went."""
        self._classes.controller.claim(old, new)
        if new is not None and new.spec.node_class_ref.kind == EC2_NODE_CLASS.name and is_wanting(new):
            self._tagging.add(new.metadata.name)

    def node(self, old: Node | None, new: Node | None) -> None:
        """A Node came, changed or went."""
        self._learning.node(old, new)

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What runs while this process leads, by the names users know (OPS-723)."""
        ground = self._ground
        looks: dict[str, Look] = {
            "providers.ssm.invalidation": every(_PARAMETERS_SECONDS, self._classes.parameters.drop_outdated),
            "instance.deaths": Deaths(ground.services.ec2, self._window, self._window, ground.clock).look,
            "cloudprovider.metrics": self._offering_figures().look,
            "launchtemplate.garbagecollection": self._look_at_templates,
            "providers.version": ground.cluster.look,
            **self._event_looks(),
        }
        if not ground.settings.isolated_vpc:
            looks["instanceprofile.garbagecollection"] = every(_PROFILES_SECONDS, self._classes.collect_profiles)
        if ground.settings.node_overlay:
            looks["providers.pricing.overlay"] = every(_OVERLAYS_SECONDS, self._reprice)
        collector_of_instances = Collector(self._instances, ground.kube, self._window, ground.clock)
        return {
            "nodeclass": self._classes.controller.run,
            "nodeclaim.tagging": self._tagging.run,
            "instance.garbagecollection": collector_of_instances.run,
            "providers.instancetype.capacity": partial(self._learning.run, self._window),
            **self._refreshing(),
            **{name: partial(rounds, name, look) for name, look in looks.items()},
        }

    def _refreshing(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What was asked for at the start, and is asked for again after a while; prices that could not be had, at once."""
        refreshes = {
            "providers.instancetype": self._types,
            "providers.pricing": self._list,
            "providers.pricing.spot": self._spot,
        }
        return {name: partial(rounds, name, item.look, item.due_seconds) for name, item in refreshes.items()}

    def _event_looks(self) -> Mapping[str, Look]:
        ground = self._ground
        ec2, kube, clock = ground.services.ec2, ground.kube, ground.clock
        metrics = InterruptionMetrics(ground.metrics)
        responder = Responder(self._window, kube, self._window, clock, self._effects())
        looks: dict[str, Look] = {
            "interruption.instancestatus": InstanceHealth(ec2, self._window, responder, metrics, clock).look
        }
        queue = ground.settings.interruption_queue
        if queue:
            looks["interruption"] = InterruptionQueue(queue, ground.services.queue, responder, metrics, clock).look
        if ground.settings.reserved_capacity:
            looks["capacityreservation.expiration"] = ReservationEnds(ec2, self._window, kube, clock).look
            looks["capacityreservation.capacitytype"] = CapacityTypes(self.provider.list, self._window, kube).look
        if self._shifts is not None:
            looks["zonalshift"] = self._shifts.look
        return looks

    # -- parts ------------------------------------------------------------------------------------------------------------------

    def _zonal_shifts(self) -> ZonalShifts | None:
        ground = self._ground
        if not ground.settings.enable_zonal_shift:
            return None
        places = Places(self._window, self._window.class_named)
        return ZonalShifts(ground.cluster.cluster.arn, ground.services.zonal_shift, places, self._window, ground.clock)

    def _shifted(self) -> frozenset[str]:
        return self._shifts.shifted() if self._shifts is not None else frozenset()

    def _made_market(self) -> Market:
        ground = self._ground
        around = types_market.Surroundings(self._shifted, self._groups.known, self._figures.skipped)
        region = ground.cluster.cluster.region
        services = ground.services
        return Market(services.ec2, services.pricing, ground.settings, region, ground.clock, self._memories, around)

    def _region(self) -> Region:
        return Region(self._ground.cluster.cluster, self._shifted, self._market.zone_id)

    def _weighed(self, node_class: str, size_bytes: int) -> None:
        self._user_data_bytes.labels(nodeclass=node_class).set(size_bytes)

    def _forget(self, node_class: EC2NodeClass) -> None:
        """A class is gone for good."""
        name = node_class.metadata.name
        self._templates.forget_class(name)
        self._user_data_bytes.remove_by_labels({"nodeclass": name})

    def _neighbours(self) -> Neighbours:
        """Whom the classes' controller works with."""
        return Neighbours(
            market=self._market,
            booting=self._booting,
            groups=self._groups,
            addresses=self._addresses,
            reserved=self._memories.reserved,
            gone=self._forget,
        )

    def _desks(self) -> Desks:
        ground = self._ground
        services = ground.services
        consequences = Consequences(
            _Shortages(self._memories.unavailable),
            self._memories.reserved,
            self._addresses,
            self._series,
            self._window,
        )
        trade = Trade(
            kube=ground.kube,
            ec2=services.ec2,
            clock=ground.clock,
            buyer=Buyer(services.ec2, self._templates),
            addresses=self._addresses,
            knowledge=self._booting,
            consequences=consequences,
            series=self._series,
        )
        rules = Rules(ground.cluster.cluster, ground.settings.reserved_capacity, ground.strict_min_values)
        launcher = Launcher(trade, rules)
        self._window.know_purchases(launcher.claim_of)
        return Desks(
            kube=ground.kube,
            market=self._market,
            launcher=launcher,
            instances=self._instances,
            ending=Ending(self._instances, self._window, self._memories.reserved, ground.clock),
            groups=self._groups,
            editions=self._classes.editions,
            hooks=(PartitionKnown(services.ec2),),
        )

    # -- work -------------------------------------------------------------------------------------------------------------------

    def _effects(self) -> Effects:
        def sold_out(instance_type: str, zone: str) -> None:
            self._memories.unavailable.mark(Sold(labels.SPOT, instance_type, zone), "spot_interrupted")

        return Effects(sold_out, self._memories.reserved.exhausted, self._window.disrupted)

    def _offering_figures(self) -> OfferingFigures:
        reserved = self._ground.settings.reserved_capacity
        return OfferingFigures(
            self._window,
            self.provider.instance_types,
            lambda lists: self._figures.rewrite(telemetry.figures(lists, reserved=reserved)),
        )

    async def _look_at_templates(self) -> float:
        """First know those of the process before, so that what nobody uses grows old; later give back what did."""
        if self._has_adopted:
            await self._templates.collect(node_class.metadata.name for node_class in self._window.classes())
        else:
            await self._templates.adopt()
            self._has_adopted = True
        return _TEMPLATES_SECONDS

    async def _reprice(self) -> None:
        """Overlays may price what EC2 tells no price of (AWS-356). Raises ``KubeError``."""
        self._market.reprice((await self._ground.kube.list(NODE_OVERLAY)).items)

    async def _tag(self, name: str) -> float | None:
        claim = self._window.claim_named(name)
        if claim is not None:
            await self._tagger.look(claim)
        return None


class _Shortages:
    """What launches could not have, as the market remembers it."""

    def __init__(self, unavailable: Unavailable) -> None:
        self._unavailable = unavailable

    def lacks(self, pool: Pool, reason: str, fleet_id: str) -> None:
        """There is none of these now."""
        self._unavailable.mark(Sold(*pool), reason, fleet_id)

    def lacks_all(self, capacity_type: str) -> None:
        """Nothing can be bought in this way now."""
        self._unavailable.mark_capacity_type(capacity_type)

    def lacks_addresses(self, subnet_id: str) -> None:
        """The subnet is full."""
        self._unavailable.mark_subnet(subnet_id)


async def _tried(refresh: Callable[[], Awaitable[None]]) -> None:
    """Ask for prices; without them the packaged ones do."""
    try:
        await refresh()
    except ProviderError as error:
        _log.error("prices are the packaged ones for now", error=str(error))


def _tell_tagging_failed(name: str, error: Exception) -> None:
    _log.error("tagging an instance failed", NodeClaim={"name": name}, error=str(error))
