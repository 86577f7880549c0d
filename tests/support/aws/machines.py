"""The stand-in for what runs on the double's machines: bootstrap, kubelet, shutdown.

It asks the double for its machines a few times a second. One that runs reads its user data; if that is sound and meant for this
cluster, a Node appears, is ready a little later, sends heartbeats and runs pods. When the machine is told to go, the Node is not
ready; when it is gone, the cloud controller takes the Node away. A machine that never joins is in ``failures`` with the reason.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.kinds import NODE
from karpenter.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model import conditions as states
from karpenter.model.clock import Clock, SystemClock
from karpenter.providers.simulated import simulated_kubelet
from karpenter.providers.simulated.node_leases import NodeLeases
from support.aws import nodes
from support.aws.bootstrap import Joining, NeverJoins, read
from support.aws.nodes import Seen
from support.aws.pods import Pods

_log = structlog.get_logger()


class Home(NamedTuple):
    """The cluster machines are meant to join; ``certificate`` is base64."""

    cluster: str
    endpoint: str
    certificate: str


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds. ``registration`` counts from the moment the machine runs."""

    registration: float = 0.0
    readiness: float = 0.0
    heartbeat: float = 10.0
    look: float = 0.1


class Source(Protocol):
    """Where machines are told of."""

    def machines(self) -> list[dict[str, Any]]:
        """All of them."""


class Remote:
    """A double in another process."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/_double/machines"

    def machines(self) -> list[dict[str, Any]]:
        """All of them."""
        with urllib.request.urlopen(urllib.request.Request(self._url, b"{}"), timeout=30) as answer:
            return list(json.load(answer)["result"])


@dataclass
class _Life:
    """What is known of a machine: what it was told, and since when it runs and is registered, in the loop's time."""

    joining: Joining
    running_since: float
    registered_at: float | None = None


@dataclass
class _View:
    """What is known of the world."""

    lives: dict[str, _Life] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    nodes: dict[str, Node] = field(default_factory=dict)


class MachineRoom:
    """Plays the double's machines while ``run`` runs."""

    def __init__(
        self,
        kube: Kube,
        source: Source,
        home: Home,
        pace: Pace = Pace(),
        region: str = "us-west-2",
        clock: Clock | None = None,
    ) -> None:
        self._kube = kube
        self._source = source
        self._home = home
        self._pace = pace
        self._region = region
        self._clock = clock or SystemClock()
        self._view = _View()
        self._leases = NodeLeases(kube, self._clock, _complain)
        self._pods = Pods(kube, self._clock, self._runs, lambda key, error: _complain(str(key), error))
        self.failures: dict[str, str] = {}
        self.silent: set[str] = set()
        #: How often all machines were looked at.
        self.looks = 0

    def silence(self, node: str) -> None:
        """The kubelet of a Node hangs: it is not ready, sends no heartbeats and starts no pods."""
        self.silent.add(node)

    async def run(self) -> None:
        """Play until cancelled."""
        node_informer = Informer(self._kube, NODE)
        node_informer.subscribe(self._on_node)
        pods, queue = self._pods.parts()
        async with asyncio.TaskGroup() as group:
            group.create_task(node_informer.run())
            group.create_task(pods.run())
            await node_informer.wait_synced()
            await pods.wait_synced()
            group.create_task(queue.run())
            group.create_task(self._forever(self._look, self._pace.look))
            group.create_task(self._forever(self._beat, self._pace.heartbeat))

    def _runs(self, node: str) -> bool:
        return node in self._view.alive and node not in self.silent

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = (new or old or Node()).metadata.name
        if new is None:
            self._view.nodes.pop(name, None)
        else:
            self._view.nodes[name] = new

    async def _forever(self, step: Callable[[], Any], seconds: float) -> None:
        while True:
            await step()
            await asyncio.sleep(seconds)

    async def _beat(self) -> None:
        await self._leases.renew([node for name, node in list(self._view.nodes.items()) if self._runs(name)])

    async def _look(self) -> None:
        rows = await asyncio.to_thread(self._source.machines)
        for machine in msgspec.convert(rows, list[Seen]):
            try:
                await self._look_at(machine)
            except KubeError as error:
                # It is looked at again in a moment.
                _complain(machine.private_dns, error)
        self.looks += 1

    async def _look_at(self, machine: Seen) -> None:
        if machine.instance_id in self.failures:
            return
        if machine.state == "running":
            await self._be_up(machine)
        elif machine.state in ("stopped", "shutting-down", "terminated"):
            await self._go_down(machine)

    # -- up -------------------------------------------------------------------------------------------------------------------

    async def _be_up(self, machine: Seen) -> None:
        now = asyncio.get_running_loop().time()
        life = self._view.lives.get(machine.instance_id)
        if life is None:
            try:
                joining = self._boot(machine)
            except NeverJoins as error:
                self.failures[machine.instance_id] = str(error)
                _log.warning("machine never joins", instance=machine.instance_id, error=str(error))
                return
            life = self._view.lives[machine.instance_id] = _Life(joining, now)
        if life.registered_at is None:
            if now >= life.running_since + self._pace.registration:
                await self._register(machine, life)
            return
        if now >= life.registered_at + self._pace.readiness:
            await self._be_ready(machine)

    def _boot(self, machine: Seen) -> Joining:
        """What the machine was told. Raises ``NeverJoins``."""
        joining = read(machine.user_data, machine.image_name)
        if joining.cluster and joining.cluster != self._home.cluster:
            raise NeverJoins(f"no cluster {joining.cluster} here")
        if joining.endpoint and joining.endpoint.rstrip("/") != self._home.endpoint.rstrip("/"):
            raise NeverJoins(f"nobody answers at {joining.endpoint}")
        if joining.certificate and joining.certificate != self._home.certificate:
            raise NeverJoins("the API server's certificate is signed by an unknown authority")
        return joining

    async def _register(self, machine: Seen, life: _Life) -> None:
        node = nodes.new_node(machine, life.joining, self._region, self._clock.now())
        try:
            await self._kube.create(NODE, node)
        except AlreadyExists:
            # A machine that had this address before is not gone from the cluster yet.
            stored_node = self._view.nodes.get(node.metadata.name)
            if stored_node is None or stored_node.spec.provider_id != machine.provider_id:
                return
        life.registered_at = asyncio.get_running_loop().time()
        self._view.alive.add(machine.private_dns)
        self._pods.look_again(machine.private_dns)

    async def _be_ready(self, machine: Seen) -> None:
        node = self._view.nodes.get(machine.private_dns)
        if node is None or node.spec.provider_id != machine.provider_id:
            return
        if machine.private_dns in self.silent:
            await self._tell(node, states.UNKNOWN, "NodeStatusUnknown")
            return
        await self._tell(node, states.TRUE, "KubeletReady")
        lifted = simulated_kubelet.remove_not_ready_taint_patch(node)
        if lifted is not None:
            await self._patch(node, lifted)

    async def _tell(self, node: Node, status: str, reason: str) -> None:
        patch = nodes.readiness_patch(node, status, reason, self._clock.now())
        if patch is not None:
            await self._patch(node, patch, "status")

    async def _patch(self, node: Node, patch: JsonObject, subresource: str = "") -> None:
        version = "" if subresource else node.metadata.resource_version
        try:
            await self._kube.patch(NODE, node.metadata.name, patch, subresource=subresource, resource_version=version)
        except (NotFound, Conflict):
            return

    # -- down -----------------------------------------------------------------------------------------------------------------

    async def _go_down(self, machine: Seen) -> None:
        node = self._view.nodes.get(machine.private_dns)
        if node is None or node.spec.provider_id != machine.provider_id:
            return
        self._view.alive.discard(machine.private_dns)
        await self._tell(node, states.FALSE, "KubeletNotReady")
        if machine.state != "terminated":
            return
        for pod in self._pods.on(machine.private_dns):
            await self._pods.end(pod)
        if node.metadata.deletion_timestamp is None:
            await self._remove(node)
        await self._leases.remove(machine.private_dns)

    async def _remove(self, node: Node) -> None:
        try:
            await self._kube.delete(NODE, node.metadata.name, uid=node.metadata.uid)
        except (NotFound, Conflict):
            return


def _complain(name: str, error: Exception) -> None:
    _log.debug("a machine of the double will try again", name=name, error=str(error))
