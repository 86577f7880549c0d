"""Kubernetes events: said once, not every second (OPS §6).

An event is dropped while an equal one is young. Equal means: same reason about the same object (kind, namespace, name and uid,
OPS-505) with the same further values; where the cause may change, the text is one of those values, so that a new cause is
always said. Publishing never waits and never fails the caller: a background task writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Event, EventSource, ObjectReference, Pod
from karpenter.api.kinds import EVENT, NODE, NODE_CLAIM, NODE_POOL, POD, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Writer
from karpenter.model.clock import Clock

NORMAL = "Normal"
WARNING = "Warning"

_DEFAULT_SILENCE = timedelta(minutes=2)
_FORGET_EVERY = timedelta(minutes=1)
_KEPT = 1000
_LONGEST_MESSAGE = 1024
_log = structlog.get_logger()


@dataclass(frozen=True)
class About:
    """The object an event is about."""

    kind: Kind[Wire]
    metadata: ObjectMeta


def about_pod(pod: Pod) -> About:
    """A pod as the subject of an event."""
    return About(POD, pod.metadata)  # type: ignore[arg-type]


def about_node(metadata: ObjectMeta) -> About:
    """A Node as the subject of an event."""
    return About(NODE, metadata)  # type: ignore[arg-type]


def about_claim(metadata: ObjectMeta) -> About:
    """A NodeClaim as the subject of an event."""
    return About(NODE_CLAIM, metadata)  # type: ignore[arg-type]


def about_pool(metadata: ObjectMeta) -> About:
    """A NodePool as the subject of an event."""
    return About(NODE_POOL, metadata)  # type: ignore[arg-type]


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
        meta = self.about.metadata
        return (self.reason, self.about.kind.name, meta.namespace, meta.name, meta.uid, *self.values)


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


class Recorder:
    """Publishes events. ``run`` must be running for them to be written; at most a thousand wait, the newest are dropped."""

    def __init__(self, kube: Writer, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._silent_until: dict[tuple[str, ...], datetime] = {}
        self._waiting: asyncio.Queue[Happening] = asyncio.Queue(_KEPT)
        self._nominations = _Bucket(5, 10)  # OPS-502
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

    def _forget(self, now: datetime) -> None:
        """Drop what has expired; not at every event, or many events would cost their square."""
        if now >= self._forget_at:
            self._silent_until = {key: until for key, until in self._silent_until.items() if until > now}
            self._forget_at = now + _FORGET_EVERY

    async def run(self) -> None:
        """Write what is published, until cancelled."""
        while True:
            happening = await self._waiting.get()
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


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first few names and how many more there are (OPS-383)."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} other(s)" if rest > 0 else "")
