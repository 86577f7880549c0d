"""The CronJob of the recruiting pilot empties the pool at night, command by command on a real API server (API-A05, DIS-467).

A JSON patch of the limit, ten seconds, `kubectl delete nodes --force --grace-period=0`; in the morning it restores the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.process import controller
from karpenter.api import kinds
from support.report_pools import converted_pool
from support.rollouts import web

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_POOL = "/apis/karpenter.sh/v1/nodepools/spot-instance"
_PODS = 6


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    pool = msgspec.json.decode(kinds.NODE_POOL.encode(converted_pool("a01-beta-pool-without-template")))
    limited = {**pool, "spec": {**pool["spec"], "limits": {"memory": "1000Gi"}}}
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    plane.apply({**node_class, "spec": {"nodeRegistrationDelay": "1s"}}, limited)
    with deployed.installed(plane) as ready:
        yield ready


def _items(plane: ControlPlane, path: str) -> list[Json]:
    return plane.request("GET", path)["items"]


def _phases(plane: ControlPlane) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in _items(plane, "/api/v1/namespaces/default/pods"))


def _limit_memory(plane: ControlPlane, amount: str) -> None:
    """`kubectl patch nodepools.karpenter.sh spot-instance --type=json -p [{"op": "replace", ...}]`"""
    patch = [{"op": "replace", "path": "/spec/limits/memory", "value": amount}]
    plane.request("PATCH", _POOL, patch, "application/json-patch+json")


def _delete_nodes(plane: ControlPlane) -> None:
    """`kubectl delete nodes -l karpenter.sh/nodepool=spot-instance --force --grace-period=0`"""
    for node in _items(plane, "/api/v1/nodes?labelSelector=karpenter.sh/nodepool=spot-instance"):
        plane.request("DELETE", f"/api/v1/nodes/{node['metadata']['name']}?gracePeriodSeconds=0")


def _has_nothing(plane: ControlPlane) -> Callable[[], bool]:
    paths = ("/api/v1/nodes", "/apis/karpenter.sh/v1/nodeclaims")
    return lambda: not any(_items(plane, path) for path in paths)


def test_the_commands_of_the_cronjob_empty_the_pool_at_night_and_restore_it_in_the_morning(account: Account) -> None:
    plane = account.plane
    with controller(account.kubeconfig) as running:
        running.until(running.is_ready, "become ready")
        plane.apply(web(_PODS))
        plane.until(lambda: _phases(plane) == ["Running"] * _PODS, "all pods to run")
        _limit_memory(plane, "0")
        _delete_nodes(plane)
        plane.until(_has_nothing(plane), "nodes and claims to go")
        running.until(
            lambda: len(running.lines("deleted node")) == len(running.lines("deleted nodeclaim")) > 0,
            "log the end of each node and of its NodeClaim",
        )
        plane.until(lambda: _phases(plane) == ["Pending"] * _PODS, "the pods to wait")
        _stays_empty(plane)
        _limit_memory(plane, "1000Gi")
        plane.until(lambda: _phases(plane) == ["Running"] * _PODS, "all pods to run again")
        plane.delete(web(_PODS))
    account.check()


def _stays_empty(plane: ControlPlane) -> None:
    """Longer than several batches: nothing is launched while the limit is 0."""
    end = time.monotonic() + 15
    is_empty = _has_nothing(plane)
    plane.until(lambda: not is_empty() or time.monotonic() > end, "the night to pass")
    assert is_empty()
