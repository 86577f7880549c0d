"""The manifests that people have (API appendix A): each converts to objects that are admitted and planned, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.cli.main import app

MANIFESTS = Path(__file__).parent / "manifests"
#: Files by what becomes of them; with the kinds and names of the output.
CONVERTED = {
    "a01-beta-pool-without-template": ["NodePool/spot-instance"],
    "a02-beta-pool-never-consolidated": ["NodePool/ondemand-instance"],
    "a03-beta-pool-with-kubelet": ["NodePool/tuned", "EC2NodeClass/tuned"],
    "a10-provisioner": ["NodePool/default"],
    "a11-node-template": ["EC2NodeClass/default"],
    "a20-node-template-in-full": ["EC2NodeClass/karpenter-default"],
    "a21-provisioner-with-requirements-twice": ["NodePool/karpenter-default"],
    "a30-provisioner-with-inline-provider": ["NodePool/default", "EC2NodeClass/default"],
    "a40-v1-pool": ["NodePool/worker-scalable"],
    "a41-v1-ubuntu-class": ["EC2NodeClass/default"],
    "a42-v1-claim-copied-from-a-cluster": ["NodeClaim/worker-scalable-abc123"],
    "a43-v1-pool-with-office-hours": ["NodePool/office-hours"],
}
FOREIGN = {"a05-foreign-cronjob", "a31-foreign-eksctl-cluster"}


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)


def converted(name: str, *arguments: str) -> Result:
    return run("convert", "-f", str(MANIFESTS / f"{name}.yaml"), *arguments)


def spec_of(text: str, kind: str = "NodePool") -> dict[str, object]:
    (spec,) = (content["spec"] for content in yaml.safe_load_all(text) if content["kind"] == kind)
    assert isinstance(spec, dict)
    return spec


def test_every_manifest_of_the_folder_is_tested() -> None:
    assert {file.stem for file in MANIFESTS.iterdir()} == CONVERTED.keys() | FOREIGN


@pytest.mark.parametrize("name", CONVERTED)
def test_a_manifest_becomes_v1_objects(name: str) -> None:
    """API-A50, API-820: the output is written, so it passed admission."""
    result = converted(name)
    assert result.exit_code == 0, result.stderr
    objects = list(yaml.safe_load_all(result.stdout))
    assert [f"{content['kind']}/{content['metadata']['name']}" for content in objects] == CONVERTED[name]
    assert all(content["apiVersion"] in {"karpenter.sh/v1", "karpenter.k8s.aws/v1"} for content in objects)
    assert all(list(content) == ["apiVersion", "kind", "metadata", "spec"] for content in objects)


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_output_converts_to_itself_without_warnings(name: str) -> None:
    """API-819, API-S293."""
    first = converted(name).stdout
    second = run("convert", "-f", "-", stdin=first)
    assert (second.stdout, second.exit_code) == (first, 0)
    assert "WARN" not in second.stderr


@pytest.mark.parametrize("name", [name for name in CONVERTED if "pool" in name or "provisioner" in name])
def test_a_plan_reads_the_output_and_launches_a_node_for_a_pod(name: str, tmp_path: Path) -> None:
    """API-A50: the NodePools are used as they are converted."""
    output = converted(name).stdout
    (pool,) = (content for content in yaml.safe_load_all(output) if content["kind"] == "NodePool")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "500m"}}}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    (tmp_path / "converted.yaml").write_text(f"{output}---\n{yaml.safe_dump(pod)}")
    zones = next(
        (r["values"] for r in pool["spec"]["template"]["spec"]["requirements"] if r["key"].endswith("/zone")), []
    )
    region = zones[0][:-1] if zones else "us-east-1"
    result = run("plan", "-f", str(tmp_path), "--region", region, "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert pool["metadata"]["name"] in result.stdout


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_foreign_kind_is_skipped_with_a_warning(name: str) -> None:
    """API-816, API-S286, API-A05, API-A31."""
    result = converted(name)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert "WARN" in result.stderr
    assert "of a kind that is converted; convert takes Provisioner" in result.stderr


def test_the_kubelet_configuration_of_a_beta_pool_moves_to_its_class() -> None:
    """API-A03."""
    output = converted("a03-beta-pool-with-kubelet").stdout
    kubelet = spec_of(output, "EC2NodeClass")["kubelet"]
    assert isinstance(kubelet, dict)
    assert list(kubelet) == [
        "kubeReserved",
        "systemReserved",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "evictionHard",
    ]
    assert "kubelet" not in output.partition("---")[0]


def test_requirements_given_twice_are_joined() -> None:
    """API-A21, API-829."""
    result = converted("a21-provisioner-with-requirements-twice")
    spec = spec_of(result.stdout)
    template = spec["template"]["spec"]
    assert [requirement["key"].rpartition("/")[2] for requirement in template["requirements"]] == [
        *("instance-category", "instance-generation", "instance-hypervisor", "os", "arch", "capacity-type", "zone")
    ]
    assert template["expireAfter"] == "720h"
    assert spec["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "60s"}
    assert "stands twice (lines 8 and 19); both lists are joined" in result.stderr


def test_defects_of_an_early_provisioner_are_repaired() -> None:
    """API-A30, API-808, API-826, API-827."""
    result = converted("a30-provisioner-with-inline-provider", "--cluster-name", "demo")
    template = spec_of(result.stdout)["template"]["spec"]
    assert [(requirement["key"], requirement["operator"]) for requirement in template["requirements"]] == [
        ("node.kubernetes.io/instance-type", "In"),
        ("topology.kubernetes.io/zone", "In"),
        ("kubernetes.io/arch", "In"),
        ("karpenter.sh/capacity-type", "In"),
        ("kubernetes.io/os", "In"),
    ]
    node_class = spec_of(result.stdout, "EC2NodeClass")
    assert node_class["instanceProfile"] == "KarpenterNodeInstanceProfile-eks-karpenter-demo"
    assert node_class["subnetSelectorTerms"] == [{"tags": {"kubernetes.io/cluster/demo": "*"}}]
    assert result.stderr.count("WARN") == 2


def test_text_that_looks_like_a_boolean_stays_text() -> None:
    """API-A20."""
    node_class = spec_of(converted("a20-node-template-in-full").stdout, "EC2NodeClass")
    assert node_class["tags"] == {"Name": "karpenter-eks-main/karpenter-default", "auto-delete": "no"}
    assert node_class["instanceProfile"] == "KarpenterInstanceProfile"


def test_ubuntu_with_its_own_bootstrap_becomes_custom() -> None:
    """API-A41, API-860, API-838."""
    node_class = spec_of(converted("a41-v1-ubuntu-class", "--kubernetes-version", "1.33").stdout, "EC2NodeClass")
    assert node_class["amiFamily"] == "Custom"
    parameter = "/aws/service/canonical/ubuntu/eks/22.04/1.33/stable/current/{}/hvm/ebs-gp2/ami-id"
    assert node_class["amiSelectorTerms"] == [{"ssmParameter": parameter.format(arch)} for arch in ("amd64", "arm64")]
    assert "${BOOTSTRAP_TOKEN}" in str(node_class["userData"])


def test_status_and_owner_of_a_copied_claim_are_left_out() -> None:
    """API-A42, API-719."""
    result = converted("a42-v1-claim-copied-from-a-cluster")
    assert "ownerReferences" not in result.stdout
    assert "status" not in result.stdout
    assert "WARN" in result.stderr


def test_budgets_without_effect_are_kept_and_explained() -> None:
    """API-A40, API-A43, API-835."""
    for name, said in (
        ("a40-v1-pool", "budgets[0]: has no effect"),
        ("a43-v1-pool-with-office-hours", "01:00 (next day)"),
    ):
        result = converted(name)
        assert said in result.stderr
        assert "WARN" not in result.stderr


@pytest.mark.parametrize(
    ("kind", "api_version"), [("Pod", "v1"), ("ConfigMap", "v1"), ("Node", "v1"), ("DaemonSet", "apps/v1")]
)
def test_other_objects_of_those_reports_are_foreign(kind: str, api_version: str) -> None:
    """API-A06, API-A14, API-A22, API-A23."""
    content = yaml.safe_dump({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}})
    result = run("convert", "-f", "-", stdin=content)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"stdin:1 {kind}/x: skipped" in result.stderr


FRAGMENT = """
apiVersion: {version}
kind: NodePool
metadata: {{name: fragment}}
spec:
  template:
    spec:
      requirements:
      - key: node.kubernetes.io/instance-type
        operator: In
        values: [r6g.xlarge, m6i.xlarge, m6g.xlarge]
      - {{key: kubernetes.io/arch, operator: In, values: [arm64, amd64]}}
      nodeClassRef: {reference}
"""


def test_a_list_of_instance_types_is_kept_and_one_of_them_is_launched(tmp_path: Path) -> None:
    """API-A04"""
    old = FRAGMENT.format(version="karpenter.sh/v1beta1", reference="{name: default}")
    output = run("convert", "-f", "-", stdin=old).stdout
    template = spec_of(output)["template"]
    (kept, _) = template["spec"]["requirements"]
    assert kept["values"] == ["r6g.xlarge", "m6i.xlarge", "m6g.xlarge"]
    simulated = "{group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: web}]}\n"
    (tmp_path / "a.yaml").write_text(
        f"{FRAGMENT.format(version='karpenter.sh/v1', reference=simulated)}---\n{pod}", encoding="utf-8"
    )
    result = run("plan", "-f", str(tmp_path), "--region", "us-east-1", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert any(name in result.stdout for name in kept["values"])


def test_misconceptions_of_those_reports_are_answered_in_the_migration_notes() -> None:
    """API-A44: what the default policy is, and what metrics with `provisioner` in their name are called now."""
    docs = Path(__file__).parents[3] / "docs"
    notes = (docs / "migrate" / "from-older-manifests.md").read_text(encoding="utf-8")
    assert "The default of `v1` is `WhenEmptyOrUnderutilized`, not `WhenEmpty`" in notes
    renamed = notes + (docs / "metrics.md").read_text(encoding="utf-8")
    assert "karpenter_provisioner_" in renamed
