"""A Deployment replaces both replicas while pods arrive: no launch is lost, and nothing is launched twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.workload_cluster import WorkloadCluster, workload_cluster
from karpenter.api import kinds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool()
        yield ready


def has_launched(process: Controller, instances: int) -> bool:
    return len(process.lines("launched nodeclaim")) >= instances


def leader_and_follower(cluster: WorkloadCluster, one: Controller, other: Controller) -> tuple[Controller, Controller]:
    """The new replica may ask for the lease before the one that waits asks again."""
    cluster.plane.until(lambda: one.leads or other.leads, "a replica to lead")
    return (one, other) if one.leads else (other, one)


@pytest.mark.soak
@pytest.mark.parametrize("wave", [20, 100])
def test_pods_that_arrive_while_both_replicas_are_replaced_get_a_node_each(cluster: WorkloadCluster, wave: int) -> None:
    """Each time the leader goes first, in the middle of its launches, as a node that is drained would have it (OPS-361)."""
    begun = wave // 5  # launches that are done when a leader is told to end
    with ExitStack() as processes:

        def start() -> Controller:
            return processes.enter_context(controller(cluster.account.kubeconfig))

        first = start()
        first.await_leading()
        second = start()
        second.until(second.is_ready, "be ready to follow")
        cluster.deploy(wave)
        first.until(lambda: has_launched(first, begun), "launch some instances")
        assert first.terminate() == 0

        third = start()
        cluster.deploy(2 * wave)
        leader, follower = leader_and_follower(cluster, second, third)
        follower.until(follower.is_ready, "be ready to follow")
        leader.until(lambda: has_launched(leader, begun), "launch some instances", 60.0)
        assert leader.terminate() == 0

        fourth = start()
        fourth.until(fourth.is_ready, "be ready to follow")
        observation = cluster.until_running(2 * wave, 180.0)
        assert sum(process.leads for process in (follower, fourth)) == 1
        assert len(observation.instances) == len(observation.claims) == 2 * wave
        assert cluster.given_up(kinds.NODE_CLAIM) == cluster.given_up(kinds.CONFIG_MAP) == 0
