"""What ``karpenter plan`` makes of node classes in its input; mx-central-1 has few types, which keeps the tests fast."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from support.manifest_builders import Json, pod

Written = Callable[..., Path]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def node_class(name: str = "default", **spec: object) -> Json:
    required = {
        "role": "node",
        "amiSelectorTerms": [{"alias": "al2023@v20260903"}],
        "subnetSelectorTerms": [{"tags": {"cluster": "shop"}}],
        "securityGroupSelectorTerms": [{"tags": {"cluster": "shop"}}],
    }
    body = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": name}}
    return {**body, "spec": {**required, **spec}}


def ec2_pool(class_name: str = "default", kind: str = "EC2NodeClass", group: str = "karpenter.k8s.aws") -> Json:
    """A NodePool that launches m6i.large and m6i.xlarge on demand in Mexico."""
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m6i.large", "m6i.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    reference = {"group": group, "kind": kind, "name": class_name}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"requirements": requirements, "nodeClassRef": reference}}},
    }


def planned(*arguments: str | Path) -> Result:
    return run("plan", "--region", "mx-central-1", *arguments)


def claims(written: Written, node_class_spec: Json, *pods: Json) -> list[tuple[str, int]]:
    """Type and number of pods of each planned NodeClaim."""
    file = written("objects.json", node_class(**node_class_spec), ec2_pool(), *pods)
    result = planned("-f", file, "-o", "json")
    assert result.stderr == ""
    launched = json.loads(result.stdout)["nodeClaims"]
    return sorted((claim["cheapest"]["instanceType"], len(claim["pods"])) for claim in launched)


def small_pods(count: int) -> list[Json]:
    return [pod(f"p{number}", "10m") for number in range(count)]


def test_max_pods_of_the_kubelet_bound_the_pods_of_a_node(written: Written) -> None:
    assert claims(written, {}, *small_pods(6)) == [("m6i.large", 6)]
    assert claims(written, {"kubelet": {"maxPods": 4}}, *small_pods(6)) == [("m6i.large", 2), ("m6i.large", 4)]


@pytest.mark.parametrize(
    "kubelet",
    [
        pytest.param({"systemReserved": {"cpu": "600m"}}, id="system reserved"),
        pytest.param({"kubeReserved": {"cpu": "700m"}}, id="kube reserved"),
    ],
)
def test_reserved_cpu_makes_the_node_smaller(kubelet: Json, written: Written) -> None:
    assert claims(written, {"kubelet": kubelet}, pod("a", "1500m")) == [("m6i.xlarge", 1)]


def test_an_eviction_threshold_makes_the_node_smaller(written: Written) -> None:
    kubelet = {"evictionHard": {"memory.available": "60%"}}
    large = pod("a", "1")
    large["spec"]["containers"][0]["resources"]["requests"]["memory"] = "5Gi"
    assert claims(written, {}, large) == [("m6i.large", 1)]
    assert claims(written, {"kubelet": kubelet}, large) == [("m6i.xlarge", 1)]


def test_volumes_of_the_class_decide_about_ephemeral_storage(written: Written) -> None:
    """The usual volume has 20 GiB: a pod of 50 GiB fits on no node until the class has a larger one."""
    large = pod("a", "1")
    large["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "50Gi"
    volume = [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi", "volumeType": "gp3"}}]
    assert claims(written, {}, large) == []
    assert claims(written, {"blockDeviceMappings": volume}, large) == [("m6i.large", 1)]


def test_the_image_family_decides_about_the_operating_system(written: Written) -> None:
    windows = {"amiSelectorTerms": [{"alias": "windows2022@latest"}]}
    wanting = pod("a", "1", nodeSelector={"kubernetes.io/os": "windows"})
    assert claims(written, {}, wanting) == []
    assert claims(written, windows, wanting) == [("m6i.large", 1)]


def test_subnets_of_the_status_bound_the_zones(written: Written) -> None:
    body = node_class()
    body["status"] = {"subnets": [{"id": "subnet-1", "zone": "mx-central-1b", "zoneID": "mxc1-az2"}]}
    file = written("objects.json", body, ec2_pool(), pod())
    (claim,) = json.loads(planned("-f", file, "-o", "json").stdout)["nodeClaims"]
    assert claim["cheapest"]["zone"] == "mx-central-1b"


INVALID = [
    pytest.param(
        {"blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi", "volumeType": "gp9"}}]},
        'spec.blockDeviceMappings[0].ebs.volumeType: "gp9" is not one of gp2, gp3, io1, io2, sc1, st1, standard',
        id="volume type",
    ),
    pytest.param(
        {
            "blockDeviceMappings": [
                {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi", "encrypted": "yes please"}}
            ]
        },
        'spec.blockDeviceMappings[0].ebs.encrypted: "yes please" is not true or false',
        id="no boolean",
    ),
    pytest.param({"rolle": "node"}, "spec.rolle: unknown field 'rolle' would be dropped", id="unknown field"),
    pytest.param({"kubelet": {"maxPods": -1}}, "spec.kubelet.maxPods: -1 is below zero", id="kubelet"),
]


@pytest.mark.parametrize(("spec", "text"), INVALID)
def test_plan_and_doctor_refuse_an_invalid_class_in_the_same_words(spec: Json, text: str, written: Written) -> None:
    file = written("objects.json", node_class(**spec), ec2_pool(), pod())
    expected = f"{file}: document 1 (EC2NodeClass default): items[0].{text}"
    for result in (planned("-f", file), run("doctor", "--cluster-name", "shop", "-f", file)):
        assert (result.exit_code, result.stdout) == (2, "")
        assert expected in result.stderr


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        (
            ec2_pool("defalt"),
            "nodeClassRef.name: EC2NodeClass defalt is not there; did you mean default?; "
            "planned as with a class without settings",
        ),
        (
            ec2_pool(kind="Ec2NodeClass"),
            "nodeClassRef.kind: there is no node class Ec2NodeClass; did you mean EC2NodeClass?",
        ),
        (
            ec2_pool(group="karpenter.aws"),
            "nodeClassRef.group: EC2NodeClass is not in group karpenter.aws; expected karpenter.k8s.aws",
        ),
    ],
)
def test_a_pool_whose_class_is_missing_or_misspelt_is_reported(pool: Json, text: str, written: Written) -> None:
    result = planned("-f", written("objects.json", node_class(), pool, pod()))
    assert f"NodePool default: spec.template.spec.{text}\n" in result.stderr
    assert result.exit_code == 0


def test_an_expression_of_the_kubelet_without_its_gate_is_reported_as_without_effect(written: Written) -> None:
    file = written("objects.json", node_class(kubelet={"maxPods": "default_enis"}), ec2_pool(), *small_pods(2))
    result = planned("-f", file, "-o", "json")
    assert (
        "EC2NodeClass default: spec.kubelet: maxPods: expressions need the feature gate NodeClassCEL\n" in result.stderr
    )
    assert len(json.loads(result.stdout)["nodeClaims"]) == 1
