"""Kubernetes events: published once, not every second (OPS §6).

An event is dropped while an equal one is young. Equal means: same reason about the same object (kind, namespace, name and uid,
OPS-505) with the same further values; where the cause may change, the text is one of those values, so that a new cause is
always published. Publishing never waits and never fails the caller: a background task writes.

Behind that, ``event_correlator`` does what client-go does: an event that occurs again raises the count of the one that exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from karpenter.api.core import Event, EventSource, Pod
from karpenter.api.kinds import EVENT, NODE, NODE_CLAIM, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta, ObjectReference
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import JsonObject, Writer
from karpenter.model.clock import Clock, rfc3339
from karpenter.model.texts import abbreviated
from karpenter.model.token_bucket import TokenBucket
from karpenter.runtime.event_correlator import EventCorrelator, WrittenEvent

NORMAL = "Normal"
WARNING = "Warning"

_DEFAULT_DEDUPE_TIMEOUT = timedelta(minutes=2)
_PRUNE_INTERVAL_SECONDS = 60.0
_MAX_QUEUED = 1000
#: Asynchronous events are dropped while so many others wait.
_OPTIONAL_MAX_QUEUED = 500
_MAX_MESSAGE_LENGTH = 1024
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
        """The identity of an object: kind, namespace, name and uid."""
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
    """An event to publish. ``dedupe_values`` distinguish it from others of its reason; equal ones are dropped for
    ``dedupe_timeout``."""

    involved_object: InvolvedObject
    type: str
    reason: str
    message: str
    dedupe_values: tuple[str, ...] = ()
    dedupe_timeout: timedelta = _DEFAULT_DEDUPE_TIMEOUT

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two events the same."""
        return (self.reason, *self.involved_object.key, *self.dedupe_values)


class EventRecorder:
    """Publishes events. ``run`` must be running for them to be written; at most a thousand wait, the newest are dropped."""

    def __init__(self, kube: Writer, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        #: On the event loop's clock: a wall clock that is set back must not suppress events for as long.
        self._deduped_until: dict[tuple[str, ...], float] = {}
        self._queue: asyncio.Queue[ObjectEvent] = asyncio.Queue(_MAX_QUEUED)
        self._nomination_bucket = TokenBucket(5, 10)  # OPS-502
        self._correlator = EventCorrelator()
        self._is_running = False
        self._listeners: list[Callable[[ObjectEvent], None]] = []
        self._sequence = 0
        self._prune_at = 0.0

    def subscribe(self, listener: Callable[[ObjectEvent], None]) -> None:
        """Call the listener for every event that is published and not equal to a recent one. It must return at once."""
        self._listeners.append(listener)

    def publish(self, *events: ObjectEvent) -> None:
        """Write the events, except those that are equal to a recent one. Never waits."""
        now = asyncio.get_running_loop().time()
        for event in events:
            if self._deduped_until.get(event.key, now) > now:
                continue
            self._deduped_until[event.key] = now + event.dedupe_timeout.total_seconds()
            for listener in self._listeners:
                listener(event)
            if event.reason == "Nominated" and not self._nomination_bucket.try_take(now):
                continue
            if not self._queue.full():
                self._queue.put_nowait(event)
        self._prune(now)

    def publish_optional(self, *events: ObjectEvent) -> None:
        """Publish asynchronously; drop the event while many wait, or while this process does not lead."""
        if self._is_running and self._queue.qsize() < _OPTIONAL_MAX_QUEUED:
            self.publish(*events)

    def _prune(self, now: float) -> None:
        """Drop what has expired; not at every event, or many events would cost their square."""
        if now >= self._prune_at:
            self._deduped_until = {key: until for key, until in self._deduped_until.items() if until > now}
            self._prune_at = now + _PRUNE_INTERVAL_SECONDS

    async def run(self) -> None:
        """Write what is published, until cancelled."""
        self._is_running = True
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except KubeError as error:
                _log.debug("publishing event failed", reason=event.reason, error=str(error))

    async def _write(self, event: ObjectEvent) -> None:
        """Create the event, or raise the count of the one that exists."""
        message = event.message[:_MAX_MESSAGE_LENGTH]
        involved, reason = event.involved_object.key, (event.type, event.reason)
        occurred = self._correlator.correlate(involved, reason, message, self._clock.now())
        if occurred is None:
            return
        if not (occurred.name and await self._patch(event, occurred)):
            created = self._to_wire(event, occurred)
            await self._kube.create(EVENT, created)
            self._correlator.created(involved, reason, occurred, created.metadata.name)

    async def _patch(self, event: ObjectEvent, occurred: WrittenEvent) -> bool:
        """Raise the count of an event; False when the API server has forgotten it."""
        patch: JsonObject = {
            "count": occurred.count,
            "lastTimestamp": rfc3339(self._clock.now()),
            "message": occurred.message[:_MAX_MESSAGE_LENGTH],
        }
        try:
            await self._kube.patch(EVENT, occurred.name, patch, event.involved_object.metadata.namespace or "default")
        except NotFound:
            return False
        return True

    def _to_wire(self, event: ObjectEvent, occurred: WrittenEvent) -> Event:
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
            message=occurred.message[:_MAX_MESSAGE_LENGTH],
            type=event.type,
            source=EventSource(component="karpenter"),
            first_timestamp=occurred.first_timestamp.replace(microsecond=0),
            last_timestamp=self._clock.now().replace(microsecond=0),
            count=occurred.count,
        )


def shortened(names: Sequence[str], limit: int = 5) -> str:
    """The first few names and how many more there are (OPS-383)."""
    return abbreviated(names, limit)
