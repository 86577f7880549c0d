"""Published manifests applied as they are: an API server with our definitions takes them, and each launches instances (API-A50).

The account is a double of AWS in the region of those reports. What a reader has to fill in is filled in: the placeholder of the
cluster's name, zones of another region. The network carries the discovery tag that the manifest selects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from controlplane.harness import ApiError, ControlPlane, Json
from support.aws.aws_cluster import CLUSTER, AwsCluster, aws_cluster, node_class
from support.aws.clients import client
from support.webhook_outside_cluster import await_webhook, webhook_environment

pytestmark = [pytest.mark.cluster, pytest.mark.older_versions, pytest.mark.timeout(300)]

_REGION = "ap-northeast-2"
#: The last minor version with images of AL2, which older manifests mean.
_VERSION = "1.32"
_MANIFESTS = Path(__file__).parents[1] / "unit" / "conversion" / "manifests"
_PROFILES = ("KarpenterInstanceProfile", "KarpenterNodeInstanceProfile-eks-karpenter-demo", "karpenter-node-profile")
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True)
class Case:
    """Manifests, the NodePool that launches, and how the network is tagged for discovery."""

    files: tuple[str, ...]
    pool: str
    discovery: str = "test"
    #: In the place of the name `default`, which several reports give to different objects; empty where the class of that
    #: name is the user's own.
    default: str = ""
    #: Instance types that may be launched; empty where the manifest leaves them open.
    types: frozenset[str] = frozenset()


_CASES = {
    "API-A01": Case(("a01-beta-pool-without-template",), "spot-instance"),
    "API-A02": Case(("a02-beta-pool-never-consolidated",), "ondemand-instance"),
    "API-A03": Case(
        ("a03-beta-pool-with-kubelet",), "tuned", "main", types=frozenset({"r6g.xlarge", "m6i.xlarge", "m6g.xlarge"})
    ),
    "API-A10 API-A11": Case(("a11-node-template", "a10-provisioner"), "guide", default="guide"),
    "API-A20 API-A21": Case(
        ("a20-node-template-in-full", "a21-provisioner-with-requirements-twice"), "karpenter-default", "dev-cluster"
    ),
    "API-A30": Case(
        ("a30-provisioner-with-inline-provider",),
        "launch",
        default="launch",
        types=frozenset({"m5.large", "m5.2xlarge"}),
    ),
    "API-A40 API-A41": Case(
        ("a41-v1-ubuntu-class", "a40-v1-pool"),
        "worker-scalable",
        "true",
        "ubuntu",
        frozenset({"t3.medium", "t3.large", "t3.xlarge"}),
    ),
    "API-A43": Case(("a43-v1-pool-with-office-hours",), "office-hours"),
}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[AwsCluster]:
    with aws_cluster(plane, _REGION, _VERSION) as ready:
        _make_roles_and_profiles(ready)
        _add_networks(ready)
        yield ready


@pytest.fixture(scope="module")
def applied(cluster: AwsCluster) -> Iterator[ControlPlane]:
    """All manifests on one cluster, with a pod for each NodePool, and a controller."""
    plane = cluster.plane
    with webhook_environment(plane) as place, cluster.controller(**place, DEFAULT_NODE_ROLE="node"):
        await_webhook(plane)
        manifests = [node_class(), *(manifest for case in _CASES.values() for manifest in _written(case))]
        plane.apply(*manifests, *(_pod(case.pool) for case in _CASES.values()))
        yield plane
        _remove(plane, manifests)


def _make_roles_and_profiles(cluster: AwsCluster) -> None:
    iam = client(cluster.aws, "iam")
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument="{}")
    for name in _PROFILES:
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName="node")


def _add_networks(cluster: AwsCluster) -> None:
    """A subnet and a security group for each value of the discovery tag; those of the seeds carry the cluster's own tag too."""
    ec2 = client(cluster.aws, "ec2")
    owned = [{"Key": f"kubernetes.io/cluster/{CLUSTER}", "Value": "owned"}]
    ec2.create_tags(Resources=[*cluster.seeds.subnets.values(), cluster.seeds.group], Tags=owned)
    for index, discovery in enumerate(sorted({case.discovery for case in _CASES.values()} - {"test"})):
        block = f"10.0.{100 + index}.0/24"
        subnet = ec2.create_subnet(VpcId=cluster.seeds.vpc, CidrBlock=block, AvailabilityZone=f"{_REGION}a")
        group = ec2.create_security_group(GroupName=discovery, Description="nodes", VpcId=cluster.seeds.vpc)
        tags = [{"Key": "karpenter.sh/discovery", "Value": discovery}]
        ec2.create_tags(Resources=[subnet["Subnet"]["SubnetId"], group["GroupId"]], Tags=tags)


def _written(case: Case) -> list[Json]:
    """The manifests of a case, with what its readers fill in; of two lists of requirements the entries of both."""
    text = "---\n".join((_MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8") for name in case.files)
    text = text.replace("${CLUSTER_NAME}", CLUSTER).replace("us-east-1", _REGION)
    if case.default:
        text = text.replace("name: default\n", f"name: {case.default}\n")
    return list(yaml.safe_load_all(text.replace("  # weight: 50\n  requirements:\n", "")))


def _pod(pool: str) -> Json:
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "500m"}}}
    spec: Json = {
        "containers": [container],
        "nodeSelector": {"karpenter.sh/nodepool": pool},
        "tolerations": [{"operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pool, "namespace": "default"}, "spec": spec}


def _launched(plane: ControlPlane, pool: str) -> list[Json]:
    """NodeClaims of a NodePool with an instance."""
    claims: list[Json] = plane.request("GET", f"{_CLAIMS}?labelSelector=karpenter.sh%2Fnodepool%3D{pool}")["items"]
    return [claim for claim in claims if _provider_id(claim)]


def _provider_id(claim: Json) -> str:
    return str(claim.get("status", {}).get("providerID", ""))


def _type_of(claim: Json) -> str:
    return str(claim["metadata"]["labels"]["node.kubernetes.io/instance-type"])


def _remove(plane: ControlPlane, manifests: list[Json]) -> None:
    """Pods first, or their instances would be launched again; the rest goes when the control plane is emptied."""
    plane.request("DELETE", f"{_PODS}?gracePeriodSeconds=0")
    plane.delete(*manifests)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _CASES.items()])
def test_a_published_manifest_is_taken_and_launches_an_instance(applied: ControlPlane, case: Case) -> None:
    """API-A01 to API-A43, API-A50: a pod that only its NodePool serves gets an instance of a type it asks for."""
    applied.until(lambda: bool(_launched(applied, case.pool)), "an instance")
    (claim,) = _launched(applied, case.pool)
    assert not case.types or _type_of(claim) in case.types


@pytest.mark.parametrize("name", ["guide", "karpenter-default", "launch"])
def test_a_provisioner_is_active_and_says_when_it_scaled(applied: ControlPlane, name: str) -> None:
    """API-S294, API-856"""
    path = f"/apis/karpenter.sh/v1alpha5/provisioners/{name}"
    applied.until(lambda: "lastScaleTime" in applied.request("GET", path)["status"], "the time of scaling")
    (active,) = applied.request("GET", path)["status"]["conditions"]
    assert (active["type"], active["status"]) == ("Active", "True")


def test_a_nodeclaim_copied_from_a_report_launches_once_its_owner_is_left_out(applied: ControlPlane) -> None:
    """API-A42, API-140: the API server refuses an owner without uid; status is the server's and is not taken."""
    (claim,) = _written(Case(("a42-v1-claim-copied-from-a-cluster",), ""))
    with pytest.raises(ApiError, match="uid"):
        applied.request("POST", _CLAIMS, claim)
    metadata = {name: value for name, value in claim["metadata"].items() if name != "ownerReferences"}
    applied.request("POST", _CLAIMS, {**claim, "metadata": metadata})
    path = f"{_CLAIMS}/{metadata['name']}"
    applied.until(lambda: bool(_provider_id(applied.request("GET", path))), "an instance")
    launched = applied.request("GET", path)
    assert _type_of(launched) == "t3.large"
    assert _provider_id(launched) != _provider_id(claim)
