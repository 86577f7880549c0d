"""Gangs by the Workload of Kubernetes (``scheduling.k8s.io/v1alpha1``), on an API server that serves it behind its gate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane import binaries, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items, made, simulated_pool
from controlplane.process import controller
from karpenter.api import crds

pytestmark = pytest.mark.cluster

_SERVED = ("--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha1=true")


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with ControlPlane(scheduler=True, more_arguments={binaries.API_SERVER: _SERVED}) as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(*simulated_pool())
        with deployed.installed(plane) as ready:
            yield ready


def _member(name: str, group: str) -> Json:
    container: Json = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    spec: Json = {
        "containers": [container],
        "workloadRef": {"name": "train", "podGroup": group},
        "terminationGracePeriodSeconds": 0,
    }
    return made("Pod", "v1", name, spec, namespace="default")


def _claims(plane: ControlPlane) -> list[Json]:
    return items(plane, "/apis/karpenter.sh/v1/nodeclaims")


def _reference(plane: ControlPlane, name: str) -> Json:
    pod = plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")
    return pod["spec"].get("workloadRef")  # type: ignore[union-attr, index, call-overload, no-any-return]


def test_nodes_are_bought_for_a_group_of_a_workload_once_it_is_complete(account: Account) -> None:
    """Two of three members buy nothing, the third buys for all, and every node says which gang it is for."""
    plane = account.plane
    groups: Json = [{"name": "workers", "policy": {"gang": {"minCount": 3}}}]
    plane.apply(
        made("Workload", "scheduling.k8s.io/v1alpha1", "train", {"podGroups": groups}, namespace="default"),
        _member("w-0", "workers"),
        _member("w-1", "workers"),
    )
    assert _reference(plane, "w-0") == {"name": "train", "podGroup": "workers"}
    with controller(account.kubeconfig, "--feature-gates=GangScheduling=true") as running:
        running.until(running.is_ready, "become ready", 120.0)
        waiting = "/api/v1/namespaces/default/events?fieldSelector=reason=FailedScheduling,involvedObject.name=w-0"
        plane.until(
            lambda: any("Workload default/train" in str(event["message"]) for event in items(plane, waiting)),  # type: ignore[index, call-overload]
            "the reason why the group waits",
        )
        assert _claims(plane) == []
        plane.apply(_member("w-2", "workers"))
        plane.until(lambda: bool(_claims(plane)), "nodes for the complete group")
        gangs = {one["metadata"]["annotations"].get("karpenter.sh/gang") for one in _claims(plane)}  # type: ignore[index, call-overload, union-attr]
        assert gangs == {"Workload default/train/workers"}
    account.check()
