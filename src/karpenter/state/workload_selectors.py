"""Who serves pods and who owns them, as far as it tells which pods belong together (SCH-832).

kube-scheduler gives a pod that names no spread constraints those it is configured with, and works their selector out from the
Services that select the pod and from its controlling owner. Only what that takes is kept: selectors, Services by namespace and
owners by uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpenter.api.apps import SelectorWorkload
from karpenter.api.core import Pod, ReplicationController, Service
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.state.pod_counts import NamespacedLabels

Labels = Mapping[str, str]
#: What labels must satisfy, in an order that only the tests themselves tell; none at all: nobody is meant.
SelectorExpressions = tuple[LabelSelectorRequirement, ...]


class OwnerSelector(NamedTuple):
    """The pods of an owner: ``labels`` take the place of those that Services name, ``tests`` hold besides."""

    labels: Labels = {}
    expressions: SelectorExpressions = ()


_NO_OWNER = OwnerSelector()


@dataclass(frozen=True)
class WorkloadSelectors:
    """Selectors of Services by namespace and name, none of them empty, and of owners by uid."""

    services: Mapping[str, Mapping[str, Labels]] = field(default_factory=dict)
    owners: Mapping[str, OwnerSelector] = field(default_factory=dict)


class WorkloadSelectorIndex:
    """Folds events in. `picture` shares what is known; what is shared is copied before the next change, never changed."""

    def __init__(self) -> None:
        self._services: dict[str, Mapping[str, Labels]] = {}
        self._owners: dict[str, OwnerSelector] = {}
        self._shared = False

    def set_service(self, service: Service) -> None:
        """A Service appeared or changed. One without a selector says nothing about pods, nor does an empty one."""
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
        known = self._services.get(namespace, {})
        if name in known:
            self._ensure_writable()
            self._services[namespace] = {other: selector for other, selector in known.items() if other != name}

    def set_owner(self, owner: SelectorWorkload | ReplicationController) -> None:
        """A ReplicaSet, StatefulSet or ReplicationController appeared or changed; selectors hardly ever do.

        One without a uid, from a file, owns nobody.
        """
        found = _owner_selector(owner)
        if owner.metadata.uid and self._owners.get(owner.metadata.uid) != found:
            self._ensure_writable()
            self._owners[owner.metadata.uid] = found

    def remove_owner(self, uid: str) -> None:
        """One of them is gone."""
        if uid in self._owners:
            self._ensure_writable()
            del self._owners[uid]

    def snapshot(self) -> WorkloadSelectors:
        """What is known now, for good."""
        self._shared = True
        return WorkloadSelectors(self._services, self._owners)

    def _ensure_writable(self) -> None:
        if self._shared:
            self._services, self._owners, self._shared = dict(self._services), dict(self._owners), False


def _owner_selector(owner: SelectorWorkload | ReplicationController) -> OwnerSelector:
    if isinstance(owner, ReplicationController):
        return OwnerSelector(labels=owner.spec.selector or {})
    selector = owner.spec.selector or LabelSelector()
    return OwnerSelector(expressions=(*_equality_expressions(selector.match_labels), *selector.match_expressions))


def _equality_expressions(values: Labels) -> SelectorExpressions:
    return tuple(LabelSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in values.items())


class DefaultSelectors:
    """Finds out which pods a pod belongs together with. Made for one picture, with caches that live as long (SCH-833)."""

    def __init__(self, workloads: WorkloadSelectors) -> None:
        self._workloads = workloads
        self._services_by_namespace: dict[str, dict[tuple[str, str], list[Labels]]] = {}
        self._selectors: dict[tuple[NamespacedLabels, str], SelectorExpressions] = {}

    def default_selector(self, namespaced_labels: NamespacedLabels, pod: Pod) -> SelectorExpressions:
        """The selector deduced for a pod that looks so (SCH-832); empty where nothing is known that it belongs to."""
        owner = next((item.uid for item in pod.metadata.owner_references if item.controller), "")
        known = self._selectors.get((namespaced_labels, owner))
        if known is None:
            known = self._selectors[namespaced_labels, owner] = self._deduce(
                namespaced_labels, self._workloads.owners.get(owner, _NO_OWNER)
            )
        return known

    def _deduce(self, namespaced_labels: NamespacedLabels, owned: OwnerSelector) -> SelectorExpressions:
        named: dict[str, str] = {}
        for selector in self._selecting_services(namespaced_labels):
            named.update(selector)
        return _sorted_expressions((*_equality_expressions({**named, **owned.labels}), *owned.expressions))

    def _selecting_services(self, namespaced_labels: NamespacedLabels) -> Iterable[Labels]:
        """Selectors of the Services that select such pods. Where they name the same key they agree: the pod has one value."""
        own = namespaced_labels.labels
        filed = self._services_by_label(namespaced_labels.namespace)
        for label in own.items() if filed else ():
            for selector in filed.get(label, ()):
                if selector.items() <= own.items():
                    yield selector

    def _services_by_label(self, namespace: str) -> Mapping[tuple[str, str], list[Labels]]:
        known = self._services_by_namespace.get(namespace)
        if known is None:
            known = self._services_by_namespace[namespace] = {}
            for selector in self._workloads.services.get(namespace, {}).values():
                known.setdefault(min(selector.items()), []).append(selector)
        return known


def _sorted_expressions(tests: SelectorExpressions) -> SelectorExpressions:
    return tuple(sorted(set(tests), key=lambda test: (test.key, test.operator, test.values)))
