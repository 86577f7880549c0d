"""Everything a controller process runs, wired together: watches feed the state, changes wake queues, loops decide.

The same manager runs on a real cluster, on the in-memory API server and in the simulator; only what it is handed differs.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, cast

import structlog

from karpenter.act.ceiling import Ceiling, Pace
from karpenter.act.collect import claims_without_instance
from karpenter.act.disrupt import Disruptor
from karpenter.act.drain import Drainer
from karpenter.act.events import AnyKind, Recorder
from karpenter.act.evict import EvictionPace, Evictor
from karpenter.act.lifecycle import Lifecycle
from karpenter.act.nominate import Nominating, Nominator, NoNomination
from karpenter.act.podevents import PodEvents, is_event
from karpenter.act.pools import NodeClassState, PoolKeeper
from karpenter.act.promises import Promises
from karpenter.act.provision import Executor
from karpenter.act.repair import Repairer
from karpenter.act.undertakings import Memory, Undertakings
from karpenter.act.world import World
from karpenter.api.core import DaemonSet, Namespace, Node, Pod, PodDisruptionBudget, VolumeAttachment
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
    SELECTING_REPLICA_SET,
    SELECTING_STATEFUL_SET,
    SERVICE,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.cluster import ClusterState
from karpenter.cluster.snapshot import PodKey, Snapshot, pod_key
from karpenter.control import freezing, scaling
from karpenter.control.batcher import Batcher, Window
from karpenter.control.buffers import Buffers
from karpenter.control.disruption import DisruptionLoop, Hands
from karpenter.control.observability import Conditioned, Observatory, Part, details, essentials
from karpenter.control.overlays import Overlays
from karpenter.control.provisioner import Provisioner
from karpenter.control.queue import Singleton, WorkQueue, supervised
from karpenter.control.settings import Settings
from karpenter.control.static import StaticPools
from karpenter.control.volume_events import VolumeEvents
from karpenter.control.workload_events import WorkloadEvents
from karpenter.decide.buffers import without_virtual
from karpenter.decide.disrupt.decision import DisruptionOptions
from karpenter.decide.plan import Plan
from karpenter.decide.provision import Options, prepare
from karpenter.kube.decoding import metadata
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube, Reader, Rejected
from karpenter.kube.where_served import WhereServed
from karpenter.kube.workqueue import Look
from karpenter.model import labels, pods, taints
from karpenter.model.clock import Clock
from karpenter.model.gates import Gate
from karpenter.providers.contract import CloudProvider
from karpenter.providers.overlaid import OverlaidProvider
from karpenter.telemetry import Metrics

T = TypeVar("T", bound=Wire)

#: How often pool counters are written (API-645), and lost halves are looked for (OPS-090).
COUNTER_SECONDS = 5.0
COLLECT_SECONDS = 120.0
_WORKERS = 256
_REPAIRS_AT_ONCE = 10
_log = structlog.get_logger()


class _Classified(Protocol):
    """What readiness reads of a node class of any kind."""

    metadata: ObjectMeta
    status: _ClassStatus


class _ClassStatus(Protocol):
    conditions: tuple[Condition, ...]


class _Source(Protocol):
    """What running watches need of an informer, whatever it watches."""

    fault: KubeError | None

    @property
    def synced(self) -> bool: ...

    async def wait_synced(self) -> None: ...

    async def run(self) -> None: ...


@dataclass(frozen=True)
class _Watched:
    plural: str
    source: _Source


@dataclass(frozen=True)
class Extra:
    """What a process brings along besides its cluster and cloud.

    ``loops`` of the provider's own, by name, each handed the controller's informer of pods; ``collectors`` of machines nobody
    owns; ``nominate_through``, a connection for nominations and what opens nodes, which come in bursts and should neither hold
    up everything else nor wait behind it (None: the common one); ``faults``, why the loops' own watches bring no news now;
    ``metrics``, where to count; ``own_pod``, the pod this process is.
    """

    loops: Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]] = field(default_factory=dict)
    collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    nominate_through: Kube | None = None
    faults: Callable[[], list[KubeError]] = list
    metrics: Metrics = field(default_factory=Metrics)
    own_pod: PodKey | None = None


#: Returns once this process may act: at once where there is only one, else when it leads (OPS-361). May be awaited again.
Elected = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """The election where nobody else stands."""


class Manager:
    """A controller process on one cluster."""

    def __init__(
        self, kube: Kube, provider: CloudProvider, clock: Clock, settings: Settings, extra: Extra = Extra()
    ) -> None:
        self._extra = extra
        self._settings = settings
        self._is_watching = False
        self.state = ClusterState(_complain)
        self._recorder = Recorder(kube, clock)
        self.metrics = extra.metrics
        overlaid = OverlaidProvider(provider) if Gate.NODE_OVERLAY in settings.gates else None
        self.world = World(
            kube, overlaid or provider, self.state, clock, self._recorder, extra.metrics, bursts=extra.nominate_through
        )
        self._node_classes: dict[tuple[str, str, str], NodeClassState] = {}
        nominator = Nominator(self.world.prompt, self.state) if settings.nominate_pods else NoNomination()
        self._nominator: Nominating = nominator
        self._lifecycle = Lifecycle(self.world, nominator)
        self._pod_events = PodEvents(self.world)
        self._keeper = PoolKeeper(self.world, self._find_class, settings.gates)
        self._batcher = Batcher(
            Window(settings.batch_idle_duration.total_seconds(), settings.batch_max_duration.total_seconds())
        )
        ceiling = Ceiling(settings.claims_per_minute)
        executor = Executor(self.world, nominator, Pace(settings.nomination_window, ceiling))
        options = _options(settings)
        launching = scaling.LIFECYCLE.workers.on(scaling.cores(settings.cpu_requests))
        self._claims = self._queue("nodeclaim.lifecycle", self._lifecycle.look, launching, NODE_CLAIM)
        pace = _eviction_pace(settings)
        evictor = Evictor(self.world, pace, lambda key: self._evictions.add(key))
        self._evictions = self._queue("eviction-queue", evictor.look, pace.workers, POD)
        self._drainer = Drainer(self.world, evictor)
        self._draining = self._queue("node.termination", self._drainer.look, _WORKERS, NODE)
        self._pools = self._queue("nodepool.readiness", self._keeper.look, 4, NODE_POOL)
        self._pod_event_queue = self._queue("nodeclaim.podevents", self._pod_events.look, 8, NODE_CLAIM)
        self._static = StaticPools(self.world) if Gate.STATIC_CAPACITY in settings.gates else None
        self._repairs = (
            self._queue("node.health", Repairer(self.world).look, _REPAIRS_AT_ONCE, NODE)
            if Gate.NODE_REPAIR in settings.gates
            else None
        )
        self._informers: list[_Watched] = []
        self.pods = self._informer(POD, self._on_pod)
        self.observatory = Observatory(self.world, self.pods, self._parts(settings))
        self.provisioner = Provisioner(self.world, self._batcher, executor, options, self._decided)
        #: What was decided about disruption, and what came of it.
        self.memory = Memory(lambda: asyncio.get_running_loop().time())
        self._promises = Promises(self.state, nominator, lambda: asyncio.get_running_loop().time())
        hands = self._hands(ceiling, settings)
        disruption = DisruptionOptions(options, Gate.SPOT_TO_SPOT_CONSOLIDATION in settings.gates)
        self.disruption = DisruptionLoop(self.world, hands, disruption, lambda: bool(self.faults()), extra.own_pod)
        #: The watches whose news a provider may want too; it subscribes before ``run``.
        self.watched_claims = self._informer(NODE_CLAIM, self._on_claim)
        self.watched_classes: dict[str, Informer[Wire]] = {}
        self._overlays = self._watch_overlays(overlaid) if overlaid is not None else None
        self._buffers = self._watch_buffers() if Gate.CAPACITY_BUFFER in settings.gates else None
        self._watch()
        if options.default_spread:
            self._watch_workloads()

    def _queue(self, name: str, look: Look[str], workers: int, kind: Kind[T]) -> WorkQueue:
        return WorkQueue(name, look, workers, cast(AnyKind, kind), self.metrics)

    def _hands(self, ceiling: Ceiling, settings: Settings) -> Hands:
        """What carries disruption decisions out."""
        undertakings = Undertakings(self.world, self.memory, self._promises)
        pace = Pace(settings.nomination_window, ceiling)
        return Hands(Disruptor(self.world, undertakings, pace), undertakings, self.memory.regrets)

    def _parts(self, settings: Settings) -> tuple[Part, ...]:
        """What is shown of the cluster; large ones may do without the details (OPS-320)."""
        found = essentials(self.world, self.unready)
        further = (cast(AnyKind, CAPACITY_BUFFER),) if Gate.CAPACITY_BUFFER in settings.gates else ()
        return found if settings.disable_cluster_state_observability else (*found, *details(self.world, further))

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self, elected: Elected = at_once) -> None:
        """Run until cancelled. Nothing is done before ``elected`` returns, except watching where warm-up is on (OPS-316)."""
        prepare()
        async with asyncio.TaskGroup() as tasks:
            if self._settings.disable_controller_warmup:
                await elected()
            self._is_watching = True
            for watched in self._informers:
                tasks.create_task(supervised(f"watch {watched.plural}", watched.source.run))
            await asyncio.gather(*(watched.source.wait_synced() for watched in self._informers))
            await elected()
            for name, loop in self._extra.loops.items():
                tasks.create_task(supervised(name, partial(loop, self.pods)))
            tasks.create_task(supervised("events", self._recorder.run))
            tasks.create_task(supervised("observatory", self.observatory.run))
            for name, controller in self._loops().items():
                tasks.create_task(supervised(name, controller))

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "nodeclaim.lifecycle": self._claims.run,
            "node.termination": self._draining.run,
            "eviction-queue": self._evictions.run,
            "nodepool.readiness": self._pools.run,
            "nodeclaim.podevents": self._pod_event_queue.run,
            "provisioner": self.provisioner.run,
            **self.disruption.loops(),
            "disruption.promises": self._promises.run,
            "nomination": self._nominator.run,
            "nodepool.counter": self._count,
            "nodeclaim.garbagecollection": self._collect,
            **({self._repairs.name: self._repairs.run} if self._repairs is not None else {}),
            **(self._static.loops() if self._static is not None else {}),
            **(self._overlays.loops() if self._overlays is not None else {}),
            **(self._buffers.loops() if self._buffers is not None else {}),
        }

    async def _count(self) -> None:
        passes = Singleton("nodepool.counter", self.metrics)
        while True:
            with passes.one_pass():
                await self._keeper.count()
                await self._drop_ghosts()
            await asyncio.sleep(COUNTER_SECONDS)

    async def _drop_ghosts(self) -> None:
        """Forget claims that were gone before the answer to their creation came (OPS-094).

        The watch has nothing to say about them any more, and pods would wait for machines that nobody will buy.
        """
        for claim in self.state.claims():
            if self.watched_claims.get(claim.metadata.name) is None:
                try:
                    await self.world.kube.get(NODE_CLAIM, claim.metadata.name)
                except NotFound:
                    _log.debug("garbage collecting stale unlaunched nodeclaim from cluster state")
                    self._on_claim(claim, None)
                except KubeError:
                    continue

    async def _collect(self) -> None:
        passes = Singleton("nodeclaim.garbagecollection", self.metrics)
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            with passes.one_pass():
                await claims_without_instance(self.world)
                for collect in self._extra.collectors.values():
                    await collect()

    def unready(self) -> str:
        """What keeps the process from being ready; empty when nothing does. A follower that does not watch yet is ready."""
        if not self._is_watching:
            return ""
        waiting = [watched.plural for watched in self._informers if not watched.source.synced]
        faults = [f"{watched.plural}: {watched.source.fault}" for watched in self._informers if watched.source.fault]
        faults += [str(fault) for fault in self._extra.faults()]
        if faults:
            return "; ".join(faults)
        return f"waiting for {', '.join(waiting)}" if waiting else ""

    def faults(self) -> list[KubeError]:
        """Why watches bring no news now."""
        own = [watched.source.fault for watched in self._informers if watched.source.fault is not None]
        return own + self._extra.faults()

    # -- watches ------------------------------------------------------------------------------------------------------

    def _informer(
        self, kind: Kind[T], handler: Callable[[T | None, T | None], None], reader: Reader | None = None
    ) -> Informer[T]:
        informer = Informer(reader or self.world.kube, kind, on_rejected=_rejected)
        informer.subscribe(_guarded(kind.name, handler))
        self._informers.append(_Watched(kind.plural, informer))
        return informer

    def _watch(self) -> None:
        self.watched_nodes = self._informer(NODE, self._on_node)
        self._informer(NODE_POOL, self._on_pool)
        self._informer(DAEMON_SET, self._on_daemon_set)
        self._informer(POD_DISRUPTION_BUDGET, self._on_budget)
        self._informer(NAMESPACE, self._on_namespace)
        volumes = VolumeEvents(self.state, self._batcher.trigger)
        self._informer(PERSISTENT_VOLUME_CLAIM, volumes.on_claim)
        self._informer(PERSISTENT_VOLUME, volumes.on_volume)
        storage = WhereServed(self.world.kube)
        self._informer(VOLUME_ATTACHMENT, self._on_attachment, storage)
        self._informer(STORAGE_CLASS, volumes.on_class, storage)
        self._informer(CSI_NODE, volumes.on_csi_node, storage)
        self._informers.append(_Watched("configmaps", freezing.follow(self.world.kube, self.state)))
        for kind in self.world.provider.node_class_kinds:
            self.watched_classes[kind.name] = self._informer(kind, self._on_node_class(kind))

    def _watch_workloads(self) -> None:
        """What the selectors of default constraints are worked out from; nobody else asks."""
        told = WorkloadEvents(self.state.workloads)
        self._informer(SERVICE, told.on_service)
        self._informer(REPLICATION_CONTROLLER, told.on_owner)
        self._informer(SELECTING_REPLICA_SET, told.on_owner)
        self._informer(SELECTING_STATEFUL_SET, told.on_owner)

    def _watch_overlays(self, provider: OverlaidProvider) -> Overlays:
        informer = self._informer(NODE_OVERLAY, lambda old, new: found.overlay(old, new))
        found = Overlays(self.world, provider, lambda: informer, self._wake_pods)
        return found

    def _watch_buffers(self) -> Buffers:
        name = CAPACITY_BUFFER.name
        informer = self._informer(CAPACITY_BUFFER, lambda old, new: self.observatory.other(name, old, new))
        found = Buffers(self.world, informer, self._batcher.trigger)
        self._informer(POD_TEMPLATE, found.template)
        return found

    def _decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """A plan was made of the snapshot and carried out."""
        real = without_virtual(plan)
        self.observatory.decided(real)
        self.memory.undone.planned(real)
        if self._buffers is not None:
            self._buffers.decided(snapshot, plan)

    def _wake_pods(self) -> None:
        """Something about what can be bought has changed: whoever waits is looked at again."""
        for pod in self.state.waiting_pods():
            self._batcher.trigger(pod.metadata.uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self.observatory.pod(old, new)
        if new is None:
            if old is not None:
                self.state.remove_pod(pod_key(old))
                self._wake_drain(old.spec.node_name)
            return
        self.state.set_pod(new)
        self._nominator.heard(new)
        if old is None and self.pods.synced:
            self._promises.appeared(new)
        if pods.is_provisionable(new):
            self._batcher.trigger(new.metadata.uid)
        if (old is not None or self.pods.synced) and is_event(old, new):
            claim = self._pod_events.notice(new)
            if claim:
                self._pod_event_queue.add(claim)
        if new.metadata.deletion_timestamp is not None:
            self._wake_drain(new.spec.node_name)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.state.set_namespace(new)
        elif old is not None:
            self.state.remove_namespace(old.metadata.name)

    def _wake_drain(self, node_name: str) -> None:
        node = self.state.node(node_name)
        if node is not None and node.metadata.deletion_timestamp is not None:
            self._draining.add(node.metadata.name)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        self.observatory.node(old, new)
        if new is not None:
            self.state.set_node(new)
            if new.metadata.deletion_timestamp is not None:
                self._draining.add(new.metadata.name)
            if self._repairs is not None and _conditions_differ(old, new):
                self._repairs.add(new.metadata.name)
            if any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in new.spec.taints):
                self._batcher.trigger(new.metadata.uid)
        elif old is not None:
            self.state.remove_node(old.metadata.name)
            self._drainer.vanished(old)
            self._draining.add(old.metadata.name)
        for provider_id in {node.spec.provider_id for node in (old, new) if node is not None}:
            for claim in self.state.claims_of(provider_id):
                self._claims.add(claim.metadata.name)

    def _on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        self.observatory.claim(old, new)
        if new is None:
            if old is not None:
                self.state.remove_claim(old.metadata.name)
                self._lifecycle.forget(old.metadata.name)
                self._replan(old)
                self._tell_of_claim(old, new)
            return
        self.state.set_claim(new)
        self._tell_of_claim(old, new)
        self._lifecycle.observed(new)
        self._claims.add(new.metadata.name)
        for node in self.state.nodes_of(new.status.provider_id):
            if node.metadata.deletion_timestamp is not None:
                self._draining.add(node.metadata.name)

    def _tell_of_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if self._static is not None:
            self._static.claim(old, new)

    def _replan(self, claim: NodeClaim) -> None:
        """A claim is gone: pods that were meant for it need a new plan without waiting for their next reminder."""
        meant = {uid for uid, key in self.state.planned.items() if key == claim.metadata.name}
        for pod in self.state.waiting_pods() if meant else ():
            if pod.metadata.uid in meant:
                self._batcher.trigger(pod.metadata.uid)

    def _tell_of_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        if self._static is not None:
            self._static.pool(old, new)
        if self._overlays is not None:
            self._overlays.pool(old, new)

    def _on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        self.observatory.pool(old, new)
        if new is None:
            if old is not None:
                self.state.remove_pool(old.metadata.name)
                self._pools.add(old.metadata.name)
                self._tell_of_pool(old, new)
            return
        self.state.set_pool(new)
        self._pools.add(new.metadata.name)
        self._tell_of_pool(old, new)
        if (
            old is None
            or old.metadata.generation != new.metadata.generation
            or old.metadata.annotations != new.metadata.annotations
            or old.status.conditions != new.status.conditions
        ):
            for claim in self.state.claims():
                if claim.metadata.labels.get(labels.NODE_POOL) == new.metadata.name:
                    self._claims.add(claim.metadata.name)
            self._wake_pods()

    def _on_daemon_set(self, old: DaemonSet | None, new: DaemonSet | None) -> None:
        if new is not None:
            self.state.set_daemon_set(new)
        elif old is not None:
            self.state.remove_daemon_set((old.metadata.namespace, old.metadata.name))

    def _on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self.state.set_budget(new)
        elif old is not None:
            self.state.remove_budget((old.metadata.namespace, old.metadata.name))

    def _on_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is not None:
            self.state.set_attachment(new)
        elif old is not None:
            self.state.remove_attachment(old.metadata.name)
        for attachment in (old, new):
            if attachment is not None:
                self._wake_drain(attachment.spec.node_name)

    def _on_node_class(self, kind: Kind[Wire]) -> Callable[[Wire | None, Wire | None], None]:
        def handle(old: Wire | None, new: Wire | None) -> None:
            subject: _Classified = new or old  # type: ignore[assignment]
            self.observatory.other(kind.name, cast(Conditioned | None, old), cast(Conditioned | None, new))
            key = (kind.group, kind.name, subject.metadata.name)
            if new is None:
                self._node_classes.pop(key, None)
            else:
                leaving = subject.metadata.deletion_timestamp is not None
                generation = subject.metadata.generation
                self._node_classes[key] = NodeClassState(subject.status.conditions, leaving, generation)
            for pool in self.state.pools():
                self._pools.add(pool.metadata.name)
            self._lifecycle.class_changed()
            for claim in self.state.claims():
                if _is_of_class(claim.spec.node_class_ref, key):
                    self._claims.add(claim.metadata.name)
            if self._overlays is not None:
                self._overlays.node_class()

        return handle

    def _find_class(self, reference: NodeClassReference) -> NodeClassState | None:
        return self._node_classes.get((reference.group, reference.kind, reference.name))


def _options(settings: Settings) -> Options:
    """What decisions depend on."""
    return Options(
        settings.preference_policy,
        settings.min_values_policy,
        reserved=Gate.RESERVED_CAPACITY in settings.gates,
        default_spread=settings.scheduler_config.default_constraints,
        worth=settings.worth,
    )


def _conditions_differ(old: Node | None, new: Node) -> bool:
    return old is None or old.status.conditions != new.status.conditions


def _is_of_class(reference: NodeClassReference, key: tuple[str, str, str]) -> bool:
    return (reference.group, reference.kind, reference.name) == key


def _eviction_pace(settings: Settings) -> EvictionPace:
    """Evictions grow with the processor time the process asked for (OPS-702)."""
    count = scaling.cores(settings.cpu_requests)
    bucket = scaling.scaled_bucket(scaling.EVICTION, count)
    return EvictionPace(bucket.per_second, bucket.burst, scaling.EVICTION.workers.on(count))


def _guarded(kind: str, handler: Callable[[T | None, T | None], None]) -> Callable[[T | None, T | None], None]:
    """A handler that survives its own mistakes: one object we cannot cope with must not end the watch on all others (OPS-371)."""

    def handle(old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception as error:
            meta = metadata(new if new is not None else old)  # type: ignore[arg-type]
            name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            trace = traceback.format_exc()
            _log.error("object cannot be used", **{kind: name}, error=repr(error), stacktrace=trace)

    return handle


def _complain(kind: str, name: str, why: str) -> None:
    _log.error("object cannot be used", **{kind: name}, error=why)


def _rejected(rejected: Rejected) -> None:
    name = f"{rejected.namespace}/{rejected.name}" if rejected.namespace else rejected.name
    _log.error("object does not decode", **{rejected.kind: name}, error=rejected.error)
