"""The cluster state: folds watch events into indexes, so that a snapshot costs what changed and not what exists.

Objects are kept by reference (the informers' own), never copied. ``ClusterState`` composes four indexes and builds state nodes:

* ``PodIndex``: pending pods by group, bound pods by node, counts for topology, usage per node, DaemonSet pods;
* ``VolumeIndex``: volume claims, volumes, storage classes, attach limits and VolumeAttachments;
* ``WorkloadSelectorIndex``: selectors of Services and owners;
* ``ProviderIdIndex``: names of Nodes and NodeClaims by provider ID, so that both meet whichever comes first (SCH-072);
* and ``DisruptionMarks``: nominations and marks of our own actions.

One ``StateNode`` per instance is cached and dropped when one of its parts changes. The alternative, rebuilding everything for
each snapshot, would cost O(pods) in every pass. Here an event costs O(1), and a snapshot O(nodes + pending pods) plus rebuilding
the state nodes that changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from karpenter.api.apps import DaemonSet, RolloutWorkload
from karpenter.api.core import Namespace, Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from karpenter.model import labels, pods, taints
from karpenter.model.freezes import Freeze
from karpenter.model.object_changes import WatchedObject, is_rewritten
from karpenter.model.pool_sleep import PoolSleep
from karpenter.model.quantity import QuantityError
from karpenter.state.device_index import DeviceIndex
from karpenter.state.disruption_marks import DisruptionMarks
from karpenter.state.gang_index import GangIndex
from karpenter.state.pod_index import InvalidObjectHandler, PodIndex
from karpenter.state.provider_ids import ProviderIdIndex
from karpenter.state.rollout_controls import DEFAULT_ROLLOUT_CONTROL, RolloutControl, WorkloadKey, rollout_control
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod, PodKey, pod_key
from karpenter.state.state_node import NO_NODE_USAGE, StateNode, build_state_node
from karpenter.state.untried_pods import UntriedPods
from karpenter.state.volume_index import VolumeIndex
from karpenter.state.workload_selectors import WorkloadSelectorIndex


class ClusterState:
    """The current state of the cluster. Not thread-safe: everything runs on one event loop."""

    def __init__(self, on_invalid_object: InvalidObjectHandler = lambda _kind, _name, _why: None) -> None:
        self._on_invalid_object = on_invalid_object
        self._volumes = VolumeIndex()
        #: The gangs; their watch handlers update it.
        self.gangs = GangIndex(self._count_watched_change)
        #: Which pods count as pending before the scheduler has tried them.
        self.untried_pods = UntriedPods()
        self._pods = PodIndex(on_invalid_object, self.gangs, self.untried_pods)
        self._marks = DisruptionMarks()
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._nodes: dict[str, Node] = {}
        self._claims: dict[str, NodeClaim] = {}
        self._node_names_by_provider_id = ProviderIdIndex()
        self._claim_names_by_provider_id = ProviderIdIndex()
        self._state_nodes: dict[str, StateNode] = {}
        #: What ``state_nodes`` and ``claims`` returned last; None once anything they read has changed.
        self._listed_state_nodes: tuple[StateNode, ...] | None = None
        self._listed_claims: tuple[NodeClaim, ...] | None = None
        self._pools: dict[str, NodePool] = {}
        self._daemon_sets: dict[PodKey, DaemonSet] = {}
        self._pdbs: dict[PodKey, PodDisruptionBudget] = {}
        self._rollout_controls: Mapping[WorkloadKey, RolloutControl] = {}
        #: Selectors of Services and owners, fed by their watchers.
        self.workload_selectors = WorkloadSelectorIndex()
        #: Device claims and what drivers publish, fed by their watchers.
        self.devices = DeviceIndex(self._count_watched_change)
        #: The freeze of the whole cluster, active or over, set by its watcher.
        self.freeze: Freeze | None = None
        self._sleeping_pools: Mapping[str, PoolSleep] = {}
        #: Incremented by every change that may affect decisions about existing nodes.
        self.revision = 0
        #: Pod uid to the key of the state node the latest scheduling pass placed it on.
        self.planned_nodes: dict[str, str] = {}

    # -- events -----------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> None:
        """A pod appeared or changed."""
        key = pod_key(pod)
        self._count_change(self._pods.get(key), pod)
        self._remove_pod_volumes(key)
        if not pods.is_finished(pod):
            self._volumes.set_pod(key, pod)
        self._invalidate_nodes(self._pods.set_pod(pod))

    def remove_pod(self, key: PodKey) -> None:
        """A pod is gone."""
        self.revision += 1
        self._remove_pod_volumes(key)
        self._invalidate_nodes(self._pods.remove_pod(key))

    def _remove_pod_volumes(self, key: PodKey) -> None:
        pod = self._pods.get(key)
        if pod is not None:
            self._volumes.drop_pod(key, pod)

    def set_node(self, node: Node) -> None:
        """A Node appeared or changed. A heartbeat, which changes nothing that is read, costs no new state node."""
        name = node.metadata.name
        old = self._nodes.get(name)
        if old is not None and is_rewritten(old, node):
            self._nodes[name] = node
            return
        self.revision += 1
        self._forget_node(name)
        self._nodes[name] = node
        self._node_names_by_provider_id.add(node.spec.provider_id, name)
        self._invalidate_node(node)

    def remove_node(self, name: str) -> None:
        """A Node is gone."""
        self.revision += 1
        self._forget_node(name)

    def _forget_node(self, name: str) -> None:
        old = self._nodes.pop(name, None)
        if old is not None:
            self._node_names_by_provider_id.discard(old.spec.provider_id, name)
            self._invalidate_node(old)

    def set_claim(self, claim: NodeClaim) -> None:
        """A NodeClaim appeared or changed. Its creator calls this as well, so that the next pass sees it (SCH-073)."""
        name = claim.metadata.name
        self._count_change(self._claims.get(name), claim)
        self._forget_claim(name)
        self._claims[name] = claim
        self._claim_names_by_provider_id.add(claim.status.provider_id, name)
        self._invalidate_claim(claim)

    def remove_claim(self, name: str) -> None:
        """A NodeClaim is gone; its marks are dropped."""
        self.revision += 1
        self._forget_claim(name)
        self._marks.forget(name)

    def _forget_claim(self, name: str) -> None:
        old = self._claims.pop(name, None)
        if old is not None:
            self._claim_names_by_provider_id.discard(old.status.provider_id, name)
            self._invalidate_claim(old)

    def set_pool(self, pool: NodePool) -> None:
        """A NodePool appeared or changed."""
        self._count_change(self._pools.get(pool.metadata.name), pool)
        self._pools[pool.metadata.name] = pool
        self._listed_state_nodes = None

    def remove_pool(self, name: str) -> None:
        """A NodePool is gone."""
        self.revision += 1
        self._pools.pop(name, None)
        self._listed_state_nodes = None

    def set_daemon_set(self, daemon_set: DaemonSet) -> None:
        """A DaemonSet appeared or changed."""
        key = (daemon_set.metadata.namespace, daemon_set.metadata.name)
        if self._daemon_sets.get(key) != daemon_set:
            self.revision += 1
        try:
            pods.template_requests(daemon_set.spec.template.spec)
        except QuantityError as error:
            self._daemon_sets.pop(key, None)
            self._on_invalid_object("DaemonSet", "/".join(key), str(error))
        else:
            self._daemon_sets[key] = daemon_set

    def remove_daemon_set(self, key: PodKey) -> None:
        """A DaemonSet is gone. Its pods may outlive it or be adopted by a new DaemonSet of that name."""
        self.revision += 1
        self._daemon_sets.pop(key, None)

    def set_pdb(self, budget: PodDisruptionBudget) -> None:
        """A PodDisruptionBudget appeared or changed."""
        key = (budget.metadata.namespace, budget.metadata.name)
        self._count_change(self._pdbs.get(key), budget)
        self._pdbs[key] = budget

    def remove_pdb(self, key: PodKey) -> None:
        """A PodDisruptionBudget is gone."""
        self.revision += 1
        self._pdbs.pop(key, None)

    def set_rollout(self, key: WorkloadKey, workload: RolloutWorkload | None) -> None:
        """A Deployment or StatefulSet appeared, changed or is gone. Snapshots share the mapping, which has few entries."""
        control = DEFAULT_ROLLOUT_CONTROL if workload is None else rollout_control(workload)
        if self._rollout_controls.get(key, DEFAULT_ROLLOUT_CONTROL) == control:
            return
        self.revision += 1
        others = {other: own for other, own in self._rollout_controls.items() if other != key}
        self._rollout_controls = others if control == DEFAULT_ROLLOUT_CONTROL else {**others, key: control}

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace appeared or changed. Snapshots share the mapping, so each change copies it: namespaces change rarely."""
        self.revision += 1
        name = namespace.metadata.name
        namespace_labels = {labels.NAMESPACE_NAME: name, **namespace.metadata.labels}
        self._namespaces = {**self._namespaces, name: namespace_labels}

    def remove_namespace(self, name: str) -> None:
        """A namespace is gone."""
        self.revision += 1
        self._namespaces = {key: value for key, value in self._namespaces.items() if key != name}

    def set_attachment(self, attachment: VolumeAttachment) -> None:
        """A VolumeAttachment appeared or changed."""
        self._volumes.set_attachment(attachment)

    def remove_attachment(self, name: str) -> None:
        """A VolumeAttachment is gone."""
        self._volumes.remove_attachment(name)

    def set_volume_claim(self, claim: PersistentVolumeClaim) -> None:
        """A PersistentVolumeClaim appeared or changed."""
        self.revision += 1
        self._volumes.set_claim(claim)

    def remove_volume_claim(self, key: PodKey) -> None:
        """A PersistentVolumeClaim is gone."""
        self.revision += 1
        self._volumes.remove_claim(key)

    def set_volume(self, volume: PersistentVolume) -> None:
        """A PersistentVolume appeared or changed."""
        self.revision += 1
        self._volumes.set_volume(volume)

    def remove_volume(self, name: str) -> None:
        """A PersistentVolume is gone."""
        self.revision += 1
        self._volumes.remove_volume(name)

    def set_storage_class(self, storage_class: StorageClass) -> None:
        """A StorageClass appeared or changed."""
        self.revision += 1
        self._volumes.set_class(storage_class)

    def remove_storage_class(self, name: str) -> None:
        """A StorageClass is gone."""
        self.revision += 1
        self._volumes.remove_class(name)

    def set_csi_node(self, csi_node: CSINode) -> None:
        """A CSINode appeared or changed."""
        self.revision += 1
        self._volumes.set_csi_node(csi_node)

    def remove_csi_node(self, name: str) -> None:
        """A CSINode is gone."""
        self.revision += 1
        self._volumes.remove_csi_node(name)

    def _count_change(self, old: WatchedObject | None, new: WatchedObject) -> None:
        """Increment the revision if the object changed by more than its version: many writes repeat what is stored."""
        if old is None or not is_rewritten(old, new):
            self.revision += 1

    def _count_watched_change(self) -> None:
        self.revision += 1

    # -- marks ------------------------------------------------------------------------------------------------------

    def mark_disruption_pending(self, claim_name: str) -> None:
        """A disruption command will remove the node, which offers capacity until then; a static pool no longer counts it
        (DIS-302).
        """
        self._marks.mark_disruption_pending(claim_name)

    def mark_for_deletion(self, claim_name: str) -> None:
        """A disruption command removes the node: it offers no capacity any more (OPS-113)."""
        self._marks.mark_for_deletion(claim_name)
        self.revision += 1
        self._invalidate_claim_name(claim_name)

    def unmark_for_deletion(self, claim_name: str) -> None:
        """The disruption command was cancelled."""
        self._marks.unmark(claim_name)
        self.revision += 1
        self._invalidate_claim_name(claim_name)

    def is_disruption_pending(self, claim_name: str) -> bool:
        """Whether a disruption command removes the node or will remove it."""
        return self._marks.is_disruption_pending(claim_name)

    def nominate(self, claim_name: str, until: datetime) -> None:
        """Pods are expected on the node until then; it is not disrupted before (SCH-640)."""
        self._marks.nominate(claim_name, until)
        if self._marks.has_stale_nominations(len(self._claims)):
            self._marks.prune_nominations(self._claims.keys() | self._nodes.keys())

    def is_nominated(self, claim_name: str, now: datetime) -> bool:
        """Whether pods are still expected on the node."""
        return self._marks.is_nominated(claim_name, now)

    def nominated_nodes(self, now: datetime) -> frozenset[str]:
        """Keys of all nodes that pods are still expected on."""
        return self._marks.nominated_nodes(now)

    def next_nomination_end(self, now: datetime) -> datetime | None:
        """When the next nomination ends; None if there is none."""
        return self._marks.next_nomination_end(now)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def pod(self, key: PodKey) -> Pod | None:
        """A pod by namespace and name."""
        return self._pods.get(key)

    def pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Bound, unfinished pods of a node."""
        return self._pods.pods_on(node_name)

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims, by name; the identical tuple until one changes."""
        if self._listed_claims is None:
            self._listed_claims = tuple(self._claims[name] for name in sorted(self._claims))
        return self._listed_claims

    def claim(self, name: str) -> NodeClaim | None:
        """A NodeClaim by name."""
        return self._claims.get(name)

    def claim_by_provider_id(self, provider_id: str) -> NodeClaim | None:
        """The NodeClaim of an instance."""
        return self._claims.get(self._claim_names_by_provider_id.first(provider_id))

    def claims_by_provider_id(self, provider_id: str) -> tuple[NodeClaim, ...]:
        """NodeClaims with this provider ID: normally one."""
        return tuple(self._claims[name] for name in self._claim_names_by_provider_id.names_of(provider_id))

    def node(self, name: str) -> Node | None:
        """A Node by name."""
        return self._nodes.get(name)

    def nodes_by_provider_id(self, provider_id: str) -> tuple[Node, ...]:
        """Nodes with this provider ID: normally one."""
        return tuple(self._nodes[name] for name in self._node_names_by_provider_id.names_of(provider_id))

    def pools(self) -> tuple[NodePool, ...]:
        """All NodePools, by name."""
        return tuple(self._pools[name] for name in sorted(self._pools))

    def pool(self, name: str) -> NodePool | None:
        """A NodePool by name."""
        return self._pools.get(name)

    def pdbs(self) -> tuple[PodDisruptionBudget, ...]:
        """All PodDisruptionBudgets, by namespace and name."""
        return tuple(self._pdbs[key] for key in sorted(self._pdbs))

    def attachments_on(self, node_name: str) -> tuple[VolumeAttachment, ...]:
        """The volumes attached to a node, by name of the attachment."""
        return self._volumes.attachments_on(node_name)

    def volume_claim(self, key: PodKey) -> PersistentVolumeClaim | None:
        """A PersistentVolumeClaim by namespace and name."""
        return self._volumes.claim(key)

    def volume(self, name: str) -> PersistentVolume | None:
        """A PersistentVolume by name."""
        return self._volumes.volume(name)

    def users_of_volume_claim(self, key: PodKey) -> tuple[Pod, ...]:
        """Unfinished pods that name a PersistentVolumeClaim."""
        return self._volumes.users(key)

    def pending_pods(self) -> Iterator[Pod]:
        """Pods that wait for a node."""
        return self._pods.pending_pods()

    # -- sleep --------------------------------------------------------------------------------------------------------

    @property
    def sleeping_pools(self) -> Mapping[str, PoolSleep]:
        """The NodePools that sleep now, by name."""
        return self._sleeping_pools

    def set_sleeping_pools(self, sleeping: Mapping[str, PoolSleep]) -> bool:
        """Set which NodePools sleep; returns whether that changed."""
        is_news = dict(sleeping) != dict(self._sleeping_pools)
        if is_news:
            self._sleeping_pools = dict(sleeping)
            self.revision += 1
        return is_news

    # -- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> ClusterSnapshot:
        """The current state, immutable. Costs O(nodes + pending pods), plus rebuilding the state nodes that changed."""
        return ClusterSnapshot(
            pod_groups=tuple(self._pods.pod_groups()),
            nodes=self.state_nodes(),
            pools=self.pools(),
            daemonset_pods=self.daemonset_pods(),
            pdbs=self.pdbs(),
            pod_counts=self._pods.pod_counts.snapshot(),
            anti_affinity_counts=self._pods.anti_affinity_counts.snapshot(),
            namespaces=self._namespaces,
            planned_nodes=dict(self.planned_nodes),
            volumes=self._volumes.snapshot(),
            workload_selectors=self.workload_selectors.snapshot(),
            rollout_controls=self._rollout_controls,
            freeze=self.freeze,
            sleeping_pools=self._sleeping_pools,
            devices=self.devices.snapshot(self._nodes),
            gangs=self.gangs.snapshot(),
            indispensable_gangs=self.gangs.indispensable_gangs(),
        )

    def state_nodes(self) -> tuple[StateNode, ...]:
        """One state node per instance, by name, without claims in flight of unknown pools; the same tuple until one changes."""
        if self._listed_state_nodes is None:
            self._listed_state_nodes = self._list_state_nodes()
        return self._listed_state_nodes

    def _list_state_nodes(self) -> tuple[StateNode, ...]:
        for name, claim in self._claims.items():
            provider_id = claim.status.provider_id
            key = provider_id or f"claim/{name}"
            if key not in self._state_nodes:
                node = self._nodes.get(self._node_names_by_provider_id.first(provider_id))
                self._build_state_node(key, node, self.claim_by_provider_id(provider_id) or claim)
        for name, node in self._nodes.items():
            provider_id = node.spec.provider_id
            key = provider_id or f"node/{name}"
            first = self._nodes[self._node_names_by_provider_id.first(provider_id) or name]
            if key not in self._state_nodes and not self._awaits_node_claim(first):
                self._build_state_node(key, first, self.claim_by_provider_id(provider_id))
        counted = (entry for entry in self._state_nodes.items() if not self._is_of_unknown_pool(entry[1]))
        by_name = sorted(counted, key=lambda entry: (entry[1].name, entry[0]))
        return tuple(state_node for _, state_node in by_name)

    def _is_of_unknown_pool(self, state_node: StateNode) -> bool:
        """Whether it is a NodeClaim without Node of a NodePool that does not exist: it is no capacity and counts nowhere.

        A node of such a pool runs pods, so it counts until it is gone.
        """
        return state_node.node is None and bool(state_node.pool) and state_node.pool not in self._pools

    def state_node_of(self, claim: NodeClaim) -> StateNode | None:
        """The state node of a launched claim; None if its Node or claim cannot be parsed."""
        key = claim.status.provider_id
        if key not in self._state_nodes:
            node = self._nodes.get(self._node_names_by_provider_id.first(key))
            self._build_state_node(key, node, self.claim_by_provider_id(key) or claim)
        return self._state_nodes.get(key)

    @staticmethod
    def _awaits_node_claim(node: Node) -> bool:
        """Whether a managed Node without claim is still incomplete; it is left out until its claim is observed (SCH-072).

        A Node with the unregistered taint belongs to a claim, also while the watch has not yet delivered the claim's provider ID.
        """
        if any(taints.is_same_taint(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints):
            return True
        node_labels = node.metadata.labels
        if labels.NODE_POOL not in node_labels:
            return False
        is_unlabelled = labels.INSTANCE_TYPE not in node_labels and labels.INITIALIZED not in node_labels
        return not node.spec.provider_id or is_unlabelled

    def _build_state_node(self, key: str, node: Node | None, claim: NodeClaim | None) -> None:
        marked = claim is not None and self._marks.is_marked_for_deletion(claim.metadata.name)
        usage = self._pods.usage_of(node.metadata.name) if node is not None else NO_NODE_USAGE
        self._listed_state_nodes = None
        try:
            self._state_nodes[key] = build_state_node(node, claim, usage, marked=marked)
        except QuantityError as error:
            invalid = claim.metadata.name if claim else node.metadata.name if node else key
            self._on_invalid_object("NodeClaim" if claim else "Node", invalid, str(error))

    def daemonset_pods(self) -> tuple[DaemonSetPod, ...]:
        """One representative pod per DaemonSet (SCH-210), by name."""
        return tuple(self._pods.daemonset_pod(key, self._daemon_sets[key]) for key in sorted(self._daemon_sets))

    # -- invalidation -------------------------------------------------------------------------------------------------

    def _invalidate_nodes(self, names: set[str]) -> None:
        for name in names & self._nodes.keys():
            self._invalidate_node(self._nodes[name])

    def _invalidate_node(self, node: Node) -> None:
        self._drop_state_node(node.spec.provider_id or f"node/{node.metadata.name}")

    def _invalidate_claim(self, claim: NodeClaim) -> None:
        self._listed_claims = None
        self._drop_state_node(claim.status.provider_id or f"claim/{claim.metadata.name}")

    def _drop_state_node(self, key: str) -> None:
        self._state_nodes.pop(key, None)
        self._listed_state_nodes = None

    def _invalidate_claim_name(self, name: str) -> None:
        if name in self._claims:
            self._invalidate_claim(self._claims[name])
