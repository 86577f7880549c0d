"""A controller process on an in-memory API server that can crash, lose its connection and lose the lease, and a successor for it.

The process is what ``manager_process`` wires: an election that opens a fence, a manager, and a provider, all of whose writes pass
the fence. Its connection can be cut at any write; a crashed process sends no requests and gets no answers, and its successor has
only the state of the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from karpenter.kube.errors import KubeError, ServerUnavailable
from karpenter.kube.write_fence import Fence
from karpenter.manager import Manager, ManagerOptions
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.providers.decorators import LeaderOnlyProvider, TimeoutProvider
from karpenter.providers.simulated import SimulatedProvider
from karpenter.providers.simulated.fault_rules import LaunchFaults
from karpenter.runtime.leader_election import ElectionCandidate, LeaderElection, LeadershipLost, LeaseDurations
from karpenter.settings import Settings
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.fake_cloud import Write

R = TypeVar("R")
LEASE_NAMESPACE, LEASE_NAME = "kube-system", "karpenter-leader-election"


class ProcessClock:
    """The clock of the host: that of the world, wrong by ``skew``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.skew = timedelta()

    def now(self) -> datetime:
        return self._clock.now() + self.skew


@dataclass
class Connection:
    """What is wrong with the line between one process and the API server."""

    is_dead: bool = False
    is_cut: bool = False
    #: So many writes are still done, but their answers are lost.
    unanswered: int = 0
    #: Raised by the next writes, one each.
    refusals: list[KubeError] = field(default_factory=list)
    writes: int = 0
    #: The process is to crash right after this many writes, before it hears the answer.
    crash_at: int | None = None
    on_crash: Callable[[], None] = lambda: None

    async def live(self) -> None:
        if self.is_dead:
            await asyncio.Event().wait()
        if self.is_cut:
            raise ServerUnavailable("no route to host")


class ConnectionKube(MemoryKube):
    """The process's connection. Without a fence it is that of the election."""

    def __init__(
        self, server: MemoryServer, connection: Connection, fence: Fence | None, on_write: Callable[[Write], None]
    ) -> None:
        super().__init__(server)
        self._line = connection
        self._fence = fence
        self._on_write = on_write

    async def get(self, *args: Any, **more: Any) -> Any:
        await self._line.live()
        return await super().get(*args, **more)

    async def list(self, *args: Any, **more: Any) -> Any:
        await self._line.live()
        return await super().list(*args, **more)

    async def watch(self, *args: Any, **more: Any) -> Any:
        await self._line.live()
        async for event in super().watch(*args, **more):
            await self._line.live()
            yield event

    async def create(self, kind: Any, obj: Any) -> Any:
        write = Write("create", kind.name, obj.metadata.name, obj)
        return await self._write(write, lambda: MemoryKube.create(self, kind, obj))

    async def patch(self, kind: Any, name: str, patch: Any, namespace: str = "", **more: Any) -> Any:
        write = Write("patch", kind.name, name, patch, more.get("subresource", ""))
        return await self._write(write, lambda: MemoryKube.patch(self, kind, name, patch, namespace, **more))

    async def delete(self, kind: Any, name: str, namespace: str = "", **more: Any) -> None:
        write = Write("delete", kind.name, name, more)
        await self._write(write, lambda: MemoryKube.delete(self, kind, name, namespace, **more))

    async def evict(self, name: str, namespace: str, **more: Any) -> None:
        write = Write("evict", "Pod", name, more)
        await self._write(write, lambda: MemoryKube.evict(self, name, namespace, **more))

    async def _write(self, write: Write, call: Callable[[], Awaitable[R]]) -> R:
        if self._fence is None:
            await self._line.live()
            return await call()
        fence = self._fence
        return await fence.run(lambda: self._send(fence, write, call))

    async def _send(self, fence: Fence, write: Write, call: Callable[[], Awaitable[R]]) -> R:
        connection = self._line
        await connection.live()
        fence.check_permitted()
        if connection.refusals:
            raise connection.refusals.pop(0)
        self._on_write(write)
        answer = await call()
        connection.writes += 1
        if connection.crash_at is not None and connection.writes >= connection.crash_at:
            connection.is_dead = True
            connection.crash_at = None
            connection.on_crash()
        if connection.unanswered:
            connection.unanswered -= 1
            raise ServerUnavailable("the connection broke")
        await connection.live()
        return answer


@dataclass(frozen=True)
class ProcessParts:
    """What every process of a cluster is made of."""

    server: MemoryServer
    cloud_clock: Clock
    clock: ProcessClock
    settings: Settings
    types: tuple[Any, ...]
    launch_faults: LaunchFaults
    on_write: Callable[[Write], None]


class ControllerProcess:
    """One process; ``ended`` is set when it is gone."""

    def __init__(self, parts: ProcessParts, name: str) -> None:
        self.name = name
        self.connection = Connection(on_crash=lambda: self.crashed.set())
        self.crashed = asyncio.Event()
        self.leave = asyncio.Event()
        self.fence = Fence()
        metrics = Metrics()
        kube = ConnectionKube(parts.server, self.connection, self.fence, parts.on_write)
        lease_kube = ConnectionKube(parts.server, self.connection, None, parts.on_write)
        durations = LeaseDurations.of(parts.settings.intervals)
        candidate = ElectionCandidate(LEASE_NAMESPACE, LEASE_NAME, name, durations)
        self._election = LeaderElection(lease_kube, candidate, self.fence, parts.clock, metrics)
        provider = SimulatedProvider(kube, parts.cloud_clock, parts.types)
        provider.set_launch_faults(parts.launch_faults)
        bounded = TimeoutProvider(LeaderOnlyProvider(provider, self.fence))
        options = ManagerOptions({}, {"instances": provider.collect_garbage}, metrics=metrics)
        self.manager = Manager(kube, bounded, parts.clock, parts.settings, options)

    @property
    def leads(self) -> bool:
        return self.fence.is_open and not self.connection.is_dead

    async def run(self) -> str:
        """Run until it ends; why it did. A process whose manager fails raises what it failed with."""
        elected, release = asyncio.Event(), asyncio.Event()
        election = asyncio.create_task(self._election.run(elected.set, release))
        work = asyncio.create_task(self.manager.run(lambda: _wait(elected)))
        crashed = asyncio.create_task(self.crashed.wait())
        leaving = asyncio.create_task(self.leave.wait())
        try:
            await asyncio.wait({election, work, crashed, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if crashed.done():
                return "crashed"
            if work.done():
                work.result()
            self.fence.close()
            if leaving.done():
                work.cancel()
                await asyncio.wait({work}, timeout=30)
                await self.fence.drain(30)
                release.set()
                with suppress(LeadershipLost):
                    await election
                return "left"
            error = election.exception()
            if not isinstance(error, LeadershipLost):
                election.result()
            return str(error)
        finally:
            self.connection.is_dead = True
            self.fence.extend_until(float("-inf"))
            await self.fence.drain(0)
            for task in (election, work, crashed, leaving):
                task.cancel()
            await asyncio.gather(election, work, crashed, leaving, return_exceptions=True)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
