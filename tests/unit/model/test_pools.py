"""Runtime validation of a pool beyond its schema, and the hash of its template."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from karpenter.api.apps import DaemonSet, DaemonSetSpec
from karpenter.api.core import Container, Node, NodeStatus, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.karpenter import NodePool
from karpenter.model import labels, nodepool_hash, runtime_validation
from support.admission_rows import built, req

T = "spec.template.spec"
META = "spec.template.metadata"
REQUIREMENTS = f"{T}.requirements"
CAPACITY = "karpenter.sh/capacity-type"
TENANCY = "karpenter.k8s.aws/instance-tenancy"
A_TAINT = {"key": "a", "effect": "NoSchedule"}


def pool(change: Mapping[str, object] | None = None) -> NodePool:
    return msgspec.convert(built("NodePool", change or {}), NodePool)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {f"{META}.labels": {"foo": "bar", "kops.k8s.io/instancegroup": "a", "topology.kubernetes.io/zone": "z"}},
        {f"{META}.labels": {CAPACITY: "spot", "karpenter.k8s.aws/instance-family": "m5", "empty": ""}},
        {f"{T}.taints": [A_TAINT, {"key": "a", "effect": "NoExecute"}]},
        {REQUIREMENTS: [req("In", "10.0.20348", key="node.kubernetes.io/windows-build")]},
        {REQUIREMENTS: [req("In", "use1-az1", key="topology.k8s.aws/zone-id")]},
        {REQUIREMENTS: [req("Exists", key="karpenter.k8s.aws/capacity-reservation-id")]},
        {REQUIREMENTS: [req("In", "us-east-2a", key="topology.ebs.csi.aws.com/zone")]},
        {REQUIREMENTS: [req("In", "spot", "on-demand", key=CAPACITY)]},
        {REQUIREMENTS: [req("In", "spot", "sopt", key=CAPACITY)]},
        {REQUIREMENTS: [req("NotIn", "sopt", key=CAPACITY)]},
        {REQUIREMENTS: [req("In", "default", key=TENANCY)]},
        {f"{T}.expireAfter": "Never"},
    ],
)
def test_a_sound_pool_passes_runtime_validation(change: Mapping[str, object]) -> None:
    """API-S030, S032, S038, S050, S051, S053 to S055"""
    assert runtime_validation.validate_node_pool(pool(change)) == ()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({f"{META}.labels": {"spaces are not allowed": "a"}}, f"{META}.labels[spaces are not allowed]"),
        ({f"{META}.labels": {"karpenter.sh/nodepool": "a"}}, f"{META}.labels[karpenter.sh/nodepool]"),
        ({f"{META}.labels": {"sub.karpenter.sh/a": "a"}}, f"{META}.labels[sub.karpenter.sh/a]"),
        ({f"{META}.labels": {"a" * 254 + "/a": "a"}}, f"{META}.labels[{'a' * 254}/a]"),
        ({f"{META}.labels": {"a" * 64: "a"}}, f"{META}.labels.{'a' * 64}"),
        ({f"{META}.labels": {"A.com/a": "a"}}, f"{META}.labels[A.com/a]"),
        ({f"{META}.labels": {"/a": "a"}}, f"{META}.labels[/a]"),
        ({f"{T}.taints": [A_TAINT, A_TAINT]}, f"{T}.taints[1]"),
        ({f"{T}.taints": [A_TAINT], f"{T}.startupTaints": [A_TAINT]}, f"{T}.startupTaints[0]"),
        ({f"{T}.taints": [{**A_TAINT, "key": "a" * 64}]}, f"{T}.taints[0].key"),
        ({f"{T}.taints": [{**A_TAINT, "value": "a" * 64}]}, f"{T}.taints[0].value"),
        ({REQUIREMENTS: [req("In", "bad value!")]}, f"{REQUIREMENTS}[0].values[0]"),
        ({REQUIREMENTS: [req("NotIn", "a" * 64)]}, f"{REQUIREMENTS}[0].values[0]"),
        ({REQUIREMENTS: [req("In", "sopt", key=CAPACITY)]}, f"{REQUIREMENTS}[0].values"),
        ({REQUIREMENTS: [req("In", "spot", "sopt", key=CAPACITY, minValues=2)]}, f"{REQUIREMENTS}[0].values"),
        ({REQUIREMENTS: [req("In", "host", key=TENANCY)]}, f"{REQUIREMENTS}[0].values"),
        ({REQUIREMENTS: [req("Exists", key="karpenter.k8s.aws/ec2nodeclass")]}, f"{REQUIREMENTS}[0].key"),
        ({REQUIREMENTS: [req("In", "a", key="karpenter.sh/nodepool")]}, f"{REQUIREMENTS}[0].key"),
        ({REQUIREMENTS: [req("Gt", "a")]}, f"{REQUIREMENTS}[0].values"),
        ({REQUIREMENTS: [req("In", "a", minValues=2)]}, f"{REQUIREMENTS}[0].values"),
        ({"metadata.name": "a" * 64}, "metadata.name"),
        ({f"{T}.nodeClassRef.name": "a" * 64}, f"{T}.nodeClassRef.name"),
        ({f"{T}.expireAfter": "2562048h"}, f"{T}.expireAfter"),
        ({"spec.disruption.budgets": [{"duration": "2562048h"}]}, "spec.disruption.budgets[0].duration"),
        ({"spec.limits": {"cpu": "1e1.5"}}, "spec.limits.cpu"),
    ],
)
def test_a_pool_that_makes_no_sense_is_found_at_runtime(change: Mapping[str, object], path: str) -> None:
    """API-075 to API-079, API-S034, S039, S052, S053, S055, API-028, API-031, API-435"""
    findings = runtime_validation.validate_node_pool(pool(change))
    assert [finding.path for finding in findings] == [path], findings


def test_another_providers_labels_are_restricted_where_it_does_not_run() -> None:
    """API-430"""
    change = {REQUIREMENTS: [req("In", "m5", key="karpenter.k8s.aws/instance-family")]}
    assert runtime_validation.validate_node_pool(pool(change), labels.CORE_WELL_KNOWN | labels.KWOK_WELL_KNOWN)


BAD = ResourceRequirements(requests={"cpu": "1", "memory": "lots"}, limits={"nvidia.com/gpu": "?"})


@pytest.mark.parametrize(
    ("obj", "paths"),
    [
        (Pod(), []),
        (
            Pod(spec=PodSpec(containers=(Container(), Container(resources=BAD)), overhead={"cpu": ""})),
            [
                "spec.containers[1].resources.requests.memory",
                "spec.containers[1].resources.limits[nvidia.com/gpu]",
                "spec.overhead.cpu",
            ],
        ),
        (Node(status=NodeStatus(capacity={"cpu": "x"}, allocatable={"cpu": 1})), ["status.capacity.cpu"]),
        (
            DaemonSet(
                spec=DaemonSetSpec(template=PodTemplateSpec(spec=PodSpec(init_containers=(Container(resources=BAD),))))
            ),
            [
                "spec.template.spec.initContainers[0].resources.requests.memory",
                "spec.template.spec.initContainers[0].resources.limits[nvidia.com/gpu]",
            ],
        ),
    ],
)
def test_broken_quantities_are_found_by_path(obj: Pod | Node | DaemonSet, paths: list[str]) -> None:
    assert [finding.path for finding in runtime_validation.check_quantities(obj)] == paths


BASE = {
    f"{META}.labels": {"a": "b"},
    f"{META}.annotations": {"a": "b"},
    f"{T}.taints": [A_TAINT, {"key": "b", "effect": "NoExecute"}],
    f"{T}.expireAfter": "1h",
    f"{T}.terminationGracePeriod": "1h",
}


@pytest.mark.parametrize(
    "change",
    [
        {"spec.weight": 5},
        {"spec.limits": {"cpu": 5}},
        {"spec.disruption": {"budgets": [{"nodes": "0"}], "consolidateAfter": "1h"}},
        {REQUIREMENTS: [req("Exists")]},
        {"metadata.labels": {"x": "y"}, "status": {"nodes": 3}},
        {f"{T}.expireAfter": "60m"},
        {f"{T}.terminationGracePeriod": "30m30m"},
        {f"{T}.taints": [{"key": "b", "effect": "NoExecute"}, A_TAINT]},
        {f"{T}.startupTaints": []},
    ],
)
def test_the_hash_ignores_what_does_not_reach_the_node(change: Mapping[str, object]) -> None:
    """API-S230, API-501, API-502"""
    assert nodepool_hash.node_pool_hash(pool({**BASE, **change})) == nodepool_hash.node_pool_hash(pool(BASE))


@pytest.mark.parametrize(
    "change",
    [
        {f"{META}.labels": {"a": "c"}},
        {f"{META}.labels": {}},
        {f"{META}.annotations": {"a": "c"}},
        {f"{T}.taints": [A_TAINT]},
        {f"{T}.startupTaints": [A_TAINT]},
        {f"{T}.taints": [], f"{T}.startupTaints": [A_TAINT, {"key": "b", "effect": "NoExecute"}]},
        {f"{T}.expireAfter": "2h"},
        {f"{T}.expireAfter": "Never"},
        {f"{T}.terminationGracePeriod": "2h"},
        {f"{T}.terminationGracePeriod": None},
        {f"{T}.terminationGracePeriod": "0s"},
        {f"{T}.nodeClassRef.name": "other"},
    ],
)
def test_the_hash_changes_with_what_reaches_the_node(change: Mapping[str, object]) -> None:
    """API-S231"""
    assert nodepool_hash.node_pool_hash(pool({**BASE, **change})) != nodepool_hash.node_pool_hash(pool(BASE))


def test_the_hash_is_the_same_in_every_process_and_release() -> None:
    """API-503, API-506: whoever changes this number has to bump the version, or every node drifts."""
    assert nodepool_hash.NODE_POOL_HASH_VERSION == "py1"
    assert nodepool_hash.node_pool_hash(pool(BASE)) == "15506067251490296015"
    assert nodepool_hash.node_pool_hash(pool({f"{T}.expireAfter": "720h"})) == nodepool_hash.node_pool_hash(pool())
