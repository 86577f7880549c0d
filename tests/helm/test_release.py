"""Helm installs, upgrades, rolls back and removes the charts on a real API server; the controller works with that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import exists, items
from controlplane.process import controller
from helm.charts import ROOT, HelmFailed, helm
from karpenter.api import crds
from support import yaml_text

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("helm_program")]

_NAMESPACE = "autoscaling"
_VALUES = ("--set", "provider=simulated", "--set", "settings.batchIdleDuration=200ms")
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments/karpenter"
_PODS = "/api/v1/namespaces/default/pods"
_OUR_PODS = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: Ports a process of the test cannot share with others.
_PORTS = frozenset({"METRICS_PORT", "HEALTH_PROBE_PORT"})


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Nothing of a release stays for other files."""
    yield plane
    cleanup.forget_definitions(plane)


@pytest.fixture
def bare(plane: ControlPlane) -> ControlPlane:
    """A control plane without our kinds and with a namespace that enforces the restricted pod security standard."""
    cleanup.forget_definitions(plane)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE, "labels": labels}})
    return plane


def run(plane: ControlPlane, *arguments: str) -> str:
    return helm(*arguments, "--namespace", _NAMESPACE, kubeconfig=plane.kubeconfig)


def environment(plane: ControlPlane) -> dict[str, str]:
    """What the installed Deployment tells the controller."""
    found = deployed.environment(plane.request("GET", _DEPLOYMENT))
    return {name: value for name, value in found.items() if name not in _PORTS}


def workload(pods: int) -> Json:
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    labels: Json = {"app": "web"}
    spec: Json = {
        "replicas": pods,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": spec,
    }


def check_serves(plane: ControlPlane, account: Account, pods: int) -> None:
    """The controller, as its own process with the release's environment and the token of its account, serves the pods."""
    assert deployed.container(plane.request("GET", _DEPLOYMENT))["args"] == ["run"]
    plane.apply(workload(pods))
    with controller(account.kubeconfig, environment=environment(plane)) as running:
        running.until(running.is_ready, "become ready")
        plane.until(
            lambda: [pod["status"]["phase"] for pod in items(plane, _PODS)] == ["Running"] * pods,
            f"{pods} pods to run",
        )
    account.check()


def test_a_release_is_installed_upgraded_rolled_back_and_removed_while_nodes_stay(bare: ControlPlane) -> None:
    """OPS-H10, OPS-600, OPS-601, OPS-652, OPS-672"""
    run(bare, "install", "karpenter-crd", "charts/karpenter-crd")
    run(bare, "install", "karpenter", "charts/karpenter", *_VALUES)
    bare.until(lambda: len(items(bare, _OUR_PODS)) == 2, "two pods that the restricted standard admits")
    bare.apply(*yaml_text.documents((ROOT / "examples" / "pool.yaml").read_text(encoding="utf-8")))
    account = Account(bare, _NAMESPACE)
    account.renew()
    check_serves(bare, account, 1)

    run(bare, "upgrade", "karpenter-crd", "charts/karpenter-crd", "--set", "additionalAnnotations.note=second")
    run(bare, "upgrade", "karpenter", "charts/karpenter", "--reuse-values", "--set", "settings.nodeFee=0")
    assert environment(bare).items() >= {"NODE_FEE": "0", "BATCH_IDLE_DURATION": "200ms"}.items()
    pools = bare.request("GET", f"{_DEFINITIONS}/nodepools.karpenter.sh")
    assert pools["metadata"]["annotations"]["note"] == "second"
    check_serves(bare, account, 2)

    run(bare, "rollback", "karpenter", "1")
    assert "NODE_FEE" not in environment(bare)
    check_serves(bare, account, 3)

    claims = {one["metadata"]["name"] for one in items(bare, _CLAIMS)}
    run(bare, "uninstall", "karpenter")
    run(bare, "uninstall", "karpenter-crd")
    assert not exists(bare, _DEPLOYMENT)
    assert not exists(bare, "/apis/rbac.authorization.k8s.io/v1/clusterroles/karpenter-core")
    assert {one["metadata"]["name"] for one in items(bare, _CLAIMS)} == claims
    assert len(items(bare, "/api/v1/nodes")) == len(claims)
    check_nodes_survive_the_removal_of_our_objects(bare)


def check_nodes_survive_the_removal_of_our_objects(plane: ControlPlane) -> None:
    """The steps of docs/operations/removal.md: finalizers first, then our objects without their dependents."""
    nodes = {one["metadata"]["name"] for one in items(plane, "/api/v1/nodes")}
    for collection in (_CLAIMS, "/api/v1/nodes"):
        for one in items(plane, collection):
            path = f"{collection}/{one['metadata']['name']}"
            plane.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    for collection in (_POOLS, _CLAIMS):
        plane.request(
            "DELETE", collection, {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
        )
        plane.until(lambda collection=collection: not items(plane, collection), "our objects to be gone")
    left = items(plane, "/api/v1/nodes")
    assert {one["metadata"]["name"] for one in left} == nodes
    assert not any("deletionTimestamp" in one["metadata"] or one["metadata"].get("ownerReferences") for one in left)


def test_the_main_chart_alone_brings_the_kinds_and_leaves_them(bare: ControlPlane) -> None:
    """OPS-600, API-871"""
    run(bare, "install", "karpenter", "charts/karpenter", *_VALUES)
    names = [str(one["metadata"]["name"]) for one in crds.custom_resource_definitions()]
    assert all(exists(bare, f"{_DEFINITIONS}/{name}") for name in names)
    run(bare, "uninstall", "karpenter")
    assert all(exists(bare, f"{_DEFINITIONS}/{name}") for name in names)


def test_definitions_that_exist_are_taken_over_with_the_label_and_annotations_of_the_release(
    bare: ControlPlane,
) -> None:
    """OPS-601; this is how an installation by kubectl, or by the main chart alone, gets the chart of the definitions."""
    bare.apply(*crds.custom_resource_definitions())
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        run(bare, "install", "karpenter-crd", "charts/karpenter-crd")
    annotations = {"meta.helm.sh/release-name": "karpenter-crd", "meta.helm.sh/release-namespace": _NAMESPACE}
    marks: Json = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": annotations}}
    for one in crds.custom_resource_definitions():
        bare.request("PATCH", f"{_DEFINITIONS}/{one['metadata']['name']}", marks, "application/merge-patch+json")
    run(bare, "install", "karpenter-crd", "charts/karpenter-crd", "--force-conflicts")
    run(bare, "uninstall", "karpenter-crd")


def test_a_wrong_value_fails_before_any_object_of_the_release_is_applied(bare: ControlPlane) -> None:
    """Helm applies the definitions in `crds/` before it looks at values, unless told to skip them."""
    with pytest.raises(HelmFailed, match="/settings/nodeFee"):
        run(
            bare, "install", "karpenter", "charts/karpenter", *_VALUES, "--skip-crds", "--set", "settings.nodeFee=cheap"
        )
    assert not exists(bare, _DEPLOYMENT)
    assert not exists(bare, f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/karpenter")
    assert not exists(bare, f"{_DEFINITIONS}/nodepools.karpenter.sh")


def test_optional_objects_are_accepted_by_the_api_server(bare: ControlPlane, tmp_path: Path) -> None:
    """NetworkPolicy, FlowSchemas, dashboards and the rest, to the letter."""
    values = tmp_path / "values.yaml"
    values.write_text("networkPolicy: {enabled: true}\ndashboards: {enabled: true}\nadditionalLabels: {team: a}\n")
    rendered = run(bare, "template", "karpenter", "charts/karpenter", *_VALUES, "--values", str(values))
    for one in filter(None, yaml_text.documents(rendered)):
        assert bare.rehearse(one)["kind"] == one["kind"]
