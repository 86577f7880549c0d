"""A controller process from its start to its end: connections, election, controllers, HTTP pages, shutdown.

The process answers probes at once and acts when it is elected. On SIGTERM it cancels its loops, waits for the writes in flight,
releases the lease and exits. A process that loses the lease exits at once and with an error. A second signal ends it immediately.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from karpenter import manager_cloud
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.kube.config import Connection
from karpenter.kube.error_messages import explain_error
from karpenter.kube.errors import KubeError
from karpenter.kube.proxies import without_login
from karpenter.kube.request_metrics import RequestMetrics, RequestObserver
from karpenter.kube.write_fence import NO_EXPIRY, Fence
from karpenter.manager import Manager, ManagerOptions
from karpenter.manager_cloud import ProviderSetup, SimulatedCloudConfig
from karpenter.manager_debug import DebugSources, debug_state
from karpenter.manager_webhook import WebhookProcess, conversion_options, storage_migration_loops
from karpenter.metrics import BuildInfo, Metrics
from karpenter.model.clock import SystemClock
from karpenter.model.token_bucket import TokenBucket
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS
from karpenter.notifications.notification_config import NotificationConfig
from karpenter.olderversions.cluster_conversion_options import ClusterConversionOptions
from karpenter.providers.decorators import LeaderOnlyProvider, MetricsProvider, TimeoutProvider
from karpenter.runtime import debug_pages, healthz
from karpenter.runtime.apiserver_faults import ApiServerFaultReporter, ClusterSyncReporter
from karpenter.runtime.election_thread import ElectionThread, Leadership, NoElection
from karpenter.runtime.http_server import HttpServer, ListenAddress
from karpenter.runtime.leader_election import ElectionCandidate, LeaderElection, LeadershipLost, LeaseDurations
from karpenter.runtime.memory_guard import MemoryGuard
from karpenter.runtime.reconciler import SingletonReconciler, run_supervised
from karpenter.settings import Settings, ineffective_settings, risky_settings
from karpenter.state.snapshot import PodKey

#: How often a process checks for faults of the API server.
_FAULT_POLL_SECONDS = 1.0
#: Requests per second of the simulated nodes, which would have a client each.
_SIMULATED_NODES_QPS = 2000
#: More than an election ever uses: a renewal must not wait (OPS-361).
_UNLIMITED_QPS = 1_000_000
#: How long workers and writes under way are waited for: at an orderly end (OPS-363), and when the lease is lost.
_SHUTDOWN_SECONDS = 30.0
_ABORT_SECONDS = 5.0
_log = structlog.get_logger()


class _Clients(NamedTuple):
    """Connections with rate limits of their own: the controller's, that of nominations and of opening nodes, and that of the
    simulated nodes, which stands for kubelets. All write only while this process leads.
    """

    controller: KubeClient
    nominations: KubeClient
    simulated_nodes: KubeClient


class _LeaderElection(NamedTuple):
    """The leader election: its leadership, the fence it opens, and the faults of its own requests."""

    leadership: Leadership
    fence: Fence
    api_server_faults: Callable[[], list[KubeError]]


class StartFiles(NamedTuple):
    """What the files that settings name hold. ``simulated_cloud`` is None with another provider."""

    simulated_cloud: SimulatedCloudConfig | None = None
    notifications: NotificationConfig | None = None


class RunningController(NamedTuple):
    """What a part beside the controllers gets of a process: its manager, its connection, and whether it leads now."""

    manager: Manager
    connection: Connection
    leads: Callable[[], bool]


#: A loop that runs beside the controllers, elected or not.
SideLoop = Callable[[RunningController], Awaitable[None]]


async def run_process(
    settings: Settings,
    files: StartFiles,
    commit: str,
    side_loops: Mapping[str, SideLoop] = {},
) -> bool:
    """Run until a signal comes, and shut down; False where the lease was lost.

    ``side_loops`` run beside the controllers, by name.

    Raises ``config.ConfigError``, and ``ProviderStartError`` where the cloud cannot be used.
    """
    shutdown = _shutdown_signal()
    connection = config.load(settings.kubeconfig, settings.context)
    metrics = Metrics(BuildInfo(commit=commit))
    election = _leader_election(settings, connection, metrics)
    clients = _connect(connection, settings, RequestMetrics(metrics), election.fence)
    _log_start(settings, connection, commit)
    async with clients.controller, clients.nominations, clients.simulated_nodes:
        cloud = await _provider_setup(settings, files.simulated_cloud, connection, clients, metrics)
        options = conversion_options(settings, clients.controller)
        extra = replace(_manager_options(clients, cloud, settings, metrics, options), notifications=files.notifications)
        provider = MetricsProvider(TimeoutProvider(LeaderOnlyProvider(cloud.provider, election.fence)), metrics)
        manager = Manager(clients.controller, provider, SystemClock(), settings, extra)
        beside = _SideTasks(manager, election, clients.controller, settings).tasks()
        webhook = WebhookProcess(settings, connection, options, metrics)
        for name, loop in webhook.loops(own_namespace(os.environ, connection.namespace)).items():
            beside.append(asyncio.create_task(run_supervised(name, loop)))
        running = RunningController(manager, connection, lambda: election.fence.is_open)
        for name, side_loop in side_loops.items():
            beside.append(asyncio.create_task(run_supervised(name, partial(side_loop, running))))
        work = asyncio.create_task(manager.run(election.leadership.elected))
        try:
            await _wait_for_end(shutdown, work, election.leadership)
            await _shut_down(work, election)
        except LeadershipLost as error:
            _log.error("leader election lost", error=str(error))
            await _abort(work, election.fence)
            return False
        finally:
            await _cancel_tasks(*beside)
    return True


def _connect(connection: Connection, settings: Settings, observer: RequestObserver, fence: Fence) -> _Clients:
    """The controller's requests are counted; those of simulated nodes are not, because kubelets would send them."""
    controller = TokenBucket(settings.kube_client_qps, settings.kube_client_burst)
    nominations = TokenBucket(settings.nomination_qps, settings.nomination_qps)
    simulated_nodes = TokenBucket(_SIMULATED_NODES_QPS, _SIMULATED_NODES_QPS)
    return _Clients(
        config.connect(connection, controller, observer, fence),
        config.connect(connection, nominations, observer, fence),
        config.connect(connection, simulated_nodes, fence=fence),
    )


def _log_start(settings: Settings, connection: Connection, commit: str) -> None:
    if not commit:
        _log.info("Unable to read vcs.revision from binary")
    _log.info("starting", settings=settings.as_text(), server=without_login(connection.server))
    remarks = ineffective_settings(settings, os.environ)
    if remarks:
        _log.info("some settings have no effect", settings=remarks)
    for risk in risky_settings(settings, DEFAULT_TIMEOUTS.registration):
        _log.warning("risky setting", setting=risk)
    log_default_spread(settings)


def log_default_spread(settings: Settings) -> None:
    """Name the default spread constraints that the scheduler is said to have (K15-049)."""
    if settings.scheduler_config.default_constraints:
        constraints = str(settings.scheduler_config)
        _log.info("default spread constraints of the scheduler", **{"default-topology-spread-constraints": constraints})


# -- election -----------------------------------------------------------------------------------------------------------------


def _leader_election(settings: Settings, connection: Connection, metrics: Metrics) -> _LeaderElection:
    if settings.disable_leader_election:
        return _LeaderElection(NoElection(), Fence(NO_EXPIRY), list)
    fence = Fence()
    candidate = ElectionCandidate(
        lease_namespace(settings, os.environ, connection.namespace),
        settings.leader_election_name,
        durations=LeaseDurations.of(settings.intervals),
    )
    thread, election = start_election(connection, candidate, fence, metrics)
    return _LeaderElection(thread, fence, lambda: [election.fault] if election.fault is not None else [])


def start_election(
    connection: Connection, candidate: ElectionCandidate, fence: Fence, metrics: Metrics
) -> tuple[ElectionThread, LeaderElection]:
    """An election on a thread of its own, through a connection of its own without a limit to its pace; it has begun."""
    kube = config.connect(connection, TokenBucket(_UNLIMITED_QPS, _UNLIMITED_QPS))
    election = LeaderElection(kube, candidate, fence, SystemClock(), metrics)

    async def campaign(won: Callable[[], None], leave: asyncio.Event) -> None:
        async with kube:
            await election.run(won, leave)

    return ElectionThread(campaign), election


def lease_namespace(settings: Settings, environment: Mapping[str, str], default: str) -> str:
    """Where the Lease lies: as set, else in the pod's own namespace, else in the connection's default one (OPS-319)."""
    return settings.leader_election_namespace or own_namespace(environment, default)


def own_namespace(environment: Mapping[str, str], default: str) -> str:
    """The pod's namespace, outside of a cluster the connection's default one."""
    return environment.get("POD_NAMESPACE", "") or default


def own_pod(environment: Mapping[str, str]) -> PodKey | None:
    """Namespace and name of the pod this process is: in a pod the host has its name. None outside of a cluster."""
    namespace = environment.get("POD_NAMESPACE", "")
    return (namespace, socket.gethostname()) if namespace else None


# -- work ---------------------------------------------------------------------------------------------------------------------


async def _provider_setup(
    settings: Settings,
    simulated_cloud: SimulatedCloudConfig | None,
    connection: Connection,
    clients: _Clients,
    metrics: Metrics,
) -> ProviderSetup:
    """The cloud the settings name. Whatever writes does so through the fence."""
    clock = SystemClock()
    if settings.provider == "aws":
        from karpenter import manager_aws

        ca_bundle = b64encode(connection.certificate_authorities()).decode()
        cluster = manager_aws.ClusterAccess(clients.controller, clients.controller.version, ca_bundle)
        return await manager_aws.aws_setup(settings, cluster, clock, metrics)
    if settings.provider == "machines":
        return manager_cloud.machines_setup(settings, clients.controller, clock)
    if simulated_cloud is None:
        return manager_cloud.external_setup(settings, clients.controller, clock)
    return manager_cloud.simulated_setup(settings, clients.controller, clients.simulated_nodes, clock, simulated_cloud)


def _manager_options(
    clients: _Clients,
    cloud: ProviderSetup,
    settings: Settings,
    metrics: Metrics,
    options: ClusterConversionOptions,
) -> ManagerOptions:
    """What the controllers of this process get besides their cluster and cloud."""
    migration = storage_migration_loops(settings, clients.controller, metrics, cloud.provider.node_class_kinds)
    return ManagerOptions(
        {**cloud.background_loops, **migration},
        cloud.garbage_collectors,
        clients.nominations,
        metrics,
        own_pod(os.environ),
        cloud.informers,
        cloud.events,
        options.current,
    )


class _SideTasks:
    """What runs beside the controllers, elected or not: HTTP pages, reports about the API server, the memory guard."""

    def __init__(self, manager: Manager, election: _LeaderElection, kube: KubeClient, settings: Settings) -> None:
        self._manager = manager
        self._election = election
        self._kube = kube
        self._settings = settings
        self._crd_check = healthz.CrdReadiness(kube)
        self._fault_reporter = ApiServerFaultReporter(lambda fault: explain_error(fault, without_login(kube.server)))

    def tasks(self) -> list[asyncio.Task[None]]:
        """All of it, running."""
        delay = self._settings.intervals.sync_report_delay.total_seconds()
        periodic = {
            "apiserver.faults": self._log_api_server_faults,
            "state.sync": ClusterSyncReporter(self._unsynced, delay).reconcile,
            "crd.readiness": self._crd_check.reconcile,
        }
        if self._settings.memory_limit > 0:
            periodic["memory"] = MemoryGuard(self._settings.memory_limit).reconcile
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            name: SingletonReconciler(name, reconcile, self._manager.metrics).run
            for name, reconcile in periodic.items()
        }
        if self._settings.health_probe_port:
            parts["health"] = HttpServer(
                ListenAddress(
                    self._settings.health_probe_port, "--health-probe-port", "health probes cannot be answered"
                ),
                healthz.health_pages(
                    {"manager": self._not_ready_reason, "crd": self._crd_check.unready, "ping": lambda: ""}
                ),
            ).run
        if self._settings.metrics_port:
            registry = self._manager.metrics.registry
            registry.has_legacy_names = self._settings.legacy_metrics
            pages = debug_pages.metrics_pages(registry)
            if self._settings.enable_profiling:
                pages |= debug_pages.debug_pages(self._debug_state)
            address = ListenAddress(self._settings.metrics_port, "--metrics-port", "metrics cannot be served")
            parts["metrics"] = HttpServer(address, pages).run
        return [asyncio.create_task(run_supervised(name, part)) for name, part in parts.items()]

    def _faults(self) -> list[KubeError]:
        return self._election.api_server_faults() + self._manager.informers.faults()

    def _unsynced(self) -> str:
        """What the state still waits for; while the API server fails, its faults are reported instead."""
        return "" if self._faults() else self._manager.informers.unready()

    def _not_ready_reason(self) -> str:
        return "; ".join(map(str, self._election.api_server_faults())) or self._manager.informers.unready()

    def _debug_state(self) -> object:
        manager = self._manager
        sources = DebugSources(
            manager.state,
            manager.provisioner.last_plan,
            self._election.fence.is_open,
            manager.informers.unready(),
            manager.command_history.journal.entries(),
            manager.disruption.awaiting_validation,
        )
        return debug_state(sources, manager.context.clock.now())

    async def _log_api_server_faults(self) -> float:
        """While the API server cannot be used, log why and what to do; and when it can be used again."""
        report = self._fault_reporter.update(self._faults(), asyncio.get_running_loop().time())
        for line in report.lines:
            _log.error("the API server cannot be used", error=line)
        if report.has_recovered:
            _log.info("the API server can be used again")
        return _FAULT_POLL_SECONDS


# -- the end ------------------------------------------------------------------------------------------------------------------


def _shutdown_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT; from then on these do what they always do, so that a second one ends the process as it stands."""
    shutdown = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        shutdown.set()
        for sort in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(sort)

    for sort in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sort, end)
    return shutdown


async def _wait_for_end(shutdown: asyncio.Event, work: asyncio.Task[None], leadership: Leadership) -> None:
    """Wait for the shutdown signal. Raises ``LeadershipLost``, and what the work failed with."""
    waiting = asyncio.create_task(shutdown.wait())
    lost = asyncio.create_task(leadership.ended())
    try:
        await asyncio.wait({waiting, work, lost}, return_when=asyncio.FIRST_COMPLETED)
        for task in (lost, work):
            if task.done():
                task.result()
    finally:
        await _cancel_tasks(waiting, lost)


async def _shut_down(work: asyncio.Task[None], election: _LeaderElection) -> None:
    """Stop working, wait for what is under way, let another process lead."""
    _log.info("Shutdown signal received, waiting for all workers to finish")
    now = asyncio.get_running_loop().time
    end = now() + _SHUTDOWN_SECONDS
    election.fence.close()
    work.cancel()
    await asyncio.wait({work}, timeout=_SHUTDOWN_SECONDS)
    await election.fence.drain(max(0.0, end - now()))
    with suppress(LeadershipLost):  # meanwhile, which is what is wanted now
        await election.leadership.release()
    _log.info("All workers finished")


async def _abort(work: asyncio.Task[None], fence: Fence) -> None:
    """Stop at once: another process leads, or soon will."""
    fence.close()
    await fence.drain(0.0)
    work.cancel()
    await asyncio.wait({work}, timeout=_ABORT_SECONDS)


async def _cancel_tasks(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
