"""Consolidation on a real control plane: money is saved while pods stay available, and a killed controller leaves nothing half
done.

Pods, budgets, roll-outs and evictions are Kubernetes' own; the controller is a process with the rights of `deploy/`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from controlplane.workload_cluster import ALONE, NAMESPACE, WorkloadCluster, at_rest, workload_cluster
from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, labels

pytestmark = pytest.mark.cluster

TYPES = {"m5.large": 0.096, "m5.xlarge": 0.192, "m5.2xlarge": 0.384, "m5.4xlarge": 0.768}
BEFORE, AFTER = 32, 16
#: What the budget over pods leaves at least.
FEWEST = AFTER - 3
_STEPS = ("disrupting node(s)", "created nodeclaim", "initialized nodeclaim", "deleted node", "tainted node")
#: Several times as many as it takes to begin something new.
_QUIET_PASSES = 6
_REST_SECONDS = 240.0
_MERGE = "application/merge-patch+json"
_DEPLOYMENT = kinds.DEPLOYMENT.path(NAMESPACE, "web")


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool(types=TYPES, after="2s")
        note = {"metadata": {"annotations": {labels.MINIMUM_NODE_AGE: "0s"}}}
        ready.patch(kinds.NODE_POOL, "default", note)
        yield ready


def scale(cluster: WorkloadCluster, replicas: int) -> None:
    cluster.plane.request("PATCH", _DEPLOYMENT, {"spec": {"replicas": replicas}}, _MERGE)


def begin(cluster: WorkloadCluster) -> None:
    """Pods on nodes that are just large enough, one update of them at a time."""
    cluster.deploy(BEFORE)
    gentle = {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 2}}
    cluster.plane.request("PATCH", _DEPLOYMENT, {"spec": {"strategy": gentle}}, _MERGE)
    cluster.until_running(BEFORE)


def ready(pods: tuple[Pod, ...]) -> int:
    return sum(conditions.is_true(pod.status.conditions, "Ready") for pod in pods)


def cost(claims: tuple[NodeClaim, ...]) -> float:
    return sum(TYPES.get(claim.metadata.labels.get(labels.INSTANCE_TYPE, ""), 0.0) for claim in claims)


@dataclass
class Availability:
    """The fewest pods that were ready at any look."""

    cluster: WorkloadCluster
    fewest: int = AFTER

    def observe(self) -> None:
        self.fewest = min(self.fewest, ready(self.cluster.all(kinds.POD, NAMESPACE)))

    def until(self, condition: Callable[[], str], seconds: float = 90.0) -> None:
        """Wait for a condition, and look meanwhile."""

        def lacking() -> str:
            self.observe()
            return condition()

        self.cluster.until(lacking, seconds)


def rolled_out(cluster: WorkloadCluster) -> str:
    """Empty once every pod is of the Deployment's present template."""
    deployment = cluster.plane.request("GET", _DEPLOYMENT)
    status: Json = deployment["status"]
    generation = deployment["metadata"]["generation"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    done = status.get("observedGeneration") == generation and counts == [AFTER] * len(counts)
    return "" if done else f"the roll-out goes on: {counts}"


def half_done(cluster: WorkloadCluster) -> str:
    """What is marked, or does not fit together."""
    observation = cluster.observe()
    tainted = [n for n in observation.nodes if any(taint.key == labels.DISRUPTED_TAINT.key for taint in n.spec.taints)]
    noted = [
        c for c in observation.claims if conditions.find_condition(c.status.conditions, "DisruptionReason") is not None
    ]
    used = {pod.spec.node_name for pod in observation.pods}
    idle = [node for node in observation.nodes if node.metadata.name not in used]
    faults = {"nodes tainted": tainted, "claims with a reason": noted, "nodes without pods": idle}
    parts = [f"{len(fault)} {what}" for what, fault in faults.items() if fault]
    if observation.running != len(observation.pods) or len(observation.pods) != AFTER:
        parts.append(f"{observation.running} of {len(observation.pods)} pods run")
    return ", ".join(filter(None, (*parts, observation.inconsistency())))


def nothing_is_half_done(cluster: WorkloadCluster, running: Controller) -> Callable[[], str]:
    """A condition: nothing is half done, and nothing new begins."""
    return at_rest(running, _QUIET_PASSES, lambda: len(running.lines("disrupting node(s)")), lambda: half_done(cluster))


def failures(running: Controller) -> list[str]:
    """Why commands failed. A roll-out may bind pods to a node that is about to be tainted: such a command is undone by design."""
    errors = [
        str(line["error"]) for line in running.lines("failed terminating nodes while executing a disruption command")
    ]
    return [error for error in errors if not error.startswith("pods have come to node ")]


def test_nodes_are_consolidated_while_pods_stay_available(cluster: WorkloadCluster) -> None:
    """Half of the pods go, the others are rolled out anew meanwhile; the budget over them holds all the time."""
    with controller(cluster.account.kubeconfig, *ALONE) as running:
        running.await_leading()
        begin(cluster)
        before = cost(cluster.observe().claims)
        scale(cluster, AFTER)
        cluster.until(lambda: "" if len(cluster.all(kinds.POD, NAMESPACE)) == AFTER else "pods still going")
        cluster.budget(FEWEST)
        running.await_line("disrupting node(s)", 90)
        available = Availability(cluster)
        again = {"metadata": {"annotations": {"restarted": "once"}}}
        cluster.plane.request("PATCH", _DEPLOYMENT, {"spec": {"template": again}}, _MERGE)
        available.until(lambda: rolled_out(cluster), _REST_SECONDS)
        available.until(nothing_is_half_done(cluster, running), _REST_SECONDS)
        assert available.fewest >= FEWEST
        assert cost(cluster.observe().claims) <= 0.65 * before
        assert any(name == "karpenter_nodeclaims_disrupted_total" for name, _ in running.metrics())
        assert failures(running) == []
        assert not running.lines("Reconciler error")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_controller_killed_during_consolidation_leaves_nothing_half_done(cluster: WorkloadCluster, seed: int) -> None:
    """DIS-054: no node stays marked, none stays without pods, every pod runs."""
    numbers = random.Random(seed)
    step, count = numbers.choice(_STEPS), numbers.randint(1, 2)
    with controller(cluster.account.kubeconfig, *ALONE) as first:
        first.await_leading()
        begin(cluster)
        earlier_count = len(first.lines(step))
        scale(cluster, AFTER)
        try:
            first.until(lambda: len(first.lines(step)) >= earlier_count + count, f"log {step!r} {count} times", 60)
        except TimeoutError:
            # Not every way down comes by every step; then it is killed somewhere on its way.
            assert first.lines("disrupting node(s)")
        first.kill()
    with controller(cluster.account.kubeconfig, *ALONE) as second:
        second.await_leading()
        cluster.until(nothing_is_half_done(cluster, second), _REST_SECONDS)
        assert not second.lines("Reconciler error")
