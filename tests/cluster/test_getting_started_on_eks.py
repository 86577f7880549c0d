"""The guides for EKS and for kubeadm on EC2, line by line: Helm and the control plane are real, AWS is a double (AWS §16.3)."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jmespath
import pytest
from botocore import xform_name
from typer.testing import CliRunner

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items
from controlplane.process import Controller, controller
from helm.charts import helm
from karpenter.api import crds
from karpenter.cli.main import app
from support import shell_commands
from support.aws.clients import client, sdk_environment
from support.aws.double import Double
from support.aws.interruption_queue import InterruptionQueue
from support.aws.moto_backend import ACCOUNT
from support.aws.seeds import seed
from support.aws.stacks import StackAccount
from support.kubectl_lines import ROOT, Kubectl
from support.webhook_outside_cluster import webhook_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.usefixtures("helm_program")]

GUIDE = ROOT / "docs" / "aws.md"
KUBEADM = ROOT / "docs" / "getting-started" / "kubeadm.md"
#: What the guides call a cluster, and where it is.
CLUSTER, REGION = "shop", "eu-central-1"
KUBEADM_CLUSTER, KUBEADM_REGION = "prod", "eu-west-1"
_DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
#: Ports a process of the test cannot share with others.
_PORTS = ("METRICS_PORT", "HEALTH_PROBE_PORT", "WEBHOOK_PORT")


class Reader:
    """Types the lines of the guide: variables, files and the answers of AWS are theirs."""

    def __init__(self, plane: ControlPlane, aws: Double, folder: Path, cluster: str, manifests: str) -> None:
        self._cluster = cluster
        self._plane = plane
        self._aws = aws
        self._folder = folder
        self._variables: dict[str, str] = {}
        (folder / "class.yaml").write_text(manifests, encoding="utf-8")
        self.kubectl = Kubectl(plane, {"class.yaml": manifests})
        self.releases = ExitStack()
        self.controller: Controller | None = None

    def do(self, line: str) -> str:
        """One line, with what it prints."""
        line = re.sub(r"\$\((aws [^()]*)\)", lambda found: shlex.quote(self.do(found[1])), line)
        assignments = re.match(r"(?:export )?((?:\w+=(?:'[^']*'|\S+)\s*)+)$", line)
        if assignments:
            for word in shlex.split(assignments[1]):
                name, _, value = word.partition("=")
                self._variables[name] = self._filled(value)
            return ""
        words = [word for part in shlex.split(line) for word in self._filled(part).split(" " if "$" in part else None)]
        target = words[words.index(">") + 1] if ">" in words else ""
        words = words[: words.index(">")] if target else words
        printed = {"aws": self._ask_aws, "helm": self._install, "kubectl": self._kubectl, "karpenter": self._karpenter}[
            words[0]
        ](words[1:])
        if target:
            (self._folder / target).write_text(printed, encoding="utf-8")
        return printed

    def _filled(self, text: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self._variables[found[1]], text)

    def _kubectl(self, words: list[str]) -> str:
        return self.kubectl.run(shlex.join(["kubectl", *words]))

    def _karpenter(self, words: list[str]) -> str:
        words = [str(self._folder / word) if word == "class.yaml" else word for word in words]
        environment = {**sdk_environment(self._aws), **self._variables, "KUBECONFIG": self._plane.kubeconfig}
        result = CliRunner().invoke(app, words, env={**environment, "EKS_CONTROL_PLANE": "true"})
        assert result.exit_code == 0, result.output
        return result.stdout

    def _ask_aws(self, words: list[str]) -> str:
        service, operation, *rest = words
        values: dict[str, list[str]] = {}
        for word in rest:
            if word.startswith("--"):
                values[word[2:]] = given = []
            else:
                given.append(word)
        if (service, operation) == ("cloudformation", "deploy"):
            return self._deploy_stack(
                json.loads((self._folder / values["template-file"][0]).read_text(encoding="utf-8"))
            )
        api = client(self._aws, service)
        method = operation.replace("-", "_")
        shape = api.meta.service_model.operation_model(api.meta.method_to_api_mapping[method]).input_shape
        arguments = {
            name: _value(member, values[xform_name(name, "-")])
            for name, member in shape.members.items()
            if xform_name(name, "-") in values
        }
        answer: Any = getattr(api, method)(**arguments)
        found = jmespath.search(values["query"][0], answer) if "query" in values else ""
        return " ".join(found) if isinstance(found, list) else str(found)

    def _deploy_stack(self, template: dict[str, Any]) -> str:
        """The stack is made on a double of CloudFormation; what later steps need of it, on that of AWS."""
        created = StackAccount("API_AND_CONFIG_MAP").deploy(f"karpenter-{self._cluster}", template).created
        assert {"KarpenterNodeRole", "KarpenterControllerRole", "KarpenterInterruptionQueue"} <= set(created)
        iam = client(self._aws, "iam")
        for name in ("KarpenterNodeRole", "KarpenterControllerRole"):
            role = template["Resources"][name]["Properties"]
            iam.create_role(
                RoleName=role["RoleName"], AssumeRolePolicyDocument=json.dumps(role["AssumeRolePolicyDocument"])
            )
        self._aws.control.add_access_entry(f"arn:aws:iam::{ACCOUNT}:role/KarpenterNodeRole-{self._cluster}")
        InterruptionQueue(self._aws, self._cluster).subscribe_to_rules()
        return ""

    def _install(self, words: list[str]) -> str:
        helm(*(word for word in words if word != "--wait"), kubeconfig=self._plane.kubeconfig)
        release, place = words[words.index("--install") + 1], ("--namespace", "kube-system")
        self.releases.callback(lambda: helm("uninstall", release, *place, kubeconfig=self._plane.kubeconfig))
        if "charts/karpenter" in words:
            self.controller = self.releases.enter_context(self._running())
        return ""

    @contextmanager
    def _running(self) -> Iterator[Controller]:
        """The controller as its Deployment says; no kubelet starts it here."""
        account = Account(self._plane, _earlier=len(self._plane.calls("system:serviceaccount:kube-system:karpenter")))
        account.renew()
        found = deployed.environment(self._plane.request("GET", _DEPLOYMENT))
        environment = {name: value for name, value in found.items() if name not in _PORTS}
        with webhook_environment(self._plane) as place:
            started = controller(account.kubeconfig, environment={**environment, **sdk_environment(self._aws), **place})
            with started as running:
                yield running
        account.check()


def _value(shape: Any, given: list[str]) -> Any:
    """The value of an option in the shorthand of the AWS CLI."""
    if shape.type_name != "list":
        return given[0]
    if shape.member.type_name == "structure":
        return [dict(pair.split("=", 1) for pair in each.split(",")) for each in given]
    return given


def test_the_guide_leads_from_a_cluster_to_nodes(plane: ControlPlane, tmp_path: Path) -> None:
    cleanup.forget_definitions(plane)
    with Double(REGION) as aws, definitions_of_tests(plane):
        seeds = seed(aws)
        network = {"subnetIds": [*seeds.subnets.values()], "clusterSecurityGroupId": seeds.group}
        certificate = base64.b64encode(plane.certificate).decode()
        aws.control.add_cluster(CLUSTER, plane.server, certificate, vpc=network)
        (manifests,) = (text for _, text in shell_commands.fenced_blocks(GUIDE) if "# class.yaml" in text)
        reader = Reader(plane, aws, tmp_path, CLUSTER, manifests)
        with reader.releases:
            for line in shell_commands.shell_lines(GUIDE):
                reader.do(line)
                if line.startswith("kubectl get ec2nodeclasses"):
                    plane.until(lambda: _are_ready(plane), "class and pool to be ready")
            plane.until(lambda: bool(_launched(plane)), "an instance")
            assert [one for one in aws.control.instances() if one["state"] != "terminated"]
            reader.do("kubectl delete deployment inflate")
            plane.delete(*items_as_written(plane, "/apis/karpenter.sh/v1/nodepools"))
            plane.until(lambda: not items(plane, "/apis/karpenter.sh/v1/nodeclaims"), "the NodeClaims to go")


def test_the_guide_for_kubeadm_installs_a_controller_that_names_what_kubeadm_would_have_made(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Without `kubeadm init` nothing is launched, and the class says so; test_kubeadm.py has what it makes."""
    (node_class,) = (text for _, text in shell_commands.fenced_blocks(KUBEADM) if "kind: EC2NodeClass" in text)
    with Double(KUBEADM_REGION) as aws:
        seeds = seed(aws)
        found = [*seeds.subnets.values(), seeds.group, seeds.image]
        tags = {"karpenter.sh/discovery": KUBEADM_CLUSTER, "kubernetes": "1.35"}
        client(aws, "ec2").create_tags(
            Resources=found, Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
        )
        reader = Reader(plane, aws, tmp_path, KUBEADM_CLUSTER, node_class)
        with reader.releases:
            for line in shell_commands.shell_lines(KUBEADM):
                if not line.startswith("kubeadm join"):  # the user data of an instance
                    reader.do(line)
            reader.do("kubectl apply -f class.yaml")
            lacking = "BootstrapPrerequisitesMissing"
            plane.until(lambda: _reason(plane, "ValidationSucceeded") == lacking, "the class to say what is missing")
            assert reader.controller is not None
            reader.controller.until(reader.controller.is_ready, "become ready")
            assert aws.control.calls("CreateFleet") == []
            plane.delete(*items_as_written(plane, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"))


def _reason(plane: ControlPlane, condition: str) -> str:
    (node_class,) = items(plane, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses")
    conditions: list[Json] = node_class.get("status", {}).get("conditions", [])
    return next((str(each["reason"]) for each in conditions if each["type"] == condition), "")


@contextmanager
def definitions_of_tests(plane: ControlPlane) -> Iterator[None]:
    """Afterwards the definitions are those that other tests begin with."""
    try:
        yield
    finally:
        cleanup.forget_definitions(plane)
        plane.apply(*crds.custom_resource_definitions())


def items_as_written(plane: ControlPlane, path: str) -> list[Json]:
    """The objects of a collection with their kind, which lists leave out."""
    found = plane.request("GET", path)
    head: Json = {"apiVersion": found["apiVersion"], "kind": str(found["kind"]).removesuffix("List")}
    return [{**head, **each} for each in items(plane, path)]


def _are_ready(plane: ControlPlane) -> bool:
    found = [
        *items(plane, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"),
        *items(plane, "/apis/karpenter.sh/v1/nodepools"),
    ]
    return len(found) == 2 and all(_is_ready(each) for each in found)


def _is_ready(found: Json) -> bool:
    conditions: list[Json] = found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _launched(plane: ControlPlane) -> list[Json]:
    claims = items(plane, "/apis/karpenter.sh/v1/nodeclaims")
    return [claim for claim in claims if claim.get("status", {}).get("providerID")]
