"""Manifests, settings and flags in the documentation are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL, Kind
from karpenter.cli.main import app
from karpenter.model import crd_admission, runtime_validation
from karpenter.providers.aws.interruption import interruption_handling

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "examples" / "ec2.yaml").read_text()
GUIDE = (ROOT / "docs" / "aws.md").read_text()
KINDS: Mapping[str, Kind[Any]] = {"EC2NodeClass": EC2_NODE_CLASS, "NodePool": NODE_POOL}


def objects() -> Iterator[Any]:
    """EC2NodeClasses and NodePools of the example and of the guide."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.S | re.M)
    for text in (EXAMPLE, *blocks):
        for element in yaml.safe_load_all(text):
            if element["kind"] in KINDS:
                yield pytest.param(element, id=f"{element['kind']}-{element['metadata']['name']}")


@pytest.mark.parametrize("obj", tuple(objects()))
def test_documented_manifests_are_admitted_without_warnings(obj: Any) -> None:
    kind = KINDS[obj["kind"]]
    assert crd_admission.admit(kind, obj) == ()
    convert = msgspec.convert(crd_admission.prune_and_default_object(kind, obj), kind.type)
    assert [str(finding) for finding in runtime_validation.advise_object(convert)] == []


def test_a_typical_class_is_admitted_unchanged() -> None:
    """AWS-866: admission does not change volumes, tags with a Name and detailed monitoring."""
    ebs = {
        "volumeSize": "30Gi",
        "volumeType": "gp3",
        "iops": 3000,
        "throughput": 125,
        "encrypted": True,
        "kmsKeyID": "1234abcd-12ab-34cd-56ef-1234567890ab",
        "deleteOnTermination": True,
    }
    spec = {
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "role": "KarpenterNodeRole-shop",
        "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": "shop"}}],
        "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "shop"}}],
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": ebs}],
        "tags": {"Name": "shop-worker", "team": "shop"},
        "detailedMonitoring": True,
    }
    kind = KINDS["EC2NodeClass"]
    written = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "c"}, "spec": spec}
    stored: Any = crd_admission.prune_and_default_object(kind, written)
    assert crd_admission.admit(kind, written) == ()
    assert {name: stored["spec"][name] for name in spec} == spec


def test_the_objects_of_the_example_refer_to_each_other() -> None:
    node_class, pool = yaml.safe_load_all(EXAMPLE)
    assert pool["spec"]["template"]["spec"]["nodeClassRef"]["name"] == node_class["metadata"]["name"]
    assert pool["metadata"]["annotations"] == {interruption_handling.SCHEDULED_CHANGES_ANNOTATION: "within-budgets"}
    assert msgspec.convert(node_class, EC2NodeClass).spec.role == "KarpenterNodeRole-shop"


def settings_of(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "400"}).stdout


def test_the_guide_names_settings_that_exist() -> None:
    table = GUIDE.partition("## Settings")[2].partition("\n## ")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall("`([A-Z_]+)`", row.split("|")[1])
    }
    assert named
    assert {name for name in named if not re.search(rf"env\s+{name}\b", settings_of("run"))} == set()


@pytest.mark.parametrize("command", ["iam-policy", "doctor"])
def test_the_guide_uses_flags_that_exist(command: str) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.S | re.M)
    shell = "\n".join(blocks).replace("\\\n", " ")
    flags = {
        flag
        for line in re.findall(rf"karpenter {command}(.*)", shell)
        for flag in re.findall(r"(?<!\S)--?[a-z-]+", line)
    }
    assert flags
    assert {flag for flag in flags if flag not in settings_of(command)} == set()
