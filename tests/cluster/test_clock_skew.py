"""The controller's clock is wrong, either way: it launches, drains and gives back as ever, and is not kept busy by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane import skewed_clock
from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.workload_cluster import ALONE, WorkloadCluster, at_rest, cases, workload_cluster
from karpenter.api import kinds

pytestmark = pytest.mark.cluster

_PODS = 5
_QUIET_PASSES = 3
#: A story of six nodes, two of which go, takes 180 writes, with the stand-in's, nominations and events.
_MOST_WRITES = 300
_GIVEN_BACK_SECONDS = 120.0


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool(after="5s", terminationGracePeriod="10m")
        yield ready


@pytest.fixture
def running(cluster: WorkloadCluster, ahead: int, nomination: tuple[str, str]) -> Iterator[Controller]:
    program = (sys.executable, str(Path(skewed_clock.__file__)), str(ahead))
    with controller(cluster.account.kubeconfig, *ALONE, *nomination, program=program) as process:
        process.await_leading()
        yield process


def offset(cluster: WorkloadCluster) -> timedelta:
    """How far the controller's times in claims lie ahead of the API server's."""
    (claim, *_) = cluster.observe().claims
    stamps = [
        condition.last_transition_time
        for condition in claim.status.conditions
        if condition.last_transition_time is not None
    ]
    created = claim.metadata.creation_timestamp
    assert created is not None
    return min(stamps) - created


def until_quiet(cluster: WorkloadCluster, running: Controller) -> None:
    """Wait until the controller considers disruption several times and writes nothing meanwhile."""
    cluster.until(at_rest(running, _QUIET_PASSES, cluster.writes))


@pytest.mark.parametrize(("ahead", "nomination"), cases([60, -60, -20]))
def test_a_wrong_clock_neither_delays_nor_hurries_work_nor_adds_any(
    cluster: WorkloadCluster, running: Controller, ahead: int
) -> None:
    """OPS-050, OPS-090, DIS-241, DIS-500"""
    cluster.deploy(_PODS)
    before = cluster.until_running(_PODS)
    assert abs(offset(cluster).total_seconds() - ahead) < abs(ahead) / 2
    assert len(before.claims) == _PODS
    assert cluster.given_up(kinds.NODE_CLAIM) == 0
    until_quiet(cluster, running)
    # One drains by hand and its pod gets another node; then one pod less, and a node is given back.
    drained = before.claims[0]
    cluster.remove(drained)
    cluster.until_gone(drained.metadata.uid)
    assert len(cluster.until_running(_PODS).claims) == _PODS
    cluster.deploy(_PODS - 1)
    cluster.until(lambda: _too_many(cluster), _GIVEN_BACK_SECONDS)
    until_quiet(cluster, running)
    assert cluster.until_running(_PODS - 1).running == _PODS - 1
    assert len(running.lines("disrupting node(s)")) == 1
    assert not running.lines("Reconciler error")
    assert cluster.writes() < _MOST_WRITES


def _too_many(cluster: WorkloadCluster) -> str:
    count = len(cluster.observe().claims)
    return f"{count} claims" if count != _PODS - 1 else ""
