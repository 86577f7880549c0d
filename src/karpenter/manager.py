"""The controllers of one process: they are built in an order in which each part exists before the parts that use it.

Informers and cluster state come first, then what controllers share, then queues and reconcilers. Only then do handlers subscribe
(``manager_watches``): they add keys to queues that exist. No part holds a function that reads what is assigned later.

The same manager runs on a real cluster, on the in-memory API server and in the simulation; only what it is handed differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import structlog

from karpenter.api.kinds import CAPACITY_BUFFER, NODE, NODE_CLAIM, NODE_POOL, POD, Kind
from karpenter.api.meta import Wire
from karpenter.capacitybuffer.buffer_placements import buffer_pods_by_node, without_buffer_pods
from karpenter.capacitybuffer.buffer_reconciler import CapacityBufferController
from karpenter.capacityschedule.schedule_controller import CapacityScheduleController, ScheduleInformers
from karpenter.capacityschedule.waking_capacity import WakingCapacity
from karpenter.clustermetrics.cluster_collector import ClusterCollector, StatusObject
from karpenter.clustermetrics.cluster_metrics import ClusterMetrics, detail_collectors, essential_collectors
from karpenter.controller_context import ControllerContext
from karpenter.conversion.options import ConversionOptions
from karpenter.disruption.command_starter import CommandStarter
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.disruption.disruption_controller import CommandExecution, DisruptionController
from karpenter.disruption.disruption_queue import CommandHistory, DisruptionQueue
from karpenter.disruption.disruption_recorder import DisruptionRecorder
from karpenter.disruption.repair_execution import RebootStarter, repair_policies_of
from karpenter.disruption.repair_matches import match_log_handlers
from karpenter.disruption.successor_nominations import SuccessorNominations
from karpenter.history.cluster_observer import ClusterObserver
from karpenter.kube.informer import ChangeHandler, Informer
from karpenter.kube.protocol import Kube
from karpenter.manager_history import history_recorder
from karpenter.manager_informers import ClusterInformers, WatchedKinds
from karpenter.manager_watches import (
    ControllerQueues,
    DeviceWatchHandler,
    NodeClaimWatchHandler,
    NodeClassStates,
    NodeClassWatchHandler,
    NodePoolWatchHandler,
    NodeWatchHandler,
    PendingPodChanges,
    PendingPodsTrigger,
    PodWatchHandler,
    TerminatingNodes,
    VolumeWatchHandler,
)
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.model.feature_gates import FeatureGate
from karpenter.node.node_health import NodeHealthReconciler
from karpenter.nodeclaim.consolidatable import PodEventTracker
from karpenter.nodeclaim.garbagecollection import collect_claims_without_instance
from karpenter.nodeclaim.lifecycle import NodeClaimLifecycle
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS
from karpenter.nodeclaim.reboot import NodeClaimReboot
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.nodeoverlay.overlay_reconciler import NodeOverlayController
from karpenter.nodepool.nodepool_status import NodePoolReconciler
from karpenter.notifications.notification_config import NotificationConfig
from karpenter.olderversions.twin_controller import TwinController
from karpenter.poddeletioncost.deletion_cost_controller import PodDeletionCostController
from karpenter.providers.contract import CloudProvider
from karpenter.provisioning.batcher import ProvisioningBatcher
from karpenter.provisioning.claim_creation import ClaimCreationLimit, ClaimCreationPace
from karpenter.provisioning.cluster_autoscaler import ClusterAutoscalerScaleUps
from karpenter.provisioning.lost_pods import LostPods
from karpenter.provisioning.nomination import DisabledNominator, Nominator, PodNominator
from karpenter.provisioning.plan_executor import PlanExecutor
from karpenter.provisioning.pod_trace_recorder import PodTraceRecorder
from karpenter.provisioning.problem_recorder import ProblemRecorder
from karpenter.provisioning.provisioner import Provisioner
from karpenter.provisioningrequest.request_controller import ProvisioningRequestController
from karpenter.runtime import worker_scaling
from karpenter.runtime.batch_window import BatchWindow
from karpenter.runtime.events import EventRecorder, ObjectKind
from karpenter.runtime.memory_guard import return_free_memory
from karpenter.runtime.reconciler import ReconcileKey, Reconciler, SingletonReconciler, run_supervised
from karpenter.runtime.workqueue import WorkQueue
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.settings import Settings
from karpenter.state.snapshot import ClusterSnapshot, PodKey
from karpenter.state.virtual_pods import VirtualPods
from karpenter.static.static_reconciler import StaticCapacityController
from karpenter.termination.instance_termination import InstanceTermination
from karpenter.termination.node_termination import NodeTermination
from karpenter.termination.pod_eviction import EvictionLimits, EvictionQueue

if TYPE_CHECKING:
    from karpenter.notifications.notifier import Notifier

T = TypeVar("T", bound=Wire)
#: What has to run, by name.
Loops = Mapping[str, Callable[[], Awaitable[None]]]

_TERMINATION_WORKERS = 256
_NODE_HEALTH_WORKERS = 10
_REBOOT_WORKERS = 10
_log = structlog.get_logger()


@dataclass(frozen=True)
class ManagerOptions:
    """What a process brings along besides its cluster and cloud.

    ``background_loops`` and ``garbage_collectors`` are the provider's. ``nomination_kube`` is a connection for nominations and
    for opening nodes, which come in bursts and should neither delay other requests nor wait behind them (None: the common one).
    ``own_pod`` is the pod of this process. ``informers`` and ``events`` are given where the provider uses them too; without
    them the manager builds its own. ``conversion_options`` are for objects of older kinds. ``notifications`` says where
    events are posted to; None means nowhere.
    """

    background_loops: Loops = field(default_factory=dict)
    garbage_collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    nomination_kube: Kube | None = None
    metrics: Metrics = field(default_factory=Metrics)
    own_pod: PodKey | None = None
    informers: ClusterInformers | None = None
    events: EventRecorder | None = None
    conversion_options: Callable[[], ConversionOptions] = ConversionOptions
    notifications: NotificationConfig | None = None


#: Returns once this process may act: at once where there is only one, else when it leads (OPS-361). May be awaited again.
WaitElected = Callable[[], Awaitable[None]]


async def elected_immediately() -> None:
    """The election of a process without competitors."""


class Manager:
    """A controller process on one cluster."""

    def __init__(
        self,
        kube: Kube,
        provider: CloudProvider,
        clock: Clock,
        settings: Settings,
        options: ManagerOptions | None = None,
    ) -> None:
        self._options = options = options or ManagerOptions()
        self._settings = settings
        self.informers = options.informers or ClusterInformers(
            kube, WatchedKinds.of(settings, provider.node_class_kinds)
        )
        self.state = self.informers.state
        self.metrics = options.metrics
        overlaid = OverlaidProvider(provider) if FeatureGate.NODE_OVERLAY in settings.gates else None
        self.context = ControllerContext(
            kube,
            overlaid or provider,
            self.state,
            clock,
            options.events or EventRecorder(kube, clock),
            options.metrics,
            separate_kube=options.nomination_kube,
            intervals=settings.intervals,
        )
        #: The virtual pods of capacity buffers, which are in the snapshots of all decisions.
        self.virtual_pods = VirtualPods()
        #: What was decided about disruption, and what came of it.
        self.command_history = CommandHistory(_loop_time)
        self._nominator: PodNominator = (
            Nominator(self.context.priority_kube, self.state) if settings.nominate_pods else DisabledNominator()
        )
        self._successors = SuccessorNominations(self.state, self._nominator, _loop_time)
        self._batcher = ProvisioningBatcher(
            BatchWindow(settings.batch_idle_duration.total_seconds(), settings.batch_max_duration.total_seconds())
        )
        self._lost_pods = LostPods(self.context)
        self._trigger_pending_pods = PendingPodsTrigger(self.state, self._batcher.trigger)
        self._build_node_controllers()
        self._build_features(overlaid)
        self.cluster_metrics = ClusterMetrics(self.context, self.informers.pods, self._cluster_collectors())
        self._build_decisions()
        self.observer = ClusterObserver(
            self.context, self.informers.pods, self.informers.nodes, lambda: self.provisioner.last_plan
        )
        self.history = history_recorder(settings, self.context, self.observer, self.command_history.journal.entries)
        self._pod_trace = PodTraceRecorder(Path(settings.record_trace), clock) if settings.record_trace else None
        self._subscribe()

    # -- controllers --------------------------------------------------------------------------------------------------

    def _build_node_controllers(self) -> None:
        """What reconciles single NodeClaims, Nodes and NodePools."""
        context, settings = self.context, self._settings
        instance_termination = InstanceTermination(context)
        self._lifecycle = NodeClaimLifecycle(
            context, self._nominator, instance_termination, expiration_window=settings.expiration_window
        )
        self._pod_events = PodEventTracker(context)
        self._node_classes = NodeClassStates()
        self._pool_reconciler = NodePoolReconciler(context, self._node_classes.find, settings.gates)
        eviction_limits, eviction_keys = EvictionLimits.for_cpu_requests(settings.cpu_requests), WorkQueue[str]()
        evictor = EvictionQueue(context, eviction_limits, eviction_keys.add)
        self._eviction_queue = self._new_controller(
            "eviction-queue", evictor.reconcile, eviction_limits.workers, POD, eviction_keys
        )
        self._drainer = NodeTermination(context, evictor, instance_termination)
        launching = worker_scaling.LIFECYCLE.workers.for_cores(worker_scaling.whole_cores(settings.cpu_requests))
        self._queues = ControllerQueues(
            claims=self._new_controller("nodeclaim.lifecycle", self._lifecycle.reconcile, launching, NODE_CLAIM),
            pod_events=self._new_controller("nodeclaim.podevents", self._pod_events.reconcile, 8, NODE_CLAIM),
            terminations=self._new_controller("node.termination", self._drainer.reconcile, _TERMINATION_WORKERS, NODE),
            pools=self._new_controller("nodepool.readiness", self._pool_reconciler.reconcile, 4, NODE_POOL),
            node_health=self._new_controller(
                "node.health", NodeHealthReconciler(context).reconcile, _NODE_HEALTH_WORKERS, NODE
            )
            if settings.legacy_node_repair and FeatureGate.NODE_REPAIR in settings.gates
            else None,
            reboots=self._new_controller(
                "nodeclaim.reboot", NodeClaimReboot(context, evictor).reconcile, _REBOOT_WORKERS, NODE_CLAIM
            ),
        )

    def _new_controller(
        self, name: str, reconcile: ReconcileKey[str], workers: int, kind: Kind[T], queue: WorkQueue[str] | None = None
    ) -> Reconciler[str]:
        return Reconciler(name, reconcile, workers, cast(ObjectKind, kind), self.metrics, queue=queue)

    def _build_features(self, overlaid: OverlaidProvider | None) -> None:
        """What feature gates switch on; None while its gate is off."""
        context, informers = self.context, self.informers
        has_static = FeatureGate.STATIC_CAPACITY in self._settings.gates
        self._static_controller = StaticCapacityController(context) if has_static else None
        self.overlay_controller = (
            NodeOverlayController(context, overlaid, informers.overlays, self._trigger_pending_pods)
            if overlaid is not None and informers.overlays is not None
            else None
        )
        self._buffer_controller = (
            CapacityBufferController(context, self.virtual_pods, informers.buffers, self._batcher.trigger)
            if informers.buffers is not None
            else None
        )
        requests, trigger = informers.provisioning_requests, self._batcher.trigger
        self._request_controller = (
            ProvisioningRequestController(context, self.virtual_pods, requests, trigger)
            if requests is not None
            else None
        )
        self._schedule_controller = (
            CapacityScheduleController(
                context,
                ScheduleInformers(informers.schedules, informers.namespaces, informers.pods),
                self._trigger_pending_pods,
                WakingCapacity(self.virtual_pods, self._batcher.trigger, has_buffers=informers.buffers is not None),
            )
            if informers.schedules is not None
            else None
        )
        writes_costs = FeatureGate.POD_DELETION_COST_MANAGEMENT in self._settings.gates
        self._deletion_costs = (
            PodDeletionCostController(context, informers.pods, informers.has_faults, self._settings)
            if writes_costs
            else None
        )
        self._twins = TwinController(context, self._options.conversion_options)
        self._notifier = self._new_notifier(self._options.notifications)

    def _new_notifier(self, config: NotificationConfig | None) -> Notifier | None:
        if config is None:
            return None
        from karpenter.notifications.notifier import Notifier

        notifier = Notifier(config, self.context.clock, self.metrics)
        self.context.events.subscribe(notifier.on_event)
        return notifier

    def _cluster_collectors(self) -> tuple[ClusterCollector, ...]:
        """What is shown of the cluster; large ones may do without the details (OPS-320)."""
        collectors = essential_collectors(self.context, self.informers.unready)
        if self._settings.disable_cluster_state_observability:
            return collectors
        further = (cast(ObjectKind, CAPACITY_BUFFER),) if self._buffer_controller is not None else ()
        return (*collectors, *detail_collectors(self.context, further))

    def _build_decisions(self) -> None:
        """What decides about the cluster as a whole: provisioning and disruption."""
        context, settings = self.context, self._settings
        options = settings.scheduling_options(settings.gates)
        pace = ClaimCreationPace(settings.nomination_window, ClaimCreationLimit(settings.claims_per_minute))
        self.provisioner = Provisioner(
            context,
            self.virtual_pods,
            self._batcher,
            PlanExecutor(context, self._nominator, pace, self._lost_pods),
            options,
            self._on_plan,
            ProblemRecorder(settings.record_problems) if settings.record_problems else None,
            self._new_scale_ups(),
        )
        disruption = settings.disruption_options(
            options, settings.gates, repair_policies_of(context.provider, settings)
        )
        self.informers.subscribe(self.informers.nodes, *match_log_handlers(disruption.repair))
        patience = DEFAULT_TIMEOUTS.total if settings.wait_for_slow_replacements else None
        queue = DisruptionQueue(context, self.command_history, self._successors, patience)
        self.disruption = DisruptionController(
            context,
            CommandExecution(
                CommandStarter(context, queue, pace, RebootStarter(context, self.command_history.reboots)),
                queue,
                self.command_history.backoff,
                self.command_history.reboots,
                DisruptionRecorder(settings.record_problems) if settings.record_problems else None,
            ),
            disruption,
            self.informers.has_faults,
            self._options.own_pod,
            self.virtual_pods,
        )

    def _new_scale_ups(self) -> ClusterAutoscalerScaleUps | None:
        informer = self.informers.scale_ups
        if informer is None:
            return None
        scale_ups = ClusterAutoscalerScaleUps()
        self.informers.subscribe(informer, scale_ups.on_event)
        return scale_ups

    def _on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A plan was made of the snapshot and executed."""
        real = without_buffer_pods(plan)
        self.cluster_metrics.on_plan(real)
        self.command_history.reversals.record_plan(real)
        followers = [each for each in (self._buffer_controller, self._request_controller) if each is not None]
        if followers or self._schedule_controller is not None:
            self.virtual_pods.pod_counts_by_node = buffer_pods_by_node(plan)
        for follower in followers:
            follower.on_plan(snapshot, plan)

    # -- watches ------------------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Add the handlers of all watch events. Metrics come first: they show what controllers are about to act on."""
        informers, state, queues, trigger = self.informers, self.state, self._queues, self._batcher.trigger
        metrics = self.cluster_metrics
        terminating_nodes = TerminatingNodes(state, queues.terminations)
        passes = PendingPodChanges(state.untried_pods, trigger)
        pods = PodWatchHandler(
            informers.pods, self._nominator, self._successors, self._pod_events, queues, terminating_nodes, passes
        )
        informers.subscribe(informers.pods, metrics.on_pod, self._lost_pods.pod_updated, pods.on_pod)
        informers.subscribe(
            informers.nodes, metrics.on_node, NodeWatchHandler(state, self._drainer, queues, trigger).on_node
        )
        informers.subscribe_claims(
            metrics.on_claim, NodeClaimWatchHandler(state, self._lifecycle, self.disruption, queues, trigger).on_claim
        )
        informers.subscribe(
            informers.pools, metrics.on_pool, NodePoolWatchHandler(state, queues, self._trigger_pending_pods).on_pool
        )
        volumes = VolumeWatchHandler(state, trigger)
        informers.subscribe(informers.volume_claims, volumes.on_volume_claim)
        informers.subscribe(informers.volumes, volumes.on_volume)
        informers.subscribe(informers.storage_classes, volumes.on_storage_class)
        informers.subscribe(informers.attachments, terminating_nodes.on_attachment)
        informers.subscribe_devices(DeviceWatchHandler(state, queues, trigger))
        informers.subscribe_gangs(lambda _old, _new: self._trigger_pending_pods())
        for informer in informers.node_classes.values():
            handler = NodeClassWatchHandler(informer.kind, state, self._node_classes, self._lifecycle, queues)
            informers.subscribe(informer, self._status_metrics(informer), handler.on_node_class)
        self._subscribe_features()

    def _subscribe_features(self) -> None:
        informers = self.informers
        informers.subscribe(informers.pools, self._twins.on_pool)
        if self._static_controller is not None:
            informers.subscribe_claims(self._static_controller.on_claim)
            informers.subscribe(informers.pools, self._static_controller.on_pool)
        if self.overlay_controller is not None and informers.overlays is not None:
            informers.subscribe(informers.overlays, self.overlay_controller.on_overlay)
            informers.subscribe(informers.pools, self.overlay_controller.on_pool)
            for node_classes in informers.node_classes.values():
                informers.subscribe(node_classes, self.overlay_controller.on_node_class)
        buffers = self._buffer_controller
        if buffers is not None and informers.buffers is not None and informers.pod_templates is not None:
            informers.subscribe(informers.buffers, self._status_metrics(informers.buffers), buffers.on_buffer)
            informers.subscribe(informers.pod_templates, buffers.on_pod_template)
            informers.subscribe(informers.pods, buffers.on_pod)
            for workloads in informers.scaled_workloads:
                informers.subscribe(workloads, buffers.workload_handler(workloads.kind.name))
        if self._request_controller is not None:
            informers.subscribe_requests(self._request_controller.on_request)
            informers.subscribe(informers.pods, self._request_controller.on_pod)
        if self._schedule_controller is not None:
            self._subscribe_schedules(self._schedule_controller)
        if self._pod_trace is not None:
            informers.subscribe(informers.pods, self._pod_trace.on_pod)

    def _subscribe_schedules(self, controller: CapacityScheduleController) -> None:
        informers = self.informers
        if informers.schedules is not None:
            informers.subscribe(informers.schedules, self._status_metrics(informers.schedules), controller.on_schedule)
        informers.subscribe(informers.pools, controller.on_pool)
        informers.subscribe(informers.nodes, controller.on_node)
        informers.subscribe_claims(controller.on_claim)
        informers.subscribe(informers.namespaces, controller.on_annotated)
        informers.subscribe(informers.pods, controller.on_annotated)

    def _status_metrics(self, informer: Informer[T]) -> ChangeHandler[T]:
        """A handler that shows the conditions of the informer's objects."""

        def handle(old: T | None, new: T | None) -> None:
            self.cluster_metrics.on_status_object(
                informer.kind.name, cast(StatusObject | None, old), cast(StatusObject | None, new)
            )

        return handle

    def decisions(self) -> tuple[JournalEntry, ...]:
        """The latest decisions about disruption, oldest first."""
        return self.command_history.journal.entries()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self, elected: WaitElected = elected_immediately) -> None:
        """Run until cancelled. Nothing is done before ``elected`` returns, except watching where warm-up is on (OPS-316).

        The console shows the cluster in every replica, so with it they all watch.
        """
        load_solver()
        async with asyncio.TaskGroup() as tasks:
            if self._settings.disable_controller_warmup and not self._settings.console:
                await elected()
            await self.informers.run(tasks)
            return_free_memory()
            await elected()
            for name, loop in {**self._options.background_loops, **self._controllers()}.items():
                tasks.create_task(run_supervised(name, loop))

    def _controllers(self) -> Loops:
        features = (
            self._static_controller,
            self.overlay_controller,
            self._buffer_controller,
            self._request_controller,
            self._schedule_controller,
            self._deletion_costs,
            self._notifier,
        )
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "events": self.context.events.run,
            "observatory": self.cluster_metrics.run,
            "provisioner": self.provisioner.run,
            **self.disruption.loops(),
            "disruption.promises": self._successors.run,
            "nomination": self._nominator.run,
            **self._twins.loops(),
        }
        for feature in features:
            loops |= feature.loops() if feature is not None else {}
        if self._pod_trace is not None:
            loops["trace"] = self._pod_trace.run
        if self.history is not None:
            loops |= {name: loop.run for name, loop in self.history.loops(self.metrics).items()}
        queues = self._queues
        controllers = (queues.claims, queues.terminations, self._eviction_queue, queues.pools, queues.pod_events)
        for controller in (*controllers, queues.reboots, queues.node_health, *self._singletons()):
            if controller is not None:
                loops[controller.name] = controller.run
        return loops

    def _singletons(self) -> tuple[SingletonReconciler, ...]:
        collection = self._settings.intervals.garbage_collection.total_seconds()
        return (
            SingletonReconciler("nodepool.counter", self._reconcile_counter, self.metrics),
            SingletonReconciler(
                "nodeclaim.garbagecollection", self._collect_garbage, self.metrics, initial_delay=lambda: collection
            ),
        )

    async def _reconcile_counter(self) -> float:
        await self._pool_reconciler.reconcile_resources()
        await self.informers.forget_claims_that_are_gone()
        return self._settings.intervals.nodepool_counter.total_seconds()

    async def _collect_garbage(self) -> float:
        await collect_claims_without_instance(self.context)
        for collect in self._options.garbage_collectors.values():
            await collect()
        return self._settings.intervals.garbage_collection.total_seconds()


def _loop_time() -> float:
    """Monotonic seconds."""
    return asyncio.get_running_loop().time()
