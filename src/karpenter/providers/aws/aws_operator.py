"""Builds the AWS provider and its controllers from their parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from prometheus_client import CollectorRegistry, Gauge

from karpenter.api.core import Node
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_OVERLAY
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_context import AwsContext, LaunchAwareClusterView
from karpenter.providers.aws.aws_metrics import InstanceMetrics, InterruptionMetrics
from karpenter.providers.aws.aws_provider import AwsProvider, AwsProviderDependencies, PlacementGroupPartitionHook
from karpenter.providers.aws.bootstrap.bootstrap_controllers import BootstrapControllers
from karpenter.providers.aws.ec2_repair import LEGACY_REPAIR_POLICIES, ec2_repair_policies
from karpenter.providers.aws.instance.bootstrap_resolver import BootstrapResolver
from karpenter.providers.aws.instance.console_output import ConsoleOutputReader
from karpenter.providers.aws.instance.fleet_launcher import FleetLauncher, LauncherDependencies
from karpenter.providers.aws.instance.fleet_request import FleetSender, SubnetAddresses
from karpenter.providers.aws.instance.instance_controllers import (
    InstanceGarbageCollector,
    InstanceTagger,
    needs_tags,
)
from karpenter.providers.aws.instance.instance_provider import InstanceProvider, InstanceScope, InstanceTerminator
from karpenter.providers.aws.instance.launch_effects import LaunchEffects
from karpenter.providers.aws.instance.launch_plan import LaunchSettings
from karpenter.providers.aws.instance.launch_templates import LaunchTemplateProvider
from karpenter.providers.aws.instance.unjoined_instances import UnjoinedDependencies, UnjoinedInstanceReporter
from karpenter.providers.aws.instancetype import ec2_pricing, instance_type_provider, offering_metrics
from karpenter.providers.aws.instancetype.discovered_capacity import DiscoveredCapacityController
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeCaches, InstanceTypeProvider
from karpenter.providers.aws.instancetype.offering_metrics import OfferingMetricsController
from karpenter.providers.aws.interruption.capacity_reservation_controllers import (
    CapacityReservationExpiration,
    CapacityTypeCorrection,
)
from karpenter.providers.aws.interruption.interruption_controllers import (
    InstanceStatusController,
    InterruptionQueueController,
    ZonalShiftController,
)
from karpenter.providers.aws.interruption.interruption_handling import (
    InterruptionEffects,
    InterruptionHandler,
    ReservedOffering,
)
from karpenter.providers.aws.nodeclass.nodeclass_discovery import PlacementGroupProvider
from karpenter.providers.aws.nodeclass_controllers import NodeClassControllers, NodeClassDependencies
from karpenter.providers.contract import ProviderError
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler

_PROFILES_PERIOD = timedelta(minutes=30)
_PARAMETERS_PERIOD = timedelta(minutes=30)
_TEMPLATES_PERIOD = timedelta(minutes=1)
_OVERLAYS_PERIOD = timedelta(minutes=5)
_TAG_WORKERS = 1

#: One pass of a controller without keys; returns the seconds until the next (see ``SingletonReconciler``).
_SingletonPass = Callable[[], Awaitable[float]]


def _user_data_gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "karpenter_ec2nodeclasses_userdata_bytes",
        "Bytes of user data that instances of a class get, of the 16384 EC2 takes.",
        ("nodeclass",),
        registry=registry,
    )


class AwsOperator:
    """The provider and its controllers. Call ``hydrate`` first, and subscribe the handlers before the controllers run."""

    def __init__(self, context: AwsContext) -> None:
        self._context = context
        self._templates_hydrated = False
        self._caches = InstanceTypeCaches.empty(context.clock)
        self._offering_metrics = offering_metrics.OfferingMetrics(
            context.metrics.registry, self._caches.unavailable.unavailable_offerings
        )
        self._placement_groups = PlacementGroupProvider(context.services.ec2, context.clock)
        self._shifts = self._build_zonal_shifts()
        self._instance_types = self._build_instance_types()
        self._type_refresh = PeriodicRefresh(
            self._instance_types.refresh_types, instance_type_provider.TYPES_REFRESH_PERIOD, context.clock
        )
        self._on_demand_refresh = PeriodicRefresh(
            self._instance_types.refresh_on_demand, ec2_pricing.ON_DEMAND_REFRESH_PERIOD, context.clock
        )
        self._spot_refresh = PeriodicRefresh(
            self._instance_types.refresh_spot, ec2_pricing.SPOT_REFRESH_PERIOD, context.clock
        )
        self._instance_metrics = InstanceMetrics(context.metrics, self._instance_types)
        self._launch_templates = LaunchTemplateProvider(context.services.ec2, context.cluster.cluster, context.clock)
        self._declare_template_count()
        self._subnet_addresses = SubnetAddresses()
        self._instances = InstanceProvider(
            context.services.ec2, self._instance_scope(), context.clock, self._instance_metrics
        )
        self._user_data_bytes = _user_data_gauge(context.metrics.registry)
        self._bootstrap = BootstrapResolver(
            self._instance_types,
            lambda: context.cluster.cluster,
            context.settings,
            context.cluster_view.pools,
            self._record_user_data_size,
        )
        self._node_classes = NodeClassControllers(context, self._node_class_dependencies())
        self._tagging: Reconciler[str] = Reconciler(
            "nodeclaim.tagging", self._tag, _TAG_WORKERS, cast(ObjectKind, NODE_CLAIM), context.metrics
        )
        self._tagger = InstanceTagger(self._instances, context.kube, context.cluster.cluster)
        self._self_managed = BootstrapControllers(context, self._instances)
        self._launcher = self._build_launcher()
        self._cluster_view = LaunchAwareClusterView(context.cluster_view, self._launcher.claim_name_of)
        self._unjoined = self._build_unjoined_reporter()
        self._discovered_capacity = DiscoveredCapacityController(
            context.kube, self._caches.discovered_capacity, self._instance_types.types_for, self._cluster_view
        )
        self.provider = AwsProvider(self._provider_dependencies(), context.clock, context.settings.reserved_capacity)

    def _declare_template_count(self) -> None:
        gauge = Gauge(
            "karpenter_cloudprovider_launch_templates",
            "Launch templates of the cluster, of the 5000 an account may have by default.",
            registry=self._context.metrics.registry,
        )
        gauge.set_function(lambda: self._launch_templates.count)

    # -- life -------------------------------------------------------------------------------------------------------------------

    async def hydrate(self) -> None:
        """Read instance types and prices (AWS-024). Raises ``ProviderError`` where types cannot be read.

        Prices that cannot be read yet are the packaged ones, or unknown; the refresh controllers try again.
        """
        await self._discovered_capacity.load()
        await asyncio.gather(
            self._type_refresh.refresh(),
            self._refresh_prices(self._on_demand_refresh),
            self._refresh_prices(self._spot_refresh),
        )
        if self._shifts is not None:
            await self._shifts.hydrate()

    async def _refresh_prices(self, refresh: PeriodicRefresh) -> None:
        """Refresh prices; on failure those known stay in use, and a controller tries again."""
        try:
            await refresh.refresh()
        except ProviderError as error:
            self._instance_types.log_price_fallback(str(error))

    def on_node_class(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        """Informer handler: an EC2NodeClass was added, updated or deleted."""
        self._node_classes.on_node_class(old, new)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a NodeClaim was added, updated or deleted."""
        self._launcher.expected_launches.on_claim(old, new)
        self._node_classes.controller.on_claim(old, new)
        self._self_managed.on_claim(old, new)
        self._unjoined.on_claim(old, new)
        if new is not None and new.spec.node_class_ref.kind == EC2_NODE_CLASS.name and needs_tags(new):
            self._tagging.add(new.metadata.name)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Informer handler: a Node was added, updated or deleted."""
        self._discovered_capacity.on_node(old, new)
        self._self_managed.on_node(old, new)

    def controllers(self) -> tuple[Reconciler[str], ...]:
        """What runs while this process leads. Their names are those that Karpenter's users know (OPS-723)."""
        context = self._context
        passes: dict[str, _SingletonPass] = {
            "providers.ssm.invalidation": self._periodic(
                self._node_classes.ssm_parameters.discard_outdated, _PARAMETERS_PERIOD
            ),
            "instance.deaths": self._unjoined.reconcile,
            "instance.garbagecollection": self._instance_garbage_collector().reconcile,
            "providers.instancetype.capacity": self._discovered_capacity.reconcile,
            "cloudprovider.metrics": self._offering_metrics_controller().reconcile,
            "launchtemplate.garbagecollection": self._reconcile_launch_templates,
            "providers.version": context.cluster.reconcile,
            **self._event_passes(),
        }
        if not context.settings.isolated_vpc:
            passes["instanceprofile.garbagecollection"] = self._periodic(
                self._node_classes.collect_instance_profiles, _PROFILES_PERIOD
            )
        if context.settings.node_overlay:
            passes["providers.pricing.overlay"] = self._periodic(self._apply_overlay_prices, _OVERLAYS_PERIOD)
        singletons = (SingletonReconciler(name, reconcile, context.metrics) for name, reconcile in passes.items())
        own = (self._node_classes.controller.reconciler, self._tagging, *self._self_managed.controllers())
        return (*own, *self._refresh_controllers(), *singletons)

    def _periodic(self, work: Callable[[], Awaitable[object]], period: timedelta) -> _SingletonPass:
        return PeriodicRefresh(work, period, self._context.clock).reconcile

    def _refresh_controllers(self) -> Iterator[SingletonReconciler]:
        """Controllers that repeat what ``hydrate`` did. Prices that could not be read then are read again at once."""
        for name, refresh in (
            ("providers.instancetype", self._type_refresh),
            ("providers.pricing", self._on_demand_refresh),
            ("providers.pricing.spot", self._spot_refresh),
        ):
            yield SingletonReconciler(name, refresh.reconcile, self._context.metrics, initial_delay=refresh.due_seconds)

    def _instance_garbage_collector(self) -> InstanceGarbageCollector:
        context = self._context
        period_seconds = context.settings.garbage_collection_interval.total_seconds()
        return InstanceGarbageCollector(
            self._instances, context.kube, self._cluster_view, context.clock, period_seconds
        )

    def _event_passes(self) -> Mapping[str, _SingletonPass]:
        context = self._context
        ec2, kube, clock = context.services.ec2, context.kube, context.clock
        metrics = InterruptionMetrics(context.metrics)
        responder = InterruptionHandler(self._cluster_view, kube, context.events, clock, self._interruption_effects())
        passes: dict[str, _SingletonPass] = {
            "interruption.instancestatus": InstanceStatusController(
                ec2, self._cluster_view, responder, metrics, clock
            ).reconcile
        }
        queue = context.settings.interruption_queue
        if queue:
            passes["interruption"] = InterruptionQueueController(
                queue, context.services.sqs, responder, metrics, clock
            ).reconcile
        if context.settings.reserved_capacity:
            passes["capacityreservation.expiration"] = CapacityReservationExpiration(
                ec2, self._cluster_view, kube, clock
            ).reconcile
            passes["capacityreservation.capacitytype"] = CapacityTypeCorrection(
                self.provider.list, self._cluster_view, kube
            ).reconcile
        if self._shifts is not None:
            passes["zonalshift"] = self._shifts.reconcile
        return passes

    # -- parts ------------------------------------------------------------------------------------------------------------------

    def _build_unjoined_reporter(self) -> UnjoinedInstanceReporter:
        """Console output is read where nodes join by scripts of their own: in mode kubeadm (AWS-932)."""
        context = self._context
        ec2, clock = context.services.ec2, context.clock
        console = ConsoleOutputReader(ec2, clock) if context.settings.bootstrap.is_kubeadm else None
        return UnjoinedInstanceReporter(UnjoinedDependencies(ec2, self._cluster_view, context.events, clock, console))

    def _build_zonal_shifts(self) -> ZonalShiftController | None:
        context = self._context
        if not context.settings.enable_zonal_shift:
            return None
        return ZonalShiftController(
            context.cluster.cluster.arn,
            context.services.zonal_shift,
            context.cluster_view,
            context.events,
            context.clock,
        )

    def _shifted_zone_ids(self) -> frozenset[str]:
        return self._shifts.shifted_zone_ids() if self._shifts is not None else frozenset()

    def _build_instance_types(self) -> InstanceTypeProvider:
        context = self._context
        inputs = instance_type_provider.InstanceTypeInputs(
            self._shifted_zone_ids, self._placement_groups.cached, self._offering_metrics.record_skipped
        )
        region = context.cluster.cluster.region
        services = context.services
        return InstanceTypeProvider(
            services.ec2, services.pricing, context.settings, region, context.clock, self._caches, inputs
        )

    def _instance_scope(self) -> InstanceScope:
        return InstanceScope(self._context.cluster.cluster, self._shifted_zone_ids, self._instance_types.zone_id)

    def _record_user_data_size(self, node_class: str, size_bytes: int) -> None:
        self._user_data_bytes.labels(nodeclass=node_class).set(size_bytes)

    def _forget(self, node_class: EC2NodeClass) -> None:
        """Drop what is kept for a deleted EC2NodeClass."""
        name = node_class.metadata.name
        self._launch_templates.forget_class(name)
        self._user_data_bytes.remove_by_labels({"nodeclass": name})

    def _node_class_dependencies(self) -> NodeClassDependencies:
        """What the NodeClass controller shares with the rest of the provider."""
        return NodeClassDependencies(
            instance_types=self._instance_types,
            bootstrap=self._bootstrap,
            placement_groups=self._placement_groups,
            subnet_addresses=self._subnet_addresses,
            reservation_availability=self._caches.reservations,
            on_deleted=self._forget,
        )

    def _build_launcher(self) -> FleetLauncher:
        context = self._context
        services = context.services
        effects = LaunchEffects(
            self._caches.unavailable,
            self._caches.reservations,
            self._subnet_addresses,
            self._instance_metrics,
            context.events,
        )
        dependencies = LauncherDependencies(
            kube=context.kube,
            ec2=services.ec2,
            clock=context.clock,
            fleet_sender=FleetSender(services.ec2, self._launch_templates),
            subnet_addresses=self._subnet_addresses,
            input_resolver=self._bootstrap,
            join_source=self._self_managed.join,
            effects=effects,
            metrics=self._instance_metrics,
        )
        rules = LaunchSettings(
            context.cluster.cluster,
            context.settings.reserved_capacity,
            context.strict_min_values,
            context.settings.launch_batch_tag,
        )
        return FleetLauncher(dependencies, rules)

    def _provider_dependencies(self) -> AwsProviderDependencies:
        context = self._context
        return AwsProviderDependencies(
            kube=context.kube,
            cluster_view=self._cluster_view,
            events=context.events,
            instance_types=self._instance_types,
            launcher=self._launcher,
            instances=self._instances,
            terminator=InstanceTerminator(
                self._instances, self._cluster_view, self._caches.reservations, context.clock
            ),
            placement_groups=self._placement_groups,
            hash_inputs=self._node_classes.hash_inputs,
            hooks=(PlacementGroupPartitionHook(context.services.ec2),),
            repair_policies=LEGACY_REPAIR_POLICIES
            if context.settings.legacy_node_repair
            else ec2_repair_policies(reboots=context.settings.reboot_for_repair),
        )

    # -- work -------------------------------------------------------------------------------------------------------------------

    def _interruption_effects(self) -> InterruptionEffects:
        def sold_out(instance_type: str, zone: str) -> None:
            self._caches.unavailable.mark_unavailable(OfferingKey(labels.SPOT, instance_type, zone), "spot_interrupted")

        def interrupted(offering: ReservedOffering) -> None:
            key = OfferingKey(labels.RESERVED, offering.instance_type, offering.zone, reservation=offering.reservation)
            self._caches.unavailable.mark_unavailable(key, "capacity_reservation_interrupted")

        return InterruptionEffects(
            sold_out,
            interrupted,
            partial(nodeclaim_deletion.count_disrupted, self._context),
        )

    def _offering_metrics_controller(self) -> OfferingMetricsController:
        reserved = self._context.settings.reserved_capacity
        return OfferingMetricsController(
            self._cluster_view,
            self.provider.instance_types,
            lambda lists: self._offering_metrics.publish(
                partial(offering_metrics.offering_samples, tuple(lists), reserved=reserved)
            ),
        )

    async def _reconcile_launch_templates(self) -> float:
        """First read the launch templates of earlier processes, so that unused ones age; later passes delete those."""
        if not self._templates_hydrated:
            await self._launch_templates.hydrate()
            self._templates_hydrated = True
        elif self._launch_templates.is_collection_due:
            await self._launch_templates.collect_garbage(
                node_class.metadata.name for node_class in self._cluster_view.node_classes()
            )
        return _TEMPLATES_PERIOD.total_seconds()

    async def _apply_overlay_prices(self) -> None:
        """Take prices from NodeOverlays for types without a price from EC2 (AWS-356). Raises ``KubeError``."""
        self._instance_types.set_overlay_prices((await self._context.kube.list(NODE_OVERLAY)).items)

    async def _tag(self, name: str) -> float | None:
        claim = self._cluster_view.claim_named(name)
        if claim is not None:
            await self._tagger.reconcile(claim)
        return None


class PeriodicRefresh:
    """The next run is due one period after the last success, not one period after the controller starts."""

    def __init__(self, work: Callable[[], Awaitable[object]], period: timedelta, clock: Clock) -> None:
        self._work = work
        self._period = period
        self._clock = clock
        self._done_at: datetime | None = None

    async def refresh(self) -> None:
        """Do the work. Raises what the work raises; a failure leaves it due."""
        await self._work()
        self._done_at = self._clock.now()

    async def reconcile(self) -> float:
        """Do the work; returns the seconds until the next run."""
        await self.refresh()
        return self._period.total_seconds()

    def due_seconds(self) -> float:
        """Seconds until the next run is due."""
        if self._done_at is None:
            return 0.0
        return max(0.0, (self._done_at + self._period - self._clock.now()).total_seconds())
