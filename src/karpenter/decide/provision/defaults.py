"""Spread constraints for pods that have none of their own, as the cluster's scheduler was configured to give them (SCH §29).

Filled in before anything else is decided, so that nothing after this knows of defaults: a pod gets all of them, with a selector
worked out for it, or none. Pods of one class may come to different selectors, so the pod with its constraints has a class of
its own. Nothing is written back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from karpenter.api.core import Pod, TopologySpreadConstraint
from karpenter.api.meta import LabelSelector
from karpenter.cluster.classes import PodClass, PodClasses
from karpenter.cluster.snapshot import PodGroup
from karpenter.cluster.workloads import Fellows, Tests, Workloads


class DefaultSpread:
    """Fills ``constraints`` in, for one decision."""

    def __init__(self, constraints: tuple[TopologySpreadConstraint, ...], workloads: Workloads) -> None:
        self._constraints = constraints
        self._fellows = Fellows(workloads)
        self._classes = PodClasses()
        self._made: dict[tuple[PodClass, str, Tests], PodClass] = {}

    def into(self, groups: Iterable[PodGroup]) -> Iterator[PodGroup]:
        """The same pods in groups of the classes they have by the defaults (SCH-831)."""
        for group in groups:
            if self._constraints and not group.pod_class.spec.topology_spread_constraints:
                yield from self._constrained(group)
            else:
                yield group

    def _constrained(self, group: PodGroup) -> Iterator[PodGroup]:
        """Pods that look the same but have different owners may differ in their selectors."""
        by_fellows: dict[Tests, list[Pod]] = {}
        for pod in group.pods:
            by_fellows.setdefault(self._fellows.of(group.face, pod), []).append(pod)
        for tests, pods in by_fellows.items():
            pod_class = self._class(group.pod_class, pods[0], tests) if tests else group.pod_class
            yield PodGroup(pod_class, group.face, tuple(pods))

    def _class(self, pod_class: PodClass, pod: Pod, tests: Tests) -> PodClass:
        key = (pod_class, pod.metadata.namespace, tests)
        known = self._made.get(key)
        if known is None:
            selector = LabelSelector(match_expressions=tests)
            spread = tuple(replace(constraint, label_selector=selector) for constraint in self._constraints)
            constrained = replace(pod, spec=replace(pod.spec, topology_spread_constraints=spread))
            known = self._made[key] = self._classes.of(constrained)
        return known
