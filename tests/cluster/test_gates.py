"""The functions behind gates that are off by default, on a real control plane and with the rights of `deploy/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import made, one_of, simulated_class, simulated_pool
from controlplane.process import controller

pytestmark = pytest.mark.cluster

GATES = "--feature-gates=StaticCapacity=true,NodeOverlay=true,CapacityBuffer=true"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_OVERLAY = "/apis/karpenter.sh/v1alpha1/nodeoverlays/devices"
_BUFFER = "/apis/autoscaling.x-k8s.io/v1beta1/namespaces/default/capacitybuffers/headroom"

_CPU = one_of("karpenter.k8s.aws/instance-cpu", "2")


def pool(name: str, **spec: object) -> Json:
    return simulated_pool(name, [_CPU], **spec)


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    plane.apply(simulated_class())
    with deployed.installed(plane) as ready:
        yield ready


def of_pool(plane: ControlPlane, name: str) -> list[Json]:
    path = f"{_CLAIMS}?labelSelector=karpenter.sh/nodepool%3D{name}"
    objects: list[Json] = plane.request("GET", path)["items"]
    return [element for element in objects if "deletionTimestamp" not in element["metadata"]]


def conditions(plane: ControlPlane, path: str) -> dict[str, tuple[str, str]]:
    """Status and reason by type."""
    status: Json = plane.request("GET", path).get("status", {})
    result: list[dict[str, str]] = status.get("conditions", [])
    return {element["type"]: (element["status"], element["reason"]) for element in result}


def holds(plane: ControlPlane, path: str, type_: str, *expected: str) -> Callable[[], bool]:
    return lambda: conditions(plane, path).get(type_) == expected


def test_static_pools_overlays_and_buffers_do_their_work_with_the_rights_of_the_controller(account: Account) -> None:
    """S-230, S-251, S-260"""
    plane = account.plane
    with controller(account.kubeconfig, GATES) as running:
        running.until(running.is_ready, "become ready")
        plane.apply(pool("kept", replicas=3), pool("launched"))
        plane.until(lambda: len(of_pool(plane, "kept")) == 3, "three nodes of the static pool")

        plane.apply(
            made("NodeOverlay", "karpenter.sh/v1alpha1", "devices", {"requirements": [_CPU], "capacity": {"x/dev": 1}})
        )
        plane.until(holds(plane, _OVERLAY, "Ready", "True", "Ready"), "the overlay to be used")

        resources = {"requests": {"cpu": "1500m"}, "limits": {"x/dev": "1"}}
        container = {"name": "app", "image": "pause", "resources": resources}
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
        workload = {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        plane.apply(made("Deployment", "apps/v1", "web", workload, namespace="default"))
        spec: Json = {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"}, "replicas": 2}
        plane.apply(made("CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", "headroom", spec, namespace="default"))
        plane.until(holds(plane, _BUFFER, "ReadyForProvisioning", "True", "Resolved"), "the buffer to be read")
        plane.until(lambda: len(of_pool(plane, "launched")) == 2, "two nodes with the overlay's resource")
        claim = of_pool(plane, "launched")[0]["metadata"]
        assert claim["annotations"]["karpenter.sh/capacity-overlay-applied"] == "true"
        plane.until(holds(plane, _BUFFER, "Provisioning", "False", "RequiresNewCapacity"), "the buffer to say so")

        plane.request("PATCH", f"{_POOLS}/kept/scale", {"spec": {"replicas": 1}}, "application/merge-patch+json")
        plane.until(lambda: len(of_pool(plane, "kept")) == 1, "two nodes of the static pool to go")
    account.check()
