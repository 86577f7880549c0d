"""The API server is down for twenty seconds, during launches and during drains: that delays them and has no other effect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.harness import ApiError, ControlPlane
from controlplane.process import Controller, controller
from controlplane.workload_cluster import ALONE, WorkloadCluster, cases, workload_cluster
from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim

pytestmark = pytest.mark.cluster

AWAY_SECONDS = 20.0
#: Others wait up to half a minute before they try again, the scheduler among them.
_SECONDS = 150.0
_PODS = 20
_GUARDED = "guarded"
_LAUNCHING = ("created nodeclaim", "launched nodeclaim", "registered nodeclaim")


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool()
        yield ready


@contextmanager
def outage(cluster: WorkloadCluster) -> Iterator[None]:
    """The API server is down while the context lasts, and for twenty seconds at least."""
    plane = cluster.plane
    cluster.account.check()
    plane.stop_server()
    back = time.monotonic() + AWAY_SECONDS
    try:
        yield
        plane.until(lambda: time.monotonic() >= back, "the end of the outage")
    finally:
        plane.start_server()
        plane.until(lambda: is_usable(cluster), "the server to serve everything")
        cluster.account.overlook_a_restart()


def is_usable(cluster: WorkloadCluster) -> bool:
    """A server that has just started answers for some kinds before others."""
    try:
        cluster.observe()
    except ApiError:
        return False
    return True


def check_log(running: Controller) -> None:
    """One outage gives one log line when it begins, and one when it ends.

    A server that has just started has more to say, for it does not know its roles at first: that is no cause.
    """
    running.await_line("the API server can be used again", _SECONDS)
    (cause,) = running.lines("the API server cannot be used")
    assert "cannot reach the API server at https://127.0.0.1:" in str(cause["error"])
    assert len(running.lines("the API server can be used again")) == 1


def held(cluster: WorkloadCluster) -> NodeClaim:
    """A claim that is deleted and whose Node a budget keeps from draining."""
    cluster.deploy(1, _GUARDED)
    (claim,) = cluster.until_running(1).claims
    cluster.budget(1, _GUARDED)
    cluster.remove(claim)
    cluster.until(lambda: "" if cluster.events("FailedDraining", claim.status.node_name) else "nothing holds the drain")
    return claim


def check_held(cluster: WorkloadCluster, claim: NodeClaim) -> None:
    """Every pod runs and the claim still exists: its pod was not evicted, for which an instance is kept ready."""

    def lacking() -> str:
        observation = cluster.observe()
        return "" if observation.running == _PODS + 1 else f"{observation.running} of {len(observation.pods)} pods run"

    cluster.until(lacking, _SECONDS)
    claims = cluster.observe().claims
    assert len(claims) == _PODS + 2
    assert [each.metadata.uid for each in claims if each.metadata.deletion_timestamp] == [claim.metadata.uid]


@pytest.mark.parametrize(("step", "nomination"), cases(_LAUNCHING))
def test_an_outage_while_instances_are_launched_and_nodes_drain_costs_only_time(
    cluster: WorkloadCluster, step: str, nomination: tuple[str, str]
) -> None:
    """OPS-012, OPS-364, DIS-S300: what a budget held before it holds afterwards."""
    with controller(cluster.account.kubeconfig, *ALONE, *nomination) as running:
        running.await_leading()
        guarded = held(cluster)
        before = len(running.lines(step))
        cluster.deploy(_PODS)
        running.until(lambda: len(running.lines(step)) >= before + _PODS // 3, f"log {step!r}")
        with outage(cluster):
            running.await_line("the API server cannot be used")
        check_held(cluster, guarded)
        assert cluster.given_up(kinds.CONFIG_MAP) == 0
        cluster.budget(0, _GUARDED)
        cluster.until_gone(guarded.metadata.uid)
        observation = cluster.until_running(_PODS + 1, _SECONDS)
        assert len(observation.claims) == _PODS + 1
        assert cluster.given_up(kinds.NODE_CLAIM) == 0
        check_log(running)


@pytest.mark.parametrize(("step", "nomination"), cases(_LAUNCHING))
def test_a_leader_that_could_not_renew_ends_and_its_next_start_finishes_the_job(
    cluster: WorkloadCluster, step: str, nomination: tuple[str, str]
) -> None:
    """OPS-361: the kubelet starts it again while the server is still away."""
    with controller(cluster.account.kubeconfig, *nomination) as first:
        first.await_leading()
        cluster.deploy(_PODS)
        first.until(lambda: len(first.lines(step)) >= _PODS // 3, f"log {step!r}")
        with outage(cluster):
            assert first.ended() == 1
            assert len(first.lines("leader election lost")) == 1
    with controller(cluster.account.kubeconfig, *nomination) as second:
        observation = cluster.until_running(_PODS, _SECONDS)
        assert len(observation.claims) == _PODS
        assert cluster.given_up(kinds.NODE_CLAIM) == cluster.given_up(kinds.CONFIG_MAP) == 0
        assert not second.lines("Reconciler error")
