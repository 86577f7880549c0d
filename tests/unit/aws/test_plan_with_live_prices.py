"""The command ``karpenter plan --live-prices`` against the double of AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from support.aws.clients import sdk_environment
from support.aws.double import Double
from support.manifest_builders import Json, listed, pod

_TYPES = frozenset({"m5.large", "c5.xlarge", "m5.metal"})


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with Double() as double:
        double.region.instance_types.keep_only(_TYPES)
        yield double


@pytest.fixture
def aws(running: Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Double:
    running.reset()
    for name, value in {**sdk_environment(running), "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A class, an on-demand NodePool, a pod with one CPU."""
    selector = [{"tags": {"cluster": "shop"}}]
    node_class: Json = {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "spec": {
            "role": "node",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": selector,
            "securityGroupSelectorTerms": selector,
            "kubelet": {"maxPods": 5},
        },
    }
    node_pool: Json = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                    "requirements": [
                        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                    ],
                }
            }
        },
    }
    file = tmp_path / "objects.json"
    file.write_text(json.dumps(listed(node_class, node_pool, pod("web", "1"))))
    return file


def _plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", "--live-prices", *map(str, arguments)], catch_exceptions=False)


def test_prices_are_those_of_the_account_and_are_cached(aws: Double, manifests: Path) -> None:
    aws.region.instance_types.set_on_demand_price("m5.large", 0.0123)
    result = _plan("-f", manifests, "-o", "json")
    assert result.stderr == ""
    loads = json.loads(result.stdout)
    (claim,) = loads["nodeClaims"]
    assert (claim["cheapest"]["instanceType"], claim["cheapest"]["price"]) == ("m5.large", 0.0123)
    assert {name: loads["prices"][name] for name in ("source", "region", "currency", "onDemand")} == {
        "source": "EC2", "region": aws.region_name, "currency": "USD", "onDemand": "price list",
    }  # fmt: skip
    aws.region.instance_types.set_on_demand_price("m5.large", 9.9)
    page = _plan("-f", manifests).stdout
    assert "0.0123" in page
    assert f"prices: of EC2 in {aws.region_name}, read 20" in page


def test_an_error_of_aws_ends_the_command_with_one_line(aws: Double, manifests: Path) -> None:
    aws.control.deny("ec2:DescribeInstanceTypes")
    result = _plan("-f", manifests)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("live prices: ")
    assert line.endswith("; or leave out --live-prices")


def test_a_file_of_types_and_live_prices_exclude_each_other(manifests: Path, tmp_path: Path) -> None:
    (tmp_path / "types.json").write_text("[]")
    result = _plan("-f", manifests, "--instance-types", tmp_path / "types.json")
    assert result.exit_code == 2
    assert result.stderr == "--live-prices and --instance-types exclude each other: give one of them\n"
