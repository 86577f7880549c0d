"""Simulates what runs on the double's instances: bootstrap, kubelet, shutdown.

It lists the double's instances a few times a second. A running instance reads its user data; if the user data is valid for this
cluster, a Node is registered, becomes ready, sends heartbeats and runs pods. While the instance shuts down, the Node is not
ready; when it is terminated, the Node is deleted, as by the cloud controller manager. ``failures`` has the reason of instances
that cannot join.
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
from support.aws.bootstrap import BootstrapConfig, BootstrapError, read
from support.aws.nodes import InstanceDescription
from support.aws.pods import SimulatedPods

_log = structlog.get_logger()


class ClusterAddress(NamedTuple):
    """The cluster that instances must join; ``certificate`` is base64."""

    cluster: str
    endpoint: str
    certificate: str


@dataclass(frozen=True)
class NodeTiming:
    """Delays and intervals in seconds. ``registration`` is the delay after the instance runs."""

    registration: float = 0.0
    readiness: float = 0.0
    heartbeat: float = 10.0
    poll: float = 0.1


class InstanceSource(Protocol):
    """Lists the instances of a double."""

    def instances(self) -> list[dict[str, Any]]:
        """All instances."""


class RemoteInstances:
    """A double in another process."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/_double/instances"

    def instances(self) -> list[dict[str, Any]]:
        """All instances."""
        with urllib.request.urlopen(urllib.request.Request(self._url, b"{}"), timeout=30) as answer:
            return list(json.load(answer)["result"])


@dataclass
class _InstanceProgress:
    """Bootstrap configuration of an instance, and the loop times at which it started and registered."""

    config: BootstrapConfig
    running_since: float
    registered_at: float | None = None


@dataclass
class _Observed:
    """Observed instances and Nodes."""

    progress: dict[str, _InstanceProgress] = field(default_factory=dict)
    running_nodes: set[str] = field(default_factory=set)
    nodes: dict[str, Node] = field(default_factory=dict)


class NodeSimulator:
    """Simulates the double's instances while ``run`` runs."""

    def __init__(
        self,
        kube: Kube,
        source: InstanceSource,
        cluster: ClusterAddress,
        timing: NodeTiming = NodeTiming(),
        region: str = "us-west-2",
        clock: Clock | None = None,
    ) -> None:
        self._kube = kube
        self._source = source
        self._cluster = cluster
        self._timing = timing
        self._region = region
        self._clock = clock or SystemClock()
        self._observed = _Observed()
        self._leases = NodeLeases(kube, self._clock, _log_fault)
        self._pods = SimulatedPods(kube, self._clock, self._is_running, lambda key, error: _log_fault(str(key), error))
        self.failures: dict[str, str] = {}
        self.hung: set[str] = set()
        #: The number of completed polls of all instances.
        self.polls = 0

    def hang_kubelet(self, node: str) -> None:
        """Hang the kubelet of a Node: the Node is not ready, sends no heartbeats and starts no pods."""
        self.hung.add(node)

    async def run(self) -> None:
        """Run until cancelled."""
        node_informer = Informer(self._kube, NODE)
        node_informer.subscribe(self._on_node)
        pods, queue = self._pods.parts()
        async with asyncio.TaskGroup() as group:
            group.create_task(node_informer.run())
            group.create_task(pods.run())
            await node_informer.wait_synced()
            await pods.wait_synced()
            group.create_task(queue.run())
            group.create_task(self._repeat(self._poll, self._timing.poll))
            group.create_task(self._repeat(self._renew_leases, self._timing.heartbeat))

    def _is_running(self, node: str) -> bool:
        return node in self._observed.running_nodes and node not in self.hung

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = (new or old or Node()).metadata.name
        if new is None:
            self._observed.nodes.pop(name, None)
        else:
            self._observed.nodes[name] = new

    async def _repeat(self, step: Callable[[], Any], seconds: float) -> None:
        while True:
            await step()
            await asyncio.sleep(seconds)

    async def _renew_leases(self) -> None:
        await self._leases.renew([node for name, node in list(self._observed.nodes.items()) if self._is_running(name)])

    async def _poll(self) -> None:
        rows = await asyncio.to_thread(self._source.instances)
        for instance in msgspec.convert(rows, list[InstanceDescription]):
            try:
                await self._reconcile(instance)
            except KubeError as error:
                # The next poll tries again.
                _log_fault(instance.private_dns, error)
        self.polls += 1

    async def _reconcile(self, instance: InstanceDescription) -> None:
        if instance.instance_id in self.failures:
            return
        if instance.state == "running":
            await self._advance(instance)
        elif instance.state in ("stopped", "shutting-down", "terminated"):
            await self._shut_down(instance)

    # -- join -----------------------------------------------------------------------------------------------------------------

    async def _advance(self, instance: InstanceDescription) -> None:
        now = asyncio.get_running_loop().time()
        progress = self._observed.progress.get(instance.instance_id)
        if progress is None:
            try:
                config = self._read_bootstrap_config(instance)
            except BootstrapError as error:
                self.failures[instance.instance_id] = str(error)
                _log.warning("instance cannot join", instance=instance.instance_id, error=str(error))
                return
            progress = self._observed.progress[instance.instance_id] = _InstanceProgress(config, now)
        if progress.registered_at is None:
            if now >= progress.running_since + self._timing.registration:
                await self._register(instance, progress)
            return
        if now >= progress.registered_at + self._timing.readiness:
            await self._become_ready(instance)

    def _read_bootstrap_config(self, instance: InstanceDescription) -> BootstrapConfig:
        """Read the user data of an instance. Raises ``BootstrapError``."""
        config = read(instance.user_data, instance.image_name)
        if config.cluster and config.cluster != self._cluster.cluster:
            raise BootstrapError(f"unknown cluster {config.cluster}")
        if config.endpoint and config.endpoint.rstrip("/") != self._cluster.endpoint.rstrip("/"):
            raise BootstrapError(f"no connection to {config.endpoint}")
        if config.certificate and config.certificate != self._cluster.certificate:
            raise BootstrapError("the API server's certificate is signed by an unknown authority")
        return config

    async def _register(self, instance: InstanceDescription, progress: _InstanceProgress) -> None:
        node = nodes.new_node(instance, progress.config, self._region, self._clock.now())
        try:
            await self._kube.create(NODE, node)
        except AlreadyExists:
            # The Node of an earlier instance with this address still exists.
            stored_node = self._observed.nodes.get(node.metadata.name)
            if stored_node is None or stored_node.spec.provider_id != instance.provider_id:
                return
        progress.registered_at = asyncio.get_running_loop().time()
        self._observed.running_nodes.add(instance.private_dns)
        self._pods.reconcile_pods_of(instance.private_dns)

    async def _become_ready(self, instance: InstanceDescription) -> None:
        node = self._observed.nodes.get(instance.private_dns)
        if node is None or node.spec.provider_id != instance.provider_id:
            return
        if instance.private_dns in self.hung:
            await self._set_readiness(node, states.UNKNOWN, "NodeStatusUnknown")
            return
        await self._set_readiness(node, states.TRUE, "KubeletReady")
        lifted = simulated_kubelet.remove_not_ready_taint_patch(node)
        if lifted is not None:
            await self._patch(node, lifted)

    async def _set_readiness(self, node: Node, status: str, reason: str) -> None:
        patch = nodes.readiness_patch(node, status, reason, self._clock.now())
        if patch is not None:
            await self._patch(node, patch, "status")

    async def _patch(self, node: Node, patch: JsonObject, subresource: str = "") -> None:
        version = "" if subresource else node.metadata.resource_version
        try:
            await self._kube.patch(NODE, node.metadata.name, patch, subresource=subresource, resource_version=version)
        except (NotFound, Conflict):
            return

    # -- shut down ------------------------------------------------------------------------------------------------------------

    async def _shut_down(self, instance: InstanceDescription) -> None:
        node = self._observed.nodes.get(instance.private_dns)
        if node is None or node.spec.provider_id != instance.provider_id:
            return
        self._observed.running_nodes.discard(instance.private_dns)
        await self._set_readiness(node, states.FALSE, "KubeletNotReady")
        if instance.state != "terminated":
            return
        for pod in self._pods.on(instance.private_dns):
            await self._pods.remove(pod)
        if node.metadata.deletion_timestamp is None:
            await self._remove(node)
        await self._leases.remove(instance.private_dns)

    async def _remove(self, node: Node) -> None:
        try:
            await self._kube.delete(NODE, node.metadata.name, uid=node.metadata.uid)
        except (NotFound, Conflict):
            return


def _log_fault(name: str, error: Exception) -> None:
    _log.debug("simulated node retries", name=name, error=str(error))
