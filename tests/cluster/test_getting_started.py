"""The pages Getting started, walked on a real control plane line by line, except for what needs Docker."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items
from controlplane.ports import free_port
from controlplane.process import Controller, controller
from controlplane.timeouts import scaled_timeout
from helm.charts import helm
from support import yaml_text
from support.installed_program import KARPENTER
from support.kubectl_lines import ROOT, Kubectl, shell_lines

pytestmark = [pytest.mark.cluster, pytest.mark.older_versions, pytest.mark.timeout(400)]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted(
    page
    for folder in ("getting-started", "how-to", "migrate", "operations")
    for page in (ROOT / "docs" / folder).glob("*.md")
)
KIND = (ROOT / "docs" / "getting-started" / "kind.md").read_text(encoding="utf-8")
PLAN = (ROOT / "docs" / "getting-started" / "plan.md").read_text(encoding="utf-8")
#: What makes a cluster of containers; the control plane of the tests stands for it.
WITH_DOCKER = [
    "kind create cluster",
    "docker build -f deploy/Dockerfile -t karpenter:0.1.0 .",
    "kind load docker-image karpenter:0.1.0",
]
_DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
_POOL = "/apis/karpenter.sh/v1/nodepools/general"
#: The group of the provider that a guide writes.
RACK = "rack.example.com"
_LONG_AGO = "2026-01-01T00:00:00Z"
#: What the controller says of the pool; in these tests it does not always run.
READY: Json = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": _LONG_AGO}
_MERGE = "application/merge-patch+json"
#: Ports a process of the test cannot share with others.
_PORTS = ("METRICS_PORT", "HEALTH_PROBE_PORT", "WEBHOOK_PORT")


def running_pods(plane: ControlPlane) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in items(plane, "/api/v1/namespaces/default/pods"))


@contextmanager
def installed_with_helm(plane: ControlPlane, line: str) -> Iterator[Controller]:
    """The release of the line, and the controller as its Deployment says; no kubelet starts it here, so nothing waits for it."""
    words = [word for word in shlex.split(line)[1:] if word != "--wait"]
    helm(*words, kubeconfig=plane.kubeconfig)
    deployment = plane.request("GET", _DEPLOYMENT)
    assert deployed.container(deployment)["image"] == WITH_DOCKER[1].split()[-2]
    account = Account(plane, _earlier=len(plane.calls("system:serviceaccount:kube-system:karpenter")))
    account.renew()
    environment = {name: value for name, value in deployed.environment(deployment).items() if name not in _PORTS}
    try:
        with controller(account.kubeconfig, environment=environment) as running:
            yield running
        account.check()
    finally:
        helm("uninstall", "karpenter", "--namespace", "kube-system", kubeconfig=plane.kubeconfig)


@pytest.mark.usefixtures("helm_program")
def test_the_page_about_kind_leads_to_nodes_for_twenty_pods_and_back(plane: ControlPlane) -> None:
    lines = list(shell_lines(KIND.partition("## Without an image")[0]))
    assert [line for line in lines if not line.startswith(("helm ", "kubectl "))] == WITH_DOCKER
    kubectl = Kubectl(plane)
    with ExitStack() as stack:
        for line in lines:
            if line.startswith("helm "):
                running = stack.enter_context(installed_with_helm(plane, line))
                running.until(running.is_ready, "become ready")
            elif line.endswith(" -w"):
                kubectl.run(line)
                plane.until(lambda: running_pods(plane) == 20, "twenty pods to run")
                assert items(plane, "/apis/karpenter.sh/v1/nodeclaims")
            elif line.startswith("kubectl "):
                kubectl.run(line)
            if line.endswith("examples/pool.yaml"):  # the page waits for consolidateAfter
                change: Json = {"spec": {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}}}
                plane.request("PATCH", _POOL, change, _MERGE)
        plane.until(lambda: not items(plane, "/apis/karpenter.sh/v1/nodeclaims"), "the nodes to go")


def test_without_an_image_the_controller_runs_beside_the_cluster(plane: ControlPlane, tmp_path: Path) -> None:
    definitions, *lines, run = shell_lines(KIND.partition("## Without an image")[2])
    cleanup.forget_definitions(plane)
    printing, _, applying = definitions.partition(" | ")
    printed = subprocess.run([KARPENTER, *printing.split()[1:]], capture_output=True, text=True, check=True).stdout
    Kubectl(plane).run(applying, printed)
    kubectl = Kubectl(plane)
    for line in lines:
        kubectl.run(line)
    ports = {name: str(free_port()) for name in _PORTS}
    environment = {**os.environ, "KUBECONFIG": plane.kubeconfig, **ports}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([KARPENTER, *run.split()[1:]], env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            plane.until(lambda: is_ready(plane), "the NodePool to be ready")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(scaled_timeout(40)) == 0, (tmp_path / "log").read_text()[-2000:]


def is_ready(plane: ControlPlane) -> bool:
    status: Json = plane.request("GET", _POOL).get("status", {})
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


def test_a_plan_of_the_cluster_is_that_of_what_kubectl_prints(plane: ControlPlane) -> None:
    live, piped = (
        line for line in shell_lines(PLAN) if line == "karpenter plan" or line.endswith("| karpenter plan -f -")
    )
    kubectl = Kubectl(plane)
    kubectl.run("kubectl apply -f examples/pool.yaml")
    plane.request("PATCH", f"{_POOL}/status", {"status": {"conditions": [READY]}}, _MERGE)
    kubectl.run("kubectl create deployment inflate --image registry.k8s.io/pause:3.10 --replicas 5")
    pods = "/api/v1/namespaces/default/pods"
    plane.until(lambda: len([pod for pod in items(plane, pods) if refused(pod)]) == 5, "five pods to wait for a node")
    printed = kubectl.run(piped.partition(" | ")[0])
    first = planned(live, plane)
    assert first == planned(piped.partition(" | ")[2], plane, printed)
    assert "with 5 pods" in first


def refused(pod: Json) -> bool:
    conditions: list[Json] = pod["status"].get("conditions", [])
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def planned(line: str, plane: ControlPlane, stdin: str = "") -> str:
    """What the command says of nodes and prices; how long it took is left out."""
    environment = {**os.environ, "KUBECONFIG": plane.kubeconfig}
    command = [KARPENTER, *line.split()[1:]]
    done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=True)
    return re.sub(r"decided in .*", "", done.stdout)


def test_every_kind_that_a_document_asks_kubectl_for_is_there(plane: ControlPlane) -> None:
    kubectl = Kubectl(plane)
    asked = {
        (page.name, kind)
        for page in PAGES
        for line in shell_lines(page.read_text(encoding="utf-8"))
        for kinds in re.findall(r"kubectl (?:get|delete|wait --for=delete) ([a-z0-9,.]+)(?= |\)|$)", line)
        for kind in kinds.split(",")
    }
    assert len(asked) > 20
    assert [(page, kind) for page, kind in sorted(asked) if not kubectl.knows(kind)] == []


def test_every_file_that_a_document_applies_is_there_and_would_be_accepted(plane: ControlPlane) -> None:
    """Files of the repository; those that a page shows itself are read with the page."""
    files = {
        name
        for page in PAGES
        for line in shell_lines(page.read_text(encoding="utf-8"))
        for name in re.findall(r"kubectl (?:apply|delete) -f ((?:examples|deploy)/\S+)", line)
    }
    assert len(files) >= 4
    documents = [
        document
        for name in sorted(files)
        for document in yaml_text.documents((ROOT / name).read_text(encoding="utf-8"))
        if document
    ]
    further = [one for one in documents if one["kind"] == "CustomResourceDefinition" and one["spec"]["group"] == RACK]
    plane.apply(*further)
    try:
        for document in documents:
            plane.rehearse(document)
    finally:
        plane.delete(*further)
