"""Candidates for one Lease on one API server, with clocks and faults of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from karpenter.api.control_plane import LeaseSpec
from karpenter.api.kinds import LEASE, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KubeError, ServerUnavailable
from karpenter.kube.protocol import JsonObject
from karpenter.kube.write_fence import Fence
from karpenter.metrics import Metrics
from karpenter.runtime.leader_election import ElectionCandidate, LeaderElection, LeadershipLost
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE, NAME = "kube-system", "karpenter-leader-election"
T = TypeVar("T", bound=Wire)


class Connection(MemoryKube):
    """A process's connection, which can be cut in several ways."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        #: Nothing gets through, and that is noticed at once.
        self.is_cut = False
        #: Nothing gets through, and nobody says so.
        self.hangs = False
        #: What is asked for is done, but the answer never comes.
        self.loses_answers = False
        self.refusal: KubeError | None = None
        self.seconds_there = self.seconds_back = 0.0

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return await self._carry(lambda: MemoryKube.get(self, kind, name, namespace))

    async def create(self, kind: Kind[T], obj: T) -> T:
        return await self._carry(lambda: MemoryKube.create(self, kind, obj))

    async def patch(self, kind: Kind[T], name: str, patch: JsonObject, namespace: str = "", **more: Any) -> T:
        return await self._carry(lambda: MemoryKube.patch(self, kind, name, patch, namespace, **more))

    async def _carry(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._travel(self.seconds_there)
        answer = await call()
        if self.loses_answers:
            raise ServerUnavailable("the connection broke")
        await self._travel(self.seconds_back)
        return answer

    async def _travel(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_cut:
            raise ServerUnavailable("no route to host")
        if self.refusal is not None:
            raise self.refusal


class Skewed:
    """A clock that is wrong."""

    def __init__(self, clock: LoopClock, by: timedelta) -> None:
        self._clock = clock
        self._by = by

    def now(self) -> datetime:
        return self._clock.now() + self._by


class Permits:
    """Every permission that was ever given, and whether two overlapped."""

    def __init__(self) -> None:
        self.fences: list[Fence] = []
        self.overlaps: list[str] = []
        self.given = 0

    def fence(self, owner: str) -> Fence:
        permits = self

        class Watched(Fence):
            def extend_until(self, moment: float) -> None:
                now = asyncio.get_running_loop().time()
                if moment > now:
                    permits.given += 1
                    others = [fence for fence in permits.fences if fence is not self and fence.valid_until > now]
                    if others:
                        permits.overlaps.append(f"{owner} at {now}")
                super().extend_until(moment)

        made = Watched()
        self.fences.append(made)
        return made


class Process:
    """One candidate."""

    def __init__(self, cluster: Cluster, name: str, skew: timedelta) -> None:
        self.name = name
        self.connection = Connection(cluster.server)
        self.fence = cluster.permits.fence(name)
        self.metrics = Metrics()
        self.leave = asyncio.Event()
        self.won_at: float | None = None
        candidate = ElectionCandidate(NAMESPACE, NAME, name)
        self.election = LeaderElection(
            self.connection, candidate, self.fence, Skewed(cluster.clock, skew), self.metrics
        )
        self.task = asyncio.create_task(self.election.run(self._won, self.leave))
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _won(self) -> None:
        self.won_at = asyncio.get_running_loop().time()

    @property
    def leads(self) -> bool:
        return self.fence.is_open

    @property
    def lost(self) -> str:
        """Why it ended."""
        error = self.task.exception()
        assert isinstance(error, LeadershipLost)
        return str(error)

    def figure(self, series: str) -> float | None:
        return self.metrics.registry.get_sample_value(series, {"name": NAME})

    async def crash(self) -> None:
        """It ends without a word, and so does its permission: nothing is written by what does not run."""
        self.task.cancel()
        with suppress(asyncio.CancelledError, LeadershipLost):
            await self.task
        self.fence.extend_until(float("-inf"))


class Cluster:
    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.server = MemoryServer(clock)
        self.people = MemoryKube(self.server)
        self.permits = Permits()
        self.processes: list[Process] = []

    def start(self, name: str, skew: timedelta = timedelta(0)) -> Process:
        process = Process(self, name, skew)
        self.processes.append(process)
        return process

    async def leader(self, name: str = "a") -> Process:
        process = self.start(name)
        await until(lambda: process.leads)
        return process

    async def record(self) -> LeaseSpec:
        return (await self.people.get(LEASE, NAME, NAMESPACE)).spec

    async def edit(self, **spec: Any) -> None:
        await self.people.patch(LEASE, NAME, {"spec": spec}, NAMESPACE)

    async def delete(self) -> None:
        await self.people.delete(LEASE, NAME, NAMESPACE)


def in_virtual_time(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time; in none of them may two processes lead at once."""

    def wrapped() -> None:
        async def main(clock: LoopClock) -> None:
            cluster = Cluster(clock)
            await test(cluster)
            assert cluster.permits.overlaps == []

        run_virtual(main, START)

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    """Wait for a condition, to a hundredth of a second; how long it took."""
    began = now()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
    return now() - began


async def ended(process: Process, seconds: float = 120.0) -> float:
    return await until(process.task.done, seconds)
