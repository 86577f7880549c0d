"""Owners and their objects, counted correctly while the watch lags behind the calls.

A controller that creates a pod and reconciles again before the watch has delivered that pod would create a second one. So objects
that were created and not observed yet count as existing, and objects whose deletion was requested count as deleted. A failed call
removes its expectation; an expectation that the watch never confirms is dropped after five minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from karpenter.api.apps import ReplicaSet
from karpenter.api.core import Pod, PodTemplateSpec
from karpenter.api.kinds import Kind
from karpenter.api.meta import OwnerReference, Wire
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.informer import Informer, ObjectKey, key_of
from karpenter.kube.protocol import Reader, Writer
from karpenter.model.workload_pods import name_suffix, pod_of_template

T = TypeVar("T", Pod, ReplicaSet)
W = TypeVar("W", bound=Wire)

EXPECTATION_TTL_SECONDS = 300.0


class WorkloadKube(Reader, Writer, Protocol):
    """What the workload controllers need of an API server."""


@dataclass(slots=True)
class _OwnerRecord(Generic[T]):
    """The objects of one owner: observed objects, names created but not observed, uids deleted but still observed."""

    observed: dict[ObjectKey, T] = field(default_factory=dict)
    created: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


class OwnedObjects(Generic[T]):
    """All objects of one kind by owner, as ``owner_of`` names it (None: not ours)."""

    def __init__(self, kube: WorkloadKube, kind: Kind[T], owner_of: Callable[[T], str | None]) -> None:
        self._kube = kube
        self._kind: Kind[T] = kind
        self._owner_of: Callable[[T], str | None] = owner_of
        self._by_owner: defaultdict[str, _OwnerRecord[T]] = defaultdict(_OwnerRecord)

    def on_change(self, before: T | None, after: T | None) -> None:
        """Handle a change."""
        obj = after if after is not None else before
        owner = self._owner_of(obj) if obj is not None else None
        if obj is None or owner is None:
            return
        litter = self._by_owner[owner]
        expected = litter.created.pop(obj.metadata.name, None)
        if expected is not None:
            expected.cancel()
        if after is not None:
            litter.observed[key_of(after.metadata)] = after
        else:
            litter.observed.pop(key_of(obj.metadata), None)
        if after is None or after.metadata.deletion_timestamp is not None:
            litter.deleted.discard(obj.metadata.uid)
        if not (litter.observed or litter.created or litter.deleted):
            del self._by_owner[owner]

    def owned_by(self, owner: str) -> list[T]:
        """The owner's objects whose deletion was not requested, by name."""
        litter = self._by_owner.get(owner)
        if litter is None:
            return []
        return [
            obj
            for _, obj in sorted(litter.observed.items())
            if obj.metadata.deletion_timestamp is None and obj.metadata.uid not in litter.deleted
        ]

    def pending_creations(self, owner: str) -> int:
        """How many objects were created and not observed yet."""
        litter = self._by_owner.get(owner)
        return len(litter.created) if litter is not None else 0

    async def create(self, owner: str, obj: T) -> None:
        """Create one object for the owner. Raises ``KubeError``."""
        created = self._by_owner[owner].created
        name = obj.metadata.name
        loop = asyncio.get_running_loop()
        created[name] = loop.call_later(EXPECTATION_TTL_SECONDS, created.pop, name, None)
        try:
            await self._kube.create(self._kind, obj)
        except KubeError:
            timer = created.pop(name, None)
            if timer is not None:
                timer.cancel()
            raise

    async def delete(self, owner: str, obj: T) -> None:
        """Delete one object; a missing object is no error. Raises ``KubeError``."""
        metadata = obj.metadata
        deleted = self._by_owner[owner].deleted
        deleted.add(metadata.uid)
        try:
            await self._kube.delete(self._kind, metadata.name, metadata.namespace, uid=metadata.uid)
        except NotFound:
            deleted.discard(metadata.uid)
        except KubeError:
            deleted.discard(metadata.uid)
            raise


class PodFactory:
    """Makes pods from templates, named after their owner with a suffix that depends on nothing but the order of creation."""

    def __init__(self, owned_pods: OwnedObjects[Pod]) -> None:
        self._owned_pods = owned_pods
        self._created_counts: Counter[tuple[str, str]] = Counter()

    async def create_pod(
        self, owner: str, template: PodTemplateSpec, reference: OwnerReference, namespace: str
    ) -> None:
        """Create one pod in the namespace. A name taken by an earlier run is skipped. Raises ``KubeError``."""
        base = (namespace, reference.name)
        while True:
            self._created_counts[base] += 1
            name = f"{reference.name}-{name_suffix('/'.join((*base, str(self._created_counts[base]))))}"
            try:
                await self._owned_pods.create(owner, pod_of_template(template, name, namespace, reference))
            except AlreadyExists:
                continue
            return


def watch_objects(reader: Reader, kind: Kind[W], handler: Callable[[W | None, W | None], None]) -> Informer[W]:
    """All objects of a kind; the handler gets every change as the object before and after. It must not block."""
    informer = Informer(reader, kind, jitter=_no_jitter)
    informer.subscribe(handler)
    return informer


def _no_jitter() -> float:
    return 0.0
