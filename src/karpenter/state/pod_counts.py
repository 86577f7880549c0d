"""Pods as label selectors see them (namespace and labels), and their number per node.

Spread constraints and affinity terms need only how many matching pods a domain has. So bound pods are counted by namespaced
labels and node as events arrive, and a decision adds a few counts instead of listing the cluster's pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from karpenter.api.core import Pod
from karpenter.model import pods

_Counted = TypeVar("_Counted", bound=Hashable)

#: Counts by node name.
CountsByNode = Mapping[str, int]


class NamespacedLabels:
    """A namespace with the labels of a pod in it. Equal values match the same selectors."""

    __slots__ = ("__weakref__", "_hash", "labels", "namespace")

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self._hash = hash((namespace, frozenset(labels.items())))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, NamespacedLabels) and self.namespace == other.namespace and self.labels == other.labels

    def __repr__(self) -> str:
        return f"NamespacedLabels({self.namespace!r}, {dict(self.labels)!r})"


def namespaced_labels(pod: Pod) -> NamespacedLabels:
    """Namespace and labels of the pod."""
    return NamespacedLabels(pod.metadata.namespace, pod.metadata.labels)


def counts_for_topology(pod: Pod) -> bool:
    """Whether the pod counts for topology: bound, and neither finished nor being deleted (SCH-500)."""
    return bool(pod.spec.node_name) and pods.is_active(pod)


class NodeCounter(Generic[_Counted]):
    """Counts by key and node. Snapshots share the counts; shared data is copied before the next change."""

    def __init__(self) -> None:
        self._counts: dict[_Counted, dict[str, int]] = {}
        self._shared = False
        self._own: set[_Counted] = set()

    def add(self, key: _Counted, node: str, delta: int = 1) -> None:
        """Add ``delta``, which may be negative, to the count of the node."""
        on_nodes = self._writable_counts(key)
        delta += on_nodes.get(node, 0)
        if delta:
            on_nodes[node] = delta
            return
        on_nodes.pop(node, None)
        if not on_nodes:
            del self._counts[key]
            self._own.discard(key)

    def snapshot(self) -> Mapping[_Counted, CountsByNode]:
        """The current counts; later changes do not affect them."""
        self._shared = True
        return self._counts

    def _writable_counts(self, key: _Counted) -> dict[str, int]:
        if self._shared:
            self._counts = dict(self._counts)
            self._own = set()
            self._shared = False
        if key not in self._own:
            self._counts[key] = dict(self._counts.get(key, ()))
            self._own.add(key)
        return self._counts[key]
