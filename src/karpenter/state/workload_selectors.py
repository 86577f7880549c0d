"""Selectors of Services and pod owners, for the selector of default spread constraints (SCH-832).

kube-scheduler applies its configured default constraints to pods without spread constraints, and derives the selector from the
Services that select the pod and from its controlling owner. Only these selectors are kept: of Services by namespace, of owners by
uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpenter.api.apps import RolloutWorkload, SelectorWorkload
from karpenter.api.core import Pod, ReplicationController, Service
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.model.pods import controller_of
from karpenter.state.pod_counts import NamespacedLabels

Labels = Mapping[str, str]
#: Selector expressions in canonical order; empty selects no pod.
SelectorExpressions = tuple[LabelSelectorRequirement, ...]


class OwnerSelector(NamedTuple):
    """The selector of an owner: ``labels`` override those of Services, ``expressions`` are added."""

    labels: Labels = {}
    expressions: SelectorExpressions = ()


_NO_OWNER = OwnerSelector()


@dataclass(frozen=True)
class WorkloadSelectors:
    """Non-empty selectors of Services by namespace and name, and selectors of owners by uid."""

    services: Mapping[str, Mapping[str, Labels]] = field(default_factory=dict)
    owners: Mapping[str, OwnerSelector] = field(default_factory=dict)


class WorkloadSelectorIndex:
    """Folds watch events. Snapshots share the selectors; shared data is copied before the next change."""

    def __init__(self) -> None:
        self._services: dict[str, Mapping[str, Labels]] = {}
        self._owners: dict[str, OwnerSelector] = {}
        self._shared = False

    def set_service(self, service: Service) -> None:
        """A Service appeared or changed. A Service without or with an empty selector is ignored."""
        namespace, name = service.metadata.namespace, service.metadata.name
        selector = service.spec.selector
        if not selector:
            self.remove_service((namespace, name))
        elif self._services.get(namespace, {}).get(name) != selector:
            self._ensure_writable()
            self._services[namespace] = {**self._services.get(namespace, {}), name: selector}

    def remove_service(self, key: tuple[str, str]) -> None:
        """A Service is gone: its namespace and name."""
        namespace, name = key
        selectors = self._services.get(namespace, {})
        if name in selectors:
            self._ensure_writable()
            self._services[namespace] = {other: selector for other, selector in selectors.items() if other != name}

    def set_owner(self, owner: SelectorWorkload | RolloutWorkload | ReplicationController) -> None:
        """A ReplicaSet, StatefulSet or ReplicationController appeared or changed.

        An object without a uid, read from a file, owns no pods.
        """
        selector = _owner_selector(owner)
        if owner.metadata.uid and self._owners.get(owner.metadata.uid) != selector:
            self._ensure_writable()
            self._owners[owner.metadata.uid] = selector

    def remove_owner(self, uid: str) -> None:
        """An owner is gone."""
        if uid in self._owners:
            self._ensure_writable()
            del self._owners[uid]

    def snapshot(self) -> WorkloadSelectors:
        """The current selectors; later changes do not affect them."""
        self._shared = True
        return WorkloadSelectors(self._services, self._owners)

    def _ensure_writable(self) -> None:
        if self._shared:
            self._services, self._owners, self._shared = dict(self._services), dict(self._owners), False


def _owner_selector(owner: SelectorWorkload | RolloutWorkload | ReplicationController) -> OwnerSelector:
    if isinstance(owner, ReplicationController):
        return OwnerSelector(labels=owner.spec.selector or {})
    selector = owner.spec.selector or LabelSelector()
    return OwnerSelector(expressions=(*_equality_expressions(selector.match_labels), *selector.match_expressions))


def _equality_expressions(values: Labels) -> SelectorExpressions:
    return tuple(LabelSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in values.items())


class DefaultSelectors:
    """Derives default selectors of pods from one snapshot, with caches of the same lifetime (SCH-833)."""

    def __init__(self, workloads: WorkloadSelectors) -> None:
        self._workloads = workloads
        self._services_by_namespace: dict[str, dict[tuple[str, str], list[Labels]]] = {}
        self._selectors: dict[tuple[NamespacedLabels, str], SelectorExpressions] = {}

    def default_selector(self, namespaced_labels: NamespacedLabels, pod: Pod) -> SelectorExpressions:
        """The default selector of a pod (SCH-832); empty if no Service selects it and no known owner controls it.

        An owner whose API version cannot be parsed is not known, as to kube-scheduler (K15-103).
        """
        owner = controller_of(pod.metadata)
        uid = owner.uid if owner is not None and owner.api_version.count("/") <= 1 else ""
        selector = self._selectors.get((namespaced_labels, uid))
        if selector is None:
            selector = self._selectors[namespaced_labels, uid] = self._deduce(
                namespaced_labels, self._workloads.owners.get(uid, _NO_OWNER)
            )
        return selector

    def _deduce(self, namespaced_labels: NamespacedLabels, owner_selector: OwnerSelector) -> SelectorExpressions:
        service_labels: dict[str, str] = {}
        for selector in self._selecting_services(namespaced_labels):
            service_labels.update(selector)
        return _sorted_expressions(
            (*_equality_expressions({**service_labels, **owner_selector.labels}), *owner_selector.expressions)
        )

    def _selecting_services(self, namespaced_labels: NamespacedLabels) -> Iterable[Labels]:
        """Selectors of the Services that select such pods. Selectors with a common key agree: the pod has one value."""
        pod_labels = namespaced_labels.labels
        by_label = self._services_by_label(namespaced_labels.namespace)
        for label in pod_labels.items() if by_label else ():
            for selector in by_label.get(label, ()):
                if selector.items() <= pod_labels.items():
                    yield selector

    def _services_by_label(self, namespace: str) -> Mapping[tuple[str, str], list[Labels]]:
        by_label = self._services_by_namespace.get(namespace)
        if by_label is None:
            by_label = self._services_by_namespace[namespace] = {}
            for selector in self._workloads.services.get(namespace, {}).values():
                by_label.setdefault(min(selector.items()), []).append(selector)
        return by_label


def _sorted_expressions(expressions: SelectorExpressions) -> SelectorExpressions:
    return tuple(
        sorted(set(expressions), key=lambda expression: (expression.key, expression.operator, expression.values))
    )
