"""Owners and what they own, kept right while the watch lags behind the calls.

A controller that creates a pod and looks again before the watch has brought that pod would create a second one. So what has
been asked for and not been seen yet is remembered here and counted as if it were there, and what has been asked to go
counts as gone. A call that fails forgets its expectation; one the watch never confirms is forgotten after five minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

from karpenter.api.core import Pod, PodTemplateSpec, ReplicaSet
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, OwnerReference, Wire
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.informer import Key
from karpenter.kube.protocol import Reader, Writer
from karpenter.sim.following import key_of

T = TypeVar("T", Pod, ReplicaSet)
W = TypeVar("W", bound=Wire)

FORGOTTEN_AFTER_SECONDS = 300.0

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class WorkloadKube(Reader, Writer, Protocol):
    """What the workload controllers need of an API server."""


@dataclass(slots=True)
class _Litter(Generic[T]):
    """What one owner has: seen objects, names created but not seen, uids deleted but still looking alive."""

    seen: dict[Key, T] = field(default_factory=dict)
    created: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


class Offspring(Generic[T]):
    """All objects of one kind by owner, as ``owner_of`` names it (None: not ours)."""

    def __init__(self, kube: WorkloadKube, kind: Kind[T], owner_of: Callable[[T], str | None]) -> None:
        self._kube = kube
        self._kind: Kind[T] = kind
        self._owner_of: Callable[[T], str | None] = owner_of
        self._litters: defaultdict[str, _Litter[T]] = defaultdict(_Litter)

    def see(self, before: T | None, after: T | None) -> None:
        """Take a change from the watch."""
        known = after if after is not None else before
        owner = self._owner_of(known) if known is not None else None
        if known is None or owner is None:
            return
        litter = self._litters[owner]
        expected = litter.created.pop(known.metadata.name, None)
        if expected is not None:
            expected.cancel()
        if after is not None:
            litter.seen[key_of(after.metadata)] = after
        else:
            litter.seen.pop(key_of(known.metadata), None)
        if after is None or after.metadata.deletion_timestamp is not None:
            litter.deleted.discard(known.metadata.uid)
        if not (litter.seen or litter.created or litter.deleted):
            del self._litters[owner]

    def of(self, owner: str) -> list[T]:
        """What the owner has and nobody has asked to go, by name."""
        litter = self._litters.get(owner)
        if litter is None:
            return []
        return [
            item
            for _, item in sorted(litter.seen.items())
            if item.metadata.deletion_timestamp is None and item.metadata.uid not in litter.deleted
        ]

    def expected(self, owner: str) -> int:
        """How many objects have been created and not been seen yet."""
        litter = self._litters.get(owner)
        return len(litter.created) if litter is not None else 0

    async def create(self, owner: str, item: T) -> None:
        """Create one object for the owner. Raises ``KubeError``."""
        created = self._litters[owner].created
        name = item.metadata.name
        loop = asyncio.get_running_loop()
        created[name] = loop.call_later(FORGOTTEN_AFTER_SECONDS, created.pop, name, None)
        try:
            await self._kube.create(self._kind, item)
        except KubeError:
            timer = created.pop(name, None)
            if timer is not None:
                timer.cancel()
            raise

    async def delete(self, owner: str, item: T) -> None:
        """Ask one object to go. Raises ``KubeError``; an object that is gone already is fine."""
        metadata = item.metadata
        deleted = self._litters[owner].deleted
        deleted.add(metadata.uid)
        try:
            await self._kube.delete(self._kind, metadata.name, metadata.namespace, uid=metadata.uid)
        except NotFound:
            deleted.discard(metadata.uid)
        except KubeError:
            deleted.discard(metadata.uid)
            raise


class PodMaker:
    """Makes pods from templates, named after their owner with a suffix that depends on nothing but the order of creation."""

    def __init__(self, offspring: Offspring[Pod]) -> None:
        self._offspring = offspring
        self._made: Counter[tuple[str, str]] = Counter()

    async def make(self, owner: str, template: PodTemplateSpec, reference: OwnerReference, namespace: str) -> None:
        """Create one pod in the namespace. A name already taken, by an earlier run, is passed over. Raises ``KubeError``."""
        base = (namespace, reference.name)
        while True:
            self._made[base] += 1
            metadata = ObjectMeta(
                name=f"{reference.name}-{suffix('/'.join((*base, str(self._made[base]))))}",
                namespace=namespace,
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
                owner_references=(reference,),
            )
            try:
                await self._offspring.create(owner, Pod(metadata=metadata, spec=template.spec))
            except AlreadyExists:
                continue
            return


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The owner that controls the object, if any."""
    return next((owner for owner in metadata.owner_references if owner.controller), None)


def reference_to(kind: Kind[W], metadata: ObjectMeta) -> OwnerReference:
    """A controlling reference to an object."""
    return OwnerReference(
        api_version=kind.api_version,
        kind=kind.name,
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def suffix(text: str, length: int = 5) -> str:
    """A short name part derived from a text, of letters that spell nothing."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    letters = []
    for _ in range(length):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def template_hash(template: PodTemplateSpec) -> str:
    """A name for a template: equal templates have equal names."""
    return suffix(msgspec.json.encode(template, order="deterministic").decode(), 10)


def is_ready(pod: Pod) -> bool:
    """Whether the kubelet reports the pod ready."""
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
