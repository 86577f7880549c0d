"""NodeOverlays and CapacityBuffers in ``karpenter plan``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from karpenter.cli import cluster_objects
from karpenter.cli.cluster_reader import list_plan_objects
from karpenter.model.clock import SystemClock
from karpenter.model.feature_gates import FeatureGate
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.manifest_builders import Json, Plan, pod, pool

Written = Callable[..., Path]
GATES = ("--feature-gates", "NodeOverlay=true,CapacityBuffer=true")


def overlay(name: str = "cheap", **spec: object) -> Json:
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b.large"]}]
    body = {"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}}
    return {**body, "spec": {"requirements": requirements, **spec}}


def buffer(**spec: object) -> Json:
    body = {"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer"}
    return {**body, "metadata": {"name": "room", "namespace": "default"}, "spec": spec}


def template(kind: str, api_version: str, replicas: int) -> Json:
    labels = {"app": "web"}
    specified = {"metadata": {"labels": labels}, "spec": pod("x", "3")["spec"]}
    body: Json = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": "default"}}
    if kind == "PodTemplate":
        return {**body, "template": specified}
    return {**body, "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": specified}}


def planned(plan: Plan, file: Path) -> Json:
    result = plan("-f", file, "-o", "json", *GATES)
    assert result.stderr == ""
    return json.loads(result.stdout)


def types_of(loads: Json) -> list[str]:
    return [claim["cheapest"]["instanceType"] for claim in loads["nodeClaims"]]


def test_a_price_of_an_overlay_decides_what_is_launched(plan: Plan, written: Written) -> None:
    objects = (pool(), pod("a", "6"))
    assert types_of(planned(plan, written("a.json", *objects))) == ["a.large"]
    loads = planned(plan, written("b.json", *objects, overlay(priceAdjustment="-60%")))
    assert types_of(loads) == ["b.large"]
    assert loads["cost"]["perHour"] == 0.2


def test_capacity_of_an_overlay_takes_pods_that_ask_for_it(plan: Plan, written: Written) -> None:
    asking = pod("a")
    asking["spec"]["containers"][0]["resources"]["requests"]["example.com/fpga"] = 1
    assert types_of(planned(plan, written("a.json", pool(), asking))) == []
    capacity = overlay(capacity={"example.com/fpga": 2})
    assert types_of(planned(plan, written("b.json", pool(), asking, capacity))) == ["b.large"]


def test_an_overlay_in_conflict_is_left_out_with_the_reason(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), pod("a", "6"), overlay("one", price="0.3"), overlay("two", price="0.2"))
    result = plan("-f", file, *GATES)
    assert result.stderr == (
        "NodeOverlay one is left out: conflict with another overlay: two also sets the price of instance type b.large in "
        "NodePool default and has the same weight (0); give one of them another weight\n"
    )


def test_an_invalid_overlay_is_refused(plan: Plan, written: Written) -> None:
    result = plan("-f", written("a.json", pool(), overlay(price="0.3", priceAdjustment="-5%")), *GATES)
    assert result.exit_code == 2
    assert "(NodeOverlay cheap): items[1].spec: cannot set both" in result.stderr


def test_without_the_gates_the_objects_count_and_the_difference_is_reported(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), pod("a", "6"), overlay(price="0.1"))
    result = plan("-f", file, "-o", "json")
    assert types_of(json.loads(result.stdout)) == ["b.large"]
    assert result.stderr == (
        "NodeOverlays count in this plan; the controller ignores them without --feature-gates NodeOverlay=true\n"
    )


@pytest.mark.parametrize(
    ("workload", "spec", "pods"),
    [
        pytest.param(
            template("Deployment", "apps/v1", 2),
            {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"}, "percentage": 50},
            2 + 1,
            id="share of a workload",
        ),
        pytest.param(
            template("PodTemplate", "v1", 0),
            {"podTemplateRef": {"name": "web"}, "replicas": 4},
            4,
            id="template, which is then no pod of its own",
        ),
    ],
)
def test_room_for_a_buffer_is_planned(workload: Json, spec: Json, pods: int, plan: Plan, written: Written) -> None:
    """SCH-722, SCH-730: virtual pods are planned beside those of the workload, two of three CPU on a node of eight."""
    file = written("a.json", pool(), workload, buffer(**spec))
    loads = planned(plan, file)
    assert types_of(loads) == ["a.large"] * 2
    assert sum(len(claim["pods"]) for claim in loads["nodeClaims"]) == pods
    virtual = spec.get("replicas", 1)
    assert loads["capacityBuffers"] == [
        {"name": "default/room", "existingNodes": 0, "newNodes": virtual, "unschedulable": 0}
    ]
    line = f"CapacityBuffer default/room: room for 0 pods on existing nodes, {virtual} on new nodes; 0 unschedulable"
    assert line in plan("-f", file, *GATES).stdout


def test_a_buffer_without_its_workload_is_left_out_with_the_reason(plan: Plan, written: Written) -> None:
    missing = buffer(podTemplateRef={"name": "none"}, replicas=2)
    result = plan("-f", written("a.json", pool(), missing), *GATES)
    assert result.stderr == "CapacityBuffer default/room is left out: PodTemplate default/none does not exist\n"


async def test_of_a_cluster_gated_objects_are_read_with_their_gate_only() -> None:
    server = MemoryServer(SystemClock())
    server.load_objects([pool(), overlay(), buffer(podTemplateRef={"name": "web"}, replicas=1)])
    kube = MemoryKube(server)
    for gates, count in ((frozenset[FeatureGate](), 0), (frozenset(FeatureGate), 1)):
        objects = await list_plan_objects(kube, cluster_objects.gated_kinds(gates))
        assert (len(objects.overlays), len(objects.buffers)) == (count, count)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "3 nodes by spec.replicas, 3 of them to launch"),
        ({"limits": {"nodes": "2"}}, "3 nodes by spec.replicas, 2 of them to launch (limits.nodes allows no more)"),
    ],
)
def test_nodes_of_a_static_node_pool_are_reported_beside_the_plan(
    plan: Plan, written: Written, spec: Json, said: str
) -> None:
    """SCH-702: whatever pods wait."""
    result = plan("-f", written("a.json", pool(name="fixed", replicas=3, **spec)))
    assert result.exit_code == 0
    assert result.stderr == f"NodePool fixed is static: {said}, not part of this plan\n"
