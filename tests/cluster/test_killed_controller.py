"""The controller is killed while it launches instances for fifty pods: the next one goes on, and launches nothing twice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.workload_cluster import ALONE, WITH, WorkloadCluster, cases, workload_cluster
from karpenter.api import kinds

pytestmark = pytest.mark.cluster

PODS = 50
_STEPS = ("created nodeclaim", "launched nodeclaim", "registered nodeclaim", "initialized nodeclaim")
#: The lease of a dead leader runs out after fifteen seconds; candidates look every two (OPS-361).
_TAKE_OVER_SECONDS = 20.0


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool()
        yield ready


def await_moment(running: Controller, seed: int) -> None:
    """Wait for a moment in the middle of the job: so many claims have come so far."""
    numbers = random.Random(seed)
    step, count = numbers.choice(_STEPS), numbers.randint(1, PODS - 5)
    running.until(lambda: len(running.lines(step)) >= count, f"log {step!r} {count} times")


def check(cluster: WorkloadCluster) -> None:
    """Every pod runs, and never was there a claim or an instance more than pods."""
    observation = cluster.until_running(PODS)
    assert len(observation.claims) == len(observation.instances) == PODS
    assert (cluster.given_up(kinds.NODE_CLAIM), cluster.given_up(kinds.CONFIG_MAP)) == (0, 0)


@pytest.mark.parametrize(("seed", "nomination"), cases(range(20), (0, WITH)))
def test_a_controller_killed_while_it_launches_is_followed_by_one_that_finishes(
    cluster: WorkloadCluster, seed: int, nomination: tuple[str, str]
) -> None:
    """OPS-012, OPS-211"""
    flags = (*ALONE, *nomination)
    with controller(cluster.account.kubeconfig, *flags) as first:
        first.await_leading()
        cluster.deploy(PODS)
        await_moment(first, seed)
        first.kill()
    with controller(cluster.account.kubeconfig, *flags) as second:
        check(cluster)
        assert not second.lines("Reconciler error")


@pytest.mark.parametrize(("seed", "nomination"), cases(range(100, 104)))
def test_a_leader_killed_while_it_launches_is_followed_by_the_standby(
    cluster: WorkloadCluster, seed: int, nomination: tuple[str, str]
) -> None:
    """OPS-361"""
    with controller(cluster.account.kubeconfig, *nomination) as leader:
        leader.await_leading()
        with controller(cluster.account.kubeconfig, *nomination) as standby:
            standby.until(standby.is_ready, "be ready to follow")
            cluster.deploy(PODS)
            await_moment(leader, seed)
            leader.kill()
            assert not standby.leads
            standby.await_leading(_TAKE_OVER_SECONDS)
            check(cluster)
            assert not standby.lines("Reconciler error")
