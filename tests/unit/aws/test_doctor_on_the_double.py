"""The command ``karpenter doctor`` against the double of AWS, with a healthy account and with problems."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from controlplane.harness import Json
from karpenter.cli.main import app
from support.aws.aws_cluster import CLUSTER, node_class, node_pool
from support.aws.clients import client, sdk_environment
from support.aws.double import Double
from support.aws.interruption_queue import InterruptionQueue
from support.aws.moto_backend import ACCOUNT
from support.aws.seeds import seed

_ROLE = f"arn:aws:iam::{ACCOUNT}:role/node"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
def aws(running: Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Double:
    """A healthy account with a cluster."""
    running.reset()
    seed(running)
    client(running, "iam").update_assume_role_policy(RoleName="node", PolicyDocument=json.dumps(_TRUST))
    running.control.add_cluster(CLUSTER, "https://cluster", "Q0E=")
    running.control.add_access_entry(_ROLE)
    InterruptionQueue(running, CLUSTER).subscribe_to_rules()
    surroundings = {
        "KUBECONFIG": "/nonexistent",
        "EKS_CONTROL_PLANE": "true",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in {**sdk_environment(running), **surroundings}.items():
        monkeypatch.setenv(name, value)
    return running


def _asked(folder: Path, *objects: Json) -> Result:
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects or (node_class(), node_pool("spot", ("spot",)))))
    arguments = ["doctor", "--cluster-name", CLUSTER, "--interruption-queue", CLUSTER, "-f", str(file), "-o", "json"]
    return CliRunner().invoke(app, arguments)


def _findings(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Findings that are not ok, by check."""
    findings: dict[str, list[dict[str, Any]]] = {}
    for load in json.loads(result.stdout):
        if load["level"] != "ok":
            findings.setdefault(load["check"], []).append(load)
    return findings


def test_a_healthy_account_has_no_findings(aws: Double, tmp_path: Path) -> None:
    result = _asked(tmp_path)
    assert set(_findings(result)) == {"cluster access"}  # there is no kubeconfig
    assert result.exit_code == 0


def test_all_problems_are_found_in_one_run(aws: Double, tmp_path: Path) -> None:
    key = client(aws, "kms").create_key()["KeyMetadata"]["KeyId"]
    client(aws, "kms").disable_key(KeyId=key)
    aws.control.deny("ec2:CreateFleet")
    aws.control.set_vcpu_quota("L-34B43A08", 5)
    client(aws, "iam").create_role(RoleName="stranger", AssumeRolePolicyDocument="{}")
    client(aws, "events").remove_targets(Rule="health", Ids=["queue"])
    encrypted = [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi", "encrypted": True, "kmsKeyID": key}}]
    nowhere = [{"tags": {"karpenter.sh/discovery": "nowhere"}}]
    result = _asked(
        tmp_path,
        node_class("a", role="stranger", blockDeviceMappings=encrypted),
        node_class("b", subnetSelectorTerms=nowhere),
    )
    findings = _findings(result)
    assert result.exit_code == 1
    assert "ec2:CreateFleet" in findings["permissions"][0]["text"]
    assert "EC2NodeClass b selects no subnet" in findings["subnets"][0]["text"]
    assert {"stranger cannot be taken on", "does not know role stranger"} == {
        part
        for part in ("stranger cannot be taken on", "does not know role stranger")
        if part in str(findings["node role"])
    }
    assert f"key {key} is Disabled" in findings["volume keys"][0]["text"]
    assert "AWS Health Event" in findings["interruption queue"][0]["text"]
    assert "5 spot vCPUs" in findings["quotas"][0]["text"]
    assert all(obj["fix"] for finding in findings.values() for obj in finding)


def test_for_a_cluster_with_aws_auth_the_fix_adds_the_node_role(aws: Double, tmp_path: Path) -> None:
    """AWS-726: on a cluster of authentication mode CONFIG_MAP the whole of `doctor --fix-print` is a script."""
    aws.control.use_config_map_authentication()
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all((node_class(), node_pool("spot", ("spot",)))))
    words = ["doctor", "--cluster-name", CLUSTER, "--interruption-queue", CLUSTER, "-f", str(file), "--fix-print"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    at = result.stdout.index("kubectl create configmap aws-auth -n kube-system")
    command = shlex.split(result.stdout[at:].partition("\n\n")[0])
    (entry,) = yaml.safe_load(command[-1].partition("--from-literal=mapRoles=")[2])
    assert entry == {
        "rolearn": _ROLE,
        "username": "system:node:{{EC2PrivateDNSName}}",
        "groups": ["system:bootstrappers", "system:nodes"],
    }
    assert "create-access-entry" not in result.stdout


def test_expired_credentials_are_one_finding(aws: Double, tmp_path: Path) -> None:
    aws.control.expire_credentials()
    findings = _findings(_asked(tmp_path))
    assert "have expired" in findings["credentials"][0]["text"]
