"""Gangs by the scheduler's own API (``scheduling.k8s.io``), on an API server that serves it behind its gate.

Release 1.35 has groups inside a Workload, later ones have PodGroups; 1.34 has neither.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane import binaries, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items, made, simulated_class, simulated_pool
from controlplane.process import controller
from karpenter.api import crds

_MINOR = binaries.minor_release()
_VERSION = {35: "v1alpha1", 36: "v1alpha2"}.get(_MINOR, "v1beta1")
_API = f"scheduling.k8s.io/{_VERSION}"
_SERVED = ("--feature-gates=GenericWorkload=true", f"--runtime-config={_API}=true")
_HAS_WORKLOAD_GROUPS = _MINOR == 35

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(_MINOR < 35, reason="this release of Kubernetes has no groups of pods"),
]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with ControlPlane(scheduler=True, more_arguments={binaries.API_SERVER: _SERVED}) as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(simulated_class(), simulated_pool())
        with deployed.installed(plane) as ready:
            yield ready


def _group() -> Json:
    """A gang of at least three pods."""
    policy: Json = {"gang": {"minCount": 3}}
    if _HAS_WORKLOAD_GROUPS:
        groups: Json = [{"name": "workers", "policy": policy}]
        return made("Workload", _API, "train", {"podGroups": groups}, namespace="default")
    return made("PodGroup", _API, "train", {"schedulingPolicy": policy}, namespace="default")


def _reference() -> dict[str, Json]:
    """How its pods say so: field and value of their spec."""
    if _HAS_WORKLOAD_GROUPS:
        return {"workloadRef": {"name": "train", "podGroup": "workers"}}
    return {"schedulingGroup": {"podGroupName": "train"}}


def _member(name: str) -> Json:
    container: Json = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    spec: Json = {"containers": [container], **_reference(), "terminationGracePeriodSeconds": 0}
    return made("Pod", "v1", name, spec, namespace="default")


def _claims(plane: ControlPlane) -> list[Json]:
    return items(plane, "/apis/karpenter.sh/v1/nodeclaims")


def _spec(plane: ControlPlane, name: str) -> dict[str, Json]:
    return plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")["spec"]


def test_nodes_are_launched_for_a_group_of_pods_once_it_is_complete(account: Account) -> None:
    """Two of three members launch nothing, the third launches nodes for all, and every node says which gang it is for."""
    plane = account.plane
    name = "Workload default/train/workers" if _HAS_WORKLOAD_GROUPS else "PodGroup default/train"
    plane.apply(_group(), _member("w-0"), _member("w-1"))
    assert _spec(plane, "w-0").items() >= _reference().items()
    with controller(account.kubeconfig, "--feature-gates=GangScheduling=true") as running:
        running.until(running.is_ready, "become ready", 120.0)
        waiting = "/api/v1/namespaces/default/events?fieldSelector=reason=FailedScheduling,involvedObject.name=w-0"
        plane.until(
            lambda: any(name in str(event["message"]) for event in items(plane, waiting)),
            "the reason why the group waits",
        )
        assert _claims(plane) == []
        plane.apply(_member("w-2"))
        plane.until(lambda: bool(_claims(plane)), "nodes for the complete group")
        gangs = {one["metadata"]["annotations"].get("karpenter.sh/gang") for one in _claims(plane)}
        assert gangs == {name}
    account.check()
