"""Kubernetes events: said once, not every second (OPS §6).

An event is dropped while an equal one is young. Equal means: same reason about the same object (kind, namespace, name and uid,
OPS-505) with the same further values; where the cause may change, the text is one of those values, so that a new cause is
always said. Publishing never waits and never fails the caller: a background task writes.

Behind that, whatever goes wrong above, one object gets no more than a burst of events and then one in five minutes: the filter
the reference's client library has (OPS-503).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from karpenter.api.core import Event, EventSource, Pod
from karpenter.api.kinds import EVENT, NODE, NODE_CLAIM, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta, ObjectReference
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Writer
from karpenter.model.clock import Clock
from karpenter.model.texts import abbreviated

NORMAL = "Normal"
WARNING = "Warning"

_DEFAULT_DEDUPE_TIMEOUT = timedelta(minutes=2)
_PRUNE_INTERVAL = timedelta(minutes=1)
_MAX_QUEUED = 1000
#: Events nobody waits for are dropped while so many others wait.
_OPTIONAL_MAX_QUEUED = 500
_MAX_MESSAGE_LENGTH = 1024
#: Events one object may get at once, and how many a second are added to that (OPS-503); of so many objects that is remembered.
_EVENTS_BURST_PER_OBJECT = 25
_EVENTS_PER_SECOND_PER_OBJECT = 1 / 300
_MAX_OBJECTS = 4096
_log = structlog.get_logger()


class ObjectKind(Protocol):
    """A kind of object, whatever holds it."""

    @property
    def group(self) -> str:
        """Its API group, empty for the core one."""

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""

    @property
    def name(self) -> str:
        """Its name, as in ``NodeClaim``."""


@dataclass(frozen=True)
class InvolvedObject:
    """The object an event is about."""

    kind: ObjectKind
    metadata: ObjectMeta

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells objects apart: kind, namespace, name and uid."""
        return (self.kind.name, self.metadata.namespace, self.metadata.name, self.metadata.uid)


def involved_pod(pod: Pod) -> InvolvedObject:
    """A pod as the subject of an event."""
    return InvolvedObject(POD, pod.metadata)


def involved_node(metadata: ObjectMeta) -> InvolvedObject:
    """A Node as the subject of an event."""
    return InvolvedObject(NODE, metadata)


def involved_claim(metadata: ObjectMeta) -> InvolvedObject:
    """A NodeClaim as the subject of an event."""
    return InvolvedObject(NODE_CLAIM, metadata)


def involved_pool(metadata: ObjectMeta) -> InvolvedObject:
    """A NodePool as the subject of an event."""
    return InvolvedObject(NODE_POOL, metadata)


@dataclass(frozen=True)
class ObjectEvent:
    """Something worth an event. ``values`` tell it apart from others of its reason; equal ones are silent for ``silence``."""

    involved_object: InvolvedObject
    type: str
    reason: str
    message: str
    dedupe_values: tuple[str, ...] = ()
    dedupe_timeout: timedelta = _DEFAULT_DEDUPE_TIMEOUT

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two happenings the same."""
        return (self.reason, *self.involved_object.key, *self.dedupe_values)


class _EventBucket:
    """A token bucket on the wall clock."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._rate, self._burst, self._tokens = per_second, float(burst), float(burst)
        self._at: datetime | None = None

    def take(self, now: datetime) -> bool:
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at).total_seconds() * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class _SpamFilter:
    """One bucket per object; of objects that got no event for long none is kept."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, ...], _EventBucket] = OrderedDict()

    def take(self, involved_object: InvolvedObject, now: datetime) -> bool:
        """Whether the object may get another event."""
        bucket = self._buckets.setdefault(
            involved_object.key, _EventBucket(_EVENTS_PER_SECOND_PER_OBJECT, _EVENTS_BURST_PER_OBJECT)
        )
        self._buckets.move_to_end(involved_object.key)
        if len(self._buckets) > _MAX_OBJECTS:
            self._buckets.popitem(last=False)
        return bucket.take(now)


class EventRecorder:
    """Publishes events. ``run`` must be running for them to be written; at most a thousand wait, the newest are dropped."""

    def __init__(self, kube: Writer, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._deduped_until: dict[tuple[str, ...], datetime] = {}
        self._queue: asyncio.Queue[ObjectEvent] = asyncio.Queue(_MAX_QUEUED)
        self._nomination_bucket = _EventBucket(5, 10)  # OPS-502
        self._spam_filter = _SpamFilter()
        self._is_running = False
        self._sequence = 0
        self._prune_at = clock.now() + _PRUNE_INTERVAL

    def publish(self, *events: ObjectEvent) -> None:
        """Say it, unless it was said lately. Never waits."""
        now = self._clock.now()
        for happening in events:
            key = happening.key
            if self._deduped_until.get(key, now) > now:
                continue
            self._deduped_until[key] = now + happening.dedupe_timeout
            if happening.reason == "Nominated" and not self._nomination_bucket.take(now):
                continue
            if not self._queue.full():
                self._queue.put_nowait(happening)
        self._prune(now)

    def publish_optional(self, *events: ObjectEvent) -> None:
        """Say what nobody waits for: not while much else is to be said, nor by a process that does not lead yet."""
        if self._is_running and self._queue.qsize() < _OPTIONAL_MAX_QUEUED:
            self.publish(*events)

    def _prune(self, now: datetime) -> None:
        """Drop what has expired; not at every event, or many events would cost their square."""
        if now >= self._prune_at:
            self._deduped_until = {key: until for key, until in self._deduped_until.items() if until > now}
            self._prune_at = now + _PRUNE_INTERVAL

    async def run(self) -> None:
        """Write what is published, until cancelled."""
        self._is_running = True
        while True:
            happening = await self._queue.get()
            if not self._spam_filter.take(happening.involved_object, self._clock.now()):
                continue
            try:
                await self._kube.create(EVENT, self._to_wire(happening))
            except KubeError as error:
                _log.debug("publishing event failed", reason=happening.reason, error=str(error))

    def _to_wire(self, event: ObjectEvent) -> Event:
        now = self._clock.now().replace(microsecond=0)
        meta = event.involved_object.metadata
        self._sequence += 1
        unique = f"{int(self._clock.now().timestamp() * 1e6):x}{self._sequence:x}"
        return Event(
            metadata=ObjectMeta(name=f"{meta.name[:200]}.{unique}", namespace=meta.namespace or "default"),
            involved_object=ObjectReference(
                api_version=event.involved_object.kind.api_version,
                kind=event.involved_object.kind.name,
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
            ),
            reason=event.reason,
            message=event.message[:_MAX_MESSAGE_LENGTH],
            type=event.type,
            source=EventSource(component="karpenter"),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )


def shortened(names: Sequence[str], limit: int = 5) -> str:
    """The first few names and how many more there are (OPS-383)."""
    return abbreviated(names, limit)
