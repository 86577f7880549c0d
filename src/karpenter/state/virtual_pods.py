"""The virtual pods of capacity buffers, waking schedules and requests, and their last placement: added to snapshots (SCH §25)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from karpenter.api.core import Pod, PodSpec, PodStatus
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.state.gangs import Gang
from karpenter.state.pod_counts import namespaced_labels
from karpenter.state.pod_signature import PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot, PodGroup

#: One buffer or request is for no more pods than this: a misspelt count must not fill the memory of the controller. All virtual
#: pods of the largest clusters that Kubernetes supports (150 000 pods) take a few of them.
MAX_PODS_PER_OBJECT = 20_000


class VirtualPods:
    """Virtual pods by buffer (``namespace/name``). They are pending in every scheduling pass and never bound."""

    def __init__(self) -> None:
        self._signatures = PodSignatureCache()
        self._groups: dict[str, PodGroup] = {}
        self._gangs: dict[str, Gang] = {}
        #: How many of them the last scheduling pass placed on each node, by key of its state node (SCH-741).
        self.pod_counts_by_node: Mapping[str, int] = {}

    def set_pods(self, buffer: str, pods: tuple[Pod, ...]) -> None:
        """Set the buffer's pods, which are all alike; an empty tuple removes it. Raises ``quantity.QuantityError``."""
        if pods:
            self._groups[buffer] = PodGroup(self._signatures.signature_of(pods[0]), namespaced_labels(pods[0]), pods)
        else:
            self._groups.pop(buffer, None)

    def set_gang(self, name: str, gang: Gang | None) -> None:
        """Say which of the pods get places together only; None: those of this gang are gone."""
        if gang is not None:
            self._gangs[name] = gang
        else:
            self._gangs.pop(name, None)

    @property
    def content(self) -> tuple[object, ...]:
        """What is added to snapshots: equal while the buffers' pods and their last placement are the same."""
        groups = tuple((buffer, len(group.pods), group.signature) for buffer, group in sorted(self._groups.items()))
        gangs = tuple(self._gangs[name] for name in sorted(self._gangs))
        return groups, gangs, tuple(sorted(self.pod_counts_by_node.items()))

    def added_to(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """The snapshot with the virtual pods after the real ones; unchanged if there are none."""
        if not self._groups and not self.pod_counts_by_node:
            return snapshot
        groups = tuple(self._groups[buffer] for buffer in sorted(self._groups))
        return replace(
            snapshot,
            pod_groups=(*snapshot.pod_groups, *groups),
            virtual_pod_counts=self.pod_counts_by_node,
            gangs=tuple(sorted((*snapshot.gangs, *self._gangs.values()), key=lambda gang: gang.name)),
        )


#: Lower than the priority of any real pod.
VIRTUAL_POD_PRIORITY = -(2**31)
VIRTUAL_POD_ANNOTATION = "karpenter.sh/capacity-buffer-fake-pod"
BUFFER_NAME_ANNOTATION = "karpenter.sh/capacity-buffer-name"
BUFFER_NAMESPACE_ANNOTATION = "karpenter.sh/capacity-buffer-namespace"
_UNSCHEDULABLE = PodStatus(conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),))


def virtual_pod(metadata: ObjectMeta, spec: PodSpec, owner: tuple[str, str]) -> Pod:
    """A virtual pod, which waits for a place. ``owner``: namespace and name under which its placement is counted."""
    namespace, name = owner
    annotations = {
        VIRTUAL_POD_ANNOTATION: "true",
        BUFFER_NAME_ANNOTATION: name,
        BUFFER_NAMESPACE_ANNOTATION: namespace,
    }
    return Pod(metadata=msgspec.structs.replace(metadata, annotations=annotations), spec=spec, status=_UNSCHEDULABLE)


def is_virtual_pod(pod: Pod) -> bool:
    """Whether the pod is a virtual pod of a buffer. A pod stored in an API server is real, whatever its annotations."""
    return not pod.metadata.resource_version and pod.metadata.annotations.get(VIRTUAL_POD_ANNOTATION) == "true"


def buffer_key_of(pod: Pod) -> str:
    """``namespace/name`` of the buffer a virtual pod belongs to."""
    annotations = pod.metadata.annotations
    return f"{annotations[BUFFER_NAMESPACE_ANNOTATION]}/{annotations[BUFFER_NAME_ANNOTATION]}"


def count_virtual_pods_by_buffer(pods: Iterable[Pod]) -> Mapping[str, int]:
    """Number of virtual pods per buffer."""
    counts: dict[str, int] = {}
    for pod in pods:
        if is_virtual_pod(pod):
            counts[buffer_key_of(pod)] = counts.get(buffer_key_of(pod), 0) + 1
    return counts
