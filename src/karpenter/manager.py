"""Everything a controller process runs, wired together: watches feed the state, changes wake queues, loops decide.

The same manager runs on a real cluster, on the in-memory API server and in the simulator; only what it is handed differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import structlog

from karpenter import manager_watches
from karpenter.api.apps import DaemonSet
from karpenter.api.core import Namespace, Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodeClassReference, NodePool
from karpenter.api.kinds import (
    CAPACITY_BUFFER,
    CSI_NODE,
    DAEMON_SET,
    NAMESPACE,
    NODE,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_TEMPLATE,
    REPLICATION_CONTROLLER,
    SELECTOR_REPLICA_SET,
    SELECTOR_STATEFUL_SET,
    SERVICE,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from karpenter.api.meta import Wire
from karpenter.api.storage import VolumeAttachment
from karpenter.capacitybuffer.buffer_placements import without_buffer_pods
from karpenter.capacitybuffer.buffer_reconciler import CapacityBufferController
from karpenter.clustermetrics.cluster_collector import ClusterCollector, StatusObject
from karpenter.clustermetrics.cluster_metrics import ClusterMetrics, detail_collectors, essential_collectors
from karpenter.disruption.command_starter import CommandStarter
from karpenter.disruption.disruption_controller import CommandExecution, DisruptionController
from karpenter.disruption.disruption_queue import CommandHistory, DisruptionQueue
from karpenter.disruption.disruption_recorder import DisruptionRecorder
from karpenter.disruption.successor_nominations import SuccessorNominations
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import Kube, Reader
from karpenter.manager_watches import (
    NodeClassObject,
    VolumeWatchHandlers,
    WatchedKind,
    WorkloadWatchHandlers,
    guarded_handler,
    log_rejected_object,
    log_unusable_object,
)
from karpenter.metrics import Metrics
from karpenter.model import labels, pods, taints
from karpenter.model.clock import Clock
from karpenter.model.feature_gates import FeatureGate
from karpenter.node.node_health import NodeHealthReconciler
from karpenter.nodeclaim.consolidatable import PodEventTracker, is_pod_event
from karpenter.nodeclaim.garbagecollection import collect_claims_without_instance
from karpenter.nodeclaim.lifecycle import NodeClaimLifecycle
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.nodeoverlay.overlay_reconciler import NodeOverlayController
from karpenter.nodepool.nodepool_status import NodePoolReconciler
from karpenter.nodepool.readiness import NodeClassState
from karpenter.providers.contract import CloudProvider
from karpenter.provisioning.batcher import ProvisioningBatcher
from karpenter.provisioning.claim_creation import ClaimCreationLimit, ClaimCreationPace
from karpenter.provisioning.nomination import DisabledNominator, Nominator, PodNominator
from karpenter.provisioning.plan_executor import PlanExecutor
from karpenter.provisioning.problem_recorder import ProblemRecorder
from karpenter.provisioning.provisioner import Provisioner
from karpenter.runtime import worker_scaling
from karpenter.runtime.batch_window import BatchWindow
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import EventRecorder, ObjectKind
from karpenter.runtime.reconciler import ReconcileKey, Reconciler, SingletonReconciler, run_supervised
from karpenter.runtime.workqueue import WorkQueue
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.settings import Settings
from karpenter.state import ClusterState
from karpenter.state.snapshot import ClusterSnapshot, PodKey, pod_key
from karpenter.static.static_reconciler import StaticCapacityController
from karpenter.termination.instance_termination import InstanceTermination
from karpenter.termination.node_termination import NodeTermination
from karpenter.termination.pod_eviction import EvictionLimits, EvictionQueue

T = TypeVar("T", bound=Wire)

_TERMINATION_WORKERS = 256
_NODE_HEALTH_WORKERS = 10
_log = structlog.get_logger()


@dataclass(frozen=True)
class ManagerOptions:
    """What a process brings along besides its cluster and cloud.

    ``loops`` of the provider's own, by name, each handed the controller's informer of pods; ``collectors`` of machines nobody
    owns; ``nominate_through``, a connection for nominations and what opens nodes, which come in bursts and should neither hold
    up everything else nor wait behind it (None: the common one); ``faults``, why the loops' own watches bring no news now;
    ``metrics``, where to count; ``own_pod``, the pod this process is.
    """

    loops: Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]] = field(default_factory=dict)
    garbage_collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    nomination_kube: Kube | None = None
    faults: Callable[[], list[KubeError]] = list
    metrics: Metrics = field(default_factory=Metrics)
    own_pod: PodKey | None = None
    #: Built before the provider where the provider is handed a view of them; else the manager builds its own.
    state: ClusterState | None = None
    events: EventRecorder | None = None


#: Returns once this process may act: at once where there is only one, else when it leads (OPS-361). May be awaited again.
WaitElected = Callable[[], Awaitable[None]]


async def elected_immediately() -> None:
    """The election where nobody else stands."""


class Manager:
    """A controller process on one cluster."""

    def __init__(
        self,
        kube: Kube,
        provider: CloudProvider,
        clock: Clock,
        settings: Settings,
        options: ManagerOptions = ManagerOptions(),
    ) -> None:
        self._manager_options = options
        self._settings = settings
        self._is_watching = False
        self.state = options.state if options.state is not None else ClusterState(log_unusable_object)
        self._recorder = options.events or EventRecorder(kube, clock)
        self.metrics = options.metrics
        overlaid = OverlaidProvider(provider) if FeatureGate.NODE_OVERLAY in settings.gates else None
        self.context = ControllerContext(
            kube,
            overlaid or provider,
            self.state,
            clock,
            self._recorder,
            options.metrics,
            separate_kube=options.nomination_kube,
            intervals=settings.intervals,
        )
        self._node_classes: dict[tuple[str, str, str], NodeClassState] = {}
        nominator = Nominator(self.context.priority_kube, self.state) if settings.nominate_pods else DisabledNominator()
        self._nominator: PodNominator = nominator
        instance_termination = InstanceTermination(self.context)
        self._lifecycle = NodeClaimLifecycle(self.context, nominator, instance_termination)
        self._pod_events = PodEventTracker(self.context)
        self._nodepool_reconciler = NodePoolReconciler(self.context, self._node_class_state, settings.gates)
        self._batcher = ProvisioningBatcher(
            BatchWindow(settings.batch_idle_duration.total_seconds(), settings.batch_max_duration.total_seconds())
        )
        ceiling = ClaimCreationLimit(settings.claims_per_minute)
        executor = PlanExecutor(self.context, nominator, ClaimCreationPace(settings.nomination_window, ceiling))
        scheduling_options = settings.scheduling_options(settings.gates)
        launching = worker_scaling.LIFECYCLE.workers.for_cores(worker_scaling.whole_cores(settings.cpu_requests))
        self._claim_queue = self._new_queue("nodeclaim.lifecycle", self._lifecycle.reconcile, launching, NODE_CLAIM)
        pace = _eviction_rate(settings)
        eviction_keys: WorkQueue[str] = WorkQueue()
        evictor = EvictionQueue(self.context, pace, eviction_keys.add)
        self._eviction_queue = self._new_queue("eviction-queue", evictor.reconcile, pace.workers, POD, eviction_keys)
        self._drainer = NodeTermination(self.context, evictor, instance_termination)
        self._termination_queue = self._new_queue(
            "node.termination", self._drainer.reconcile, _TERMINATION_WORKERS, NODE
        )
        self._nodepool_queue = self._new_queue("nodepool.readiness", self._nodepool_reconciler.reconcile, 4, NODE_POOL)
        self._pod_event_queue = self._new_queue("nodeclaim.podevents", self._pod_events.reconcile, 8, NODE_CLAIM)
        self._static_controller = (
            StaticCapacityController(self.context) if FeatureGate.STATIC_CAPACITY in settings.gates else None
        )
        self._health_queue = (
            self._new_queue("node.health", NodeHealthReconciler(self.context).reconcile, _NODE_HEALTH_WORKERS, NODE)
            if FeatureGate.NODE_REPAIR in settings.gates
            else None
        )
        self._informers: list[WatchedKind] = []
        self.pod_informer = self._new_informer(POD, self._on_pod)
        self.cluster_metrics = ClusterMetrics(self.context, self.pod_informer, self._cluster_collectors(settings))
        recorder = ProblemRecorder(settings.record_problems) if settings.record_problems else None
        self.provisioner = Provisioner(
            self.context, self._batcher, executor, scheduling_options, self._on_plan, recorder
        )
        #: What was decided about disruption, and what came of it.
        self.command_history = CommandHistory(lambda: asyncio.get_running_loop().time())
        self._successor_nominations = SuccessorNominations(
            self.state, nominator, lambda: asyncio.get_running_loop().time()
        )
        hands = self._command_execution(ceiling, settings)
        disruption = settings.disruption_options(scheduling_options, settings.gates)
        self.disruption = DisruptionController(
            self.context, hands, disruption, lambda: bool(self.faults()), options.own_pod
        )
        #: The watches whose news a provider may want too; it subscribes before ``run``.
        self.claim_informer = self._new_informer(NODE_CLAIM, self._on_claim)
        self.node_class_informers: dict[str, Informer[Wire]] = {}
        self._overlay_controller = self._watch_overlays(overlaid) if overlaid is not None else None
        self._buffer_controller = self._watch_buffers() if FeatureGate.CAPACITY_BUFFER in settings.gates else None
        self._watch_cluster()
        if scheduling_options.default_spread:
            self._watch_workloads()

    def _new_queue(
        self,
        name: str,
        reconcile: ReconcileKey[str],
        workers: int,
        kind: Kind[T],
        queue: WorkQueue[str] | None = None,
    ) -> Reconciler[str]:
        return Reconciler(name, reconcile, workers, cast(ObjectKind, kind), self.metrics, queue=queue)

    def _command_execution(self, rate_limit: ClaimCreationLimit, settings: Settings) -> CommandExecution:
        """What carries disruption decisions out."""
        queue = DisruptionQueue(self.context, self.command_history, self._successor_nominations, DEFAULT_TIMEOUTS.total)
        pace = ClaimCreationPace(settings.nomination_window, rate_limit)
        recorder = DisruptionRecorder(settings.record_problems) if settings.record_problems else None
        return CommandExecution(
            CommandStarter(self.context, queue, pace), queue, self.command_history.backoff, recorder
        )

    def _cluster_collectors(self, settings: Settings) -> tuple[ClusterCollector, ...]:
        """What is shown of the cluster; large ones may do without the details (OPS-320)."""
        cluster_collectors = essential_collectors(self.context, self.unready)
        further = (cast(ObjectKind, CAPACITY_BUFFER),) if FeatureGate.CAPACITY_BUFFER in settings.gates else ()
        return (
            cluster_collectors
            if settings.disable_cluster_state_observability
            else (*cluster_collectors, *detail_collectors(self.context, further))
        )

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self, elected: WaitElected = elected_immediately) -> None:
        """Run until cancelled. Nothing is done before ``elected`` returns, except watching where warm-up is on (OPS-316)."""
        load_solver()
        async with asyncio.TaskGroup() as tasks:
            if self._settings.disable_controller_warmup:
                await elected()
            self._is_watching = True
            for watched in self._informers:
                tasks.create_task(run_supervised(f"watch {watched.plural}", watched.source.run))
            await asyncio.gather(*(watched.source.wait_synced() for watched in self._informers))
            await elected()
            for name, loop in self._manager_options.loops.items():
                tasks.create_task(run_supervised(name, partial(loop, self.pod_informer)))
            tasks.create_task(run_supervised("events", self._recorder.run))
            tasks.create_task(run_supervised("observatory", self.cluster_metrics.run))
            for name, controller in self._controllers().items():
                tasks.create_task(run_supervised(name, controller))

    def _controllers(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "nodeclaim.lifecycle": self._claim_queue.run,
            "node.termination": self._termination_queue.run,
            "eviction-queue": self._eviction_queue.run,
            "nodepool.readiness": self._nodepool_queue.run,
            "nodeclaim.podevents": self._pod_event_queue.run,
            "provisioner": self.provisioner.run,
            **self.disruption.loops(),
            "disruption.promises": self._successor_nominations.run,
            "nomination": self._nominator.run,
            **{singleton.name: singleton.run for singleton in self._singletons()},
            **({self._health_queue.name: self._health_queue.run} if self._health_queue is not None else {}),
            **(self._static_controller.loops() if self._static_controller is not None else {}),
            **(self._overlay_controller.loops() if self._overlay_controller is not None else {}),
            **(self._buffer_controller.loops() if self._buffer_controller is not None else {}),
        }

    def _singletons(self) -> tuple[SingletonReconciler, ...]:
        collection = self._settings.intervals.garbage_collection.total_seconds()
        return (
            SingletonReconciler("nodepool.counter", self._reconcile_counter, self.metrics),
            SingletonReconciler(
                "nodeclaim.garbagecollection", self._collect_garbage, self.metrics, initial_delay=lambda: collection
            ),
        )

    async def _reconcile_counter(self) -> float:
        await self._nodepool_reconciler.reconcile_resources()
        await self._forget_stale_claims()
        return self._settings.intervals.nodepool_counter.total_seconds()

    async def _forget_stale_claims(self) -> None:
        """Forget claims that were gone before the answer to their creation came (OPS-094).

        The watch has nothing to say about them any more, and pods would wait for machines that nobody will buy.
        """
        for claim in self.state.claims():
            if self.claim_informer.get(claim.metadata.name) is None:
                try:
                    await self.context.kube.get(NODE_CLAIM, claim.metadata.name)
                except NotFound:
                    _log.debug("garbage collecting stale unlaunched nodeclaim from cluster state")
                    self._on_claim(claim, None)
                except KubeError:
                    continue

    async def _collect_garbage(self) -> float:
        await collect_claims_without_instance(self.context)
        for collect in self._manager_options.garbage_collectors.values():
            await collect()
        return self._settings.intervals.garbage_collection.total_seconds()

    def unready(self) -> str:
        """What keeps the process from being ready; empty when nothing does. A follower that does not watch yet is ready."""
        if not self._is_watching:
            return ""
        waiting = [watched.plural for watched in self._informers if not watched.source.synced]
        faults = [f"{watched.plural}: {watched.source.fault}" for watched in self._informers if watched.source.fault]
        faults += [str(fault) for fault in self._manager_options.faults()]
        if faults:
            return "; ".join(faults)
        return f"waiting for {', '.join(waiting)}" if waiting else ""

    def faults(self) -> list[KubeError]:
        """Why watches bring no news now."""
        own = [watched.source.fault for watched in self._informers if watched.source.fault is not None]
        return own + self._manager_options.faults()

    # -- watches ------------------------------------------------------------------------------------------------------

    def _new_informer(
        self, kind: Kind[T], handler: Callable[[T | None, T | None], None], reader: Reader | None = None
    ) -> Informer[T]:
        informer = Informer(reader or self.context.kube, kind, on_undecodable=log_rejected_object)
        informer.subscribe(guarded_handler(kind.name, handler))
        self._informers.append(WatchedKind(kind.plural, informer))
        return informer

    def _watch_cluster(self) -> None:
        self.node_informer = self._new_informer(NODE, self._on_node)
        self._new_informer(NODE_POOL, self._on_pool)
        self._new_informer(DAEMON_SET, self._on_daemon_set)
        self._new_informer(POD_DISRUPTION_BUDGET, self._on_budget)
        self._new_informer(NAMESPACE, self._on_namespace)
        volumes = VolumeWatchHandlers(self.state, self._batcher.trigger)
        self._new_informer(PERSISTENT_VOLUME_CLAIM, volumes.on_volume_claim)
        self._new_informer(PERSISTENT_VOLUME, volumes.on_volume)
        storage = OptionalKindsReader(self.context.kube)
        self._new_informer(VOLUME_ATTACHMENT, self._on_attachment, storage)
        self._new_informer(STORAGE_CLASS, volumes.on_storage_class, storage)
        self._new_informer(CSI_NODE, volumes.on_csi_node, storage)
        self._informers.append(
            WatchedKind("configmaps", manager_watches.watch_cluster_freeze(self.context.kube, self.state))
        )
        for kind in self.context.provider.node_class_kinds:
            self.node_class_informers[kind.name] = self._new_informer(kind, self._on_node_class(kind))

    def _watch_workloads(self) -> None:
        """What the selectors of default constraints are worked out from; nobody else asks."""
        told = WorkloadWatchHandlers(self.state.workload_selectors)
        self._new_informer(SERVICE, told.on_service)
        self._new_informer(REPLICATION_CONTROLLER, told.on_owner)
        self._new_informer(SELECTOR_REPLICA_SET, told.on_owner)
        self._new_informer(SELECTOR_STATEFUL_SET, told.on_owner)

    def _watch_overlays(self, provider: OverlaidProvider) -> NodeOverlayController:
        informer = self._new_informer(NODE_OVERLAY, lambda old, new: controller.on_overlay(old, new))
        controller = NodeOverlayController(self.context, provider, lambda: informer, self._trigger_pending_pods)
        return controller

    def _watch_buffers(self) -> CapacityBufferController:
        name = CAPACITY_BUFFER.name
        informer = self._new_informer(
            CAPACITY_BUFFER, lambda old, new: self.cluster_metrics.on_status_object(name, old, new)
        )
        buffer_controller = CapacityBufferController(self.context, informer, self._batcher.trigger)
        self._new_informer(POD_TEMPLATE, buffer_controller.on_pod_template)
        return buffer_controller

    def _on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A plan was made of the snapshot and carried out."""
        real = without_buffer_pods(plan)
        self.cluster_metrics.on_plan(real)
        self.command_history.reversals.record_plan(real)
        if self._buffer_controller is not None:
            self._buffer_controller.on_plan(snapshot, plan)

    def _trigger_pending_pods(self) -> None:
        """Something about what can be bought has changed: whoever waits is looked at again."""
        for pod in self.state.pending_pods():
            self._batcher.trigger(pod.metadata.uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self.cluster_metrics.on_pod(old, new)
        if new is None:
            if old is not None:
                self.state.remove_pod(pod_key(old))
                self._trigger_termination(old.spec.node_name)
            return
        self.state.set_pod(new)
        self._nominator.pod_updated(new)
        if old is None and self.pod_informer.synced:
            self._successor_nominations.pod_added(new)
        if pods.is_provisionable(new):
            self._batcher.trigger(new.metadata.uid)
        if (old is not None or self.pod_informer.synced) and is_pod_event(old, new):
            claim = self._pod_events.record(new)
            if claim:
                self._pod_event_queue.add(claim)
        if new.metadata.deletion_timestamp is not None:
            self._trigger_termination(new.spec.node_name)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.state.set_namespace(new)
        elif old is not None:
            self.state.remove_namespace(old.metadata.name)

    def _trigger_termination(self, node_name: str) -> None:
        node = self.state.node(node_name)
        if node is not None and node.metadata.deletion_timestamp is not None:
            self._termination_queue.add(node.metadata.name)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        self.cluster_metrics.on_node(old, new)
        if new is not None:
            self.state.set_node(new)
            if new.metadata.deletion_timestamp is not None:
                self._termination_queue.add(new.metadata.name)
            if self._health_queue is not None and _conditions_differ(old, new):
                self._health_queue.add(new.metadata.name)
            if any(taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in new.spec.taints):
                self._batcher.trigger(new.metadata.uid)
        elif old is not None:
            self.state.remove_node(old.metadata.name)
            self._drainer.node_deleted(old)
            self._termination_queue.add(old.metadata.name)
        for provider_id in {node.spec.provider_id for node in (old, new) if node is not None}:
            for claim in self.state.claims_by_provider_id(provider_id):
                self._claim_queue.add(claim.metadata.name)

    def _on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        self.cluster_metrics.on_claim(old, new)
        if new is None:
            if old is not None:
                self.state.remove_claim(old.metadata.name)
                self._lifecycle.forget(old.metadata.name)
                self.disruption.claim_deleted(old.metadata.name)
                self._trigger_planned_pods(old)
                self._notify_claim_controllers(old, new)
            return
        self.state.set_claim(new)
        if new.metadata.deletion_timestamp is not None:
            self.disruption.claim_deleted(new.metadata.name)
        self._notify_claim_controllers(old, new)
        self._lifecycle.observe(new)
        self._claim_queue.add(new.metadata.name)
        for node in self.state.nodes_by_provider_id(new.status.provider_id):
            if node.metadata.deletion_timestamp is not None:
                self._termination_queue.add(node.metadata.name)

    def _notify_claim_controllers(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if self._static_controller is not None:
            self._static_controller.on_claim(old, new)

    def _trigger_planned_pods(self, claim: NodeClaim) -> None:
        """A claim is gone: pods that were meant for it need a new plan without waiting for their next reminder."""
        meant = {uid for uid, key in self.state.planned_nodes.items() if key == claim.metadata.name}
        for pod in self.state.pending_pods() if meant else ():
            if pod.metadata.uid in meant:
                self._batcher.trigger(pod.metadata.uid)

    def _notify_pool_controllers(self, old: NodePool | None, new: NodePool | None) -> None:
        if self._static_controller is not None:
            self._static_controller.on_pool(old, new)
        if self._overlay_controller is not None:
            self._overlay_controller.on_pool(old, new)

    def _on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        self.cluster_metrics.on_pool(old, new)
        if new is None:
            if old is not None:
                self.state.remove_pool(old.metadata.name)
                self._nodepool_queue.add(old.metadata.name)
                self._notify_pool_controllers(old, new)
            return
        self.state.set_pool(new)
        self._nodepool_queue.add(new.metadata.name)
        self._notify_pool_controllers(old, new)
        if (
            old is None
            or old.metadata.generation != new.metadata.generation
            or old.metadata.annotations != new.metadata.annotations
            or old.status.conditions != new.status.conditions
        ):
            for claim in self.state.claims():
                if claim.metadata.labels.get(labels.NODE_POOL) == new.metadata.name:
                    self._claim_queue.add(claim.metadata.name)
            self._trigger_pending_pods()

    def _on_daemon_set(self, old: DaemonSet | None, new: DaemonSet | None) -> None:
        if new is not None:
            self.state.set_daemon_set(new)
        elif old is not None:
            self.state.remove_daemon_set((old.metadata.namespace, old.metadata.name))

    def _on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self.state.set_pdb(new)
        elif old is not None:
            self.state.remove_pdb((old.metadata.namespace, old.metadata.name))

    def _on_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is not None:
            self.state.set_attachment(new)
        elif old is not None:
            self.state.remove_attachment(old.metadata.name)
        for attachment in (old, new):
            if attachment is not None:
                self._trigger_termination(attachment.spec.node_name)

    def _on_node_class(self, kind: Kind[Wire]) -> Callable[[Wire | None, Wire | None], None]:
        def handle(old: Wire | None, new: Wire | None) -> None:
            subject: NodeClassObject = new or old  # type: ignore[assignment]
            self.cluster_metrics.on_status_object(
                kind.name, cast(StatusObject | None, old), cast(StatusObject | None, new)
            )
            key = (kind.group, kind.name, subject.metadata.name)
            if new is None:
                self._node_classes.pop(key, None)
            else:
                leaving = subject.metadata.deletion_timestamp is not None
                generation = subject.metadata.generation
                self._node_classes[key] = NodeClassState(subject.status.conditions, leaving, generation)
            for pool in self.state.pools():
                self._nodepool_queue.add(pool.metadata.name)
            self._lifecycle.node_class_changed()
            for claim in self.state.claims():
                if _references_class(claim.spec.node_class_ref, key):
                    self._claim_queue.add(claim.metadata.name)
            if self._overlay_controller is not None:
                self._overlay_controller.on_node_class()

        return handle

    def _node_class_state(self, reference: NodeClassReference) -> NodeClassState | None:
        return self._node_classes.get((reference.group, reference.kind, reference.name))


def _conditions_differ(old: Node | None, new: Node) -> bool:
    return old is None or old.status.conditions != new.status.conditions


def _references_class(reference: NodeClassReference, key: tuple[str, str, str]) -> bool:
    return (reference.group, reference.kind, reference.name) == key


def _eviction_rate(settings: Settings) -> EvictionLimits:
    """Evictions grow with the processor time the process asked for (OPS-702)."""
    count = worker_scaling.whole_cores(settings.cpu_requests)
    bucket = worker_scaling.scaled_bucket(worker_scaling.EVICTION, count)
    return EvictionLimits(bucket.per_second, bucket.burst, worker_scaling.EVICTION.workers.for_cores(count))
