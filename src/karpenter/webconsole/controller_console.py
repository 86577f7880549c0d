"""The console that the controller serves: its own view of the cluster, for users of Kubernetes by their tokens."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn
from starlette.applications import Starlette

from karpenter.console.console_input import ClusterWires, ConsoleInput
from karpenter.console.pending_pods import pod_placements
from karpenter.console.visible_objects import namespaces_by_interest
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.kube import config
from karpenter.kube.protocol import Kube, Writer
from karpenter.manager_process import RunningController
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.token_bucket import TokenBucket
from karpenter.scheduling.solution import Solution
from karpenter.settings import Settings
from karpenter.state.snapshot import PodKey
from karpenter.webconsole.console_app import ConsoleParts, Explain, WhyNoWake, console_app
from karpenter.webconsole.console_feed import ConsoleFeeds
from karpenter.webconsole.viewer_access import KubernetesAccess

_INDEX_SECONDS = 10.0
_RETRY_SECONDS = 5.0
_SHUTDOWN_SECONDS = 2
_RENEWAL_SECONDS = 600.0
#: Requests about viewers: a viewer who may list pods of single namespaces only costs up to 211, remembered for half a minute.
_REVIEWS_PER_SECOND, _REVIEW_BURST = 20, 300
#: How long an order of namespaces is kept: it costs a walk over all pods.
_ORDER_SECONDS = 30.0
_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_log = structlog.get_logger()


class ControllerSource:
    """What the controllers of this process know of the cluster. It asks the API server nothing."""

    def __init__(self, running: RunningController) -> None:
        self._manager = running.manager
        self._leads = running.leads
        self._indexes: Mapping[str, TypeIndex] = {}
        self._plan = Solution()
        self._placements: Mapping[PodKey, str] = {}
        self._ordered_at = -math.inf
        self._ordered_namespaces: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Which cluster it is, and whether the replica that shows it leads."""
        if self._leads():
            return "the cluster of this controller"
        return "the cluster of this controller, as a replica sees it that does not lead"

    @property
    def _is_current(self) -> bool:
        """Whether this process watches the cluster, and knows it."""
        informers = self._manager.informers
        return informers.is_running and not informers.unready()

    def fault(self) -> str:
        """Why the view may be stale, in one line."""
        if not self._manager.informers.is_running:
            return "this process does not watch the cluster yet"
        return self._manager.informers.unready() or "; ".join(map(str, self._manager.informers.faults()))

    def history_fault(self) -> str:
        """Why there is no history here: only the replica that leads keeps one, in its own file."""
        if self._manager.history is None or self._leads():
            return ""
        return "this replica does not lead, and the one that leads keeps the history; load the page again to reach it"

    async def run(self) -> None:
        """Keep the instance types current until cancelled."""
        while True:
            if self._is_current:
                overlays = self._manager.overlay_controller
                if overlays is not None and not self._leads():
                    await overlays.apply()  # the controller that does so in the replica that leads does not run here
                self._indexes = await self._manager.observer.indexes()
            await asyncio.sleep(_INDEX_SECONDS if self._indexes else 1.0)

    def namespaces(self) -> tuple[str, ...]:
        """The names of all namespaces, those with waiting pods first, then those with most pods; up to half a minute old."""
        now = asyncio.get_running_loop().time()
        if now >= self._ordered_at + _ORDER_SECONDS:
            informers = self._manager.informers
            names = (namespace.metadata.name for namespace in informers.namespaces)
            self._ordered_namespaces = namespaces_by_interest(names, informers.pods)
            self._ordered_at = now
        return self._ordered_namespaces

    def current(self) -> ConsoleInput | None:
        """The whole cluster; None until it is known. Costs a snapshot and tuples of immutable objects."""
        if not self._is_current:
            return None
        manager, informers = self._manager, self._manager.informers
        return ConsoleInput(
            manager.state.snapshot(),
            manager.context.clock.now(),
            tuple(informers.pods),
            tuple(informers.nodes),
            indexes=self._indexes,
            placements=self._last_placements(),
            wires=ClusterWires(
                tuple(informers.claims), tuple(informers.pools), tuple(informers.pdbs), tuple(informers.namespaces)
            ),
        )

    def _last_placements(self) -> Mapping[PodKey, str]:
        """What the last scheduling pass says about its pods: written once per pass."""
        plan = self._manager.provisioner.last_plan
        if plan is not self._plan:
            self._plan, self._placements = plan, pod_placements(plan)
        return self._placements


def why_no_wake_with(gates: FeatureGates) -> WhyNoWake:
    """Whether a controller with these gates lets NodePools sleep and wake."""
    gate = FeatureGate.CAPACITY_SCHEDULE
    why = "" if gate in gates else f"the controller has the feature gate {gate} off, so this would have no effect"

    async def why_no_wake(_kube: Kube) -> str:
        return why

    return why_no_wake


class ControllerConsole:
    """Serves the console of one process. A port that cannot be had, or certificates that are missing, are logged."""

    def __init__(self, settings: Settings, explain: Explain) -> None:
        self._settings = settings
        self._explain = explain
        folder = settings.console_certificate_directory
        self._certificates = Path(folder) if folder else None

    async def run(self, running: RunningController) -> None:
        """Serve until cancelled."""
        source = ControllerSource(running)
        # Viewers spend requests of their own, never those of the controllers, and may sign in where this process does not lead.
        bucket = TokenBucket(_REVIEWS_PER_SECOND, _REVIEW_BURST)
        async with config.connect(running.connection, bucket) as reviews:
            parts = self._parts(running, source, reviews)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(source.run())
                    group.create_task(self._serve(console_app(parts)))
            finally:
                await parts.feeds.close()

    def _parts(self, running: RunningController, source: ControllerSource, reviews: Writer) -> ConsoleParts:
        settings, history = self._settings, running.manager.history
        options = settings.disruption_options(settings.scheduling_options(settings.gates), settings.gates)
        return ConsoleParts(
            ConsoleFeeds(source, options, running.manager.context.decisions),
            KubernetesAccess(reviews, source.namespaces, asyncio.get_running_loop().time),
            self._explain,
            history.store if history is not None else None,
            lambda viewer: config.connect(config.with_token(running.connection, viewer.token)),
            source.history_fault,
            why_no_wake_with(settings.gates),
        )

    async def _serve(self, app: Starlette) -> None:
        said = ""
        while True:
            try:
                serving = self._serving(app)
                with self._listening_socket() as listening:
                    async with asyncio.TaskGroup() as group:
                        renewal = group.create_task(self._keep_renewing(serving))
                        await _Server(serving).serve([listening])
                        renewal.cancel()
                return
            except OSError as error:
                if str(error) != said:
                    _log.error("the console cannot be served", port=self._settings.console_port, error=str(error))
                said = str(error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _serving(self, app: Starlette) -> uvicorn.Config:
        """Raises ``OSError`` where the certificate cannot be read."""
        folder = self._certificates
        serving = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            ssl_certfile=folder / _CERTIFICATE if folder else None,
            ssl_keyfile=folder / _KEY if folder else None,
        )
        serving.load()
        return serving

    async def _keep_renewing(self, serving: uvicorn.Config) -> None:
        """Certificates are renewed while the process runs; new connections take what lies there now."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            if serving.ssl is not None and self._certificates is not None:
                try:
                    serving.ssl.load_cert_chain(self._certificates / _CERTIFICATE, self._certificates / _KEY)
                except OSError as error:
                    _log.error("the certificate of the console cannot be read", error=str(error))

    def _listening_socket(self) -> socket.socket:
        """With certificates on the addresses of all families, else on loopback. Raises ``OSError``."""
        address = ("" if self._certificates else "127.0.0.1", self._settings.console_port)
        if self._certificates and socket.has_dualstack_ipv6():
            return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(address)


class _Server(uvicorn.Server):
    """A server that leaves signals to the process around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield
