"""Informers that follow scripted lists and watches."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.core import Pod, PodSpec
from karpenter.api.kinds import POD, Kind
from karpenter.api.meta import ObjectMeta
from karpenter.kube import errors
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Listing, UndecodableObject, WatchEvent, WatchEventType
from karpenter.simulation import virtual_time as virtual

ADDED, MODIFIED, DELETED = WatchEventType.ADDED, WatchEventType.MODIFIED, WatchEventType.DELETED

Script = Iterable[WatchEvent[Pod] | errors.KubeError | float]


def pod(name: str, version: str = "1", *, uid: str = "", node: str = "") -> Pod:
    meta = ObjectMeta(name=name, namespace="ns", uid=uid or f"uid-{name}", resource_version=version)
    return Pod(metadata=meta, spec=PodSpec(node_name=node))


def listing(*pods: Pod, version: str = "10", rejected: tuple[UndecodableObject, ...] = ()) -> Listing[Pod]:
    return Listing(pods, version, rejected)


def event(kind: WatchEventType, obj: Pod) -> WatchEvent[Pod]:
    return WatchEvent(kind, obj.metadata.resource_version, obj)


def bookmark(version: str) -> WatchEvent[Pod]:
    return WatchEvent(WatchEventType.BOOKMARK, version)


@dataclass
class ScriptedReader:
    """Answers lists and watches from a script: a number waits, an error is raised, an event is yielded.

    A watch whose script does not begin with an error is opened: it says so, as every watch does. When the watches run out, the
    last one stays open for ever.
    """

    lists: list[Listing[Pod] | errors.KubeError]
    watches: list[Script] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    scopes: list[tuple[str, str, str]] = field(default_factory=list)
    open_streams: int = 0

    async def get(self, kind: Kind[Pod], name: str, namespace: str = "") -> Pod:
        raise NotImplementedError

    async def list(
        self, kind: Kind[Pod], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[Pod]:
        self._note("list")
        self.scopes.append((namespace, label_selector, field_selector))
        answer = self.lists.pop(0)
        if isinstance(answer, errors.KubeError):
            raise answer
        return answer

    async def watch(
        self,
        kind: Kind[Pod],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[Pod]]:
        self._note(f"watch {resource_version}")
        self.scopes.append((namespace, label_selector, field_selector))
        self.open_streams += 1
        steps = list(self.watches.pop(0)) if self.watches else [math.inf]
        try:
            if not (steps and isinstance(steps[0], errors.KubeError)):
                yield bookmark(resource_version)
            for step in steps:
                if isinstance(step, errors.KubeError):
                    raise step
                if isinstance(step, WatchEvent):
                    yield step
                elif step == math.inf:
                    await asyncio.Event().wait()
                else:
                    await asyncio.sleep(step)
        finally:
            self.open_streams -= 1

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.times.append(asyncio.get_running_loop().time())


@dataclass
class Watched:
    """An informer that ran, the events of its handler, and the reader it used."""

    informer: Informer[Pod]
    reader: ScriptedReader
    delivered: list[tuple[Pod | None, Pod | None]]
    rejected: list[UndecodableObject]

    @property
    def names(self) -> list[str]:
        return [obj.metadata.name for obj in self.informer]


def watched(
    lists: list[Listing[Pod] | errors.KubeError], *watches: Script, seconds: float = 1000, jitter: float = 0.0
) -> Watched:
    """Run an informer for some virtual seconds over a script."""
    return ran(ScriptedReader(lists, list(watches)), seconds, jitter)


def ran(reader: ScriptedReader, seconds: float = 1000, jitter: float = 0.0) -> Watched:
    """Run an informer for some virtual seconds."""
    rejected: list[UndecodableObject] = []
    changes: list[tuple[Pod | None, Pod | None]] = []

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(
            reader,
            POD,
            indexes={"node": lambda obj: [obj.spec.node_name] if obj.spec.node_name else []},
            on_undecodable=rejected.append,
            jitter=lambda: jitter,
        )
        informer.subscribe(lambda old, new: changes.append((old, new)))
        await cancelled_after(seconds, informer.run)
        return informer

    return Watched(in_virtual_time(main), reader, changes, rejected)


def in_virtual_time(main: Callable[[object], Awaitable[Informer[Pod]]]) -> Informer[Pod]:
    return virtual.run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))


async def cancelled_after(seconds: float, run: Callable[[], Awaitable[None]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await run()
