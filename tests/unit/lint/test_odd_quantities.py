"""KL005: quantities whose unit was confused or forgotten, wherever users write quantities of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from karpenter.model.structural_schema import child_path

Findings = Callable[..., list[dict[str, Any]]]

POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: app, image: pause, resources: {requests: {cpu: 100m, NAME: VALUE}}}
"""
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      resources: {requests: {cpu: 1, memory: 64}}
      initContainers:
      - {name: first, image: pause, resources: {limits: {memory: 512m}}}
      containers:
      - {name: app, image: pause, resources: {requests: {cpu: 100m, memory: 2}}}
"""
POOL = """apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  limits: {cpu: 100, memory: 1000}
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: []
"""
EC2_CLASS = """apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  amiFamily: AL2023
  role: nodes
  amiSelectorTerms: [{id: ami-0123456789abcdef0}]
  subnetSelectorTerms: [{id: subnet-0123456789abcdef0}]
  securityGroupSelectorTerms: [{id: sg-0123456789abcdef0}]
  kubelet:
    kubeReserved: {cpu: 100m, memory: "200"}
    systemReserved: {memory: 100Mi}
    evictionHard: {memory.available: "100", nodefs.available: 5%}
"""
LIMIT_RANGE = """apiVersion: v1
kind: LimitRange
metadata: {name: defaults}
spec: {limits: [{type: Container, default: {memory: 512}, defaultRequest: {memory: 256Mi}}]}
"""
BUFFER = """apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: spare}
spec: {podTemplateRef: {name: spare}, limits: {memory: 16}}
"""
HOSTS = """apiVersion: karpenter.machines/v1alpha1
kind: MachineNodeClass
metadata: {name: rack}
spec:
  power: libvirt
  hosts:
  - {name: node-1, capacity: {cpu: "4", memory: "64"}}
"""


def _odd(findings: Findings, text: str) -> list[tuple[str, str]]:
    return [(each["path"], each["message"]) for each in findings(text) if each["rule"] == "KL005"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1024", "1024 without a unit means bytes; did you mean 1024Mi?"),
        ("4", "4 without a unit means bytes; did you mean 4Gi?"),
        ("0.5", "0.5 without a unit means bytes; did you mean 0.5Gi?"),
        ("512000", "512000 without a unit means bytes; write the unit, such as Mi"),
        ("512m", "512m are 512 thousandths of a byte; did you mean 512Mi?"),
        ("100k", "100k is less than 1Mi; did you mean 100M?"),
        ("512Ki", "512Ki is less than 1Mi; did you mean 512Mi?"),
        ("1M", "1M is less than 1Mi; write a larger amount, such as 512Mi"),
        ("1e3", "1e3 is less than 1Mi; write a larger amount, such as 512Mi"),
    ],
)
@pytest.mark.parametrize("resource", ["memory", "ephemeral-storage"])
def test_an_amount_in_which_no_process_runs_is_reported_with_the_unit_that_was_probably_meant(
    findings: Findings, resource: str, value: str, message: str
) -> None:
    text = POD.replace("NAME", resource).replace("VALUE", f'"{value}"')
    assert _odd(findings, text) == [(child_path("spec.containers[0].resources.requests", resource), message)]


@pytest.mark.parametrize("value", ["0", "1Mi", "1048576", "128974848", "128974848000m", "129e6", "262144k"])
def test_an_amount_that_a_process_can_run_in_is_not_reported_in_whatever_unit_it_is_written(
    findings: Findings, value: str
) -> None:
    assert _odd(findings, POD.replace("NAME", "memory").replace("VALUE", f'"{value}"')) == []


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (
            DEPLOYMENT,
            [
                "spec.template.spec.containers[0].resources.requests.memory",
                "spec.template.spec.initContainers[0].resources.limits.memory",
                "spec.template.spec.resources.requests.memory",
            ],
        ),
        (POOL, ["spec.limits.memory"]),
        (EC2_CLASS, ["spec.kubelet.evictionHard[memory.available]", "spec.kubelet.kubeReserved.memory"]),
        (LIMIT_RANGE, ["spec.limits[0].default.memory"]),
        (BUFFER, ["spec.limits.memory"]),
        (HOSTS, ["spec.hosts[0].capacity.memory"]),
    ],
    ids=["a workload", "limits of a NodePool", "a kubelet", "a LimitRange", "a buffer", "hosts"],
)
def test_memory_without_a_unit_is_found_wherever_users_write_it(
    findings: Findings, text: str, paths: list[str]
) -> None:
    assert sorted(path for path, _ in _odd(findings, text)) == paths
