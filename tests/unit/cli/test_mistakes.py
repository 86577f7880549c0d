"""Mistakes that people make in manifests, each with the exact line that `karpenter plan` gives for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.manifest_builders import Json, Plan, pod, pool

POOL = pool()
#: A pod up to its specification, as text.
P = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"


class Mistake(NamedTuple):
    """Documents as objects or text, and all that is written to standard error; ``FILE`` stands for the file."""

    documents: Sequence[Json | str]
    line: str
    exit_code: int = 2


def dep(**spec: object) -> Json:
    """A Deployment of one replica."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]}
    stated: Json = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": stated}


def requiring(requirement: Json) -> Json:
    """A NodePool with one requirement."""
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    return pool(template={"spec": {"requirements": [requirement], "nodeClassRef": reference}})


def spread(**constraint: object) -> Json:
    """A pod with one topology spread constraint over zones."""
    whole = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    return pod(topologySpreadConstraints=[{**whole, "labelSelector": {}, **constraint}])


MISTAKES = {
    "dup key": Mistake(
        [
            POOL,
            P
            + "  containers: [{name: a}]\n"
            + "  tolerations: [{key: a, operator: Exists}]\n"
            + "  tolerations: [{key: b, operator: Exists}]\n",
        ],
        "FILE: document 2: line 20, column 3: key 'tolerations' stands there a second time (before in line "
        "19); the first value would be lost; keep one",
    ),
    "request": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {request: {cpu: 1}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.request: unknown field 'request' "
        "would be dropped; did you mean 'requests'?",
    ),
    "nodeSelectors": Mistake(
        [POOL, pod(nodeSelectors={"a": "b"})],
        "FILE: document 2 (Pod default/web): spec.nodeSelectors: unknown field 'nodeSelectors' would be "
        "dropped; did you mean 'nodeSelector'?",
    ),
    "toleration": Mistake(
        [POOL, pod(toleration=[])],
        "FILE: document 2 (Pod default/web): spec.toleration: unknown field 'toleration' would be dropped; "
        "did you mean 'tolerations'?",
    ),
    "Nodepool": Mistake(
        [{**pool(), "kind": "Nodepool"}, pod()],
        "FILE: document 1 (Nodepool default): kind: karpenter.sh/v1 has no Nodepool; did you mean NodePool?",
    ),
    "nodepools": Mistake(
        [{**pool(), "kind": "NodePools"}, pod()],
        "FILE: document 1 (NodePools default): kind: karpenter.sh/v1 has no NodePools; did you mean NodePool?",
    ),
    "Deploymnet": Mistake(
        [POOL, {**dep(), "kind": "Deploymnet"}],
        "FILE: document 2 (Deploymnet web): kind: apps/v1 has no Deploymnet; did you mean Deployment?",
    ),
    "Deployment v1": Mistake(
        [POOL, {**dep(), "apiVersion": "v1"}],
        "FILE: document 2 (Deployment web): apiVersion: v1 is not supported; expected apps/v1",
    ),
    "Deployment ext": Mistake(
        [POOL, {**dep(), "apiVersion": "extensions/v1beta1"}],
        "FILE: document 2 (Deployment web): apiVersion: extensions/v1beta1 is not supported; expected apps/v1",
    ),
    "CronJob v1beta1": Mistake(
        [POOL, {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "x"}}],
        "FILE: document 2 (CronJob x): apiVersion: batch/v1beta1 is not supported; expected batch/v1",
    ),
    "PDB v1beta1": Mistake(
        [POOL, {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"}}],
        "FILE: document 2 (PodDisruptionBudget x): apiVersion: policy/v1beta1 is not supported; expected policy/v1",
    ),
    "Provisioner": Mistake(
        [
            {"apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "default"}, "spec": {}},
            pod(),
        ],
        "FILE: document 1 (Provisioner default): kind: Provisioner of karpenter.sh/v1alpha5 is a NodePool "
        "now; translate it with karpenter convert",
    ),
    "Provisioner v1beta1": Mistake(
        [{"apiVersion": "karpenter.sh/v1beta1", "kind": "Provisioner", "metadata": {"name": "default"}, "spec": {}}],
        "FILE: document 1 (Provisioner default): apiVersion: karpenter.sh/v1beta1 has no Provisioner; expected "
        "karpenter.sh/v1alpha5",
    ),
    "AWSNodeTemplate": Mistake(
        [
            {
                "apiVersion": "karpenter.k8s.aws/v1alpha1",
                "kind": "AWSNodeTemplate",
                "metadata": {"name": "default"},
                "spec": {},
            },
            pod(),
        ],
        "FILE: document 1 (AWSNodeTemplate default): kind: AWSNodeTemplate of karpenter.k8s.aws/v1alpha1 is "
        "an EC2NodeClass now; translate it with karpenter convert",
    ),
    "Machine": Mistake(
        [
            {"apiVersion": "karpenter.sh/v1alpha5", "kind": "Machine", "metadata": {"name": "default"}, "spec": {}},
            pod(),
        ],
        "FILE: document 1 (Machine default): kind: Machine of karpenter.sh/v1alpha5 is a NodeClaim now: leave "
        "it out, the controller creates NodeClaims itself",
    ),
    "NodePool v1beta1": Mistake(
        [{**pool(), "apiVersion": "karpenter.sh/v1beta1"}, pod()],
        "FILE: document 1 (NodePool default): apiVersion: karpenter.sh/v1beta1 is not supported; expected "
        "karpenter.sh/v1; translate it with karpenter convert",
    ),
    "EC2NodeClass v1beta1": Mistake(
        [
            POOL,
            {"apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "metadata": {"name": "x"}, "spec": {}},
        ],
        "FILE: document 2 (EC2NodeClass x): apiVersion: karpenter.k8s.aws/v1beta1 is not supported; expected "
        "karpenter.k8s.aws/v1; translate it with karpenter convert",
    ),
    "NodePool group": Mistake(
        [{**pool(), "apiVersion": "karpenter.k8s.aws/v1"}, pod()],
        "FILE: document 1 (NodePool default): apiVersion: karpenter.k8s.aws/v1 is not supported; expected "
        "karpenter.sh/v1",
    ),
    "Kustomization": Mistake(
        [{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": []}],
        "FILE: document 1 (Kustomization): kind: is no object of a cluster; render it first: kubectl "
        "kustomize DIRECTORY",
    ),
    "helm template": Mistake(
        ["apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Values.name }}\nspec: {}\n"],
        "FILE: document 1: line 4, column 10: malformed YAML (found unhashable key); it has template marks "
        "({{): render it first, for example with helm template",
    ),
    "tabs": Mistake(
        ["apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n"],
        "FILE: document 1: line 4, column 1: malformed YAML (a tab, @ or ` where a value begins: indent with "
        "blanks, put the others in quotes); expected Kubernetes objects as YAML or JSON",
    ),
    "name with capitals": Mistake(
        [POOL, {**pod(), "metadata": {"name": "Web_1"}}],
        "FILE: document 2 (Pod default/Web_1): metadata.name: 'Web_1' is not a name; expected lower-case letters, "
        "digits, '-' and '.', such as web-1",
    ),
    "empty": Mistake(["# nothing\n"], "FILE: no objects in it; expected Kubernetes objects as YAML or JSON"),
    "label node.k8s.aws": Mistake(
        [POOL, pod(nodeSelector={"node.k8s.aws/instance-type": "a.small"})],
        "FILE: document 2 (Pod default/web): spec.nodeSelector[node.k8s.aws/instance-type]: label "
        "node.k8s.aws/instance-type is defined by no NodePool or node of the input; did you mean "
        "node.kubernetes.io/instance-type?",
        exit_code=0,
    ),
    "label catgory": Mistake(
        [POOL, pod(nodeSelector={"karpenter.k8s.aws/instance-catgory": "c"})],
        "FILE: document 2 (Pod default/web): spec.nodeSelector[karpenter.k8s.aws/instance-catgory]: label "
        "karpenter.k8s.aws/instance-catgory is defined by no NodePool or node of the input; did you mean "
        "karpenter.k8s.aws/instance-category?",
        exit_code=0,
    ),
    "label provisioner-name": Mistake(
        [POOL, pod(nodeSelector={"karpenter.sh/provisioner-name": "default"})],
        "FILE: document 2 (Pod default/web): spec.nodeSelector[karpenter.sh/provisioner-name]: label "
        "karpenter.sh/provisioner-name is defined by no NodePool or node of the input; did you mean "
        "karpenter.sh/nodepool?",
        exit_code=0,
    ),
    "pool label catgory": Mistake(
        [requiring({"key": "karpenter.k8s.aws/instance-catgory", "operator": "In", "values": ["c"]}), pod()],
        "FILE: document 1 (NodePool default): spec.template.spec.requirements[0].key: label domain "
        '"karpenter.k8s.aws" is restricted ("karpenter.k8s.aws/instance-catgory"); did you mean '
        "karpenter.k8s.aws/instance-category?",
    ),
    "label arch bare": Mistake(
        [POOL, pod(nodeSelector={"arch": "arm64"})],
        "FILE: document 2 (Pod default/web): spec.nodeSelector.arch: label arch is defined by no NodePool or "
        "node of the input; did you mean kubernetes.io/arch?",
        exit_code=0,
    ),
    "topology zone": Mistake(
        [POOL, spread(topologyKey="topology.kubernetes.io/zones")],
        "FILE: document 2 (Pod default/web): spec.topologySpreadConstraints[0].topologyKey: label "
        "topology.kubernetes.io/zones is defined by no NodePool or node of the input; did you mean "
        "topology.kubernetes.io/zone?",
        exit_code=0,
    ),
    "whenUnsat": Mistake(
        [POOL, spread(whenUnsatisfiable="DoNotScheduled")],
        "FILE: document 2 (Pod default/web): spec.topologySpreadConstraints[0].whenUnsatisfiable: "
        "'DoNotScheduled' is not one of DoNotSchedule, ScheduleAnyway; did you mean DoNotSchedule?",
    ),
    "maxSkew0": Mistake(
        [POOL, spread(maxSkew=0)],
        "FILE: document 2 (Pod default/web): spec.topologySpreadConstraints[0].maxSkew: 0 is too small, the least is 1",
    ),
    "op in": Mistake(
        [
            POOL,
            pod(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "kubernetes.io/arch", "operator": "in", "values": ["amd64"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            ),
        ],
        "FILE: document 2 (Pod default/web): "
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]."
        "matchExpressions[0].operator: "
        "'in' is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt; did you mean In?",
    ),
    "affinity list": Mistake(
        [
            POOL,
            pod(
                affinity={
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"matchExpressions": []}]}
                }
            ),
        ],
        "FILE: document 2 (Pod default/web): "
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution: expected an object, got "
        "a list",
    ),
    "podAffinity key": Mistake(
        [
            POOL,
            pod(
                affinity={
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"labelSelector": {"matchLabels": {"a": "b"}}}
                        ]
                    }
                }
            ),
        ],
        "FILE: document 2 (Pod default/web): "
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]: object missing "
        "required field topologyKey",
    ),
    "tol effect": Mistake(
        [POOL, pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedul"}])],
        "FILE: document 2 (Pod default/web): spec.tolerations[0].effect: 'NoSchedul' is not one of "
        "NoSchedule, PreferNoSchedule, NoExecute; did you mean NoSchedule?",
    ),
    "tol op": Mistake(
        [POOL, pod(tolerations=[{"key": "a", "operator": "exists"}])],
        "FILE: document 2 (Pod default/web): spec.tolerations[0].operator: 'exists' is not one of Equal, "
        "Exists, Gt, Lt; did you mean Exists?",
    ),
    "tol exists value": Mistake(
        [POOL, pod(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}])],
        "FILE: document 2 (Pod default/web): spec.tolerations[0].value: must be empty with operator Exists; "
        "use operator Equal",
    ),
    "cpu 1core": Mistake(
        [POOL, pod(cpu="1core")],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.cpu: '1core' is not a "
        "quantity (expected a number with an optional suffix, such as 500m, 2 or 4Gi); did you mean 1?",
    ),
    "mem 4GB": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {requests: {memory: 4GB}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.memory: '4GB' is not a "
        "quantity (expected a number with an optional suffix, such as 500m, 2 or 4Gi); did you mean 4G?",
    ),
    "mem 512mi": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {requests: {memory: 512mi}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.memory: '512mi' is not a "
        "quantity (expected a number with an optional suffix, such as 500m, 2 or 4Gi); did you mean 512Mi?",
    ),
    "req>lim": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.cpu: 2 is more than the limit 1",
    ),
    "no containers": Mistake(
        [POOL, P + "  nodeSelector: {a: b}\n"],
        "FILE: document 2 (Pod default/web): spec.containers: is missing; expected at least one container",
    ),
    "nodeSelector bool": Mistake(
        [POOL, pod(nodeSelector={"gpu": True})],
        "FILE: document 2 (Pod default/web): spec.nodeSelector.gpu: expected a string, got a boolean; put it in quotes",
    ),
    "replicas str": Mistake(
        [POOL, dep(replicas="3")],
        "FILE: document 2 (Deployment default/web): spec.replicas: expected an integer, got a string; remove the quotes",
    ),
    "replicas neg": Mistake(
        [POOL, dep(replicas=-1)], "FILE: document 2 (Deployment default/web): spec.replicas: -1 is below zero"
    ),
    "selector mismatch": Mistake(
        [POOL, dep(selector={"matchLabels": {"app": "wbe"}})],
        "FILE: document 2 (Deployment default/web): spec.selector: does not match the labels of the template (app=web)",
    ),
    "no selector": Mistake(
        [POOL, dep(selector=None)],
        "FILE: document 2 (Deployment default/web): spec.selector: is missing; expected the labels of the template",
    ),
    "replica": Mistake(
        [POOL, dep(replica=3)],
        "FILE: document 2 (Deployment default/web): spec.replica: unknown field 'replica' would be dropped; "
        "did you mean 'replicas'?",
    ),
    "priority missing": Mistake(
        [POOL, pod(priorityClassName="high")],
        "PriorityClass high is not in the input: 1 pod with priority 0 for it; add it",
        exit_code=0,
    ),
    "no pool": Mistake(
        [pod()], "no NodePool in the input: nothing can be launched without one; add a NodePool", exit_code=0
    ),
    "alias bomb": Mistake(
        [
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n" for p, c in pairwise("abcdefghij"))
        ],
        "FILE: document 1: its aliases make 8,335,593,976 characters of 49; write out what they stand for, or "
        "less of it",
    ),
    "alias self": Mistake(["&a [*a]"], "FILE: document 1: line 1, column 1: an alias stands inside what it stands for"),
    "consolidationPolicy": Mistake(
        [pool(disruption={"consolidationPolicy": "WhenUnderutilized"}), pod()],
        'FILE: document 1 (NodePool default): spec.disruption.consolidationPolicy: "WhenUnderutilized" is not '
        "one of Balanced, WhenEmpty, WhenEmptyOrUnderutilized; did you mean WhenEmptyOrUnderutilized?",
    ),
    "expireAfter disruption": Mistake(
        [pool(disruption={"expireAfter": "720h"}), pod()],
        "FILE: document 1 (NodePool default): spec.disruption.expireAfter: unknown field 'expireAfter' would "
        "be dropped; it is now spec.template.spec.expireAfter",
    ),
    "pool limits list": Mistake(
        [pool(limits=[{"cpu": "1"}]), pod()],
        'FILE: document 1 (NodePool default): spec.limits: [{"cpu":"1"}] is not an object',
    ),
    "pool op": Mistake(
        [requiring({"key": "kubernetes.io/arch", "operator": "in", "values": ["amd64"]}), pod()],
        'FILE: document 1 (NodePool default): spec.template.spec.requirements[0].operator: "in" is not one of '
        "DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn; did you mean In?",
    ),
    "pool values str": Mistake(
        [requiring({"key": "kubernetes.io/arch", "operator": "In", "values": "amd64"}), pod()],
        'FILE: document 1 (NodePool default): spec.template.spec.requirements[0].values: "amd64" is not a list',
    ),
    "hpa target": Mistake(
        [
            POOL,
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "w"},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "wbe"}, "maxReplicas": 3},
            },
        ],
        "HorizontalPodAutoscaler default/w: Deployment wbe is not in the input; add it",
        exit_code=0,
    ),
    "cpu 100M": Mistake(
        [POOL, pod(cpu="100M")],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.cpu: 100M are 100 million cores; did you "
        "mean 100m?",
        0,
    ),
    "memory 512m": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {limits: {memory: 512m}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.limits.memory: 512m are 512 thousandths of a byte; "
        "did you mean 512Mi?",
        0,
    ),
    "memory 1024": Mistake(
        [POOL, P + "  containers: [{name: a, resources: {requests: {memory: 1024}}}]\n"],
        "FILE: document 2 (Pod default/web): spec.containers[0].resources.requests.memory: 1024 without a unit means bytes; "
        "did you mean 1024Mi?",
        0,
    ),
    "json dup": Mistake(
        [
            '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a"}],"containers":[{"name":"b"}]}}'
        ],
        "FILE: document 1: key 'containers' stands twice in one object; the first value would be lost; keep one",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gives_one_line_with_its_place_and_a_correction(plan: Plan, tmp_path: Path, mistake: Mistake) -> None:
    file = tmp_path / "a.yaml"
    texts = [part if isinstance(part, str) else yaml.safe_dump(part, sort_keys=False) for part in mistake.documents]
    file.write_text("---\n".join(texts))
    result = plan("-f", file)
    assert (result.exit_code, result.stderr) == (mistake.exit_code, mistake.line.replace("FILE", str(file)) + "\n")


def test_kinds_of_other_groups_that_are_called_like_ours_are_passed_over(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("apiVersion: hypershift.openshift.io/v1beta1\nkind: NodePool\nmetadata: {name: x}\n")
    result = plan("-f", file)
    assert result.exit_code == 0
    assert result.stderr.startswith("ignored 1 object of kinds that planning does not use: NodePool 1\n")


def test_a_url_is_not_fetched_and_the_way_is_named(plan: Plan) -> None:
    result = plan("-f", "https://example.com/web.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "URLs are not fetched; pipe the content: curl URL | karpenter plan -f -" in result.stderr


def test_an_empty_file_among_others_is_reported_and_the_plan_goes_on(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# rendered to nothing\n")
    (tmp_path / "b.yaml").write_text(f"{yaml.safe_dump(POOL)}---\n{yaml.safe_dump(pod())}")
    result = plan("-f", tmp_path)
    assert result.exit_code == 0
    assert result.stderr == f"{tmp_path / 'a.yaml'}: no objects in it; expected Kubernetes objects as YAML or JSON\n"


def test_a_label_that_a_node_pool_defines_is_no_mistake(plan: Plan, tmp_path: Path) -> None:
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    defining = pool(
        template={"metadata": {"labels": {"arch": "x"}}, "spec": {"requirements": [], "nodeClassRef": reference}}
    )
    (tmp_path / "a.yaml").write_text(
        f"{yaml.safe_dump(defining)}---\n{yaml.safe_dump(pod(nodeSelector={'arch': 'x'}))}"
    )
    result = plan("-f", tmp_path / "a.yaml")
    assert (result.exit_code, result.stderr) == (0, "")


_INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from karpenter.cli.entry_point import main
main()
"""


def test_an_interrupt_right_after_the_start_is_quiet() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_IMPORTING], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_an_object_that_stands_in_two_files_is_not_counted_twice(plan: Plan, written: Callable[..., Path]) -> None:
    first, second = written("a.json", pool(), pod("web")), written("b.json", pod("web"))
    refused = plan("-f", first, "-f", second)
    assert refused.exit_code == 2
    where = f"{second}: document 1 (Pod default/web): items[0].metadata.name: stands in {first}, document 1, too"
    assert f"{where}; leave one of them out" in refused.stderr
    planned = plan("-f", first, "-f", second, "--skip-invalid")
    assert planned.exit_code == 0
    assert "1 new node with 1 pod" in planned.stdout
