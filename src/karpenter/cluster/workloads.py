"""Who serves pods and who owns them, as far as it tells which pods belong together (SCH-832).

kube-scheduler gives a pod that names no spread constraints those it is configured with, and works their selector out from the
Services that select the pod and from its controlling owner. Only what that takes is kept: selectors, Services by namespace and
owners by uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpenter.api.core import Pod, ReplicationController, SelectingWorkload, Service
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.cluster.faces import Face

Labels = Mapping[str, str]
#: What labels must satisfy, in an order that only the tests themselves tell; none at all: nobody is meant.
Tests = tuple[LabelSelectorRequirement, ...]


class Owned(NamedTuple):
    """The pods of an owner: ``labels`` take the place of those that Services name, ``tests`` hold besides."""

    labels: Labels = {}
    tests: Tests = ()


_NOBODY = Owned()


@dataclass(frozen=True)
class Workloads:
    """Selectors of Services by namespace and name, none of them empty, and of owners by uid."""

    services: Mapping[str, Mapping[str, Labels]] = field(default_factory=dict)
    owners: Mapping[str, Owned] = field(default_factory=dict)


class WorkloadIndex:
    """Folds events in. `picture` shares what is known; what is shared is copied before the next change, never changed."""

    def __init__(self) -> None:
        self._services: dict[str, Mapping[str, Labels]] = {}
        self._owners: dict[str, Owned] = {}
        self._shared = False

    def set_service(self, service: Service) -> None:
        """A Service appeared or changed. One without a selector says nothing about pods, nor does an empty one."""
        namespace, name = service.metadata.namespace, service.metadata.name
        selector = service.spec.selector
        if not selector:
            self.remove_service((namespace, name))
        elif self._services.get(namespace, {}).get(name) != selector:
            self._own()
            self._services[namespace] = {**self._services.get(namespace, {}), name: selector}

    def remove_service(self, key: tuple[str, str]) -> None:
        """A Service is gone: its namespace and name."""
        namespace, name = key
        known = self._services.get(namespace, {})
        if name in known:
            self._own()
            self._services[namespace] = {other: selector for other, selector in known.items() if other != name}

    def set_owner(self, owner: SelectingWorkload | ReplicationController) -> None:
        """A ReplicaSet, StatefulSet or ReplicationController appeared or changed; selectors hardly ever do.

        One without a uid, from a file, owns nobody.
        """
        found = _owned(owner)
        if owner.metadata.uid and self._owners.get(owner.metadata.uid) != found:
            self._own()
            self._owners[owner.metadata.uid] = found

    def remove_owner(self, uid: str) -> None:
        """One of them is gone."""
        if uid in self._owners:
            self._own()
            del self._owners[uid]

    def picture(self) -> Workloads:
        """What is known now, for good."""
        self._shared = True
        return Workloads(self._services, self._owners)

    def _own(self) -> None:
        if self._shared:
            self._services, self._owners, self._shared = dict(self._services), dict(self._owners), False


def _owned(owner: SelectingWorkload | ReplicationController) -> Owned:
    if isinstance(owner, ReplicationController):
        return Owned(labels=owner.spec.selector or {})
    selector = owner.spec.selector or LabelSelector()
    return Owned(tests=(*_equal_to(selector.match_labels), *selector.match_expressions))


def _equal_to(values: Labels) -> Tests:
    return tuple(LabelSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in values.items())


class Fellows:
    """Finds out which pods a pod belongs together with. Made for one picture, with caches that live as long (SCH-833)."""

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads
        self._filed: dict[str, dict[tuple[str, str], list[Labels]]] = {}
        self._known: dict[tuple[Face, str], Tests] = {}

    def of(self, face: Face, pod: Pod) -> Tests:
        """The selector deduced for a pod that looks so (SCH-832); empty where nothing is known that it belongs to."""
        owner = next((item.uid for item in pod.metadata.owner_references if item.controller), "")
        known = self._known.get((face, owner))
        if known is None:
            known = self._known[face, owner] = self._deduced(face, self._workloads.owners.get(owner, _NOBODY))
        return known

    def _deduced(self, face: Face, owned: Owned) -> Tests:
        named: dict[str, str] = {}
        for selector in self._serving(face):
            named.update(selector)
        return _in_order((*_equal_to({**named, **owned.labels}), *owned.tests))

    def _serving(self, face: Face) -> Iterable[Labels]:
        """Selectors of the Services that select such pods. Where they name the same key they agree: the pod has one value."""
        own = face.labels
        filed = self._filed_in(face.namespace)
        for label in own.items() if filed else ():
            for selector in filed.get(label, ()):
                if selector.items() <= own.items():
                    yield selector

    def _filed_in(self, namespace: str) -> Mapping[tuple[str, str], list[Labels]]:
        known = self._filed.get(namespace)
        if known is None:
            known = self._filed[namespace] = {}
            for selector in self._workloads.services.get(namespace, {}).values():
                known.setdefault(min(selector.items()), []).append(selector)
        return known


def _in_order(tests: Tests) -> Tests:
    return tuple(sorted(set(tests), key=lambda test: (test.key, test.operator, test.values)))
