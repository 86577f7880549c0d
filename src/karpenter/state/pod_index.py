"""The pod index of the cluster state: pending pods by group, bound pods by node, and what both add up to.

Every pod event updates a few dictionaries, so that a snapshot neither lists nor parses pods: pending pods are kept in groups that
scheduling cannot tell apart, bound pods are counted by namespaced labels and node for topology, and the usage of a node is summed
once after its pods changed, per pod signature instead of per pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Pod
from karpenter.model import pods
from karpenter.model.quantity import QuantityError
from karpenter.state.gang_index import GangIndex
from karpenter.state.pod_counts import NamespacedLabels, NodeCounter, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import DaemonSetPod, PodGroup, PodKey, creation_order, pod_key
from karpenter.state.state_node import NodeUsage
from karpenter.state.topology_terms import TopologyTerm
from karpenter.state.untried_pods import PodGroupKey, UntriedPods

#: Called with an object that cannot be used: kind, ``namespace/name``, reason.
InvalidObjectHandler = Callable[[str, str, str], None]


class PodIndex:
    """All pods of the cluster. ``set_pod`` and ``remove_pod`` return the names of nodes whose usage changed."""

    def __init__(self, on_invalid_object: InvalidObjectHandler, gangs: GangIndex, untried: UntriedPods) -> None:
        self._on_invalid_object = on_invalid_object
        self._gangs = gangs
        self._untried = untried
        self._signatures = PodSignatureCache()
        self._pods: dict[PodKey, Pod] = {}
        self._signature_by_pod: dict[PodKey, PodSignature] = {}
        self._pending: dict[PodGroupKey, dict[PodKey, Pod]] = {}
        self._bound: dict[str, dict[PodKey, Pod]] = {}
        self._usage: dict[str, NodeUsage] = {}
        self._daemon_pods: dict[PodKey, dict[PodKey, Pod]] = {}
        self._daemonset_pod_keys: set[PodKey] = set()
        #: Bound pods by namespaced labels and node.
        self.pod_counts: NodeCounter[NamespacedLabels] = NodeCounter()
        #: Bound pods with required anti-affinity, by their terms and node.
        self.anti_affinity_counts: NodeCounter[tuple[TopologyTerm, ...]] = NodeCounter()

    def set_pod(self, pod: Pod) -> set[str]:
        """Add or replace a pod."""
        key = pod_key(pod)
        changed_nodes = self._remove(key)
        signature = self._signature_of(key, pod)
        self._pods[key] = pod
        self._signature_by_pod[key] = signature
        self._gangs.set_pod(key, pod)
        for daemon_set in _daemon_sets_of(pod):
            self._daemon_pods.setdefault(daemon_set, {})[key] = pod
            self._daemonset_pod_keys.add(key)
        if pod.spec.node_name and not pods.is_finished(pod):
            self._bound.setdefault(pod.spec.node_name, {})[key] = pod
            self._usage.pop(pod.spec.node_name, None)
            changed_nodes.add(pod.spec.node_name)
            self._count(pod, signature, 1)
        is_plannable = not pod.spec.node_name and signature is not self._signatures.unparseable
        group = (signature, namespaced_labels(pod)) if is_plannable else None
        self._untried.set_pod(group, pod)
        if group is not None and pods.is_provisionable(pod):
            self._pending.setdefault(group, {})[key] = pod
        return changed_nodes

    def _signature_of(self, key: PodKey, pod: Pod) -> PodSignature:
        try:
            return self._signatures.signature_of(pod)
        except (QuantityError, ValueError) as error:
            self._on_invalid_object("Pod", "/".join(key), str(error))
            return self._signatures.unparseable

    def _count(self, pod: Pod, signature: PodSignature, number: int) -> None:
        if counts_for_topology(pod):
            self.pod_counts.add(namespaced_labels(pod), pod.spec.node_name, number)
        anti_affinity = signature.topology_terms.required_anti_affinity if pod.spec.affinity is not None else ()
        if anti_affinity:
            self.anti_affinity_counts.add(anti_affinity, pod.spec.node_name, number)

    def remove_pod(self, key: PodKey) -> set[str]:
        """Remove a pod, if it is there."""
        self._untried.remove_pod(key)
        return self._remove(key)

    def _remove(self, key: PodKey) -> set[str]:
        pod = self._pods.pop(key, None)
        if pod is None:
            return set()
        signature = self._signature_by_pod.pop(key)
        self._gangs.remove_pod(key)
        node_name = pod.spec.node_name
        changed_nodes: set[str] = set()
        if not node_name:
            self._remove_pending(signature, pod)
        bound = self._bound.get(node_name)
        if bound is not None and bound.pop(key, None) is not None:
            self._usage.pop(node_name, None)
            changed_nodes.add(node_name)
            self._count(pod, signature, -1)
            if not bound:
                del self._bound[node_name]
        self._remove_from_daemon_sets(key, pod)
        return changed_nodes

    def _remove_pending(self, signature: PodSignature, pod: Pod) -> None:
        group = (signature, namespaced_labels(pod))
        pending = self._pending.get(group)
        if pending is not None:
            pending.pop(pod_key(pod), None)
            if not pending:
                del self._pending[group]

    def _remove_from_daemon_sets(self, key: PodKey, pod: Pod) -> None:
        for daemon_set in _daemon_sets_of(pod):
            self._daemonset_pod_keys.discard(key)
            siblings = self._daemon_pods[daemon_set]
            del siblings[key]
            if not siblings:
                del self._daemon_pods[daemon_set]

    def get(self, key: PodKey) -> Pod | None:
        """A pod by namespace and name."""
        return self._pods.get(key)

    def pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Bound, unfinished pods of a node."""
        return tuple(self._bound.get(node_name, {}).values())

    def pending_pods(self) -> Iterator[Pod]:
        """Pods that wait for a node, untried siblings included."""
        for group in self._pending.values():
            yield from group.values()
        for _, pod in self._untried.pending():
            yield pod

    def pod_groups(self) -> Iterator[PodGroup]:
        """Pending pods by group, in an order that does not depend on the order of events.

        With them untried siblings, and pods that wait for the others of their gang.
        """
        for (signature, group_labels), pending in sorted(self._with_unmarked_pods().items(), key=_group_order):
            yield PodGroup(signature, group_labels, tuple(sorted(pending.values(), key=creation_order)))

    def _with_unmarked_pods(self) -> Mapping[PodGroupKey, Mapping[PodKey, Pod]]:
        together: dict[PodGroupKey, dict[PodKey, Pod]] = dict(self._pending)
        added: dict[PodGroupKey, dict[PodKey, Pod]] = {}
        for group, pod in self._untried.pending():
            added.setdefault(group, {})[pod_key(pod)] = pod
        for pod in self._gangs.members_not_marked():
            key = pod_key(pod)
            group = (self._signature_by_pod[key], namespaced_labels(pod))
            if group[0] is not self._signatures.unparseable:
                added.setdefault(group, {})[key] = pod
        for group, more in added.items():
            together[group] = {**together.get(group, {}), **more}
        return together

    def usage_of(self, node_name: str) -> NodeUsage:
        """What the bound, unfinished pods of a node request; cached until one of them changes."""
        usage = self._usage.get(node_name)
        if usage is None:
            bound = self._bound.get(node_name, {})
            keys = sorted(bound)
            usage = self._usage[node_name] = NodeUsage(
                pod_requests=self._total_requests(keys),
                daemonset_requests=self._total_requests([key for key in keys if key in self._daemonset_pod_keys]),
                pods=tuple([bound[key] for key in keys]),
            )
        return usage

    def _total_requests(self, keys: Iterable[PodKey]) -> dict[str, int]:
        """Sum of the pods' requests. A node has a dozen pods of as many signatures: counting them first takes longer."""
        total: dict[str, int] = {}
        for key in keys:
            for name, amount in self._signature_by_pod[key].requests.items():
                total[name] = total.get(name, 0) + amount
        return total

    def daemonset_pod(self, key: PodKey, daemon_set: DaemonSet) -> DaemonSetPod:
        """The representative pod of a DaemonSet: its newest pod, or its template if it has none (SCH-210)."""
        template = daemon_set.spec.template.spec
        running = self._daemon_pods.get(key)
        if not running:
            return DaemonSetPod("/".join(key), template, pods.template_requests(template))
        newest = max(running.values(), key=creation_order)
        # The DaemonSet controller pins a running pod to its node; the affinity for other nodes is in the template.
        spec = msgspec.structs.replace(newest.spec, affinity=template.affinity)
        return DaemonSetPod("/".join(key), spec, self._signature_by_pod[pod_key(newest)].requests)


def _group_order(entry: tuple[PodGroupKey, object]) -> tuple[bytes, str, list[tuple[str, str]]]:
    (signature, group_labels), _ = entry
    return (signature.key, group_labels.namespace, sorted(group_labels.labels.items()))


def _daemon_sets_of(pod: Pod) -> Collection[PodKey]:
    owners = pod.metadata.owner_references
    if not owners:
        return ()
    return {
        (pod.metadata.namespace, owner.name)
        for owner in owners
        if owner.kind == "DaemonSet" and owner.api_version == "apps/v1"
    }
