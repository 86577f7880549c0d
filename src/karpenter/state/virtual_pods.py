"""The virtual pods of capacity buffers, and where the last plan put them: what snapshots say beyond the cluster (SCH §25)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from karpenter.api.core import Pod
from karpenter.state.pod_counts import namespaced_labels
from karpenter.state.pod_signature import PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot, PodGroup


class VirtualPods:
    """Pods that wait in every plan and are never bound, by buffer (``namespace/name``)."""

    def __init__(self) -> None:
        self._signatures = PodSignatureCache()
        self._groups: dict[str, PodGroup] = {}
        #: How many of them the last plan put on each machine, by key of its view (SCH-741).
        self.pod_counts_by_node: Mapping[str, int] = {}

    def set_pods(self, buffer: str, pods: tuple[Pod, ...]) -> None:
        """These are the buffer's pods now, all alike; none drops it. Raises ``quantity.QuantityError``."""
        if pods:
            self._groups[buffer] = PodGroup(self._signatures.signature_of(pods[0]), namespaced_labels(pods[0]), pods)
        else:
            self._groups.pop(buffer, None)

    def added_to(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """The snapshot with the virtual pods behind the real ones; the same where there are none."""
        if not self._groups and not self.pod_counts_by_node:
            return snapshot
        groups = tuple(self._groups[buffer] for buffer in sorted(self._groups))
        return replace(snapshot, pod_groups=(*snapshot.pod_groups, *groups), virtual_pod_counts=self.pod_counts_by_node)


VIRTUAL_POD_ANNOTATION = "karpenter.sh/capacity-buffer-fake-pod"
BUFFER_NAME_ANNOTATION = "karpenter.sh/capacity-buffer-name"
BUFFER_NAMESPACE_ANNOTATION = "karpenter.sh/capacity-buffer-namespace"


def is_virtual_pod(pod: Pod) -> bool:
    """Whether the pod stands for room a buffer keeps. What an API server has stored is real, whatever it carries."""
    return not pod.metadata.resource_version and pod.metadata.annotations.get(VIRTUAL_POD_ANNOTATION) == "true"


def buffer_key_of(pod: Pod) -> str:
    """``namespace/name`` of the buffer a virtual pod belongs to."""
    annotations = pod.metadata.annotations
    return f"{annotations[BUFFER_NAMESPACE_ANNOTATION]}/{annotations[BUFFER_NAME_ANNOTATION]}"


def count_virtual_pods_by_buffer(pods: Iterable[Pod]) -> Mapping[str, int]:
    """How many virtual pods of each buffer there are."""
    found: dict[str, int] = {}
    for pod in pods:
        if is_virtual_pod(pod):
            found[buffer_key_of(pod)] = found.get(buffer_key_of(pod), 0) + 1
    return found
