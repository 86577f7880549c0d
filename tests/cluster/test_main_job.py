"""The main job on a real control plane: pods wait, nodes come, pods run; the Deployment goes, the nodes go.

The controller is a process (`karpenter run`). The scheduler and the Deployment controller are those of Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane
from controlplane.objects import one_of, simulated_class, simulated_pool
from controlplane.process import controller
from karpenter.api import kinds
from karpenter.kube.client import KubeClient
from support.rollouts import settled, web

_DEADLINE_SECONDS = 150.0
_NODE_CLASS = simulated_class(nodeRegistrationDelay="2s")
_POOL = simulated_pool(
    requirements=[
        one_of("karpenter.sh/capacity-type", "spot", "on-demand"),
        one_of("kubernetes.io/arch", "amd64"),
        one_of("karpenter.k8s.aws/instance-category", "c", "m", "r"),
        {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
    ],
    disruption={"consolidateAfter": "2s", "budgets": [{"nodes": "100%"}]},
)


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(_NODE_CLASS, _POOL)
    return plane


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


async def _running(kube: KubeClient, wanted: int) -> str:
    pods = (await kube.list(kinds.POD, "default")).items
    running = sum(pod.status.phase == "Running" for pod in pods)
    return "" if running == wanted else f"{running} of {len(pods)} pods are running"


async def _nothing_left(kube: KubeClient) -> str:
    counts = {
        "pods": len((await kube.list(kinds.POD, "default")).items),
        "nodes": len((await kube.list(kinds.NODE)).items),
        "nodeclaims": len((await kube.list(kinds.NODE_CLAIM)).items),
        "instances": len((await kube.list(kinds.CONFIG_MAP, label_selector="karpenter.kwok.sh/instance=true")).items),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("pods", "nominate"),
    [
        pytest.param(150, "true", id="150-with-nomination"),
        pytest.param(500, "true", id="500-with-nomination", marks=pytest.mark.soak),
        pytest.param(500, "false", id="500-without-nomination", marks=pytest.mark.soak),
    ],
)
async def test_pods_get_nodes_and_scaling_to_zero_gives_the_nodes_back(
    plane: ControlPlane, account: Account, pods: int, nominate: str
) -> None:
    """The way of docs/architecture.md from a pending pod to a ready node, and emptiness (DIS-S160) back to nothing."""
    with controller(account.kubeconfig, "--nominate-pods", nominate) as running:
        async with plane.client() as kube:
            await asyncio.to_thread(plane.apply, web(pods))
            await settled(lambda: _running(kube, pods), _DEADLINE_SECONDS)
            nodes = {node.metadata.name for node in (await kube.list(kinds.NODE)).items}
            claims = (await kube.list(kinds.NODE_CLAIM)).items
            assert nodes == {claim.status.node_name for claim in claims}
            await asyncio.to_thread(plane.apply, web(0))
            await settled(lambda: _nothing_left(kube), _DEADLINE_SECONDS)
        launched = len(running.lines("created nodeclaim"))
        running.until(
            lambda: len(running.lines("deleted nodeclaim")) == launched, "log that all NodeClaims are deleted"
        )
        assert not running.lines("Reconciler error")
