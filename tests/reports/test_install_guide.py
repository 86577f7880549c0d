"""An installation guide for v0.25 on EKS, step by step: AWS, Helm, kubectl, manifests (AWS §20.1).

Helm and the API server are real, AWS is a double. One test performs all steps, because each depends on the one before.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.process import controller
from helm.charts import helm
from support.aws.aws_cluster import CLUSTER
from support.aws.clients import client, sdk_environment
from support.aws.double import Double
from support.aws.seeds import TAG, seed
from support.report_pools import MANIFESTS
from support.webhook_outside_cluster import await_webhook, webhook_environment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.older_versions,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("helm_program"),
]

_NAMESPACE = "karpenter"
_PROFILE = f"KarpenterNodeInstanceProfile-{CLUSTER}"
#: The guide's cluster has 1.24; this is the oldest version for which the double has images of AL2.
_VERSION = "1.32"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments/karpenter"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
#: Ports that must be free.
_OWN_PORTS = frozenset({"METRICS_PORT", "HEALTH_PROBE_PORT", "WEBHOOK_PORT"})
#: The guide's values, with the names of that release.
_VALUES = f"""
settings:
  eksControlPlane: true
  aws:
    clusterName: {CLUSTER}
    defaultInstanceProfile: {_PROFILE}
serviceAccount:
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/KarpenterControllerRole-{CLUSTER}
replicas: 2
controller:
  resources:
    requests: {{cpu: "1", memory: 1Gi}}
    limits: {{cpu: "1", memory: 1Gi}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - {{key: karpenter.sh/provisioner-name, operator: DoesNotExist}}
      - matchExpressions:
        - {{key: eks.amazonaws.com/nodegroup, operator: In, values: [ng-v1]}}
"""
_AWS_AUTH: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "aws-auth", "namespace": "kube-system"},
    "data": {
        "mapRoles": "- rolearn: arn:aws:iam::123456789012:role/node\n"
        "  username: system:node:{{EC2PrivateDNSName}}\n"
        "  groups: [system:bootstrappers, system:nodes]\n"
    },
}


@contextmanager
def _account_on_aws(plane: ControlPlane) -> Iterator[Double]:
    """Steps 1 to 8 of the guide: node role with instance profile, tags on subnets and security group, a cluster."""
    with Double() as aws:
        seed(aws)
        aws.control.add_cluster(CLUSTER, plane.server, base64.b64encode(plane.certificate).decode(), _VERSION)
        iam = client(aws, "iam")
        iam.create_instance_profile(InstanceProfileName=_PROFILE)
        iam.add_role_to_instance_profile(InstanceProfileName=_PROFILE, RoleName="node")
        yield aws


def _manifests() -> list[Json]:
    """Provisioner and AWSNodeTemplate of the guide, with the cluster's name instead of the placeholder."""
    names = ("a11-node-template", "a10-provisioner")
    text = "---\n".join((MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8") for name in names)
    return list(yaml.safe_load_all(text.replace("${CLUSTER_NAME}", TAG["Value"])))


def _workload() -> Json:
    container = {"name": "inflate", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    labels: Json = {"app": "inflate"}
    template: Json = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": 5, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "inflate", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _install(plane: ControlPlane, folder: Path) -> str:
    """The guide's `helm upgrade --install`; the notes that Helm prints."""
    values = folder / "values.yaml"
    values.write_text(_VALUES, encoding="utf-8")
    arguments = ("--install", "karpenter", "charts/karpenter", "--namespace", _NAMESPACE, "--create-namespace")
    return helm("upgrade", *arguments, "--values", str(values), kubeconfig=plane.kubeconfig)


def _environment(plane: ControlPlane) -> dict[str, str]:
    """The environment of the controller in the installed Deployment."""
    found = deployed.environment(plane.request("GET", _DEPLOYMENT))
    return {name: value for name, value in found.items() if name not in _OWN_PORTS}


def _karpenter_kinds(plane: ControlPlane) -> set[str]:
    """`kubectl api-resources --categories karpenter`."""
    found = set()
    for version in ("karpenter.sh/v1alpha5", "karpenter.k8s.aws/v1alpha1"):
        for resource in plane.request("GET", f"/apis/{version}")["resources"]:
            if "karpenter" in resource.get("categories", ()):
                found.add(f"{resource['name']} {version} {str(resource['namespaced']).lower()}")
    return found


def _launched(plane: ControlPlane) -> list[Json]:
    claims: list[Json] = plane.request("GET", _CLAIMS)["items"]
    return [claim for claim in claims if claim.get("status", {}).get("providerID")]


@pytest.mark.soak
def test_the_steps_of_the_guide_lead_to_instances(plane: ControlPlane, tmp_path: Path) -> None:
    """AWS-850, AWS-853, OPS-673, OPS-674, API-A10 to API-A14"""
    with _account_on_aws(plane) as aws, webhook_environment(plane) as place:
        notes = _install(plane, tmp_path)
        assert "`settings.aws.defaultInstanceProfile` is deprecated" in notes
        assert {
            "awsnodetemplates karpenter.k8s.aws/v1alpha1 false",
            "provisioners karpenter.sh/v1alpha5 false",
        } <= _karpenter_kinds(plane)
        plane.apply(_AWS_AUTH)
        account = Account(plane, _NAMESPACE, _earlier=len(plane.calls(f"system:serviceaccount:{_NAMESPACE}:karpenter")))
        account.renew()
        environment = {**_environment(plane), **sdk_environment(aws), **place}
        with controller(account.kubeconfig, environment=environment) as running:
            await_webhook(plane)
            manifests = _manifests()
            plane.apply(*manifests, _workload())
            plane.until(lambda: bool(_launched(plane)), "an instance")
            (instance, *_) = (one for one in aws.control.instances() if one["state"] != "terminated")
            assert instance["instance_type"].partition(".")[0][0] in "cmr"
            running.until(lambda: bool(running.lines("launched nodeclaim")), "log the launch")
            plane.delete(_workload(), *manifests)
        account.check()
        helm("uninstall", "karpenter", "--namespace", _NAMESPACE, kubeconfig=plane.kubeconfig)
        plane.delete(_AWS_AUTH)
