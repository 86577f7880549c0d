"""Workloads that sleep with their NodePools, on a real control plane, under the rights of the chart for `sleep.scaleDown`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import made, simulated_class, simulated_pool
from controlplane.process import controller
from helm import charts

pytestmark = pytest.mark.cluster

_GATES = "--feature-gates=CapacitySchedule=true"
_APPS = "/apis/apps/v1/namespaces/default"
_SCHEDULE = "/apis/karpenter.sh/v1alpha1/capacityschedules/office"


def workload(kind: str, name: str, replicas: int) -> Json:
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "100m"}}}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    more: Json = {"serviceName": name} if kind == "StatefulSet" else {}
    return made(kind, "apps/v1", name, {**spec, **more}, namespace="default")


def schedule(otherwise: str) -> Json:
    """Its only window is three days away, so that ``otherwise`` holds now."""
    day = (datetime.now(UTC) + timedelta(days=3)).strftime("%a").lower()
    window = {"name": "work", "days": day, "from": "07:00", "until": "22:00", "state": "Awake"}
    sleep = {"grace": "1s", "deadline": "2s", "scaleDown": "Workloads"}
    spec: Json = {"nodePools": {"names": ["default"]}, "timeZone": "UTC", "windows": [window], "otherwise": otherwise}
    return made(
        "CapacitySchedule", "karpenter.sh/v1alpha1", "office", {**spec, "sleep": sleep, "wake": {"stagger": "0s"}}
    )


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    plane.apply(
        simulated_class(),
        simulated_pool(),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": _OPTED_IN}},
    )
    rendered = charts.template("--set", "provider=simulated", "--set", "scaleDownWorkloads=true")
    with deployed.installed(plane) as ready:
        plane.apply(*(one for one in rendered if one["metadata"]["name"] == "karpenter-scale-down"))
        wanted = {"group": "apps", "resource": "deployments", "verb": "patch", "namespace": "default"}
        plane.until(lambda: deployed.allowed(plane, deployed.USER, wanted), "the right to scale to be in force")
        yield ready


_OPTED_IN = {"karpenter.sh/capacity-schedule": "office"}


def replicas(plane: ControlPlane) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in ("deployments", "statefulsets"):
        items: list[Json] = plane.request("GET", f"{_APPS}/{kind}")["items"]
        found |= {one["metadata"]["name"]: one["spec"]["replicas"] for one in items}
    return found


def generation(plane: ControlPlane, name: str) -> int:
    return int(plane.request("GET", f"{_APPS}/deployments/{name}")["metadata"]["generation"])


def said(plane: ControlPlane) -> str:
    """The messages of all events about workloads that were left alone."""
    events: list[Json] = plane.request("GET", "/api/v1/events")["items"]
    return "\n".join(str(event["message"]) for event in events)


def test_workloads_sleep_and_come_back_and_a_gitops_tool_is_not_fought(account: Account) -> None:
    """Issue 20: a Deployment, a StatefulSet and a target of an HPA go to zero; what Argo CD applied keeps its replicas."""
    plane = account.plane
    plane.apply(workload("Deployment", "web", 2), workload("StatefulSet", "db", 1), workload("Deployment", "scaled", 2))
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}
    autoscaler: Json = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5}
    plane.apply(made("HorizontalPodAutoscaler", "autoscaling/v2", "scaled", autoscaler, namespace="default"))
    applied = workload("Deployment", "managed", 1)
    path = f"{_APPS}/deployments/managed?fieldManager=argocd-controller&force=true"
    plane.request("PATCH", path, applied, "application/apply-patch+yaml")
    before = replicas(plane)
    assert before == {"web": 2, "db": 1, "scaled": 2, "managed": 1}
    with controller(account.kubeconfig, _GATES) as running:
        running.until(running.is_ready, "become ready")
        plane.apply(schedule("Asleep"))
        asleep = {"web": 0, "db": 0, "scaled": 0, "managed": 1}
        plane.until(lambda: replicas(plane) == asleep, "workloads to sleep")
        plane.until(lambda: "argocd-controller sets its replicas" in said(plane), "the conflict to be said")
        untouched = generation(plane, "managed")
        plane.apply(schedule("Awake"))
        plane.until(lambda: replicas(plane) == before, "workloads to come back")
        assert generation(plane, "managed") == untouched == 1
    account.check()
