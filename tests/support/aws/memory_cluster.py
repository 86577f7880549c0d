"""A cluster on the double without a control plane: the in-memory API server, simulated nodes and `karpenter run`.

There is no scheduler. Tests create NodeClaims without a NodePool, which are launched like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from controlplane.harness import Json
from controlplane.process import QUICK, Controller, controller
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP, KINDS, NODE_CLAIM, SECRET
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.bootstrap.bootstrap_objects import CLUSTER_ROLE_BINDING
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from support.aws.aws_cluster import CLUSTER
from support.aws.clients import AwsEndpoint, sdk_environment
from support.aws.node_simulator import ClusterAddress, InstanceSource, NodeSimulator, NodeTiming

_CERTIFICATE = "Q0E="
_AT_ONCE = NodeTiming()


@dataclass(frozen=True)
class MemoryCluster:
    """The cluster. Objects are loaded or created through ``kube``."""

    server: MemoryServer
    kube: MemoryKube
    url: str
    cloud: AwsEndpoint
    folder: Path

    @asynccontextmanager
    async def controller(
        self, *flags: str, intervals: Mapping[str, str] = QUICK, **environment: str
    ) -> AsyncIterator[Controller]:
        """`karpenter run` on this cluster; enter it in the main thread. Asserts a clean exit, unless it has exited before."""
        path = self.folder / "kubeconfig"
        path.write_text(kubeconfig_for(self.url))
        variables = {**controller_environment(self.url), **sdk_environment(self.cloud), **environment}
        with controller(str(path), *flags, environment=variables, intervals=intervals) as running:
            yield running
            # Terminate it here: the event loop must serve the process until it has exited.
            if running.is_running:
                assert await asyncio.to_thread(running.terminate) == 0, running.log[-2000:]

    def load(self, *objects: Json) -> None:
        """Store objects."""
        self.server.load_objects(objects)

    async def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims."""
        return (await self.kube.list(NODE_CLAIM)).items

    @asynccontextmanager
    async def simulated_nodes(
        self, source: InstanceSource, timing: NodeTiming = _AT_ONCE
    ) -> AsyncIterator[NodeSimulator]:
        """Simulate what runs on the double's instances."""
        simulator = NodeSimulator(
            self.kube, source, ClusterAddress(CLUSTER, self.url, _CERTIFICATE), timing, self.cloud.region_name
        )
        task = asyncio.create_task(simulator.run())
        try:
            yield simulator
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def memory_cluster(cloud: AwsEndpoint, *objects: Json) -> AsyncIterator[MemoryCluster]:
    """Start a cluster with these objects."""
    served = (*KINDS.values(), CLUSTER_ROLE_BINDING, CONFIG_MAP, SECRET)
    server = MemoryServer(SystemClock(), kinds=served, history=100_000)
    server.load_objects(objects)
    async with serving(server) as url:
        with TemporaryDirectory() as folder:
            yield MemoryCluster(server, MemoryKube(server), url, cloud, Path(folder))


def controller_environment(url: str) -> dict[str, str]:
    """Environment of a controller of the cluster at ``url``."""
    return {
        "KARPENTER_PROVIDER": "aws",
        "CLUSTER_NAME": CLUSTER,
        "EKS_CONTROL_PLANE": "true",
        "CLUSTER_ENDPOINT": url,
        "CLUSTER_CA_BUNDLE": _CERTIFICATE,
    }


def claim(name: str, cpu: str, memory: str, capacity_type: str = "on-demand", node_class: str = "default") -> Json:
    """A NodeClaim without a NodePool, for these requests."""
    requirements: list[Json] = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
        {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
    ]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name},
        "spec": {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": node_class},
            "requirements": requirements,
            "resources": {"requests": {"cpu": cpu, "memory": memory, "pods": "5"}},
        },
    }
