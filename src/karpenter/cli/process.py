"""A controller process from its start to its end: connections, election, controllers, pages, and an orderly way out.

It begins to answer probes at once, and to act when it is elected. Told to end (SIGTERM), it cancels its loops, waits for the
writes that are under way, gives the lease back and goes; a process that loses the lease goes at once and with an error. A second
signal ends it as it stands.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import structlog

from karpenter.cli import clouds
from karpenter.cli.clouds import Cloud, Market
from karpenter.cluster.snapshot import PodKey
from karpenter.control import health, inspection
from karpenter.control.apart import Alone, Apart, Leadership
from karpenter.control.complaints import Complaints, Waiting
from karpenter.control.debug import Scene, picture
from karpenter.control.http import Address, HttpServer
from karpenter.control.leadership import Candidate, Election, LeadershipLost
from karpenter.control.manager import Extra, Manager
from karpenter.control.memory import MemoryGuard
from karpenter.control.queue import supervised
from karpenter.control.settings import Settings, without_effect
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.kube.config import Connection
from karpenter.kube.errors import KubeError
from karpenter.kube.explain import explain
from karpenter.kube.fenced import FOREVER, Fence, fenced
from karpenter.kube.measured import MeasuredRequests
from karpenter.kube.observer import RequestObserver
from karpenter.kube.protocol import Kube
from karpenter.kube.throttle import TokenBucket
from karpenter.model.clock import SystemClock
from karpenter.providers.bounded import BoundedProvider
from karpenter.providers.fenced import FencedProvider
from karpenter.providers.measured import MeasuredProvider
from karpenter.telemetry import Build, Metrics

#: How often a process looks for what keeps it from its work.
_LOOK_SECONDS = 1.0
#: Requests per second of the stand-in for machines, which would have a client each.
_STAND_IN_QPS = 2000
#: More than an election ever asks for: a renewal must not wait (OPS-361).
_UNLIMITED_QPS = 1_000_000
#: How long workers and writes under way are waited for: at an orderly end (OPS-363), and when the lease is lost.
_FINISH_SECONDS = 30.0
_DROP_SECONDS = 5.0
_log = structlog.get_logger()


class _Clients(NamedTuple):
    """Connections with a pace of their own: the controller's, that of nominations and of what opens nodes, and the simulated
    machines' (as kubelets have)."""

    controller: KubeClient
    nominating: KubeClient
    machines: KubeClient


class _Kubes(NamedTuple):
    """The same connections, which write only while this process leads."""

    controller: Kube
    nominating: Kube
    machines: Kube


class _Mandate(NamedTuple):
    """The right to act: who gives it, the fence it opens, and what keeps the election from going on."""

    leadership: Leadership
    fence: Fence
    faults: Callable[[], list[KubeError]]


async def serve(settings: Settings, market: Market, commit: str) -> bool:
    """Run until told to end, and end in order; False where the lease was lost.

    Raises ``config.ConfigError``, and ``clouds.CannotStart`` where AWS is not as it has to be.
    """
    told = _told_to_end()
    connection = config.load()
    metrics = Metrics(Build(commit=commit))
    clients = _connect(connection, settings, MeasuredRequests(metrics))
    _introduce(settings, connection, commit)
    mandate = _mandate(settings, connection, metrics)
    async with clients.controller, clients.nominating, clients.machines:
        kubes = _Kubes(*(fenced(client, mandate.fence) for client in clients))
        cloud = await _cloud(settings, market, connection, clients, kubes, metrics)
        manager = _manager(kubes, mandate.fence, cloud, settings, metrics)
        beside = _Beside(manager, mandate, clients.controller, settings).tasks()
        work = asyncio.create_task(manager.run(mandate.leadership.elected))
        try:
            await _until_over(told, work, mandate.leadership)
            await _finish(work, mandate)
        except LeadershipLost as error:
            _log.error("leader election lost", error=str(error))
            await _drop(work, mandate.fence)
            return False
        finally:
            await _cancelled(*beside)
    return True


def _connect(connection: Connection, settings: Settings, observer: RequestObserver) -> _Clients:
    """The controller's requests are counted; those of machines, which would be others', are not."""
    return _Clients(
        config.connect(connection, TokenBucket(settings.kube_client_qps, settings.kube_client_burst), observer),
        config.connect(connection, TokenBucket(settings.nomination_qps, settings.nomination_qps), observer),
        config.connect(connection, TokenBucket(_STAND_IN_QPS, _STAND_IN_QPS)),
    )


def _introduce(settings: Settings, connection: Connection, commit: str) -> None:
    if not commit:
        _log.info("Unable to read vcs.revision from binary")
    _log.info("starting", settings=settings.described(), server=_shown(connection.server))
    remarks = without_effect(settings, os.environ)
    if remarks:
        _log.info("some settings have no effect", settings=remarks)
    if settings.scheduler_config.default_constraints:
        _log.info("default spread constraints of the scheduler", constraints=str(settings.scheduler_config))


def _shown(server: str) -> str:
    """A URL without the credentials that may be in it."""
    parts = urlsplit(server)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# -- election -----------------------------------------------------------------------------------------------------------------


def _mandate(settings: Settings, connection: Connection, metrics: Metrics) -> _Mandate:
    if settings.disable_leader_election:
        return _Mandate(Alone(), Fence(FOREVER), list)
    fence = Fence()
    kube = config.connect(connection, TokenBucket(_UNLIMITED_QPS, _UNLIMITED_QPS))
    candidate = Candidate(lease_namespace(settings, os.environ, connection.namespace), settings.leader_election_name)
    election = Election(kube, candidate, fence, SystemClock(), metrics)

    async def campaign(won: Callable[[], None], leave: asyncio.Event) -> None:
        async with kube:
            await election.run(won, leave)

    return _Mandate(Apart(campaign), fence, lambda: [election.fault] if election.fault is not None else [])


def lease_namespace(settings: Settings, environment: Mapping[str, str], default: str) -> str:
    """Where the Lease lies: as set, else in the pod's own namespace, else in the connection's default one (OPS-319)."""
    return settings.leader_election_namespace or environment.get("POD_NAMESPACE", "") or default


def own_pod(environment: Mapping[str, str]) -> PodKey | None:
    """Namespace and name of the pod this process is: in a pod the host has its name. None outside of a cluster."""
    namespace = environment.get("POD_NAMESPACE", "")
    return (namespace, socket.gethostname()) if namespace else None


# -- work ---------------------------------------------------------------------------------------------------------------------


async def _cloud(
    settings: Settings, market: Market, connection: Connection, clients: _Clients, kubes: _Kubes, metrics: Metrics
) -> Cloud:
    """The cloud the settings name. Whatever writes does so through the fence."""
    clock = SystemClock()
    if settings.provider == "aws":
        from karpenter.cli import ec2_cloud

        ca_bundle = b64encode(connection.authorities()).decode()
        cluster = ec2_cloud.ClusterAccess(kubes.controller, clients.controller.version, ca_bundle)
        return await ec2_cloud.opened(settings, cluster, clock, metrics)
    return clouds.simulated(kubes.controller, kubes.machines, clock, market)


def _manager(kubes: _Kubes, fence: Fence, cloud: Cloud, settings: Settings, metrics: Metrics) -> Manager:
    """The controller with its cloud. Whatever buys does so through the fence."""
    extra = Extra(cloud.loops, cloud.collectors, kubes.nominating, cloud.faults, metrics, own_pod(os.environ))
    provider = MeasuredProvider(BoundedProvider(FencedProvider(cloud.provider, fence)), metrics)
    manager = Manager(kubes.controller, provider, SystemClock(), settings, extra)
    cloud.joined(manager)
    return manager


class _Beside:
    """What runs beside the controllers, elected or not: pages, complaints, a look at the memory."""

    def __init__(self, manager: Manager, mandate: _Mandate, kube: KubeClient, settings: Settings) -> None:
        self._manager = manager
        self._mandate = mandate
        self._kube = kube
        self._settings = settings
        self._kinds = health.KnownKinds(kube)

    def tasks(self) -> list[asyncio.Task[None]]:
        """All of it, running."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {"complaints": self._complain, "crd": self._kinds.run}
        if self._settings.health_probe_port:
            parts["health"] = HttpServer(
                Address(self._settings.health_probe_port, "--health-probe-port", "health probes cannot be answered"),
                health.pages({"manager": self._unready, "crd": self._kinds.unready, "ping": lambda: ""}),
            ).run
        if self._settings.metrics_port:
            pages = inspection.metrics(self._manager.metrics.registry)
            if self._settings.enable_profiling:
                pages |= inspection.inner(self._picture)
            address = Address(self._settings.metrics_port, "--metrics-port", "metrics cannot be served")
            parts["metrics"] = HttpServer(address, pages).run
        if self._settings.memory_limit > 0:
            parts["memory"] = MemoryGuard(self._settings.memory_limit).run
        return [asyncio.create_task(supervised(name, part)) for name, part in parts.items()]

    def _faults(self) -> list[KubeError]:
        return self._mandate.faults() + self._manager.faults()

    def _unready(self) -> str:
        return "; ".join(map(str, self._mandate.faults())) or self._manager.unready()

    def _picture(self) -> object:
        manager = self._manager
        scene = Scene(
            manager.state,
            manager.provisioner.last_plan,
            self._mandate.fence.is_open,
            manager.unready(),
            manager.memory.journal.entries(),
            manager.disruption.waiting,
        )
        return picture(scene, manager.world.clock.now())

    async def _complain(self) -> None:
        """While the API server cannot be used, say why and what to do; and when it can again. Also when it is slow to begin."""
        complaints = Complaints(lambda fault: explain(fault, _shown(self._kube.server)))
        waiting = Waiting()
        now = asyncio.get_running_loop().time
        while True:
            faults = self._faults()
            news = complaints.hear(faults, now())
            for line in news.lines:
                _log.error("the API server cannot be used", error=line)
            if news.is_over:
                _log.info("the API server can be used again")
            if slow := waiting.hear("" if faults else self._manager.unready(), now()):
                _log.info("the API server is slow to answer", reason=slow)
            await asyncio.sleep(_LOOK_SECONDS)


# -- the end ------------------------------------------------------------------------------------------------------------------


def _told_to_end() -> asyncio.Event:
    """Set by SIGTERM or SIGINT; from then on these do what they always do, so that a second one ends the process as it stands."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        told.set()
        for sort in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(sort)

    for sort in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sort, end)
    return told


async def _until_over(told: asyncio.Event, work: asyncio.Task[None], leadership: Leadership) -> None:
    """Wait until told to end. Raises ``LeadershipLost``, and what the work broke with."""
    waiting = asyncio.create_task(told.wait())
    lost = asyncio.create_task(leadership.ended())
    try:
        await asyncio.wait({waiting, work, lost}, return_when=asyncio.FIRST_COMPLETED)
        for task in (lost, work):
            if task.done():
                task.result()
    finally:
        await _cancelled(waiting, lost)


async def _finish(work: asyncio.Task[None], mandate: _Mandate) -> None:
    """Stop working, wait for what is under way, let another process lead."""
    _log.info("Shutdown signal received, waiting for all workers to finish")
    now = asyncio.get_running_loop().time
    end = now() + _FINISH_SECONDS
    mandate.fence.shut()
    work.cancel()
    await asyncio.wait({work}, timeout=_FINISH_SECONDS)
    await mandate.fence.settled(max(0.0, end - now()))
    with suppress(LeadershipLost):  # meanwhile, which is what is wanted now
        await mandate.leadership.leave()
    _log.info("All workers finished")


async def _drop(work: asyncio.Task[None], fence: Fence) -> None:
    """Stop working at once: somebody else leads, or soon will."""
    fence.shut()
    await fence.settled(0.0)
    work.cancel()
    await asyncio.wait({work}, timeout=_DROP_SECONDS)


async def _cancelled(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
