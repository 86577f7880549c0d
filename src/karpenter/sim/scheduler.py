"""A stand-in for kube-scheduler: binds waiting pods to nodes and says so when it cannot.

It watches pods, nodes and namespaces, keeps a ``placement.Board`` current, and whenever something changed tries the pods that are
waiting: highest priority first, then oldest, then by name. A refused pod gets the condition ``PodScheduled=False`` with
reason ``Unschedulable`` once and is tried again when the board has changed for it, at the earliest after a back-off of 1 s
that doubles up to 10 s. A gated pod gets reason ``SchedulingGated``. Nothing else is written.

Binding takes no time of its own: at one virtual instant as many pods are bound as fit. That instant comes a tenth of a
second after the change, which gives the DaemonSet controller its chance to have pods for a new node in the queue: with
nobody to preempt for them here, they would otherwise find the node full.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.meta import Condition
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer, Key
from karpenter.kube.protocol import Reader, Subresources, Writer
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.model.quantity import QuantityError
from karpenter.sim.following import following, key_of
from karpenter.sim.placement import Ask, Board, Placed, ask

SCHEDULER_NAME = "default-scheduler"
FIRST_BACK_OFF = timedelta(seconds=1)
LONGEST_BACK_OFF = timedelta(seconds=10)
REACTION_SECONDS = 0.1

_UNSCHEDULABLE = "Unschedulable"
_GATED = "SchedulingGated"


class SchedulerKube(Reader, Writer, Subresources, Protocol):
    """What the scheduler needs of an API server."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A pod without a node: how often it was refused, when it may be tried again, and what the board was like then."""

    ask: Ask
    refusals: int = 0
    not_before: datetime | None = None
    seen: int = -1


class Scheduler:
    """Binds pods of the default scheduler. ``run`` it as a task."""

    def __init__(self, kube: SchedulerKube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._board = Board()
        self._waiting: dict[Key, _Waiting] = {}
        self._binding: set[Key] = set()
        self._gated: dict[Key, Pod] = {}
        self._wake = asyncio.Event()
        self._nodes: Informer[Node] = following(kube, kinds.NODE, self._on_node)
        self._namespaces: Informer[Namespace] = following(kube, kinds.NAMESPACE, self._on_namespace)
        self._pods: Informer[Pod] = following(kube, kinds.POD, self._on_pod)

    async def run(self) -> None:
        """Schedule until cancelled."""
        informers = (self._nodes, self._namespaces, self._pods)
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run(), name=f"scheduler watches {informer.kind.plural}")
            for informer in informers:
                await informer.wait_synced()
            while True:
                await asyncio.sleep(REACTION_SECONDS)
                self._wake.clear()
                await self._mark_gated()
                await self._try_all()
                await self._wait()

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        known = after or before
        assert known is not None
        self._board.set_node(known.metadata.name, after)
        self._wake.set()

    def _on_namespace(self, before: Namespace | None, after: Namespace | None) -> None:
        known = after or before
        assert known is not None
        self._board.census.set_namespace(known.metadata.name, after)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        known = after or before
        assert known is not None
        key = key_of(known.metadata)
        if after is None or pods.is_finished(after):
            self._forget(key)
        elif after.spec.node_name:
            self._settle(key, after)
        elif key not in self._binding:
            self._enqueue(key, after)
        self._wake.set()

    def _forget(self, key: Key) -> None:
        self._leave_queue(key)
        self._board.drop(key)

    def _leave_queue(self, key: Key) -> None:
        self._waiting.pop(key, None)
        self._gated.pop(key, None)
        self._board.withdraw(key)

    def _settle(self, key: Key, pod: Pod) -> None:
        self._waiting.pop(key, None)
        self._gated.pop(key, None)
        item = _prepared(pod)
        if item is not None:
            self._board.put(item, pod.spec.node_name)

    def _enqueue(self, key: Key, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is not None or pod.spec.scheduler_name not in ("", SCHEDULER_NAME):
            self._leave_queue(key)
            return
        if pod.spec.scheduling_gates:
            self._leave_queue(key)
            self._gated[key] = pod
            return
        self._gated.pop(key, None)
        item = _prepared(pod)
        if item is None:
            self._leave_queue(key)
            return
        known = self._waiting.get(key)
        unchanged = known is not None and _asks_the_same(known.ask, item)
        self._waiting[key] = replace(known, ask=item) if known is not None and unchanged else _Waiting(item)
        self._board.nominate(item)

    async def _mark_gated(self) -> None:
        for key, pod in sorted(self._gated.items()):
            self._gated.pop(key, None)
            await self._tell(pod, _GATED, "waits for its scheduling gates to be removed")

    async def _try_all(self) -> None:
        now = self._clock.now()
        for key in self._due(now):
            waiting = self._waiting.get(key)
            if waiting is not None:
                await self._try(key, waiting)

    def _due(self, now: datetime) -> list[Key]:
        due = [key for key, waiting in self._waiting.items() if self._may_try(waiting, now)]
        return sorted(due, key=lambda key: _turn(self._waiting[key].ask))

    def _may_try(self, waiting: _Waiting, now: datetime) -> bool:
        changed = waiting.seen != self._board.stamp(waiting.ask)
        return changed and (waiting.not_before is None or waiting.not_before <= now)

    async def _try(self, key: Key, waiting: _Waiting) -> None:
        decision = self._board.place(waiting.ask)
        if isinstance(decision, Placed):
            await self._bind(key, waiting, decision.node)
            return
        self._waiting[key] = self._refused(waiting)
        await self._tell(waiting.ask.pod, _UNSCHEDULABLE, str(decision))

    def _refused(self, waiting: _Waiting) -> _Waiting:
        delay = min(FIRST_BACK_OFF * 2 ** min(waiting.refusals, 10), LONGEST_BACK_OFF)
        return _Waiting(waiting.ask, waiting.refusals + 1, self._clock.now() + delay, self._board.stamp(waiting.ask))

    async def _bind(self, key: Key, waiting: _Waiting, node: str) -> None:
        """Bind; the room is taken before the server answers so that no other pod gets it."""
        self._binding.add(key)
        del self._waiting[key]
        self._board.put(waiting.ask, node)
        try:
            await self._kube.bind(key.name, key.namespace, node)
        except KubeError:
            # The pod or its node has changed or gone: what the server has now decides what happens next.
            self._binding.discard(key)
            self._board.drop(key)
            self._retry_after_failed_bind(key, waiting)
        finally:
            self._binding.discard(key)

    def _retry_after_failed_bind(self, key: Key, waiting: _Waiting) -> None:
        current = self._pods.get(key.name, key.namespace)
        if current is None:
            return
        self._on_pod(None, current)
        queued = self._waiting.get(key)
        if queued is not None:
            self._waiting[key] = replace(self._refused(waiting), ask=queued.ask, seen=-1)

    async def _tell(self, pod: Pod, reason: str, message: str) -> None:
        conditions = pod.status.conditions
        if any(each.type == "PodScheduled" and each.reason == reason for each in conditions):
            return
        told = Condition(
            type="PodScheduled",
            status="False",
            reason=reason,
            message=message,
            last_transition_time=self._clock.now().replace(microsecond=0),
        )
        kept = [each for each in conditions if each.type != "PodScheduled"]
        patch = {"status": {"conditions": msgspec.to_builtins([*kept, told])}}
        try:
            await self._kube.patch(kinds.POD, pod.metadata.name, patch, pod.metadata.namespace, subresource="status")
        except KubeError:
            return

    async def _wait(self) -> None:
        """Until something changes or a back-off that holds a pod back ends."""
        ends = [
            waiting.not_before
            for waiting in self._waiting.values()
            if waiting.not_before is not None and waiting.seen != self._board.stamp(waiting.ask)
        ]
        if not ends:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, (min(ends) - self._clock.now()).total_seconds())):
                await self._wake.wait()
        except TimeoutError:
            return


def _prepared(pod: Pod) -> Ask | None:
    """The pod ready for the board; None if its requests are not quantities, which an API server would have refused."""
    try:
        return ask(pod)
    except QuantityError:
        return None


def _asks_the_same(left: Ask, right: Ask) -> bool:
    return (
        left.pod.metadata.uid == right.pod.metadata.uid
        and left.signature == right.signature
        and left.pod.spec == right.pod.spec
    )


def _turn(item: Ask) -> tuple[int, str, Key]:
    created = item.pod.metadata.creation_timestamp
    return (-item.priority, created.isoformat() if created is not None else "", key_of(item.pod.metadata))
