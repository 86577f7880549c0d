"""A whole cluster in one process: API server, scheduler, workload controllers, a simulated cloud, and the controllers under
test.

The manager is the one that ``karpenter run`` starts; everything around it is simulated. Under ``run_virtual`` a run is
deterministic and fast, under ``run_paced`` people can watch it, and ``apiserver.http_front.serving`` opens it to kubectl.

    async with running_cluster(clock, SimulationConfig(ec2_packaged_types.packaged_instance_types())) as cluster:
        await cluster.create(*objects)
        assert await cluster.wait_until(lambda: cluster.counts().pending == 0, 300)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from karpenter.api import kinds
from karpenter.api.core import ConfigMap, Pod
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.informer import Informer, WatchScope
from karpenter.kube.protocol import JsonObject
from karpenter.manager import Manager, ManagerOptions
from karpenter.manager_informers import ClusterInformers, WatchedKinds
from karpenter.model import pods
from karpenter.model.clock import Clock
from karpenter.model.pod_defaults import default_pod_spec
from karpenter.providers.simulated import Faults, NamedNodes, SimulatedNodes, SimulatedProvider, SimulatedTiming
from karpenter.providers.simulated.simulated_instances import (
    INSTANCE_NAMESPACE,
    INSTANCE_SELECTOR,
    SimulatedInstance,
    SimulatedInstanceStore,
)
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.settings import Settings
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.kube_scheduler import KubeScheduler
from karpenter.simulation.run_history import RunHistory
from karpenter.simulation.workload_controllers import WorkloadControllers
from karpenter.state import ClusterState

#: How often ``wait_until`` checks, in seconds of the cluster's clock.
POLL_SECONDS = 1.0
#: Between the notice of an interruption and the end of the instance, as EC2 gives it.
INTERRUPTION_NOTICE = timedelta(minutes=2)

#: Nothing in a simulated cluster watches leases.
NO_NODE_HEARTBEATS = SimulatedTiming(lease_renewal=None)

_KIND_BY_TYPE: dict[type[Wire], Kind[Wire]] = {kind.type: kind for kind in kinds.KINDS.values()}


@dataclass(frozen=True)
class SimulationConfig:
    """What a simulated cluster is made of. ``history``: how many changes of a kind a watch can go back.

    ``objects``: what the API server has when the controllers start, status and times included, as if it had always been there.
    ``named_nodes``: those of these nodes whose names are not of the simulated cloud's making.
    """

    types: Sequence[InstanceType]
    settings: Settings = field(default_factory=Settings)
    faults: Faults = field(default_factory=Faults)
    timing: SimulatedTiming = NO_NODE_HEARTBEATS
    history: int = 10_000
    objects: tuple[Wire, ...] = ()
    named_nodes: NamedNodes = field(default_factory=NamedNodes)


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """Counts of objects. ``pods``, ``ready`` and ``pending`` leave DaemonSets out; ``instances`` is the cloud's count."""

    pods: int
    ready: int
    pending: int
    daemon_pods: int
    nodes: int
    claims: int
    instances: int

    @property
    def all_ready(self) -> bool:
        """Whether every pod is ready."""
        return self.ready == self.pods

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left: no pods, nodes, NodeClaims or instances."""
        return not (self.pods or self.daemon_pods or self.nodes or self.claims or self.instances)


class SimulatedCluster:
    """The assembled cluster; ``running_cluster`` runs it."""

    def __init__(self, clock: Clock, config: SimulationConfig) -> None:
        self.clock = clock
        self.server = MemoryServer(clock, history=config.history)
        self.server.load_objects(map(_stored_object, config.objects))
        self.kube = MemoryKube(self.server)
        self.cloud = SimulatedProvider(self.kube, clock, tuple(config.types), config.faults)
        nodes = SimulatedNodes(self.kube, clock, config.timing, config.named_nodes)
        informers = ClusterInformers(self.kube, WatchedKinds.of(config.settings, self.cloud.node_class_kinds))
        informers.fault_sources.append(nodes.faults)
        options = ManagerOptions(
            {"machines": partial(nodes.run, informers.pods)},
            {"instances": self.cloud.collect_garbage},
            informers=informers,
        )
        self.manager = Manager(self.kube, self.cloud, clock, config.settings, options)
        self.history = RunHistory(clock, self.manager.state)
        self.manager.informers.pods.subscribe(self.history.on_pod)
        self._instances: Informer[ConfigMap] = Informer(
            self.kube, kinds.CONFIG_MAP, WatchScope(INSTANCE_NAMESPACE, INSTANCE_SELECTOR)
        )
        self._instances.subscribe(self.history.on_instance)
        self._scheduler = KubeScheduler(self.kube, clock)
        self._workloads = WorkloadControllers(self.kube, self.clock)

    @property
    def state(self) -> ClusterState:
        """The cluster state of the controllers."""
        return self.manager.state

    def tasks(self) -> dict[str, Coroutine[object, object, None]]:
        """The tasks to run, by name."""
        return {
            "books": self._instances.run(),
            "manager": self.manager.run(),
            "scheduler": self._scheduler.run(),
            "workloads": self._workloads.run(),
        }

    async def wait_synced(self) -> None:
        """Wait until the informers have listed the API server."""
        await self._instances.wait_synced()
        await self.manager.informers.pods.wait_synced()

    async def create(self, *objects: Wire) -> None:
        """Create objects of any kinds, in this order. Raises ``KubeError`` for the first that is refused."""
        for wire in objects:
            await self.kube.create(_KIND_BY_TYPE[type(wire)], wire)

    def set_absent_controllers(self, replicas_of: Callable[[str], int | None]) -> None:
        """Register workloads that are not in the API server, by uid, with their replicas, for disruption budgets."""
        self._workloads.absent_controllers = replicas_of

    async def scale(self, deployment: str, replicas: int, namespace: str = "default") -> None:
        """Set the replicas of a Deployment. Raises ``NotFound``."""
        await self.kube.patch(kinds.DEPLOYMENT, deployment, {"spec": {"replicas": replicas}}, namespace)

    async def interrupt(self, instance: SimulatedInstance) -> None:
        """Announce that the cloud takes an instance back in two minutes, in an event as well. Raises ``ProviderError``."""
        await SimulatedInstanceStore(self.kube).interrupt(instance, self.clock.now(), INTERRUPTION_NOTICE)
        claim = self.state.claim(instance.claim_name)
        if claim is not None:
            about, text = involved_claim(claim.metadata), "The cloud takes the spot instance back in two minutes"
            self.manager.context.events.publish(ObjectEvent(about, WARNING, "SpotInterrupted", text))

    def pods(self) -> list[Pod]:
        """The pods that no DaemonSet owns."""
        return [pod for pod in self.manager.informers.pods if not pods.is_daemonset_pod(pod)]

    def counts(self) -> ClusterCounts:
        """Everything counted, as the controllers see it now."""
        own = self.pods()
        active = [pod for pod in own if pods.is_active(pod)]
        views = self.state.state_nodes()
        return ClusterCounts(
            pods=len(active),
            ready=sum(is_pod_ready(pod) for pod in active),
            pending=sum(not pod.spec.node_name for pod in active),
            daemon_pods=len(self.manager.informers.pods) - len(own),
            nodes=sum(view.node is not None for view in views),
            claims=len(self.state.claims()),
            instances=len(self._instances),
        )

    async def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait for a condition, checked every second; whether it did in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while not condition():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def _stored_object(wire: Wire) -> JsonObject:
    """The object as an API server has it: with the defaults of pods."""
    body: dict[str, Any] = msgspec.json.decode(_KIND_BY_TYPE[type(wire)].encode(wire))
    if isinstance(wire, Pod):
        default_pod_spec(body.setdefault("spec", {}))
    return body


def is_pod_ready(pod: Pod) -> bool:
    """Whether the pod reports Ready."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


@asynccontextmanager
async def running_cluster(clock: Clock, config: SimulationConfig) -> AsyncIterator[SimulatedCluster]:
    """Run a cluster while the context lasts. A failing part ends it; its exception is raised."""
    stage = SimulatedCluster(clock, config)
    try:
        async with asyncio.TaskGroup() as group:
            at_work = [group.create_task(part, name=name) for name, part in stage.tasks().items()]
            await stage.wait_synced()
            try:
                yield stage
            finally:
                for task in at_work:
                    task.cancel()
    except BaseExceptionGroup as broken:
        if len(broken.exceptions) == 1:
            raise broken.exceptions[0] from None
        raise
