"""``karpenter plan`` with the spread constraints that a scheduler gives pods without any (SCH §29)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from karpenter.cli.cluster_objects import WORKLOAD_KINDS
from karpenter.cli.cluster_reader import list_plan_objects
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.manifest_builders import Json, Plan, pod, pool

Written = Callable[..., Path]
CONFIG = (
    "podTopologySpread: {defaultConstraints: "
    "[{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}]}"
)
LABELS = {"app": "web"}
SERVICE: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": LABELS}}


def workload(kind: str, version: str = "apps/v1") -> Json:
    selector: Json = LABELS if kind == "ReplicationController" else {"matchLabels": LABELS}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "web", "uid": "u-1"},
        "spec": {
            "replicas": 0,
            "selector": selector,
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "web"}]}},
        },
    }


def web(number: int, kind: str = "ReplicaSet") -> Json:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "u-1", "controller": True}
    return {**pod(), "metadata": {"name": f"web-{number}", "labels": LABELS, "ownerReferences": [owner]}}


def node_count(plan: Plan, *arguments: str | Path) -> int:
    result = plan(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return len(json.loads(result.stdout)["nodeClaims"])


@pytest.mark.parametrize(
    "known",
    [
        SERVICE,
        workload("ReplicaSet"),
        workload("StatefulSet"),
        workload("ReplicationController", "v1"),
    ],
    ids=lambda known: str(known["kind"]),
)
def test_pods_that_belong_together_are_spread(plan: Plan, written: Written, known: Json) -> None:
    """S-220"""
    file = written("all.json", pool(), known, web(1), web(2))
    assert node_count(plan, "-f", file, "--scheduler-config", CONFIG) == 2


def test_without_the_setting_these_kinds_are_of_no_use(plan: Plan, written: Written) -> None:
    controller = workload("ReplicationController", "v1")
    result = plan("-f", written("all.json", pool(), SERVICE, controller, web(1), web(2)), "-o", "json")
    assert len(json.loads(result.stdout)["nodeClaims"]) == 1
    assert "ignored 2 objects of kinds that planning does not use: ReplicationController 1, Service 1" in result.stderr


def test_a_bad_configuration_is_refused(plan: Plan, written: Written) -> None:
    """SCH-830"""
    result = plan("-f", written("all.json", pool()), "--scheduler-config", "a: 1")
    assert (result.exit_code, result.stderr) == (
        2,
        "karpenter plan: --scheduler-config='a: 1': parsing scheduler config, decoding scheduler config, "
        "Object contains unknown field `a`\n",
    )


async def test_a_cluster_is_asked_for_them_only_where_they_are_needed() -> None:
    server = MemoryServer(SystemClock())
    named = [{**obj, "metadata": {"name": "web", "namespace": "default"}} for obj in (SERVICE, workload("ReplicaSet"))]
    server.load_objects(named)
    kube = MemoryKube(server)
    cluster_objects = await list_plan_objects(kube, WORKLOAD_KINDS)
    assert ([service.metadata.name for service in cluster_objects.services], len(cluster_objects.owners)) == (
        ["web"],
        1,
    )
    unasked = await list_plan_objects(kube)
    assert (unasked.services, unasked.owners) == ([], [])
