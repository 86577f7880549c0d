"""Workloads in manifests: their pods are planned for as their controllers would create them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from karpenter.cli import manifest_reader
from karpenter.cli.cluster_objects import EXPANDED_KINDS
from karpenter.cli.cluster_reader import list_plan_objects
from karpenter.cli.planning_options import InputOptions
from karpenter.cli.workload_expansion import expand_workloads
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.manifest_builders import Json, Plan, listed, pod, pool

Written = Callable[..., Path]

LABELS = {"app": "web"}


def template(cpu: str = "500m", **spec: object) -> Json:
    made = pod(cpu=cpu, **spec)
    return {"metadata": {"labels": LABELS}, "spec": made["spec"]}


def workload(kind: str, replicas: int | None = 3, name: str = "web", **spec: object) -> Json:
    """A Deployment, StatefulSet or ReplicaSet."""
    counted = {} if replicas is None else {"replicas": replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**counted, "selector": {"matchLabels": LABELS}, "template": template(), **spec},
    }


def job(name: str = "report", **spec: object) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template(restartPolicy="Never"), **spec},
    }


def cron_job(**spec: object) -> Json:
    made = job()
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": made["spec"]}, **spec},
    }


def autoscaler(least: int | None, most: int, version: str = "v2", kind: str = "Deployment") -> Json:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "web"}
    spec = {"scaleTargetRef": target, "maxReplicas": most} | ({} if least is None else {"minReplicas": least})
    return {
        "apiVersion": f"autoscaling/{version}",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": spec,
    }


def owned(name: str, owner: str, **members: object) -> Json:
    """A pod of a ReplicaSet."""
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
    metadata = {"name": name, "labels": {**LABELS, "pod-template-hash": "abc"}, "ownerReferences": [reference]}
    return {**pod(cpu="1"), "metadata": metadata, **members}


def planned(result: Result) -> list[str]:
    """Names of the pods on new nodes."""
    assert result.exit_code == 0, result.stderr
    return sorted(name for claim in json.loads(result.stdout)["nodeClaims"] for name in claim["pods"])


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (workload("Deployment"), ["web-1", "web-2", "web-3"]),
        (workload("Deployment", None), ["web-1"]),
        (workload("Deployment", 0), []),
        (workload("ReplicaSet", 2), ["web-1", "web-2"]),
        (workload("StatefulSet", 2), ["web-0", "web-1"]),
        (workload("StatefulSet", 2, ordinals={"start": 5}), ["web-5", "web-6"]),
        (job(), ["report-1"]),
        (job(parallelism=3), ["report-1", "report-2", "report-3"]),
        (job(parallelism=3, completions=2), ["report-1", "report-2"]),
        (cron_job(), ["nightly-run-1"]),
        (
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "worker"}, "template": template()},
            ["worker-1"],
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else ",".join(value),
)
def test_a_workload_alone_is_planned_with_the_pods_its_controller_would_create(
    plan: Plan, written: Written, manifest: Json, expected: list[str]
) -> None:
    result = plan("-f", written("a.json", pool(), manifest), "-o", "json")
    assert planned(result) == [f"default/{name}" for name in expected]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("manifest", "status", "line"),
    [
        (job(suspend=True), {}, "Job default/report is suspended: it gets no pods"),
        (cron_job(suspend=True), {}, "CronJob default/nightly is suspended: it gets no pods"),
        (job(), {"conditions": [{"type": "Complete", "status": "True"}]}, ""),
        (job(completions=2), {"succeeded": 2}, ""),
    ],
)
def test_jobs_that_do_not_run_get_no_pods(
    plan: Plan, written: Written, manifest: Json, status: Json, line: str
) -> None:
    result = plan("-f", written("a.json", pool(), {**manifest, "status": status}), "-o", "json")
    assert planned(result) == []
    assert result.stderr == (f"{line}\n" if line else "")


def test_pods_that_are_there_count_and_new_ones_belong_to_their_replica_set(plan: Plan, written: Written) -> None:
    running = [owned("web-abc-x", "web-abc", spec={**pod()["spec"], "nodeName": "n"}), owned("web-abc-y", "web-abc")]
    finished = owned("web-abc-z", "web-abc", status={"phase": "Failed"})
    replica_set = workload("ReplicaSet", 3, "web-abc")
    replica_set["metadata"] = {
        "name": "web-abc",
        "uid": "web-abc",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": True}
        ],
    }
    file = written("a.json", pool(), workload("Deployment"), replica_set, *running, finished)
    assert planned(plan("-f", file, "-o", "json")) == ["default/web-1", "default/web-abc-y"]


def test_a_stateful_set_keeps_the_ordinals_that_are_there(plan: Plan, written: Written) -> None:
    there = {**pod("web-1", nodeName="n"), "status": {"phase": "Running"}}
    file = written("a.json", pool(), workload("StatefulSet"), there)
    assert planned(plan("-f", file, "-o", "json")) == ["default/web-0", "default/web-2"]


def test_pods_of_a_stateful_set_wait_for_the_zone_of_their_own_claims(plan: Plan, written: Written) -> None:
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "far"},
        "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["zone-z"]}]}
        ],
    }
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "far", "accessModes": ["ReadWriteOnce"]}}
    manifest = workload("StatefulSet", 1, volumeClaimTemplates=[claim])
    result = plan("-f", written("a.json", pool(), storage, manifest), "-o", "json")
    (waiting,) = json.loads(result.stdout)["unschedulable"]
    assert waiting["pod"] == "default/web-0"
    assert "zone-z" in result.stdout


def test_a_run_of_a_cron_job_that_is_there_is_the_one_that_counts(plan: Plan, written: Written) -> None:
    reference = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c", "controller": True}
    run = job("nightly-123", parallelism=2)
    run["metadata"] = {"name": "nightly-123", "ownerReferences": [reference]}
    file = written("a.json", pool(), cron_job(), run)
    assert planned(plan("-f", file, "-o", "json")) == ["default/nightly-123-1", "default/nightly-123-2"]


@pytest.mark.parametrize(
    ("choice", "replicas", "scaler", "count"),
    [
        ("min", 3, autoscaler(2, 5), 2),
        ("min", 3, autoscaler(None, 5), 1),
        ("current", 3, autoscaler(2, 5), 3),
        ("current", None, autoscaler(2, 5), 2),
        ("current", 9, autoscaler(2, 5), 5),
        ("max", 3, autoscaler(2, 5), 5),
        ("max", 3, autoscaler(2, 5, "v1"), 5),
        ("max", 0, autoscaler(2, 5), 0),
        ("max", 3, autoscaler(2, 5, kind="StatefulSet"), 3),
    ],
)
def test_an_autoscaler_sets_the_replicas_of_its_target(
    plan: Plan, written: Written, choice: str, replicas: int | None, scaler: Json, count: int
) -> None:
    file = written("a.json", pool(), workload("Deployment", replicas), scaler)
    assert len(planned(plan("-f", file, "-o", "json", "--replicas", choice))) == count


def test_at_the_least_replicas_pods_beyond_them_are_gone(plan: Plan, written: Written) -> None:
    waiting = [owned(f"web-abc-{number}", "web-abc") for number in range(4)]
    file = written("a.json", pool(), workload("Deployment", 4), autoscaler(1, 9), *waiting)
    assert planned(plan("-f", file, "-o", "json", "--replicas", "min")) == ["default/web-abc-3"]


def test_an_autoscaler_whose_target_is_missing_is_reported(plan: Plan, written: Written) -> None:
    result = plan("-f", written("a.json", pool(), autoscaler(1, 2)), "-o", "json")
    assert result.stderr == "HorizontalPodAutoscaler default/web: Deployment web is not in the input; add it\n"


def test_a_daemon_set_counts_on_every_new_node_with_its_limits(plan: Plan, written: Written) -> None:
    limits = {"limits": {"cpu": "1700m", "memory": "1Gi"}}
    agent = workload(
        "DaemonSet", None, template={**template(), "spec": {"containers": [{"name": "a", "resources": limits}]}}
    )
    (claim,) = json.loads(plan("-f", written("a.json", pool(), agent, pod()), "-o", "json").stdout)["nodeClaims"]
    assert claim["instanceTypes"][0] == "a.large"  # 1.7 + 0.5 CPU are too much for two cores


def test_limits_count_where_no_requests_are_stated(plan: Plan, written: Written) -> None:
    """The API server takes limits for requests: such a pod is no small one."""
    container = {"name": "a", "resources": {"limits": {"cpu": "6", "memory": "1Gi"}, "requests": {"memory": "1Mi"}}}
    bare = {**pod("bare"), "spec": {"containers": [container]}}
    deployment = workload("Deployment", 1, template={**template(), "spec": {"containers": [container]}})
    claims = json.loads(plan("-f", written("a.json", pool(), bare, deployment), "-o", "json").stdout)["nodeClaims"]
    assert sorted(claim["requests"]["cpu"] for claim in claims) == ["6", "6"]


def limit_range(name: str = "defaults", namespace: str = "default", **item: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


def cpu_of_claims(plan: Plan, file: Path) -> list[str]:
    claims = json.loads(plan("-f", file, "-o", "json").stdout)["nodeClaims"]
    return sorted(claim["requests"]["cpu"] for claim in claims)


@pytest.mark.parametrize(
    ("item", "cpu"),
    [
        ({"defaultRequest": {"cpu": "6"}}, "6"),
        ({"default": {"cpu": "6"}}, "6"),
        ({"max": {"cpu": "6"}}, "6"),
        ({"min": {"cpu": "6"}}, "6"),
        ({"default": {"cpu": "7"}, "defaultRequest": {"cpu": "5"}, "max": {"cpu": "7"}, "min": {"cpu": "1"}}, "5"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_limit_ranges_fill_in_what_containers_do_not_request(
    plan: Plan, written: Written, item: Json, cpu: str
) -> None:
    """As admission does it, wherever the LimitRange stands: the default request, else the default limit, else the minimum; a
    maximum is the default limit where there is none."""
    container = {"name": "a", "resources": {"requests": {"memory": "1Mi"}}}
    bare = {**pod("bare"), "spec": {"containers": [container]}}
    deployment = workload("Deployment", 1, template={**template(), "spec": {"containers": [container]}})
    assert cpu_of_claims(plan, written("a.json", pool(), bare, deployment, limit_range(**item))) == [cpu, cpu]


def test_limit_ranges_leave_alone_what_is_stated_or_stored_or_elsewhere(plan: Plan, written: Written) -> None:
    """A stated limit is the request; a pod that a server stored was admitted there; a LimitRange is for its namespace."""
    limited = {**pod("limited"), "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "2"}}}]}}
    stored = pod("stored", "1")
    stored["metadata"] = {**stored["metadata"], "resourceVersion": "7"}
    stored["spec"] = {"containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]}
    default = limit_range(defaultRequest={"cpu": "6"})
    away = limit_range(namespace="elsewhere", defaultRequest={"cpu": "7"})
    second = limit_range(name="second", defaultRequest={"cpu": "3"})
    bare = {**pod("bare"), "spec": {"containers": [{"name": "a"}]}}
    assert cpu_of_claims(plan, written("a.json", pool(), limited, default)) == ["2"]
    assert cpu_of_claims(plan, written("b.json", pool(), bare, away, second, default)) == ["6"]
    claims = json.loads(plan("-f", written("c.json", pool(), stored, default), "-o", "json").stdout)["nodeClaims"]
    assert [claim["requests"].get("cpu", "0") for claim in claims] == ["0"]


def test_limit_ranges_count_for_daemon_sets(plan: Plan, written: Written) -> None:
    """Their pods are admitted like others, so nodes keep room for what they will request."""
    agent = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": LABELS}, "template": {"spec": {"containers": [{"name": "a"}]}}},
    }
    agent["spec"]["template"]["metadata"] = {"labels": LABELS}
    file = written("a.json", pool(), agent, pod("web", "2"), limit_range(defaultRequest={"cpu": "500m"}))
    assert cpu_of_claims(plan, file) == ["2500m"]


def test_pods_of_a_higher_priority_class_get_the_last_room(plan: Plan, written: Written) -> None:
    classes = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        for name, value in (("high", 1000), ("low", -5))
    ]
    names = {"a": "low", "b": "high", "c": ""}
    waiting = [pod(name, "1500m", priorityClassName=class_name) for name, class_name in names.items()]
    file = written("a.json", pool(limits={"cpu": "2"}), *classes, *waiting)
    assert planned(plan("-f", file, "-o", "json")) == ["default/b"]


def test_a_priority_class_that_is_missing_is_reported(plan: Plan, written: Written) -> None:
    result = plan("-f", written("a.json", pool(), pod(priorityClassName="high")), "-o", "json")
    assert planned(result) == ["default/web"]
    assert result.stderr == ("PriorityClass high is not in the input: 1 pod with priority 0 for it; add it\n")


def test_workloads_with_bad_quantities_are_refused_with_their_place(plan: Plan, written: Written) -> None:
    file = written("a.json", pool(), workload("Deployment", template=template("1core")))
    result = plan("-f", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"{file}: document 1 (Deployment default/web): "
        "items[1].spec.template.spec.containers[0].resources.requests.cpu: "
    )


def test_a_budget_in_the_same_file_is_counted_as_its_controller_would(tmp_path: Path) -> None:
    running = [
        owned(
            f"web-abc-{number}",
            "web-abc",
            spec={"nodeName": "n", "containers": [{"name": "a"}]},
            status={"phase": "Running"},
        )
        for number in range(3)
    ]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 2, "selector": {"matchLabels": LABELS}},
    }
    file = tmp_path / "a.json"
    file.write_text(json.dumps(listed(workload("Deployment", 4), budget, *running)))
    objects = manifest_reader.read_manifests(InputOptions([str(file)]), frozenset())
    status = objects.budgets[0].status
    assert (status.expected_pods, status.current_healthy, status.disruptions_allowed) == (4, 3, 1)


async def test_of_a_running_cluster_the_most_replicas_add_pods_to_those_there() -> None:
    server = MemoryServer(SystemClock())
    there = {**owned("web-abc-x", "web-abc"), "status": {"phase": "Running"}}
    server.load_objects(
        {**body, "metadata": {**body["metadata"], "namespace": "default"}}
        for body in (workload("Deployment", 1), autoscaler(1, 3), there)
    )
    objects = await list_plan_objects(MemoryKube(server), EXPANDED_KINDS)
    expand_workloads(objects, "max")
    assert [added.metadata.name for added in objects.pods] == ["web-abc-x", "web-1", "web-2"]
