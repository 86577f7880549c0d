"""A whole cluster in one process: API server, scheduler, workload controllers, a cloud, and the controllers under study.

The manager here is the one ``karpenter run`` starts; only what surrounds it is played. Under ``sim.time.run`` a stage is
deterministic and fast, under ``run_paced`` people can watch it, and with ``kube.serve`` they can reach into it.

    async with on_stage(clock, Cast(ec2.types())) as stage:
        await stage.put(*objects)
        assert await stage.until(lambda: stage.census().pending == 0, 300)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from karpenter.api import kinds
from karpenter.api.core import ConfigMap, Pod
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.catalog.types import InstanceType
from karpenter.cluster import ClusterState
from karpenter.control.manager import Extra, Manager
from karpenter.control.settings import Settings
from karpenter.kube.informer import Informer, Scope
from karpenter.kube.memory import MemoryKube, MemoryServer
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.providers.simulated import Faults, Machines, SimulatedProvider, Timing
from karpenter.providers.simulated.instances import NAMESPACE, SELECTOR
from karpenter.sim.ledger import Ledger
from karpenter.sim.scheduler import Scheduler
from karpenter.sim.workloads import Workloads

#: How often ``until`` looks, in seconds of the stage's clock.
LOOK_SECONDS = 1.0

#: Nothing on a stage watches leases.
NO_HEARTBEATS = Timing(lease_renewal=None)

_KIND_OF: dict[type[Wire], Kind[Wire]] = {kind.type: kind for kind in kinds.KINDS.values()}


@dataclass(frozen=True)
class Cast:
    """What a stage is set up with."""

    types: Sequence[InstanceType]
    settings: Settings = field(default_factory=Settings)
    faults: Faults = field(default_factory=Faults)
    timing: Timing = NO_HEARTBEATS


@dataclass(frozen=True, slots=True)
class Census:
    """How many of what there are. ``pods``, ``ready`` and ``pending`` leave DaemonSets out; ``machines`` is the cloud's count."""

    pods: int
    ready: int
    pending: int
    daemon_pods: int
    nodes: int
    claims: int
    machines: int

    @property
    def settled(self) -> bool:
        """Whether every pod is ready."""
        return self.ready == self.pods

    @property
    def bare(self) -> bool:
        """Whether nothing is left: no pod, nothing that costs money and nothing that stands for it."""
        return not (self.pods or self.daemon_pods or self.nodes or self.claims or self.machines)


class Stage:
    """The assembled cluster; ``on_stage`` runs it."""

    def __init__(self, clock: Clock, cast: Cast) -> None:
        self.clock = clock
        self.server = MemoryServer(clock)
        self.kube = MemoryKube(self.server)
        self.cloud = SimulatedProvider(self.kube, clock, tuple(cast.types), cast.faults)
        machines = Machines(self.kube, clock, cast.timing)
        extra = Extra({"machines": machines.run}, {"instances": self.cloud.collect_garbage}, faults=machines.faults)
        self.manager = Manager(self.kube, self.cloud, clock, cast.settings, extra)
        self.ledger = Ledger(clock, self.manager.state)
        self.manager.pods.subscribe(self.ledger.on_pod)
        self._books: Informer[ConfigMap] = Informer(self.kube, kinds.CONFIG_MAP, Scope(NAMESPACE, SELECTOR))
        self._books.subscribe(self.ledger.on_machine)
        self._scheduler = Scheduler(self.kube, clock)
        self._workloads = Workloads(self.kube, self.clock)

    @property
    def state(self) -> ClusterState:
        """The controllers' own view of the cluster."""
        return self.manager.state

    def parts(self) -> dict[str, Coroutine[object, object, None]]:
        """Everything that has to run, by name."""
        return {
            "books": self._books.run(),
            "manager": self.manager.run(),
            "scheduler": self._scheduler.run(),
            "workloads": self._workloads.run(),
        }

    async def ready(self) -> None:
        """Wait until the stage has seen its own (empty) API server."""
        await self._books.wait_synced()
        await self.manager.pods.wait_synced()

    async def put(self, *objects: Wire) -> None:
        """Create objects of any kinds, in this order. Raises ``KubeError`` for the first that is refused."""
        for item in objects:
            await self.kube.create(_KIND_OF[type(item)], item)

    async def scale(self, deployment: str, replicas: int, namespace: str = "default") -> None:
        """Tell a Deployment how many pods it wants. Raises ``NotFound``."""
        await self.kube.patch(kinds.DEPLOYMENT, deployment, {"spec": {"replicas": replicas}}, namespace)

    def pods(self) -> list[Pod]:
        """The pods that no DaemonSet owns."""
        return [pod for pod in self.manager.pods if not pods.is_daemon(pod)]

    def census(self) -> Census:
        """Everything counted, as the controllers see it now."""
        own = self.pods()
        active = [pod for pod in own if pods.is_active(pod)]
        views = self.state.views()
        return Census(
            pods=len(active),
            ready=sum(is_ready(pod) for pod in active),
            pending=sum(not pod.spec.node_name for pod in active),
            daemon_pods=len(self.manager.pods) - len(own),
            nodes=sum(view.node is not None for view in views),
            claims=len(self.state.claims()),
            machines=len(self._books),
        )

    async def until(self, holds: Callable[[], bool], within_seconds: float) -> bool:
        """Wait for something to hold, looking every second; whether it did in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        while not holds():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True


def is_ready(pod: Pod) -> bool:
    """Whether the pod reports Ready."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


@asynccontextmanager
async def on_stage(clock: Clock, cast: Cast) -> AsyncIterator[Stage]:
    """Run a stage while the context lasts. A part that breaks ends it, and is raised as it was."""
    stage = Stage(clock, cast)
    try:
        async with asyncio.TaskGroup() as group:
            at_work = [group.create_task(part, name=name) for name, part in stage.parts().items()]
            await stage.ready()
            try:
                yield stage
            finally:
                for task in at_work:
                    task.cancel()
    except BaseExceptionGroup as broken:
        if len(broken.exceptions) == 1:
            raise broken.exceptions[0] from None
        raise
