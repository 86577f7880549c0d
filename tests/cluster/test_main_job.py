"""The main job against a real control plane: pods wait, machines come, pods run; the Deployment goes, machines go.

The controller is a process of its own (`karpenter run`), the scheduler and the Deployment controller are Kubernetes' own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.process import controller
from karpenter.api import crds, kinds
from karpenter.kube.client import KubeClient

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
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(scheduler=True, controllers=True) as running:
        running.apply(*crds.crds())
        running.apply(_NODE_CLASS, _POOL)
        yield running


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


def _deployment(replicas: int) -> Json:
    labels = {"app": "web"}
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def _until(condition: Callable[[], Awaitable[str]]) -> None:
    """Wait until the condition returns an empty text; fail with its last text at the deadline."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while missing := await condition():
        assert time.monotonic() < end, missing
        await asyncio.sleep(0.5)


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
@pytest.mark.parametrize("nominate", ["true", "false"], ids=["with-nomination", "without-nomination"])
async def test_five_hundred_pods_get_machines_and_scaling_to_zero_gives_them_back(
    plane: ControlPlane, account: Account, nominate: str
) -> None:
    """The journey of design.md from pending pod to machine, and emptiness (DIS-S160) back to nothing."""
    with controller(account.kubeconfig, "--nominate-pods", nominate) as running:
        async with plane.client() as kube:
            await asyncio.to_thread(plane.apply, _deployment(PODS))
            await _until(lambda: _running(kube))
            nodes = {node.metadata.name for node in (await kube.list(kinds.NODE)).items}
            claims = (await kube.list(kinds.NODE_CLAIM)).items
            assert nodes == {claim.status.node_name for claim in claims}
            await asyncio.to_thread(plane.apply, _deployment(0))
            await _until(lambda: _nothing_left(kube))
        assert not running.lines("Reconciler error")
        assert len(running.lines("deleted nodeclaim")) == len(running.lines("created nodeclaim"))
