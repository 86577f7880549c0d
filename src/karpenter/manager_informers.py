"""All informers of a controller process, and the cluster state that they keep.

They are made from a connection and the kinds to watch alone, before anything that listens to them: providers, controllers and
metrics exist later and subscribe then. The cluster state subscribes first, so every other handler finds it up to date.

NodeClaims pass a door: those of a node class that this process does not manage belong to another autoscaler, and no handler
receives them (OPS-002).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog

from karpenter.api.apps import RolloutWorkload, SelectorWorkload
from karpenter.api.core import ConfigMap, Pod, ReplicationController
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import (
    CAPACITY_BUFFER,
    CAPACITY_SCHEDULE,
    CONFIG_MAP,
    CSI_NODE,
    DAEMON_SET,
    DEVICE_CLASS,
    EVENT,
    NAMESPACE,
    NODE,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    OLDER_DEVICE_VERSIONS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    REPLICATION_CONTROLLER,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    ROLLOUT_DEPLOYMENT,
    ROLLOUT_STATEFUL_SET,
    SCALED_WORKLOADS,
    SELECTOR_REPLICA_SET,
    SERVICE,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from karpenter.api.meta import Wire
from karpenter.api.provisioning_request import ProvisioningRequest
from karpenter.api.resource_claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpenter.kube.decoding import metadata_of
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.informer import ALL_OBJECTS, ChangeHandler, Informer, WatchScope
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import Reader, UndecodableObject
from karpenter.kube.shared_pod_parts import SharedPodParts
from karpenter.kube.version_fallback import VersionFallbackReader
from karpenter.model import freezes
from karpenter.model.feature_gates import FeatureGate
from karpenter.model.pod_disruption import without_deletion_cost
from karpenter.provisioning.cluster_autoscaler import SCALE_UP_EVENTS
from karpenter.runtime.reconciler import run_supervised
from karpenter.runtime.tracked_devices_log import log_tracked_devices
from karpenter.settings import Settings
from karpenter.state import ClusterState
from karpenter.state.gang_index import GANG_KINDS, GangObject
from karpenter.state.snapshot import pod_key
from karpenter.state.workload_selectors import WorkloadSelectorIndex

T = TypeVar("T", bound=Wire)

_log = structlog.get_logger()


class WatchSource(Protocol):
    """What running watches need of an informer, whatever it watches."""

    fault: KubeError | None

    @property
    def synced(self) -> bool:
        """Whether the first list has arrived."""

    async def wait_synced(self) -> None:
        """Return once the first list has arrived."""

    async def run(self) -> None:
        """Watch until cancelled."""


@dataclass(frozen=True)
class WatchedKinds:
    """Which kinds to watch beside those that every process needs."""

    node_classes: Sequence[Kind[Wire]]
    node_overlays: bool = False
    capacity_buffers: bool = False
    #: Owners of pods, whose selectors default spread constraints take.
    workload_selectors: bool = False
    #: Deployments and StatefulSets, whose roll-outs delay consolidation.
    rollouts: bool = False
    capacity_schedules: bool = False
    #: Device claims, classes and slices.
    devices: bool = False
    #: Workloads and PodGroups.
    gangs: bool = False
    #: Events of pods that Cluster Autoscaler scales a node group up for.
    scale_up_events: bool = False
    #: Deletion costs of pods, which are left out of the cluster state where this process writes them (K15-340).
    deletion_costs: bool = True
    #: Pods that the scheduler has not tried yet, which count as pending with their siblings.
    untried_pods: bool = False

    @staticmethod
    def of(settings: Settings, node_classes: Sequence[Kind[Wire]]) -> WatchedKinds:
        """The kinds that these settings need."""
        return WatchedKinds(
            node_classes,
            FeatureGate.NODE_OVERLAY in settings.gates,
            FeatureGate.CAPACITY_BUFFER in settings.gates,
            bool(settings.scheduler_config.default_constraints),
            settings.wait_for_rollouts,
            FeatureGate.CAPACITY_SCHEDULE in settings.gates,
            not settings.ignore_dra_requests,
            FeatureGate.GANG_SCHEDULING in settings.gates,
            settings.defer_to_cluster_autoscaler,
            FeatureGate.POD_DELETION_COST_MANAGEMENT not in settings.gates,
            settings.plans_for_untried_pods,
        )


@dataclass(frozen=True)
class DeviceInformers:
    """The informers of device claims and of what meets them."""

    claims: Informer[ResourceClaim]
    templates: Informer[ResourceClaimTemplate]
    classes: Informer[DeviceClass]
    slices: Informer[ResourceSlice]


class DeviceHandler(Protocol):
    """A handler of changes to device claims and their slices."""

    def on_change(self, _old: Wire | None, _new: Wire | None) -> None:
        """A claim, template or class."""

    def on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A slice."""


class ClusterInformers:
    """The informers by kind. Kinds behind a feature gate are None while it is off.

    ``fault_sources`` are further watches, such as those of simulated nodes: their faults count like those of the informers.
    """

    def __init__(self, kube: Reader, kinds: WatchedKinds) -> None:
        self._kube = kube
        self._by_plural: dict[str, WatchSource] = {}
        self._claim_handlers: list[ChangeHandler[NodeClaim]] = []
        self._managed_classes = frozenset((kind.group, kind.name) for kind in kinds.node_classes)
        self._is_running = False
        #: The claims of the state when the watch had delivered all of them.
        self._watched_claims: tuple[NodeClaim, ...] | None = None
        self.fault_sources: list[Callable[[], list[KubeError]]] = []
        self.pods = self._add(POD, share=SharedPodParts().shared)
        self.claims = self._add(NODE_CLAIM)
        self.nodes = self._add(NODE)
        self.pools = self._add(NODE_POOL)
        self.daemon_sets = self._add(DAEMON_SET)
        self.pdbs = self._add(POD_DISRUPTION_BUDGET)
        self.namespaces = self._add(NAMESPACE)
        self.volume_claims = self._add(PERSISTENT_VOLUME_CLAIM)
        self.volumes = self._add(PERSISTENT_VOLUME)
        storage = OptionalKindsReader(kube)
        self.attachments = self._add(VOLUME_ATTACHMENT, storage)
        self.storage_classes = self._add(STORAGE_CLASS, storage)
        self.csi_nodes = self._add(CSI_NODE, storage)
        self.node_classes = {kind.name: self._add(kind) for kind in kinds.node_classes}
        self.overlays = self._add(NODE_OVERLAY) if kinds.node_overlays else None
        self.buffers = self._add(CAPACITY_BUFFER) if kinds.capacity_buffers else None
        self.schedules = self._add(CAPACITY_SCHEDULE) if kinds.capacity_schedules else None
        self.pod_templates = self._add(POD_TEMPLATE) if kinds.capacity_buffers else None
        self.scaled_workloads = [self._add(kind) for kind in SCALED_WORKLOADS] if kinds.capacity_buffers else []
        self.scale_ups = self._add(EVENT, scope=SCALE_UP_EVENTS) if kinds.scale_up_events else None
        self._devices: DeviceInformers | None = None
        self._gangs: list[Informer[GangObject]] = []
        self.provisioning_requests = self._add(PROVISIONING_REQUEST, OptionalKindsReader(kube)) if kinds.gangs else None
        self.state = ClusterState(log_unusable_object)
        if kinds.untried_pods:
            self.state.untried_pods.enable()
        self._keep_state(has_deletion_costs=kinds.deletion_costs)
        if kinds.devices:
            self._keep_devices()
        if kinds.gangs:
            self._keep_gangs()
        if kinds.workload_selectors or kinds.rollouts:
            stateful_sets = self._add(ROLLOUT_STATEFUL_SET)
            if kinds.workload_selectors:
                self._keep_workload_selectors(stateful_sets)
            if kinds.rollouts:
                self._keep_rollouts(stateful_sets)

    def _add(
        self,
        kind: Kind[T],
        reader: Reader | None = None,
        scope: WatchScope = ALL_OBJECTS,
        share: Callable[[T], T] = lambda obj: obj,
    ) -> Informer[T]:
        informer = Informer(reader or self._kube, kind, scope, on_undecodable=log_rejected_object, share=share)
        others = kind.plural in self._by_plural  # kinds of one name in several groups or versions
        self._by_plural[f"{kind.plural}.{kind.version}.{kind.group}" if others else kind.plural] = informer
        return informer

    # -- subscribing --------------------------------------------------------------------------------------------------

    def subscribe(self, informer: Informer[T], *handlers: ChangeHandler[T]) -> None:
        """Add handlers that survive their own mistakes."""
        for handler in handlers:
            informer.subscribe(guarded_handler(informer.kind.name, handler))

    def subscribe_claims(self, *handlers: ChangeHandler[NodeClaim]) -> None:
        """Add handlers of the NodeClaims that this process manages."""
        for handler in handlers:
            guarded: ChangeHandler[NodeClaim] = guarded_handler(NODE_CLAIM.name, handler)
            self._claim_handlers.append(guarded)
            self.claims.subscribe(self._managed_only(guarded))

    def _managed_only(self, handler: ChangeHandler[NodeClaim]) -> ChangeHandler[NodeClaim]:
        def handle(old: NodeClaim | None, new: NodeClaim | None) -> None:
            managed_old, managed_new = self._if_managed(old), self._if_managed(new)
            if managed_old is not None or managed_new is not None:
                handler(managed_old, managed_new)

        return handle

    def _if_managed(self, claim: NodeClaim | None) -> NodeClaim | None:
        if claim is None:
            return None
        reference = claim.spec.node_class_ref
        return claim if (reference.group, reference.kind) in self._managed_classes else None

    async def forget_claims_that_are_gone(self) -> None:
        """Forget NodeClaims that were deleted before the response to their creation arrived (OPS-094).

        The watch delivers no further event for them, and their pods would wait for instances that are never launched.
        """
        claims = self.state.claims()
        if claims is self._watched_claims:
            return
        unwatched = [claim for claim in claims if self.claims.get(claim.metadata.name) is None]
        # What the watch loses later, it takes out of the state as well.
        self._watched_claims = None if unwatched else claims
        for claim in unwatched:
            await self._forget_if_gone(claim)

    async def _forget_if_gone(self, claim: NodeClaim) -> None:
        try:
            await self._kube.get(NODE_CLAIM, claim.metadata.name)
        except NotFound:
            _log.debug("garbage collecting stale unlaunched nodeclaim from cluster state")
            for handler in self._claim_handlers:
                handler(claim, None)
        except KubeError:
            return

    # -- cluster state ------------------------------------------------------------------------------------------------

    def _keep_state(self, *, has_deletion_costs: bool) -> None:
        state = self.state

        def set_pod(pod: Pod) -> None:
            state.set_pod(pod if has_deletion_costs else without_deletion_cost(pod))

        self.subscribe(self.pods, _stored(set_pod, lambda pod: state.remove_pod(pod_key(pod))))
        self.subscribe_claims(_stored(state.set_claim, lambda claim: state.remove_claim(claim.metadata.name)))
        self.subscribe(self.nodes, _stored(state.set_node, lambda node: state.remove_node(node.metadata.name)))
        self.subscribe(self.pools, _stored(state.set_pool, lambda pool: state.remove_pool(pool.metadata.name)))
        self.subscribe(self.daemon_sets, _stored(state.set_daemon_set, lambda obj: state.remove_daemon_set(_key(obj))))
        self.subscribe(self.pdbs, _stored(state.set_pdb, lambda pdb: state.remove_pdb(_key(pdb))))
        self.subscribe(self.namespaces, _stored(state.set_namespace, lambda obj: state.remove_namespace(_key(obj)[1])))
        self.subscribe(
            self.volume_claims, _stored(state.set_volume_claim, lambda claim: state.remove_volume_claim(_key(claim)))
        )
        self.subscribe(self.volumes, _stored(state.set_volume, lambda obj: state.remove_volume(obj.metadata.name)))
        self.subscribe(
            self.attachments, _stored(state.set_attachment, lambda obj: state.remove_attachment(obj.metadata.name))
        )
        self.subscribe(
            self.storage_classes,
            _stored(state.set_storage_class, lambda obj: state.remove_storage_class(obj.metadata.name)),
        )
        self.subscribe(
            self.csi_nodes, _stored(state.set_csi_node, lambda obj: state.remove_csi_node(obj.metadata.name))
        )
        self._by_plural[CONFIG_MAP.plural] = watch_cluster_freeze(self._kube, state)

    def _keep_devices(self) -> None:
        """Device claims, where the cluster serves them: since Kubernetes 1.34 as ``v1``, before that in older versions."""
        reader = OptionalKindsReader(VersionFallbackReader(self._kube, OLDER_DEVICE_VERSIONS))
        index = self.state.devices
        informers = DeviceInformers(
            self._add(RESOURCE_CLAIM, reader),
            self._add(RESOURCE_CLAIM_TEMPLATE, reader),
            self._add(DEVICE_CLASS, reader),
            self._add(RESOURCE_SLICE, reader),
        )
        self.subscribe(informers.claims, _stored(index.set_claim, lambda obj: index.remove_claim(_key(obj))))
        self.subscribe(informers.claims, log_tracked_devices)
        self.subscribe(informers.templates, _stored(index.set_template, lambda obj: index.remove_template(_key(obj))))
        self.subscribe(informers.classes, _stored(index.set_class, lambda obj: index.remove_class(obj.metadata.name)))
        self.subscribe(informers.slices, _stored(index.set_slice, lambda obj: index.remove_slice(obj.metadata.name)))
        self._devices = informers
        index.enable()

    def subscribe_devices(self, handler: DeviceHandler) -> None:
        """Add a handler of device claims and slices, where these are watched."""
        if self._devices is not None:
            self.subscribe(self._devices.claims, handler.on_change)
            self.subscribe(self._devices.templates, handler.on_change)
            self.subscribe(self._devices.classes, handler.on_change)
            self.subscribe(self._devices.slices, handler.on_slice)

    def _keep_gangs(self) -> None:
        """Workloads and PodGroups, in the versions that the cluster serves."""
        reader, index = OptionalKindsReader(self._kube), self.state.gangs
        for kind in GANG_KINDS:
            informer = self._add(kind, reader)
            self.subscribe(informer, self._gang_handler)
            self._gangs.append(informer)
        index.enable()

    def _gang_handler(self, old: GangObject | None, new: GangObject | None) -> None:
        if new is not None:
            self.state.gangs.set_object(new)
        elif old is not None:
            self.state.gangs.remove_object(old)

    def subscribe_gangs(self, handler: ChangeHandler[GangObject]) -> None:
        """Add a handler of Workloads and PodGroups, where these are watched."""
        for informer in self._gangs:
            self.subscribe(informer, handler)

    def subscribe_requests(self, handler: ChangeHandler[ProvisioningRequest]) -> None:
        """Add a handler of ProvisioningRequests, where these are watched."""
        if self.provisioning_requests is not None:
            self.subscribe(self.provisioning_requests, handler)

    def _keep_workload_selectors(self, stateful_sets: Informer[RolloutWorkload]) -> None:
        """Nothing is triggered by these kinds: pods that wait are in a pass every few seconds anyway."""
        index = self.state.workload_selectors
        self.subscribe(self._add(SERVICE), _stored(index.set_service, lambda obj: index.remove_service(_key(obj))))
        on_owner = partial(_on_owner, index)
        self.subscribe(self._add(REPLICATION_CONTROLLER), on_owner)
        self.subscribe(self._add(SELECTOR_REPLICA_SET), on_owner)
        self.subscribe(stateful_sets, on_owner)

    def _keep_rollouts(self, stateful_sets: Informer[RolloutWorkload]) -> None:
        for informer in (self._add(ROLLOUT_DEPLOYMENT), stateful_sets):
            self.subscribe(informer, partial(self._on_rollout, informer.kind.name))

    def _on_rollout(self, kind: str, old: RolloutWorkload | None, new: RolloutWorkload | None) -> None:
        workload = new if new is not None else old
        assert workload is not None
        self.state.set_rollout((workload.metadata.namespace, kind, workload.metadata.name), new)

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start all informers in the group; returns when all have their first list."""
        self._is_running = True
        for plural, source in self._by_plural.items():
            tasks.create_task(run_supervised(f"watch {plural}", source.run))
        await asyncio.gather(*(source.wait_synced() for source in self._by_plural.values()))

    @property
    def is_running(self) -> bool:
        """Whether this process watches the cluster; one that does not lead may not."""
        return self._is_running

    def unready(self) -> str:
        """What keeps the process from being ready; empty when nothing does. A follower that does not watch yet is ready."""
        if not self._is_running:
            return ""
        faults = [f"{plural}: {source.fault}" for plural, source in self._by_plural.items() if source.fault]
        faults += map(str, self._further_faults())
        if faults:
            return "; ".join(faults)
        unsynced = [plural for plural, source in self._by_plural.items() if not source.synced]
        return f"waiting for {', '.join(unsynced)}" if unsynced else ""

    def faults(self) -> list[KubeError]:
        """Why watches deliver no events now."""
        own = [source.fault for source in self._by_plural.values() if source.fault is not None]
        return own + self._further_faults()

    def has_faults(self) -> bool:
        """Whether some watch delivers no events now, so that the cluster state may be stale."""
        return bool(self.faults())

    def _further_faults(self) -> list[KubeError]:
        return [fault for faults in self.fault_sources for fault in faults()]


def _stored(store: Callable[[T], None], remove: Callable[[T], None]) -> ChangeHandler[T]:
    """A handler that stores the latest version of an object and removes what is gone."""

    def handle(old: T | None, new: T | None) -> None:
        if new is not None:
            store(new)
        elif old is not None:
            remove(old)

    return handle


_SelectingOwner = SelectorWorkload | RolloutWorkload | ReplicationController


def _on_owner(index: WorkloadSelectorIndex, old: _SelectingOwner | None, new: _SelectingOwner | None) -> None:
    """Keep the selector of an owner of pods. An owner created again under the same name has another uid."""
    if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
        index.remove_owner(old.metadata.uid)
    if new is not None:
        index.set_owner(new)


def _key(obj: Wire) -> tuple[str, str]:
    meta = metadata_of(obj)
    return (meta.namespace, meta.name)


def guarded_handler(kind: str, handler: ChangeHandler[T]) -> ChangeHandler[T]:
    """A handler that survives its own mistakes: one object we cannot cope with must not end the watch on all others (OPS-371)."""

    def handle(old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception as error:
            meta = metadata_of(new if new is not None else old)  # type: ignore[arg-type]
            name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            trace = traceback.format_exc()
            _log.error("object cannot be used", **{kind: name}, error=repr(error), stacktrace=trace)

    return handle


def log_unusable_object(kind: str, name: str, error: str) -> None:
    """Log an object whose contents make no sense."""
    _log.error("object cannot be used", **{kind: name}, error=error)


def log_rejected_object(rejected: UndecodableObject) -> None:
    """Log an object that is not of its kind's schema."""
    name = f"{rejected.namespace}/{rejected.name}" if rejected.namespace else rejected.name
    _log.error("object does not decode", **{rejected.kind: name}, error=rejected.error)


def watch_cluster_freeze(reader: Reader, state: ClusterState) -> Informer[ConfigMap]:
    """An informer of the one ConfigMap that freezes the cluster; it needs no right on any other (OPS-660 ff.)."""
    informer = Informer(
        reader,
        CONFIG_MAP,
        WatchScope(freezes.FREEZE_NAMESPACE, field_selector=f"metadata.name={freezes.FREEZE_CONFIG_MAP}"),
    )

    def handle(_old: ConfigMap | None, new: ConfigMap | None) -> None:
        state.freeze = None if new is None else freezes.cluster_freeze(new)
        if state.freeze is None:
            _log.info(
                "freeze of the cluster taken away",
                ConfigMap={"namespace": freezes.FREEZE_NAMESPACE, "name": freezes.FREEZE_CONFIG_MAP},
            )
        elif state.freeze.findings:
            _log.error("freeze of the cluster cannot be read in full", freeze=str(state.freeze))
        else:
            _log.info("freeze of the cluster", freeze=str(state.freeze))

    informer.subscribe(guarded_handler(informer.kind.name, handle))
    return informer
