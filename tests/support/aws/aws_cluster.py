"""A cluster on the double: a real control plane, an account with a network, simulated nodes and a controller process."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from karpenter.kube.client import KubeClient
from support.aws.clients import sdk_environment
from support.aws.double import REGION, Double
from support.aws.interruption_queue import InterruptionQueue
from support.aws.node_simulator import ClusterAddress, NodeSimulator, NodeTiming
from support.aws.seeds import Seeds, seed

CLUSTER = "test"
_DISCOVERED: Json = {"tags": {"karpenter.sh/discovery": "test"}}
ANY_MODERN: tuple[Json, ...] = (
    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
    {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
    {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
)


def node_class(name: str = "default", **spec: object) -> Json:
    """An EC2NodeClass that selects the double's network."""
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "spec": {
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "role": "node",
            "subnetSelectorTerms": [_DISCOVERED],
            "securityGroupSelectorTerms": [_DISCOVERED],
            **spec,
        },
    }


def node_pool(name: str, capacity_types: tuple[str, ...], notes: Mapping[str, str] = {}, **spec: object) -> Json:
    """A NodePool of that class; ``notes`` are annotations."""
    wanted: Json = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(capacity_types)}
    reference: Json = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name, "annotations": dict(notes)},
        "spec": {
            "template": {"spec": {"nodeClassRef": reference, "requirements": [wanted, *ANY_MODERN]}},
            **spec,
        },
    }


@dataclass(frozen=True)
class AwsCluster:
    """A cluster on the double of AWS, prepared for a controller."""

    plane: ControlPlane
    aws: Double
    account: Account
    seeds: Seeds
    queue: InterruptionQueue

    @contextmanager
    def controller(self, *flags: str, **environment: str) -> Iterator[Controller]:
        """`karpenter run` with the double as its cloud."""
        settings = {**controller_environment(self.aws), **environment}
        with controller(self.account.kubeconfig, *flags, environment=settings) as running:
            yield running

    @asynccontextmanager
    async def simulated_nodes(self, kube: KubeClient) -> AsyncIterator[NodeSimulator]:
        """Simulate what runs on the double's instances."""
        cluster = ClusterAddress(CLUSTER, self.plane.server, base64.b64encode(self.plane.certificate).decode())
        simulator = NodeSimulator(kube, self.aws.control, cluster, NodeTiming(), self.aws.region_name)
        task = asyncio.create_task(simulator.run())
        try:
            yield simulator
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def controller_environment(aws: Double) -> dict[str, str]:
    """Environment of a controller with the double as its cloud."""
    return {
        "KARPENTER_PROVIDER": "aws",
        "CLUSTER_NAME": CLUSTER,
        "INTERRUPTION_QUEUE": CLUSTER,
        "EKS_CONTROL_PLANE": "true",
        **sdk_environment(aws),
    }


@contextmanager
def aws_cluster(plane: ControlPlane, region: str = REGION, version: str = "1.35") -> Iterator[AwsCluster]:
    """Start the cluster on a control plane with the scheduler and controllers of Kubernetes; EKS reports ``version``."""
    with Double(region) as aws:
        seeds = seed(aws)
        certificate = base64.b64encode(plane.certificate).decode()
        aws.control.add_cluster(CLUSTER, plane.server, certificate, version)
        queue = InterruptionQueue(aws, CLUSTER)
        queue.subscribe_to_rules()
        with deployed.installed(plane, "aws") as account:
            yield AwsCluster(plane, aws, account, seeds, queue)
