"""A cluster under a real controller, in virtual time, for tests of controllers.

``in_virtual_time`` turns ``async def test(cluster)`` into a test that runs on the in-memory API server without ever sleeping. The
controller is a real ``Manager``. It talks through ``InterceptedKube``, which keeps a record of its writes, can refuse them and
can cut the process off after any of them, as a crash would. Clouds: ``FakeCloud`` does what a test scripts, ``simulated`` starts
the real simulated one.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import structlog

from karpenter.api import kinds
from karpenter.api.core import Event, Node, NodeSpec, NodeStatus, Pod
from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodeClaimSpec, NodePool, NodePoolTaint
from karpenter.api.kwok_node_class import KWOKNodeClass, KWOKNodeClassSpec
from karpenter.api.meta import Condition, ObjectMeta, OwnerReference, Wire
from karpenter.api.older_kinds import AWS_NODE_TEMPLATE, MACHINE, PROVISIONER
from karpenter.api.scheduling_constraints import Taint
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import KubeError, NotFound
from karpenter.manager import Manager, ManagerOptions
from karpenter.model import conditions, labels
from karpenter.providers.decorators import TimeoutProvider
from karpenter.providers.simulated import Faults, SimulatedNodes, SimulatedProvider, SimulatedTiming
from karpenter.runtime import logging
from karpenter.runtime.intervals import Intervals
from karpenter.settings import Settings
from karpenter.simulation import KubeScheduler, LoopClock, WorkloadControllers
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual
from support.builders import ANY_CAPACITY, NODE_CLASS, node_pool
from support.fake_cloud import TYPES, FakeCloud, InterceptedKube, Write
from support.metrics_scrape import counted

START = datetime(2026, 1, 1, tzinfo=UTC)
_SERVED = cast(
    "tuple[kinds.Kind[Wire], ...]",
    (*kinds.KINDS.values(), kinds.POD_GROUP, kinds.PROVISIONING_REQUEST, PROVISIONER, MACHINE, AWS_NODE_TEMPLATE),
)
#: For tests that last a day: the controllers repeat their work every few minutes, not every few seconds.
RARE = Intervals(
    nodepool_counter=timedelta(minutes=5),
    provisioning_retry=timedelta(minutes=5),
    disruption_poll=timedelta(minutes=5),
    metrics_refresh=timedelta(minutes=5),
)


@dataclass
class VirtualCluster:
    """The cluster, the controller and the cloud that a test acts on and reads."""

    clock: LoopClock
    server: MemoryServer
    kube: MemoryKube
    log: io.StringIO
    settings: Settings = field(default_factory=Settings)
    connection: InterceptedKube = field(init=False)
    cloud: FakeCloud = field(init=False)
    #: The provider of the running controller, where ``simulated`` was called.
    simulated_provider: SimulatedProvider = field(init=False)
    manager: Manager | None = None
    #: The pod the controller is, where it is one of this cluster.
    own_pod: tuple[str, str] | None = None
    _running: asyncio.Task[None] | None = None
    _others: list[asyncio.Task[None]] = field(default_factory=list)
    _provider: Callable[[InterceptedKube], Any] | None = None

    def __post_init__(self) -> None:
        self.connection = InterceptedKube(self.kube)
        self.cloud = FakeCloud(self.clock)

    # -- processes ------------------------------------------------------------------------------------------------------

    async def start(self, settings: Settings | None = None) -> None:
        """Start the controller (again: as a new process) and let it come to rest."""
        self.settings = settings or self.settings
        self.connection = InterceptedKube(self.kube)
        provider = self._provider(self.connection) if self._provider else self.cloud
        collectors = {"instances": provider.collect_garbage} if isinstance(provider, SimulatedProvider) else {}
        bounded = TimeoutProvider(provider)
        self.manager = Manager(
            self.connection, bounded, self.clock, self.settings, ManagerOptions({}, collectors, own_pod=self.own_pod)
        )
        self._running = asyncio.create_task(self.manager.run())
        await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End the controller in an orderly way; raises what it failed with."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def crash(self) -> None:
        """The controller's process vanishes: nothing it has under way is finished."""
        self.connection.dead = True
        await self.stop()

    def crash_after(self, count: int) -> asyncio.Event:
        """Vanish right after the ``count``-th write from now, before its answer arrives; the event tells when."""
        crashed = asyncio.Event()
        last = len(self.connection.writes) + count
        wire = self.connection

        def after(_: Write) -> None:
            if len(wire.writes) == last:
                wire.dead = True
                crashed.set()

        wire.after = after
        return crashed

    def simulated(self, types: tuple[InstanceType, ...] = TYPES, faults: Faults | None = None) -> None:
        """Use the simulated cloud, with instances that live on when the controller does not."""

        def new_provider(wire: InterceptedKube) -> SimulatedProvider:
            self.simulated_provider = SimulatedProvider(wire, self.clock, types, faults)
            return self.simulated_provider

        self._provider = new_provider
        self.also(SimulatedNodes(self.kube, self.clock, SimulatedTiming(lease_renewal=None)).run())

    def scheduled(self) -> None:
        """Run the stand-ins for the scheduler and the workload controllers."""
        self.also(KubeScheduler(self.kube, self.clock).run())
        self.also(WorkloadControllers(self.kube, self.clock).run())

    def also(self, work: Coroutine[Any, Any, None]) -> None:
        self._others.append(asyncio.create_task(work))

    async def end(self) -> None:
        await self.stop()
        for task in self._others:
            task.cancel()
        for result in await asyncio.gather(*self._others, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    # -- what there is --------------------------------------------------------------------------------------------------

    async def node_class(self, name: str = "default", ready: str = "True", **spec: object) -> None:
        kwok_node_class = KWOKNodeClass(metadata=ObjectMeta(name=name), spec=KWOKNodeClassSpec(**spec))
        await self.kube.create(kinds.KWOK_NODE_CLASS, kwok_node_class)
        if ready:
            await self.set_condition(kinds.KWOK_NODE_CLASS, name, "Ready", ready)

    async def pool(self, name: str = "np", **fields: Any) -> NodePool:
        """A pool without readiness: that is the controller's to say. Budgets are open unless given."""
        nodepool = node_pool(name, fields.pop("requirements", (ANY_CAPACITY,)), **fields)
        return await self.kube.create(
            kinds.NODE_POOL, msgspec.structs.replace(nodepool, metadata=ObjectMeta(name=name))
        )

    async def claim(
        self, name: str = "c", *, pool: str = "", requests: Mapping[str, str] = {}, **spec: Any
    ) -> NodeClaim:
        """A claim as a user would write it."""
        meta = spec.pop("metadata", {})
        own = {**({labels.NODE_POOL: pool} if pool else {}), **meta.pop("labels", {})}
        body = NodeClaim(
            metadata=ObjectMeta(name=name, labels=own, **meta),
            spec=NodeClaimSpec(
                **{
                    "requirements": (ANY_CAPACITY,),
                    "node_class_ref": NODE_CLASS,
                    "resources": NodeClaimResourceRequests(requests=requests),
                    **spec,
                }
            ),
        )
        return await self.kube.create(kinds.NODE_CLAIM, body)

    async def join(self, claim_name: str = "c", node_name: str = "", **fields: Any) -> Node:
        """The claim's instance joins the cluster, ready and with the unregistered taint unless told otherwise."""
        claim = await self.get_claim(claim_name)
        node_name = node_name or f"node-{claim_name}"
        amounts = dict(self.cloud.capacity) | fields.pop("amounts", {})
        taints = fields.pop("taints", (labels.UNREGISTERED_TAINT,))
        served = {"karpenter.kwok.sh/kwoknodeclass": "default"}
        ready = Condition(type="Ready", status=fields.pop("ready", "True"))
        await self.kube.create(
            kinds.NODE,
            Node(
                metadata=ObjectMeta(
                    name=node_name, labels={**served, labels.HOSTNAME: node_name, **fields.pop("labels", {})}, **fields
                ),
                spec=NodeSpec(provider_id=claim.status.provider_id, taints=tuple(taints)),
                status=NodeStatus(capacity=amounts, allocatable=amounts, conditions=(ready,)),
            ),
        )
        # A new node gets a not-ready taint by admission, which its kubelet's friends remove.
        return await self.set_taints(node_name, taints)

    async def set_taints(self, name: str, taints: Iterable[Taint]) -> Node:
        return await self.kube.patch(kinds.NODE, name, {"spec": {"taints": msgspec.to_builtins(tuple(taints))}})

    async def set_ready(self, name: str, status: str) -> None:
        await self.set_condition(kinds.NODE, name, "Ready", status)

    async def set_condition(self, kind: Any, name: str, type_: str, status: str, **more: Any) -> None:
        obj = await self.kube.get(kind, name)
        kept = [condition for condition in obj.status.conditions if condition.type != type_]
        defaults: dict[str, Any] = {"reason": type_, "last_transition_time": self.clock.now()}
        kept.append(Condition(type=type_, status=status, **{**defaults, **more}))
        await self.kube.patch(kind, name, {"status": {"conditions": msgspec.to_builtins(kept)}}, subresource="status")

    async def running(self, name: str, node: str, **fields: Any) -> Pod:
        """A pod that runs on a node."""
        from support.builders import pod

        waiting = pod(name, fields.pop("requests", {"cpu": "100m"}), **fields)
        made = await self.kube.create(kinds.POD, waiting)
        await self.kube.bind(name, "default", node)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.kube.patch(kinds.POD, name, {"status": status}, "default", subresource="status")
        return made

    async def waiting(self, *pods: Pod) -> None:
        """Pods the scheduler has looked at and found no place for."""
        for listed_pod in pods:
            bare = msgspec.structs.replace(listed_pod.metadata, uid="", creation_timestamp=None)
            await self.kube.create(kinds.POD, msgspec.structs.replace(listed_pod, metadata=bare))
            status = {"status": msgspec.to_builtins(listed_pod.status)}
            await self.kube.patch(kinds.POD, bare.name, status, "default", subresource="status")

    async def gone(self, name: str) -> None:
        """The kubelet reports the pod's end."""
        await self.kube.delete(kinds.POD, name, "default", grace_period_seconds=0)

    # -- looking --------------------------------------------------------------------------------------------------------

    async def get_claim(self, name: str = "c") -> NodeClaim:
        return await self.kube.get(kinds.NODE_CLAIM, name)

    async def get_node(self, name: str = "node-c") -> Node:
        return await self.kube.get(kinds.NODE, name)

    async def has(self, kind: Any, name: str, namespace: str = "") -> bool:
        try:
            await self.kube.get(kind, name, namespace)
        except NotFound:
            return False
        return True

    async def all(self, kind: Any) -> list[Any]:
        return sorted((await self.kube.list(kind)).items, key=lambda obj: obj.metadata.name)

    async def condition(self, name: str, type_: str) -> tuple[str, str, str] | None:
        """Status, reason and message of a claim's condition."""
        condition = conditions.find_condition((await self.get_claim(name)).status.conditions, type_)
        return None if condition is None else (condition.status, condition.reason, condition.message)

    async def events(self, reason: str = "", about: str = "") -> list[Event]:
        """The events, one entry for each time that one occurred."""
        await asyncio.sleep(0.01)
        return [
            event
            for event in await self.all(kinds.EVENT)
            if reason in ("", event.reason) and about in ("", event.involved_object.name, event.involved_object.kind)
            for _ in range(event.count)
        ]

    def event_times(self, reason: str, kind: str) -> list[datetime]:
        """When the controller wrote events of a reason about objects of a kind: a repeat patches the first one."""
        names: set[str] = set()
        times: list[datetime] = []
        for write in self.connection.writes:
            if write.kind == "Event" and write.verb == "create":
                if (write.body.reason, write.body.involved_object.kind) == (reason, kind):
                    names.add(write.name)
                    times.append(write.body.last_timestamp)
            elif write.kind == "Event" and write.name in names:
                times.append(datetime.fromisoformat(write.body["lastTimestamp"]))
        return times

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """The log lines of a message, or all."""
        result = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in result if message in ("", line["message"])]

    def writes(self, about: str = "") -> list[str]:
        """What the controller wrote, in short, for one kind or all; events aside."""
        return [str(write) for write in self.connection.writes if write.kind != "Event" and about in ("", write.kind)]

    def counted(self, series: str, **described: str) -> float:
        """The value of one of the running process's series; 0 where there is none."""
        assert self.manager is not None
        return counted(self.manager.metrics.registry, f"karpenter_{series}", described) or 0.0

    def ended_for(self, reason: str, pool: str = "", mode: str = "graceful") -> float:
        """How many claims that were launched in the fake cloud ended for a reason, as counted."""
        own = {"reason": reason, "nodepool": pool, "termination_mode": mode, "consolidation_policy": ""}
        return sum(
            self.counted("nodeclaims_disrupted_total", capacity_type=kind, **own) for kind in ("", labels.ON_DEMAND)
        )

    async def owned_claim(self, pool: NodePool, name: str = "c", **fields: Any) -> NodeClaim:
        """A claim as the controller makes them: of a pool, and owned by it."""
        meta = pool.metadata
        owner = OwnerReference(api_version="karpenter.sh/v1", kind="NodePool", name=meta.name, uid=meta.uid)
        metadata = {"owner_references": (owner,), **fields.pop("metadata", {})}
        return await self.claim(name, pool=meta.name, metadata=metadata, **fields)

    async def edit(self, kind: Any, name: str, status: Mapping[str, Any] = {}, **metadata: Any) -> None:
        """Edit an object's metadata and status, as a user with kubectl does."""
        if metadata:
            await self.kube.patch(kind, name, {"metadata": metadata})
        if status:
            await self.kube.patch(kind, name, {"status": status}, subresource="status")

    async def pool_condition(self, type_: str, name: str = "np") -> tuple[str, str, str]:
        """Status, reason and message of a pool's condition; empty texts where it has none."""
        pool = await self.kube.get(kinds.NODE_POOL, name)
        condition = conditions.find_condition(pool.status.conditions, type_)
        return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)

    @property
    def elapsed(self) -> float:
        return (self.clock.now() - START).total_seconds()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60, step: float = 0.5) -> None:
    """Wait in virtual time for something to become true."""
    end = asyncio.get_running_loop().time() + seconds
    while not await condition():
        assert asyncio.get_running_loop().time() < end, f"not within {seconds} s"
        await asyncio.sleep(step)


def refusing(error: Callable[[], KubeError], times: int, *shown: str) -> Callable[[Write], None]:
    """Refuse the first ``times`` writes whose short form (``patch Node``) is among ``shown``."""
    left = [times]

    def refuse(write: Write) -> None:
        if str(write) in shown and left[0] > 0:
            left[0] -= 1
            raise error()

    return refuse


def startup(key: str) -> NodePoolTaint:
    return NodePoolTaint(key=key, effect="NoSchedule")


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def in_virtual_time(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time: its first argument ``cluster`` is made here, all others are the test's parameters."""

    def test(**parameters: Any) -> None:
        async def main(clock: LoopClock) -> None:
            server = MemoryServer(clock, kinds=_SERVED)
            cluster = VirtualCluster(clock, server, MemoryKube(server), log)
            try:
                await body(cluster, **parameters)
            finally:
                await cluster.end()

        log = io.StringIO()
        logging.configure("debug", log)
        try:
            run_virtual(main, START)
        finally:
            structlog.reset_defaults()

    signature = inspect.signature(body)
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    test.__dict__.update(body.__dict__)
    return test
