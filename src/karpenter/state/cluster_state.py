"""The incremental cache: every watched event is folded in once, every snapshot only collects what is already summed up.

Objects are kept by reference (the informers' own), never copied. What events maintain:

* per node the sum of what its bound pods request, in all and for DaemonSets;
* the waiting pods, by class and look;
* how many pods of each look are on which node, and of those with required anti-affinity;
* the newest pod of every DaemonSet;
* volume claims, volumes and what they mean (`cluster.volumes`);
* one cached `NodeView` per machine, thrown away when one of its parts changes.

Machines are keyed by provider ID where there is one, so that a Node and its NodeClaim meet whichever comes first (SCH-072).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Namespace, Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from karpenter.model import labels, pods
from karpenter.model.freezes import Freeze
from karpenter.model.quantity import QuantityError
from karpenter.state.pod_counts import NamespacedLabels, NodeCounter, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.provider_ids import ProviderIdIndex
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod, PodGroup, PodKey, creation_order, pod_key
from karpenter.state.state_node import NO_NODE_USAGE, NodeUsage, StateNode, build_state_node
from karpenter.state.topology_terms import TopologyTerm
from karpenter.state.volume_index import VolumeIndex
from karpenter.state.workload_selectors import WorkloadSelectorIndex

#: Nominations of machines that are gone are forgotten once there are so many more of them than claims.
_MANY_NOMINATIONS = 1000

#: Told about an object that cannot be used: kind, ``namespace/name``, why.
InvalidObjectHandler = Callable[[str, str, str], None]


class _WatchedObject(Protocol):
    """What most objects are made of."""

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def spec(self) -> object: ...

    @property
    def status(self) -> object: ...


class ClusterState:
    """What is known of the cluster now. Not thread-safe: everything runs on one event loop."""

    def __init__(self, on_invalid_object: InvalidObjectHandler = lambda _kind, _name, _why: None) -> None:
        self._on_invalid_object = on_invalid_object
        self._signatures = PodSignatureCache()
        self._pods: dict[PodKey, Pod] = {}
        self._signature_by_pod: dict[PodKey, PodSignature] = {}
        self._pending: dict[tuple[PodSignature, NamespacedLabels], dict[PodKey, Pod]] = {}
        self._bound: dict[str, dict[PodKey, Pod]] = {}
        self._usage: dict[str, NodeUsage] = {}
        self._pod_counts: NodeCounter[NamespacedLabels] = NodeCounter()
        self._anti_affinity_counts: NodeCounter[tuple[TopologyTerm, ...]] = NodeCounter()
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._nodes: dict[str, Node] = {}
        self._claims: dict[str, NodeClaim] = {}
        self._node_names_by_provider_id = ProviderIdIndex()
        self._claim_names_by_provider_id = ProviderIdIndex()
        self._state_nodes: dict[str, StateNode] = {}
        self._pools: dict[str, NodePool] = {}
        self._daemon_sets: dict[PodKey, DaemonSet] = {}
        self._daemon_pods: dict[PodKey, dict[PodKey, Pod]] = {}
        self._daemonset_pod_keys: set[PodKey] = set()
        self._pdbs: dict[PodKey, PodDisruptionBudget] = {}
        self._attachments: dict[str, VolumeAttachment] = {}
        self._attachments_by_node: dict[str, set[str]] = {}
        self._volumes = VolumeIndex()
        #: Who serves and owns pods; told by whoever watches that.
        self.workload_selectors = WorkloadSelectorIndex()
        #: The freeze over the whole cluster, whether it is on or over; told by whoever watches that.
        self.freeze: Freeze | None = None
        self._marked_for_deletion: set[str] = set()
        self._disruption_pending: set[str] = set()
        #: Moves on with everything that may change what is decided about machines that exist; what does not matter leaves it.
        self.revision = 0
        self._nominated_until: dict[str, datetime] = {}
        #: Pod uid to the key of the view the latest pass placed it on.
        self.planned_nodes: dict[str, str] = {}

    # -- events -----------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> None:
        """A pod appeared or changed."""
        key = pod_key(pod)
        self._count_change(self._pods.get(key), pod)
        self._forget_pod(key)
        try:
            pod_class = self._signatures.signature_of(pod)
        except (QuantityError, ValueError) as error:
            self._on_invalid_object("Pod", "/".join(key), str(error))
            pod_class = self._signatures.unparseable
        self._pods[key] = pod
        self._signature_by_pod[key] = pod_class
        for daemon_set in _daemon_sets_of(pod):
            self._daemon_pods.setdefault(daemon_set, {})[key] = pod
            self._daemonset_pod_keys.add(key)
        if not pods.is_finished(pod):
            self._volumes.set_pod(key, pod)
        if pod.spec.node_name and not pods.is_finished(pod):
            self._bound.setdefault(pod.spec.node_name, {})[key] = pod
            self._invalidate_usage(pod.spec.node_name)
            self._count(pod, pod_class, 1)
        elif pods.is_provisionable(pod) and pod_class is not self._signatures.unparseable:
            self._pending.setdefault((pod_class, namespaced_labels(pod)), {})[key] = pod

    def _count(self, pod: Pod, pod_class: PodSignature, number: int) -> None:
        if counts_for_topology(pod):
            self._pod_counts.add(namespaced_labels(pod), pod.spec.node_name, number)
        repelling = pod_class.topology_terms.required_anti_affinity if pod.spec.affinity is not None else ()
        if repelling:
            self._anti_affinity_counts.add(repelling, pod.spec.node_name, number)

    def remove_pod(self, key: PodKey) -> None:
        """A pod is gone."""
        self.revision += 1
        self._forget_pod(key)

    def _forget_pod(self, key: PodKey) -> None:
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        pod_class = self._signature_by_pod.pop(key)
        self._volumes.drop_pod(key, pod)
        if not pod.spec.node_name:
            self._remove_pending(pod_class, pod)
        bound = self._bound.get(pod.spec.node_name)
        if bound is not None and bound.pop(key, None) is not None:
            self._invalidate_usage(pod.spec.node_name)
            self._count(pod, pod_class, -1)
            if not bound:
                del self._bound[pod.spec.node_name]
        for daemon_set in _daemon_sets_of(pod):
            self._daemonset_pod_keys.discard(key)
            siblings = self._daemon_pods[daemon_set]
            del siblings[key]
            if not siblings:
                del self._daemon_pods[daemon_set]

    def _remove_pending(self, pod_class: PodSignature, pod: Pod) -> None:
        group = (pod_class, namespaced_labels(pod))
        waiting = self._pending.get(group)
        if waiting is not None:
            waiting.pop(pod_key(pod), None)
            if not waiting:
                del self._pending[group]

    def set_node(self, node: Node) -> None:
        """A Node appeared or changed."""
        name = node.metadata.name
        self._count_change(self._nodes.get(name), node)
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
        """A NodeClaim appeared or changed; its creator calls this too, so that the next pass sees it (SCH-073)."""
        name = claim.metadata.name
        self._count_change(self._claims.get(name), claim)
        self._forget_claim(name)
        self._claims[name] = claim
        self._claim_names_by_provider_id.add(claim.status.provider_id, name)
        self._invalidate_claim(claim)

    def remove_claim(self, name: str) -> None:
        """A NodeClaim is gone, and with it every mark on it."""
        self.revision += 1
        self._forget_claim(name)
        self._marked_for_deletion.discard(name)
        self._disruption_pending.discard(name)
        self._nominated_until.pop(name, None)

    def _forget_claim(self, name: str) -> None:
        old = self._claims.pop(name, None)
        if old is not None:
            self._claim_names_by_provider_id.discard(old.status.provider_id, name)
            self._invalidate_claim(old)

    def set_pool(self, pool: NodePool) -> None:
        """A NodePool appeared or changed."""
        self._count_change(self._pools.get(pool.metadata.name), pool)
        self._pools[pool.metadata.name] = pool

    def remove_pool(self, name: str) -> None:
        """A NodePool is gone."""
        self.revision += 1
        self._pools.pop(name, None)

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
        """A DaemonSet is gone. Its pods may outlive it, or be taken over by another of its name."""
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

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace appeared or changed. They are few and change rarely: snapshots share the mapping, so each change
        copies it.
        """
        self.revision += 1
        name = namespace.metadata.name
        own = {labels.NAMESPACE_NAME: name, **namespace.metadata.labels}
        self._namespaces = {**self._namespaces, name: own}

    def remove_namespace(self, name: str) -> None:
        """A namespace is gone."""
        self.revision += 1
        self._namespaces = {known: own for known, own in self._namespaces.items() if known != name}

    def set_attachment(self, attachment: VolumeAttachment) -> None:
        """A VolumeAttachment appeared or changed."""
        name = attachment.metadata.name
        self.remove_attachment(name)
        self._attachments[name] = attachment
        self._attachments_by_node.setdefault(attachment.spec.node_name, set()).add(name)

    def remove_attachment(self, name: str) -> None:
        """A VolumeAttachment is gone."""
        old = self._attachments.pop(name, None)
        if old is None:
            return
        names = self._attachments_by_node[old.spec.node_name]
        names.discard(name)
        if not names:
            del self._attachments_by_node[old.spec.node_name]

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

    def _count_change(self, old: _WatchedObject | None, new: _WatchedObject) -> None:
        """An object was delivered. Versions alone are no news: kubelets and controllers write often what was there already."""
        if old is None or (old.spec, old.status) != (new.spec, new.status):
            self.revision += 1
            return
        version = old.metadata.resource_version
        if msgspec.structs.replace(new.metadata, resource_version=version) != old.metadata:
            self.revision += 1

    # -- marks our own actions leave --------------------------------------------------------------------------------

    def mark_disruption_pending(self, claim_name: str) -> None:
        """A disruption wants the machine, which gives capacity until it is marked; of a static pool it is one too few from now on
        (DIS-302).
        """
        self._disruption_pending.add(claim_name)

    def mark_for_deletion(self, claim_name: str) -> None:
        """A disruption has chosen the machine: it gives no capacity any more (OPS-113)."""
        self._marked_for_deletion.add(claim_name)
        self.revision += 1
        self._invalidate_claim_name(claim_name)

    def unmark_for_deletion(self, claim_name: str) -> None:
        """The disruption was called off."""
        self._disruption_pending.discard(claim_name)
        self._marked_for_deletion.discard(claim_name)
        self.revision += 1
        self._invalidate_claim_name(claim_name)

    def is_disruption_pending(self, claim_name: str) -> bool:
        """Whether a disruption wants the machine, or has marked it already."""
        return claim_name in self._disruption_pending or claim_name in self._marked_for_deletion

    def nominate(self, claim_name: str, until: datetime) -> None:
        """Pods are expected on the machine until then; it is not disrupted before (SCH-640)."""
        self._nominated_until[claim_name] = max(until, self._nominated_until.get(claim_name, until))
        if len(self._nominated_until) > _MANY_NOMINATIONS + len(self._claims):
            living = self._claims.keys() | self._nodes.keys()
            self._nominated_until = {key: at for key, at in self._nominated_until.items() if key in living}

    def is_nominated(self, claim_name: str, now: datetime) -> bool:
        """Whether pods are still expected on the machine."""
        return self._nominated_until.get(claim_name, now) > now

    def nominated_nodes(self, now: datetime) -> frozenset[str]:
        """Keys of all nodes that pods are still expected on."""
        return frozenset(key for key, until in self._nominated_until.items() if until > now)

    def next_nomination_end(self, now: datetime) -> datetime | None:
        """When the next machine is free of nominations again; None where none is nominated."""
        return min((until for until in self._nominated_until.values() if until > now), default=None)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def pod(self, key: PodKey) -> Pod | None:
        """A pod by namespace and name."""
        return self._pods.get(key)

    def pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Bound, unfinished pods of a node."""
        return tuple(self._bound.get(node_name, {}).values())

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims, by name."""
        return tuple(self._claims[name] for name in sorted(self._claims))

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
        return tuple(self._attachments[name] for name in sorted(self._attachments_by_node.get(node_name, ())))

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
        """Pods waiting for a machine."""
        for group in self._pending.values():
            yield from group.values()

    # -- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> ClusterSnapshot:
        """The current state, immutable. Costs the number of machines and waiting pods, plus rebuilding what changed."""
        return ClusterSnapshot(
            pod_groups=tuple(self._pod_groups()),
            nodes=self.state_nodes(),
            pools=self.pools(),
            daemonset_pods=self.daemonset_pods(),
            pdbs=self.pdbs(),
            pod_counts=self._pod_counts.snapshot(),
            anti_affinity_counts=self._anti_affinity_counts.snapshot(),
            namespaces=self._namespaces,
            planned_nodes=dict(self.planned_nodes),
            volumes=self._volumes.snapshot(),
            workload_selectors=self.workload_selectors.snapshot(),
            freeze=self.freeze,
        )

    def _pod_groups(self) -> Iterable[PodGroup]:
        for (pod_class, face), waiting in sorted(self._pending.items(), key=_group_order):
            yield PodGroup(pod_class, face, tuple(sorted(waiting.values(), key=creation_order)))

    def state_nodes(self) -> tuple[StateNode, ...]:
        """One view per machine, by name."""
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
        return tuple(item for _, item in sorted(self._state_nodes.items(), key=lambda entry: (entry[1].name, entry[0])))

    def state_node_of(self, claim: NodeClaim) -> StateNode | None:
        """The view of one machine that has been launched; None where its Node or claim cannot be read."""
        key = claim.status.provider_id
        if key not in self._state_nodes:
            self._build_state_node(
                key,
                self._nodes.get(self._node_names_by_provider_id.first(key)),
                self.claim_by_provider_id(key) or claim,
            )
        return self._state_nodes.get(key)

    @staticmethod
    def _awaits_node_claim(node: Node) -> bool:
        """A managed Node that cannot be told from a foreign one yet is left out for now (SCH-072)."""
        found = node.metadata.labels
        if labels.NODE_POOL not in found:
            return False
        return not node.spec.provider_id or (labels.INSTANCE_TYPE not in found and labels.INITIALIZED not in found)

    def _build_state_node(self, key: str, node: Node | None, claim: NodeClaim | None) -> None:
        marked = claim is not None and claim.metadata.name in self._marked_for_deletion
        usage = self._usage_of(node.metadata.name) if node is not None else NO_NODE_USAGE
        try:
            self._state_nodes[key] = build_state_node(node, claim, usage, marked=marked)
        except QuantityError as error:
            broken = claim.metadata.name if claim else node.metadata.name if node else key
            self._on_invalid_object("NodeClaim" if claim else "Node", broken, str(error))

    def _usage_of(self, node_name: str) -> NodeUsage:
        known = self._usage.get(node_name)
        if known is None:
            bound = self._bound.get(node_name, {})
            keys = sorted(bound)
            known = self._usage[node_name] = NodeUsage(
                pod_requests=self._total_requests(keys),
                daemonset_requests=self._total_requests([key for key in keys if key in self._daemonset_pod_keys]),
                pods=tuple([bound[key] for key in keys]),
            )
        return known

    def _total_requests(self, keys: Iterable[PodKey]) -> dict[str, int]:
        """What these pods request together: replicas are many, classes few."""
        total: dict[str, int] = {}
        for pod_class, count in Counter([self._signature_by_pod[key] for key in keys]).items():
            for name, amount in pod_class.requests.items():
                total[name] = total.get(name, 0) + amount * count
        return total

    def daemonset_pods(self) -> tuple[DaemonSetPod, ...]:
        """One representative pod per DaemonSet (SCH-210), by name."""
        return tuple(self._daemonset_pod(key, self._daemon_sets[key]) for key in sorted(self._daemon_sets))

    def _daemonset_pod(self, key: PodKey, daemon_set: DaemonSet) -> DaemonSetPod:
        template = daemon_set.spec.template.spec
        running = self._daemon_pods.get(key)
        if not running:
            return DaemonSetPod("/".join(key), template, pods.template_requests(template))
        newest = max(running.values(), key=creation_order)
        # The DaemonSet controller pins a running pod to its host; what the next node must offer is in the template.
        spec = msgspec.structs.replace(newest.spec, affinity=template.affinity)
        return DaemonSetPod("/".join(key), spec, self._signature_by_pod[pod_key(newest)].requests)

    # -- invalidation -------------------------------------------------------------------------------------------------

    def _invalidate_usage(self, node_name: str) -> None:
        self._usage.pop(node_name, None)
        node = self._nodes.get(node_name)
        if node is not None:
            self._state_nodes.pop(node.spec.provider_id or f"node/{node_name}", None)

    def _invalidate_node(self, node: Node) -> None:
        self._state_nodes.pop(node.spec.provider_id or f"node/{node.metadata.name}", None)

    def _invalidate_claim(self, claim: NodeClaim) -> None:
        self._state_nodes.pop(claim.status.provider_id or f"claim/{claim.metadata.name}", None)

    def _invalidate_claim_name(self, name: str) -> None:
        claim = self._claims.get(name)
        if claim is not None:
            self._invalidate_claim(claim)


def _group_order(
    item: tuple[tuple[PodSignature, NamespacedLabels], object],
) -> tuple[bytes, str, list[tuple[str, str]]]:
    """Groups in an order that no history of events changes."""
    (pod_class, face), _ = item
    return (pod_class.key, face.namespace, sorted(face.labels.items()))


def _daemon_sets_of(pod: Pod) -> set[PodKey]:
    return {
        (pod.metadata.namespace, owner.name)
        for owner in pod.metadata.owner_references
        if owner.kind == "DaemonSet" and owner.api_version == "apps/v1"
    }
