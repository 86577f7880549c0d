"""Two replicas on a real control plane: one acts, the other stands by, and they change places in every way there is (OPS-361).

The two have users of their own, so that the audit log tells what the first one did: it is a ServiceAccount, and only calls of
those are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from controlplane import deployed
from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from controlplane.workload_cluster import WorkloadCluster, workload_cluster
from karpenter.api.control_plane import Lease
from karpenter.api.kinds import LEASE

pytestmark = [pytest.mark.cluster, pytest.mark.older_versions]

_LEASE = LEASE.path("kube-system", "karpenter-leader-election")
#: A lease lasts 15 s since it was seen to change, and is looked at every two seconds.
_LEASE_SECONDS = 15 + 2.2
#: What a loaded machine may take for filling caches and starting loops, on top.
_SLACK_SECONDS = 5.0
_ACQUIRED = "successfully acquired lease kube-system/karpenter-leader-election"
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_LEADS = ("leader_election_master_status", frozenset({("name", "karpenter-leader-election")}))


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        bindings = deployed.bindings_to("nobody")
        plane.apply(*bindings)
        ready.pool()
        yield ready


@dataclass
class Pair:
    """A leader whose calls are kept, and its standby."""

    cluster: WorkloadCluster
    leader: Controller
    standby: Controller

    def lease(self) -> Lease:
        return LEASE.decode(json.dumps(self.cluster.plane.request("GET", _LEASE)).encode())

    def calls(self) -> int:
        return len(self.cluster.account.calls())

    def until_led(self, seconds: float) -> None:
        """Wait until the standby leads and has begun to work."""
        self.standby.await_leading(seconds)

    def check_still_works(self, pods: int) -> None:
        """The standby, now leading, launches what is missing."""
        self.cluster.deploy(pods)
        self.cluster.until_running(pods)


@contextmanager
def pair(cluster: WorkloadCluster, *flags: str) -> Iterator[Pair]:
    with controller(cluster.account.kubeconfig, *flags) as leader:
        leader.await_leading()
        other = cluster.plane.kubeconfig_of("nobody")
        with controller(other, *flags) as standby:
            standby.await_line("new leader elected")
            standby.until(standby.is_ready, "be ready to follow")
            yield Pair(cluster, leader, standby)


def test_one_leads_the_other_stands_by_and_follows_at_once_when_the_first_is_stopped(
    cluster: WorkloadCluster,
) -> None:
    """OPS-O8, OPS-361 to OPS-363. DIS-050: only the leader disrupts."""
    with pair(cluster) as two:
        cluster.deploy(2)
        cluster.until_running(2)
        check_places(two)
        assert two.leader.terminate() == 0
        two.standby.await_line(_ACQUIRED, _SLACK_SECONDS)
        assert two.leader.lines("Shutdown signal received, waiting for all workers to finish")
        assert two.leader.lines("All workers finished")
        two.until_led(30.0)
        assert two.lease().spec.lease_transitions == 1
        two.check_still_works(4)


def check_places(two: Pair) -> None:
    """OPS-362, OPS-364, OPS-365, OPS-494: both answer probes and show figures; only one does anything."""
    assert (two.leader.metrics()[_LEADS], two.standby.metrics()[_LEADS]) == (1, 0)
    for process in (two.leader, two.standby):
        assert process.probe("/healthz") == (200, "ok\n")
        # A server that is setting up the storage of a kind makes a process unready for a moment.
        process.until(process.is_ready, "be ready")
        process.until(partial(_is_said_to_be_ready, process), "say that it is ready, and in which parts")
        assert any(name == "karpenter_build_info" for name, _ in process.metrics())
    assert not two.standby.leads
    assert not two.standby.lines("Reconciler error")
    said = two.standby.lines("new leader elected")
    spec = two.lease().spec
    assert [line["identity"] for line in said] == [spec.holder_identity]
    assert (spec.lease_duration_seconds, spec.lease_transitions) == (15, 0)
    host, _, unique = spec.holder_identity.rpartition("_")
    assert host
    assert len(unique) == 36


def _is_said_to_be_ready(process: Controller) -> bool:
    parts = process.probe("/readyz?verbose")[1].splitlines()[:3]
    return process.probe("/readyz") == (200, "ok\n") and parts == ["[+]manager ok", "[+]crd ok", "[+]ping ok"]


@pytest.mark.soak
def test_a_leader_that_is_killed_is_followed_within_the_lease_time(cluster: WorkloadCluster) -> None:
    with pair(cluster) as two:
        cluster.deploy(2)
        cluster.until_running(2)
        two.leader.kill()
        killed = time.monotonic()
        two.until_led(_LEASE_SECONDS + _SLACK_SECONDS)
        assert time.monotonic() - killed >= 10.0, "nobody may lead before the other one has stopped counting on it"
        assert two.lease().spec.lease_transitions == 1
        two.check_still_works(4)


@pytest.mark.soak
def test_a_leader_that_slept_through_its_lease_writes_nothing_and_ends(cluster: WorkloadCluster) -> None:
    """It is stopped in the middle of its work, with plenty left to write.

    The one request it was sending just then may still be carried out: no process can take that back. Those it had only begun to
    send reach the server cut short and change nothing.
    """
    with pair(cluster, "--kube-client-qps=20", "--kube-client-burst=20") as two:
        cluster.deploy(40)
        two.leader.until(lambda: len(two.leader.lines("launched nodeclaim")) >= 5, "launch five instances")
        two.leader.pause()
        two.until_led(_LEASE_SECONDS + _SLACK_SECONDS)
        before = two.calls()
        two.leader.resume()
        assert two.leader.ended(30.0) == 1
        after = cluster.account.calls()[before:]
        assert len([call for call in after if call.verb in _WRITES and call.status < 400]) <= 1
        assert all(call.message == "unexpected EOF" for call in after if call.verb in _WRITES and call.status >= 400)
        (line,) = two.leader.lines("leader election lost")
        assert "lease kube-system/karpenter-leader-election" in str(line["error"])
        assert not any("Traceback" in text for text in two.leader.log.splitlines())
        cluster.until_running(40)
        assert len(cluster.observe().instances) == 40


@pytest.mark.soak
def test_a_leader_whose_lease_another_process_took_ends(cluster: WorkloadCluster) -> None:
    with pair(cluster) as two:
        taken: Json = {"spec": {"holderIdentity": "somebody"}}
        cluster.plane.request("PATCH", _LEASE, taken, "application/merge-patch+json")
        assert two.leader.ended(10.0) == 1
        (line,) = two.leader.lines("leader election lost")
        assert line["error"] == "lease kube-system/karpenter-leader-election was taken by somebody"
        two.until_led(_LEASE_SECONDS + _SLACK_SECONDS)


@pytest.mark.soak
def test_a_standby_with_warm_up_has_its_caches_filled(cluster: WorkloadCluster) -> None:
    """OPS-316"""
    with pair(cluster, "--disable-controller-warmup=false") as two:
        cluster.deploy(2)
        cluster.until_running(2)
        assert not two.standby.leads
        assert two.leader.terminate() == 0
        two.until_led(_SLACK_SECONDS)
        two.check_still_works(3)


def test_the_lease_may_have_another_name_and_place(plane: ControlPlane) -> None:
    """OPS-318, OPS-319"""
    flags = ("--leader-election-name=other", "--leader-election-namespace=default")
    with controller(plane.kubeconfig, *flags) as alone:
        alone.await_line("successfully acquired lease default/other")
        decode = LEASE.decode(json.dumps(plane.request("GET", LEASE.path("default", "other"))).encode())
        assert decode.spec.holder_identity
    released = LEASE.decode(json.dumps(plane.request("GET", LEASE.path("default", "other"))).encode())
    assert (released.spec.holder_identity, released.spec.lease_duration_seconds) == ("", 1)
