"""The region whose packaged types and prices count in ``karpenter plan`` and ``explain``; few types keep the tests fast."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.api.core import Node
from karpenter.api.meta import ObjectMeta
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.main import app
from karpenter.cli.region_inference import PlanRegion, find_region
from support.manifest_builders import Json, Plan, pod, pool

Written = Callable[..., Path]
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(autouse=True)
def _no_region_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def planned(*arguments: str | Path) -> Json:
    return json.loads(run("plan", *arguments, "-o", "json").stdout)


def zonal_pool(*zones: str, name: str = "default") -> Json:
    """A NodePool that launches m5 and m6i on demand in these zones."""
    requirements = [
        {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m5", "m6i"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    if zones:
        requirements.append({"key": ZONE, "operator": "In", "values": list(zones)})
    body = pool(name)
    body["spec"]["template"]["spec"]["requirements"] = requirements
    return body


def node_in(zone: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": {ZONE: zone}}}


def volume_in(zone: str) -> Json:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    spec = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}, "nodeAffinity": affinity}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"}, "spec": spec}


def test_zones_of_a_pool_name_the_region(written: Written) -> None:
    """m5.large costs 0.117708 USD in Bahrain: 0.096 times the family's ratio."""
    loads = planned("-f", written("a.json", zonal_pool("me-south-1a", "me-south-1c"), pod()))
    (claim,) = loads["nodeClaims"]
    assert claim["cheapest"] == {
        "instanceType": "m5.large", "zone": "me-south-1a", "capacityType": "on-demand", "price": 0.117708, "cpuSurplus": 0,
    }  # fmt: skip
    assert loads["prices"] == {
        "source": "packaged",
        "region": "me-south-1",
        "regionBasis": "zones of NodePools",
        "onDemandDate": "2026-07-20",
        "regionRatioDate": "2025-04-04",
        "spotSavingsDate": "2025-06-28",
        "spotSavingsRegion": "us-east-1",
        "offerings": "listed",
        "estimatedTypes": [],
    }


def test_the_page_states_region_source_and_dates_of_prices(written: Written) -> None:
    page = run("plan", "-f", written("a.json", zonal_pool("me-south-1a"), pod())).stdout
    assert "prices: packaged for me-south-1 (from zones of NodePools)\n" in page
    assert "  on-demand: 2026-07-20 in us-east-1, times ratios of 2025-04-04\n" in page
    assert "  spot: savings of 2025-06-28 in us-east-1\n" in page
    assert max(len(line) for line in page.splitlines()) <= 80


def test_an_estimated_price_is_marked(written: Written) -> None:
    """The price list of April 2025 does not know m8g; Bahrain sells it."""
    only = zonal_pool("me-south-1a")
    only["spec"]["template"]["spec"]["requirements"][0]["values"] = ["m8g"]
    file = written("a.json", only, pod())
    assert planned("-f", file)["prices"]["estimatedTypes"] == ["m8g.medium"]
    assert "  estimated with the region's median ratio: m8g.medium\n" in run("plan", "-f", file).stdout


@pytest.mark.parametrize(
    ("objects", "variables", "arguments", "region", "basis"),
    [
        pytest.param([node_in("me-south-1b")], {}, [], "me-south-1", "zones of nodes", id="nodes"),
        pytest.param([volume_in("mx-central-1c")], {}, [], "mx-central-1", "zones of volumes", id="volumes"),
        pytest.param([], {"AWS_REGION": "mx-central-1"}, [], "mx-central-1", "AWS_REGION", id="environment"),
        pytest.param(
            [pod("zonal", nodeSelector={ZONE: "mx-central-1a"})], {}, [], "mx-central-1", "zones of pods", id="pods"
        ),
        pytest.param(
            [node_in("me-south-1b")], {}, ["--region", "mx-central-1"], "mx-central-1", "--region", id="option"
        ),
    ],
)
def test_the_region_comes_from_the_first_that_names_one(
    objects: list[Json],
    variables: dict[str, str],
    arguments: list[str],
    region: str,
    basis: str,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    loads = planned("-f", written("a.json", zonal_pool(), pod(), *objects), *arguments)
    assert (loads["prices"]["region"], loads["prices"]["regionBasis"]) == (region, basis)
    assert {claim["cheapest"]["zone"][:-1] for claim in loads["nodeClaims"]} == {region}


def test_a_region_that_nothing_names_is_called_assumed(written: Written) -> None:
    page = run("plan", "-f", written("a.json", zonal_pool())).stdout
    assert "prices: packaged for us-east-1 (assumed)\n  nothing names a region: set --region or AWS_REGION\n" in page


def test_zones_of_two_regions_are_refused_with_both(written: Written) -> None:
    file = written("a.json", zonal_pool("me-south-1a"), zonal_pool("eu-west-1a", name="other"))
    result = run("plan", "-f", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "zones of NodePools name zones of several regions (eu-west-1, me-south-1): "
        "give --region, or --instance-types with types of your own\n"
    )


@pytest.mark.parametrize(
    ("region", "meant"),
    [("eu-centrall-1", "eu-central-1"), ("eu-central-1a", "eu-central-1"), ("eu-north1", "eu-north-1")],
)
def test_a_misspelt_region_gets_a_suggestion(written: Written, region: str, meant: str) -> None:
    result = run("plan", "-f", written("a.json", zonal_pool()), "--region", region)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"--region={region}: there are no packaged prices for this region; did you mean {meant}? Otherwise give "
        "--instance-types with types of your own (plan and explain also take --live-prices)\n"
    )


def test_a_region_without_packaged_prices_is_refused_with_those_that_have_them(written: Written) -> None:
    result = run("plan", "-f", written("a.json", zonal_pool()), "--region", "mars")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "--region=mars: there are no packaged prices for this region; give --instance-types with types of your own "
        "(plan and explain also take --live-prices), or another --region: af-south-1, "
    )


@pytest.mark.parametrize(("zone", "region"), [("cn-north-1a", "cn-north-1"), ("ap-east-2b", "ap-east-2")])
def test_nodes_of_a_region_without_packaged_prices_are_not_planned_elsewhere(
    zone: str, region: str, written: Written
) -> None:
    result = run("plan", "-f", written("a.json", zonal_pool(), node_in(zone)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        f"zones of nodes name {region}: there are no packaged prices for this region; give --instance-types "
        in result.stderr
    )


@pytest.mark.parametrize("zone", ["zone-a", "test-zone-1a", "us-central1-a", "eastus-1", "europe-west1-b"])
def test_zones_of_other_clouds_name_no_region(zone: str) -> None:
    node = Node(metadata=ObjectMeta(name="n", labels={ZONE: zone}))
    assert find_region(ClusterObjects(nodes=[node]), "", {}) == PlanRegion("us-east-1", "")


def test_a_pool_of_another_region_is_reported_to_launch_nothing(written: Written) -> None:
    file = written("a.json", zonal_pool("me-south-1a"), pod())
    result = run("plan", "-f", file, "--region", "mx-central-1")
    assert (
        "NodePool default requires zones of me-south-1, but the plan is for mx-central-1: it can launch nothing; "
        "correct its requirements, or give --region\n"
    ) in result.stderr


def test_a_file_of_types_has_no_region(plan: Plan, written: Written, types: Path) -> None:
    file = written("a.json", pool(), pod())
    assert json.loads(plan("-f", file, "-o", "json").stdout)["prices"] == {"source": str(types), "region": None}
    assert "prices: of the instance type file types.json\n" in plan("-f", file).stdout


def test_explain_states_region_and_dates_too(written: Written) -> None:
    file = written("a.json", zonal_pool("me-south-1a"), pod())
    page = run("explain", "pod", "web", "-f", file).stdout
    assert "prices: packaged for me-south-1 (from zones of NodePools)" in page
    data = json.loads(run("explain", "pod", "web", "-f", file, "-o", "json").stdout)
    assert data["prices"]["region"] == "me-south-1"
