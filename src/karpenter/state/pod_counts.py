"""Pods as selectors see them: a namespace and labels, and how many of each are where.

A spread constraint or an affinity term never asks for a pod, only for how many pods that look so are in a domain. So bound
pods are counted by look and node as events arrive, and a decision adds up a few counts instead of listing a cluster's pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from karpenter.api.core import Pod
from karpenter.model import pods

_Counted = TypeVar("_Counted", bound=Hashable)

#: How many there are of something on each node, by the node's name.
CountsByNode = Mapping[str, int]


class NamespacedLabels:
    """A namespace with the labels of a pod in it. Equal faces are selected by the same selectors."""

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
        return f"Face({self.namespace!r}, {dict(self.labels)!r})"


def namespaced_labels(pod: Pod) -> NamespacedLabels:
    """How selectors see the pod."""
    return NamespacedLabels(pod.metadata.namespace, pod.metadata.labels)


def counts_for_topology(pod: Pod) -> bool:
    """Whether topology counts the pod where it is bound: neither finished nor on its way out (SCH-500)."""
    return bool(pod.spec.node_name) and pods.is_active(pod)


class NodeCounter(Generic[_Counted]):
    """Counts by what and node. `given` shares them; what is shared is copied before the next change, never changed."""

    def __init__(self) -> None:
        self._counts: dict[_Counted, dict[str, int]] = {}
        self._shared = False
        self._own: set[_Counted] = set()

    def add(self, key: _Counted, node: str, delta: int = 1) -> None:
        """So many more (or, negative, fewer) on the node."""
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
        """The counts as they are now, for good."""
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
