"""Hosts that are powered on and off, on a real control plane and under exactly the chart's rights for provider `machines`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import exists, items, made
from controlplane.process import controller
from helm import charts

pytestmark = pytest.mark.cluster

_DRIVERS = Path(__file__).parents[2] / "examples" / "machines" / "drivers"
_PODS = "/api/v1/namespaces/default/pods"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_CLASS = "/apis/karpenter.machines/v1alpha1/machinenodeclasses/lab"
_AMOUNTS = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_LABELS: Json = {"app": "web"}


def web(replicas: int) -> Json:
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "5"}}}
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": replicas, "selector": {"matchLabels": _LABELS}, "template": template}
    return made("Deployment", "apps/v1", "web", spec, namespace="default")


def lab(state: Path) -> Json:
    hosts = [
        {"name": f"rack1-0{number}", "capacity": _AMOUNTS, "costPerHour": "0.12", "variables": {"STATE": str(state)}}
        for number in (1, 2)
    ]
    return made("MachineNodeClass", "karpenter.machines/v1alpha1", "lab", {"power": "files", "hosts": hosts})


def pool() -> Json:
    reference = {"group": "karpenter.machines", "kind": "MachineNodeClass", "name": "lab"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    disruption = {"consolidateAfter": "1s", "consolidationPolicy": "WhenEmpty", "budgets": [{"nodes": "100%"}]}
    return made("NodePool", "karpenter.sh/v1", "lab", {"template": template, "disruption": disruption})


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    rendered = charts.template("--set", "provider=machines")
    with deployed.granted(plane, deployed.rights_among(rendered)) as ready:
        yield ready


def boot(plane: ControlPlane, host: str) -> None:
    """What the kubelet of the host does when it has come up: it registers its Node, and reports it ready."""
    taint = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
    labels = {"kubernetes.io/hostname": host, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    spec: Json = {"providerID": f"machines://lab/{host}", "taints": [taint]}
    plane.request("POST", "/api/v1/nodes", made("Node", "v1", host, spec, labels=labels))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": now}
    status: Json = {"capacity": _AMOUNTS, "allocatable": _AMOUNTS, "conditions": [{**ready, "lastHeartbeatTime": now}]}
    plane.request("PATCH", f"/api/v1/nodes/{host}/status", {"status": status}, "application/strategic-merge-patch+json")


def is_true(plane: ControlPlane, condition: str) -> bool:
    """Whether a claim has this condition."""
    conditions = [one for claim in items(plane, _CLAIMS) for one in claim.get("status", {}).get("conditions", [])]
    return (condition, "True") in {(one["type"], one["status"]) for one in conditions}


def unlock(plane: ControlPlane, host: str) -> None:
    """What the node lifecycle controller does to a Node that is ready: the taint goes that the API server gave it."""
    plane.request("PATCH", f"/api/v1/nodes/{host}", {"spec": {"taints": []}}, "application/merge-patch+json")


def hosts_of_pods(plane: ControlPlane) -> list[object]:
    return [pod["spec"].get("nodeName") for pod in items(plane, _PODS)]


def end_pods(plane: ControlPlane) -> bool:
    """What a kubelet does with pods that are deleted; returns whether all are gone."""
    for pod in items(plane, _PODS):
        if "deletionTimestamp" in pod["metadata"]:
            plane.request("DELETE", f"{_PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
    return not items(plane, _PODS)


def test_a_host_is_powered_on_for_a_pod_and_off_again_and_its_class_stays_until_then(
    account: Account, tmp_path: Path
) -> None:
    """Issue 20. The class is deleted while its host is on: it goes when the host is off (its finalizer)."""
    plane = account.plane
    plane.apply(lab(tmp_path), pool())
    drivers = f"--machine-power-directory={_DRIVERS}"
    with controller(account.kubeconfig, drivers, environment={"KARPENTER_PROVIDER": "machines"}) as running:
        running.until(running.is_ready, "become ready")
        plane.apply(web(1))
        plane.until(lambda: any(tmp_path.iterdir()), "a host to be powered on")
        (host,) = (file.name for file in tmp_path.iterdir())
        boot(plane, host)
        plane.until(lambda: is_true(plane, "Registered"), "the claim to be registered")
        unlock(plane, host)
        plane.until(lambda: is_true(plane, "Initialized"), "the claim to be initialized")
        pods = "/api/v1/namespaces/default/pods"
        plane.until(
            lambda: [pod["spec"].get("nodeName") for pod in items(plane, pods)] == [host], "the pod on the host"
        )
        plane.request("DELETE", _CLASS)
        assert exists(plane, _CLASS)
        plane.apply(web(0))
        plane.until(lambda: end_pods(plane), "the pod to end")
        plane.until(lambda: not items(plane, _CLAIMS), "the claim to go")
        assert not any(tmp_path.iterdir()), "the host is off"
        plane.until(lambda: not exists(plane, _CLASS), "the class to go")
    account.check()
