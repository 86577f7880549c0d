"""Spread constraints for pods that have none of their own, as the cluster's scheduler was configured to give them (SCH §29).

Filled in before anything else is decided, so that later steps need not handle defaults: a pod gets all of them, with a selector
worked out for it, or none. Pods of one class may come to different selectors, so the pod with its constraints has a class of
its own. Nothing is written back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import PodGroup
from karpenter.state.workload_selectors import DefaultSelectors, SelectorExpressions, WorkloadSelectors


class DefaultSpreadConstraints:
    """Fills ``constraints`` in, for one decision."""

    def __init__(self, constraints: tuple[TopologySpreadConstraint, ...], workloads: WorkloadSelectors) -> None:
        self._constraints = constraints
        self._workload_peers = DefaultSelectors(workloads)
        self._classes = PodSignatureCache()
        self._classes_made: dict[tuple[PodSignature, str, SelectorExpressions], PodSignature] = {}

    def __bool__(self) -> bool:
        """Whether there are defaults at all."""
        return bool(self._constraints)

    def apply_to(self, groups: Iterable[PodGroup]) -> Iterator[PodGroup]:
        """The same pods in groups of the classes they have by the defaults (SCH-831)."""
        for group in groups:
            if self._constraints and not group.signature.spec.topology_spread_constraints:
                yield from self._with_defaults(group)
            else:
                yield group

    def _with_defaults(self, group: PodGroup) -> Iterator[PodGroup]:
        """Pods that look the same but have different owners may differ in their selectors."""
        by_fellows: dict[SelectorExpressions, list[Pod]] = {}
        for pod in group.pods:
            by_fellows.setdefault(self._workload_peers.default_selector(group.namespaced_labels, pod), []).append(pod)
        for tests, pods in by_fellows.items():
            pod_class = self._class_with_defaults(group.signature, pods[0], tests) if tests else group.signature
            yield PodGroup(pod_class, group.namespaced_labels, tuple(pods))

    def _class_with_defaults(self, signature: PodSignature, pod: Pod, tests: SelectorExpressions) -> PodSignature:
        key = (signature, pod.metadata.namespace, tests)
        pod_signature = self._classes_made.get(key)
        if pod_signature is None:
            selector = LabelSelector(match_expressions=tests)
            spread = tuple(replace(constraint, label_selector=selector) for constraint in self._constraints)
            constrained = replace(pod, spec=replace(pod.spec, topology_spread_constraints=spread))
            pod_signature = self._classes_made[key] = self._classes.signature_of(constrained)
        return pod_signature
