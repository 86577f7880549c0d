"""Freezes on a real control plane: the commands write them, the controller obeys, and the right on one name is enough."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import simulated_class, simulated_pool
from controlplane.process import Controller, controller
from karpenter import manager_informers
from karpenter.api import kinds
from karpenter.kube import config
from karpenter.kube.errors import Forbidden
from karpenter.state import ClusterState
from support.installed_program import KARPENTER
from support.metrics_scrape import Scrape
from support.rollouts import settled, web

pytestmark = pytest.mark.cluster

_DEADLINE_SECONDS = 90.0
_NOBODY = "nobody"
#: A node that nobody needs is chosen in one look and removed after the next; one look every ten seconds.
_PASSES = 4
_NODE_CLASS = simulated_class()
_POOL = simulated_pool(disruption={"consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]})


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(_NODE_CLASS, _POOL)
    return plane


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


def karpenter(plane: ControlPlane, *arguments: str) -> str:
    """What a command prints for the cluster's administrator; its only notice names the cluster."""
    done = subprocess.run(
        [KARPENTER, *arguments],
        env={"KUBECONFIG": plane.kubeconfig},
        capture_output=True,
        text=True,
        check=False,
    )
    notices = [line for line in done.stderr.splitlines() if not line.startswith("cluster: context tests of ")]
    assert (done.returncode, notices) == (0, [])
    return done.stdout


def count(plane: ControlPlane, path: str) -> int:
    return len(plane.request("GET", path)["items"])


def claim_count(plane: ControlPlane) -> int:
    return count(plane, "/apis/karpenter.sh/v1/nodeclaims")


async def test_one_name_is_all_that_has_to_be_readable(plane: ControlPlane) -> None:
    """OPS-660 ff.: the right in the ClusterRole is on that name only, without those of the simulated cloud."""
    bindings = [element for element in deployed.bindings_to(_NOBODY) if element["kind"] == "ClusterRoleBinding"]
    plane.apply(
        *deployed.rights(), *(binding for binding in bindings if binding["roleRef"]["name"] == "karpenter-core")
    )
    wanted = {"resource": "configmaps", "verb": "watch", "name": "karpenter-freeze", "namespace": "kube-system"}
    plane.until(lambda: deployed.allowed(plane, _NOBODY, wanted), "the right to be in force")
    state = ClusterState()
    async with config.connect(config.load(plane.kubeconfig_of(_NOBODY))) as kube:
        with pytest.raises(Forbidden):
            await kube.list(kinds.CONFIG_MAP, "kube-system")
        informer = manager_informers.watch_cluster_freeze(kube, state)
        watching = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.wait_synced(), _DEADLINE_SECONDS)
        assert state.freeze is None
        await asyncio.to_thread(karpenter, plane, "freeze", "--reason", "audit")

        async def missing() -> str:
            return "" if state.freeze is not None and state.freeze.reason == "audit" else "no freeze is seen"

        async def left() -> str:
            return str(state.freeze or "")

        await settled(missing, _DEADLINE_SECONDS)
        assert informer.fault is None
        await asyncio.to_thread(karpenter, plane, "thaw")
        await settled(left, _DEADLINE_SECONDS)
        watching.cancel()


@pytest.mark.soak
def test_a_frozen_cluster_keeps_its_nodes_until_it_is_thawed(plane: ControlPlane, account: Account) -> None:
    with controller(account.kubeconfig) as running:
        running.until(running.is_ready, "become ready")
        plane.apply(web(2))
        plane.until(lambda: _running(plane) == 2, "pods to run")
        launched = claim_count(plane)
        assert launched
        assert karpenter(plane, "freeze", "--reason", "release", "--for", "1h").startswith(
            "the whole cluster is frozen"
        )
        plane.apply(web(0))
        shown = karpenter(plane, "budgets", "default", "--days", "1")
        assert "frozen by ConfigMap kube-system/karpenter-freeze until" in shown
        running.until(lambda: _seen(running, "karpenter_nodepools_frozen", nodepool="default") == 1, "be frozen")
        plane.until(lambda: not _running(plane), "pods to go")
        enough = running.disruption_passes() + _PASSES
        running.until(lambda: running.disruption_passes() >= enough, "look often enough", 2 * _DEADLINE_SECONDS)
        assert claim_count(plane) == launched
        assert karpenter(plane, "thaw") == "the cluster is thawed\n"
        plane.until(lambda: not claim_count(plane), "instances to go")


def _running(plane: ControlPlane) -> int:
    pods: list[Json] = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    return sum(pod["status"]["phase"] == "Running" for pod in pods)


def _seen(running: Controller, series: str, **described: str) -> float:
    return Scrape.of(running.metrics()).total(series, **described)
