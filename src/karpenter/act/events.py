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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from karpenter.api.core import Event, EventSource, ObjectReference, Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import EVENT, NODE, NODE_CLAIM, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Writer
from karpenter.model.clock import Clock
from karpenter.model.validation import Finding

NORMAL = "Normal"
WARNING = "Warning"
#: Why a NodePool is not used: reason of its ValidationSucceeded condition, and of the event that says so.
NODE_POOL_INVALID = "NodePoolValidationFailed"

_DEFAULT_SILENCE = timedelta(minutes=2)
_FORGET_EVERY = timedelta(minutes=1)
_KEPT = 1000
#: Events nobody waits for are dropped while so many others wait.
_BUSY = 500
_LONGEST_MESSAGE = 1024
#: Advice is repeated this often while the object stays as it is.
_ADVICE_SILENCE = timedelta(hours=1)
#: Events one object may get at once, and how many a second are added to that (OPS-503); of so many objects that is remembered.
_BURST = 25
_PER_SECOND = 1 / 300
_OBJECTS = 4096
_log = structlog.get_logger()


class AnyKind(Protocol):
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
class About:
    """The object an event is about."""

    kind: AnyKind
    metadata: ObjectMeta

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells objects apart: kind, namespace, name and uid."""
        return (self.kind.name, self.metadata.namespace, self.metadata.name, self.metadata.uid)


def about_pod(pod: Pod) -> About:
    """A pod as the subject of an event."""
    return About(POD, pod.metadata)


def about_node(metadata: ObjectMeta) -> About:
    """A Node as the subject of an event."""
    return About(NODE, metadata)


def about_claim(metadata: ObjectMeta) -> About:
    """A NodeClaim as the subject of an event."""
    return About(NODE_CLAIM, metadata)


def about_pool(metadata: ObjectMeta) -> About:
    """A NodePool as the subject of an event."""
    return About(NODE_POOL, metadata)


@dataclass(frozen=True)
class Happening:
    """Something worth an event. ``values`` tell it apart from others of its reason; equal ones are silent for ``silence``."""

    about: About
    type: str
    reason: str
    message: str
    values: tuple[str, ...] = ()
    silence: timedelta = _DEFAULT_SILENCE

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two happenings the same."""
        return (self.reason, *self.about.key, *self.values)


class _Bucket:
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
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()

    def take(self, about: About, now: datetime) -> bool:
        """Whether the object may get another event."""
        bucket = self._buckets.setdefault(about.key, _Bucket(_PER_SECOND, _BURST))
        self._buckets.move_to_end(about.key)
        if len(self._buckets) > _OBJECTS:
            self._buckets.popitem(last=False)
        return bucket.take(now)


class Recorder:
    """Publishes events. ``run`` must be running for them to be written; at most a thousand wait, the newest are dropped."""

    def __init__(self, kube: Writer, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._silent_until: dict[tuple[str, ...], datetime] = {}
        self._waiting: asyncio.Queue[Happening] = asyncio.Queue(_KEPT)
        self._nominations = _Bucket(5, 10)  # OPS-502
        self._spam = _SpamFilter()
        self._is_writing = False
        self._sequence = 0
        self._forget_at = clock.now() + _FORGET_EVERY

    def publish(self, *happenings: Happening) -> None:
        """Say it, unless it was said lately. Never waits."""
        now = self._clock.now()
        for happening in happenings:
            key = happening.key
            if self._silent_until.get(key, now) > now:
                continue
            self._silent_until[key] = now + happening.silence
            if happening.reason == "Nominated" and not self._nominations.take(now):
                continue
            if not self._waiting.full():
                self._waiting.put_nowait(happening)
        self._forget(now)

    def mention(self, *happenings: Happening) -> None:
        """Say what nobody waits for: not while much else is to be said, nor by a process that does not lead yet."""
        if self._is_writing and self._waiting.qsize() < _BUSY:
            self.publish(*happenings)

    def _forget(self, now: datetime) -> None:
        """Drop what has expired; not at every event, or many events would cost their square."""
        if now >= self._forget_at:
            self._silent_until = {key: until for key, until in self._silent_until.items() if until > now}
            self._forget_at = now + _FORGET_EVERY

    async def run(self) -> None:
        """Write what is published, until cancelled."""
        self._is_writing = True
        while True:
            happening = await self._waiting.get()
            if not self._spam.take(happening.about, self._clock.now()):
                continue
            try:
                await self._kube.create(EVENT, self._event(happening))
            except KubeError as error:
                _log.debug("publishing event failed", reason=happening.reason, error=str(error))

    def _event(self, happening: Happening) -> Event:
        now = self._clock.now().replace(microsecond=0)
        meta = happening.about.metadata
        self._sequence += 1
        unique = f"{int(self._clock.now().timestamp() * 1e6):x}{self._sequence:x}"
        return Event(
            metadata=ObjectMeta(name=f"{meta.name[:200]}.{unique}", namespace=meta.namespace or "default"),
            involved_object=ObjectReference(
                api_version=happening.about.kind.api_version,
                kind=happening.about.kind.name,
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
            ),
            reason=happening.reason,
            message=happening.message[:_LONGEST_MESSAGE],
            type=happening.type,
            source=EventSource(component="karpenter"),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )


def advice_events(pool: NodePool, findings: Iterable[Finding]) -> tuple[Happening, ...]:
    """What is legal in a pool and probably not meant, as warnings to its owner (API §2.2 Beyond). Told again after an edit."""
    generation = str(pool.metadata.generation)
    return tuple(
        Happening(
            about_pool(pool.metadata),
            WARNING,
            "NodePoolAdvice",
            str(finding),
            (generation, finding.path, finding.code, finding.message),
            _ADVICE_SILENCE,
        )
        for finding in findings
    )


def invalid_event(pool: NodePool, why: str) -> Happening:
    """That a pool contradicts the rules and is not used, as a warning to its owner (API-640). Told again after an edit."""
    values = (str(pool.metadata.generation), why)
    return Happening(about_pool(pool.metadata), WARNING, NODE_POOL_INVALID, why, values, _ADVICE_SILENCE)


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first few names and how many more there are (OPS-383)."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} other(s)" if rest > 0 else "")
