"""Signatures and labels of bound pods by uid, each derived once and kept for the next decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from karpenter.api.core import Pod
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.solution import UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import InvalidPod, UnschedulableReason
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import PodGroup, creation_order
from karpenter.state.virtual_pods import is_virtual_pod


class SignaturesByUid:
    """Signatures and labels of pods."""

    def __init__(self, memory: DecisionMemory) -> None:
        self._cache = memory.signatures
        self._by_uid, self._before = memory.signed_pods()
        self._unreadable: dict[str, UnschedulableReason] = {}

    def of(self, pod: Pod) -> tuple[PodSignature, NamespacedLabels] | None:
        """The signature and labels of a pod; None where its requests do not parse."""
        uid = pod.metadata.uid
        signed = self._by_uid.get(uid)
        if signed is None and uid not in self._unreadable:
            signed = self._before.get(uid)
            try:
                if signed is None or signed[0] is not pod:
                    signed = (pod, self._cache.signature_of(pod), namespaced_labels(pod))
                self._by_uid[uid] = signed
            except ValueError as error:
                signed = None
                self._unreadable[uid] = UnschedulableReason(InvalidPod((str(error),)))
        return None if signed is None else signed[1:]

    def grouped(self, pods: Iterable[Pod]) -> tuple[list[PodGroup], list[UnschedulablePod]]:
        """The pods in groups, and those whose requests do not parse."""
        groups: defaultdict[tuple[PodSignature, NamespacedLabels, bool], list[Pod]] = defaultdict(list)
        unreadable: list[UnschedulablePod] = []
        for pod in pods:
            signature_and_labels = self.of(pod)
            if signature_and_labels is None:
                unreadable.append(UnschedulablePod(pod, (self._unreadable[pod.metadata.uid],)))
            else:
                groups[(*signature_and_labels, is_virtual_pod(pod))].append(pod)
        alike = [
            PodGroup(signature, own_labels, tuple(sorted(alike_pods, key=creation_order)))
            for (signature, own_labels, _), alike_pods in groups.items()
        ]
        return alike, unreadable
