"""The main job against a real control plane: pods wait, machines come, pods run; the Deployment goes, machines go.

The controller is a process of its own (`karpenter run`), the scheduler and the Deployment controller are Kubernetes' own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.process import controller
from karpenter.api import kinds
from karpenter.kube.client import KubeClient
from support.rollouts import settled, web

PODS = 500
_DEADLINE_SECONDS = 150.0
_NODE_CLASS: Json = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
    "spec": {"nodeRegistrationDelay": "2s"},
}
_POOL: Json = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                    {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
                    {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
                ],
            }
        },
        "disruption": {"consolidateAfter": "2s", "budgets": [{"nodes": "100%"}]},
    },
}


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(_NODE_CLASS, _POOL)
    return plane


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


async def _running(kube: KubeClient) -> str:
    pods = (await kube.list(kinds.POD, "default")).items
    running = sum(pod.status.phase == "Running" for pod in pods)
    return "" if running == PODS else f"{running} of {len(pods)} pods are running"


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
    "nominate",
    [
        pytest.param("true", id="with-nomination"),
        pytest.param("false", id="without-nomination", marks=pytest.mark.soak),
    ],
)
async def test_five_hundred_pods_get_machines_and_scaling_to_zero_gives_them_back(
    plane: ControlPlane, account: Account, nominate: str
) -> None:
    """The journey of design.md from pending pod to machine, and emptiness (DIS-S160) back to nothing."""
    with controller(account.kubeconfig, "--nominate-pods", nominate) as running:
        async with plane.client() as kube:
            await asyncio.to_thread(plane.apply, web(PODS))
            await settled(lambda: _running(kube), _DEADLINE_SECONDS)
            nodes = {node.metadata.name for node in (await kube.list(kinds.NODE)).items}
            claims = (await kube.list(kinds.NODE_CLAIM)).items
            assert nodes == {claim.status.node_name for claim in claims}
            await asyncio.to_thread(plane.apply, web(0))
            await settled(lambda: _nothing_left(kube), _DEADLINE_SECONDS)
        assert not running.lines("Reconciler error")
        assert len(running.lines("deleted nodeclaim")) == len(running.lines("created nodeclaim"))
